"""How far behind a group is, and when it will have caught up, from samples of it at given times."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir._calls import PendingEntry
from weir.cli import group_lag, lag
from weir.cli.group_lag import GroupSample, LagHistory, lag_of

NOW_MS = 1_700_000_000_000


def _sample(
    at_s: float,
    *,
    added: int,
    lag: int | None,
    pending: int = 0,
    generation: str = "a",
    stream: str = "orders",
) -> GroupSample:
    at_ms = NOW_MS + round(at_s * 1_000)
    return GroupSample(stream, "billing", at_ms, generation, added, lag, pending)


def test_a_group_that_settles_more_than_comes_in_catches_up() -> None:
    """100 a second come, 150 are settled, 1 000 are behind: 20 seconds."""
    found = lag_of(
        [
            _sample(0, added=5_000, lag=1_400, pending=100),
            _sample(10, added=6_000, lag=990, pending=10),
        ]
    )
    assert (found.published_per_s, found.settled_per_s) == (100.0, 150.0)
    assert (found.behind, found.lag, found.pending) == (1_000, 990, 10)
    assert (found.trend, found.catch_up_ms) == (group_lag.CATCHING_UP, 20_000)


def test_a_group_that_falls_behind_has_no_time_to_catch_up() -> None:
    """Not a large number, and not a negative one: none."""
    found = lag_of([_sample(0, added=0, lag=0), _sample(10, added=1_000, lag=400)])
    assert (found.published_per_s, found.settled_per_s) == (100.0, 60.0)
    assert (found.trend, found.catch_up_ms) == (group_lag.FALLING_BEHIND, None)


@pytest.mark.parametrize("added", [0, 1_000])
def test_a_group_that_keeps_its_distance_never_catches_up(added: int) -> None:
    """As much is settled as comes in; or nothing happens at all."""
    found = lag_of([_sample(0, added=0, lag=50), _sample(10, added=added, lag=50)])
    assert (found.trend, found.catch_up_ms) == (group_lag.STEADY, None)
    assert found.settled_per_s == added / 10


def test_what_is_delivered_and_not_acknowledged_is_still_behind() -> None:
    """Reading without acknowledging settles nothing."""
    found = lag_of([_sample(0, added=100, lag=100), _sample(10, added=100, lag=0, pending=100)])
    assert (found.behind, found.settled_per_s, found.trend) == (100, 0.0, group_lag.STEADY)


def test_one_sample_knows_no_rates() -> None:
    """Only that nothing is left, if nothing is."""
    found = lag_of([_sample(0, added=9, lag=3)])
    assert (found.published_per_s, found.settled_per_s, found.catch_up_ms, found.trend) == (None,) * 4
    assert lag_of([_sample(0, added=9, lag=0)]).catch_up_ms == 0


def test_a_stream_made_anew_starts_anew() -> None:
    """Its old counts say nothing about it: no negative rates, no entries that came all at once."""
    found = lag_of([_sample(0, added=9_000, lag=9_000), _sample(10, added=5, lag=5, generation="b")])
    assert (found.published_per_s, found.settled_per_s, found.trend) == (None, None, None)


def test_a_clock_or_a_count_that_was_set_back_gives_no_rate() -> None:
    """Rather none than a wrong one."""
    back = [_sample(10, added=1, lag=1), _sample(5, added=2, lag=1)]
    assert lag_of(back).published_per_s is None
    fewer = [_sample(0, added=9, lag=1), _sample(5, added=2, lag=1)]
    assert lag_of(fewer).published_per_s is None


def test_what_the_gateway_does_not_know_is_not_made_up() -> None:
    """Unknown is neither zero nor caught up."""
    found = lag_of([_sample(0, added=0, lag=None), _sample(10, added=100, lag=None, pending=4)])
    assert (found.behind, found.settled_per_s, found.catch_up_ms, found.trend) == (None,) * 4
    assert (found.pending, found.published_per_s) == (4, 10.0)


def test_the_age_of_the_oldest_pending_entry_follows_from_its_id() -> None:
    """How long it has been in the stream, beside how long ago it was last delivered; an ID of the future is
    no time ago.
    """
    oldest: PendingEntry = {
        "id": f"{NOW_MS - 90_000}-3",
        "consumer": "c",
        "idle_ms": 500,
        "delivery_count": 2,
    }
    one = replace(_sample(0, added=1, lag=0, pending=1), oldest=oldest)
    found = lag_of([one])
    assert (found.oldest_pending_age_ms, found.oldest_pending_idle_ms) == (90_000, 500)
    assert found.oldest_pending_deliveries == 2
    oldest["id"] = f"{NOW_MS + 9}-0"
    assert lag_of([one]).oldest_pending_age_ms == 0


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**5))
def test_the_time_to_catch_up_is_when_nothing_is_left(
    behind: int, added: int, left: int, seconds: int
) -> None:
    """Going on at both rates for that long leaves nothing, or there is no such time."""
    found = lag_of([_sample(0, added=0, lag=behind), _sample(seconds, added=added, lag=left)])
    change_per_s = (left - behind) / seconds
    if left == 0:
        assert found.catch_up_ms == 0
    elif change_per_s < 0 and added + behind - left >= 0:
        assert found.catch_up_ms is not None
        # It is in whole milliseconds.
        assert abs(left + change_per_s * found.catch_up_ms / 1_000) <= abs(change_per_s) / 1_000
    else:
        assert found.catch_up_ms is None


def test_rates_are_over_the_span_asked_for() -> None:
    """An old burst does not count; with samples further apart than the span, the last two do."""
    history = LagHistory(span_ms=20_000)
    history.add([_sample(0, added=0, lag=0)])
    history.add([_sample(10, added=10_000, lag=0)])
    history.add([_sample(20, added=10_100, lag=0)])
    (found,) = history.add([_sample(30, added=10_300, lag=0)])
    assert found.published_per_s == 15.0
    (found,) = history.add([_sample(90, added=10_900, lag=0)])
    assert found.published_per_s == 10.0


def test_those_furthest_behind_come_first() -> None:
    """And before them those of which it is not known."""
    samples = [
        _sample(0, added=9, lag=lag, stream=name) for name, lag in [("a", 0), ("b", 7), ("c", None), ("d", 7)]
    ]
    assert [one.stream for one in LagHistory(0).add(samples)] == ["c", "b", "d", "a"]


def test_samples_are_dropped_at_last() -> None:
    """A history of weeks needs no more memory than one of hours."""
    history = LagHistory(0)
    for second in range(group_lag.samples_max + 5):
        history.add([_sample(second, added=0, lag=0)])
    assert [len(samples) for samples in history.samples.values()] == [group_lag.samples_max]


@pytest.mark.parametrize(("count", "said"), [(2, "lag"), (3, "11-15 00")])
def test_a_chart_has_bars_and_then_lines(count: int, said: str, tmp_path: Path) -> None:
    """Two samples are no line over time. A name is plain text, even if matplotlib would read markup in it."""
    history = LagHistory(0)
    for second in range(count):
        history.add(
            [
                _sample(0, added=9, lag=None, stream="unknown"),
                _sample(86_400 * second, added=9, lag=5, pending=second, stream="$a_b$"),
            ]
        )
    lag.draw(tmp_path / "lag.svg", history)
    drawn = (tmp_path / "lag.svg").read_text()
    assert "$a_b$ / billing" in drawn
    assert said in drawn
    lag.draw(tmp_path / "lag.png", history)
    assert (tmp_path / "lag.png").read_bytes().startswith(b"\x89PNG")
