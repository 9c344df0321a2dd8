"""Sessions: connections and reads that stay open, and must end when their token does.

Knows: which caller each belongs to, when its token expires. Must never know: tokens, how a session ends.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from app.auth import Principal
from app.errors import RefusalError
from engine import Clock

# A session is warned this long before its token expires.
WARNING_S: Final = 60.0
# asyncio's timers lose their accuracy far ahead.
_TIMER_S_MAX: Final = 24 * 3600.0


class AccessEnd(StrEnum):
    """Why a session may not go on."""

    EXPIRED = "expired"
    REVOKED = "revoked"

    @property
    def refusal(self) -> RefusalError:
        """The refusal that the caller gets."""
        detail = "the token has expired" if self is AccessEnd.EXPIRED else "the token was revoked"
        challenge = {"www-authenticate": 'Bearer error="invalid_token"'}
        return RefusalError("unauthenticated", f"{detail}: come back with another one", headers=challenge)


class OpenSession:
    """One session, from `OpenSessions.enter` to `leave`."""

    def __init__(
        self,
        sessions: "OpenSessions",
        principal: Principal,
        end: Callable[[AccessEnd], None],
        warn: Callable[[int], None],
    ) -> None:
        self._sessions = sessions
        self.principal = principal
        self.end = end
        self._warn = warn
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False
        self._begin()

    def renew(self, principal: Principal) -> None:
        """Go on as this caller."""
        self.principal = principal
        self._warned = False
        self._begin()

    def leave(self) -> None:
        """The session is over."""
        self._sessions.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def revoke(self) -> None:
        """End it, unless it is over: the caller's token was revoked."""
        if self in self._sessions.open:
            self.leave()
            self.end(AccessEnd.REVOKED)

    def _begin(self) -> None:
        """Go on as the caller. A revocation may have come between its authentication and now."""
        self._set_timer()
        if self._sessions.is_revoked(self.principal):
            asyncio.get_running_loop().call_soon(self.revoke)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.principal.expires_s is None:
            return
        left_s = self.principal.expires_s - self._sessions.wall_s()
        wait_s = left_s if self._warned else left_s - WARNING_S
        self._timer = asyncio.get_running_loop().call_later(min(max(wait_s, 0.0), _TIMER_S_MAX), self._look)

    def _look(self) -> None:
        assert self.principal.expires_s is not None, "it has a timer"
        left_s = self.principal.expires_s - self._sessions.wall_s()
        if left_s <= 0:
            self.leave()
            self.end(AccessEnd.EXPIRED)
            return
        if not self._warned and left_s <= WARNING_S:
            self._warned = True
            self._warn(round(left_s * 1000))
        self._set_timer()


class OpenSessions:
    """All sessions of the gateway whose token may end."""

    def __init__(self, clock: Clock, is_revoked: Callable[[Principal], bool]) -> None:
        self._clock = clock
        self.is_revoked = is_revoked
        self.open: dict[OpenSession, None] = {}

    def wall_s(self) -> float:
        """Unix time."""
        return self._clock.wall_ms() / 1000

    def enter(
        self,
        principal: Principal,
        end: Callable[[AccessEnd], None],
        warn: Callable[[int], None] = lambda _: None,
    ) -> OpenSession:
        """Have `end` called when the caller's token expires or is revoked, and `warn` (with the milliseconds
        that are left) before it expires. `end` is never called before this returns.
        """
        session = OpenSession(self, principal, end, warn)
        self.open[session] = None
        return session

    def revoke(self, matches: Callable[[Principal], bool]) -> int:
        """End the sessions of these callers. Returns how many there were."""
        revoked = [session for session in self.open if matches(session.principal)]
        for session in revoked:
            session.revoke()
        return len(revoked)
