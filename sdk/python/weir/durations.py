"""Durations and sizes as people write and read them, for command lines, options, files and settings.

Knows: units. Must never know: which option one stands in.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIT_BYTES: Final = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]{1,15})(?:([kmgt])(?:i?b)?)?", re.ASCII)
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


def write_ms(ms: int) -> str:
    """Milliseconds as `parse_ms` reads them, to the millisecond: `1500ms`, `90s`, `5m`, `0`."""
    if not ms:
        return "0"
    unit = max((unit for unit, size in _UNIT_MS.items() if ms % size == 0), key=_UNIT_MS.__getitem__)
    return f"{ms // _UNIT_MS[unit]}{unit}"


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


def parse_bytes(text: str) -> int:
    """`500mb`, `2g`, `64KiB`, `1000` → bytes; 1 kb is 1,024 bytes, as to Redis. Raises ValueError."""
    found = _SIZE.fullmatch(text.lower())
    if found is None:
        raise ValueError(f"{text!r} is no size such as 64kb, 500mb or 2gb")
    return int(found[1]) * _UNIT_BYTES[f"{found[2]}b" if found[2] else ""]


def write_bytes(size: int) -> str:
    """Bytes as `parse_bytes` reads them, to the byte: `64kb`, `2gb`, `1000`."""
    unit = max((unit for unit, one in _UNIT_BYTES.items() if size % one == 0), key=_UNIT_BYTES.__getitem__)
    return f"{size // _UNIT_BYTES[unit]}{unit}" if size else "0"


def in_units(members: Mapping[str, Any]) -> dict[str, Any]:
    """Members of the API as people write them: times, without `_ms` in their names, and `max_bytes`."""
    writers = {name: write_ms for name in members if name.endswith("_ms")} | {"max_bytes": write_bytes}
    return {
        name.removesuffix("_ms"): value if value is None or name not in writers else writers[name](value)
        for name, value in members.items()
    }
