"""Groups that are ordered by key: one entry of a key at a time, or some, and never behind another key.

Knows: turns of the engine, under a clock that is moved by hand.
Must never know: how readers wait, what an operator sees.
"""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from engine import entries, ids
from engine.commands import types, weir_commands
from engine.commands.execution import Blocked, retry_at_ms
from engine.commands.ordering import _READ_AT_ONCE_MAX
from engine.commands.turn import TURN_SCANNED_MAX
from engine.commands.weir_commands import IN_FLIGHT_PER_KEY_MAX, ORDERED_BY_BYTES_MAX
from engine.parts.ordering import ORDERED_WAITING_MAX
from engine.read_handle import taking_back
from engine.replies import GroupFacts, GroupInfo, GroupRead
from engine.why import explain
from tests.engine.asking import reply_to
from tests.engine.conversation import Conversation
from tests.engine.house import House

GROUP: Final = ("s", "g")


@pytest.fixture
def house() -> House:
    return begin()


def begin(**policy: Any) -> House:
    """A stream and a group that is ordered by the field `user`."""
    house = House()
    given = {"ordered_by": "user", **policy}
    house.run(weir_commands.EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=given))
    return house


def add(house: House, keys: Sequence[str | bytes | None], first: int = 1) -> None:
    """Entries `first`-0 and so on with these keys; None for one without."""
    bodies = [entries.body([("n", "1")] + ([] if key is None else [("user", key)])) for key in keys]
    added = [ids.make(number, 0) for number in range(first, first + len(keys))]
    house.run(types.XAdd(stream="s", bodies=bodies, ids=added))


def reading(count: int | None = None, consumer: str = "c", **more: Any) -> types.XReadGroup:
    streams = [("s", types.Cursor.NEW)]
    return types.XReadGroup(group="g", consumer=consumer, streams=streams, count=count, **more)


def reply_of(house: House, command: types.XReadGroup) -> GroupRead:
    return house.of(GroupRead, command)


def read(house: House, *args: Any, **more: Any) -> list[int]:
    """The numbers of the entries that a read gives."""
    streams = reply_of(house, reading(*args, **more)).streams
    return [ids.ms_of(entry.id) for stream in streams for entry in stream.entries]


def ack(house: House, *numbers: int) -> None:
    house.run(types.XAck(stream="s", group="g", ids=[ids.make(number, 0) for number in numbers]))


def nack(house: House, *numbers: int, **more: Any) -> None:
    named = [ids.make(number, 0) for number in numbers]
    house.run(
        types.XNack(stream="s", group="g", nack=types.Nack(ids=named, mode=types.NackMode.FAIL, **more))
    )


def described(house: House) -> GroupInfo:
    return house.of(GroupInfo, weir_commands.DescribeGroup(stream="s", group="g"))


def state_of(house: House) -> tuple[int, int, int | None]:
    """What is pending, what was passed over, and the lag."""
    info = described(house)
    return info.pending, info.passed_over, info.lag


# --- what is given


def test_one_entry_of_a_key_is_in_flight_and_other_keys_go_on(house: House) -> None:
    add(house, "aabac")
    assert read(house) == [1, 3, 5]
    assert state_of(house) == (3, 2, 2)
    assert read(house) == []
    ack(house, 3)
    assert read(house) == []
    ack(house, 1)
    assert read(house, consumer="d") == [2]
    ack(house, 2, 5)
    assert read(house) == [4]
    house.check()


def test_as_many_of_a_key_are_in_flight_as_is_set() -> None:
    house = begin(in_flight_per_key=2)
    add(house, "aaaab")
    assert read(house) == [1, 2, 5]
    ack(house, 2)
    assert read(house) == [3]
    ack(house, 1, 3)
    assert state_of(house) == (1, 1, 1)
    assert read(house) == [4]
    house.check()


def test_an_entry_without_the_field_has_a_key_of_its_own(house: House) -> None:
    """And so has each; an empty value is a value."""
    add(house, [None, None, "", ""])
    assert read(house) == [1, 2, 3]


def test_of_a_star_all_entries_have_one_key() -> None:
    """With any fields: the whole group goes one after the other."""
    house = begin(ordered_by="*")
    add(house, ["a", None, b"\xff"])
    for number in (1, 2, 3):
        assert (read(house), read(house, consumer="d")) == ([number], [])
        ack(house, number)
    house.check()


def test_a_key_is_the_value_whatever_its_form(house: House) -> None:
    """As text and as bytes, and of a field that occurs twice the last value; a long one too."""
    long = "x" * 5_000
    add(house, ["a", b"\xff", "a", b"\xff", long, long + "y", long])
    named = types.XAdd(stream="s", bodies=[entries.body([("user", "b"), ("user", "a"), ("z", b"\xfe")])])
    house.run(named)
    assert read(house) == [1, 2, 5, 6]
    for number, following in ((2, 4), (5, 7), (1, 3)):
        ack(house, number)
        assert read(house) == [following]
    ack(house, 3)
    assert len(read(house)) == 1


def test_a_count_and_a_size_bound_what_is_given_and_not_what_is_passed_over(house: House) -> None:
    add(house, "aabcd")
    assert read(house, 2) == [1, 3]
    assert state_of(house) == (2, 1, 3)
    assert read(house, bytes_max=1) == [4]
    reply = reply_of(house, reading(1))
    assert ([ids.ms_of(one.id) for one in reply.streams[0].entries], reply.streams[0].more) == ([5], False)


def test_what_was_passed_over_comes_before_what_is_new(house: House) -> None:
    add(house, "ab")
    assert read(house) == [1, 2]
    add(house, "abab", first=3)
    assert read(house) == []
    ack(house, 1, 2)
    add(house, "c", first=7)
    reply = reply_of(house, reading(2))
    assert [ids.ms_of(one.id) for one in reply.streams[0].entries] == [3, 4]
    assert reply.streams[0].more
    assert read(house) == [7]


def test_a_group_without_an_order_beside_it_gives_everything(house: House) -> None:
    house.run(types.XGroupCreate(stream="s", group="other", start=0))
    add(house, "aaa")
    streams = [("s", types.Cursor.NEW)]
    other = house.of(GroupRead, types.XReadGroup(group="other", consumer="c", streams=streams))
    assert len(other.streams[0].entries) == 3
    assert read(house) == [1]


# --- failing, dead letters


def test_a_head_that_was_given_back_holds_its_key_until_somebody_claims_it(house: House) -> None:
    """A plain read takes no released entries."""
    add(house, "aab")
    read(house)
    nack(house, 1)
    assert read(house) == []
    assert read(house, claim_min_idle_ms=1 << 40) == [1]
    ack(house, 1)
    assert read(house) == [2]


def test_a_deferred_head_holds_its_key_and_no_other(house: House) -> None:
    add(house, "aabb")
    assert read(house) == [1, 3]
    nack(house, 1, delay_ms=100)
    ack(house, 3)
    assert read(house) == [4]
    ack(house, 4)
    house.pass_ms(100)
    assert read(house) == []
    house.run(weir_commands.ReleaseDeferred())
    assert read(house, claim_min_idle_ms=1 << 40) == [1]
    house.check()


def test_a_dead_letter_lets_its_key_go_on() -> None:
    """Both in the read that buries it, for the next one, and by what time brings."""
    house = begin(dead_letter_stream="dead", max_deliveries=1, ack_timeout_ms=10)
    add(house, "aaa")
    assert read(house) == [1]
    nack(house, 1)
    assert read(house, claim_min_idle_ms=0) == []
    assert read(house, claim_min_idle_ms=0) == [2]
    house.pass_ms(10)
    house.keep_house()
    assert read(house) == [3]
    assert house.key("dead").stream.length == 2
    house.check()


def test_dead_letters_may_come_to_the_stream_itself() -> None:
    house = begin(dead_letter_stream="s", max_deliveries=1)
    add(house, "aab")
    assert read(house) == [1, 3]
    nack(house, 1)
    assert read(house, claim_min_idle_ms=1 << 40) == [2]
    assert state_of(house) == (2, 1, 1)
    ack(house, 2)
    assert len(read(house)) == 1
    house.check()


def test_what_waits_gets_too_old() -> None:
    house = begin(max_age_ms=1_000, dead_letter_stream="dead")
    now_ms = house.now_ms
    add(house, "aaab", first=now_ms)
    assert read(house) == [now_ms, now_ms + 3]
    house.pass_ms(1_002)
    ack(house, now_ms)
    assert read(house) == []
    assert read(house) == [now_ms + 2]
    assert [one[2:] for one in house.turn.dead_lettered] == []
    assert house.pairs("dead")[0][0] == ("n", b"1")
    assert state_of(house) == (2, 0, 0)
    house.check()


def test_a_deleted_head_holds_its_key_until_it_is_settled(house: House) -> None:
    add(house, "aab")
    read(house)
    house.run(types.XDel(stream="s", ids=[ids.make(1, 0)]))
    assert read(house) == []
    ack(house, 1)
    assert read(house) == [2]
    house.check()


@pytest.mark.parametrize(
    "removing",
    [
        types.XDel(stream="s", ids=[ids.make(2, 0), ids.make(3, 0)]),
        types.XDelEx(stream="s", ids=[ids.make(2, 0), ids.make(3, 0)]),
        types.XTrim(stream="s", trim=types.Trim(minid=ids.make(4, 0))),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_is_removed_from_the_stream_waits_no_more(house: House, removing: Any) -> None:
    add(house, "aaaab")
    read(house)
    before = house.key("s").footprint.bytes
    house.run(removing)
    assert state_of(house)[1] == 1
    assert house.key("s").footprint.bytes < before
    ack(house, 1)
    assert read(house) == [4]
    house.check()


# --- claims


def test_a_claim_by_id_takes_nothing_that_waits_but_by_force(house: House) -> None:
    """By force it makes the key busy, whether or not the group has read that far."""
    add(house, "abab")
    house.run(types.XGroupSetId(stream="s", group="g", start=0))
    assert read(house, 1) == [1]
    taking: Any = {"stream": "s", "group": "g", "consumer": "d"}
    for number, is_read in ((3, False), (2, False)):
        claim = types.Claim(ids=[ids.make(number, 0)], min_idle_ms=0)
        house.run(types.XClaim(**taking, claim=claim))
        assert ids.make(number, 0) not in house.key("s").groups["g"].pending
        forced = types.Claim(ids=[ids.make(number, 0)], min_idle_ms=0, force=True)
        house.run(types.XClaim(**taking, claim=forced))
        assert (ids.make(number, 0) in house.key("s").groups["g"].pending) is not is_read
    assert read(house) == []
    assert state_of(house)[:2] == (3, 1)
    ack(house, 2)
    assert read(house) == [4]
    ack(house, 1)
    add(house, "a", first=5)
    assert read(house) == []
    ack(house, 3)
    assert read(house) == [5]
    house.check()


def test_a_forced_release_holds_its_key(house: House) -> None:
    add(house, "aa")
    nack(house, 2, force=True)
    assert read(house) == []
    assert read(house, claim_min_idle_ms=0) == [2]
    ack(house, 2)
    assert read(house) == [1]
    house.check()


def test_claims_take_over_what_is_in_flight_and_nothing_else(house: House) -> None:
    add(house, "aab")
    read(house)
    house.pass_ms(100)
    claimed: Any = house.call("XAUTOCLAIM", "s", "g", "d", "50", "0")
    named: Any = house.call("XCLAIM", "s", "g", "d", "0", "1-0", "2-0", "3-0")
    assert [one[0] for one in claimed[1]] == [one[0] for one in named] == ["1-0", "3-0"]
    assert read(house, consumer="e", claim_min_idle_ms=0) == [1, 3]
    assert state_of(house) == (2, 1, 1)
    house.check()


# --- undoing, moving


def test_a_delivery_that_never_left_waits_again_in_its_place(house: House) -> None:
    """Its own key, or none; what the group did meanwhile changes neither."""
    add(house, ["a", "a", None, "b"])
    command = reading()
    reply = reply_of(house, command)
    add(house, "c", first=5)
    assert read(house, consumer="d") == [5]
    for undo in taking_back(command, reply):
        assert house.run(undo) is True
    assert state_of(house) == (1, 4, 4)
    house.check()
    house.rewrite()
    assert read(house) == [1, 3, 4]
    ack(house, 1)
    assert read(house) == [2]


def test_what_was_taken_back_and_deleted_before_is_forgotten(house: House) -> None:
    add(house, "ab")
    command = reading(1)
    reply = reply_of(house, command)
    house.run(types.XDel(stream="s", ids=[ids.make(1, 0)]))
    for undo in taking_back(command, reply):
        house.run(undo)
    assert read(house) == [2]
    assert state_of(house) == (1, 0, 0)
    assert house.keyspace.keys["s"].groups["g"].passed_over.first() is None


@pytest.mark.parametrize("by", ["XGROUP SETID", "UpdateGroup"])
def test_another_position_drops_what_was_passed_over(house: House, by: str) -> None:
    """What is pending stays, and holds its key."""
    add(house, "aab")
    read(house)
    start = ids.make(1, 0)
    if by == "UpdateGroup":
        house.run(weir_commands.UpdateGroup(stream="s", group="g", start=start))
    else:
        house.run(types.XGroupSetId(stream="s", group="g", start=start))
    assert described(house).passed_over == 0
    assert read(house) == []
    ack(house, 1, 3)
    assert read(house) == [2]
    house.check()


def test_what_waits_is_kept_by_the_retention_and_by_references(house: House) -> None:
    add(house, "aab")
    read(house)
    ack(house, 3)
    keep = weir_commands.UpdateStream(stream="s", retention={"max_len": 0, "keep_unacknowledged": True})
    ack(house, 1)
    house.run(keep)
    house.keep_house()
    assert house.live("s") == ["2-0", "3-0"]
    acked = types.Trim(maxlen=0, refs=types.Refs.ACKED)
    house.run(types.XTrim(stream="s", trim=acked))
    assert house.live("s") == ["2-0"]
    assert house.call("XDELEX", "s", "ACKED", "IDS", "1", "2-0") == [2]
    assert read(house) == [2]


def test_a_closed_stream_ends_once_nothing_waits(house: House) -> None:
    add(house, "aa")
    house.call("WEIR.CLOSE", "s")
    assert read(house) == [1]
    assert reply_of(house, reading()).closed == ()
    ack(house, 1)
    assert read(house) == [2]
    assert [end.drained for end in reply_of(house, reading()).closed] == [False]
    ack(house, 2)
    assert [end.drained for end in reply_of(house, reading()).closed] == [True]


# --- settings


@pytest.mark.parametrize("in_flight", [1, IN_FLIGHT_PER_KEY_MAX])
@pytest.mark.parametrize("field", ["u", "ü" * (ORDERED_BY_BYTES_MAX // 2)])
def test_an_order_is_set_and_taken_back(field: str, in_flight: int) -> None:
    house = begin(ordered_by=field, in_flight_per_key=in_flight)
    info = described(house)
    assert (info.ordered_by, info.in_flight_per_key) == (field, in_flight)
    house.run(weir_commands.UpdateGroup(stream="s", group="g", policy={"ordered_by": None}))
    info = described(house)
    assert (info.ordered_by, info.in_flight_per_key) == (None, 1)
    assert house.key("s").groups["g"].parts == ()


@pytest.mark.parametrize(
    "policy",
    [
        {"ordered_by": ""},
        {"ordered_by": "ü" * (ORDERED_BY_BYTES_MAX // 2) + "u"},
        {"ordered_by": "u", "in_flight_per_key": 0},
        {"ordered_by": "u", "in_flight_per_key": IN_FLIGHT_PER_KEY_MAX + 1},
        {"in_flight_per_key": 2},
    ],
)
def test_an_order_that_cannot_be_is_refused_for_a_new_group_and_an_old_one(policy: Any) -> None:
    house = House()
    made = weir_commands.EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy)
    assert house.refused(made).code == "invalid"
    house.run(types.XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    changed = weir_commands.UpdateGroup(stream="s", group="g", policy=policy)
    assert house.refused(changed).code == "invalid"


def test_the_order_changes_only_while_nothing_is_pending_nor_waits(house: House) -> None:
    add(house, "aa")
    read(house)
    for policy in ({"ordered_by": None}, {"ordered_by": "other"}, {"in_flight_per_key": 2}):
        changed = weir_commands.UpdateGroup(stream="s", group="g", policy=policy)
        refusal = house.refused(changed)
        assert (refusal.code, refusal.members["pending"]) == ("group_has_pending", 1)
    same = {"ordered_by": "user", "in_flight_per_key": 1, "max_deliveries": 3}
    house.run(weir_commands.UpdateGroup(stream="s", group="g", policy=same))
    ack(house, 1)
    changed = weir_commands.UpdateGroup(stream="s", group="g", policy={"ordered_by": None})
    assert "1 wait" in house.refused(changed).detail
    house.run(types.XGroupSetId(stream="s", group="g", start=ids.make(2, 0)))
    house.run(changed)
    assert described(house).ordered_by is None


def test_a_group_with_pending_entries_gets_no_order() -> None:
    house = House()
    house.run(types.XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    add(house, "a")
    read(house)
    changed = weir_commands.UpdateGroup(stream="s", group="g", policy={"ordered_by": "user"})
    assert house.refused(changed).code == "group_has_pending"


def test_reading_without_acknowledgements_is_refused(house: House) -> None:
    add(house, "a")
    assert "acknowledged" in house.refused(reading(noack=True)).detail


# --- how much waits


def test_reading_stops_where_as_many_wait_as_may(house: House) -> None:
    """And says why, and goes on with the first one that has gone, or was deleted."""
    add(house, ["hot"] * (ORDERED_WAITING_MAX + 3) + ["idle"])
    assert read(house) == [1]
    for _ in range(ORDERED_WAITING_MAX // _READ_AT_ONCE_MAX):
        assert read(house) == []
    assert state_of(house) == (1, ORDERED_WAITING_MAX, ORDERED_WAITING_MAX + 3)
    facts = house.of(GroupFacts, weir_commands.ExamineGroup(stream="s", group="g"))
    assert "reads nothing new" in str(explain(facts, *GROUP, None))
    blocked = Blocked(reading(block_ms=10), ("s",), 10)
    at_ms = retry_at_ms(house.keyspace, blocked, house.now_ms)
    assert at_ms is not None
    assert at_ms > house.now_ms
    ack(house, 1)
    assert read(house) == [2]
    house.run(types.XDel(stream="s", ids=[ids.make(5, 0)]))
    assert retry_at_ms(house.keyspace, blocked, house.now_ms) == house.now_ms
    assert read(house) == [ORDERED_WAITING_MAX + 4]
    house.check()


def test_a_turn_walks_over_a_bounded_number_of_entries(house: House) -> None:
    """The read that waits goes on at once."""
    add(house, ["hot"] * (TURN_SCANNED_MAX + 1) + ["idle"])
    assert read(house) == [1]
    passed = state_of(house)[1]
    assert 0 < passed <= TURN_SCANNED_MAX // 4 + _READ_AT_ONCE_MAX
    blocked = Blocked(reading(block_ms=10), ("s",), 10)
    assert retry_at_ms(house.keyspace, blocked, house.now_ms) == house.now_ms
    ack(house, 1)
    assert read(house) == [2]
    assert passed < state_of(house)[1] <= ORDERED_WAITING_MAX


def test_a_turn_reads_a_bounded_number_of_bytes(house: House) -> None:
    body = entries.body([("user", "hot"), ("n", "x" * (1 << 20))])
    for _ in range(12):
        house.run(types.XAdd(stream="s", bodies=[body]))
    assert len(read(house)) == 1
    assert 0 < state_of(house)[1] < 11
    assert read(house) == read(house) == []
    assert state_of(house)[1] == 11


# --- waiting


async def test_a_reader_that_waits_gets_what_becomes_free() -> None:
    """By an acknowledgement, a dead letter, a consumer that is removed."""
    async with Conversation() as talk:
        await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        policy = {"ordered_by": "user", "dead_letter_stream": "dead"}
        await reply_to(talk.engine, weir_commands.UpdateGroup(stream="s", group="g", policy=policy))
        for _ in range(4):
            await talk.call("XADD", "s", "*", "user", "a")
        first: Any = await talk.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
        for step in ("ack", "dead letter", "consumer"):
            waiting = await talk.begin("XREADGROUP", "GROUP", "g", "d", "BLOCK", "60000", "STREAMS", "s", ">")
            assert not waiting.done(), step
            (entry_id, _), *_ = first[0][1]
            if step == "ack":
                await talk.call("XACK", "s", "g", entry_id)
            elif step == "dead letter":
                named = weir_commands.DeadLetterEntries(
                    stream="s", group="g", ids=[ids.parse(entry_id) or 0], reason="bad"
                )
                await reply_to(talk.engine, named)
            else:
                await talk.call("XGROUP", "DELCONSUMER", "s", "g", "d")
            first = await waiting
