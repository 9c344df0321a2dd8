"""Reads of several streams by a group: all of them or none."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine import EngineError
from engine.cluster import ClusterEngine
from engine.cluster.gathering import gatherer
from engine.cluster.routing import BackendRequest, Lane
from engine.commands.base import Command
from engine.commands.execution import execute
from engine.commands.types import Cursor, XAdd, XRead, XReadGroup
from engine.commands.weir_commands import DescribeGroup, EnsureGroup
from engine.keyspace import Keyspace
from engine.replies import GroupInfo, GroupRead, StreamsRead
from tests.cluster.engines import BODY, refused
from tests.cluster.servers import Backend
from tests.engine.asking import reply_of, reply_to


async def test_a_group_reads_several_streams_at_once(engine: ClusterEngine) -> None:
    """Those with entries are in the reply; one without the group refuses all."""
    for stream in ("a", "b"):
        await reply_to(engine, EnsureGroup(stream=stream, group="g", start=0, mkstream=True))
    await reply_to(engine, XAdd(stream="b", bodies=[BODY], ids=[1 << 64]))
    streams: list[tuple[str, int | Cursor]] = [("a", Cursor.NEW), ("b", Cursor.NEW)]
    read = await reply_of(engine, GroupRead, XReadGroup(group="g", consumer="c", streams=streams))
    assert [(one.stream, len(one.entries)) for one in read.streams] == [("b", 1)]
    await reply_to(engine, XAdd(stream="c", bodies=[BODY]))
    both = XReadGroup(group="g", consumer="d", streams=[*streams, ("c", Cursor.NEW)])
    await reply_to(engine, XAdd(stream="b", bodies=[BODY]))
    assert (await refused(engine, both)).code == "no_group"
    info = await reply_of(engine, GroupInfo, DescribeGroup(stream="b", group="g"))
    assert (info.pending, info.consumers) == (1, 1)


Streams = Sequence[tuple[str, int | Cursor]]


async def test_streams_share_a_total_as_in_an_own_engine(engine: ClusterEngine) -> None:
    """MAXCOUNT and MAXSIZE, of which no server of today knows: what each stream gives is the same."""
    own = Keyspace()

    async def both(command: Command) -> tuple[object, object]:
        there, here = await reply_to(engine, command), execute(own, command, 1_000).reply
        assert isinstance(there, GroupRead | StreamsRead) == isinstance(here, GroupRead | StreamsRead)
        return _given(there), _given(here)

    for stream in "abc":
        await both(EnsureGroup(stream=stream, group="g", start=0, mkstream=True))
        for number in (1, 2):
            await both(XAdd(stream=stream, bodies=[BODY], ids=[(1_700_000_000_000 + number) << 64]))
    # A script estimates what an entry takes.
    size = len(BODY) + len('{"id":"1700000000000-0",')
    all_new: Streams = [(name, Cursor.NEW) for name in "abc"]
    from_start: Streams = [(name, 0) for name in "abc"]
    plain: list[dict[str, Any]] = [
        {"count_total": 1},
        {"count_total": 3, "count": 2},
        {"bytes_total": 1},
        {"bytes_total": 7 * size // 2},
        {"bytes_total": 4 * size, "count_total": 3},
    ]
    for totals in plain:
        for streams in (from_start, from_start[:1]):
            there, here = await both(XRead(streams=streams, **totals))
            assert there == here, totals
    grouped: list[tuple[str, dict[str, Any], Streams]] = [
        ("c", {"count_total": 3}, all_new),
        ("c", {"bytes_total": 1}, [("a", 0), ("b", 0)]),
        ("c", {"bytes_total": 5 * size // 2}, [("b", 0), ("a", 0)]),
        ("c", {"count_total": 1}, [("a", 0)]),
        ("d", {"bytes_total": 5 * size // 2}, all_new),
        ("d", {"count_total": 5}, all_new),
    ]
    for consumer, totals, streams in grouped:
        read = XReadGroup(group="g", consumer=consumer, streams=streams, **totals)
        there, here = await both(read)
        assert there == here, (totals, streams)


def _given(reply: object) -> object:
    if isinstance(reply, StreamsRead):
        return [(one.stream, one.entries.count) for one in reply.streams], list(reply.unfinished)
    if isinstance(reply, GroupRead):
        return [(one.stream, [row.id for row in one.entries]) for one in reply.streams]
    return None


class Interrupted:
    """A backend where something happens once the group was looked for, before the first read."""

    def __init__(self, engine: ClusterEngine, happens: Callable[[], object]) -> None:
        self.engine = engine
        self.happens = happens
        self.requests: list[BackendRequest] = []

    @property
    def durability(self) -> str:
        return self.engine.durability

    async def scan(self, pattern: str, kind: str = "stream") -> Sequence[bytes]:
        return await self.engine.scan(pattern)

    async def is_allowed_all(self) -> bool:
        return await self.engine.is_allowed_all()

    async def run_each(self, commands: Sequence[Command]) -> Sequence[object]:
        return await self.engine.run_each(commands)

    async def run_request(self, request: BackendRequest) -> object:
        if request.lane is Lane.GROUP and not any(one.lane is Lane.GROUP for one in self.requests):
            self.happens()
        self.requests.append(request)
        return await self.engine.run_request(request)


async def interrupted(interrupted: Interrupted, command: Command) -> EngineError:
    gather = gatherer(command)
    assert gather is not None
    with pytest.raises(EngineError) as refusal:
        await gather(interrupted, command)
    return refusal.value


def of_all(*names: str, noack: bool = False) -> XReadGroup:
    streams: list[tuple[str, int | Cursor]] = [(name, Cursor.NEW) for name in names]
    return XReadGroup(group="g", consumer="c", streams=streams, noack=noack)


async def test_no_stream_is_read_where_two_lack_the_group(backend: Backend, engine: ClusterEngine) -> None:
    """One of them may have it by then, and would deliver what no reply shows. A look is one short command."""
    for stream in "abc":
        await reply_to(engine, XAdd(stream=stream, bodies=[BODY]))
    await reply_to(engine, EnsureGroup(stream="a", group="g", start=0))
    between = Interrupted(engine, lambda: backend.call("XGROUP", "CREATE", "b", "g", "0"))
    refusal = await interrupted(between, of_all("a", "b", "c"))
    assert (refusal.code, "'b'" in refusal.redis) == ("no_group", True)
    assert [(one.lane, len(one.commands)) for one in between.requests] == [(Lane.READ, 1)] * 3


@pytest.mark.parametrize("noack", [False, True])
async def test_what_was_read_beside_a_refusal_is_given_back(
    backend: Backend, engine: ClusterEngine, *, noack: bool
) -> None:
    """The group goes after it was found: what the other stream has is the next reader's, as if never read."""
    for stream in "ab":
        await reply_to(engine, XAdd(stream=stream, bodies=[BODY, BODY]))
        await reply_to(engine, EnsureGroup(stream=stream, group="g", start=0))
    between = Interrupted(engine, lambda: backend.call("XGROUP", "DESTROY", "b", "g"))
    assert (await interrupted(between, of_all("a", "b", noack=noack))).code == "no_group"
    claiming = XReadGroup(group="g", consumer="d", streams=[("a", Cursor.NEW)], claim_min_idle_ms=60_000)
    again = await reply_of(engine, GroupRead, claiming)
    # What needs no acknowledgement was never pending.
    found = [entry.delivery_count for one in again.streams for entry in one.entries]
    assert found == ([] if noack else [1, 1])
