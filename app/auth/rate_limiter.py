"""Rate limits of callers: requests and bytes, and credentials that are wrong.

Knows: what each bucket counts, what a refusal says, the header fields that show a limit.
Must never know: routes, frames, how a caller was recognised.

Headers are those of draft-ietf-httpapi-ratelimit-headers: a policy is `"requests";q=<burst>;w=<seconds in
which that fills>`, its state `"requests";r=<what is left>;t=<seconds until it is full>`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil
from typing import Final, Self

from app.auth.principal import ANONYMOUS, UNAUTHENTICATED, Principal
from app.auth.rate_limits import BUCKETS_MAX, NO_RATES, Buckets, Rate, Rates
from app.errors import RefusalError
from app.settings import Settings, parse_rate

Header = tuple[bytes, bytes]
# One customer of a provider can choose at least this many bits of an IPv6 address.
_IPV6_NETWORK_BITS: Final = 64


@lru_cache(BUCKETS_MAX)
def address_key(address: str) -> str:
    """The key of callers at a network address: an IPv6 address stands for its /64."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return f"ip:{address}"
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return f"ip:{ip_network((parsed, _IPV6_NETWORK_BITS), strict=False)}"
    return f"ip:{getattr(parsed, 'ipv4_mapped', None) or parsed}"


def caller_of(principal: Principal, address: str) -> str:
    """The key of a caller: its principal's name, or its address where that is all that is known."""
    if principal is ANONYMOUS or principal is UNAUTHENTICATED:
        return address_key(address)
    return principal.name


class RateLimiter:
    """The buckets of one gateway. `rates` hold for callers whose grants set none."""

    def __init__(
        self, rates: Rates, failures: Rate | None, monotonic: Callable[[], float], parts: int = 1
    ) -> None:
        self.rates = rates
        # Among how many processes each rate is divided.
        self._parts = parts
        self._failures = failures
        self.monotonic = monotonic
        self.requests = Buckets()
        self.bytes = Buckets()
        # By address alone: nothing else is known of a caller whose credentials are wrong.
        self._failed = Buckets()

    @classmethod
    def of(cls, settings: Settings, monotonic: Callable[[], float]) -> Self | None:
        """As set; None where no caller can have a limit."""
        rates = Rates.set_to(parse_rate(settings.rate_requests), parse_rate(settings.rate_bytes))
        if rates == NO_RATES and not settings.has_tokens and not settings.hooks_file:
            return None
        wrong = Rates.set_to(parse_rate(settings.rate_failures), (0, 0))
        parts = max(1, settings.fronts)
        return cls(rates, wrong.divided(parts).requests, monotonic, parts)

    def meter(self, principal: Principal, address: str) -> "Meter | None":
        """What counts for this caller, for one request or one connection; None if it has no limit."""
        if not self.limits(principal):
            return None
        rates = principal.rates or self.rates
        return Meter(self, caller_of(principal, address), rates.divided(self._parts))

    def limits(self, principal: Principal) -> bool:
        """Whether this caller has a limit."""
        return (principal.rates or self.rates) != NO_RATES

    def count_failure(self, address: str) -> None:
        """Count a refusal of what came without credentials as wrong ones, unless there were too many."""
        rate, key, now_s = self._failures, address_key(address), self.monotonic()
        if rate is not None and not self._failed.wait_s(key, rate, 1, now_s):
            self._failed.take_tokens(key, rate, 1, now_s)

    @contextmanager
    def counting_failures(self, address: str) -> Iterator[None]:
        """Count it against the address if the credentials that are checked inside are wrong.

        Raises `rate_limited` at once, without a check, while there were too many.
        """
        if self._failures is None:
            yield
            return
        key, now_s = address_key(address), self.monotonic()
        wait_s = self._failed.wait_s(key, self._failures, 1, now_s)
        if wait_s:
            raise _rate_limited("too many wrong credentials from this address", "failures", wait_s)
        # Before the check: many at the same time are no way around the limit.
        self._failed.take_tokens(key, self._failures, 1, now_s)
        is_wrong = False
        try:
            yield
        except RefusalError as refusal:
            is_wrong = refusal.code == "unauthenticated"
            raise
        finally:
            if not is_wrong:
                self._failed.take_tokens(key, self._failures, -1, now_s)


class Meter:
    """Counts what one caller does. All of a caller's meters count in the same buckets."""

    __slots__ = ("_bytes", "_key", "_monotonic", "_rates", "_requests", "_taken")

    def __init__(self, limiter: RateLimiter, key: str, rates: Rates) -> None:
        self._key = key
        self._rates = rates
        self._requests, self._bytes = limiter.requests, limiter.bytes
        self._monotonic = limiter.monotonic
        self._taken = (0, 0)

    def take_requests(self, requests: int, size: int = 0) -> None:
        """Take requests and bytes, both or neither. Raises `rate_limited`."""
        key, rates, now_s = self._key, self._rates, self._monotonic()
        for name, rate, buckets, cost in (
            ("requests", rates.requests, self._requests, requests),
            ("bytes", rates.bytes, self._bytes, size),
        ):
            wait_s = buckets.wait_s(key, rate, cost, now_s) if rate is not None else 0.0
            if wait_s:
                raise _rate_limited(f"the limit of {name} is reached", name, wait_s)
        self._add(requests, size, now_s)
        self._taken = requests, size

    def take_more(self, requests: int) -> None:
        """Count what was taken last as this many requests. Raises `rate_limited`, with the requests given
        back.
        """
        if requests > 1:
            taken, size = self._taken
            self._add(-taken, 0, self._monotonic())
            self._taken = 0, size
            self.take_requests(requests)
            self._taken = requests, size

    def give_back(self) -> None:
        """Give back what was taken last: it is counted again, where it is served."""
        requests, size = self._taken
        self._add(-requests, -size, self._monotonic())
        self._taken = (0, 0)

    def charge(self, size: int) -> float:
        """Take the bytes of an answer, which are known only now. Returns the seconds until the caller is out
        of debt.
        """
        rate, now_s = self._rates.bytes, self._monotonic()
        self._add(0, size, now_s)
        return 0.0 if rate is None else self._bytes.wait_s(self._key, rate, 0, now_s)

    def headers(self) -> list[Header]:
        """The header fields of every answer to a caller with limits."""
        now_s = self._monotonic()
        policies, states = [], []
        for name, unit, rate, buckets in (
            ("requests", "", self._rates.requests, self._requests),
            ("bytes", ';qu="content-bytes"', self._rates.bytes, self._bytes),
        ):
            if rate is not None:
                remaining = int(buckets.remaining(self._key, rate, now_s))
                full_after_s = ceil(buckets.full_after_s(self._key, now_s))
                policies.append(f'"{name}";q={int(rate.burst)}{unit};w={rate.window_s}')
                states.append(f'"{name}";r={remaining};t={full_after_s}')
        return [
            (b"ratelimit-policy", ", ".join(policies).encode()),
            (b"ratelimit", ", ".join(states).encode()),
        ]

    def _add(self, requests: int, size: int, now_s: float) -> None:
        if self._rates.requests is not None:
            self._requests.take_tokens(self._key, self._rates.requests, requests, now_s)
        if self._rates.bytes is not None:
            self._bytes.take_tokens(self._key, self._rates.bytes, size, now_s)


def _rate_limited(detail: str, limit: str, wait_s: float) -> RefusalError:
    return RefusalError(
        "rate_limited",
        f"{detail}: wait {wait_s:.3g} s",
        members={"limit": limit, "retry_after_ms": ceil(wait_s * 1000)},
        headers={"retry-after": str(max(1, ceil(wait_s)))},
    )
