"""Entries that are scheduled: each is appended at its time, once, whatever happens meanwhile.

Knows: turns of the engine, and the real engine on a modelled disk, under a clock that is moved by hand.
Must never know: how it notices that a time has come.
"""

from typing import Any, Final

import msgspec
import pytest

from engine import Engine, EngineError, entries
from engine.commands import schedule_commands
from engine.commands.durable_commands import CreateDurable
from engine.commands.schedule_commands import Pause
from engine.commands.scheduling import LATER_MAX, TURN_FIRED_MAX
from engine.commands.types import Copy, FlushAll, IdempotencyKey, ListStreams, Rename, XAdd
from engine.commands.weir_commands import Close, EnsureStream
from engine.ids import SEQUENCE_MAX
from engine.keyspace import Caps, Keyspace
from engine.parts.schedules import ScheduleIndex, StreamSchedules
from engine.recurrence import AHEAD_MS_MAX, NEVER_MS, Rule
from engine.replies import AddedScheduled, Listing, ScheduleInfo, SchedulePage, ScheduleSet
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_to
from tests.engine.conversation import Conversation, talk_of
from tests.engine.house import House, adding, everywhere
from tests.engine.images import image
from tests.engine.running import keyspace_of

HOUR_MS: Final = 3_600_000


talk = talk_of(fsync="always")


def body(value: str = "1") -> bytes:
    return entries.body([("n", value)])


def setting(
    name: str, *, stream: str = "s", value: str = "1", only_new: bool = False, **rule: Any
) -> schedule_commands.SetSchedule:
    return schedule_commands.SetSchedule(
        stream=stream,
        schedule=schedule_commands.NewSchedule(name, body(value), Rule(**rule)),
        only_new=only_new,
    )


def later(*names: str, in_ms: int = 100, **more: Any) -> schedule_commands.AddScheduled:
    each = [schedule_commands.NewSchedule(name, body(name), Rule(in_ms=in_ms)) for name in names]
    return schedule_commands.AddScheduled(stream="s", later=each, **more)


def fire(house: House, ms: int = 0) -> list[str]:
    """What is appended once this time has passed."""
    before = len(house.pairs("s"))
    house.wait_ms(ms)
    return [value.decode() for pairs in house.pairs("s")[before:] for _, value in pairs]


def names(house: House, **more: Any) -> list[str]:
    return [
        one.name
        for one in house.of(SchedulePage, schedule_commands.ListSchedules(stream="s", **more)).schedules
    ]


# --- one entry --------------------------------------------------------------------------------------------


def test_an_entry_for_later_is_in_no_read_until_its_time(house: House) -> None:
    reply = house.of(AddedScheduled, later("a"))
    assert reply.scheduled == [("a", house.now_ms + 100)]
    assert house.live("s") == []
    assert fire(house, 99) == []
    assert fire(house, 1) == ["a"]
    # Its ID is of the time when it was appended.
    assert house.live("s") == [f"{house.now_ms}-0"]
    assert names(house) == []
    assert fire(house, HOUR_MS) == []


def test_what_is_due_together_is_appended_in_the_order_of_times_and_then_of_scheduling(house: House) -> None:
    house.run(later("c", in_ms=200))
    house.run(later("b", "a", in_ms=100))
    assert fire(house, 200) == ["b", "a", "c"]


def test_a_time_that_is_over_is_due_at_once(house: House) -> None:
    house.run(setting("a", at_ms=house.now_ms - HOUR_MS))
    assert fire(house) == ["1"]


def test_the_same_definition_keeps_its_next_time(house: House) -> None:
    """As a program does that sets its schedules whenever it is started."""
    first = house.of(ScheduleSet, setting("a", every_ms=1_000))
    assert (first.created, first.changed) == (True, True)
    house.pass_ms(999)
    again = house.of(ScheduleSet, setting("a", every_ms=1_000))
    assert (again.created, again.changed, again.schedule) == (False, False, first.schedule)
    assert not house.turn.records
    other = house.of(ScheduleSet, setting("a", every_ms=2_000))
    assert (other.created, other.changed) == (False, True)
    assert other.schedule.at_ms == house.now_ms + 2_000
    assert house.of(ScheduleSet, setting("a", every_ms=2_000, value="2")).changed
    assert names(house) == ["a"]


def test_a_thousand_recurring_ones_set_ten_times_are_a_thousand(house: House) -> None:
    for _ in range(10):
        for number in range(1_000):
            house.run(setting(f"job-{number}", every_ms=60_000))
        house.pass_ms(1_000)
    assert ScheduleIndex.of(house.keyspace).count == 1_000
    assert len(fire(house, 50_000)) == 1_000


def test_a_one_shot_set_again_keeps_its_time_too(house: House) -> None:
    at_ms = house.of(ScheduleSet, setting("a", in_ms=1_000)).schedule.at_ms
    house.pass_ms(500)
    assert house.of(ScheduleSet, setting("a", in_ms=1_000)).schedule.at_ms == at_ms
    assert not house.of(ScheduleSet, setting("b", at_ms=at_ms)).schedule.rule.recurs
    assert not house.of(ScheduleSet, setting("b", at_ms=at_ms)).changed
    assert house.of(ScheduleSet, setting("b", at_ms=at_ms + 1)).changed


def test_one_that_exists_refuses_a_new_one_where_only_that_is_wanted(house: House) -> None:
    house.run(setting("a", in_ms=1_000, only_new=True))
    assert house.refused(setting("a", in_ms=1_000, only_new=True)).code == "schedule_exists"


# --- again and again --------------------------------------------------------------------------------------


def test_what_recurs_is_one_run_for_all_that_was_missed(house: House) -> None:
    house.run(setting("a", every_ms=1_000))
    assert [len(fire(house, ms)) for ms in (999, 1, 999, 1, 60_500, 500)] == [0, 1, 0, 1, 1, 1]


def test_what_is_skipped_waits_for_the_next_time(house: House) -> None:
    house.run(setting("a", every_ms=60_000, missed="skip"))
    assert [len(fire(house, ms)) for ms in (60_000, 75_000, 45_000)] == [1, 0, 1]


def test_a_one_shot_that_expired_is_gone(house: House) -> None:
    house.run(setting("a", in_ms=1_000, expires_in_ms=500))
    assert fire(house, 1_501) == []
    assert names(house) == []


def test_runs_are_counted(house: House) -> None:
    house.run(setting("a", every_ms=1_000, count=2))
    assert len(fire(house, 1_000)) == 1
    assert house.of(ScheduleInfo, schedule_commands.DescribeSchedule(stream="s", name="a")).left == 1
    house.restart()
    assert len(fire(house, 1_000)) == 1
    assert names(house) == []


def test_one_fired_by_hand_keeps_its_next_time_if_it_recurs(house: House) -> None:
    at_ms = house.of(ScheduleSet, setting("a", every_ms=1_000)).schedule.at_ms
    house.run(setting("b", in_ms=1_000, value="2"))
    for name in "ab":
        house.run(schedule_commands.FireSchedule(stream="s", name=name))
    assert house.pairs("s") == [[("n", b"1")], [("n", b"2")]]
    assert house.of(ScheduleInfo, schedule_commands.DescribeSchedule(stream="s", name="a")).at_ms == at_ms
    assert house.refused(schedule_commands.FireSchedule(stream="s", name="b")).code == "no_schedule"


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_clock_that_is_set_back_and_forth_loses_nothing_and_repeats_nothing(
    house: House, jump_ms: int
) -> None:
    for number in range(100):
        house.run(later(f"{number}", in_ms=60_000 * (number + 1)))
    house.run(setting("tick", every_ms=60_000, value="tick"))
    got: list[str] = []
    for minute in range(240):
        got += fire(house, 60_000)
        if minute in {20, 50}:
            house.pass_ms(jump_ms if minute == 20 else -jump_ms)
    ran = [one for one in got if one != "tick"]
    assert sorted(ran, key=int) == [str(number) for number in range(100)]
    assert len(got) - len(ran) <= 240


# --- cancel ------------------------------------------------------------------------------------------------


def test_one_that_is_cancelled_is_not_appended(house: House) -> None:
    house.run(later("a", "b"))
    assert house.run(schedule_commands.CancelSchedule(stream="s", name="a")) is True
    assert fire(house, 100) == ["b"]
    for name in "ab":
        assert house.refused(schedule_commands.CancelSchedule(stream="s", name=name)).code == "no_schedule"
    assert house.refused(schedule_commands.CancelSchedule(stream="missing", name="a")).code == "no_stream"


def test_cancel_and_publish_are_one_frame(house: House) -> None:
    house.run(later("timeout"))
    frames = len(house.payloads)
    paid = schedule_commands.AddScheduled(stream="s", add=adding("s"), cancel="timeout", cancel_required=True)
    assert house.of(AddedScheduled, paid).cancelled
    assert len(house.payloads) == frames + 1
    assert house.refused(paid).code == "schedule_gone"
    assert len(house.live("s")) == 1
    anyway = house.of(
        AddedScheduled, schedule_commands.AddScheduled(stream="s", add=adding("s"), cancel="timeout")
    )
    assert not anyway.cancelled
    assert len(house.live("s")) == 2


def test_a_repeated_publication_that_cancels_is_answered_as_the_first_time(house: House) -> None:
    house.run(later("timeout"))
    add = XAdd(stream="s", bodies=[body()], idempotency=IdempotencyKey("k", b"d"))
    paid = schedule_commands.AddScheduled(stream="s", add=add, cancel="timeout", cancel_required=True)
    first, again = house.of(AddedScheduled, paid), house.of(AddedScheduled, paid)
    assert first.added is not None
    assert again.added is not None
    assert (again.added.ids, again.added.duplicate) == (tuple(first.added.ids), True)


def test_what_recurs_takes_another_right(house: House) -> None:
    house.run(setting("a", every_ms=1_000))
    for command in (
        schedule_commands.SetSchedule(
            stream="s",
            schedule=schedule_commands.NewSchedule("b", body(), Rule(every_ms=1_000)),
            recurring=False,
        ),
        schedule_commands.SetSchedule(
            stream="s", schedule=schedule_commands.NewSchedule("a", body(), Rule(in_ms=1)), recurring=False
        ),
        schedule_commands.CancelSchedule(stream="s", name="a", recurring=False),
        schedule_commands.FireSchedule(stream="s", name="a", recurring=False),
        schedule_commands.AddScheduled(stream="s", add=adding("s"), cancel="a", recurring=False),
        later("a", recurring=False),
    ):
        assert house.refused(command).code == "forbidden"
    house.run(later("b", recurring=False))
    house.run(schedule_commands.CancelSchedule(stream="s", name="b", recurring=False))


def test_a_publication_says_what_recurred_of_that_it_has_ended(house: House) -> None:
    for name in ("a", "b", "c"):
        house.run(setting(name, every_ms=1_000))
    assert house.of(AddedScheduled, later("b", "d", cancel="a")).recurring == ["a", "b"]
    assert house.of(AddedScheduled, later("b", "d", cancel="a")).recurring == []
    assert house.of(AddedScheduled, later("c", cancel="c")).recurring == ["c"]


# --- pages -------------------------------------------------------------------------------------------------


def test_pages_go_by_time_and_by_name(house: House) -> None:
    for name, ms in (("d", 100), ("b", 300), ("c", 100), ("a", 200)):
        house.run(later(name, in_ms=ms))
    now = house.now_ms
    assert names(house) == ["c", "d", "a", "b"]
    assert names(house, after=(now + 100, "c")) == ["d", "a", "b"]
    assert names(house, after=(now + 100, "d"), limit=1) == ["a"]
    assert names(house, before_ms=now + 200) == ["c", "d"]
    assert names(house, by_name=True) == ["a", "b", "c", "d"]
    assert names(house, by_name=True, after=(0, "a"), before="d") == ["b", "c"]
    pages = [
        house.of(SchedulePage, schedule_commands.ListSchedules(stream="s", limit=limit)).more
        for limit in (3, 4)
    ]
    assert pages == [True, False]


@everywhere
def test_pages_go_on_in_the_midst_of_one_time(house: House) -> None:
    """By the bytes of names, though the one before has run by then."""
    wanted = sorted([f"n{n}" for n in range(20)] + ["Ä", "Z", "a", "ä", "\U0001f600"])
    at_ms = house.now_ms + 60_000
    for name in wanted:
        house.run(setting(name, at_ms=at_ms))
    house.run(setting("before", at_ms=at_ms - 1))
    house.run(setting("behind", at_ms=at_ms + 1))
    found: list[str] = []
    after = (0, "")
    while page := names(house, after=after, limit=3):
        found += page
        if found[-1] in wanted:
            house.run(schedule_commands.CancelSchedule(stream="s", name=found[-1]))
        after = (at_ms + {"before": -1, "behind": 1}.get(found[-1], 0), found[-1])
    assert found == ["before", *wanted, "behind"]
    assert names(house, before_ms=at_ms) == ["before"]
    assert names(house, by_name=True, after=(0, "b"), before="beg") == ["before"]


def test_pages_of_many_with_one_time_go_by_name(house: House) -> None:
    """As of few, while they come, move and are cancelled; they are appended in the order of scheduling."""
    order = [f"n{number * 7919 % 3_000:04}" for number in range(3_000)]
    for first in range(0, 3_000, 500):
        house.run(later(*order[first : first + 500]))
    gone, moved = set(order[::3]), set(order[1::30])
    for name in gone:
        house.run(schedule_commands.CancelSchedule(stream="s", name=name))
    house.run(later(*moved, in_ms=50))
    house.keyspace.check()
    left = sorted(set(order) - gone - moved)
    at_ms, found = house.now_ms + 100, list[str]()
    while page := names(house, after=(at_ms, found[-1] if found else ""), limit=700):
        found += page
    assert found == left
    assert fire(house, 100) == [*moved, *(name for name in order if name in left)]
    house.keyspace.check()


# --- the stream -------------------------------------------------------------------------------------------


# --- pauses


def pausing(name: str, *, until_ms: int | None = None, on: bool = True) -> schedule_commands.PauseSchedule:
    return schedule_commands.PauseSchedule(stream="s", name=name, pause=Pause(on, until_ms))


def paused(house: House, name: str) -> ScheduleInfo:
    found = house.run(schedule_commands.DescribeSchedule(stream="s", name=name))
    assert isinstance(found, ScheduleInfo)
    return found


def test_what_is_paused_does_not_run_until_it_is_resumed(house: House) -> None:
    """What recurs goes on in its own rhythm and makes up for nothing; a single entry comes at once."""
    start_ms = house.now_ms
    house.run(setting("tick", value="tick", every_ms=1_000))
    house.run(setting("once", value="once", in_ms=1_000))
    for name in ("tick", "once"):
        house.run(pausing(name))
        assert paused(house, name).at_ms == NEVER_MS
    assert fire(house, 5_500) == []
    house.rewrite()
    house.run(Rename(stream="s", target="t"))
    house.run(Rename(stream="t", target="s"))
    assert fire(house, 1) == []
    for name in ("tick", "once"):
        house.run(pausing(name, on=False))
    assert paused(house, "tick").at_ms == start_ms + 6_000
    assert fire(house) == ["once"]
    assert fire(house, start_ms + 6_000 - house.now_ms) == ["tick"]
    house.check()


def test_a_pause_until_a_time_ends_by_itself(house: House) -> None:
    """It may be repeated, moved, and lifted before; behind its first run nothing is left of it."""
    start_ms = house.now_ms
    house.run(setting("tick", every_ms=1_000))
    house.run(setting("once", value="once", in_ms=500))
    for until_ms in (start_ms + 9_000, start_ms + 2_500):
        for name in ("tick", "once"):
            house.run(pausing(name, until_ms=until_ms))
    again = house.run(pausing("tick", until_ms=start_ms + 2_500))
    assert isinstance(again, ScheduleSet)
    assert (again.changed, again.schedule.at_ms) == (False, start_ms + 3_000)
    assert again.schedule.rule.is_paused(start_ms + 2_499)
    assert not again.schedule.rule.is_paused(start_ms + 2_500)
    assert fire(house, 2_499) == []
    assert fire(house, 1) == ["once"]
    assert fire(house, 500) == ["1"]
    assert paused(house, "tick").rule == Rule(every_ms=1_000)
    house.run(pausing("tick", until_ms=house.now_ms + 5_000))
    house.run(pausing("tick", on=False))
    assert paused(house, "tick").at_ms == start_ms + 4_000
    house.check()


def test_a_program_that_sets_a_schedule_again_does_not_lift_its_pause(house: House) -> None:
    """Neither by the same definition nor by another one; saying so does."""
    house.run(setting("a", every_ms=1_000))
    house.run(pausing("a"))
    for every_ms in (1_000, 2_000):
        house.run(setting("a", every_ms=every_ms))
        assert (paused(house, "a").at_ms, paused(house, "a").rule.every_ms) == (NEVER_MS, every_ms)
    house.run(msgspec.structs.replace(setting("a", every_ms=2_000), pause=Pause(on=False)))
    assert paused(house, "a").at_ms == house.now_ms + 2_000
    house.run(msgspec.structs.replace(setting("b", in_ms=1), pause=Pause()))
    assert fire(house, 10) == []
    house.run(later("b", in_ms=1))
    assert fire(house, 10) == ["b"]


def test_what_is_paused_is_fired_by_hand_and_stays_paused(house: House) -> None:
    house.run(setting("a", every_ms=1_000, count=2))
    house.run(pausing("a"))
    house.run(schedule_commands.FireSchedule(stream="s", name="a"))
    assert (paused(house, "a").left, paused(house, "a").at_ms) == (1, NEVER_MS)
    assert len(house.live("s")) == 1


def test_a_pause_that_cannot_be_changes_nothing(house: House) -> None:
    """One that has passed, one too far ahead, one behind the last run; and what recurs takes its right."""
    end_ms = house.now_ms + 10_000
    house.run(setting("a", every_ms=1_000, until_ms=end_ms))
    for until_ms in (house.now_ms, house.now_ms + AHEAD_MS_MAX + 1, end_ms):
        assert house.refused(pausing("a", until_ms=until_ms)).code == "invalid"
    refused = house.refused(msgspec.structs.replace(pausing("a"), recurring=False))
    assert (refused.code, paused(house, "a").rule.held_ms) == ("forbidden", None)
    assert house.refused(pausing("b")).code == "no_schedule"
    house.run(pausing("a"))
    house.pass_ms(10_000)
    assert house.refused(pausing("a", on=False)).detail == (
        "until: no run is left behind the pause: cancel it instead"
    )


# --- their stream


@everywhere
def test_streams_with_schedules_are_listed_in_order(house: House) -> None:
    """As long as they have any, of a prefix, under the names that they have, and until they expire."""
    for stream in ("a", "b", "c", "d", "a*"):
        house.run(setting("x", stream=stream, in_ms=60_000))
    house.run(adding("e"))
    listed = ListStreams(scheduled=True)
    assert house.of(Listing, listed).names == ["a", "a*", "b", "c", "d"]
    house.run(schedule_commands.CancelSchedule(stream="b", name="x"))
    house.run(Rename(stream="c", target="{c}z"))
    house.call("PEXPIRE", "a", 10)
    assert house.of(Listing, msgspec.structs.replace(listed, limit=1)) == Listing(["a"], "a")
    assert house.of(Listing, msgspec.structs.replace(listed, prefix="a*")).names == ["a*"]
    assert house.of(Listing, msgspec.structs.replace(listed, after="a", limit=1)).names == ["a*"]
    house.wait_ms(10)
    assert house.of(Listing, listed).names == ["a*", "d", "{c}z"]
    house.rewrite()
    assert house.of(Listing, listed).names == ["a*", "d", "{c}z"]
    for name in ("d", "{c}z"):
        house.run(schedule_commands.CancelSchedule(stream=name, name="x"))
    assert house.of(Listing, listed).names == ["a*"]


@everywhere
def test_they_follow_a_rename_and_no_copy(house: House) -> None:
    """Which takes those away that its target had."""
    house.run(setting("a", in_ms=300))
    house.run(setting("old", stream="{s}copied", in_ms=60_000))
    house.run(Copy(stream="s", target="{s}copied", replace=True))
    house.run(Rename(stream="s", target="{s}t"))
    listed = [
        [one.name for one in house.of(SchedulePage, schedule_commands.ListSchedules(stream=name)).schedules]
        for name in ("{s}t", "{s}copied")
    ]
    assert listed == [["a"], []]
    house.wait_ms(300)
    assert [len(house.pairs(name)) for name in ("{s}t", "{s}copied")] == [1, 0]


@pytest.mark.parametrize("words", [("DEL", "s"), ("FLUSHALL",), ("PEXPIRE", "s", "50")])
def test_they_go_with_their_stream(house: House, words: tuple[str, ...]) -> None:
    house.run(later("a", "b"))
    house.call(*words)
    house.pass_ms(100)
    house.run(schedule_commands.FireDueSchedules())
    assert "s" not in house.keyspace.keys
    house.run(EnsureStream(stream="s"))
    assert (fire(house, 100), ScheduleIndex.of(house.keyspace).count) == ([], 0)
    house.keyspace.check()


def test_a_stream_is_closed_only_without_them(house: House) -> None:
    house.run(later("a"))
    assert house.refused(Close(stream="s")).code == "has_schedules"
    house.run(Close(stream="s", drops_schedules=True))
    assert (fire(house, 100), ScheduleIndex.of(house.keyspace).count) == ([], 0)
    assert house.refused(later("b")).code == "stream_closed"
    house.keyspace.check()


def test_a_stream_of_durable_streams_takes_only_what_its_readers_can_read(house: House) -> None:
    house.run(CreateDurable(stream="s", media="text/plain"))
    assert house.refused(later("a")).code == "invalid"
    data = schedule_commands.NewSchedule("a", entries.data_body(b"1"), Rule(in_ms=100))
    house.run(schedule_commands.AddScheduled(stream="s", later=[data]))
    assert fire(house, 100) == ["1"]


def test_a_restart_and_a_rewrite_keep_everything(house: House) -> None:
    house.run(later("b", "a", in_ms=100))
    house.run(setting("tick", every_ms=1_000, count=5, value="tick"))
    before = image(house.keyspace)
    for go_on in (house.restart, house.rewrite, house.restart):
        go_on()
        assert image(house.keyspace) == before
        house.keyspace.check()
    assert fire(house, 1_000) == ["b", "a", "tick"]


def test_limits_are_named() -> None:
    house = House()
    house.keyspace = Keyspace(caps=Caps(schedules_max=3, stream_schedules_max=2))
    house.run(later("a", "b"))
    assert house.refused(later("c")).members == {"limit": "stream_schedules_max"}
    house.run(later("a"))
    house.run(setting("a", stream="t", in_ms=1))
    assert house.refused(setting("b", stream="t", in_ms=1)).members == {"limit": "schedules_max"}


@pytest.mark.parametrize("name", ["", "x" * 513])
def test_a_name_has_a_length(house: House, name: str) -> None:
    assert house.refused(later(name)).code == "invalid"
    assert house.refused(later("a", "a")).code == "invalid"


# --- turns ------------------------------------------------------------------------------------------------


def test_many_that_are_due_at_once_take_several_turns(house: House) -> None:
    count = 2 * TURN_FIRED_MAX + 1
    for first in (0, LATER_MAX):
        house.run(later(*map(str, range(first, min(count, first + LATER_MAX)))))
    assert house.refused(later(*map(str, range(LATER_MAX + 1)))).code == "invalid"
    house.pass_ms(100)
    turns = [house.run(schedule_commands.FireDueSchedules()) for _ in range(3)]
    assert turns == [True, True, False]
    assert [value for pairs in house.pairs("s") for _, value in pairs] == [b"%d" % n for n in range(count)]


def test_a_turn_ends_by_its_bytes_and_by_the_clock(house: House) -> None:
    big = entries.body([("n", "x" * (1 << 20))])
    for name in "abcdef":
        house.run(
            schedule_commands.AddScheduled(
                stream="s", later=[schedule_commands.NewSchedule(name, big, Rule(in_ms=1))]
            )
        )
    house.pass_ms(1)
    assert house.run(schedule_commands.FireDueSchedules()) is True
    assert len(house.live("s")) == 4
    assert house.run(schedule_commands.FireDueSchedules(has_time=lambda: False)) is True
    assert len(house.live("s")) == 5


def full_beside_another() -> House:
    """A stream `s` that has no ID left for what will be due in it, and another one."""
    house = House()
    house.run(later("a"))
    house.call("XSETID", "s", f"{SEQUENCE_MAX}-{SEQUENCE_MAX}")
    house.run(setting("b", stream="t", in_ms=100))
    return house


def test_a_stream_that_takes_no_entries_makes_no_other_one_late() -> None:
    house = full_beside_another()
    house.pass_ms(100)
    assert house.run(schedule_commands.FireDueSchedules()) is False
    assert [len(house.pairs(name)) for name in "st"] == [0, 1]
    assert names(house) == ["a"]
    house.keyspace.check()


def test_a_stream_that_takes_no_entries_is_tried_each_second() -> None:
    house = full_beside_another()
    times, due_ms = house.keyspace.due_times[StreamSchedules], house.now_ms + 100
    for tried in range(3):
        assert fire(house, 1_000) == []
        assert (times.first_due_ms, times.next_ms) == (due_ms, house.now_ms + 1_000), tried
        # Another one does not hide for how long it has been late.
        house.run(later("z", in_ms=500))
        assert (times.first_due_ms, times.next_ms) == (due_ms, house.now_ms + 500)
        house.keyspace.check()
    house.call("XSETID", "s", "1-0")
    assert fire(house, 1_000) == ["a", "z"]
    assert (times.first_due_ms, times.put_off) == (None, {})


@pytest.mark.parametrize("words", [("DEL", "s"), ("RENAME", "s", "u"), ("FLUSHALL",)])
def test_what_is_put_off_goes_with_its_stream(words: tuple[str, ...]) -> None:
    house = full_beside_another()
    house.pass_ms(100)
    house.run(schedule_commands.FireDueSchedules())
    house.call(*words)
    assert house.keyspace.due_times[StreamSchedules].put_off == {}
    house.keyspace.check()


# --- the engine at work -------------------------------------------------------------------------------------


def values(engine: Engine) -> list[bytes]:
    stream = keyspace_of(engine).keys["s"].stream
    texts = [stream.get(entry_id) for entry_id in stream.live_ids()]
    return [value for text in texts if text for _, value in entries.pairs_of(text)]


async def test_beside_a_stream_that_takes_none_one_is_appended_at_its_millisecond(talk: Conversation) -> None:
    await reply_to(talk.engine, later("a", in_ms=100))
    await talk.call("XSETID", "s", f"{SEQUENCE_MAX}-{SEQUENCE_MAX}")
    await talk.pass_ms(2_000)
    assert talk.engine.figures().schedules_late_s == 1.9
    await reply_to(talk.engine, setting("b", stream="t", in_ms=50))
    await talk.pass_ms(50)
    assert keyspace_of(talk.engine).keys["t"].stream.length == 1
    assert talk.engine.figures().schedules_late_s == 1.95


async def test_one_is_appended_at_its_millisecond_and_wakes_readers(talk: Conversation) -> None:
    await reply_to(talk.engine, later("a", in_ms=200))
    reader = await talk.begin("XREAD", "BLOCK", "60000", "STREAMS", "s", "$")
    await talk.pass_ms(199)
    assert not reader.done()
    await talk.pass_ms(1)
    reply: Any = await reader
    assert reply[0][1][0][1] == ["n", "a"]


async def test_what_was_due_while_nothing_ran_is_appended_at_once() -> None:
    storage = MemoryStorage()
    async with Conversation(storage, fsync="always") as talk:
        await reply_to(talk.engine, later("a", "b", in_ms=200))
        await reply_to(talk.engine, later("c", in_ms=HOUR_MS))
        crashed = storage.crash()
    late = Conversation(crashed)
    late.clock.pass_ms(60_000)
    async with late as talk:
        await talk.pass_ms(0)
        assert values(talk.engine) == [b"a", b"b"]
        assert talk.engine.figures().schedules == 1


class Small(Conversation):
    """An engine with a limit of memory."""

    def opened(self) -> Engine:
        # Far above what the process has itself.
        caps = Caps(memory_bytes_max=1 << 40)
        return Engine.open(self.storage, clock=self.clock, fsync="always", caps=caps)


async def test_full_memory_makes_them_late_and_loses_none() -> None:
    async with Small() as talk:
        await reply_to(talk.engine, later("a", in_ms=200))
        memory = talk.engine.memory
        memory.shared.add(1 << 40)
        await talk.pass_ms(2_500)
        assert (values(talk.engine), talk.engine.figures().schedules_late_s) == ([], 2.3)
        memory.shared.add(-1 << 40)
        await talk.pass_ms(1_000)
        assert (values(talk.engine), talk.engine.figures().schedules_late_s) == ([b"a"], 0.0)


async def fill(engine: Engine, size: int) -> None:
    """Add entries of this size to another stream, until one is refused."""
    while True:
        await reply_to(engine, XAdd(stream="t", bodies=[entries.body([("n", "x" * size)])]))


async def test_a_full_disk_makes_them_late_and_loses_none() -> None:
    disk = MemoryStorage(space_bytes=40 << 20)
    async with Conversation(disk, fsync="always") as talk:
        await reply_to(talk.engine, later("a", in_ms=60_000))
        for size in (1 << 20, 1 << 10, 0):
            with pytest.raises(EngineError, match="disk is full"):
                await fill(talk.engine, size)
        await talk.pass_ms(61_000)
        assert values(talk.engine) == []
        assert talk.engine.figures().schedules_late_s >= 1
        await talk.call("DEL", "t")
        await talk.engine.rewrite()
        await talk.pass_ms(2_000)
        assert (values(talk.engine), talk.engine.figures().schedules_late_s) == ([b"a"], 0.0)


async def test_a_clock_that_is_set_back_delays_them(talk: Conversation) -> None:
    await reply_to(talk.engine, later("a", in_ms=1_000))
    talk.clock.pass_ms(-HOUR_MS, 0)
    await talk.pass_ms(1_000)
    assert values(talk.engine) == []
    talk.clock.pass_ms(HOUR_MS, 0)
    talk.clock.pass_ms(0, 1_000)
    await talk.pass_ms(0)
    assert values(talk.engine) == [b"a"]
    with pytest.raises(EngineError, match="has no schedule"):
        await reply_to(talk.engine, schedule_commands.CancelSchedule(stream="s", name="a"))
    await reply_to(talk.engine, FlushAll())
