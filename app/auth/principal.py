"""Principals: callers that were recognised, and what they may do.

Knows: that a decision about a name stays the same for as long as the principal lives.
Must never know: headers, tokens, how a caller was recognised.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from app.auth.actions import Action
from app.auth.grants import Grant, Resource
from app.auth.tokens import Token

# Decisions that one principal remembers: matching a pattern takes a hundred times as long as looking here.
_DECISIONS_MAX: Final = 1_000


class Principal:
    """A caller. `name` may be logged; `expires_s` is Unix time, None if it never expires.

    `token` is its static token, if it has one.
    """

    __slots__ = ("_decisions", "expires_s", "grants", "name", "token")

    def __init__(
        self,
        name: str,
        grants: Sequence[Grant],
        *,
        expires_s: float | None = None,
        token: Token | None = None,
    ) -> None:
        self.name = name
        self.grants = tuple(grants)
        self.expires_s = expires_s
        self.token = token
        self._decisions: dict[tuple[Action, Resource], bool] = {}

    def may(self, action: Action, resource: Resource) -> bool:
        """Whether one of its grants allows the action."""
        key = action, resource
        decision = self._decisions.get(key)
        if decision is None:
            decision = any(grant.allows(action, resource) for grant in self.grants)
            if len(self._decisions) >= _DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    @property
    def expires_at(self) -> str | None:
        """When it expires, as RFC 3339 has it, in UTC."""
        if self.expires_s is None:
            return None
        return datetime.fromtimestamp(self.expires_s, UTC).isoformat().replace("+00:00", "Z")

    def may_somewhere(self, action: Action) -> bool:
        """Whether there may be streams on which it may do this."""
        return any(action in grant.actions for grant in self.grants)

    def is_expired(self, now_s: float) -> bool:
        """Whether its time is over."""
        return self.expires_s is not None and self.expires_s <= now_s

    def on_page(self, origin: str) -> "Principal":
        """The same caller from a web page of this origin: grants for other pages are left out."""
        grants = [grant for grant in self.grants if grant.allows_page(origin)]
        if len(grants) == len(self.grants):
            return self
        return Principal(self.name, grants, expires_s=self.expires_s, token=self.token)


# Everything is allowed: without any token, on loopback or with the setting `insecure`.
ANONYMOUS: Final = Principal("anonymous", [Grant(actions=frozenset(Action))])
# A caller that has not shown credentials yet, or needs none.
UNAUTHENTICATED: Final = Principal("unauthenticated", [])
