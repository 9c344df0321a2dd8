"""Authorization: actions, principals, policies.

Knows: what an action means. Must never know: entries, routes, which command or route needs which action.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final, Protocol

import msgspec

from app.errors import RefusalError


class Action(StrEnum):
    """What a grant allows on the streams that it names."""

    READ = "read"
    WRITE = "write"
    CONSUME = "consume"
    MANAGE = "manage"
    ADMIN = "admin"


class Access(Enum):
    """Routes that need no action of their own."""

    OPEN = "open"
    """No authorization: health, documents."""
    PER_COMMAND = "per command"
    """The handler authorises each command."""
    PER_STREAM = "per stream"
    """The handler authorises each stream of the body."""


Rule = Action | Access


class Principal(msgspec.Struct, frozen=True):
    """The caller of a request; `name` may be logged."""

    name: str


class AccessPolicy(Protocol):
    """Identifies callers and decides what they may do."""

    def principal(self, headers: Mapping[bytes, bytes]) -> Principal:
        """The caller with these headers. Raises `unauthenticated`."""
        ...

    def may(self, principal: Principal, action: Action, stream: str | None) -> bool:
        """Whether the action is allowed on the stream; None is all streams."""
        ...


class OpenPolicy:
    """Allows everything to every caller: for loopback, or with the setting `insecure`."""

    def principal(self, headers: Mapping[bytes, bytes]) -> Principal:
        return _ANYBODY

    def may(self, principal: Principal, action: Action, stream: str | None) -> bool:
        return True


_ANYBODY: Final = Principal("anybody")


def require(policy: AccessPolicy, principal: Principal, action: Action, stream: str | None) -> None:
    """Raise `forbidden` unless the principal may do this. The refusal does not reveal whether the stream
    exists.
    """
    if not policy.may(principal, action, stream):
        raise RefusalError("forbidden", f"the credentials do not allow to {action} here")
