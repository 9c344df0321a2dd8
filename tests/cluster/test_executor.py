"""The engine over a server: what the gateway's own tests do not see of it."""

import asyncio
import gc
import warnings
from collections.abc import Sequence
from typing import Self

import msgspec
import pytest

from engine import EngineError, EngineProtocol, ids
from engine.cluster import ClusterEngine, words
from engine.cluster.wakeups import EVENTS
from engine.commands import types, weir_commands
from engine.commands.base import Command
from engine.replies import (
    Added,
    Archived,
    Deletions,
    Edges,
    Entries,
    GroupInfo,
    GroupRead,
    Listing,
    Measured,
    MetadataPage,
    NamedValues,
    Presence,
    Reply,
    StreamDetail,
    StreamInfo,
    StreamsRead,
)
from tests.cluster.engines import BODY, TIMEOUT_S, AdjustedClock, opened, refused
from tests.cluster.servers import Backend, BackendServer, full
from tests.engine.asking import begin_read, reply_of, reply_to, submit, submit_each, turn_of
from tests.waiting import until_async


async def refused_together(engine: EngineProtocol, command: Command) -> EngineError:
    with pytest.raises(EngineError) as refusal:
        await turn_of(engine, [command, types.XLen(stream="s")])
    return refusal.value


def reading(
    *, block_ms: int | None = None, consumer: str = "c", cursor: int | types.Cursor = types.Cursor.NEW
) -> types.XReadGroup:
    return types.XReadGroup(group="g", consumer=consumer, streams=[("s", cursor)], block_ms=block_ms)


async def test_it_is_an_engine(backend: Backend, engine: ClusterEngine) -> None:
    """As the gateway sees it, with the server's name in the place of a version."""
    seen: EngineProtocol = engine
    figures = seen.figures()
    assert figures.backend.split()[0] == ("Redis" if backend.kind.startswith("redis") else "Valkey")
    # Always refused, also where the server has the commands.
    assert {"quotas", "trimming by references", "idempotent producers"} <= set(figures.missing)
    assert figures.outage is None
    with pytest.raises(EngineError, match="rewriting"):
        seen.begin_rewrite()


async def test_other_programs_see_the_streams(backend: Backend, engine: ClusterEngine) -> None:
    """Under the same name, with the fields as fields; and what they add is seen here."""
    added = await reply_of(engine, Added, types.XAdd(stream="s", bodies=[BODY, BODY]))
    rows = backend.call("XRANGE", "s", "-", "+")
    assert [row[1] for row in rows] == [[b"a", b"1"], [b"a", b"1"]]
    assert [ids.parse_canonical(row[0]) for row in rows] == list(added.ids)
    backend.call("XADD", "s", "*", "b", b"\xff")
    found = await reply_of(engine, Entries, types.XRange(stream="s", start=added.ids[-1] + 1, end=ids.ID_MAX))
    assert next(iter(found.pairs()))[1] == [("b", b"\xff")]


async def test_one_entry_is_given_however_little_may_be(engine: ClusterEngine) -> None:
    """Else a reader could not go on."""
    await reply_to(engine, types.XAdd(stream="s", bodies=[BODY, BODY]))
    found = await reply_of(engine, Entries, types.XRange(stream="s", start=0, end=ids.ID_MAX, bytes_max=1))
    assert (found.count, found.more) == (1, True)


async def test_a_stream_takes_the_memory_that_the_server_says(
    backend: Backend, engine: ClusterEngine
) -> None:
    await reply_to(engine, types.XAdd(stream="s", bodies=[BODY] * 1_000))
    shown = await reply_of(engine, StreamInfo, types.XInfoStream(stream="s"))
    whole = await reply_of(engine, StreamDetail, types.XInfoStreamFull(stream="s"))
    assert shown.memory_bytes == whole.stream.memory_bytes == backend.call("MEMORY", "USAGE", "s") > 0


async def test_only_streams_are_listed(backend: Backend, engine: ClusterEngine) -> None:
    """Not other types, not Weir's own keys, and the marks of a pattern are letters of a prefix."""
    backend.call("SET", "text", "1")
    for name in ("b", "a", "a*1", "ab", "no\nname"):
        backend.call("XADD", name, "1-1", "f", "v")
    await reply_to(engine, types.XAdd(stream="c", bodies=[BODY]))
    assert await reply_to(engine, types.ListStreams()) == Listing(["a", "a*1", "ab", "b", "c"])
    assert await reply_to(engine, types.ListStreams(prefix="a*")) == Listing(["a*1"])
    assert await reply_to(engine, types.ListStreams(after="a", limit=2)) == Listing(["a*1", "ab"], "ab")


async def test_a_read_waits_for_what_others_add(backend: Backend, engine: ClusterEngine) -> None:
    """From the end as it was when the read began."""
    backend.call("XADD", "s", "1-1", "f", "v")
    waiting = asyncio.ensure_future(
        reply_to(engine, types.XRead(streams=[("s", types.Cursor.LATEST)], block_ms=5_000))
    )
    await until_async(lambda: engine.figures().waiting == 1)
    backend.call("XADD", "s", "1-2", "f", "v")
    found = await waiting
    assert isinstance(found, StreamsRead)
    assert [one.entries.first for one in found.streams] == [ids.make(1, 2)]
    assert engine.figures().waiting == 0


@pytest.mark.parametrize(("poll_s", "block_ms", "in_time"), [(0.1, 60_000, True), (3_600.0, 500, False)])
async def test_a_read_looks_again_without_a_notification(
    backend: Backend, poll_s: float, block_ms: int, *, in_time: bool
) -> None:
    """Before its time is over where the period is short, and else at the end of its time."""
    backend.call("CONFIG", "SET", "notify-keyspace-events", EVENTS)
    async with opened(backend, poll_s=poll_s) as engine:
        waiting = asyncio.ensure_future(reply_to(engine, types.XRead(streams=[("s", 0)], block_ms=block_ms)))
        # The settings have been looked at when the subscription stands; it has the read look once more.
        await until_async(lambda: engine.backend_figures.wakes["subscription"] == 1)
        await until_async(lambda: engine.backend_figures.requests["read"]["ok"] >= 2)
        backend.call("CONFIG", "SET", "notify-keyspace-events", "")
        backend.call("XADD", "s", "1-1", "f", "v")
        if not in_time:
            assert not (await asyncio.wait([waiting], timeout=0.2))[0]
        async with asyncio.timeout(10):
            found = await waiting
        assert isinstance(found, StreamsRead)
        assert len(found.streams) == 1


async def test_a_read_that_waits_is_ended_without_entries(engine: ClusterEngine) -> None:
    """By its time, by its caller, and by the end of the gateway, which says so."""
    await reply_to(engine, weir_commands.EnsureGroup(stream="s", group="g", start=0, mkstream=True))
    assert await reply_to(engine, reading(block_ms=20)) == GroupRead([])
    ended: list[Sequence[Reply | EngineError]] = []
    read = begin_read(engine, reading(block_ms=5_000), ended.append)
    drained = asyncio.ensure_future(reply_to(engine, types.XRead(streams=[("t", 0)], block_ms=5_000)))
    await until_async(lambda: engine.figures().waiting == 2)
    read.end()
    assert not ended, "never at once"
    await until_async(lambda: ended == [[GroupRead([])]])
    engine.end_waits()
    with pytest.raises(EngineError, match="shutting down"):
        await drained


async def test_groups_are_found_on_each_stream(engine: ClusterEngine) -> None:
    await reply_to(engine, weir_commands.EnsureGroup(stream="s", group="g", start=0, mkstream=True))
    await reply_to(engine, types.XAdd(stream="t", bodies=[BODY]))
    found = await reply_to(engine, types.FindGroup(streams=["s", "t", "u"], group="g"))
    assert found == [Presence.FOUND, Presence.NO_GROUP, Presence.NO_STREAM]


async def test_a_transaction_is_one_turn_with_refusals_in_their_places(engine: ClusterEngine) -> None:
    """What is not of one request each is refused as a whole."""
    commands: list[Command] = [
        types.XAdd(stream="s", bodies=[BODY]),
        types.XAck(stream="s", group="g", ids=[1]),
        weir_commands.EnsureGroup(stream="{s}t", group="g", start=0),
        types.XLen(stream="s"),
    ]
    added, acked, refusal, length = await turn_of(engine, commands)
    assert isinstance(added, Added)
    assert (acked, length) == (0, 1)
    assert isinstance(refusal, EngineError)
    assert refusal.code == "no_stream"
    with pytest.raises(EngineError, match="transaction"):
        await turn_of(engine, [types.XAdd(stream="s", bodies=[BODY]), types.ListStreams()])
    assert await reply_to(engine, types.XLen(stream="s")) == 1


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (weir_commands.Watch(stream="s"), "WATCH"),
        (weir_commands.Unchanged(versions={"s": 1}), "WATCH"),
        (types.FlushAll(), "FLUSHALL"),
        (types.ConfigSet(values=[]), "CONFIG SET"),
        (types.XCfgSet(stream="s", settings=types.IdmpSettings()), "XCFGSET"),
        (types.XIdmpRecord(stream="s", producer_key=types.ProducerKey(b"p", b"1"), id=1), "XIDMPRECORD"),
    ],
)
async def test_what_no_server_is_sent_is_refused_by_its_name(
    engine: ClusterEngine, command: Command, name: str
) -> None:
    """As callers call it, in a transaction too: WATCH at once, and not when the transaction ends."""
    for refusal in (await refused(engine, command), await refused_together(engine, command)):
        assert refusal.code == "not_supported_by_backend"
        assert name in refusal.redis
        assert type(command).__name__ not in refusal.redis


async def test_callbacks_get_replies_in_order(engine: ClusterEngine) -> None:
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Reply | EngineError]] = loop.create_future()
    refused = types.XTrim(stream="s", trim=types.Trim(maxlen=1, refs=types.Refs.DELETE))
    each = [types.XAdd(stream="s", bodies=[BODY]), types.XLen(stream="s"), refused, types.XLen(stream="s")]
    submit_each(engine, each, lambda replies: found.set_result(list(replies)))
    added, one, refusal, again = await found
    assert isinstance(added, Added)
    assert (one, again) == (1, 1)
    assert isinstance(refusal, EngineError)
    assert refusal.code == "not_supported_by_backend"


async def test_commands_that_are_not_reached_leave_nothing_behind(own_server: BackendServer) -> None:
    """The task is cancelled at the first of them, as by a loop that ends."""
    async with opened(own_server) as engine:
        own_server.pause()
        before = asyncio.all_tasks()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            submit_each(engine, [types.XLen(stream="s"), types.XLen(stream="t")], lambda _: None)
            (running,) = asyncio.all_tasks() - before
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
            del running
            gc.collect()
        own_server.resume()
    assert [str(one.message) for one in warned] == []


async def test_entries_are_counted_once_however_they_are_stored(engine: ClusterEngine) -> None:
    """Dead letters too; a repetition stores nothing."""
    once = types.XAdd(stream="s", bodies=[BODY], idempotency=types.IdempotencyKey("k", b"d"))
    parts = [types.XAdd(stream=name, bodies=[BODY] * 2) for name in ("s", "{s}t")]
    everywhere = weir_commands.Publish(parts=parts, idempotency=types.IdempotencyKey("k", b"d"))
    chunk = weir_commands.Publish(parts=parts, chunk=weir_commands.Chunk("p", 1, 1))
    each: list[tuple[Command, int]] = [
        (types.XAdd(stream="s", bodies=[BODY] * 3), 3),
        (weir_commands.AddEach(stream="s", bodies=[BODY] * 3), 3),
        *((once, 1), (once, 0), (everywhere, 4), (everywhere, 0), (chunk, 4), (chunk, 0)),
        (types.XAdd(stream="none", bodies=[BODY], mkstream=False), 0),
    ]
    for command, count in each:
        before = engine.figures().appended
        await reply_to(engine, command)
        assert engine.figures().appended - before == count, command
    before = engine.figures().appended
    await turn_of(
        engine, [weir_commands.AddEach(stream="s", bodies=[BODY] * 2), types.XLen(stream="s"), parts[1]]
    )
    assert engine.figures().appended - before == 4
    await reply_to(
        engine,
        weir_commands.EnsureGroup(stream="s", group="g", start=0, policy={"dead_letter_stream": "dead"}),
    )
    read = await reply_of(engine, GroupRead, reading())
    before, dead = engine.figures().appended, [entry.id for entry in read.streams[0].entries]
    await reply_to(engine, weir_commands.DeadLetterEntries(stream="s", group="g", ids=dead, reason="r"))
    assert engine.figures().appended - before == len(dead) > 0


async def test_scripts_are_sent_again_to_a_server_that_forgot_them(
    backend: Backend, engine: ClusterEngine
) -> None:
    for _ in range(2):
        assert isinstance(await reply_to(engine, types.XAdd(stream="s", bodies=[BODY])), Added)
        assert isinstance(await reply_to(engine, weir_commands.DescribeEdges(stream="s")), Edges)
        archived = await reply_of(
            engine, Archived, weir_commands.DescribeArchived(stream="s", low=0, high=ids.ID_MAX)
        )
        assert (archived.archived_up_to, archived.deleted) == (0, ())
        assert isinstance(await reply_to(engine, types.XRead(streams=[("s", 0)])), StreamsRead)
        backend.call("SCRIPT", "FLUSH")


async def test_so_are_several_of_one_turn(backend: Backend, engine: ClusterEngine) -> None:
    """None of them has run where each is unknown."""
    for name in ("{s}1", "{s}2"):
        await reply_to(
            engine, types.XAdd(stream=name, bodies=[BODY] * 2, ids=[ids.make(5, 1), ids.make(5, 2)])
        )
    backend.call("SCRIPT", "FLUSH")
    deleting = types.XDelEx(stream="{s}1", ids=[ids.make(5, 1), ids.make(5, 9)])
    assert await reply_to(engine, deleting) == Deletions([1, -1])
    backend.call("SCRIPT", "FLUSH")
    assert await reply_to(engine, types.Delete(streams=["{s}1", "{s}2"])) == 2


async def test_of_several_that_ran_in_part_none_is_sent_again(
    backend: Backend, engine: ClusterEngine
) -> None:
    """The outcome is what the first ones did."""
    deleting = words.only_request(types.XDel(stream="s", ids=[ids.make(5, 1)]))
    add = ("XADD", "s", "5-1", "a", "1")
    backend.call("SCRIPT", "FLUSH")
    with pytest.raises(EngineError) as refusal:
        await engine.run_request(msgspec.structs.replace(deleting, commands=[add, *deleting.commands]))
    assert refusal.value.code == "backend_unavailable"
    assert await reply_to(engine, types.XLen(stream="s")) == 1


@pytest.mark.parametrize("command", [types.Rename, types.Copy])
async def test_a_stream_takes_what_is_kept_beside_it_to_its_new_name(
    engine: ClusterEngine, command: type[types.Rename | types.Copy]
) -> None:
    """Policies and answers; nothing stays of the stream that had the name, and nothing under the old one."""
    key = types.IdempotencyKey("k", b"d")
    for name, most in (("{s}1", 3), ("{s}2", 9)):
        await reply_to(engine, types.XAdd(stream=name, bodies=[BODY], ids=[most], idempotency=key))
        policy = {"max_deliveries": most, "ack_timeout_ms": most if most == 9 else None}
        await reply_to(engine, weir_commands.EnsureGroup(stream=name, group="g", start=0, policy=policy))
    generations = [await generation(engine, name) for name in ("{s}1", "{s}2")]
    assert await reply_to(engine, command(stream="{s}1", target="{s}2", replace=False)) is False
    assert await reply_to(engine, command(stream="{s}1", target="{s}2", replace=True)) is True
    info = await reply_of(engine, GroupInfo, weir_commands.DescribeGroup(stream="{s}2", group="g"))
    assert (info.max_deliveries, info.ack_timeout_ms) == (3, None)
    again = await reply_to(engine, types.XAdd(stream="{s}2", bodies=[BODY], idempotency=key))
    assert again == Added([3], duplicate=True)
    assert await generation(engine, "{s}2") not in generations
    first = await reply_of(engine, Added, types.XAdd(stream="{s}1", bodies=[BODY], idempotency=key))
    assert first.duplicate is (command is types.Copy)
    missing = command(stream="{s}9", target="{s}2")
    if command is types.Copy:
        assert await reply_to(engine, missing) is False
    else:
        assert (await refused(engine, missing)).code == "no_stream"


async def generation(engine: ClusterEngine, stream: str) -> str:
    found = await reply_of(engine, Edges, weir_commands.DescribeEdges(stream=stream))
    return found.generation


async def test_metadata_are_kept_beside_the_streams(engine: ClusterEngine) -> None:
    assert await reply_to(engine, weir_commands.PutMetadata(name="token/a", value=b"1")) is False
    assert await reply_to(engine, weir_commands.PutMetadata(name="token/a", value=b"2")) is True
    assert await reply_to(engine, weir_commands.ListMetadata(prefix="token/")) == MetadataPage(
        [("token/a", b"2")]
    )
    assert await reply_to(engine, weir_commands.ListMetadata(prefix="b")) == MetadataPage([])
    assert await reply_to(engine, weir_commands.PutMetadata(name="token/a", value=None)) is True
    assert await reply_to(engine, types.ListStreams()) == Listing([])


async def test_a_full_server_refuses_to_store(backend: Backend, engine: ClusterEngine) -> None:
    """Reads go on."""
    with full(backend):
        assert (await refused(engine, types.XAdd(stream="s", bodies=[BODY]))).code == "memory_full"
        assert await reply_to(engine, types.XLen(stream="s")) == 0


async def test_an_outage_is_told_after_a_while_and_ends(own_server: BackendServer) -> None:
    """Below 3 s it is none. A change that was sent may have been made, a read changes nothing."""
    clock = AdjustedClock()
    async with opened(own_server, 0.3, clock) as engine:
        write, read = types.XAdd(stream="s", bodies=[BODY]), types.XLen(stream="s")
        # Its connection is open from now on, and its script known.
        await reply_to(engine, write)
        own_server.pause()
        refusals = await asyncio.gather(refused(engine, write), refused(engine, read))
        assert [one.code for one in refusals] == ["backend_unavailable"] * 2
        assert [one.members["outcome"] for one in refusals] == ["unknown", "not done"]
        assert engine.figures().outage is None
        clock.ahead_s = 3.0
        await until_async(lambda: engine.figures().outage is not None)
        own_server.resume()
        await until_async(lambda: engine.figures().outage is None)
        assert isinstance(await reply_to(engine, read), int)


async def test_a_callback_that_fails_at_its_deadline_holds_up_no_other(own_server: BackendServer) -> None:
    """Both were sent twice, so no connection ends them in time."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    ended: list[object] = []

    def fail(_: object) -> None:
        ended.append(None)
        raise ValueError

    async with opened(own_server, 2.0) as engine:
        await reply_to(engine, types.XLen(stream="s"))
        own_server.pause()
        submit(engine, [types.XLen(stream="s")], fail)
        await asyncio.sleep(0.1)
        submit(engine, [types.XLen(stream="s")], ended.append)
        await asyncio.sleep(1.4)
        own_server.kill()
        async with asyncio.timeout(1.2):
            while len(ended) < 2:  # noqa: ASYNC110 - the connection's own deadlines are later
                await asyncio.sleep(0.01)
    assert "a callback of a connection failed" in reported


# --- several streams


async def test_several_streams_are_asked_for_at_once(engine: ClusterEngine) -> None:
    """Each has its reply in its place, also one that is not there."""
    for stream in ("a", "b"):
        await reply_to(engine, types.XAdd(stream=stream, bodies=[BODY], ids=[1 << 64]))
    await reply_to(engine, weir_commands.EnsureGroup(stream="a", group="g", start=0))
    read = await reply_of(engine, StreamsRead, types.XRead(streams=[("a", 0), ("b", 0), ("none", 0)]))
    assert [one.stream for one in read.streams] == ["a", "b"]
    measured = await reply_of(
        engine, Measured, weir_commands.MeasureStreams(streams=["b", "none", "a"], groups_max=1)
    )
    assert [(one.name, one.length, len(one.groups)) for one in measured.streams] == [("b", 1, 0), ("a", 1, 1)]
    assert all(one.bytes > 0 for one in measured.streams)
    none = await reply_of(engine, Measured, weir_commands.MeasureStreams(streams=["a"], groups_max=0))
    assert [(one.groups, one.groups_left_out) for one in none.streams] == [([], 1)]
    assert await reply_to(engine, types.DbSize()) == 2
    assert await reply_to(engine, types.ConfigGet()) == NamedValues([])


async def test_a_server_with_too_few_replicas_changes_nothing(own_server: BackendServer) -> None:
    """It refuses before it writes: the same may be sent again once the replicas are back."""
    own_server.call("CONFIG", "SET", "min-replicas-to-write", "1")
    async with opened(own_server) as engine:
        for command in (
            types.XAdd(stream="s", bodies=[BODY]),
            weir_commands.PutMetadata(name="m", value=b"1"),
        ):
            refusal = await refused(engine, command)
            assert (refusal.code, refusal.members["outcome"]) == ("backend_unavailable", "not done")
        own_server.call("CONFIG", "SET", "min-replicas-to-write", "0")
        assert await reply_to(engine, types.XLen(stream="s")) == 0


class FaultyLen(types.XLen, frozen=True):
    """A command with a fault in it."""

    def to_nonblocking(self) -> Self:
        raise RuntimeError("seeded")


class FaultyRead(types.XReadGroup, frozen=True):
    """Another one, which reads."""

    def named_streams(self) -> tuple[str, ...]:
        raise RuntimeError("seeded")


@pytest.mark.parametrize("way", ["submit", "submit several", "submit_each", "read"])
async def test_a_fault_in_a_command_is_reported_and_answered(engine: ClusterEngine, way: str) -> None:
    """Its caller counts work that is under way, and would wait for ever."""
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, found: reported.append(str(found["exception"])))
    answered: asyncio.Future[Sequence[Reply | EngineError]] = loop.create_future()
    if way == "submit":
        submit(engine, [FaultyLen(stream="s")], answered.set_result)
    elif way == "submit several":
        submit(engine, [types.XLen(stream="s"), FaultyLen(stream="s")], answered.set_result)
    elif way == "submit_each":
        submit_each(engine, [types.XLen(stream="s"), FaultyLen(stream="s")], answered.set_result)
    else:
        read = FaultyRead(group="g", consumer="c", streams=[("s", types.Cursor.NEW)])
        begin_read(engine, read, answered.set_result)
    async with asyncio.timeout(TIMEOUT_S):
        *others, refusal = await answered
    assert isinstance(refusal, EngineError)
    assert (refusal.code, reported) == ("internal", ["seeded"])
    assert others == ([0] if way == "submit_each" else [])
