"""A slow disk in the log: one warning a minute, for as long as it is slow.

Knows: that syncs take long. Must never know: how long is too long.
"""

from collections.abc import Callable
from typing import Final

from app import logs

_QUIET_S: Final = 60.0


class SlowDiskLog:
    """`note` is the engine's callback."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.is_slow = False
        self._monotonic = monotonic
        self._next_s = monotonic()

    def note(self, seconds: float | None) -> None:
        """A sync took so long, or has not ended after so long; None: they are fast again."""
        self.is_slow = seconds is not None
        if seconds is not None and self._monotonic() >= self._next_s:
            self._next_s = self._monotonic() + _QUIET_S
            logs.get().warning(
                "the disk is slow: answers that wait for a sync are late",
                sync_s=round(seconds, 3),
                remedy="find out what else writes to this disk (iostat -x), or move the data to a faster one",
            )
