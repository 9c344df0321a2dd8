"""The clocks of the pipeline: the one place where it reads the machine's time.

Knows: which of the two clocks is for what. Must never know: what a time is used for.
"""

import time


def monotonic_s() -> float:
    """Seconds since some moment; never goes back. For waits and deadlines."""
    return time.monotonic()


def wall_ms() -> int:
    """Milliseconds since 1970 UTC; may jump. For what is compared with the time in an entry's ID."""
    return time.time_ns() // 1_000_000


def pause(seconds: float) -> None:
    """Do nothing for so long."""
    time.sleep(seconds)
