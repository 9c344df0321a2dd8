"""Tickets: what a browser sends where it cannot send a header, once and soon.

Knows: that a ticket is for one use, a short time and one origin. Must never know: tokens, sockets.
"""

import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from app.auth.principal import Principal
from app.errors import RefusalError

LIFETIME_S: Final = 30.0
# Tickets that are not used yet.
TICKETS_MAX: Final = 10_000
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

    def issue(self, principal: Principal, origin: str) -> str:
        """A ticket for this caller on pages of this origin; without one, for programs.

        Raises `rate_limited` while too many are open.
        """
        now = self._monotonic()
        while self._open and next(iter(self._open.values())).ends_s <= now:
            del self._open[next(iter(self._open))]
        if len(self._open) >= TICKETS_MAX:
            raise RefusalError(
                "rate_limited", f"{TICKETS_MAX} tickets are open: use them, or wait {LIFETIME_S:.0f} s"
            )
        text = secrets.token_urlsafe(_BYTES)
        self._open[text] = _Ticket(principal, origin, now + LIFETIME_S)
        return text

    def redeem(self, text: str, origin: str) -> Principal | None:
        """Whose ticket it is; None if it was used, has ended, or is for another origin. It is used up."""
        ticket = self._open.pop(text, None)
        if ticket is None or ticket.ends_s <= self._monotonic() or ticket.origin != origin:
            return None
        return ticket.principal
