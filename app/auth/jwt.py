"""JSON Web Tokens: their signature, their claims, and the keys to check them with.

Knows: which algorithms may sign, which claims are needed, when keys are fetched again.
Must never know: grants, headers, routes.

Joserfc checks signatures. What it is given is decided here: a fixed list of algorithms, so that `none` is
impossible, and keys of the kind that the algorithm needs, so that a public key is never used as if it
were a secret (RFC 8725, 3.1 and 3.2).
"""

import asyncio
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.name_rules import NAME_BYTES_MAX

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

KEYS_BYTES_MAX: Final = 64 << 10
LEEWAY_S: Final = 30
REFRESH_S: Final = 600.0
# The year 9999: times beyond it cannot be written.
_TIME_S_MAX: Final = 253_402_300_000
# An unknown key ID makes the keys be fetched again, at most this often: any client can invent one.
UNKNOWN_KEY_S: Final = 60.0
# What access tokens say that they are (RFC 7519, 5.1; RFC 9068, 2.1), unless a setting says otherwise. Others
# mean something else: an order to log out, a proof of possession.
TYPES: Final = frozenset({"jwt", "at+jwt"})
# Levels of the claims: of some hundred, what reads them runs out of stack.
_DEPTH_MAX: Final = 32
# They would break lines of logs and of CLIENT LIST.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Claims = Mapping[str, Any]
Fetch = Callable[[], Awaitable[bytes]]


class InvalidTokenError(Exception):
    """The token is not accepted. The text says why, and nothing of the token's content."""


class KeysError(Exception):
    """The keys cannot be used. The text says why."""


def read_keys(text: bytes, algorithms: Sequence[str]) -> "KeySet":
    """The keys of a JWK set (RFC 7517) that the algorithms need. Raises KeysError."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet, OctKey

    if len(text) > KEYS_BYTES_MAX:
        raise KeysError(f"the key set has more than {KEYS_BYTES_MAX} bytes")
    try:
        document = json.loads(text)
        keys = KeySet.import_key_set(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, JoseError) as error:
        raise KeysError(f"this is no JWK set: {error}") from None
    # Secrets are for HS, key pairs for all others.
    kinds = {algorithm.startswith("HS") for algorithm in algorithms}
    kept = [key for key in keys.keys if isinstance(key, OctKey) in kinds]
    if not kept:
        raise KeysError(f"the key set has no key for {', '.join(algorithms)}")
    return KeySet(kept)


class JwtKeys:
    """The keys as they are known now. `fetch` gets them anew; without it they never change."""

    def __init__(
        self,
        algorithms: Sequence[str],
        monotonic: Callable[[], float],
        *,
        keys: "KeySet | None" = None,
        fetch: Fetch | None = None,
        on_failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._algorithms = algorithms
        self._monotonic = monotonic
        self._fetch = fetch
        self._on_failed = on_failed
        # Called when a key is no longer among them.
        self.on_withdrawn: Callable[[], None] = lambda: None
        self._tried_s: float | None = None
        self._fetching = asyncio.Lock()
        self.current = keys
        # Whether the last try to fetch them has failed.
        self.is_failing = False

    async def refresh(self, older_s: float) -> None:
        """Fetch the keys unless that was tried within `older_s`. What fails leaves the last good keys."""
        if self._fetch is None or not self._is_due(older_s):
            return
        async with self._fetching:
            # Those that waited here have what they wanted.
            if not self._is_due(older_s):
                return
            self._tried_s = self._monotonic()
            try:
                found = read_keys(await self._fetch(), self._algorithms)
            except KeysError as error:
                self.is_failing = True
                self._on_failed(str(error))
                return
            before, self.current, self.is_failing = self.current, found, False
            if before is not None and _prints(before) - _prints(found):
                self.on_withdrawn()

    def _is_due(self, older_s: float) -> bool:
        return self._tried_s is None or self._monotonic() - self._tried_s >= older_s


def _prints(keys: "KeySet") -> set[str]:
    return {key.thumbprint() for key in keys.keys}


class Verifier:
    """Checks tokens. `issuer` and `audience` are what the claims have to say, where they are given, and
    `kind` what the header has to say as `typ`; without it that may be missing, or one of `TYPES`.
    """

    def __init__(
        self,
        keys: JwtKeys,
        algorithms: Sequence[str],
        wall_s: Callable[[], float],
        *,
        issuer: str | None = None,
        audience: str | None = None,
        kind: str | None = None,
    ) -> None:
        from joserfc import jwt
        from joserfc.errors import JoseError

        self._decode, self._error = jwt.decode, JoseError
        self._keys = keys
        self._algorithms = list(algorithms)
        self._wall_s = wall_s
        self._issuer = issuer
        self._audience = audience
        self._kinds = TYPES if kind is None else {_type_of(kind)}
        self._needs_kind = kind is not None

    def on_withdrawn(self, call: Callable[[], None]) -> None:
        """Call this when what a key has signed is good no more."""
        self._keys.on_withdrawn = call

    @property
    def is_failing(self) -> bool:
        """Whether the keys in use could not be fetched anew."""
        return self._keys.is_failing

    async def verify(self, text: str) -> Claims:
        """The claims of a valid token. Raises InvalidTokenError, KeysError."""
        await self._keys.refresh(REFRESH_S)
        header, claims = map(_read, _parts(text))
        self._check_header(header)
        if self._keys.current is None or self._is_unknown(header.get("kid")):
            await self._keys.refresh(UNKNOWN_KEY_S)
        keys = self._keys.current
        if keys is None or (self.is_failing and self._is_unknown(header.get("kid"))):
            # It may be one of the keys that were added since: who has it is not refused for good.
            raise KeysError("the keys to check the token with cannot be had at the moment")
        try:
            self._decode(text, keys, algorithms=self._algorithms)
        except (self._error, ValueError, KeyError, TypeError) as error:
            raise InvalidTokenError(f"its signature cannot be verified ({type(error).__name__})") from None
        self._check(claims)
        return claims

    def _is_unknown(self, key_id: object) -> bool:
        assert self._keys.current is not None, "the caller has looked"
        return key_id is not None and all(key.kid != key_id for key in self._keys.current.keys)

    def _check_header(self, header: Claims) -> None:
        if "crit" in header:
            raise InvalidTokenError("its header names extensions (crit), and none is known here")
        kind = header.get("typ")
        if kind is None and not self._needs_kind:
            return
        if not isinstance(kind, str) or _type_of(kind) not in self._kinds:
            raise InvalidTokenError("it is of another type (typ)")

    def _check(self, claims: Claims) -> None:
        now = self._wall_s()
        expires, begins, issued = (_number(claims, name) for name in ("exp", "nbf", "iat"))
        if expires is None:
            raise InvalidTokenError("it has no claim exp: a token without an end is not accepted")
        if expires + LEEWAY_S <= now:
            raise InvalidTokenError("it has expired")
        if begins is not None and begins - LEEWAY_S > now:
            raise InvalidTokenError("it is not valid yet (nbf)")
        if issued is not None and issued - LEEWAY_S > now:
            raise InvalidTokenError("it was issued in the future (iat)")
        if not isinstance(claims.get("sub"), str | None):
            raise InvalidTokenError("its claim sub is no text")
        for name in ("sub", "jti"):
            if isinstance(text := claims.get(name), str):
                _check_name(name, text)
        if self._issuer is not None and claims.get("iss") != self._issuer:
            raise InvalidTokenError("it has another issuer (iss)")
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if self._audience is not None and self._audience not in audiences:
            raise InvalidTokenError("it is for another audience (aud)")


def _parts(text: str) -> list[str]:
    """Header and claims, as they are written."""
    parts = text.split(".")
    if len(parts) != 3:
        raise InvalidTokenError("it is no signed JWT")
    return parts[:2]


def _read(part: str) -> Claims:
    """The object that is written so: a member that is there twice, or too many levels, are refused."""
    try:
        found = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)), object_pairs_hook=_members)
    except (ValueError, RecursionError):
        raise InvalidTokenError("it is no signed JWT") from None
    if not isinstance(found, dict):
        raise InvalidTokenError("it is no signed JWT")
    level: list[Any] = [found]
    for _ in range(_DEPTH_MAX):
        inside = [one.values() if isinstance(one, dict) else one for one in level]
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
    if level:
        raise InvalidTokenError(f"it has more than {_DEPTH_MAX} levels")
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise InvalidTokenError("it names a member twice")
    return members


def _type_of(kind: str) -> str:
    """A media type, without what RFC 7515, 4.1.9 recommends to leave out."""
    return kind.lower().removeprefix("application/")


def _check_name(name: str, text: str) -> None:
    """What the caller is called in logs and lists."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= NAME_BYTES_MAX or _CONTROL.search(text):
        raise InvalidTokenError(
            f"its claim {name} is no name: 1 to {NAME_BYTES_MAX} bytes of UTF-8 without control characters"
        )


def _number(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTokenError(f"its claim {name} is no number")
    # Neither infinite nor NaN, which is before no time at all.
    if not 0 <= value <= _TIME_S_MAX:
        raise InvalidTokenError(f"its claim {name} is no time")
    return float(value)
