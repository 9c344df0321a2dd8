"""XDELEX and XACKDEL as scripts: as the engine in this process does them, for each kind of reference."""

import pytest

from engine import entries, ids
from engine.cluster import scripts
from engine.commands import types
from engine.commands.base import Command
from engine.commands.weir_commands import DescribeEdges
from engine.replies import PendingSummary
from tests.cluster.beside import Beside
from tests.cluster.servers import BackendServer

BODY = entries.body([("n", "1")])
# How many of six entries a group has read, and which of these it has not acknowledged.
GROUPS = {"g": (4, (1, 2)), "h": (3, (0, 2))}


@pytest.fixture
def beside(server: BackendServer) -> Beside:
    """5-0 to 5-5, and two groups."""
    found = Beside(server)
    found.add(types.XAdd(stream="s", bodies=[BODY] * 6, ids=[ids.make(5, n) for n in range(6)]))
    for group, (count, pending) in GROUPS.items():
        found.here(types.XGroupCreate(stream="s", group=group, start=0))
        found.here(
            types.XReadGroup(group=group, consumer="c", streams=[("s", types.Cursor.NEW)], count=count)
        )
        server.call("XGROUP", "CREATE", "s", group, "0")
        server.call("XREADGROUP", "GROUP", group, "c", "COUNT", count, "STREAMS", "s", ">")
        settled = [ids.make(5, n) for n in range(count) if n not in pending]
        found.here(types.XAck(stream="s", group=group, ids=settled))
        server.call("XACK", "s", group, *map(ids.format, settled))
    return found


def same(beside: Beside, command: Command) -> list[int]:
    """The results; afterwards both have the same entries, references and edges."""

    def make(given: Command, _: object) -> scripts.ScriptCall:
        if isinstance(given, types.XAckDel):
            return scripts.delete_each(given.stream, given.refs, given.ids, given.group)
        assert isinstance(given, types.XDelEx)
        return scripts.delete_each(given.stream, given.refs, given.ids)

    reply = beside.both(make, command)
    beside.same_entries("s")
    for group in GROUPS:
        here = beside.here(types.XPending(stream="s", group=group))
        assert isinstance(here, PendingSummary)
        assert beside.server.call("XPENDING", "s", group)[0] == here.count
    edges = beside.there(lambda given, _: scripts.describe_edges(given, "0" * 16), DescribeEdges(stream="s"))
    assert edges.removed_upto == beside.here(DescribeEdges(stream="s")).removed_upto
    return list(reply.results)


WANTED = [(0,), (1,), (2,), (3,), (4,), (9,), (0, 1, 2, 3, 4, 5), (5, 3, 3, 0, 9, 9), (2, 1, 0)]


@pytest.mark.parametrize("refs", types.Refs)
@pytest.mark.parametrize("wanted", WANTED)
def test_deleting(beside: Beside, refs: types.Refs, wanted: tuple[int, ...]) -> None:
    """Unread, pending in one group, in the other, in both, in none; named twice, and not there."""
    command = types.XDelEx(stream="s", ids=[ids.make(5, n) for n in wanted], refs=refs)
    same(beside, command)
    same(beside, command)


@pytest.mark.parametrize("refs", types.Refs)
@pytest.mark.parametrize("wanted", WANTED)
def test_acknowledging_and_deleting(beside: Beside, refs: types.Refs, wanted: tuple[int, ...]) -> None:
    """The other group may need it still."""
    chosen = [ids.make(5, n) for n in wanted]
    for group in ("g", "h", "missing"):
        same(beside, types.XAckDel(stream="s", group=group, ids=chosen, refs=refs))


def test_an_entry_that_had_gone_is_acknowledged_and_counts_as_deleted(beside: Beside) -> None:
    """Its reference was all that was left."""
    chosen = [ids.make(5, 1)]
    assert same(beside, types.XDelEx(stream="s", ids=chosen)) == [1]
    assert same(beside, types.XAckDel(stream="s", group="g", ids=chosen)) == [1]
    assert same(beside, types.XAckDel(stream="s", group="g", ids=chosen)) == [-1]


def test_of_a_missing_stream_all_are_absent(beside: Beside) -> None:
    for name in ("", "g"):
        call = scripts.delete_each("none", types.Refs.ACKED, [ids.make(5, 1)], name)
        assert call.decode(beside.raw(call)).results == [-1]
