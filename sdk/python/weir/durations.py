"""Durations as people write and read them, for command lines and options.

Knows: units. Must never know: which option a duration stands in.
"""

import re
from typing import Final

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WRITTEN: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
# Beyond it a number of days says only that it is long.
_DAYS_SHOWN_MAX: Final = 9_999


def parse_ms(text: str) -> int:
    """`250ms`, `30s`, `5m`, `2h`, `7d` → milliseconds; `0` needs no unit.

    Raises ValueError, also for a number without a unit: it would be seconds to some, milliseconds to others.
    """
    if text == "0":
        return 0
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration such as 250ms, 30s, 5m, 2h or 7d")
    return int(found[1]) * _UNIT_MS[found[2]]


def format_ms(ms: float) -> str:
    """Milliseconds for people, in the two largest units that tell something: `850 ms`, `12.3 s`, `2h 5m`."""
    if ms < 0:
        return f"-{format_ms(-ms)}"
    if ms < 1_000:
        return f"{ms:.3g} ms" if ms % 1 else f"{int(ms)} ms"
    if ms < 60_000 - 50:
        return f"{ms / 1_000:.1f} s"
    seconds = round(ms / 1_000)
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    if days > _DAYS_SHOWN_MAX:
        return f"more than {_DAYS_SHOWN_MAX}d"
    if days:
        return f"{days}d {hours}h"
    if seconds >= 3_600:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds % 60}s"
