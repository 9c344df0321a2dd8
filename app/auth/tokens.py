"""Static tokens: their text, which is shown once, and what is kept of them.

Knows: the form of a token, and that its hash is enough to recognise it. Must never know: where tokens are
kept, headers.

    weir_<id: 12 characters>_<secret: 32 random bytes in base 62>_<checksum: CRC-32 of what is before it>

The prefix and the checksum are for scanners that look for leaked secrets. A token has 256 random bits, so a
plain SHA-256 protects it: there is no dictionary to try.
"""

import secrets
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Any, Final, NamedTuple
from zlib import crc32

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
)

from app.auth.grants import Grant, common_prefix

PREFIX: Final = "weir"
# The ID of the token that the settings hold as text.
ROOT_ID: Final = "root00000000"
LABEL_CHARS_MAX: Final = 200
GRANTS_MAX: Final = 100
# Makings that a token keeps: from hand to hand it is passed on this often.
HANDS_MAX: Final = 8
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_CHARS: Final = 12
_SECRET_BYTES: Final = 32
# As many digits as 256 and 32 bits may need.
_SECRET_CHARS: Final = 43
_CHECK_CHARS: Final = 6
_HASH: Final = r"^sha256:[0-9a-f]{64}$"
ID_PATTERN: Final = rf"^[0-9A-Za-z]{{{_ID_CHARS}}}$"


def _read_grant(value: Any) -> Grant:  # noqa: ANN401 - any value of a file
    return value if isinstance(value, Grant) else Grant.from_value(value)


def check_prefixes(grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """The grants of one token. Raises ValueError where their prefixes differ."""
    common_prefix(grants)
    return grants


GrantValue = Annotated[Grant, BeforeValidator(_read_grant), PlainSerializer(Grant.describe)]


class Making(BaseModel):
    """That a caller, by its name, has made a token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str
    at: AwareDatetime


class Token(BaseModel):
    """What is kept of a token: enough to recognise it, not enough to use it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=ID_PATTERN, description="names the token; it is the middle of its text")]
    hash: Annotated[str, Field(pattern=_HASH, description="SHA-256 of the whole text")]
    grants: Annotated[
        tuple[GrantValue, ...], Field(min_length=1, max_length=GRANTS_MAX), AfterValidator(check_prefixes)
    ]
    label: Annotated[str, Field(max_length=LABEL_CHARS_MAX)] = ""
    expires_at: AwareDatetime | None = None
    # Of tokens that a running gateway has made.
    created_at: AwareDatetime | None = None
    created_by: str | None = None
    # How the token that it was made with was made, and so on, the first one first.
    earlier: Annotated[tuple[Making, ...], Field(max_length=HANDS_MAX - 1)] = ()

    @property
    def makings(self) -> tuple[Making, ...]:
        """All of them, its own last; none of a token of the settings."""
        if self.created_by is None or self.created_at is None:
            return ()
        return *self.earlier, Making.model_construct(by=self.created_by, at=self.created_at)

    def is_expired(self, now_s: float) -> bool:
        """Whether its time is over; `now_s` is Unix time."""
        return self.expires_at is not None and self.expires_at.timestamp() <= now_s


class CreatedToken(NamedTuple):
    """A token and its text, of which this is the only copy."""

    text: str
    token: Token


def create(
    grants: tuple[Grant, ...],
    *,
    label: str = "",
    expires_at: datetime | None = None,
    created_at: datetime | None = None,
    created_by: str | None = None,
    earlier: tuple[Making, ...] = (),
) -> CreatedToken:
    """Make a token. Raises ValidationError where label or grants are beyond their limits."""
    token_id = "".join(secrets.choice(_DIGITS) for _ in range(_ID_CHARS))
    secret = _base62(int.from_bytes(secrets.token_bytes(_SECRET_BYTES)), _SECRET_CHARS)
    body = f"{PREFIX}_{token_id}_{secret}"
    text = f"{body}_{_checksum(body)}"
    expires = None if expires_at is None else expires_at.astimezone(UTC)
    return CreatedToken(
        text,
        Token(
            id=token_id,
            hash=hash_of(text),
            grants=grants,
            label=label,
            expires_at=expires,
            created_at=created_at,
            created_by=created_by,
            earlier=earlier,
        ),
    )


def hash_of(text: str) -> str:
    """What is kept of a token's text."""
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def of_certificate(
    identity: str, grants: tuple[Grant, ...], *, label: str = "", expires_at: datetime | None = None
) -> Token:
    """A token that no text is: what a client certificate with this identity may do."""
    identity_hash = certificate_hash(identity)
    token_id = _base62(int(identity_hash.removeprefix("sha256:"), 16), _SECRET_CHARS)[-_ID_CHARS:]
    return Token(
        id=token_id,
        hash=identity_hash,
        grants=grants,
        label=label or identity[:LABEL_CHARS_MAX],
        expires_at=expires_at,
    )


def certificate_hash(identity: str) -> str:
    """What is kept of an identity. The first byte makes it differ from the hash of every text."""
    return f"sha256:{sha256(bytes([0xFF]) + identity.encode()).hexdigest()}"


def id_of(text: str) -> str | None:
    """The token's ID; None if this is no token's text, its checksum included."""
    body, _, check = text.rpartition("_")
    parts = body.split("_")
    is_whole = len(parts) == 3 and parts[0] == PREFIX and len(parts[1]) == _ID_CHARS
    return parts[1] if is_whole and len(parts[2]) == _SECRET_CHARS and check == _checksum(body) else None


def _checksum(body: str) -> str:
    return _base62(crc32(body.encode()), _CHECK_CHARS)


def _base62(number: int, digits: int) -> str:
    """A number with exactly this many digits."""
    text = ""
    for _ in range(digits):
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text
