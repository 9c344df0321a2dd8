"""What one command may cost: frames stay below the log's reserve, walks end, answers have a budget.

Knows: the limits of reads and claims, and what stays as it was beyond them.
Must never know: APIs.
"""

from typing import Any

import pytest

from engine import entries
from engine.commands import turn, types
from engine.commands.base import Command
from engine.commands.dead_letters import TURN_LETTERS_BYTES_MAX
from engine.commands.execution import READ_STREAMS_MAX, Blocked, is_ready
from engine.commands.turn import TURN_LOOKUPS_MAX
from engine.commands.weir_commands import Acknowledge
from engine.log.log import RESERVE_BYTES
from engine.records.changes import Own, Release, Remove, Settle
from engine.replies import (
    AcknowledgedIds,
    AutoClaimed,
    Claimed,
    Deletions,
    GroupRead,
    Outcomes,
    PendingSummary,
    StreamsRead,
    Trimmed,
)
from tests.engine.house import House, id_of

ONE = id_of("1-0")
BODY = entries.body([("a", "1")])


def filled(house: House, count: int, stream: str = "s") -> list[int]:
    """A stream of this number of entries with a group that has read nothing; their IDs."""
    house.run(types.XGroupCreate(stream=stream, group="g", start=0, mkstream=True))
    for start in range(0, count, 10_000):
        house.run(types.XAdd(stream=stream, bodies=[BODY] * min(10_000, count - start)))
    return list(house.keyspace.keys[stream].stream.live_ids())


def reading(
    *streams: str, consumer: str = "c", cursor: int | types.Cursor = types.Cursor.NEW, **more: Any
) -> types.XReadGroup:
    wanted = [(stream, cursor) for stream in streams or ("s",)]
    return types.XReadGroup(group="g", consumer=consumer, streams=wanted, **more)


def given(house: House, command: types.XReadGroup) -> list[int]:
    """How many entries each stream of the answer has."""
    reply = house.run(command)
    assert isinstance(reply, GroupRead)
    return [len(one.entries) for one in reply.streams]


def test_a_read_without_count_stops_below_the_reserve(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest stays undelivered, for the next read; so with the history, and what is taken over."""
    assert turn.TURN_FRAME_BYTES_MAX + TURN_LETTERS_BYTES_MAX < RESERVE_BYTES
    most = 400
    monkeypatch.setattr(turn, "TURN_FRAME_BYTES_MAX", most * turn.ID_FRAME_BYTES)
    filled(house, most + 100)
    assert given(house, reading()) == [most]
    assert len(house.payloads[-1]) < turn.TURN_FRAME_BYTES_MAX
    assert given(house, reading()) == [100]
    assert given(house, reading(cursor=0)) == [most]
    assert given(house, reading(consumer="d", claim_min_idle_ms=0)) == [most]


def test_a_claiming_read_settles_what_is_gone_where_it_is_much(house: House) -> None:
    """Else every read would walk it again; a few are passed over, as in Redis."""
    found = filled(house, 5_000)
    given(house, reading())
    house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=1)))
    given(house, reading(consumer="d", claim_min_idle_ms=0))
    given(house, reading(consumer="d", claim_min_idle_ms=0))
    assert given(house, reading(consumer="d", claim_min_idle_ms=0)) == [1]
    left = house.run(types.XPending(stream="s", group="g"))
    assert isinstance(left, PendingSummary)
    assert left.count == 1_000, "those passed over, with the one that is there"
    assert left.last_id == found[-1]


def test_a_blocked_claim_is_ready_when_there_is_something_for_it(house: House) -> None:
    """An entry that another has taken is nothing, until it has been idle for long enough."""
    filled(house, 0)
    waiting = reading(consumer="d", claim_min_idle_ms=1_000, block_ms=60_000)
    assert house.run(waiting) is None
    blocked = Blocked(waiting, ("s",), 60_000)
    house.run(types.XAdd(stream="s", bodies=[BODY]))
    assert is_ready(house.keyspace, blocked, house.now_ms)
    given(house, reading())
    assert not is_ready(house.keyspace, blocked, house.now_ms + 999)
    assert is_ready(house.keyspace, blocked, house.now_ms + 1_000)


def test_one_budget_of_bytes_is_for_all_streams(house: House) -> None:
    """What is taken over and what is new count together, stream after stream; the first always fits."""
    size = len(entries.encode(1 << 64, BODY))
    for stream in ("s", "t"):
        filled(house, 0, stream)
        house.run(types.XAdd(stream=stream, bodies=[BODY] * 4, ids=[n << 64 for n in range(1, 5)]))
    both = types.XRead(streams=[("s", 0), ("t", 0)], bytes_max=6 * size)
    reply = house.run(both)
    assert isinstance(reply, StreamsRead)
    assert next(one.entries.count for one in reply.streams) == 4
    assert sum(one.entries.count for one in reply.streams) <= 6
    assert given(house, reading("s", "t", bytes_max=6 * size)) == [4, 2]
    assert given(house, reading("s", "t", cursor=0, bytes_max=5 * size)) == [4, 1]
    again = reading("s", "t", consumer="d", claim_min_idle_ms=0, bytes_max=5 * size)
    assert given(house, again) == [4, 1]
    assert given(house, reading("s", "t", cursor=0, consumer="d", bytes_max=1)) == [1]


def test_many_ids_are_one_record(house: House) -> None:
    """The names of stream, group and consumer stand in the log once, not for each ID; in any order."""
    found = filled(house, TURN_LOOKUPS_MAX)
    back = found[::-1]

    def kinds() -> list[type]:
        return [
            type(record) for record in house.turn.records if type(record) in {Own, Release, Remove, Settle}
        ]

    claim = types.Claim(ids=back, min_idle_ms=0, force=True)
    claimed = house.run(types.XClaim(stream="s", group="g", consumer="c", claim=claim))
    assert isinstance(claimed, Claimed)
    assert [one.id for one in claimed.entries] == back
    assert kinds() == [Own]
    house.run(types.XNack(stream="s", group="g", nack=types.Nack(ids=back, mode=types.NackMode.FAIL)))
    assert kinds() == [Release]
    assert isinstance(house.run(types.XAckDel(stream="s", group="g", ids=back[:250])), Deletions)
    assert kinds() == [Settle, Remove]
    house.run(types.XDelEx(stream="s", ids=back[250:]))
    assert kinds() == [Remove]


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_ids_that_are_looked_for_are_as_many_as_a_turn_may_look_up(house: House, beyond: int) -> None:
    """At the limit, one below and one above; a transaction shares it, and acknowledging is not concerned."""
    named = filled(house, TURN_LOOKUPS_MAX + beyond)
    given(house, reading())
    commands: list[Command] = [
        types.XNack(stream="s", group="g", nack=types.Nack(ids=named, mode=types.NackMode.FAIL)),
        types.XClaim(stream="s", group="g", consumer="c", claim=types.Claim(ids=named, min_idle_ms=0)),
        types.XDelEx(stream="s", ids=named),
    ]
    for command in commands:
        if beyond > 0:
            assert f"room for {TURN_LOOKUPS_MAX}" in house.refused(command).redis
        else:
            house.run(command)
    assert house.run(types.XAck(stream="s", group="g", ids=named)) == len(named)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_autoclaim_and_history_end_at_what_a_turn_looks_up(house: House, beyond: int) -> None:
    """COUNT is a maximum: the cursor leads on, none is left out."""
    found = filled(house, TURN_LOOKUPS_MAX + beyond)
    given(house, reading())
    claim = types.XAutoClaim(stream="s", group="g", consumer="d", min_idle_ms=0, start=0, count=10_000)
    claimed = house.of(AutoClaimed, claim)
    assert [one.id for one in claimed.entries] == found[:TURN_LOOKUPS_MAX]
    assert claimed.next_start == (found[-1] if beyond > 0 else 0)
    history = given(house, reading(consumer="d", cursor=0))
    assert history == [min(len(found), TURN_LOOKUPS_MAX)]


def test_an_id_named_twice_counts_twice(house: House) -> None:
    """As if the command had been sent once for each."""
    house.run(types.XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    house.run(types.XAdd(stream="s", bodies=[BODY], ids=[ONE]))
    claim = types.Claim(ids=[ONE, ONE], min_idle_ms=0, force=True)
    claimed = house.run(types.XClaim(stream="s", group="g", consumer="c", claim=claim))
    assert isinstance(claimed, Claimed)
    assert [one.delivery_count for one in claimed.entries] == [2, 3]
    nack = types.Nack(ids=[ONE, ONE], mode=types.NackMode.SILENT)
    assert house.run(types.XNack(stream="s", group="g", nack=nack)) == Outcomes([ONE, ONE], [])
    taken = house.run(
        types.XAutoClaim(stream="s", group="g", consumer="c", min_idle_ms=0, start=0, count=10, just_ids=True)
    )
    assert isinstance(taken, AutoClaimed)
    assert [one.delivery_count for one in taken.entries] == [1]
    assert house.run(types.XAckDel(stream="s", group="g", ids=[ONE, ONE])) == Deletions([1, -1])


def test_an_acknowledgement_says_which_were_pending_each_once(house: House) -> None:
    first, second, third = (id_of(words) for words in ("5-0", "5-1", "5-2"))
    nothing = Acknowledge(stream="s", group="g", ids=[first])
    assert house.run(nothing) == AcknowledgedIds([]), "no stream"
    house.run(types.XAdd(stream="s", bodies=[BODY] * 3, ids=[first, second, third]))
    assert house.run(nothing) == AcknowledgedIds([]), "no group"
    house.run(types.XGroupCreate(stream="s", group="g", start=0))
    house.run(types.XReadGroup(group="g", consumer="c", count=2, streams=[("s", types.Cursor.NEW)]))
    mixed = Acknowledge(stream="s", group="g", ids=[third, second, second, first])
    assert house.run(mixed) == AcknowledgedIds([first, second])
    assert house.turn.records == [Settle("s", "g", [first, second])]
    assert house.run(mixed) == AcknowledgedIds([])
    assert not house.turn.records


def test_autoclaim_looks_at_so_many_and_leads_on(house: House) -> None:
    """Its cursor is where the next one starts."""
    found = filled(house, 10_100)
    assert given(house, reading()) + given(house, reading()) == [10_000, 100]
    asked = types.XAutoClaim(stream="s", group="g", consumer="d", min_idle_ms=1_000, start=0, count=20_000)
    reply = house.run(asked)
    assert isinstance(reply, AutoClaimed)
    assert (reply.next_start, len(reply.entries)) == (found[5_000], 0)


def test_a_turn_has_room_for_so_many_ids(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that names more is refused, and has changed nothing; so is a read of too many streams."""
    monkeypatch.setattr(turn, "TURN_FRAME_BYTES_MAX", 10 * turn.ID_FRAME_BYTES)
    found = filled(house, 11)
    for refused in (
        types.XClaim(
            stream="s", group="g", consumer="c", claim=types.Claim(ids=found, min_idle_ms=0, force=True)
        ),
        types.XNack(stream="s", group="g", nack=types.Nack(ids=found, mode=types.NackMode.FAIL, force=True)),
        types.XDelEx(stream="s", ids=found),
        types.XAckDel(stream="s", group="g", ids=found),
        types.XRead(streams=[("s", 0)] * 1_001),
    ):
        assert house.refused(refused).code == "invalid"
    assert house.run(types.XDelEx(stream="s", ids=found[:10])) == Deletions([1] * 10)


def test_references_count_where_they_go_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four groups that hold each entry: deleting two is ten IDs in the log. Nothing is deleted where these
    have no room.
    """
    monkeypatch.setattr(turn, "TURN_FRAME_BYTES_MAX", 12 * turn.ID_FRAME_BYTES)
    found = filled(house, 6)
    for group in ("h", "i", "j"):
        house.run(types.XGroupCreate(stream="s", group=group, start=0))
    for group in ("g", "h", "i", "j"):
        house.run(types.XReadGroup(group=group, consumer="c", streams=[("s", types.Cursor.NEW)]))
    many = types.XDelEx(stream="s", ids=found[:3], refs=types.Refs.DELETE)
    assert house.refused(many).code == "invalid"
    acked = types.XAckDel(stream="s", group="g", ids=found[:3], refs=types.Refs.DELETE)
    assert house.refused(acked).code == "invalid"
    few = types.XDelEx(stream="s", ids=found[1::-1], refs=types.Refs.DELETE)
    assert house.run(few) == Deletions([1, 1])
    for group in ("g", "h", "i", "j"):
        left = house.run(types.XPending(stream="s", group=group))
        assert isinstance(left, PendingSummary)
        assert (left.count, left.first_id) == (4, found[2])


def test_a_trim_that_takes_references_goes_on_with_the_next(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the lowest as far as the turn has room, and says how many; one at least."""
    monkeypatch.setattr(turn, "TURN_FRAME_BYTES_MAX", 12 * turn.ID_FRAME_BYTES)
    filled(house, 10)
    house.run(types.XReadGroup(group="g", consumer="c", streams=[("s", types.Cursor.NEW)]))
    removed = []
    while house.key("s").stream.length:
        reply = house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=0, refs=types.Refs.DELETE)))
        assert isinstance(reply, Trimmed)
        removed.append(reply.deleted)
    assert removed == [6, 4]
    assert not house.key("s").groups["g"].pending


def test_a_read_tells_that_there_is_more(house: House) -> None:
    """For each reason that ended it: its count, or the bytes, or that another stream took them all."""
    for stream in ("s", "t"):
        filled(house, 3, stream)

    def read(command: types.XReadGroup) -> tuple[list[bool], list[str]]:
        reply = house.run(command)
        assert isinstance(reply, GroupRead)
        return [one.more for one in reply.streams], list(reply.unfinished)

    plain = house.run(types.XRead(streams=[("s", 0), ("t", 0)], bytes_max=1))
    assert isinstance(plain, StreamsRead)
    assert ([one.stream for one in plain.streams], plain.unfinished) == (["s"], ["t"])
    assert read(reading("s", "t", bytes_max=1)) == ([True], ["t"])
    assert read(reading("s", "t", count=2)) == ([False, True], [])
    assert read(reading("s", "t")) == ([False], [])
    assert read(reading("s", "t", cursor=0, count=2)) == ([True, True], [])
    assert read(reading("s", "t", cursor=0, count=3)) == ([False, False], [])
    assert read(reading("s", "t", cursor=0, bytes_max=1)) == ([True], ["t"])
    assert read(reading("s", "t", consumer="d", claim_min_idle_ms=0, count=3)) == ([False, False], [])
    assert read(reading("s", "t", consumer="d", claim_min_idle_ms=0, count=2)) == ([True, True], [])
    assert read(reading("s", "t", consumer="d", claim_min_idle_ms=0, bytes_max=1)) == ([True], ["t"])


def test_claims_stop_at_so_many_bytes(house: House) -> None:
    """What does not fit stays with whom it was; one entry always fits."""
    found = filled(house, 3)
    given(house, reading())
    size = len(entries.encode(found[0], BODY))
    claim = types.Claim(ids=found, min_idle_ms=0)
    for bytes_max, most in ((1, 1), (2 * size, 2), (3 * size, 3)):
        claimed = house.run(
            types.XClaim(stream="s", group="g", consumer="d", claim=claim, bytes_max=bytes_max)
        )
        assert isinstance(claimed, Claimed)
        assert (len(claimed.entries), claimed.more) == (most, most < 3)
        asked = types.XAutoClaim(
            stream="s", group="g", consumer="e", min_idle_ms=0, start=0, bytes_max=bytes_max
        )
        taken = house.run(asked)
        assert isinstance(taken, AutoClaimed)
        assert (len(taken.entries), taken.next_start) == (most, 0 if most == 3 else found[most])


def test_names_count_as_ids_do(house: House) -> None:
    """A read of many streams with long names logs them for each: it stops below the reserve all the same."""
    names = [f"{number:04}" + "s" * 508 for number in range(READ_STREAMS_MAX)]
    for name in names:
        house.run(types.XGroupCreate(stream=name, group="g", start=0, mkstream=True))
        house.run(types.XAdd(stream=name, bodies=[BODY]))
    asked = reading(*names, consumer="c" * 512)
    reply = house.run(asked)
    assert isinstance(reply, GroupRead)
    assert len(reply.streams) + len(reply.unfinished) == READ_STREAMS_MAX
    assert reply.unfinished
    assert len(house.payloads[-1]) < turn.TURN_FRAME_BYTES_MAX + (1 << 20)
