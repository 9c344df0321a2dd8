"""When a disk is slow: found in how long its syncs take.

Knows: the last syncs, and the one that has not ended. Must never know: what is synced, where it is shown.
"""

from collections import deque
from statistics import median
from typing import Final

# One sync that takes longer, or the median of the last ones: then each write under `always` waits so long.
SLOW_S: Final = 2.0
MEDIAN_SLOW_S: Final = 0.5
# It is slow until all of the last ones took less.
FAST_S: Final = 0.1
_SYNCS: Final = 10


class SlowSyncs:
    """`is_slow` after each observation."""

    def __init__(self) -> None:
        self.is_slow = False
        self._last: deque[float] = deque(maxlen=_SYNCS)

    def observe(self, seconds: float) -> None:
        """A sync has ended."""
        self._last.append(seconds)
        has_all = len(self._last) == _SYNCS
        if seconds > SLOW_S or (has_all and median(self._last) > MEDIAN_SLOW_S):
            self.is_slow = True
        elif has_all and max(self._last) < FAST_S:
            self.is_slow = False

    def observe_unfinished(self, seconds: float) -> None:
        """A sync has not ended after this time."""
        self.is_slow = self.is_slow or seconds > SLOW_S
