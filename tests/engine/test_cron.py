"""Cron expressions where the clocks are changed, beside a walk over each minute of the zone.

Knows: expressions as the times of day that they mean. Must never know: how the next time is found.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from engine import EngineError
from engine.recurrence import Rule

# By an hour, two hours and half an hour, at midnight, in the midst of an hour, four times a year and never.
ZONES: Final = [
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Santiago",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Asia/Beirut",
    "Asia/Kolkata",
    "Antarctica/Troll",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
]
BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
# Around a change: a day before, so that a day's time that is missing then has its run, and a day after.
AROUND: Final = timedelta(hours=26)
MINUTE: Final = timedelta(minutes=1)
HOURS: Final = range(24)


class Expression(NamedTuple):
    """A cron expression, and the times of the day that it means. It `goes_on` where its minute or its hour is
    a star: then it is due whenever the clocks show such a time.
    """

    text: str
    minutes: Collection[int]
    hours: Collection[int]
    goes_on: bool = True


EXPRESSIONS: Final = [
    Expression("*/20 * * * *", {0, 20, 40}, HOURS),
    Expression("*/45 * * * *", {0, 45}, HOURS),
    Expression("15 * * * *", {15}, HOURS),
    Expression("@hourly", {0}, HOURS),
    Expression("50 */3 * * *", {50}, range(0, 24, 3)),
    Expression("*/25 1-3 * * *", {0, 25, 50}, {1, 2, 3}),
    Expression("*/15 0 * * *", {0, 15, 30, 45}, {0}),
    Expression("5,35 0-4 * * *", {5, 35}, range(5), goes_on=False),
    Expression("0,45 2 * * *", {0, 45}, {2}, goes_on=False),
    Expression("@daily", {0}, {0}, goes_on=False),
]


@cache
def changes(zone: str) -> Sequence[datetime]:
    """When the clocks are changed, to the minute."""
    found, at, step = [], BEGIN, timedelta(hours=1)
    while at < END:
        if offset(zone, at) != offset(zone, at + step):
            found.append(next(one for one in minutes(at, step) if offset(zone, one) != offset(zone, at)))
        at += step
    return found or [datetime(2026, 7, 1, tzinfo=UTC)]


def offset(zone: str, at: datetime) -> timedelta:
    found = at.astimezone(ZoneInfo(zone)).utcoffset()
    assert found is not None
    return found


def minutes(begin: datetime, length: timedelta) -> Iterator[datetime]:
    for number in range(length // MINUTE + 1):
        yield begin + number * MINUTE


@cache
def local_times(zone: str, change: datetime) -> dict[datetime, list[datetime]]:
    """What the clocks show around a change, in order, and when they do."""
    shown: dict[datetime, list[datetime]] = {}
    info = ZoneInfo(zone)
    for at in minutes(change - AROUND, 2 * AROUND):
        shown.setdefault(at.astimezone(info).replace(tzinfo=None, fold=0), []).append(at)
    return shown


def expected(expression: Expression, zone: str, change: datetime) -> list[datetime]:
    """The runs around a change, by looking at each minute."""
    shown = local_times(zone, change)
    if expression.goes_on:
        return sorted(
            at
            for local, times in shown.items()
            if local.minute in expression.minutes and local.hour in expression.hours
            for at in times
        )
    runs = set[datetime]()
    for local in wanted(expression, min(shown).date(), max(shown).date()):
        if min(shown) <= local <= max(shown):
            # One that is missing is the end of the gap.
            runs.add(shown[local][0] if local in shown else change)
    return sorted(runs)


def wanted(expression: Expression, first: date, last: date) -> Iterator[datetime]:
    for day in range((last - first).days + 1):
        for hour in expression.hours:
            for minute in expression.minutes:
                at = datetime(first.year, first.month, first.day, hour, minute)  # noqa: DTZ001 - of no zone
                yield at + timedelta(days=day)


def found(expression: Expression, zone: str, after: datetime, before: datetime) -> list[datetime]:
    """The runs between these, one after the other."""
    rule, runs = Rule(cron=expression.text, tz=zone), list[datetime]()
    at_ms: int | None = rule.first_ms(int(after.timestamp() * 1000))
    while at_ms is not None and (at := datetime.fromtimestamp(at_ms / 1000, UTC)) < before:
        runs.append(at)
        at_ms = rule.next_ms(at_ms, at_ms)
    return runs


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda one: one.text)
def test_each_local_time_that_there_is_runs_once(expression: Expression, zone: str) -> None:
    """Around each change of two years; and seen from each quarter of an hour around it."""
    for change in changes(zone):
        # What was missing or doubled a day before the window is not its own.
        begin, end = change - timedelta(hours=24), change + timedelta(hours=24)
        runs = [at for at in expected(expression, zone, change) if begin < at < end]
        assert found(expression, zone, begin, end) == runs, change
        rule = Rule(cron=expression.text, tz=zone)
        for quarter in range(-12, 13):
            now = change + quarter * timedelta(minutes=15)
            following = next((at for at in runs if at > now), None)
            if following is not None:
                assert rule.first_ms(int(now.timestamp() * 1000)) == following.timestamp() * 1000


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
@pytest.mark.parametrize(("text", "month", "day"), [("*/20 2 31 12 *", 12, 31), ("*/20 2 29 2 *", 2, 29)])
def test_what_is_due_years_later_is_found_at_its_local_time(
    zone: str, text: str, month: int, day: int
) -> None:
    """Whichever season it is seen from."""
    for seen in (datetime(2026, 1, 31, tzinfo=UTC), datetime(2026, 7, 31, tzinfo=UTC)):
        at_ms = Rule(cron=text, tz=zone).first_ms(int(seen.timestamp() * 1000))
        local = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))
        assert (local.month, local.day, local.hour, local.minute) == (month, day, 2, 0)
        assert local.year == (2026 if month == 12 else 2028)


@pytest.mark.parametrize(
    ("named", "fields"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
    ],
)
def test_names_stand_for_expressions(named: str, fields: str) -> None:
    for month in range(1, 13):
        now_ms = int(datetime(2026, month, 5, 12, 30, tzinfo=UTC).timestamp() * 1000)
        assert Rule(cron=named).first_ms(now_ms) == Rule(cron=fields).first_ms(now_ms)


@pytest.mark.parametrize(
    "rule",
    [
        {"cron": "@reboot"},
        {"cron": "@every 5m"},
        {"cron": "@daily *"},
        *(
            {"cron": "@daily", "tz": tz}
            for tz in ("right/Europe/Berlin", "posix/UTC", "Factory", "posixrules")
        ),
        *({"cron": "@daily", "tz": tz} for tz in ("leapseconds", "tzdata.zi", "Europe", "CEST", "europe/x")),
    ],
    ids=lambda rule: " ".join(rule.values()),
)
def test_what_is_no_expression_and_no_zone_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(
        EngineError, match="tz: a time zone by its name" if "tz" in rule else "cron: five fields"
    ):
        Rule(**rule).first_ms(0)


def test_what_is_stored_in_such_a_zone_goes_on() -> None:
    """An older version took it: where the machine has the zone, its runs come."""
    at_ms = int(BEGIN.timestamp() * 1000)
    assert Rule(cron="@daily", tz="Factory").next_ms(at_ms, at_ms) == at_ms + 24 * 3_600_000
