"""Submitting: a turn without a task, answered by callback when its answer may leave."""

import asyncio
import errno
from collections.abc import Sequence

from engine import Added, Engine, EngineError, Reply, XAdd, XRead
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock


class Told(asyncio.Queue[Sequence[Reply | EngineError]]):
    """What was answered and not looked at yet."""


async def opened(storage: MemoryStorage) -> Engine:
    engine = Engine.open(storage, clock=HandClock(1_000), fsync="always")
    await engine.start()
    return engine


def publish(stream: str, value: bytes) -> XAdd:
    return XAdd(stream=stream, bodies=[b',"fields":{"a":"%b"}}' % value])


async def test_an_answer_waits_for_the_log_and_a_read_for_what_it_shows() -> None:
    """Neither is told before the sync, both after it, in order; where nothing is unsafe it is at once."""
    engine, told = await opened(MemoryStorage()), Told()
    engine.submit([publish("s", b"1")], told.put_nowait)
    engine.submit([XRead(streams=[("s", 0)])], told.put_nowait)
    assert told.empty()
    assert isinstance((await told.get())[0], Added)
    read = await told.get()
    engine.submit([XRead(streams=[("s", 0)], block_ms=1_000)], told.put_nowait)
    assert told.get_nowait() == read
    engine.submit([publish("s", b"2"), publish("t", b"3")], told.put_nowait)
    assert len(await told.get()) == 2
    engine.check()
    await engine.close()


async def test_nothing_waits_for_entries() -> None:
    """A read that would wait finds nothing, at once."""
    engine, told = await opened(MemoryStorage()), Told()
    engine.submit([XRead(streams=[("s", 0)], block_ms=1_000)], told.put_nowait)
    assert not told.empty()
    assert engine.waiting == 0
    await engine.close()


async def test_when_the_log_fails_everybody_is_told() -> None:
    """Those who wait, and those who come later."""
    storage, told = MemoryStorage(), Told()
    engine = await opened(storage)
    storage.fail("sync", errno.EIO)
    for value in (b"1", b"2"):
        engine.submit([publish("s", value)], told.put_nowait)
        (reply,) = await told.get()
        assert isinstance(reply, EngineError)
        assert reply.code == "storage_failed"
    await engine.close()
