"""Group reads as scripts: the same entries, counts and gaps as in the engine of this process."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from engine import entries, ids
from engine.cluster import group_scripts, scripts
from engine.commands.base import Command
from engine.commands.types import Cursor, Trim, XAdd, XGroupCreate, XPending, XReadGroup, XTrim
from engine.commands.weir_commands import Acknowledge, GiveBack
from engine.replies import GroupRead
from tests.cluster.beside import Beside
from tests.cluster.servers import BackendServer

BODY = entries.body([("n", "1")])
NEVER_MS = (1 << 53) - 1


@pytest.fixture
def beside(server: BackendServer) -> Beside:
    """A stream of six entries, 5-0 to 5-5, and a group at its beginning."""
    found = Beside(server)
    found.add(XAdd(stream="s", bodies=[BODY] * 6, ids=[ids.make(5, n) for n in range(6)]))
    found.here(XGroupCreate(stream="s", group="g", start=0))
    found.server.call("XGROUP", "CREATE", "s", "g", "0")
    return found


def read(beside: Beside, consumer: str = "c", cursor: int | Cursor = Cursor.NEW, **options: Any) -> GroupRead:
    command = XReadGroup(group="g", consumer=consumer, streams=[("s", cursor)], **options)
    there = beside.there(lambda given, _: group_scripts.read_group(given), command)
    assert _timeless(there) == _timeless(beside.here(command))
    assert isinstance(there, GroupRead)
    return there


def _timeless(reply: Any) -> Any:
    """Without idle times, which are of two clocks, and with what marks have in common."""
    if not isinstance(reply, GroupRead):
        return reply
    replace = msgspec.structs.replace
    streams = [
        replace(one, entries=[replace(row, idle_ms=row.idle_ms and 0) for row in one.entries], mark=None)
        for one in reply.streams
    ]
    marks = [
        one.mark and (one.mark.last_delivered_id, one.mark.entries_read, one.mark.claimed)
        for one in reply.streams
    ]
    return streams, marks


def run(beside: Beside, make: Any, command: Command) -> Any:
    there = beside.there(lambda given, _: make(given), command)
    assert there == beside.here(command)
    return there


def ids_of(*sequences: int) -> tuple[int, ...]:
    return tuple(ids.make(5, n) for n in sequences)


def test_new_entries_go_to_one_consumer_each(beside: Beside) -> None:
    """As many as were asked for, then none."""
    assert len(read(beside, count=2).streams[0].entries) == 2
    assert len(read(beside, "d", count=1).streams[0].entries) == 1
    read(beside)
    assert read(beside).streams == []


@pytest.mark.parametrize("before", [ids.ID_MAX - 2, ids.ID_MAX - 1, ids.ID_MAX])
def test_the_highest_id_is_read_too(server: BackendServer, before: int) -> None:
    """And nothing behind it: the last but one, the last, and a group that has read it."""
    beside = Beside(server)
    beside.add(XAdd(stream="s", bodies=[BODY] * 2, ids=[ids.ID_MAX - 1, ids.ID_MAX]))
    beside.here(XGroupCreate(stream="s", group="g", start=before))
    beside.server.call("XGROUP", "CREATE", "s", "g", ids.format(before))
    assert [len(one.entries) for one in read(beside).streams] == (
        [ids.ID_MAX - before] if before < ids.ID_MAX else []
    )
    assert not read(beside).streams


def test_bytes_end_a_read_and_leave_the_rest_undelivered(beside: Beside) -> None:
    """One entry is always given."""
    command = XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)], bytes_max=1)
    found = beside.there(lambda given, _: group_scripts.read_group(given), command)
    assert (len(found.streams[0].entries), found.streams[0].more) == (1, True)
    assert beside.server.call("XPENDING", "s", "g")[0] == 1
    read_all = msgspec.structs.replace(command, bytes_max=1 << 20)
    found = beside.there(lambda given, _: group_scripts.read_group(given), read_all)
    assert (len(found.streams[0].entries), found.streams[0].more) == (5, False)


def test_history_is_what_the_consumer_holds(beside: Beside) -> None:
    """Also what is deleted from the stream; each time counts."""
    read(beside, count=3)
    read(beside, cursor=0)
    beside.both(scripts.add, XAdd(stream="s", bodies=[BODY], ids=[ids.make(6, 0)], trim=Trim(maxlen=5)))
    found = read(beside, cursor=0)
    assert [(one.text is None, one.delivery_count) for one in found.streams[0].entries] == [
        (True, 2),
        (True, 2),
        (False, 3),
    ]
    read(beside, cursor=ids.make(5, 1), count=1)


def test_noack_leaves_nothing_pending(beside: Beside) -> None:
    read(beside, noack=True, count=4)
    assert beside.server.call("XPENDING", "s", "g")[0] == 0


def test_what_is_given_back_is_read_first(beside: Beside) -> None:
    """With the deliveries that it had; only what the consumer still holds is given back."""
    read(beside, count=3)
    read(beside, "d", count=1)
    command = GiveBack(stream="s", group="g", consumer="c", ids=ids_of(1, 2, 3, 5))
    assert run(beside, group_scripts.give_back, command) == 2
    assert run(beside, group_scripts.give_back, command) == 0
    missing = GiveBack(stream="s", group="none", consumer="c", ids=ids_of(1))
    assert run(beside, group_scripts.give_back, missing) == 0
    found = read(beside, "e", claim_min_idle_ms=NEVER_MS, count=3)
    assert [one.id for one in found.streams[0].entries] == list(ids_of(1, 2, 4))
    assert [one.delivery_count for one in found.streams[0].entries] == [1, 1, 1]


@pytest.mark.parametrize("claims_own", [True, False])
def test_idle_entries_are_claimed_by_others(beside: Beside, *, claims_own: bool) -> None:
    """And by their own consumer where that is wanted."""
    read(beside, count=2)
    read(beside, "d", count=2)
    found = read(beside, claim_min_idle_ms=0, claims_own=claims_own)
    assert len(found.streams[0].entries) == (6 if claims_own else 4)
    again = read(beside, "d", claim_min_idle_ms=0, claims_own=False, count=1)
    assert again.streams[0].entries[0].delivery_count == (3 if claims_own else 2)


def parts(many: Sequence[int]) -> Iterator[Sequence[int]]:
    """As many as one command of the engine does in a turn."""
    return (many[start : start + 500] for start in range(0, len(many), 500))


def add_many(beside: Beside, number: int) -> list[int]:
    """Entries from 6-0 on, on both sides."""
    given = [ids.make(6, n) for n in range(number)]
    for some in parts(given):
        command = XAdd(stream="s", bodies=[BODY] * len(some), ids=some)
        beside.there(scripts.add, command)
        beside.here(command)
    return given


@pytest.mark.parametrize("removed", [1_000, 1_001])
@pytest.mark.parametrize("way", ["idle", "given back"])
def test_claims_look_behind_entries_that_were_removed(beside: Beside, removed: int, way: str) -> None:
    """They skip a thousand; more are settled, so that later reads do not meet them again."""
    held = [*ids_of(*range(6)), *add_many(beside, removed - 5)]
    assert len(read(beside, "d").streams[0].entries) == removed + 1
    for some in parts(held if way == "given back" else []):
        run(beside, group_scripts.give_back, GiveBack(stream="s", group="g", consumer="d", ids=some))
    run(beside, scripts.trim, XTrim(stream="s", trim=Trim(maxlen=1)))
    found = read(beside, claim_min_idle_ms=0 if way == "idle" else NEVER_MS)
    assert [one.id for one in found.streams[0].entries] == held[-1:]
    left = beside.here(XPending(stream="s", group="g")).count
    assert beside.server.call("XPENDING", "s", "g")[0] == left == (1_001 if removed == 1_000 else 1)


def test_a_claim_looks_at_ten_thousand_at_most(beside: Beside) -> None:
    """What it has settled by then is not in the way of the next one."""
    held = add_many(beside, 10_000)
    command = XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)], claim_min_idle_ms=0)
    call = group_scripts.read_group
    for _ in range(2):
        beside.there(
            lambda given, _: call(given),
            msgspec.structs.replace(command, consumer="d", claim_min_idle_ms=None),
        )
    beside.server.call("XTRIM", "s", "MAXLEN", 1)
    assert beside.there(lambda given, _: call(given), command).streams == []
    found = beside.there(lambda given, _: call(given), command)
    assert [one.id for one in found.streams[0].entries] == held[-1:]


def test_claims_look_behind_the_entries_of_their_own_consumer(beside: Beside) -> None:
    """These are not for it to take."""
    given = add_many(beside, 1_000)
    assert len(read(beside, count=1_005).streams[0].entries) == 1_005
    assert len(read(beside, "d").streams[0].entries) == 1
    found = read(beside, claim_min_idle_ms=0, claims_own=False)
    assert [one.id for one in found.streams[0].entries] == given[-1:]


def test_a_gap_says_how_many_were_lost(beside: Beside) -> None:
    """Behind what the group has read."""
    read(beside, count=1)
    run(beside, scripts.trim, XTrim(stream="s", trim=Trim(maxlen=2)))
    found = read(beside)
    gap = found.streams[0].gap
    assert gap is not None
    assert gap.lost == 3


@pytest.mark.parametrize("stream", ["s", "missing"])
def test_a_missing_group_is_refused(beside: Beside, stream: str) -> None:
    """In Redis's words."""
    command = XReadGroup(group="none", consumer="c", streams=[(stream, Cursor.NEW)])
    there = beside.there(lambda given, _: group_scripts.read_group(given), command)
    here = beside.here(command)
    assert (there.code, there.redis) == (here.code, here.redis)


def test_acknowledging_says_what_was_pending(beside: Beside) -> None:
    """Each once."""
    read(beside, count=3)
    command = Acknowledge(stream="s", group="g", ids=ids_of(0, 1, 1, 5))
    assert list(run(beside, group_scripts.acknowledge, command).ids) == list(ids_of(0, 1))


def test_acknowledging_leaves_what_others_hold(beside: Beside) -> None:
    """An ID that was named before is acknowledged no more, and refused as often as it was named."""
    read(beside, count=3)
    wanted = ids_of(0, 1, 1, 2, 2, 2, 5)
    for holders in (["c", "", "", "x", "x", "c", "c"], ["x", "c", "c", "c", "c", "x", ""]):
        command = Acknowledge(stream="s", group="g", ids=wanted, holders=holders)
        run(beside, group_scripts.acknowledge, command)
