"""Submitting: a turn without a task, answered by callback when its answer may leave."""

import asyncio
import errno
from collections.abc import Sequence

from engine import Added, Engine, EngineError, Reply, XAdd, XRead
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk


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


async def test_an_answer_may_wait_for_the_disk_whatever_the_policy() -> None:
    """Only the one that was asked for."""
    disk = SlowDisk()
    async with Conversation(disk, "everysec") as talk:
        disk.hold()
        told: list[str] = []
        first, second = (
            XAdd(stream="s", bodies=[b',"fields":{"a":"1"}}'], ids=[number]) for number in (1, 2)
        )
        talk.engine.submit([first], lambda _: told.append("synced"), synced=True)
        talk.engine.submit([second], lambda _: told.append("written"))
        await settle()
        assert told == ["written"]
        disk.let_go()
        while len(told) < 2:
            await let_threads_run()
