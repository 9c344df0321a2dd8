"""Revocations: which tokens are accepted no more, although they are well-formed, signed and not expired.

Knows: what a revocation names, and how long it has to be kept. Must never know: where it is kept, sessions.

    token    one static token, by its ID
    jti      one JWT, by its claim `jti`
    subject  what was issued to a subject before `issued_before`: JWTs by `sub` and `iat`, and static tokens
             that this caller has made, or that were made with one of those
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from app.auth.jwt import LEEWAY_S
from app.auth.tokens import Token

REVOCATIONS_MAX: Final = 10_000
VALUE_CHARS_MAX: Final = 512
# Of the name of a caller, which stands in logs.
_NAME_CHARS_MAX: Final = 100

Kind = Literal["token", "jti", "subject"]
Key = tuple[Kind, str]


class JwtIdentity(NamedTuple):
    """What of a JWT a revocation may name; None for a claim that it does not have."""

    id: str | None
    subject: str | None
    issued_s: float | None

    def name(self, text: str) -> str:
        """Whose JWT it is, `text` in full: no two subjects have the same name. Without a subject each JWT has
        its own.
        """
        if self.subject is not None:
            return _of_subject(self.subject)
        if self.id is not None:
            return _short(f"jwt-id:{self.id}")
        return f"jwt-hash:{sha256(text.encode()).hexdigest()}"


def _of_subject(subject: str) -> str:
    """The name of callers with JWTs of this subject."""
    return _short(f"jwt:{subject}")


def _short(name: str) -> str:
    # Those with a digest have the full length, so no other one can look like one.
    if len(name) < _NAME_CHARS_MAX:
        return name
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{name[: _NAME_CHARS_MAX - len(digest) - 1]}~{digest}"


class Revocation(BaseModel):
    """One revocation. After `expires_at` what it names has expired by itself, and it is forgotten."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    value: Annotated[str, Field(min_length=1, max_length=VALUE_CHARS_MAX)]
    revoked_at: AwareDatetime
    issued_before: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None

    @model_validator(mode="after")
    def _check(self) -> "Revocation":
        if (self.kind == "subject") != (self.issued_before is not None):
            raise ValueError("issued_before goes with a subject, and with nothing else")
        return self

    @property
    def key(self) -> Key:
        """What distinguishes it from others."""
        return self.kind, self.value

    def is_over(self, now_s: float) -> bool:
        """Whether all that it names has expired: a JWT is accepted for a while behind its end."""
        return self.expires_at is not None and self.expires_at.timestamp() + LEEWAY_S <= now_s


class Revocations:
    """All revocations of a gateway. One that is over counts no more, though it is still to be forgotten."""

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._known: dict[Key, Revocation] = {}
        # Those of subjects, by the names that callers with their JWTs have.
        self._callers: dict[str, Revocation] = {}

    def __iter__(self) -> Iterator[Revocation]:
        now_s = self._wall_s()
        return (revocation for revocation in self._known.values() if not revocation.is_over(now_s))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def get(self, key: Key) -> Revocation:
        """The revocation of this key, which is known."""
        return self._known[key]

    def add(self, revocations: Iterable[Revocation]) -> None:
        """Know these too. Of two about the same the one that revokes more counts."""
        for revocation in revocations:
            before = self._known.get(revocation.key)
            known = self._known[revocation.key] = revocation if before is None else _wider(before, revocation)
            if revocation.kind == "subject":
                self._callers[_of_subject(revocation.value)] = known

    def forget(self, count_max: int) -> list[Revocation]:
        """Forget those that are over, at most `count_max`. Returns them."""
        now_s = self._wall_s()
        over = [revocation for revocation in self._known.values() if revocation.is_over(now_s)][:count_max]
        for revocation in over:
            del self._known[revocation.key]
            self._callers.pop(_of_subject(revocation.value), None)
        return over

    def has_token(self, token: Token) -> bool:
        """Whether a static token is revoked."""
        if not self._known:
            return False
        return self._find(("token", token.id)) is not None or any(
            _is_before(making.at.timestamp(), revocation)
            for making in token.makings
            for revocation in (self._find(("subject", making.by)), self._valid(self._callers.get(making.by)))
        )

    def has_jwt(self, jwt: JwtIdentity) -> bool:
        """Whether a JWT is revoked."""
        if not self._known:
            return False
        if jwt.id is not None and self._find(("jti", jwt.id)) is not None:
            return True
        revocation = None if jwt.subject is None else self._find(("subject", jwt.subject))
        return _is_before(jwt.issued_s, revocation)

    def _find(self, key: Key) -> Revocation | None:
        return self._valid(self._known.get(key))

    def _valid(self, revocation: Revocation | None) -> Revocation | None:
        return None if revocation is None or revocation.is_over(self._wall_s()) else revocation


def _is_before(issued_s: float | None, revocation: Revocation | None) -> bool:
    """Whether a subject's revocation is about what was issued then; without a time it may be from any."""
    if revocation is None:
        return False
    assert revocation.issued_before is not None, "a subject has it"
    return issued_s is None or issued_s < revocation.issued_before.timestamp()


def _wider(one: Revocation, other: Revocation) -> Revocation:
    """The union of two revocations of the same key."""
    ends = one.expires_at, other.expires_at
    return one.model_copy(
        update={
            "issued_before": _latest(one.issued_before, other.issued_before),
            "expires_at": None if None in ends else _latest(*ends),
        }
    )


def _latest(one: datetime | None, other: datetime | None) -> datetime | None:
    return max(one, other) if one is not None and other is not None else one or other
