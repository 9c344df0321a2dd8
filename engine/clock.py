"""The clocks: the one place of the gateway where the machine's time is read.

Knows: which of the two clocks is for what.
Must never know: what a time is used for.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

# 9999-12-31T23:59:59.999Z
_RFC3339_MS_MAX: Final = 253_402_300_799_999


class Clock(Protocol):
    """Two clocks: IDs and stored times use the wall, waits and deadlines the monotonic one."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC. May jump, back as well as forth."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. Never goes back."""
        ...


def rfc3339(at_ms: int) -> str:
    """A time of the wall clock as text; one that has no such form is the last that has."""
    shown = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=min(at_ms, _RFC3339_MS_MAX))
    return shown.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Requests ask it several times each.
    monotonic = staticmethod(time.monotonic)
