"""A delivery whose reply never left is undone where nothing else has moved its group; else it is one less."""

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ids
from engine.commands.types import Cursor, XReadGroup
from engine.commands.weir_commands import Undo
from engine.read_handle import taking_back
from engine.record import Record
from engine.records.changes import MoveGroup, Own, Release, RemoveConsumer, RemoveGroup, RemoveStream, Settle
from engine.records.payload import decode
from engine.replies import GroupRead
from tests.engine.house import House, everywhere, state
from tests.engine.world import Word, World

Words = Sequence[Word]

IDS: Final = ("1-0", "2-0", "3-0", "4-0", "5-0")
# Given to the reader that leaves.
GIVEN: Final = ("1-0", "2-0")
HELD: Final = [[one, "c"] for one in GIVEN]
GROUP: Final = ("s", "g")

# What comes between the read and its end, and whether it can be undone then.
BETWEEN: Final[dict[str, tuple[list[Words], bool]]] = {
    "nothing": ([], True),
    "an entry": ([("XADD", "s", "6-0", "a", "1")], True),
    "an acknowledgement of another group": ([("XACK", "s", "other", "1-0")], True),
    "an entry deleted": ([("XDEL", "s", "1-0")], True),
    "all trimmed": ([("XTRIM", "s", "MAXLEN", 0)], True),
    "a read of another consumer": (
        [("XREADGROUP", "GROUP", "g", "d", "COUNT", 1, "STREAMS", "s", ">")],
        False,
    ),
    "a read without acknowledgements": (
        [("XREADGROUP", "GROUP", "g", "d", "COUNT", 1, "NOACK", "STREAMS", "s", ">")],
        False,
    ),
    "its history read": ([("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0")], False),
    "one acknowledged": ([("XACK", "s", "g", "2-0")], False),
    "one claimed by another": ([("XCLAIM", "s", "g", "d", 0, "1-0")], False),
    "one claimed, and claimed back": (
        [("XCLAIM", "s", "g", "d", 0, "1-0"), ("XCLAIM", "s", "g", "c", 0, "1-0")],
        False,
    ),
    "one released": ([("XNACK", "s", "g", "SILENT", "IDS", 1, "1-0")], False),
    "the group moved": ([("XGROUP", "SETID", "s", "g", "4-0")], False),
    "the group moved to where it is": (
        [("XGROUP", "SETID", "s", "g", "2-0", "ENTRIESREAD", 2)],
        False,
    ),
    "the group moved there and back": (
        [("XGROUP", "SETID", "s", "g", "4-0"), ("XGROUP", "SETID", "s", "g", "2-0", "ENTRIESREAD", 2)],
        False,
    ),
    "the counters set below what was read": (
        [("XTRIM", "s", "MAXLEN", 0), ("XSETID", "s", "5-0", "ENTRIESADDED", 1)],
        False,
    ),
    "the consumer removed": ([("XGROUP", "DELCONSUMER", "s", "g", "c")], False),
    "the group made again": ([("XGROUP", "DESTROY", "s", "g"), ("XGROUP", "CREATE", "s", "g", 0)], False),
    "no group any more": ([("XGROUP", "DESTROY", "s", "g")], False),
    "no stream any more": ([("DEL", "s")], False),
    "the stream renamed there and back": ([("RENAME", "s", "{s}t"), ("RENAME", "{s}t", "s")], False),
    "the group made again, and read alike": (
        [
            ("XGROUP", "DESTROY", "s", "g"),
            ("XGROUP", "CREATE", "s", "g", 0),
            ("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", ">"),
        ],
        False,
    ),
    "the stream made again, and read alike": (
        [
            ("DEL", "s"),
            *(("XADD", "s", one, "a", "1") for one in IDS),
            ("XGROUP", "CREATE", "s", "g", 0),
            ("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "s", ">"),
        ],
        False,
    ),
}  # fmt: skip
# A server has no mark of them: all that it shows is as the read left it.
UNSEEN: Final = {
    *("the group moved to where it is", "the group moved there and back"),
    *("the counters set below what was read", "the stream renamed there and back"),
}


@pytest.fixture
def world(house: House) -> World:
    """Five entries, a group that has read none of them, and another one that has."""
    for one in IDS:
        house.call("XADD", "s", one, "a", "1")
    for group in ("g", "other"):
        house.call("XGROUP", "CREATE", "s", group, 0, "ENTRIESREAD", 0)
    house.call("XREADGROUP", "GROUP", "other", "o", "STREAMS", "s", ">")
    return house


def _read(world: World, **more: object) -> tuple[XReadGroup, GroupRead]:
    read = {"group": "g", "consumer": "c", "streams": [("s", Cursor.NEW)], "count": 2, **more}
    command = XReadGroup(**read)  # type: ignore[arg-type]
    found = world.execute(command)
    assert found is not None
    assert isinstance(found[0], GroupRead)
    return command, found[0]


def _undo(world: World, command: XReadGroup, reply: GroupRead) -> list[object]:
    """Take all of it back; what each command answers."""
    return [(world.execute(one) or (None,))[0] for one in taking_back(command, reply)]


def _is_own(world: World) -> bool:
    """Whether its clock is moved by hand, and all of its turns are seen."""
    return type(world) is House


def _pending(world: World) -> list[list[object]]:
    """What is pending, nothing where there is no group; a server's idle times are left out."""
    found = world.call("XPENDING", "s", "g", "-", "+", 10)
    rows = found if isinstance(found, list) else []
    return rows if _is_own(world) else [[*row[:2], 0, row[3]] for row in rows]


@everywhere
@pytest.mark.parametrize("between", [*BETWEEN])
def test_only_what_nothing_else_has_touched_is_undone(world: World, between: str) -> None:
    """Else what is as the delivery left it is a delivery less, and everything else stays as it is."""
    commands, is_undone = BETWEEN[between]
    is_undone = is_undone or (between in UNSEEN and not _is_own(world))
    world.call("XGROUP", "CREATECONSUMER", "s", "g", "c")
    unread = world.call("XINFO", "GROUPS", "s")
    read = _read(world)
    # Those that are read alike are so in everything, the time too.
    world.pass_ms(0 if "alike" in between and _is_own(world) else 10)
    for words in commands:
        assert not str(world.call(*words)).startswith("-"), words
    before, groups = _pending(world), world.call("XINFO", "GROUPS", "s")
    assert _undo(world, *read) == [is_undone]
    if _is_own(world):
        assert world.signalled == (["s"] if is_undone else [])
    if is_undone:
        assert _pending(world) == []
        if between == "nothing":
            assert world.call("XINFO", "GROUPS", "s") == unread
    else:
        # Delivered by the read, and not again.
        less = [[*row[:3], 0] if row[:2] in HELD and row[3] == 1 else row for row in before]
        assert _pending(world) == (before if "alike" in between else less)
        assert world.call("XINFO", "GROUPS", "s") == groups
    world.check()
    assert _undo(world, *read) == [False], "once"


def test_what_was_undone_is_read_as_if_never_before(world: World) -> None:
    """By whoever comes next, and after a restart; the log has one frame more."""
    frames = len(world.payloads)
    read = _read(world)
    _undo(world, *read)
    assert [type(one) for one in decode(world.payloads[-1])] == [Settle, MoveGroup]
    assert len(world.payloads) == frames + 2
    world.check()
    _, again = _read(world, consumer="d")
    assert [(ids.format(one.id), one.delivery_count) for one in again.streams[0].entries] == [
        (one, 1) for one in GIVEN
    ]


@everywhere
def test_reads_one_behind_the_other_are_undone_from_the_last(world: World) -> None:
    """As those of a pipeline are."""
    first, second = _read(world), _read(world)
    assert _undo(world, *second) == [True]
    assert _undo(world, *first) == [True]
    assert _pending(world) == []
    first, second = _read(world), _read(world)
    assert _undo(world, *first) == [False], "the second has moved the group"
    assert _undo(world, *second) == [True]


@everywhere
@pytest.mark.parametrize("is_moved", [False, True])
def test_without_acknowledgements_the_group_goes_back_alone(world: World, *, is_moved: bool) -> None:
    """There is nothing to count less."""
    read = _read(world, noack=True)
    if is_moved:
        world.call("XREADGROUP", "GROUP", "g", "d", "COUNT", 1, "STREAMS", "s", ">")
    pending = _pending(world)
    assert _undo(world, *read) == [not is_moved]
    if not is_moved and _is_own(world):
        assert [type(one) for one in decode(world.payloads[-1])] == [MoveGroup]
    assert _pending(world) == pending
    world.check()


@everywhere
def test_claimed_entries_of_the_same_reply_are_released(world: World) -> None:
    """New ones first: who is given the released ones at once must not move the group before."""
    world.call("XREADGROUP", "GROUP", "g", "old", "COUNT", 1, "STREAMS", "s", ">")
    world.pass_ms(10)
    command, reply = _read(world, claim_min_idle_ms=5, count=3)
    assert [one.delivery_count for one in reply.streams[0].entries] == [2, 1, 1]
    kinds = [type(one).__name__ for one in taking_back(command, reply)]
    assert kinds == ["Undo", "GiveBack"]
    assert _undo(world, command, reply) == [True, 1]
    assert _pending(world) == [["1-0", "", -1 if _is_own(world) else 0, 1]]
    world.check()


@everywhere
def test_many_entries_are_undone_too(world: World) -> None:
    """More than one command of a server's script names."""
    for words in (("XTRIM", "s", "MAXLEN", 0), ("XGROUP", "SETID", "s", "g", "5-0")):
        world.call(*words)
    for first in range(10, 2_510, 500):
        world.transaction(*(("XADD", "s", f"{number}-0", "a", "1") for number in range(first, first + 500)))
    read = _read(world, count=2_500)
    assert read[1].streams[0].entries[-1].id == ids.make(2_509, 0)
    assert _undo(world, *read) == [True]
    assert _pending(world) == []


def test_history_is_not_undone(world: World) -> None:
    """It was pending before."""
    _read(world)
    assert not [*taking_back(*_read(world, streams=[("s", 0)]))]


def test_an_entry_that_nobody_saw_does_not_become_a_dead_letter(world: World) -> None:
    """Where one delivery is the most, one that never left is none."""
    world.call("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    read = _read(world)
    world.call("XREADGROUP", "GROUP", "g", "d", "COUNT", 1, "STREAMS", "s", ">")
    _undo(world, *read)
    counts = world.call("XPENDING", "s", "g", "-", "+", 10, "c")
    assert isinstance(counts, list)
    assert [row[3] for row in counts] == [1, 0, 0]


# --- any commands between -----------------------------------------------------------------------------------

_some = st.sampled_from(IDS)
_who = st.sampled_from(["c", "d"])
_group = st.sampled_from(["g", "other"])
_start = st.sampled_from(["0", "2-0"])


def _words(*words: object) -> st.SearchStrategy[Words]:
    """Words, some of them drawn."""
    return st.tuples(*[one if isinstance(one, st.SearchStrategy) else st.just(one) for one in words])


_anything = st.one_of(
    _words("XREADGROUP", "GROUP", _group, _who, "COUNT", 1, "STREAMS", "s", st.sampled_from([">", "0"])),
    _words("XACK", "s", "g", _some),
    _words("XCLAIM", "s", "g", _who, 0, _some),
    _words("XNACK", "s", "g", "FAIL", "IDS", 1, _some),
    _words("XGROUP", "SETID", "s", "g", _some),
    _words("XGROUP", "DESTROY", "s", "g"),
    _words("XGROUP", "CREATE", "s", "g", _start),
    _words("XGROUP", "DELCONSUMER", "s", "g", _who),
    _words("XDEL", "s", _some),
    _words("XADD", "s", "*", "a", "1"),
    _words("XTRIM", "s", "MAXLEN", st.integers(0, 4)),
)


def _touches(record: Record, entry_ids: set[int]) -> bool:
    """Whether a record moves the group, or touches one of the entries in it."""
    if isinstance(record, MoveGroup | RemoveGroup):
        return (record.stream, record.group) == GROUP
    if isinstance(record, RemoveStream):
        return record.stream == "s"
    if isinstance(record, Own | Release | Settle):
        return (record.stream, record.group) == GROUP and bool(entry_ids & set(record.ids))
    return isinstance(record, RemoveConsumer) and record.consumer == "c" and bool(entry_ids)


@given(before=st.lists(_anything, max_size=4), between=st.lists(_anything, max_size=3), noack=st.booleans())
def test_undo_is_as_the_log_says(before: list[Words], between: list[Words], *, noack: bool) -> None:
    """What the log holds between a read and its end decides whether it was undone; and then, nothing being
    between, the state is that from before the read, its consumer apart.
    """
    world = World()
    for one in IDS:
        world.call("XADD", "s", one, "a", "1")
    for group in ("g", "other"):
        world.call("XGROUP", "CREATE", "s", group, 0)
    for words in before:
        world.call(*words)
    if str(world.call("XGROUP", "CREATECONSUMER", "s", "g", "c")).startswith("-"):
        return
    world.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0")
    known = [one for one in state(world.keyspace) if "Consumer" not in type(one).__name__]
    command, reply = _read(world, noack=noack)
    if not reply.streams:
        return
    given_ids = {one.id for one in reply.streams[0].entries}
    frames, moved = len(world.payloads), False
    for words in between:
        moved |= words[:2] == ("XGROUP", "SETID") and not str(world.call("XINFO", "GROUPS", "s")).startswith(
            "-"
        )
        world.call(*words)
    records = [record for payload in world.payloads[frames:] for record in decode(payload)]
    touched = set[int]() if noack else given_ids
    expected = not moved and not any(_touches(record, touched) for record in records)
    assert _undo(world, command, reply) == [expected]
    world.check()
    if not between:
        assert expected
        now = [one for one in state(world.keyspace) if "Consumer" not in type(one).__name__]
        assert now == known


def test_undo_names_a_consumer_and_a_group_that_are_there(world: World) -> None:
    """Otherwise it does nothing."""
    command, reply = _read(world)
    (undo,) = taking_back(command, reply)
    assert isinstance(undo, Undo)
    for wrong in ({"stream": "none"}, {"group": "none"}, {"group": "other"}, {"consumer": "d"}):
        given_wrong = Undo(**{**{name: getattr(undo, name) for name in undo.__struct_fields__}, **wrong})
        before = state(world.keyspace)
        assert world.execute(given_wrong) == (False,)
        assert state(world.keyspace) == before
    assert world.execute(undo) == (True,)
