"""When rules are due: intervals, cron expressions, the ends of daylight saving time.

Knows: rules and clocks. Must never know: streams.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from engine import EngineError
from engine.recurrence import AHEAD_MS_MAX, MISSED_AFTER_MS, Rule, rule_of

NOW_MS = 1_700_000_000_000


def ms_of(words: str) -> int:
    return int(datetime.fromisoformat(words).timestamp() * 1000)


def times(rule: Rule, after: str, count: int) -> list[str]:
    """The next times of a rule, in UTC."""
    at_ms = rule.first_ms(ms_of(after))
    found = [at_ms]
    while len(found) < count:
        next_ms = rule.next_ms(at_ms, at_ms)
        assert next_ms is not None
        found.append(at_ms := next_ms)
    return [datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%m-%dT%H:%M") for at_ms in found]


def test_intervals_keep_their_beat_however_late_a_run_comes() -> None:
    rule = Rule(every_ms=1_000)
    assert rule.first_ms(NOW_MS) == NOW_MS + 1_000
    assert rule.next_ms(NOW_MS, NOW_MS) == NOW_MS + 1_000
    assert rule.next_ms(NOW_MS, NOW_MS + 999) == NOW_MS + 1_000
    assert rule.next_ms(NOW_MS, NOW_MS + 1_000) == NOW_MS + 2_000
    assert rule.next_ms(NOW_MS, NOW_MS + 61_500) == NOW_MS + 62_000


def test_a_clock_that_was_set_back_repeats_no_time() -> None:
    for rule in (Rule(every_ms=60_000), Rule(cron="* * * * *")):
        at_ms = ms_of("2026-11-26T12:00:00Z")
        assert rule.next_ms(at_ms, at_ms - 3_600_000) == at_ms + 60_000


def test_a_cron_time_is_strictly_above_now() -> None:
    rule = Rule(cron="30 12 * * *")
    noon = ms_of("2026-11-26T12:30:00Z")
    assert rule.first_ms(noon - 1) == noon
    assert rule.first_ms(noon) == noon + 86_400_000


@pytest.mark.parametrize(
    ("cron", "found"),
    [
        # The missing 02:30 is the end of the gap, 03:00 in summer time.
        ("30 2 * * *", ["03-28T01:30", "03-29T01:00", "03-30T00:30"]),
        ("*/30 * * * *", ["03-28T01:30", "03-28T02:00", "03-28T02:30"]),
        ("0 4 29 3 *", ["03-29T02:00"]),
    ],
)
def test_in_spring_a_missing_time_of_day_is_the_end_of_the_gap(cron: str, found: list[str]) -> None:
    rule = Rule(cron=cron, tz="Europe/Berlin")
    assert times(rule, "2026-03-28T02:00:00+01:00", len(found)) == found


def test_in_spring_what_is_due_each_half_hour_goes_on() -> None:
    rule = Rule(cron="*/30 * * * *", tz="Europe/Berlin")
    assert times(rule, "2026-03-29T01:29:00+01:00", 3) == ["03-29T00:30", "03-29T01:00", "03-29T01:30"]


def test_in_autumn_a_doubled_time_of_day_counts_once() -> None:
    rule = Rule(cron="30 2 * * *", tz="Europe/Berlin")
    assert times(rule, "2026-10-24T03:00:00+02:00", 2) == ["10-25T00:30", "10-26T01:30"]
    # Seen from between the two, and from behind both.
    for after in ("2026-10-25T02:45:00+02:00", "2026-10-25T02:15:00+01:00", "2026-10-25T02:45:00+01:00"):
        assert times(rule, after, 1) == ["10-26T01:30"]


def test_in_autumn_what_is_due_each_half_hour_runs_through_both_hours() -> None:
    rule = Rule(cron="*/30 * * * *", tz="Europe/Berlin")
    assert times(rule, "2026-10-25T01:59:00+02:00", 5) == [
        "10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30", "10-25T02:00",
    ]  # fmt: skip


def test_a_rule_ends_behind_until() -> None:
    rule = Rule(every_ms=1_000, until_ms=NOW_MS + 2_000)
    assert rule.next_ms(NOW_MS + 1_000, NOW_MS + 1_000) == NOW_MS + 2_000
    assert rule.next_ms(NOW_MS + 2_000, NOW_MS + 2_000) is None
    assert rule.next_ms(NOW_MS + 1_000, NOW_MS + 9_000) is None


def test_a_run_is_missed_where_the_rule_says_so() -> None:
    assert not Rule(every_ms=1_000).is_missed(NOW_MS, NOW_MS + 10**12)
    skips = Rule(every_ms=1_000, missed="skip")
    assert not skips.is_missed(NOW_MS, NOW_MS + MISSED_AFTER_MS)
    assert skips.is_missed(NOW_MS, NOW_MS + MISSED_AFTER_MS + 1)
    assert Rule(at_ms=NOW_MS, expires_in_ms=5).is_missed(NOW_MS, NOW_MS + 6)


def test_a_rule_is_its_text() -> None:
    rule = Rule(cron="0 9 * * MON-FRI", tz="Europe/Berlin", count=3, missed="skip")
    assert rule_of(rule.text, NOW_MS) == rule
    assert Rule(at_ms=NOW_MS).text == ""
    assert rule_of("", NOW_MS) == Rule(at_ms=NOW_MS)


@pytest.mark.parametrize(
    ("rule", "refusal"),
    [
        ({}, "one of at, in_ms"),
        ({"in_ms": 1, "every_ms": 1_000}, "one of at, in_ms"),
        ({"every_ms": 999}, "every_ms: at least 1000"),
        ({"in_ms": 1, "count": 1}, "until and count"),
        ({"every_ms": 1_000, "count": 0}, "count: between"),
        ({"in_ms": 1, "expires_in_ms": 0}, "expires_in_ms: between"),
        ({"in_ms": 1, "tz": "Europe/Berlin"}, "tz: it is for cron"),
        ({"in_ms": AHEAD_MS_MAX + 1}, "ten years"),
        ({"at_ms": -1}, "ten years"),
        ({"every_ms": 1_000, "until_ms": NOW_MS + 999}, "never be due"),
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "* * * * * *"}, "five fields"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": "0 0 */28 2 MON#4"}, "never be due"),
        ({"cron": "0 0 1 1 " + "*" * 300}, "five fields"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "tz: a time zone"),
        ({"cron": "* * * * *", "tz": "../../etc/passwd"}, "tz: a time zone"),
        ({"cron": "* * * * *", "tz": ""}, "tz: a time zone"),
        ({"cron": "* * * * *", "tz": "localtime"}, "tz: a time zone"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: dict[str, Any], refusal: str) -> None:
    with pytest.raises(EngineError, match=refusal):
        Rule(**rule).first_ms(NOW_MS)


def test_ten_years_are_the_limit() -> None:
    assert Rule(in_ms=AHEAD_MS_MAX).first_ms(NOW_MS) == NOW_MS + AHEAD_MS_MAX
