"""Principals: callers that were recognised, and what they may do.

Knows: that a decision about a name does not change while the principal exists; how one is carried to another
process or gateway.
Must never know: headers, tokens, how a caller was recognised.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import TypeAdapter

from app.auth.grants import ALL, ANY_CONSUMER, Action, Grant, Resource, common_prefix, readable
from app.auth.rate_limits import Rates
from app.auth.revocations import JwtIdentity
from app.auth.tokens import GrantValue, Token
from app.errors import ErrorLocation, RefusalError
from app.glob import Glob

# Decisions that one principal remembers: matching a pattern takes a hundred times as long as looking here.
_DECISIONS_MAX: Final = 1_000


NAME_CONSUMER: Final = (
    "the credentials are for one consumer alone: name it, as `consumer`, or CONSUMER of WEIR.NACK"
)


class Principal:
    """A caller. `name` may be logged; `expires_s` is Unix time, None if it never expires.

    `token` is its static token, `jwt` what identifies its JWT, if it has one. `prefix` is that of its grants,
    empty without one. Raises ValueError where these differ.
    """

    __slots__ = (
        "_decisions",
        "_readable",
        "expires_s",
        "grants",
        "jwt",
        "name",
        "prefix",
        "quotas",
        "rates",
        "token",
    )

    def __init__(
        self,
        name: str,
        grants: Sequence[Grant],
        *,
        expires_s: float | None = None,
        token: Token | None = None,
        jwt: JwtIdentity | None = None,
    ) -> None:
        self.name = name
        self.grants = tuple(grants)
        self.prefix = common_prefix(self.grants)
        self.expires_s = expires_s
        self.token = token
        # None where no grant sets one.
        self.rates = Rates.of_grants(self.grants)
        # Each of them holds.
        self.quotas = tuple(quota for grant in self.grants if (quota := grant.quota()) is not None)
        self.jwt = jwt
        # Made when it is needed.
        self._readable: Sequence[Glob] | None = None
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
    def may_see_all(self) -> bool:
        """Whether it may read every stream that it has, those of its prefix."""
        return any(Action.READ in grant.actions and grant.streams == ALL for grant in self.grants)

    def may_see(self, stream: str) -> bool:
        """Whether it may read the stream: for lists of names, which are more than can be remembered."""
        if self._readable is None:
            self._readable = readable(self.grants)
        name = stream.encode()
        return any(pattern.matches(name) for pattern in self._readable)

    def require(self, action: Action, resource: Resource) -> None:
        """Raise `forbidden` unless it may do this. The refusal does not reveal whether the stream exists."""
        if self.may(action, resource):
            return
        if self.has_to_name_consumer(action, resource):
            raise forbidden(NAME_CONSUMER)
        raise forbidden(f"the credentials do not allow to {action} here")

    def has_to_name_consumer(self, action: Action, resource: Resource) -> bool:
        """Whether it may do this to what one consumer holds, and has not said which."""
        return resource.consumer == ANY_CONSUMER and self.may(action, resource._replace(consumer=None))

    def right_to_drop(self, held: Resource) -> Action:
        """What it needs to drop what a consumer holds: `consume` where a grant is for this consumer alone,
        else `manage`.
        """
        own = [grant for grant in self.grants if grant.consumer is not None]
        return Action.CONSUME if any(grant.allows(Action.CONSUME, held) for grant in own) else Action.MANAGE

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
        return Principal(self.name, grants, expires_s=self.expires_s, token=self.token, jwt=self.jwt)


def forbidden(detail: str, *places: ErrorLocation) -> RefusalError:
    """403, with the word of RFC 6750, 3.1."""
    challenge = 'Bearer error="insufficient_scope"'
    return RefusalError("forbidden", detail, places=places, headers={"www-authenticate": challenge})


# Everything is allowed: without any token, on loopback or with the setting `insecure`.
ANONYMOUS: Final = Principal("anonymous", [Grant(actions=frozenset(Action))])
# A caller that has not shown credentials yet, or needs none.
UNAUTHENTICATED: Final = Principal("unauthenticated", [])

# A caller as it is carried.
Packed = list[Any]
_GRANTS: Final = TypeAdapter(tuple[GrantValue, ...])
_SHARED: Final = {one.name: one for one in (ANONYMOUS, UNAUTHENTICATED)}


def pack_principal(principal: Principal) -> Packed:
    """A caller as it is carried."""
    token = principal.token
    return [
        principal.name,
        _GRANTS.dump_json(principal.grants),
        principal.expires_s,
        None if token is None else token.model_dump_json(exclude_none=True).encode(),
        principal.jwt,
    ]


def unpack_principal(packed: Packed) -> Principal:
    """A caller that was carried."""
    name, grants, expires_s, token, jwt = packed
    shared = _SHARED.get(name)
    if shared is not None:
        return shared
    return Principal(
        name,
        _GRANTS.validate_json(grants),
        expires_s=expires_s,
        token=None if token is None else Token.model_validate_json(token),
        jwt=None if jwt is None else JwtIdentity(*jwt),
    )
