"""Retention over a server: at each limit and beside it, when publishing and by the clock."""

import re
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any, get_type_hints

import pytest
from msgspec.structs import replace

from engine import Call, EngineError, How, ask, entries, ids
from engine.cluster import ClusterEngine, scripts, words
from engine.cluster.kept import description_of
from engine.cluster.keys import auxiliary_key
from engine.cluster.routing import Lane
from engine.commands import types
from engine.commands.weir_commands import DescribeEdges, EnsureStream, UpdateStream
from engine.parts.keeping import Retention
from engine.replies import Added, Edges, Entries, StreamInfo
from tests.cluster.engines import opened, refused
from tests.cluster.servers import Backend, BackendServer, full
from tests.engine.asking import reply_of, reply_to, turn_of

BODY = entries.body([("a", "1")])
LEASE = "weir/maintainer"
LARGE = entries.body([("a", "x" * 1_000)])


@pytest.fixture
async def engine(backend: Backend) -> AsyncIterator[ClusterEngine]:
    """It goes through the streams when the test says so."""
    backend.call("SET", LEASE, "another")
    async with opened(backend) as engine:
        yield engine


async def maintain(backend: Backend, engine: ClusterEngine) -> None:
    backend.call("DEL", LEASE)
    await engine.maintenance.step()
    backend.call("SET", LEASE, "another")


async def keep(engine: ClusterEngine, **retention: object) -> None:
    await reply_to(engine, EnsureStream(stream="s", retention=Retention(**retention)))  # type: ignore[arg-type]


async def add(engine: ClusterEngine, *new_ids: int, body: bytes = BODY) -> None:
    await reply_to(engine, types.XAdd(stream="s", bodies=[body] * len(new_ids), ids=list(new_ids)))


async def kept(engine: ClusterEngine) -> Sequence[int]:
    found = await reply_of(engine, Entries, types.XRange(stream="s", start=ids.ID_MIN, end=ids.ID_MAX))
    return [one for one, _ in found.pairs()]


def seq(*sequences: int) -> list[int]:
    return [ids.make(5, n) for n in sequences]


async def test_what_is_too_old_goes_when_publishing(backend: Backend, engine: ClusterEngine) -> None:
    """By the time in its ID; at the limit it stays."""
    await keep(engine, max_age_ms=3_600_000)
    await add(engine, *seq(1, 2))
    assert await kept(engine) == []
    added = await reply_of(engine, Added, types.XAdd(stream="s", bodies=[BODY]))
    assert await kept(engine) == list(added.ids)
    await maintain(backend, engine)
    assert await kept(engine) == list(added.ids)


async def test_bytes_are_kept_in_parts_and_never_less(backend: Backend, engine: ClusterEngine) -> None:
    """The limit and less than a part more, also where others added and removed."""
    await keep(engine, max_bytes=64_000)
    await add(engine, *seq(*range(1, 201)), body=LARGE)
    held = await kept(engine)
    assert held[-1] == seq(200)[0]
    assert 64 <= len(held) * 1_033 / 1_000 <= 66
    await reply_to(engine, UpdateStream(stream="s", retention={"max_bytes": 10_000, "max_len": 20}))
    await maintain(backend, engine)
    assert 10 <= len(await kept(engine)) <= 11
    await reply_to(engine, UpdateStream(stream="s", retention={"max_bytes": 0}))
    await maintain(backend, engine)
    assert await kept(engine) == []


async def test_many_parts_become_few(backend: Backend, engine: ClusterEngine) -> None:
    """Where much must stay beyond the limit: what is known of the bytes stays small, and right."""
    await keep(engine, max_bytes=50_000, keep_unarchived=True)
    await add(engine, *seq(*range(1, 301)), body=LARGE)
    assert len(await kept(engine)) == 300
    await reply_to(engine, UpdateStream(stream="s", retention={"keep_unarchived": False}))
    await maintain(backend, engine)
    assert 49 <= len(await kept(engine)) <= 51


async def test_a_smaller_limit_is_kept_as_exactly(backend: Backend, engine: ClusterEngine) -> None:
    """The parts of the larger one do not stay."""
    await keep(engine, max_bytes=6_400_000)
    await add(engine, *seq(*range(1, 201)), body=LARGE)
    await reply_to(engine, UpdateStream(stream="s", retention={"max_bytes": 10_000}))
    await maintain(backend, engine)
    assert 10 <= len(await kept(engine)) <= 11


async def test_many_entries_are_counted_in_several_turns(backend: Backend, engine: ClusterEngine) -> None:
    """One step does all of them."""
    await add(engine, *seq(*range(1, 5_002)))
    await keep(engine, max_bytes=100)
    await maintain(backend, engine)
    assert 2 <= len(await kept(engine)) <= 3


async def test_few_large_entries_are_counted_in_one_turn(backend: Backend, engine: ClusterEngine) -> None:
    """About a mebibyte, and the last one stays: a publish does not wait for all that was there before."""
    for number in range(1, 101):
        await add(engine, *seq(number), body=entries.body([("a", "x" * 100_000)]))
    await keep(engine, max_bytes=1)
    await add(engine, *seq(101))
    assert await kept(engine) == seq(*range(20, 102))
    await maintain(backend, engine)
    assert await kept(engine) == seq(101)


async def test_a_full_server_goes_on_counting(backend: Backend, engine: ClusterEngine) -> None:
    """Else it would stay full: what goes is known at the end of the count."""
    await add(engine, *seq(*range(1, 6_001)))
    await keep(engine, max_bytes=160_000)
    with full(backend):
        for _ in range(4):
            await engine.run_request(words.by_script("s", scripts.maintain("s", 0, 0), Lane.GROUP))
    # Each has 34 bytes.
    assert 160_000 <= len(await kept(engine)) * 34 < 163_000


async def test_a_publish_does_not_write_what_is_known_of_all_parts(
    backend: Backend, engine: ClusterEngine
) -> None:
    """Only where one ends."""
    meta = auxiliary_key("s", "m").decode()
    await keep(engine, max_bytes=128_000)
    await add(engine, *seq(*range(1, 5)), body=LARGE)
    parts = [backend.call("HGET", meta, "z")]
    for number in range(5, 8):
        await add(engine, *seq(number), body=LARGE)
        parts.append(backend.call("HGET", meta, "z"))
    # Each has two of them.
    assert [one != other for one, other in pairwise(parts)] == [False, True, False]


async def held(engine: ClusterEngine) -> str:
    info = await reply_of(engine, StreamInfo, types.XInfoStream(stream="s"))
    return f"{info.held_by} {ids.format(info.held_id)}" if info.held_id else info.held_by


async def test_until_there_is_a_group_all_is_kept_up_to_the_size(
    backend: Backend, engine: ClusterEngine
) -> None:
    """Whatever the other limits are."""
    await keep(engine, keep_unacknowledged=True, max_len=0, max_bytes=64_000)
    await add(engine, *seq(*range(1, 201)), body=LARGE)
    await maintain(backend, engine)
    assert 64 <= len(await kept(engine)) * 1_033 / 1_000 <= 66
    assert await held(engine) == "no group"


async def test_a_group_of_another_program_counts(backend: Backend, engine: ClusterEngine) -> None:
    """Once it was seen, also after that program has removed it."""
    await keep(engine, keep_unacknowledged=True, max_len=0)
    await add(engine, *seq(1))
    backend.call("XGROUP", "CREATE", "s", "theirs", "0")
    await maintain(backend, engine)
    assert (await kept(engine), await held(engine)) == (seq(1), "theirs 5-1")
    backend.call("XREADGROUP", "GROUP", "theirs", "c", "STREAMS", "s", ">")
    backend.call("XDEL", "s", "5-1")
    await add(engine, *seq(2))
    assert await held(engine) == "theirs 5-1"
    backend.call("XACK", "s", "theirs", "5-1")
    assert await held(engine) == "theirs 5-2"
    backend.call("XGROUP", "DESTROY", "s", "theirs")
    await maintain(backend, engine)
    assert (await kept(engine), await held(engine)) == ([], "")


@pytest.mark.parametrize("is_kept", [True, False])
async def test_at_a_full_server_a_refusal_names_the_stream_that_keeps_all(
    backend: Backend, engine: ClusterEngine, *, is_kept: bool
) -> None:
    """At each of the ways in: alone, in a turn, one of several."""
    await keep(engine, keep_unacknowledged=is_kept)
    adding = types.XAdd(stream="s", bodies=[BODY])
    with full(backend):
        alone = await refused(engine, adding)
        each = await ask(engine, Call([adding, adding], How.EACH))
        with pytest.raises(EngineError) as together:
            await turn_of(engine, [adding, adding])
    for refusal in (alone, *each, together.value):
        assert isinstance(refusal, EngineError)
        assert refusal.code == "memory_full"
        assert refusal.members.get("held_by") == ("no group" if is_kept else None)
        assert ("'s' keeps everything until it has a group" in refusal.detail) == is_kept


def reads(server: BackendServer) -> int:
    """Ranges of entries that were read since the last time."""
    found = re.search(rb"cmdstat_xrange:calls=(\d+)", server.call("INFO", "commandstats"))
    server.call("CONFIG", "RESETSTAT")
    return int(found[1]) if found else 0


async def test_what_must_stay_is_not_read_when_publishing(server: BackendServer) -> None:
    """A group is far behind: a publish looks at what may go, and at no more."""
    async with opened(server) as engine:
        await add(engine, *seq(*range(1, 2_001)))
        await reply_to(engine, types.XGroupCreate(stream="s", group="g", start=0))
        await reply_to(
            engine, types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)], count=200)
        )
        await keep(engine, max_len=10, keep_unacknowledged=True)
        reads(server)
        await add(engine, *seq(2_001))
        assert reads(server) <= 1
        await reply_to(engine, types.XAck(stream="s", group="g", ids=seq(1, 2)))
        await add(engine, *seq(2_002))
        assert reads(server) <= 2
        assert (await kept(engine))[0] == seq(3)[0]
        await reply_to(engine, types.XAck(stream="s", group="g", ids=seq(*range(3, 201))))
        reads(server)
        await add(engine, *seq(2_003))
        assert reads(server) <= 4
        assert (await kept(engine))[0] == seq(201)[0]


async def test_nothing_stays_beside_a_stream_that_expired(backend: Backend, engine: ClusterEngine) -> None:
    """But for the floor of its IDs, until no clock can be behind it. Made again, it is new."""
    key = types.IdempotencyKey("k", b"d")
    await keep(engine, max_len=5)
    await reply_to(engine, types.XAdd(stream="s", bodies=[BODY], idempotency=key))
    first = await reply_of(engine, Edges, DescribeEdges(stream="s"))
    await reply_to(engine, types.Expire(stream="s", ms=0, relative=True))
    await keep(engine)
    again = await reply_of(engine, Added, types.XAdd(stream="s", bodies=[BODY], idempotency=key))
    second = await reply_of(engine, StreamInfo, types.XInfoStream(stream="s"))
    assert (again.duplicate, second.max_len) == (False, None)
    assert second.generation != first.generation
    await reply_to(engine, types.Expire(stream="s", ms=0, relative=True))
    await maintain(backend, engine)
    meta = auxiliary_key("s", "m").decode()
    fields = backend.call("HGETALL", meta)
    assert sorted(fields[::2]) == [b"f", b"p"]
    assert backend.call("EXISTS", auxiliary_key("s", "i").decode()) == 0
    backend.call("HSET", meta, "f", 1)
    await maintain(backend, engine)
    assert backend.call("EXISTS", meta) == 0


async def test_one_gateway_at_a_time_goes_through_the_streams(
    backend: Backend, engine: ClusterEngine
) -> None:
    """The other one does when the first is gone."""
    await keep(engine, max_len=1)
    await add(engine, *seq(1, 2))
    await engine.maintenance.step()
    assert await kept(engine) == seq(1, 2)
    assert backend.call("GET", LEASE) == b"another"
    await maintain(backend, engine)
    assert await kept(engine) == seq(2)


@pytest.mark.parametrize("limit", [{"max_len": 1}, {"max_age_ms": 1}, {"max_bytes": 1_000}])
async def test_at_a_full_server_retention_makes_room(
    backend: Backend, engine: ClusterEngine, limit: dict[str, int]
) -> None:
    """Publishing, which enforces it else, is refused there."""
    await add(engine, *seq(1, 2, 3), body=LARGE)
    await keep(engine, **limit)
    backend.call("DEL", LEASE)
    with full(backend):
        await engine.maintenance.step()
        assert len(await kept(engine)) < 3
        await engine.maintenance.step()


def test_what_a_change_expects_is_all_that_a_stream_shows() -> None:
    """What If-Match does not compare may change between the look and the commit. That is only: what a server
    has not, the first and last text, what a generation keeps, what follows from groups, and an estimate.
    """
    names = StreamInfo.__struct_fields__
    none: Any = {name: "" if of is str else 0 for name, of in get_type_hints(StreamInfo).items()}
    info = StreamInfo(**none)
    told = {name: description_of(replace(info, **{name: type(getattr(info, name))(1)})) for name in names}
    of_redis = "idmp_duration_s idmp_maxsize pids_tracked iids_tracked iids_added iids_duplicates"
    others = "first_entry last_entry media forked_from held_by held_id state memory_bytes"
    same = {name for name in names if told[name] == description_of(info)}
    assert same == {*of_redis.split(), *others.split()}, "description_of and lua/retention.lua have the rest"
