"""Compressing that fails costs nothing: the texts stay as they were, and it is tried again."""

import asyncio
import sys
import threading
import time
from typing import ClassVar, Final

from engine.keyspace import Keyspace
from engine.nodes import Text
from engine.runtime.loading import pack
from engine.runtime.packing import RETRY_S, Packer
from tests.engine.clocks import HandClock


class NeedsMemory(Text):
    """A text that cannot be compressed while memory is short."""

    short: ClassVar[bool] = True

    def plain(self) -> bytes:
        if self.short:
            raise MemoryError
        return super().plain()


async def test_compressing_is_tried_again_when_memory_was_short() -> None:
    """Not at once; and each failure is reported, none is lost."""
    result: list[object] = []
    loop = asyncio.get_running_loop()
    failed = asyncio.Event()

    def tell(_: object, context: dict[str, object]) -> None:
        result.append(context["exception"])
        failed.set()

    loop.set_exception_handler(tell)
    keyspace, clock = Keyspace(), HandClock()
    texts: list[Text] = [Text(b"one" * 99), NeedsMemory(b"two" * 99), Text(b"three" * 99)]
    keyspace.cold.extend(texts)
    packer = Packer(keyspace, clock)
    packer.begin()
    later = Text(b"four" * 99)
    await failed.wait()
    keyspace.cold.append(later)
    assert len(result) == 1
    assert isinstance(result[0], MemoryError)
    assert keyspace.cold == [*texts, later], "none is forgotten"
    clock.pass_ms(int(RETRY_S * 1000) - 1)
    packer.begin()
    assert not any(text.is_packed for text in texts), "too early"
    NeedsMemory.short = False
    clock.pass_ms(2)
    packer.begin()
    await packer.close()
    assert all(text.is_packed for text in [*texts, later])
    assert texts[1].plain() == b"two" * 99
    assert (keyspace.cold, len(result)) == ([], 1)


async def test_a_stop_waits_for_what_is_under_way_and_survives_its_failure() -> None:
    """The log has to be closed in any case."""
    result: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: result.append(context))
    NeedsMemory.short = True
    keyspace = Keyspace()
    keyspace.cold.append(NeedsMemory(b"text"))
    packer = Packer(keyspace, HandClock())
    packer.begin()
    await packer.close()
    assert len(result) == 1


SWITCH_S: Final = 0.05


def test_a_busy_event_loop_does_not_hold_compressing_up() -> None:
    """Each text would wait for the interpreter's lock by itself, and texts would pile up under load."""
    texts = [Text(b"%d" % number * 999) for number in range(100)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        packing = threading.Thread(target=pack, args=(texts,))
        packing.start()
        ends_s = time.monotonic() + len(texts) * SWITCH_S / 4
        while packing.is_alive() and time.monotonic() < ends_s:
            pass
        assert not packing.is_alive()
    finally:
        sys.setswitchinterval(before)
        packing.join()


def test_texts_packed_together_are_as_each_by_itself() -> None:
    """More than one call takes, one of which is packed already."""
    texts = [Text(b"%d" % number * 99) for number in range(1_000)]
    alone = [text.compress() for text in texts]
    texts[300].keep_packed(alone[300])
    assert pack(texts) == alone
    assert pack([]) == []
