"""How many schedules a gateway knows of, by rounds and by what it adds itself."""

from engine import entries
from engine.cluster.schedule_counts import ScheduleCounts
from engine.commands.schedule_commands import AddScheduled, CancelSchedule, NewSchedule, SetSchedule
from engine.errors import invalid
from engine.keyspace import CAPS_DEFAULT
from engine.recurrence import Rule, rule_of
from engine.replies import AddedScheduled, ScheduleInfo, ScheduleSet

BODY = entries.body([("a", "1")])
NEW = NewSchedule("a", BODY, Rule(at_ms=5))
SETTING = SetSchedule(stream="s", schedule=NEW)


def done(*, created: bool = True) -> ScheduleSet:
    return ScheduleSet(ScheduleInfo("a", 5, BODY, rule_of("", 5), None), created=created, changed=True)


def test_it_counts_what_it_adds_itself() -> None:
    """Not what replaces another, and nothing that was refused."""
    counts = ScheduleCounts()
    counts.note_run(SETTING, done())
    counts.note_run(SETTING, done(created=False))
    counts.note_run(SETTING, invalid("ERR no"))
    both = AddedScheduled(None, [("a", 1), ("b", 2)], cancelled=True)
    counts.note_run(AddScheduled(stream="s", later=[NEW]), both)
    assert (counts.count, counts.room) == (2, CAPS_DEFAULT.schedules_max - 2)
    counts.note_run(CancelSchedule(stream="s", name="a"), True)  # noqa: FBT003 - its reply
    assert counts.count == 1


def test_a_round_counts_all_servers_together() -> None:
    """Once it has come to its end at each of them; a stream that it comes to twice counts once."""
    counts, servers = ScheduleCounts(), ("one", "other")
    counts.note_found("one", "s", 3, 100)
    counts.note_found("one", "s", 4, -250)
    counts.end_round("one", servers)
    assert counts.figures == ""
    counts.note_found("one", "s", 9, None)
    counts.note_found("other", "t", 1, -50)
    counts.note_found("other", "u", 0, None)
    counts.end_round("other", servers)
    assert (counts.count, counts.late_ms, counts.figures) == (5, 250, "5 250 1")


def test_what_was_added_during_a_round_counts_until_the_end_of_the_next_one() -> None:
    """The round may have come to its stream before."""
    counts = ScheduleCounts()
    counts.note_run(SETTING, done())
    counts.end_round("one", ("one",))
    assert counts.count == 1
    counts.note_found("one", "s", 1, None)
    counts.end_round("one", ("one",))
    assert counts.count == 1


def test_others_have_the_figures_from_the_lease() -> None:
    """The same figures again say nothing new, and none say nothing."""
    counts = ScheduleCounts()
    counts.note_run(SETTING, done())
    for figures in ("7 30 1", "7 30 1", ""):
        counts.take_figures(figures)
    assert (counts.count, counts.late_ms) == (8, 30)
    counts.take_figures("8 0 2")
    assert (counts.count, counts.late_ms) == (8, 0)


def test_there_is_never_less_than_no_room() -> None:
    counts = ScheduleCounts()
    counts.take_figures(f"{counts.most + 1} 0 1")
    assert counts.room == 0
    counts.take_figures("0 0 2")
    counts.note_run(CancelSchedule(stream="s", name="a"), True)  # noqa: FBT003 - its reply
    assert counts.count == 0
