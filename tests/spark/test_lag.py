"""How far behind a group is, and when it will have caught up, from looks at it at given times."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir.jobs import lag
from pyspark_weir.jobs.lag import Look, Place, Watch, lag_of

NOW_MS = 1_700_000_000_000
PLACE = Place("g0", "orders", "billing")


def _look(
    at_s: float,
    *,
    added: int,
    unread: int | None,
    pending: int = 0,
    generation: str = "a",
    place: Place = PLACE,
) -> Look:
    return Look(place, NOW_MS + round(at_s * 1_000), generation, added, unread, pending)


def test_a_group_that_settles_more_than_comes_in_catches_up() -> None:
    """100 a second come, 150 are settled, 1 000 are behind: 20 seconds."""
    found = lag_of(
        [
            _look(0, added=5_000, unread=1_400, pending=100),
            _look(10, added=6_000, unread=990, pending=10),
        ]
    )
    assert (found.published_per_s, found.settled_per_s) == (100.0, 150.0)
    assert (found.behind, found.unread, found.pending) == (1_000, 990, 10)
    assert (found.trend, found.catch_up_ms) == (lag.CATCHING_UP, 20_000)


def test_a_group_that_falls_behind_has_no_time_to_catch_up() -> None:
    """Not a large number, and not a negative one: none."""
    found = lag_of([_look(0, added=0, unread=0), _look(10, added=1_000, unread=400)])
    assert (found.published_per_s, found.settled_per_s) == (100.0, 60.0)
    assert (found.trend, found.catch_up_ms) == (lag.FALLING_BEHIND, None)


def test_a_group_that_keeps_its_distance_never_catches_up() -> None:
    """As much is settled as comes in; or nothing happens at all."""
    found = lag_of([_look(0, added=0, unread=50), _look(10, added=1_000, unread=50)])
    assert (found.trend, found.catch_up_ms) == (lag.STEADY, None)
    found = lag_of([_look(0, added=0, unread=50), _look(10, added=0, unread=50)])
    assert (found.trend, found.catch_up_ms, found.settled_per_s) == (lag.STEADY, None, 0.0)


def test_what_is_delivered_and_not_acknowledged_is_still_behind() -> None:
    """Reading without acknowledging settles nothing."""
    found = lag_of([_look(0, added=100, unread=100), _look(10, added=100, unread=0, pending=100)])
    assert (found.behind, found.settled_per_s, found.trend) == (100, 0.0, lag.STEADY)


def test_one_look_knows_no_rates() -> None:
    """Only that nothing is left, if nothing is."""
    found = lag_of([_look(0, added=9, unread=3)])
    assert (found.published_per_s, found.settled_per_s, found.catch_up_ms, found.trend) == (None,) * 4
    assert lag_of([_look(0, added=9, unread=0)]).catch_up_ms == 0


def test_a_stream_made_anew_starts_anew() -> None:
    """Its old counts say nothing about it: no negative rates, no entries that came all at once."""
    found = lag_of([_look(0, added=9_000, unread=9_000), _look(10, added=5, unread=5, generation="b")])
    assert (found.published_per_s, found.settled_per_s, found.trend) == (None, None, None)


def test_a_clock_or_a_count_that_was_set_back_gives_no_rate() -> None:
    """Rather none than a wrong one."""
    assert lag_of([_look(10, added=1, unread=1), _look(5, added=2, unread=1)]).published_per_s is None
    assert lag_of([_look(0, added=9, unread=1), _look(5, added=2, unread=1)]).published_per_s is None


def test_what_the_gateway_cannot_tell_is_not_made_up() -> None:
    """Unknown is neither zero nor caught up."""
    found = lag_of([_look(0, added=0, unread=None), _look(10, added=100, unread=None, pending=4)])
    assert (found.behind, found.settled_per_s, found.catch_up_ms, found.trend) == (None,) * 4
    assert (found.pending, found.published_per_s) == (4, 10.0)


def test_the_age_of_the_oldest_pending_entry_is_told_by_its_id() -> None:
    """How long it has been in the stream, beside how long ago it was last delivered; an ID of the future is
    no time ago.
    """
    one = replace(
        _look(0, added=1, unread=0, pending=1),
        oldest_pending_id=f"{NOW_MS - 90_000}-3",
        oldest_pending_idle_ms=500,
    )
    found = lag_of([one])
    assert (found.oldest_pending_age_ms, found.oldest_pending_idle_ms) == (90_000, 500)
    assert lag_of([replace(one, oldest_pending_id=f"{NOW_MS + 9}-0")]).oldest_pending_age_ms == 0


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**5))
def test_the_time_to_catch_up_is_when_nothing_is_left(
    behind: int, added: int, left: int, seconds: int
) -> None:
    """Going on at both rates for that long leaves nothing, or there is no such time."""
    found = lag_of([_look(0, added=0, unread=behind), _look(seconds, added=added, unread=left)])
    change_per_s = (left - behind) / seconds
    if left == 0:
        assert found.catch_up_ms == 0
    elif change_per_s < 0 and added + behind - left >= 0:
        assert found.catch_up_ms is not None
        # Whole milliseconds are told.
        assert abs(left + change_per_s * found.catch_up_ms / 1_000) <= abs(change_per_s) / 1_000
    else:
        assert found.catch_up_ms is None


def test_rates_are_over_the_span_asked_for() -> None:
    """An old burst does not count; with looks further apart than the span, the last two do."""
    watch = Watch(span_ms=20_000)
    watch.note([_look(0, added=0, unread=0)])
    watch.note([_look(10, added=10_000, unread=0)])
    watch.note([_look(20, added=10_100, unread=0)])
    (found,) = watch.note([_look(30, added=10_300, unread=0)])
    assert found.published_per_s == 15.0
    (found,) = watch.note([_look(90, added=10_900, unread=0)])
    assert found.published_per_s == 10.0


def test_those_furthest_behind_come_first() -> None:
    """And before them those of which nobody knows."""
    looks = [
        _look(0, added=9, unread=unread, place=Place("g0", name, "g"))
        for name, unread in [("a", 0), ("b", 7), ("c", None), ("d", 7)]
    ]
    assert [one.stream for one in Watch(0).note(looks)] == ["c", "b", "d", "a"]


def test_lines_and_bars_tell_each_group_once() -> None:
    """With the gateway's name where there is more than one to tell apart."""
    watch = Watch(0)
    west_place = Place("west", "orders", "billing")
    for second in range(3):
        there = _look(second, added=10, unread=9, place=west_place)
        watch.note([_look(second, added=10, unread=5 - second, pending=1), there])
    here, west = watch.lines()
    assert (here.name, list(here.values)) == ("orders / billing", [6, 5, 4])
    assert (west.name, list(west.values)) == ("west: orders / billing", [9, 9, 9])
    assert here.at_ms == [NOW_MS, NOW_MS + 1_000, NOW_MS + 2_000]
    behind = _look(3, added=10, unread=2, pending=1)
    found = watch.note([behind, _look(3, added=10, unread=9, place=west_place)])
    assert [(bar.name, bar.parts, bar.note) for bar in lag.bars(found)] == [
        ("west: orders / billing", {"unread": 9, "pending": 0}, ""),
        ("orders / billing", {"unread": 2, "pending": 1}, "caught up in 3.0 s"),
    ]


def test_looks_are_forgotten_at_last() -> None:
    """A watch of weeks needs no more memory than one of hours."""
    watch = Watch(0)
    for second in range(lag.looks_max + 5):
        watch.note([_look(second, added=0, unread=0)])
    assert len(watch.lines()[0].values) == lag.looks_max


@pytest.mark.parametrize("behind", [0, 1])
def test_a_row_has_every_member(behind: int) -> None:
    """What programs read does not depend on what was found."""
    row = lag_of([_look(0, added=1, unread=behind)]).row()
    assert list(row)[:7] == ["gateway", "stream", "group", "at_ms", "behind", "unread", "pending"]
    assert len(row) == 15
