"""A run of commands: each as if it were alone, in one frame where nothing has to come between."""

import asyncio
import errno
from collections.abc import Sequence
from itertools import pairwise

from engine import Caps, Engine, EngineError, ids
from engine.commands import types
from engine.commands.base import Command
from engine.commands.weir_commands import AddEach
from engine.entries import body
from engine.replies import Added, GroupRead, Reply, StreamsRead
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_to, submit_each
from tests.engine.clocks import HandClock

BODY = body([("a", b"1")])


async def opened(storage: MemoryStorage | None = None) -> Engine:
    engine = Engine.open(storage or MemoryStorage(), clock=HandClock(1_000), fsync="always")
    await engine.start()
    return engine


async def each(engine: Engine, *commands: Command) -> Sequence[Reply | EngineError]:
    found: asyncio.Future[Sequence[Reply | EngineError]] = asyncio.get_running_loop().create_future()
    submit_each(engine, commands, found.set_result)
    return await found


async def test_replies_come_in_order_and_a_refusal_stands_for_its_command_alone() -> None:
    """Each sees what those before it did."""
    engine = await opened()
    missing, first, number, two, length = await each(
        engine,
        types.XSetId(stream="s", last_id=5),
        types.XAdd(stream="s", bodies=[BODY], ids=[ids.make(5, 1)]),
        types.XLen(stream="s"),
        AddEach(stream="s", bodies=[BODY, BODY]),
        types.XLen(stream="s"),
    )
    assert isinstance(missing, EngineError)
    assert isinstance(first, Added)
    assert (number, length) == (1, 3)
    assert isinstance(two, Added)
    assert list(two.ids) == [ids.make(1_000, 0), ids.make(1_000, 1)]
    engine.check()
    await engine.close()


async def test_they_are_one_frame() -> None:
    """A thousand small changes cost one record of the log's format around them, not a thousand."""
    engine = await opened()
    before = engine.recovery.frames
    await each(engine, *[types.XAdd(stream="s", bodies=[BODY]) for _ in range(1_000)])
    await engine.close()
    again = Engine.open(engine._storage, clock=HandClock(1_000))  # noqa: SLF001 - the same files
    assert again.recovery.frames - before < 10
    await again.start()
    assert await reply_to(again, types.XLen(stream="s")) == 1_000
    await again.close()


async def test_a_blocked_read_comes_between_two_commands() -> None:
    """It gets the entry that the next command of the run removes."""
    engine = await opened()
    await reply_to(engine, types.XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    tail = asyncio.ensure_future(
        reply_to(engine, types.XRead(streams=[("s", types.Cursor.LATEST)], block_ms=9_000))
    )
    worker = asyncio.ensure_future(
        reply_to(
            engine,
            types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)], block_ms=9_000),
        )
    )
    await asyncio.sleep(0)
    entry = ids.make(7, 0)
    added, gone, left = await each(
        engine,
        types.XAdd(stream="s", bodies=[BODY], ids=[entry]),
        types.XDel(stream="s", ids=[entry]),
        types.XLen(stream="s"),
    )
    assert isinstance(added, Added)
    assert (gone, left) == (1, 0)
    read, delivered = await tail, await worker
    assert isinstance(read, StreamsRead)
    assert read.streams
    assert isinstance(delivered, GroupRead)
    assert [one.id for one in delivered.streams[0].entries] == [entry]
    engine.check()
    await engine.close()


async def test_a_command_of_several_turns_is_finished_before_the_next() -> None:
    """A long trim among others: what comes behind it sees its result."""
    engine = await opened()
    await reply_to(engine, types.XAdd(stream="s", bodies=[BODY] * 30_000))
    trim = types.Trim(minid=ids.ID_MAX)
    trimmed, length, added = await each(
        engine, types.XTrim(stream="s", trim=trim), types.XLen(stream="s"), AddEach(stream="s", bodies=[BODY])
    )
    assert not isinstance(trimmed, EngineError)
    assert length == 0
    assert isinstance(added, Added)
    engine.check()
    await engine.close()


async def test_a_run_lets_others_in_when_its_time_is_over() -> None:
    """However much each of its commands takes: here a millisecond a look at the clock."""
    clock = HandClock(1_000)
    async with Engine.open(MemoryStorage(), clock=clock, fsync="no") as engine:
        clock.ticking_s = 0.001
        run = asyncio.ensure_future(
            each(engine, *[types.XAdd(stream=f"s{at}", bodies=[BODY]) for at in range(50)])
        )
        seen = []
        while not run.done():
            await asyncio.sleep(0)
            seen.append(engine.figures().streams)
        clock.ticking_s = 0.0
        assert all(isinstance(reply, Added) for reply in await run)
        assert seen[-1] == 50
        assert 1 < max(later - before for before, later in pairwise([0, *seen])) <= 5


async def test_of_many_long_runs_one_goes_on_in_a_cycle() -> None:
    """However many callers send: each begins at once, and after that they take turns of 5 ms."""
    clock = HandClock(1_000)
    async with Engine.open(MemoryStorage(), clock=clock, fsync="no") as engine:
        clock.ticking_s = 0.001
        lengths = [types.XLen(stream="s")] * 20
        runs = [asyncio.ensure_future(each(engine, *lengths)) for _ in range(20)]
        await asyncio.sleep(0)
        seen = [clock.monotonic()]
        while not all(run.done() for run in runs):
            await asyncio.sleep(0)
            seen.append(clock.monotonic())
        clock.ticking_s = 0.0
        assert seen[-1] - seen[0] > 0.1
        assert max(later - before for before, later in pairwise(seen)) < 0.015


async def test_the_last_ids_are_given_and_then_there_are_none() -> None:
    """Of three entries the first two have an ID; afterwards none has."""
    engine = await opened()
    await reply_to(engine, types.XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    await reply_to(engine, types.XSetId(stream="s", last_id=ids.ID_MAX - 2))
    added, none = await each(
        engine, AddEach(stream="s", bodies=[BODY] * 3), AddEach(stream="s", bodies=[BODY])
    )
    assert isinstance(added, Added)
    assert list(added.ids) == [ids.ID_MAX - 1, ids.ID_MAX]
    assert isinstance(none, EngineError)
    assert none.code == "stream_exhausted"
    await engine.close()


async def test_a_log_that_fails_refuses_all_of_them() -> None:
    """No reply leaves before its frame is safe, and here it never is."""
    storage = MemoryStorage()
    engine = await opened(storage)
    storage.fail("sync", errno.EIO)
    found = await each(engine, AddEach(stream="s", bodies=[BODY]), types.XLen(stream="s"))
    assert [reply.code for reply in found if isinstance(reply, EngineError)] == ["storage_failed"] * 2
    assert [
        reply.code for reply in await each(engine, types.XLen(stream="s")) if isinstance(reply, EngineError)
    ] == ["storage_failed"]
    await engine.close()


async def test_where_memory_is_full_reads_go_on() -> None:
    """A run is admitted as a whole; where that fails, each of its commands is asked alone."""
    async with Engine.open(None, clock=HandClock(1_000), caps=Caps(100, 100, 100, 20_000)) as engine:
        number = 0
        while not engine.memory.is_full:
            await reply_to(engine, types.XAdd(stream="s", bodies=[BODY]))
            number += 1
        length, refused, again = await each(
            engine, types.XLen(stream="s"), AddEach(stream="s", bodies=[BODY]), types.XLen(stream="s")
        )
        assert (length, again) == (number, number)
        assert isinstance(refused, EngineError)
        assert refused.code == "memory_full"
