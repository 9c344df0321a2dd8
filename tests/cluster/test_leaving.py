"""Clients that leave while their group's read waits, over a server as the engine."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from engine.cluster import group_scripts
from engine.commands.base import Command
from engine.commands.types import Cursor, XReadGroup
from engine.commands.weir_commands import GiveBack, Undo
from engine.read_handle import taking_back
from engine.replies import GroupRead
from tests.app.leaving import DOORS, House
from tests.cluster.beside import Beside
from tests.cluster.servers import BackendServer
from tests.server import Server

ROUNDS: Final = 8
IDS: Final = ("1-0", "2-0", "3-0", "4-0", "5-0")
Words = Sequence[str | int]

# What comes between a read and its end, and whether it can be undone then.
BETWEEN: Final[dict[str, tuple[list[Words], bool]]] = {
    "nothing": ([], True),
    "an entry": ([("XADD", "s", "6-0", "a", "1")], True),
    "an entry deleted": ([("XDEL", "s", "1-0")], True),
    "a read of another consumer": (
        [("XREADGROUP", "GROUP", "g", "d", "COUNT", 1, "STREAMS", "s", ">")],
        False,
    ),
    "its history read": ([("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0")], False),
    "one acknowledged": ([("XACK", "s", "g", "2-0")], False),
    "one claimed by another": ([("XCLAIM", "s", "g", "d", 0, "1-0")], False),
    "the group moved": ([("XGROUP", "SETID", "s", "g", "4-0")], False),
    "the consumer removed": ([("XGROUP", "DELCONSUMER", "s", "g", "c")], False),
    "the group made again": ([("XGROUP", "DESTROY", "s", "g"), ("XGROUP", "CREATE", "s", "g", 0)], False),
    "no group any more": ([("XGROUP", "DESTROY", "s", "g")], False),
    "no stream any more": ([("DEL", "s")], False),
}


@pytest.fixture
def beside(server: BackendServer) -> Beside:
    server.call("FLUSHALL")
    beside = Beside(server)
    for one in IDS:
        server.call("XADD", "s", one, "a", "1")
    server.call("XGROUP", "CREATE", "s", "g", "0", "ENTRIESREAD", 0)
    return beside


def _there(beside: Beside, command: Command) -> Any:
    makes: dict[type[Command], Any] = {
        XReadGroup: group_scripts.read_group,
        Undo: group_scripts.undo,
        GiveBack: group_scripts.give_back,
    }
    return beside.there(lambda given, _: makes[type(command)](given), command)


def _read(beside: Beside, **more: Any) -> tuple[XReadGroup, GroupRead]:
    read = {"group": "g", "consumer": "c", "streams": [("s", Cursor.NEW)], "count": 2, **more}
    command = XReadGroup(**read)
    reply = _there(beside, command)
    assert isinstance(reply, GroupRead)
    return command, reply


def _state(beside: Beside) -> tuple[Any, Any]:
    """Pending entries without idle times, and where the group is."""
    if not beside.server.call("EXISTS", "s"):
        return None, None
    groups = beside.server.call("XINFO", "GROUPS", "s")
    rows = beside.server.call("XPENDING", "s", "g", "-", "+", 10) if groups else []
    where = [dict(zip(one[::2], one[1::2], strict=True)) for one in groups]
    at = [(one[b"last-delivered-id"], one[b"entries-read"]) for one in where]
    return [(row[0], row[1], row[3]) for row in rows], at


@pytest.mark.parametrize("between", [*BETWEEN])
def test_only_what_nothing_else_has_touched_is_undone(beside: Beside, between: str) -> None:
    """Else what is as the delivery left it is a delivery less, and everything else stays as it is."""
    commands, is_undone = BETWEEN[between]
    unread = _state(beside)
    command, reply = _read(beside)
    given = {b"1-0", b"2-0"}
    for words in commands:
        beside.server.call(*words)
    pending, where = _state(beside)
    assert [_there(beside, one) for one in taking_back(command, reply)] == [is_undone]
    if is_undone:
        assert _state(beside) == unread
    else:
        again = between == "its history read"
        less = pending and [
            (one, who, count - (one in given and who == b"c" and not again)) for one, who, count in pending
        ]
        assert _state(beside) == (less, where)


@pytest.mark.parametrize("is_moved", [False, True])
def test_without_acknowledgements_the_group_goes_back_alone(beside: Beside, *, is_moved: bool) -> None:
    unread = _state(beside)
    command, reply = _read(beside, noack=True)
    if is_moved:
        beside.server.call("XREADGROUP", "GROUP", "g", "d", "COUNT", 1, "STREAMS", "s", ">")
    before = _state(beside)
    assert [_there(beside, one) for one in taking_back(command, reply)] == [not is_moved]
    assert _state(beside) == (before if is_moved else unread)


def test_claimed_entries_of_the_same_reply_are_released(beside: Beside) -> None:
    beside.server.call("XREADGROUP", "GROUP", "g", "old", "COUNT", 1, "STREAMS", "s", ">")
    command, reply = _read(beside, claim_min_idle_ms=0, count=3)
    assert [one.delivery_count for one in reply.streams[0].entries] == [2, 1, 1]
    assert [_there(beside, one) for one in taking_back(command, reply)] == [True, 1]
    pending, where = _state(beside)
    assert (pending, where) == ([(b"1-0", b"weir:released", 1)], [(b"1-0", 1)])


def test_many_entries_are_undone_too(beside: Beside) -> None:
    """More than one command of a script names."""
    beside.server.call("XTRIM", "s", "MAXLEN", 0)
    for number in range(2_500):
        beside.server.call("XADD", "s", f"{number + 10}-0", "a", "1")
    before = _state(beside)
    command, reply = _read(beside, count=2_500)
    assert len(reply.streams[0].entries) == 2_500
    assert [_there(beside, one) for one in taking_back(command, reply)] == [True]
    assert _state(beside)[0] == before[0] == []


@pytest.mark.parametrize("door", DOORS)
def test_no_entry_is_lost_to_a_client_that_has_left(server: BackendServer, tmp_path: Path, door: str) -> None:
    """Each is new to the next consumer, as if nobody had waited before."""
    server.call("FLUSHALL")
    with (
        Server(tmp_path / "data", "--backend", server.url, "--set", "log_requests=none") as gateway,
        closing(House(gateway.port)) as house,
    ):
        assert house.lost(door, ROUNDS) == 0
