"""Submitting: a turn without a task, answered by callback when its answer may leave."""

import asyncio
import errno
from collections.abc import Sequence

import pytest

from engine import Engine, EngineError, Fsync
from engine.commands.execution import execute
from engine.commands.types import Cursor, XAdd, XGroupCreate, XInfoConsumers, XLen, XRead, XReadGroup
from engine.keyspace import Keyspace
from engine.replies import Added, ConsumerInfo, GroupRead, Reply
from engine.storage.memory import MemoryStorage
from tests.engine.asking import begin_read, reply_to, submit, turn_of
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk


class Replies(asyncio.Queue[Sequence[Reply | EngineError]]):
    """What was answered and not looked at yet."""


async def opened(storage: MemoryStorage) -> Engine:
    engine = Engine.open(storage, clock=HandClock(1_000), fsync="always")
    await engine.start()
    return engine


def publish(stream: str, value: bytes) -> XAdd:
    return XAdd(stream=stream, bodies=[b',"fields":{"a":"%b"}}' % value])


async def test_an_answer_waits_for_the_log_and_a_read_for_what_it_shows() -> None:
    """Neither is answered before the sync, both after it, in order; where nothing is unsafe it is at once."""
    engine, result = await opened(MemoryStorage()), Replies()
    submit(engine, [publish("s", b"1")], result.put_nowait)
    submit(engine, [XRead(streams=[("s", 0)])], result.put_nowait)
    assert result.empty()
    assert isinstance((await result.get())[0], Added)
    read = await result.get()
    submit(engine, [XRead(streams=[("s", 0)], block_ms=1_000)], result.put_nowait)
    assert result.get_nowait() == read
    submit(engine, [publish("s", b"2"), publish("t", b"3")], result.put_nowait)
    assert len(await result.get()) == 2
    engine.check()
    await engine.close()


async def test_nothing_waits_for_entries() -> None:
    """A read that would wait finds nothing, at once."""
    engine, result = await opened(MemoryStorage()), Replies()
    submit(engine, [XRead(streams=[("s", 0)], block_ms=1_000)], result.put_nowait)
    assert not result.empty()
    assert engine.figures().waiting == 0
    await engine.close()


async def test_when_the_log_fails_everybody_is_told() -> None:
    """Those who wait, and those who come later."""
    storage, result = MemoryStorage(), Replies()
    engine = await opened(storage)
    storage.fail("sync", errno.EIO)
    for value in (b"1", b"2"):
        submit(engine, [publish("s", value)], result.put_nowait)
        (reply,) = await result.get()
        assert isinstance(reply, EngineError)
        assert reply.code == "storage_failed"
    await engine.close()


@pytest.mark.parametrize(("operation", "code"), [("sync", errno.ENOSPC), ("append", errno.EIO)])
@pytest.mark.parametrize("fsync", ["always", "everysec"])
async def test_once_the_log_has_failed_all_ways_refuse_alike(operation: str, code: int, fsync: Fsync) -> None:
    """What shows the frame that was lost is refused, however it is asked for; what does not is answered."""
    storage, result = MemoryStorage(), Replies()
    async with Engine.open(storage, clock=HandClock(1_000), fsync=fsync) as engine:
        await turn_of(engine, [XGroupCreate(stream="other", group="g", start=0, mkstream=True)], synced=True)
        storage.fail(operation, code)
        submit(engine, [publish("s", b"1")], result.put_nowait, synced=True)
        assert [getattr(each, "code", each) for each in await result.get()] == ["storage_failed"]
        for command in (XRead(streams=[("s", 0)]), XLen(stream="s"), publish("s", b"2"), reading("a")):
            codes: list[object] = []
            for way in (reply_to(engine, command), turn_of(engine, [command])):
                with pytest.raises(EngineError) as refused:
                    await way
                codes.append(refused.value.code)
            submit(engine, [command], result.put_nowait)
            if isinstance(command, XReadGroup):
                begin_read(engine, command, result.put_nowait)
                codes += [getattr(each, "code", each) for each in await result.get()]
            codes += [getattr(each, "code", each) for each in await result.get()]
            assert set(codes) == {"storage_failed"}, command
        safe = XLen(stream="other")
        submit(engine, [safe], result.put_nowait)
        assert [await reply_to(engine, safe), *await turn_of(engine, [safe]), *await result.get()] == [
            0,
            0,
            0,
        ]


async def test_an_answer_may_wait_for_the_disk_whatever_the_policy() -> None:
    """Only the one that was asked for."""
    disk = SlowDisk()
    async with Conversation(disk, "everysec") as talk:
        disk.hold()
        result: list[str] = []
        first, second = (
            XAdd(stream="s", bodies=[b',"fields":{"a":"1"}}'], ids=[number]) for number in (1, 2)
        )
        submit(talk.engine, [first], lambda _: result.append("synced"), synced=True)
        submit(talk.engine, [second], lambda _: result.append("written"))
        await settle()
        assert result == ["written"]
        disk.let_go()
        while len(result) < 2:
            await let_threads_run()


# ---- reads that wait


def reading(consumer: str) -> XReadGroup:
    return XReadGroup(group="g", consumer=consumer, streams=[("s", Cursor.NEW)], block_ms=60_000)


def given(replies: Sequence[Reply | EngineError]) -> list[int]:
    (reply,) = replies
    assert isinstance(reply, GroupRead)
    return [one.id for stream in reply.streams for one in stream.entries]


async def with_group(fsync: Fsync) -> Engine:
    engine = Engine.open(MemoryStorage(), clock=HandClock(1_000), fsync=fsync)
    await engine.start()
    await turn_of(engine, [XGroupCreate(stream="s", group="g", start=0, mkstream=True)])
    return engine


async def test_a_read_that_waits_calls_back_when_the_log_is_safe() -> None:
    """Later in any case: what is there already comes behind the turn that asked."""
    engine, result = await with_group("always"), Replies()
    begin_read(engine, reading("a"), result.put_nowait)
    await settle()
    assert (result.empty(), engine.figures().waiting) == (True, 1)
    submit(engine, [publish("s", b"1")], lambda _: None)
    assert (result.empty(), engine.figures().waiting) == (True, 0)
    (first,) = given(await result.get())
    await reply_to(engine, publish("s", b"2"))
    begin_read(engine, reading("a"), result.put_nowait)
    assert result.empty()
    (second,) = given(await result.get())
    assert second > first
    engine.check()
    await engine.close()


async def test_who_reads_on_was_seen_when_given_something() -> None:
    """So waiting again changes nothing and logs nothing, until there is something more."""
    storage, result, clock = MemoryStorage(), Replies(), HandClock(1_000)
    async with Engine.open(storage, clock=clock, fsync="everysec") as engine:
        await turn_of(engine, [XGroupCreate(stream="s", group="g", start=0, mkstream=True)])
        begin_read(engine, reading("a"), result.put_nowait)
        await reply_to(engine, publish("s", b"1"))
        assert given(await result.get())
        clock.pass_ms(5)
        begin_read(engine, reading("a"), result.put_nowait, going_on=True)
        (info,) = await turn_of(engine, [XInfoConsumers(stream="s", group="g")])
        assert isinstance(info, list)
        assert [one.idle_ms for one in info if isinstance(one, ConsumerInfo)] == [5]
        assert engine.figures().waiting == 1
        await reply_to(engine, publish("s", b"2"))
        assert given(await result.get())
        await reply_to(engine, publish("s", b"3"))
        begin_read(engine, reading("a"), result.put_nowait, going_on=True)
        assert given(await result.get()), "what is there already is given at once"


@pytest.mark.parametrize("going_on", [False, True])
async def test_a_read_that_does_not_wait_is_answered_with_nothing(*, going_on: bool) -> None:
    """Also of one who reads on, whose read is not run where nothing is there."""
    engine, result = await with_group("everysec"), Replies()
    read = XReadGroup(group="g", consumer="a", streams=[("s", Cursor.NEW)])
    begin_read(engine, read, result.put_nowait, going_on=going_on)
    await settle()
    assert given(result.get_nowait()) == []
    assert engine.figures().waiting == 0
    await engine.close()


async def test_a_waiting_read_is_ended_by_its_owner_and_with_the_engine() -> None:
    """As its time would, with nothing given; and with `draining`."""
    engine, result = await with_group("everysec"), Replies()
    begin_read(engine, reading("a"), result.put_nowait).end()
    assert result.empty(), "never at once"
    assert given(await result.get()) == []
    begin_read(engine, reading("b"), result.put_nowait)
    engine.end_waits()
    (ended,) = await result.get()
    assert isinstance(ended, EngineError)
    assert ended.code == "draining"
    begin_read(engine, reading("c"), result.put_nowait)
    (ended,) = await result.get()
    assert isinstance(ended, EngineError)
    await engine.close()


def test_a_turn_sees_a_consumer_once() -> None:
    """That it tried and that it got something are one record."""
    keyspace = Keyspace()
    execute(keyspace, XGroupCreate(stream="s", group="g", start=0, mkstream=True), 1_000)
    execute(keyspace, reading("a"), 1_001)
    execute(keyspace, publish("s", b"1"), 1_002)
    turn = execute(keyspace, reading("a"), 1_003).turn
    assert [type(record).__name__ for record in turn.records] == ["Own", "SeeConsumer", "MoveGroup"]
    consumer = keyspace.keys["s"].groups["g"].consumers["a"]
    assert (consumer.seen_time_ms, consumer.active_time_ms) == (1_003, 1_003)
