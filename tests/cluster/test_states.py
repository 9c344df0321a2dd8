"""The state of groups and streams over a backend: the same words at every gateway."""

from typing import Any, Final

from engine import entries, ids
from engine.cluster import ClusterEngine
from engine.cluster.keys import auxiliary_key
from engine.commands import types
from engine.commands.weir_commands import Close, CountGroups, EnsureGroup, ExamineGroup, UpdateGroup
from engine.replies import GroupCounts, GroupFacts, StreamDetail
from engine.states import FAILED_MS_MAX
from engine.why import explain
from tests.cluster.engines import opened
from tests.cluster.servers import Backend
from tests.engine.asking import reply_of, reply_to

S: Final = "s"
IDS: Final = [ids.make(1, 0), ids.make(2, 0)]


async def state(engine: ClusterEngine) -> str:
    """As the list has it, and the description in full."""
    groups: Any = await reply_to(engine, types.XInfoGroups(stream=S))
    detail = await reply_of(engine, StreamDetail, types.XInfoStreamFull(stream=S, count=1))
    (group,), (again,) = groups, detail.groups
    assert again.group.state == group.state
    return str(group.state)


async def read(engine: ClusterEngine, **options: Any) -> None:
    cursors = [(S, types.Cursor.NEW)]
    await reply_to(engine, types.XReadGroup(streams=cursors, group="g", consumer="c", **options))


async def test_a_third_delivery_and_a_dead_letter_are_news(backend: Backend) -> None:
    """For five minutes, at every gateway; with the group the news goes."""
    async with opened(backend) as one, opened(backend) as other:
        policy = {"dead_letter_stream": "d", "max_deliveries": 3}
        await reply_to(one, EnsureGroup(stream=S, group="g", start=0, mkstream=True, policy=policy))
        await reply_to(one, types.XAdd(stream=S, bodies=[entries.body([("n", "1")])]))
        key, field = auxiliary_key(S, "m"), b"failed/g"
        for found in ("running", "running", "failing"):
            await read(one, claim_min_idle_ms=0)
            assert await state(other) == found
        backend.call("HDEL", key, field)
        assert await state(other) == "running"
        await read(one, claim_min_idle_ms=0)
        assert await state(other) == "failing"
        at_ms = int(backend.call("HGET", key, field))
        backend.call("HSET", key, field, at_ms - FAILED_MS_MAX)
        # Redis 7.0 does not say when a consumer was last given something.
        assert await state(other) in ("running", "idle")
        await reply_to(one, types.XGroupDestroy(stream=S, group="g"))
        assert not backend.call("HEXISTS", key, field)
        # Of these a gateway would have to ask for all groups.
        assert await reply_to(one, CountGroups()) == GroupCounts({})


async def test_a_gateway_says_why_a_group_delivers_nothing(backend: Backend) -> None:
    """From a stream that is missing to an entry that moves once what is said was done."""
    async with opened(backend) as one, opened(backend) as other:

        async def why(consumer: str | None = None) -> dict[str, str]:
            facts = await reply_of(other, GroupFacts, ExamineGroup(stream=S, group="g", consumer=consumer))
            return {reason.code: reason.detail for reason in explain(facts, S, "g", consumer)}

        assert [*await why()] == ["no_stream"]
        await reply_to(one, types.XAdd(stream=S, bodies=[entries.body([("n", "1")])] * 2, ids=IDS))
        assert [*await why()] == ["no_group"]
        await reply_to(one, EnsureGroup(stream=S, group="g", start=types.Cursor.LATEST))
        assert [*await why()] == ["starts_at_end"]
        await reply_to(one, UpdateGroup(stream=S, group="g", start=0, policy={"paused": True}))
        assert [*await why()] == ["paused"]
        await reply_to(one, UpdateGroup(stream=S, group="g", policy={"paused": False}))
        assert [*await why("c")] == ["no_consumers", "no_consumer"]
        await read(one)
        assert "1-0 is held by 'c'" in (await why("c"))["held"]
        given_back = types.Nack(ids=IDS[:1], mode=types.NackMode.FAIL, delay_ms=60_000)
        await reply_to(one, types.XNack(stream=S, group="g", nack=given_back))
        assert sorted(await why()) == ["deferred", "held"]
        await reply_to(one, types.XAck(stream=S, group="g", ids=IDS))
        assert [*await why()] == ["caught_up"]
        await reply_to(one, Close(stream=S))
        assert [*await why()] == ["drained"]
