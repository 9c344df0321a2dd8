"""Commands that run on what a server has of a stream: nothing comes between their look and what they do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from engine import EngineError, entries, ids
from engine.cluster import ClusterEngine
from engine.cluster.shadow import ATTEMPTS_MAX
from engine.commands.schedule_commands import CancelSchedule, DescribeSchedule, NewSchedule, SetSchedule
from engine.commands.types import (
    Copy,
    Cursor,
    Delete,
    Expire,
    Persist,
    Rename,
    TimeToLive,
    XAdd,
    XAutoClaim,
    XGroupCreate,
    XGroupCreateConsumer,
    XInfoGroups,
    XInfoStream,
    XLen,
    XPending,
    XRange,
    XRead,
    XReadGroup,
)
from engine.commands.weir_commands import Close, EnsureGroup, Plan, UpdateGroup
from engine.recurrence import Rule
from engine.replies import Added, Closed, ScheduleInfo, ScheduleSet
from tests.cluster.engines import BODY, opened, refused
from tests.cluster.servers import Backend
from tests.cluster.test_same_replies import COMMANDS
from tests.engine.asking import reply_to, turn_of
from tests.waiting import until_async

S: Final = "s"
ADD: Final = XAdd(stream=S, bodies=[BODY])
BESIDE_MIN: Final = 500
# Reads, and what changes no entries. What is missing of a stream that was moved is made by the publishers.
BESIDE: Final = (
    XRange(stream=S, start=0, end=ids.ID_MAX, count=10),
    XRead(streams=[(S, 0)], count=10),
    XReadGroup(streams=[(S, Cursor.NEW)], group="g", consumer="c", count=10),
    XAutoClaim(stream=S, group="g", consumer="d", min_idle_ms=0, start=0, count=10),
    XPending(stream=S, group="g"),
    XInfoStream(stream=S),
    XInfoGroups(stream=S),
    TimeToLive(stream=S),
    Plan(streams=[(S, 0)]),
    Persist(stream=S),
)


def setting(name: str) -> SetSchedule:
    later = NewSchedule(name, entries.body([("n", name)]), Rule(in_ms=60_000))
    return SetSchedule(stream=S, schedule=later)


def changing(**policy: Any) -> UpdateGroup:
    return UpdateGroup(stream=S, group="g", policy=policy)


@asynccontextmanager
async def interrupted(engine: ClusterEngine, other: ClusterEngine) -> AsyncIterator[list[int]]:
    """Another gateway changes the group between each look and its commit: how often."""
    run, done = engine.run_request, [0]

    async def run_behind(request: Any) -> Any:
        found = await run(request)
        if request.looks:
            done[0] += 1
            await reply_to(other, changing(max_deliveries=done[0]))
        return found

    engine._shadow._run = run_behind  # noqa: SLF001 - the one place between the two
    yield done
    engine._shadow._run = run  # noqa: SLF001


async def test_what_changes_all_the_time_is_left_as_it_is(backend: Backend, engine: ClusterEngine) -> None:
    """After some attempts, alone and with reads; a transaction that has done other things says so at once."""
    await reply_to(engine, ADD)
    await reply_to(engine, EnsureGroup(stream=S, group="g", start=0))
    group, length = changing(paused=True), XLen(stream=S)
    consumer = XGroupCreateConsumer(stream=S, group="g", consumer="c")
    async with opened(backend) as other, interrupted(engine, other) as done:
        assert ((await refused(engine, group)).code, done) == ("overloaded", [ATTEMPTS_MAX])
        for beside, times in ((length, ATTEMPTS_MAX), (consumer, ATTEMPTS_MAX), (ADD, 1)):
            before = done[0]
            done_too, refusal = await turn_of(engine, [beside, group])
            assert not isinstance(done_too, EngineError)
            assert isinstance(refusal, EngineError)
            assert (refusal.code, done[0] - before) == ("overloaded", times)
    assert await reply_to(engine, length) == 2
    assert await reply_to(engine, group) is True


async def test_what_a_transaction_has_done_is_seen_by_what_is_behind_it(engine: ClusterEngine) -> None:
    later = setting("a")
    group, same = (XGroupCreate(stream=S, group="g", start=0) for _ in range(2))
    cancel = CancelSchedule(stream=S, name="a")
    found = await turn_of(engine, [ADD, group, same, later, cancel, cancel, Close(stream=S), ADD])
    assert [getattr(one, "code", type(one)) for one in found] == [
        *(Added, bool, "group_exists", ScheduleSet, bool, "no_schedule", Closed, "stream_closed"),
    ]
    await reply_to(engine, Delete(streams=[S]))
    made, shown = await turn_of(engine, [later, DescribeSchedule(stream=S, name="a")])
    assert isinstance(made, ScheduleSet)
    assert isinstance(shown, ScheduleInfo)
    assert (shown.name, shown.at_ms) == ("a", made.schedule.at_ms)


async def test_writes_stay_behind_the_one_that_takes_two_steps(engine: ClusterEngine) -> None:
    """None of them waits for a reply."""
    end = Close(stream=S, add=ADD)
    found = await asyncio.gather(*(reply_to(engine, one) for one in (end, ADD, end)), return_exceptions=True)
    assert isinstance(found[0], Closed)
    assert [getattr(one, "code", "") for one in found[1:]] == ["stream_closed"] * 2


def _has(published: list[int], count: int) -> bool:
    return published[0] >= count


@asynccontextmanager
async def publishers(backend: Backend) -> AsyncIterator[list[int]]:
    """Another gateway publishes as fast as the server takes it: how many entries, all of them at the end."""
    async with opened(backend) as other:
        published, is_over = [0], False

        async def publish() -> None:
            while not is_over:
                found = await asyncio.gather(*(reply_to(other, ADD) for _ in range(100)))
                published[0] += len(found)

        publishing = asyncio.create_task(publish())
        yield published
        assert not publishing.done()
        is_over = True
        await publishing
        assert published[0] > BESIDE_MIN


async def test_each_is_done_or_refused_beside_publishers(backend: Backend, engine: ClusterEngine) -> None:
    """These change nothing that is looked at."""
    async with publishers(backend):
        refusals = set[str]()
        for command in [one for one in COMMANDS if not isinstance(one, Close)]:
            try:
                await reply_to(engine, command)
            except EngineError as refusal:
                refusals.add(refusal.code)
        assert "overloaded" not in refusals


async def test_scripts_and_reads_are_done_beside_publishers(backend: Backend, engine: ClusterEngine) -> None:
    """None is refused, and no entry is lost between two names of a stream."""
    moved = [f"{{{S}}}{n}" for n in range(5)]
    async with publishers(backend) as published:
        await until_async(partial(_has, published, 1))
        for target in moved:
            await reply_to(engine, EnsureGroup(stream=S, group="g", start=0, mkstream=True))
            await reply_to(engine, Expire(stream=S, ms=3_600_000, relative=True))
            for beside in BESIDE:
                await reply_to(engine, beside)
            assert await reply_to(engine, Copy(stream=S, target="{s}copy", replace=True)) is True
            assert await reply_to(engine, Rename(stream=S, target=target)) is True
            await until_async(partial(_has, published, published[0] + 100))
    lengths: list[Any] = [await reply_to(engine, XLen(stream=name)) for name in (S, *moved)]
    assert sum(lengths) == published[0]
    last: Any = await reply_to(engine, TimeToLive(stream=moved[-1]))
    assert (last, await reply_to(engine, TimeToLive(stream=S))) == (-1, -1)
