"""The rates of one caller, as settings and grants set them.

Knows: which of several rates holds. Must never know: buckets.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import ceil
from typing import Final, NamedTuple, Self

from app.auth.grants import Grant
from app.auth.rate_limits import Rate


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
        found = [
            cls.set_to((one.requests_per_s, one.requests_burst), (one.bytes_per_s, one.bytes_burst))
            for grant in grants
            if (one := grant.rate) is not None
        ]
        if not found:
            return None
        return cls(_largest([one.requests for one in found]), _largest([one.bytes for one in found]))

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
