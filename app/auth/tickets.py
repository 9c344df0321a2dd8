"""Tickets: what a browser sends where it cannot send a header, once and soon.

Knows: that a ticket is for one use, a short time and one origin. Must never know: tokens, sockets.
"""

import secrets
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from app.auth.principal import Principal
from app.errors import RefusalError

LIFETIME_S: Final = 30.0
# Tickets that are not used yet.
TICKETS_MAX: Final = 10_000
# Of one caller: one that asks for many leaves the others theirs.
TICKETS_OF_CALLER_MAX: Final = 1_000
_BYTES: Final = 32


class _Ticket(NamedTuple):
    principal: Principal
    origin: str
    ends_s: float


class Tickets:
    """The tickets of one gateway."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # In the order in which they end.
        self._open: dict[str, _Ticket] = {}
        # How many of them each caller has.
        self._counts: Counter[str] = Counter()

    def issue(self, principal: Principal, origin: str) -> str:
        """A ticket for this caller on pages of this origin; without one, for programs.

        Raises `rate_limited` while too many are open.
        """
        now = self._monotonic()
        while self._open and next(iter(self._open.values())).ends_s <= now:
            self._take(next(iter(self._open)))
        for count, most in (
            (self._counts[principal.name], TICKETS_OF_CALLER_MAX),
            (len(self._open), TICKETS_MAX),
        ):
            if count >= most:
                detail = f"{most} tickets are open: use them, or wait {LIFETIME_S:.0f} s"
                raise RefusalError("rate_limited", detail)
        text = secrets.token_urlsafe(_BYTES)
        self._open[text] = _Ticket(principal, origin, now + LIFETIME_S)
        self._counts[principal.name] += 1
        return text

    def redeem(self, text: str, origin: str) -> Principal | None:
        """Whose ticket it is; None if it was used, has ended, or is for another origin. It is used up."""
        ticket = self._take(text)
        if ticket is None or ticket.ends_s <= self._monotonic() or ticket.origin != origin:
            return None
        return ticket.principal

    def _take(self, text: str) -> _Ticket | None:
        ticket = self._open.pop(text, None)
        if ticket is not None:
            name = ticket.principal.name
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]
        return ticket
