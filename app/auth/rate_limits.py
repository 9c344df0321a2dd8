"""Rates and buckets: how much a caller may do in a time, by the generic cell rate algorithm (GCRA).

Knows: that a bucket fills at a steady rate up to its burst, how many buckets are kept, which of the rates of
a grant holds. Must never know: who a caller is, what is counted, the time.

A bucket is one number: the time at which it is full again ("theoretical arrival time", ITU-T I.371). What was
taken moves it ahead. A cost is admitted while the time that it leads to is at most a burst ahead; what costs
more than a burst is admitted by a full bucket, is paid in full, and the next cost waits for all of it.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple, Self

from app.auth.grants import Grant

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

    def take_tokens(self, key: str, rate: Rate, cost: float, now_s: float) -> None:
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


class Rates(NamedTuple):
    """The limits of one caller; None is no limit."""

    requests: Rate | None = None
    bytes: Rate | None = None

    @classmethod
    def set_to(cls, requests: tuple[int, int], size: tuple[int, int]) -> Self:
        """From a rate per second and a burst of each; a rate of 0 is no limit, a burst of 0 that of a
        second.
        """
        return cls(_rate(*requests), _rate(*size))

    @classmethod
    def of_grants(cls, grants: Iterable[Grant]) -> Self | None:
        """The largest that a grant with `rate` allows, of requests and of bytes; None where none has one."""
        limited = [
            cls.set_to((rate.requests_per_s, rate.requests_burst), (rate.bytes_per_s, rate.bytes_burst))
            for grant in grants
            if (rate := grant.rate) is not None
        ]
        if not limited:
            return None
        return cls(
            _largest([rates.requests for rates in limited]), _largest([rates.bytes for rates in limited])
        )

    def divided(self, parts: int) -> "Rates":
        """The part of one of several processes; it admits at least one request at once."""
        return self if parts == 1 else _divided(self, parts)

    def covers(self, other: "Rates") -> bool:
        """Whether they allow all that the others do."""
        return all(
            own is None or (new is not None and new.per_s <= own.per_s and new.burst <= own.burst)
            for own, new in zip(self, other, strict=True)
        )


NO_RATES: Final = Rates()
# Rates of tokens that are in use.
_DIVIDED_MAX: Final = 4_096


@lru_cache(_DIVIDED_MAX)
def _divided(rates: Rates, parts: int) -> Rates:
    return Rates(
        *(rate and Rate(rate.per_s / parts, float(ceil(rate.burst / parts))) for rate in rates),
    )


def _rate(per_s: int, burst: int) -> Rate | None:
    return Rate(per_s, burst or per_s) if per_s else None


def _largest(rates: list[Rate | None]) -> Rate | None:
    limited = [rate for rate in rates if rate is not None]
    return max(limited) if len(limited) == len(rates) else None
