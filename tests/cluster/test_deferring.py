"""Entries that are given back for later over a backend: once, on time, whichever gateway is there."""

import asyncio
from typing import Final

import pytest

from engine.cluster import ClusterEngine
from engine.cluster.keys import auxiliary_key
from engine.commands import types
from engine.commands.group_reading import CLAIM_NEVER_MS
from engine.commands.weir_commands import DeleteGroup, EnsureGroup
from engine.ids import ID_MAX, ID_MIN
from engine.replies import AutoClaimed, GroupRead, PendingList, PendingSummary
from tests.cluster.engines import BODY, opened
from tests.cluster.servers import Backend
from tests.engine.asking import reply_to

S: Final = "{t}s"
COUNT: Final = 50
# Looks of its own are an hour apart: what brings an entry to a read that waits is the server's notification.
POLL_S: Final = 3_600.0


def reading(consumer: str = "b", wait_ms: int | None = None, count: int = COUNT) -> types.XReadGroup:
    """A read that takes what was given back, and nothing that others hold."""
    return types.XReadGroup(
        group="g",
        consumer=consumer,
        streams=[(S, types.Cursor.NEW)],
        count=count,
        claim_min_idle_ms=CLAIM_NEVER_MS,
        block_ms=wait_ms,
    )


def giving_back(*ids: int, delay_ms: int, mode: types.NackMode = types.NackMode.FAIL) -> types.XNack:
    return types.XNack(stream=S, group="g", nack=types.Nack(ids=ids, mode=mode, delay_ms=delay_ms))


async def hold(engine: ClusterEngine, count: int = COUNT) -> list[int]:
    """Entries that the consumer `a` holds."""
    await reply_to(engine, EnsureGroup(stream=S, group="g", start=0, mkstream=True, policy={}))
    added = await reply_to(engine, types.XAdd(stream=S, bodies=[BODY] * count))
    await reply_to(engine, reading("a", count=count))
    return list(added.ids)  # type: ignore[union-attr]


def ids_of(found: object) -> list[int]:
    assert isinstance(found, GroupRead)
    return [entry.id for stream in found.streams for entry in stream.entries]


async def pending(engine: ClusterEngine) -> dict[int, int | None]:
    """When each pending entry comes back."""
    found = await reply_to(
        engine, types.XPendingRange(stream=S, group="g", start=ID_MIN, end=ID_MAX, count=COUNT)
    )
    assert isinstance(found, PendingList)
    return {row.id: row.until_ms for row in found.entries}


async def test_of_two_gateways_one_brings_each_back_once(backend: Backend) -> None:
    """On time, to reads that wait at either: no look of their own comes so soon."""
    async with opened(backend, poll_s=POLL_S) as one, opened(backend, poll_s=POLL_S) as other:
        held = await hold(one)
        waits = [
            asyncio.ensure_future(reply_to(engine, reading(f"c{n}", wait_ms=20_000, count=COUNT)))
            for n, engine in enumerate((one, other))
        ]
        await reply_to(one, giving_back(*held[: COUNT // 2], delay_ms=300))
        await reply_to(other, giving_back(*held[COUNT // 2 :], delay_ms=600))
        began_s = asyncio.get_running_loop().time()
        found = [ids_of(reply) for reply in await asyncio.gather(*waits)]
        assert asyncio.get_running_loop().time() - began_s < 4
        assert sorted(found[0] + found[1]) == held
        assert ids_of(await reply_to(one, reading("d"))) == []


async def test_what_a_gateway_had_that_died_another_brings_back(backend: Backend) -> None:
    """The one that goes round, without a read that looks for it."""
    async with opened(backend) as one:
        held = await hold(one, 3)
        await reply_to(one, giving_back(*held, delay_ms=400))
    async with opened(backend) as other:
        assert set((await pending(other)).values()) != {None}
        async with asyncio.timeout(30):
            while set((await pending(other)).values()) != {None}:  # noqa: ASYNC110 - the other side is a process
                await asyncio.sleep(0.05)
        assert backend.call("EXISTS", auxiliary_key(S, "d")) == 0
        assert ids_of(await reply_to(other, reading())) == held


async def test_nothing_takes_it_until_then(engine: ClusterEngine) -> None:
    """No read, no claim of what is idle; it belongs to no consumer that is shown."""
    first, second = await hold(engine, 2)
    await reply_to(engine, giving_back(first, delay_ms=60_000))
    claiming = types.XAutoClaim(stream=S, group="g", consumer="b", min_idle_ms=0, start=ID_MIN, count=10)
    for _ in range(2):
        claimed = await reply_to(engine, claiming)
        assert isinstance(claimed, AutoClaimed)
        assert [entry.id for entry in claimed.entries] == [second]
    assert ids_of(await reply_to(engine, reading("c"))) == []
    shown = await pending(engine)
    assert (shown[first] is not None, shown[second]) == (True, None)
    summary = await reply_to(engine, types.XPending(stream=S, group="g"))
    assert isinstance(summary, PendingSummary)
    assert (summary.count, [name for name, _ in summary.consumers]) == (2, ["b"])
    consumers = await reply_to(engine, types.XInfoConsumers(stream=S, group="g"))
    assert [one.name for one in consumers] == ["a", "b", "c"]  # type: ignore[union-attr]
    narrowed = types.XPendingRange(stream=S, group="g", start=ID_MIN, end=ID_MAX, count=10, min_idle_ms=1)
    await asyncio.sleep(0.01)
    found = await reply_to(engine, narrowed)
    assert isinstance(found, PendingList)
    assert [row.id for row in found.entries] == [second]


async def test_what_was_settled_meanwhile_does_not_come_back(engine: ClusterEngine) -> None:
    """Acknowledged, given back at once and taken, or of a group that is another one by then."""
    first, second, third = await hold(engine, 3)
    await reply_to(engine, giving_back(first, second, delay_ms=200))
    await reply_to(engine, types.XAck(stream=S, group="g", ids=[first]))
    await reply_to(engine, giving_back(second, delay_ms=0))
    assert ids_of(await reply_to(engine, reading("c"))) == [second]
    await asyncio.sleep(0.3)
    assert ids_of(await reply_to(engine, reading("d"))) == []
    assert set(await pending(engine)) == {second, third}
    await reply_to(engine, giving_back(second, delay_ms=200))
    await reply_to(engine, DeleteGroup(stream=S, group="g", drop=True))
    await reply_to(
        engine, EnsureGroup(stream=S, group="g", start=types.Cursor.LATEST, mkstream=True, policy={})
    )
    await asyncio.sleep(0.3)
    assert ids_of(await reply_to(engine, reading("d"))) == []


@pytest.mark.parametrize(
    ("mode", "count"),
    [(types.NackMode.SILENT, 0), (types.NackMode.FAIL, 1), (types.NackMode.FATAL, (1 << 63) - 1)],
)
async def test_the_count_is_kept_exactly(engine: ClusterEngine, mode: types.NackMode, count: int) -> None:
    """Numbers of scripts are not exact beyond 2^53."""
    (entry_id,) = await hold(engine, 1)
    await reply_to(engine, giving_back(entry_id, delay_ms=100, mode=mode))
    every = types.XPendingRange(stream=S, group="g", start=ID_MIN, end=ID_MAX, count=1)
    for is_deferred in (True, False):
        async with asyncio.timeout(30):
            while True:
                found = await reply_to(engine, every)
                assert isinstance(found, PendingList)
                (row,) = found.entries
                assert (row.consumer, row.delivery_count) == (None, count)
                if (row.until_ms is not None) == is_deferred:
                    break
                await asyncio.sleep(0.02)


async def test_it_goes_where_its_stream_goes(engine: ClusterEngine) -> None:
    """Under another name it comes back there."""
    (entry_id,) = await hold(engine, 1)
    await reply_to(engine, giving_back(entry_id, delay_ms=300))
    await reply_to(engine, types.Rename(stream=S, target="{t}t"))
    read = types.XReadGroup(
        group="g", consumer="b", streams=[("{t}t", types.Cursor.NEW)], claim_min_idle_ms=CLAIM_NEVER_MS
    )
    assert ids_of(await reply_to(engine, read)) == []
    await asyncio.sleep(0.4)
    assert ids_of(await reply_to(engine, read)) == [entry_id]
