"""Groups with `max_age_ms`: what is too old when it would be delivered is acknowledged instead.

Knows: turns of the engine, under a clock that is moved by hand.
Must never know: how readers wait, what an operator sees.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from engine import ids
from engine.commands.dead_letters import TURN_LETTERS_MAX
from engine.commands.execution import Blocked, retry_at_ms
from engine.commands.types import Cursor, Trim, XReadGroup, XTrim
from engine.commands.weir_commands import DescribeGroup, EnsureGroup, Undo, UpdateGroup
from engine.replies import Gap, GroupInfo, GroupRead
from tests.engine.asking import reply_to
from tests.engine.conversation import Conversation
from tests.engine.house import House, adding, everywhere

AGE_MS = 300_000
DEAD = "{s}dead"


def times(house: House) -> tuple[int, int, int]:
    """What is too old, just not, and young."""
    just = house.now_ms - AGE_MS + house.margin_ms
    return just - 1 - house.margin_ms, just, house.now_ms - 1


def begin(house: House, *times_ms: int, **policy: object) -> None:
    """A group, and entries of these times."""
    house.run(
        EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy={"max_age_ms": AGE_MS, **policy})
    )
    if times_ms:
        house.run(adding("s", *[f"{time_ms}-0" for time_ms in times_ms]))


def reading(count: int | None = None, **more: Any) -> XReadGroup:
    return XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)], count=count, **more)


def read(house: House, **more: Any) -> Sequence[int]:
    """The times of the entries that a read gives."""
    streams = house.of(GroupRead, reading(**more)).streams
    return [ids.ms_of(entry.id) for stream in streams for entry in stream.entries]


def state_of(house: House) -> tuple[int, object, object]:
    """How many entries are pending, and what the group has read and has still to read."""
    groups: Any = house.call("XINFO", "GROUPS", "s")
    shown = dict(zip(groups[0][::2], groups[0][1::2], strict=True))
    return shown["pending"], shown["entries-read"], shown["lag"]


@everywhere
def test_what_is_too_old_is_passed_over(house: House) -> None:
    """To the millisecond; the group has read it, and it is not pending."""
    old, just, young = times(house)
    begin(house, old - 1, old, just, young)
    assert read(house) == [just, young]
    assert house.turn.expired == [("s", "g", 2)]
    assert state_of(house) == (2, 4, 0)
    assert house.of(GroupInfo, DescribeGroup(stream="s", group="g")).max_age_ms == AGE_MS


def test_an_entry_is_as_old_as_its_id_says(house: House) -> None:
    """One with an ID of 1970 is never delivered, and one of the future always."""
    later = house.now_ms + 1_000_000
    begin(house, 5, later)
    assert read(house) == [later]


def test_a_clock_that_is_set_back_makes_entries_younger(house: House) -> None:
    old, _, young = times(house)
    begin(house, old, young)
    house.now_ms -= 1
    assert read(house) == [old, young]


@everywhere
def test_without_a_limit_and_in_other_groups_everything_is_delivered(house: House) -> None:
    old, *_ = times(house)
    begin(house, old)
    house.call("XGROUP", "CREATE", "s", "other", "0")
    other: Any = house.call("XREADGROUP", "GROUP", "other", "c", "STREAMS", "s", ">")
    assert len(other[0][1]) == 1
    house.run(UpdateGroup(stream="s", group="g", policy={"max_age_ms": None}))
    assert read(house) == [old]


@everywhere
def test_it_becomes_a_dead_letter_where_there_is_a_stream_for_them(house: House) -> None:
    old, _, young = times(house)
    begin(house, old, young, dead_letter_stream=DEAD)
    assert read(house) == [young]
    assert house.turn.dead_lettered == [("s", "g", ids.make(old, 0), "expired")]
    assert house.turn.expired == [("s", "g", 1)]
    assert state_of(house)[0] == 1
    assert house.pairs(DEAD) == [
        [
            *(("a", b"1"), ("weir-source", b"s"), ("weir-id", b"%d-0" % old), ("weir-group", b"g")),
            *(("weir-consumer", b""), ("weir-deliveries", b"0"), ("weir-reason", b"expired")),
        ]
    ]


def test_where_no_dead_letter_can_be_made_it_is_delivered(house: House) -> None:
    old, *_ = times(house)
    begin(house, old, dead_letter_stream=DEAD)
    house.run(adding(DEAD))
    house.call("WEIR.CLOSE", DEAD)
    assert read(house) == [old]
    assert [refused[:3] for refused in house.turn.letters_refused] == [("s", "g", DEAD)]


@everywhere
@pytest.mark.parametrize("letters", [None, DEAD])
def test_what_was_given_back_is_too_old_as_well(house: House, letters: str | None) -> None:
    old, just, _ = times(house)
    begin(house, old, just, dead_letter_stream=letters, max_age_ms=None)
    assert read(house) == [old, just]
    house.call("XNACK", "s", "g", "FAIL", "IDS", "2", f"{old}-0", f"{just}-0")
    house.run(UpdateGroup(stream="s", group="g", policy={"max_age_ms": AGE_MS}))
    assert read(house, claim_min_idle_ms=1 << 40) == [just]
    assert house.turn.expired == [("s", "g", 1)]
    assert state_of(house)[0] == 1
    assert len(house.live(DEAD)) == (letters is not None)


@everywhere
@pytest.mark.parametrize("letters", [None, DEAD])
@pytest.mark.parametrize("way", ["claim", "autoclaim", "claiming read"])
def test_claims_do_not_deliver_it_again(house: House, letters: str | None, way: str) -> None:
    """Its consumer keeps it, extends it and reads it again, whatever its age."""
    old, *_ = times(house)
    begin(house, old, dead_letter_stream=letters, max_age_ms=None)
    read(house)
    house.run(UpdateGroup(stream="s", group="g", policy={"max_age_ms": AGE_MS}))
    assert house.call("XCLAIM", "s", "g", "c", "0", f"{old}-0", "JUSTID") == [f"{old}-0"]
    assert f"{old}-0" in str(house.read("g", "c", "s", "0"))
    taken = {
        "claim": ("XCLAIM", "s", "g", "d", "0", f"{old}-0"),
        "autoclaim": ("XAUTOCLAIM", "s", "g", "d", "0", "0"),
        "claiming read": ("XREADGROUP", "GROUP", "g", "d", "CLAIM", "0", "STREAMS", "s", ">"),
    }
    assert f"{old}-0" not in str(house.call(*taken[way]))
    assert house.turn.expired == [("s", "g", 1)]
    assert state_of(house)[0] == 0
    owners = [dict(letter)["weir-consumer"] for letter in house.pairs(DEAD)]
    assert owners == ([] if letters is None else [b"c"])


@everywhere
def test_a_paused_group_lets_nothing_expire(house: House) -> None:
    begin(house, times(house)[0], paused=True)
    assert read(house, claim_min_idle_ms=0) == []
    assert house.turn.expired == []
    assert (state_of(house)[0], state_of(house)[2]) == (0, 1)


@pytest.mark.parametrize("letters", [None, DEAD])
def test_many_take_several_turns(house: House, letters: str | None) -> None:
    """A read that waits goes on at once, until it has come to what is young."""
    old, _, young = times(house)
    begin(house, dead_letter_stream=letters)
    house.run(adding("s", *[f"{old}-{number}" for number in range(2 * TURN_LETTERS_MAX + 1)], f"{young}-0"))
    blocked = Blocked(reading(block_ms=1_000), ("s",), 1_000)
    for left in (TURN_LETTERS_MAX + 2, 2):
        assert house.run(reading(block_ms=1_000)) is None
        assert sum(count for _, _, count in house.turn.expired) == TURN_LETTERS_MAX
        assert state_of(house)[2] == left
        assert retry_at_ms(house.keyspace, blocked, house.now_ms) == house.now_ms
    assert read(house, block_ms=1_000) == [young]
    assert retry_at_ms(house.keyspace, blocked, house.now_ms) is None


def test_a_read_that_does_not_wait_says_that_there_is_more(house: House) -> None:
    old, _, young = times(house)
    begin(house)
    house.run(adding("s", *[f"{old}-{number}" for number in range(TURN_LETTERS_MAX)], f"{young}-0"))
    house.run(adding("s", f"{young}-1"))
    assert read(house, count=1) == [young]
    house.call("XGROUP", "SETID", "s", "g", "0")
    house.now_ms += 2 * AGE_MS
    assert house.of(GroupRead, reading()).unfinished == ["s"]


@everywhere
def test_undoing_a_delivery_does_not_bring_it_back(house: House) -> None:
    old, _, young = times(house)
    begin(house, old, young, dead_letter_stream=DEAD)
    (given,) = house.of(GroupRead, reading()).streams
    assert given.mark is not None
    undo = Undo(stream="s", group="g", consumer="c", ids=[ids.make(young, 0)], mark=given.mark)
    assert house.run(undo) is True
    assert read(house) == [young]
    assert len(house.live(DEAD)) == 1


@everywhere
def test_a_gap_before_what_is_too_old_comes_with_what_is_young(house: House) -> None:
    *_, young = times(house)
    begin(house)
    house.run(adding("s", "5-0", "5-1", "5-2", f"{young}-0"))
    house.run(UpdateGroup(stream="s", group="g", start=ids.make(5, 0)))
    house.run(XTrim(stream="s", trim=Trim(maxlen=2)))
    (delivered,) = house.of(GroupRead, reading()).streams
    assert delivered.gap == Gap(ids.make(5, 0), ids.make(5, 2), None)
    assert [entry.id for entry in delivered.entries] == [ids.make(young, 0)]


async def test_a_reader_that_waits_gets_what_is_young_behind_many_that_are_old() -> None:
    async with Conversation() as talk:
        now_ms = talk.clock.wall_ms()
        await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        for number in range(2_500):
            await talk.call("XADD", "s", f"1-{number}", "a", "1")
        await talk.call("XADD", "s", f"{now_ms}-0", "a", "1")
        await reply_to(talk.engine, UpdateGroup(stream="s", group="g", policy={"max_age_ms": AGE_MS}))
        reply: Any = await talk.call("XREADGROUP", "GROUP", "g", "c", "BLOCK", "60000", "STREAMS", "s", ">")
        assert [entry[0] for entry in reply[0][1]] == [f"{now_ms}-0"]
