"""When a cron expression is due next, in a time zone whose clocks are changed.

Knows: expressions and zones by their names, which local times are missing or come twice.
Must never know: rules beside it, what time it is.

    minute or hour begins with *    every minute whose local time matches: none for what is missing, and each
                                    time for what comes twice
    any other                       each local time once a day: what is missing is the end of the gap, and
                                    of what comes twice the first one counts, as in Debian's cron
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from engine import errors

_NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Files beside the zones, which mean something else on another machine, or nothing; and folders with the same
# zones again, in one of which leap seconds count.
_NO_ZONES: Final = frozenset({"localtime", "posixrules", "Factory"})
_COPIES: Final = ("right/", "posix/")
_DAY_S: Final = 24 * 3600
# Clocks are changed at most once in that time.
_STEP_S: Final = 6 * 3600


def check_zone(tz: str) -> None:
    """Raise `invalid` for what is no time zone on every machine."""
    if tz in _NO_ZONES or tz.startswith(_COPIES):
        raise _no_zone()
    _zone(tz)


def cron_after(expression: str, tz: str, now_ms: int) -> int | None:
    """The first time of a cron expression that is above `now_ms`. Raises `invalid`."""
    # Loaded with the first one: most gateways have none.
    from cronsim import CronSimError  # noqa: PLC0415

    expression = _NAMED.get(expression.strip().lower(), expression)
    fields = expression.split()
    if len(fields) != 5:
        raise no_expression()
    zone, now_s = _zone(tz), now_ms // 1000
    goes_on = zone is UTC or fields[0].startswith("*") or fields[1].startswith("*")
    try:
        found_s = (_each_after if goes_on else _daily_after)(expression, zone, now_s)
    except CronSimError as error:
        raise errors.invalid_schedule(f"cron: {error}; fields are as in crontab(5)") from None
    except (OverflowError, ValueError):
        # Beyond the last year of calendars.
        return None
    return None if found_s is None else found_s * 1000


def _times(expression: str, after: datetime) -> Iterator[datetime]:
    from cronsim import CronSim  # noqa: PLC0415

    return CronSim(expression, after)


def _daily_after(expression: str, zone: tzinfo, now_s: int) -> int | None:
    # Where a local time comes twice, those seen from between may be over.
    times = (int(one.timestamp()) for one in _times(expression, datetime.fromtimestamp(now_s, zone)))
    return next((found_s for found_s in times if found_s > now_s), None)


def _each_after(expression: str, zone: tzinfo, now_s: int) -> int | None:
    """As long as the clocks are not changed, local time goes on as UTC does: looked for in one such stretch
    after the other.
    """
    begin_s, offset_s = now_s, _offset_s(zone, now_s)
    after_s = begin_s + offset_s
    while True:
        local = next(_times(expression, datetime.fromtimestamp(after_s, UTC)), None)
        if local is None:
            return None
        found_s = int(local.timestamp()) - offset_s
        is_far = found_s - begin_s > 2 * _DAY_S
        change_s = _first_change_s(zone, begin_s, begin_s + _DAY_S if is_far else found_s)
        if change_s is not None:
            begin_s, offset_s = change_s, _offset_s(zone, change_s)
            after_s = begin_s + offset_s - 1
        elif is_far:
            # Nothing matches between here and there.
            begin_s = found_s - _DAY_S
            offset_s = _offset_s(zone, begin_s)
            after_s = begin_s + offset_s
        else:
            return found_s


def _first_change_s(zone: tzinfo, begin_s: int, end_s: int) -> int | None:
    """When the clocks are first changed behind `begin_s`, up to `end_s`; None for never."""
    offset_s, low_s = _offset_s(zone, begin_s), begin_s
    while low_s < end_s:
        high_s = min(low_s + _STEP_S, end_s)
        if _offset_s(zone, high_s) != offset_s:
            while high_s - low_s > 1:
                middle_s = (low_s + high_s) // 2
                if _offset_s(zone, middle_s) == offset_s:
                    low_s = middle_s
                else:
                    high_s = middle_s
            return high_s
        low_s = high_s
    return None


def _offset_s(zone: tzinfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, zone).utcoffset()
    assert offset is not None, "a zone has one at any time"
    return int(offset.total_seconds())


# There are some 600.
@lru_cache(maxsize=1_000)
def _zone(tz: str) -> tzinfo:
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (KeyError, OSError, ValueError):
        raise _no_zone() from None


def no_expression() -> errors.EngineError:
    """The refusal of what is none."""
    return errors.invalid_schedule(
        "cron: five fields: minute, hour, day of month, month, day of week; or @daily and its kin"
    )


def _no_zone() -> errors.EngineError:
    return errors.invalid_schedule("tz: a time zone by its name, such as Europe/Berlin")
