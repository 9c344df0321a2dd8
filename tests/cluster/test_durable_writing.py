"""Durable Streams over a backend, written: what the public suite and the tests of the gateway do not ask for.

Names of one slot of a cluster, but where that is what is tested.
"""

from itertools import starmap
from typing import Any, Final

import pytest

from engine import entries
from engine.cluster import ClusterEngine
from engine.cluster.keys import auxiliary_key
from engine.commands import durable_commands
from engine.commands.types import Persist, XAdd, XLen, XRange
from engine.commands.weir_commands import MeasureStreams, StreamInfos
from engine.ids import ID_MAX, ID_MIN
from engine.replies import BatchesAppended, DurableAppended, DurableInfo, Entries
from tests.cluster.engines import refused
from tests.cluster.servers import Backend, BackendServer
from tests.cluster.test_repeating import opened as opened_losing
from tests.engine.asking import reply_of, reply_to

S: Final = "{t}s"
F: Final = "{t}f"
TEXT: Final = "text/plain"


def body(data: str) -> bytes:
    return entries.body([("data", data)])


def creating(stream: str = S, media: str = TEXT, **more: Any) -> durable_commands.CreateDurable:
    return durable_commands.CreateDurable(stream=stream, media=media, **more)


def forking(
    stream: str = F, source: str = S, upto: int | None = None, **more: Any
) -> durable_commands.CreateDurable:
    return creating(stream, "", fork=durable_commands.ForkPoint(source, upto), **more)


def appending(
    *texts: str, stream: str = S, seq: int | None = None, **more: Any
) -> durable_commands.AppendDurable:
    batch = None if seq is None else durable_commands.ProducerBatch("p", 0, seq)
    return durable_commands.AppendDurable(
        stream=stream, bodies=[*map(body, texts)], kind=TEXT, batch=batch, **more
    )


async def texts_of(engine: ClusterEngine, stream: str) -> list[str]:
    found = await reply_of(engine, Entries, XRange(stream=stream, start=ID_MIN, end=ID_MAX))
    return [fields[0][1].decode() for _, fields in found.pairs()]


async def info_of(engine: ClusterEngine, stream: str) -> DurableInfo | None:
    found = await reply_to(engine, durable_commands.DescribeDurable(stream=stream))
    assert found is None or isinstance(found, DurableInfo)
    return found


@pytest.mark.parametrize("command", [appending("b"), appending("b", seq=0), appending("b", closes=True)])
async def test_an_append_whose_reply_was_lost_is_done_once(
    server: BackendServer, command: durable_commands.AppendDurable
) -> None:
    """With a producer or without, and has the reply of the first time."""
    async with opened_losing(server) as (engine, link):
        await reply_to(engine, creating(bodies=[body("a")]))
        link.losing = 1
        found = await reply_of(engine, DurableAppended, command)
        assert (found.duplicate, found.closed, link.lost) == (False, command.closes, 1)
        assert await texts_of(engine, S) == ["a", "b"]
        assert engine.figures().appended == 1


def appending_batches(*batches: durable_commands.ProducerBatch) -> durable_commands.AppendBatches:
    counts = [1 + (number % 2) for number in range(len(batches))]
    bodies = [body(f"{number}") for number in range(sum(counts))]
    return durable_commands.AppendBatches(stream=S, kind=TEXT, batches=batches, counts=counts, bodies=bodies)


async def test_batches_of_many_producers_have_a_reply_each(engine: ClusterEngine) -> None:
    """Stored in their order, repeated, or refused; none where the stream takes none."""
    await reply_to(engine, creating())
    command = appending_batches(
        *starmap(
            durable_commands.ProducerBatch,
            [("p", 1, 0), ("q", 0, 0), ("p", 1, 0), ("p", 0, 1), ("p", 1, 2), ("p", 1, 1)],
        )
    )
    found = await reply_of(engine, BatchesAppended, command)
    seen = [one and (one.seq, one.duplicate) for one in found.replies]
    assert seen == [(0, False), (0, False), (0, True), None, None, (1, False)]
    assert await texts_of(engine, S) == ["0", "1", "2", "7", "8"]
    assert engine.figures().appended == 5
    await reply_to(engine, appending(closes=True))
    closed = await reply_of(engine, BatchesAppended, command)
    seen = [one and (one.seq, one.duplicate) for one in closed.replies]
    assert seen == [(1, True), (0, True), (1, True), None, None, (1, True)]
    assert all(one.closed for one in closed.replies if one is not None)


async def test_batches_whose_replies_were_lost_are_stored_once(server: BackendServer) -> None:
    """And have the replies of the first time."""
    async with opened_losing(server) as (engine, link):
        await reply_to(engine, creating())
        link.losing = 2
        command = appending_batches(
            *[durable_commands.ProducerBatch(f"p{number}", 0, 0) for number in range(4)]
        )
        found = await reply_of(engine, BatchesAppended, command)
        assert [one and (one.seq, one.duplicate) for one in found.replies] == [(0, False)] * 4
        assert link.lost
        assert await texts_of(engine, S) == [f"{number}" for number in range(6)]


async def test_of_too_many_producers_those_that_wrote_longest_ago_go(
    backend: Backend, engine: ClusterEngine
) -> None:
    """A thousand at once."""
    await reply_to(engine, creating())
    key = auxiliary_key(S, "w")
    now_ms = int((await reply_to(engine, appending("a", seq=0))).last_id >> 64)  # type: ignore[union-attr]
    for start in range(0, 10_000, 1_000):
        rows = [word for n in range(start, start + 1_000) for word in (f"p{n}", f"0 7 {now_ms - 20_000 + n}")]
        backend.call("HSET", key, *rows)
    await reply_to(engine, appending("b", seq=1))
    assert backend.call("HLEN", key) == 9_001
    assert [backend.call("HEXISTS", key, name) for name in ("p999", "p1000", "p")] == [0, 1, 1]


async def test_a_producer_that_is_silent_for_a_week_is_forgotten(
    backend: Backend, engine: ClusterEngine
) -> None:
    """It begins at 0 again."""
    await reply_to(engine, creating())
    await reply_to(engine, appending("a", seq=0))
    epoch, seq, at_ms = backend.call("HGET", auxiliary_key(S, "w"), "p").split()
    week_ms = 7 * 24 * 3600 * 1000
    backend.call("HSET", auxiliary_key(S, "w"), "p", b"%b %b %d" % (epoch, seq, int(at_ms) - week_ms - 1_000))
    assert (await refused(engine, appending("b", seq=1))).code == "producer_gap"
    await reply_to(engine, appending("b", seq=0))


async def test_a_fork_needs_the_slot_of_its_source(backend: Backend, engine: ClusterEngine) -> None:
    """Over a cluster, where one script has to make it; the refusal says how names come into one slot."""
    await reply_to(engine, creating("a", bodies=[body("x")]))
    made = forking("b", "a")
    if backend.kind == "cluster":
        refusal = await refused(engine, made)
        assert (refusal.code, "braces" in refusal.detail) == ("cross_slot", True)
        assert await info_of(engine, "b") is None
        return
    await reply_to(engine, made)
    assert await texts_of(engine, "b") == ["x"]


async def test_a_fork_in_the_midst_has_ten_thousand_entries_at_most(engine: ClusterEngine) -> None:
    """One at the end is the server's own copy."""
    await reply_to(engine, creating(bodies=[body("a")] * 5_001))
    await reply_to(engine, appending(*["b"] * 5_000))
    middle = await info_of(engine, S)
    assert middle is not None
    await reply_to(engine, appending("c"))
    refusal = await refused(engine, forking(upto=middle.last_id))
    assert ("at the end" in refusal.detail, await info_of(engine, F)) == (True, None)
    await reply_to(engine, forking(upto=middle.last_id - 1))
    assert await reply_to(engine, XLen(stream=F)) == 10_000
    await reply_to(engine, forking("{t}whole"))
    assert await reply_to(engine, XLen(stream="{t}whole")) == 10_002


async def test_a_stream_lives_on_for_its_time_after_each_use(backend: Backend, engine: ClusterEngine) -> None:
    """A description is none, nor are lists and measurements. Uses that follow at once change nothing: that
    would wake readers that wait.
    """
    await reply_to(engine, creating(bodies=[body("a")], ttl_ms=60_000))
    for use in (appending("b"), XRange(stream=S, start=ID_MIN, end=ID_MAX)):
        backend.call("PEXPIRE", S, 50_000)
        await reply_to(engine, use)
        first = backend.call("PEXPIRETIME", S)
        assert 60_000 < backend.call("PTTL", S) <= 61_000
        await reply_to(engine, use)
        assert backend.call("PEXPIRETIME", S) == first
    backend.call("PEXPIRE", S, 50_000)
    for look in (
        durable_commands.DescribeDurable(stream=S),
        StreamInfos(),
        MeasureStreams(streams=[S], groups_max=1),
    ):
        await reply_to(engine, look)
        assert backend.call("PTTL", S) <= 50_000
    found = await info_of(engine, S)
    assert found is not None
    assert found.ttl_ms == 60_000
    await reply_to(engine, Persist(stream=S))
    await reply_to(engine, appending("c"))
    assert backend.call("PTTL", S) == -1


async def test_a_stream_that_is_made_anew_has_nothing_of_the_old_one(
    backend: Backend, engine: ClusterEngine
) -> None:
    """Another program may have deleted it."""
    await reply_to(engine, creating(closes=True, bodies=[body("a")]))
    backend.call("DEL", S)
    await reply_to(engine, XAdd(stream=S, bodies=[entries.body([("n", "1")])]))
    found = await info_of(engine, S)
    assert found is not None
    assert (found.media, found.closed) == (None, False)
    assert (await refused(engine, appending("b"))).code == "not_durable"
