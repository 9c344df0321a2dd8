"""Durations are written and read with units."""

import pytest

from weir.durations import format_ms, parse_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000)],
)
def test_a_duration_has_a_unit(text: str, ms: int) -> None:
    """Only nothing needs none."""
    assert parse_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "1.5s", "-1s", "5 m", "5M", "1m30s", "٣s", "1s\n", "9" * 13 + "s"])
def test_what_could_mean_two_things_is_refused(text: str) -> None:
    """With examples of what is meant."""
    with pytest.raises(ValueError, match="no duration such as 250ms"):
        parse_ms(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (0.25, "0.25 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_940, "59.9 s"),
        (59_990, "1m 0s"),
        (3_599_400, "59m 59s"),
        (3_599_600, "1h 0m"),
        (90_061_000, "1d 1h"),
        (-5_000, "-5.0 s"),
        (10**15, "more than 9999d"),
    ],
)
def test_people_are_shown_two_units(ms: float, text: str) -> None:
    """Rounding never shows sixty seconds."""
    assert format_ms(ms) == text
