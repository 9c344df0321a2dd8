"""Entries that are given back for later over a backend: once, on time, whichever gateway is there."""

import asyncio
from typing import Final

from engine.cluster import ClusterEngine
from engine.cluster.keys import auxiliary_key
from engine.commands import types
from engine.commands.group_reading import CLAIM_NEVER_MS
from engine.commands.weir_commands import EnsureGroup
from engine.ids import ID_MAX, ID_MIN
from engine.replies import GroupRead, PendingList
from tests.cluster.engines import BODY, opened
from tests.cluster.servers import Backend
from tests.engine.asking import reply_of, reply_to
from tests.waiting import until_async

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
    found = await reply_of(
        engine, PendingList, types.XPendingRange(stream=S, group="g", start=ID_MIN, end=ID_MAX, count=COUNT)
    )
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

        async def is_back() -> bool:
            return set((await pending(other)).values()) == {None}

        await until_async(is_back, 30)
        assert backend.call("EXISTS", auxiliary_key(S, "d")) == 0
        assert ids_of(await reply_to(other, reading())) == held
