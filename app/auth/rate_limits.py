"""Rates and buckets: how much a caller may do in a time, by the generic cell rate algorithm (GCRA).

Knows: that a bucket fills at a steady rate up to its burst, and how many buckets are kept.
Must never know: who a caller is, what is counted, the time.

A bucket is one number: the time at which it is full again ("theoretical arrival time", ITU-T I.371). What was
taken moves it ahead. A cost is admitted while the time that it leads to is at most a burst ahead; what costs
more than a burst is admitted by a full bucket, is paid in full, and the next cost waits for all of it.
"""

from math import ceil
from typing import Final, NamedTuple

# Buckets that are not full, each with its own key.
BUCKETS_MAX: Final = 10_000
# Further keys share these, by their hash, until others have filled.
SHARED_MAX: Final = 1_024
# Looking for full buckets takes about a millisecond.
_SWEEP_S: Final = 1.0
# Times are sums of fractions.
_ROUNDING_S: Final = 1e-9


class Rate(NamedTuple):
    """So much a second in the long run, and `burst` of it at once."""

    per_s: float
    burst: float

    @property
    def window_s(self) -> int:
        """Whole seconds in which an empty bucket fills, at least one."""
        return max(1, ceil(self.burst / self.per_s))


class Buckets:
    """Buckets by key. What is not kept is full.

    A bucket that is not full is never dropped, so that a flood of keys gives no caller back what it took.
    While `BUCKETS_MAX` are kept, new keys share `SHARED_MAX` buckets among them.
    """

    def __init__(self) -> None:
        self._full_at: dict[str | int, float] = {}
        self._shared = 0
        self._swept_s = 0.0

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_s(self, key: str, rate: Rate, cost: float, now_s: float) -> float:
        """Seconds until the cost can be had; 0 if it can be had now."""
        ahead_s = max(self._full_at.get(self._place(key), 0.0) - now_s, 0.0)
        wait_s = ahead_s + (min(cost, rate.burst) - rate.burst) / rate.per_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, key: str, rate: Rate, cost: float, now_s: float) -> None:
        """Take the cost, whether or not it can be had. A negative one gives back."""
        place = self._place(key)
        full_at = self._full_at.get(place)
        if full_at is None and cost > 0:
            place = self._new_place(key, now_s)
            full_at = self._full_at.get(place, 0.0)
        if full_at is not None:
            self._full_at[place] = max(full_at, now_s) + cost / rate.per_s

    def remaining(self, key: str, rate: Rate, now_s: float) -> float:
        """How much can be had at once."""
        ahead_s = max(self._full_at.get(self._place(key), 0.0) - now_s, 0.0)
        return max(rate.burst - ahead_s * rate.per_s, 0.0)

    def full_after_s(self, key: str, now_s: float) -> float:
        """Seconds until the bucket is full."""
        return max(self._full_at.get(self._place(key), 0.0) - now_s, 0.0)

    def _place(self, key: str) -> str | int:
        """Where the bucket of a key is."""
        if not self._shared or key in self._full_at:
            return key
        shared = _shared_place(key)
        return shared if shared in self._full_at else key

    def _new_place(self, key: str, now_s: float) -> str | int:
        if len(self._full_at) - self._shared >= BUCKETS_MAX:
            self._sweep(now_s)
        if len(self._full_at) - self._shared < BUCKETS_MAX:
            return key
        shared = _shared_place(key)
        self._shared += shared not in self._full_at
        return shared

    def _sweep(self, now_s: float) -> None:
        """Drop full buckets, at most once in `_SWEEP_S`."""
        if now_s < self._swept_s + _SWEEP_S:
            return
        self._swept_s = now_s
        self._full_at = {place: at for place, at in self._full_at.items() if at > now_s}
        self._shared = sum(isinstance(place, int) for place in self._full_at)


def _shared_place(key: str) -> int:
    """Unknown to callers: Python hashes text with a secret of the process."""
    return hash(key) % SHARED_MAX
