"""Plans over a server: exact for what is near, estimates beyond, and no entry between two ranges."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from engine import Engine, EngineError, SystemClock, entries, ids
from engine.cluster import ClusterEngine
from engine.commands.base import Command
from engine.commands.types import Delete, Trim, XAdd, XDel, XTrim
from engine.commands.weir_commands import Plan
from engine.replies import Planned, StreamPlan
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_of, reply_to
from tests.waiting import until_async

BODY = entries.body([("n", "1")])
# More than a plan counts.
MANY = 5_000
COUNTED = 2_000


async def plan(engine: ClusterEngine | Engine, **options: Any) -> Sequence[StreamPlan]:
    found = await reply_of(engine, Planned, Plan(**options))
    return found.streams


def comparable(one: StreamPlan) -> StreamPlan:
    return msgspec.structs.replace(one, generation="", durable=None, cuts=list(one.cuts))


@pytest.mark.parametrize(
    "options",
    [
        {"streams": [("s", 0)]},
        {"streams": [("s", ids.make(5, 2))], "parts": 3},
        {"streams": [("s", 0)], "max_entries": 4, "parts": 256},
        {"streams": [("s", ids.make(5, 9))]},
        {"streams": [("s", ids.ID_MAX)]},
        {"streams": [("s", 0)], "ends": {"s": ids.make(5, 4)}},
        {"streams": [("s", ids.make(5, 4))], "ends": {"s": ids.make(5, 2)}},
        {"streams": [("s", 0)], "max_bytes": 1},
        {"streams": [("s", 0)], "max_bytes": 31 * 3},
        {"streams": [("s", 0)], "max_bytes": 31 * 3 - 1},
        {"streams": [("s", 0), ("t", 0)], "max_entries": 6},
        {"streams": [("s", 0), ("t", 0)], "max_bytes": 100, "parts": 2},
        {"streams": [("t", 0), ("none", 0)], "max_entries": 1},
        {"streams": [("none", 0)]},
    ],
)
async def test_what_is_near_is_planned_as_by_the_embedded_engine(
    server: BackendServer, options: dict[str, Any]
) -> None:
    """Counts, bytes, ends, cuts and the shares of a budget."""
    embedded = Engine.open(None, clock=SystemClock())
    await embedded.start()
    changes: list[Command] = [
        XAdd(stream="s", bodies=[BODY] * 10, ids=[ids.make(5, n) for n in range(10)]),
        XTrim(stream="s", trim=Trim(maxlen=9)),
        XDel(stream="s", ids=[ids.make(5, 6)]),
        XAdd(stream="t", bodies=[BODY] * 3, ids=[ids.make(n, 0) for n in range(1, 4)]),
    ]
    async with opened(server) as engine:
        for change in changes:
            await reply_to(embedded, change)
            await reply_to(engine, change)
        here, there = await plan(embedded, **options), await plan(engine, **options)
    await embedded.close()
    assert list(map(comparable, there)) == list(map(comparable, here))


async def test_what_is_far_is_estimated(server: BackendServer) -> None:
    """Ends and cuts are entries in order, also where nothing is spread evenly; the estimates are near."""
    every = [ids.make(1_000 + n * 10, 0) for n in range(MANY)]
    async with opened(server) as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[BODY] * MANY, ids=every))
        (whole,) = await plan(engine, streams=[("s", 0)], parts=8)
        assert (whole.end, whole.count, whole.lag) == (every[-1], MANY, MANY)
        assert len(whole.cuts) == 7
        assert list(whole.cuts) == sorted(set(whole.cuts) & set(every))
        assert MANY * 30 < whole.bytes < MANY * 50
        (exact,) = await plan(engine, streams=[("s", 0)], max_entries=COUNTED)
        assert (exact.end, exact.count) == (every[COUNTED - 1], COUNTED)
        (near,) = await plan(engine, streams=[("s", every[99])], max_entries=4_000)
        assert near.count == 4_000
        assert abs(every.index(near.end) - 4_099) < 50
        assert abs(near.lag - (MANY - 100)) < 50
        # All of one millisecond, behind a long silence.
        burst = [ids.make(10_000_000, n) for n in range(MANY)]
        await reply_to(engine, XAdd(stream="s", bodies=[BODY] * MANY, ids=burst))
        (skewed,) = await plan(engine, streams=[("s", every[0])], max_entries=6_000, parts=4)
        found = [*skewed.cuts, skewed.end]
        assert found == sorted(set(found))
        assert set(found) <= {*every, *burst}


async def test_ranges_follow_one_another_to_the_end(server: BackendServer) -> None:
    """Each begins where the one before ended: no entry is passed over, and it comes to an end."""
    every = [ids.make(1_000 + n * n, 0) for n in range(MANY)]
    async with opened(server) as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[BODY] * MANY, ids=every))
        after, ends = 0, []
        while True:
            (one,) = await plan(engine, streams=[("s", after)], max_entries=2_500)
            if not one.count:
                break
            assert one.end > after
            after = one.end
            ends.append(after)
        assert after == every[-1]
        assert set(ends) <= set(every)
        assert len(ends) < 10


async def test_a_plan_waits_for_what_comes(server: BackendServer) -> None:
    """And says how it is when its time is over."""
    async with opened(server) as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[BODY], ids=[ids.make(5, 0)]))
        (one,) = await plan(engine, streams=[("s", ids.make(5, 0))], block_ms=1)
        assert (one.count, one.last_id) == (0, ids.make(5, 0))
        waiting = asyncio.ensure_future(plan(engine, streams=[("s", ids.make(5, 0))], block_ms=60_000))
        await until_async(lambda: engine.figures().waiting == 1)
        await reply_to(engine, XAdd(stream="s", bodies=[BODY], ids=[ids.make(6, 0)]))
        (one,) = await waiting
        assert one.end == ids.make(6, 0)


async def test_a_durable_plan_needs_a_promise(
    server: BackendServer, pair: tuple[BackendServer, BackendServer]
) -> None:
    """With a replica it names what that has; when that is stalled, nothing."""
    async with opened(server) as engine:
        with pytest.raises(EngineError) as refusal:
            await plan(engine, streams=[("s", 0)], durable_only=True)
        assert refusal.value.code == "not_supported_by_backend"
    primary, replica = pair
    async with opened(primary, 1.0, durability="replicated:1") as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[BODY], ids=[ids.make(5, 0)]))
        (one,) = await plan(engine, streams=[("s", 0)], durable_only=True)
        assert (one.count, one.durable) == (1, ids.make(5, 0))
        replica.pause()
        try:
            with pytest.raises(EngineError) as refusal:
                await plan(engine, streams=[("s", 0)], durable_only=True)
            assert refusal.value.code == "not_replicated"
        finally:
            replica.resume()
        await reply_to(engine, Delete(streams=["s"]))
