"""Compressing that fails costs nothing: the texts stay as they were, and it is tried again."""

import asyncio
from typing import ClassVar

import zstandard

from engine.keyspace import Keyspace
from engine.nodes import Text
from engine.runtime.loading import PACK_BYTES_MAX, chunks, pack
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
    packer.begin_packing()
    later = Text(b"four" * 99)
    await failed.wait()
    keyspace.cold.append(later)
    assert len(result) == 1
    assert isinstance(result[0], MemoryError)
    assert keyspace.cold == [*texts, later], "none is forgotten"
    clock.pass_ms(int(RETRY_S * 1000) - 1)
    packer.begin_packing()
    assert not any(text.is_packed for text in texts), "too early"
    NeedsMemory.short = False
    clock.pass_ms(2)
    packer.begin_packing()
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
    packer.begin_packing()
    await packer.close()
    assert len(result) == 1


class Alone(Text):
    """A text that is not to be compressed by a call of its own."""

    def compress(self, compressor: zstandard.ZstdCompressor | None = None) -> bytes:
        raise AssertionError("one call compresses many")


def test_texts_are_compressed_together() -> None:
    """A thread that asks for the interpreter's lock after each text falls behind a busy event loop."""
    texts = [Alone(b"%d" % number * 999) for number in range(100)]
    assert [zstandard.decompress(packed) for packed in pack(texts)] == [text.plain() for text in texts]


def test_texts_compressed_together_are_as_each_by_itself() -> None:
    """Some are packed already, and there are more bytes than one call takes; or there are none."""
    texts = [Text(b"%d" % number * (5_000_000 if number == 7 else 9_999)) for number in range(1_000)]
    alone = [text.compress() for text in texts]
    for place in (0, 300, 999):
        texts[place].keep_packed(alone[place])
    assert pack(texts) == alone
    assert pack([]) == []


def test_what_one_call_compresses_is_bounded_by_its_bytes() -> None:
    """Up to the limit and no further; one that is larger goes alone."""
    half = PACK_BYTES_MAX // 2
    sizes = [half, half, 1, half, half, PACK_BYTES_MAX + 1, half - 1, half + 1, 9, 9]
    texts = [Text(bytes(size)) for size in sizes]
    assert [[text.size for text in chunk] for chunk in chunks(texts)] == [
        [half, half],
        [1, half],
        [half],
        [PACK_BYTES_MAX + 1],
        [half - 1, half + 1],
        [9, 9],
    ]
