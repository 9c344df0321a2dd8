"""The clocks: the one place of the gateway where the machine's time is read.

Knows: which of the two clocks is for what.
Must never know: what a time is used for.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: IDs and stored times use the wall, waits and deadlines the monotonic one."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC. May jump, back as well as forth."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment. Never goes back."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Requests ask it several times each.
    monotonic = staticmethod(time.monotonic)
