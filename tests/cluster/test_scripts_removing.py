"""XTRIM and XDEL as scripts, and where a stream begins: as the engine in this process has it."""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

import pytest

from engine import entries, ids
from engine.cluster import scripts
from engine.cluster.keys import auxiliary_key
from engine.cluster.scripts import ScriptCall, WriteOrigin
from engine.commands.types import Cursor, Trim, XAck, XAdd, XDel, XGroupCreate, XReadGroup, XTrim
from engine.commands.weir_commands import DescribeEdges
from engine.replies import Edges
from tests.cluster.beside import GENERATION, Beside
from tests.cluster.servers import BackendServer

BODY = entries.body([("n", "1")])


@pytest.fixture
def beside(server: BackendServer) -> Beside:
    """A stream of six entries, 5-0 to 5-5."""
    found = Beside(server)
    found.add(XAdd(stream="s", bodies=[BODY] * 6, ids=[ids.make(5, n) for n in range(6)]))
    return found


def trim(beside: Beside, *, dry_run: bool = False, guard: bool = False, **asked: object) -> object:
    command = XTrim(stream="s", trim=Trim(**asked), dry_run=dry_run, guard=guard)  # type: ignore[arg-type]
    reply = beside.both(lambda given, _: scripts.trim(given), command)
    check(beside)
    return reply


def delete(beside: Beside, *sequences: int) -> None:
    command = XDel(stream="s", ids=[ids.make(5, n) for n in sequences])
    beside.both(lambda given, _: scripts.delete_entries(given), command)
    check(beside)


def check(beside: Beside) -> None:
    """Both have the same entries, and the same edges."""
    beside.same_entries("s")
    here, there = beside.here(DescribeEdges(stream="s")), edges(beside)
    assert isinstance(there, Edges)
    assert (here.first_id, here.last_id, here.removed_upto) == (
        there.first_id,
        there.last_id,
        there.removed_upto,
    )


def edges(beside: Beside) -> Edges | None:
    def make(command: DescribeEdges, origin: WriteOrigin) -> ScriptCall:
        return scripts.describe_edges(command, origin.generation)

    found = beside.there(make, DescribeEdges(stream="s"))
    assert found is None or isinstance(found, Edges)
    return found


def begin_group(beside: Beside, count: int, group: str = "g") -> None:
    """A group on both sides that has read this number of entries."""
    beside.here(XGroupCreate(stream="s", group=group, start=0))
    beside.here(XReadGroup(group=group, consumer="c", streams=[("s", Cursor.NEW)], count=count))
    beside.server.call("XGROUP", "CREATE", "s", group, "0")
    beside.server.call("XREADGROUP", "GROUP", group, "c", "COUNT", count, "STREAMS", "s", ">")


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("maxlen", [0, 1, 2, 5, 6, 7])
def test_trims_by_length(beside: Beside, maxlen: int, *, counted: bool, dry_run: bool) -> None:
    """At each length, beside what was deleted before."""
    begin_group(beside, 4)
    trim(beside, maxlen=maxlen, count_pending=counted, dry_run=dry_run)
    delete(beside, 4)
    trim(beside, maxlen=max(0, maxlen - 2), count_pending=counted, dry_run=dry_run)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("minid", [0, 1, 5 << 64, 5 << 64 | 1, 5 << 64 | 4, 5 << 64 | 6, 6 << 64])
def test_trims_by_id(beside: Beside, minid: int, *, dry_run: bool) -> None:
    """At the first entry, at the last, and beside them."""
    begin_group(beside, 3)
    delete(beside, 3)
    trim(beside, minid=minid, count_pending=True, dry_run=dry_run)
    trim(beside, minid=minid)


@pytest.mark.parametrize("read", [1, 2, 3])
@pytest.mark.parametrize("maxlen", [3, 4, 5, 6])
def test_a_guard_refuses_what_a_group_still_needs(beside: Beside, read: int, maxlen: int) -> None:
    """What is pending, and what it has not read."""
    begin_group(beside, read)
    trim(beside, maxlen=maxlen, guard=True)
    beside.server.call("XACK", "s", "g", "5-0")
    beside.keyspace.keys["s"].groups["g"].needed_from()


@pytest.mark.parametrize("done", ["g", "h"])
@pytest.mark.parametrize("maxlen", [1, 3, 5, 6])
def test_a_guard_asks_all_groups(beside: Beside, done: str, maxlen: int) -> None:
    """One that needs nothing any more, before or behind one that has the first entry pending."""
    for group in ("g", "h"):
        begin_group(beside, 6 if group == done else 1, group)
    every = [ids.make(5, number) for number in range(6)]
    beside.here(XAck(stream="s", group=done, ids=every))
    beside.server.call("XACK", "s", done, *map(ids.format, every))
    trim(beside, maxlen=maxlen, guard=True)


def test_deleting_moves_the_beginning(beside: Beside) -> None:
    """From the front, in the middle, all; what is not there counts for nothing."""
    delete(beside, 9)
    delete(beside, 2)
    delete(beside, 0, 0, 1)
    delete(beside, 5, 4)
    delete(beside, 3)
    delete(beside, 3)
    beside.add(XAdd(stream="s", bodies=[BODY], ids=[ids.make(6, 0)]))
    check(beside)


def test_what_another_program_trims_is_a_gap_up_to_the_first_entry(beside: Beside) -> None:
    """It is not known which entries were there; what Weir has trimmed is known."""
    trim(beside, maxlen=5)
    assert edges(beside) == Edges(ids.make(5, 1), ids.make(5, 5), ids.make(5, 0), GENERATION)
    beside.server.call("XTRIM", "s", "MAXLEN", 2)
    assert edges(beside) == Edges(ids.make(5, 4), ids.make(5, 5), ids.make(5, 3), GENERATION)
    beside.there(lambda given, _: scripts.trim(given), XTrim(stream="s", trim=Trim(maxlen=1)))
    assert edges(beside) == Edges(ids.make(5, 5), ids.make(5, 5), ids.make(5, 4), GENERATION)
    beside.server.call("XTRIM", "s", "MAXLEN", 0)
    found = edges(beside)
    assert found is not None
    assert found.removed_upto == ids.make(5, 5)


def test_a_stream_of_another_program_gets_a_generation_and_keeps_it(beside: Beside) -> None:
    """Until it is deleted."""
    beside.server.call("DEL", "s")
    assert edges(beside) is None
    beside.server.call("DEL", auxiliary_key("s", "m"))
    beside.server.call("XADD", "s", "7-0", "a", "1")
    first = edges(beside)
    beside.origin = WriteOrigin("ffffffffffffffff")
    assert edges(beside) == first
    assert beside.there(lambda _, __: scripts.delete_stream("s"), XDel(stream="s", ids=())) == 1
    assert beside.server.call("DBSIZE") == 0


def test_what_would_take_too_long_to_count_is_refused(beside: Beside) -> None:
    """With nothing removed; where nothing must be counted it is done."""
    fill = "for _ = 1, 50000 do redis.call('XADD', KEYS[1], '*', 'n', '1') end"
    beside.server.call("EVAL", fill, 1, "s")
    make = lambda given, _: scripts.trim(given)  # noqa: E731 - used thrice
    half = Trim(maxlen=25_000)
    refusal = beside.there(make, XTrim(stream="s", trim=half, dry_run=True))
    assert refusal.code == "not_supported_by_backend"
    older = Trim(minid=ids.ID_MAX)
    assert beside.there(make, XTrim(stream="s", trim=older, dry_run=True)).code == "not_supported_by_backend"
    assert beside.server.call("XLEN", "s") == 50_006
    counted = Trim(maxlen=25_000, count_pending=True)
    assert beside.there(make, XTrim(stream="s", trim=counted)).deleted == 25_006


# Around the ends of nodes.
LENGTHS: Final = (1, 99, 100, 101, 250, 301)
LEFT: Final = (0, 1, 50, 99, 100, 101, 200, 250, 300)


def approximate() -> Iterator[tuple[int, list[Trim]]]:
    """For each length, each bound with each limit, one after the other."""
    for length, left, limit in product(LENGTHS, LEFT, (None, 0, 1, 99, 100, 101, 250)):
        for other in (left, max(0, left - 60)):
            by_id = [
                Trim(minid=ids.make(5, max(0, length - n)), approx=True, limit=limit) for n in (left, other)
            ]
            by_length = [Trim(maxlen=n, approx=True, limit=limit) for n in (left, other)]
            yield length, [*by_id, *by_length]
            yield length, [*by_length, *by_id]


@pytest.mark.parametrize("deleted", [(), (0,), (0, 1, 2)])
def test_an_approximate_trim_removes_whole_nodes(server: BackendServer, deleted: Sequence[int]) -> None:
    """As of small entries in Weir's own log, by length and by ID, whatever the limit; the server as well."""
    for length, trims in random.Random(len(deleted)).sample(list(approximate()), 60):
        server.call("FLUSHALL")
        beside = Beside(server)
        beside.add(XAdd(stream="s", bodies=[BODY] * length, ids=[ids.make(5, n) for n in range(length)]))
        delete(beside, *(n for n in deleted if n < length))
        for one in trims:
            command = XTrim(stream="s", trim=one)
            server.call("COPY", "s", "t", "REPLACE")
            words = (
                ["MAXLEN", "~", one.maxlen] if one.minid is None else ["MINID", "~", ids.format(one.minid)]
            )
            limit = [] if one.limit is None else ["LIMIT", one.limit]
            removed = server.call("XTRIM", "t", *words, *limit)
            reply = beside.both(lambda given, _: scripts.trim(given), command)
            assert reply.deleted == removed, (length, trims, one)
            check(beside)
