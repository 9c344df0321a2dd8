"""Policies: who a request comes from.

Knows: credentials in headers, which tokens there are, what was recognised before.
Must never know: routes, what an action is needed for.

    Authorization ─► seen before? ─ yes ─► principal              (the fast path looks only here)
                        │ no
                        ├─ weir_…      ─► static token by its hash ─┐
                        └─ header.…    ─► JWT by its signature     ─┴─► principal, remembered
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from app.auth import tokens
from app.auth.grants import Grant
from app.auth.jwt import Claims, InvalidTokenError, KeysError, Verifier
from app.auth.principal import ANONYMOUS, Principal
from app.auth.tokens import Token
from app.errors import RefusalError

# Recognised credentials that are remembered.
_REMEMBERED_MAX: Final = 10_000
# Longer credentials are not looked at: the largest JWT that identity providers issue is below it.
_CREDENTIALS_BYTES_MAX: Final = 8 << 10
_SUBJECT_CHARS_MAX: Final = 100

Headers = Mapping[bytes, bytes]


class AccessPolicy(Protocol):
    """Identifies callers."""

    def recognise(self, headers: Headers) -> Principal | None:
        """The caller with these headers, if the answer is at hand."""
        ...

    async def authenticate(self, headers: Headers) -> Principal:
        """The caller with these headers. Raises `unauthenticated`."""
        ...

    async def identify(self, text: str) -> Principal:
        """Whose token this is. Raises `unauthenticated`."""
        ...


class OpenPolicy:
    """Allows everything to every caller: for loopback, or with the setting `insecure`."""

    def recognise(self, headers: Headers) -> Principal | None:
        return ANONYMOUS

    async def authenticate(self, headers: Headers) -> Principal:
        return ANONYMOUS

    async def identify(self, text: str) -> Principal:
        return ANONYMOUS


class GrantMapping:
    """The grants of a JWT: from a claim that lists them, and from the words of `scope`."""

    def __init__(self, claim: str, scopes: Mapping[str, Sequence[Grant]]) -> None:
        self._claim = claim
        self._scopes = scopes

    def grants(self, claims: Claims) -> list[Grant]:
        """What the claims allow. Raises InvalidTokenError where a grant is malformed."""
        listed = claims.get(self._claim, [])
        if not isinstance(listed, list):
            raise InvalidTokenError(f"its claim {self._claim} is no list of grants")
        try:
            grants = [Grant.from_value(value) for value in listed[: tokens.GRANTS_MAX]]
        except ValueError as error:
            raise InvalidTokenError(f"its claim {self._claim} is wrong: {error}") from None
        for word in _words(claims.get("scope")):
            grants += self._scopes.get(word, ())
        return grants


def _words(scope: Any) -> list[str]:  # noqa: ANN401 - any JSON value
    """RFC 8693 separates scopes by spaces; some providers write a list."""
    if isinstance(scope, str):
        return scope.split()
    return [word for word in scope if isinstance(word, str)] if isinstance(scope, list) else []


class TokenPolicy:
    """Recognises static tokens and JWTs."""

    def __init__(
        self,
        known: Iterable[Token],
        wall_s: Callable[[], float],
        *,
        verifier: Verifier | None = None,
        mapping: GrantMapping | None = None,
    ) -> None:
        self._tokens = {token.hash: token for token in known}
        self._wall_s = wall_s
        self._verifier = verifier
        self._mapping = mapping or GrantMapping("grants", {})
        self._remembered: dict[tuple[bytes, bytes], Principal] = {}

    def replace_tokens(self, known: Iterable[Token]) -> None:
        """Know these static tokens from now on, and no others."""
        self._tokens = {token.hash: token for token in known}
        self._remembered.clear()

    def is_revoked(self, principal: Principal) -> bool:
        """Whether the caller's static token is known no more, or is another one now: with other grants, or
        another end.
        """
        return principal.token is not None and self._tokens.get(principal.token.hash) != principal.token

    def recognise(self, headers: Headers) -> Principal | None:
        """The caller, if these credentials were recognised before and are still good."""
        key = headers.get(b"authorization", b""), headers.get(b"origin", b"")
        principal = self._remembered.get(key)
        if principal is not None and principal.is_expired(self._wall_s()):
            del self._remembered[key]
            return None
        return principal

    async def authenticate(self, headers: Headers) -> Principal:
        """The caller. Raises `unauthenticated`."""
        known = self.recognise(headers)
        if known is not None:
            return known
        credentials, origin = headers.get(b"authorization", b""), headers.get(b"origin", b"")
        principal = await self.identify(_bearer(credentials))
        if origin:
            principal = principal.on_page(origin.decode("latin-1"))
        if len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[credentials, origin] = principal
        return principal

    async def identify(self, text: str) -> Principal:
        """Whose token this is. Raises `unauthenticated`."""
        if text.startswith(tokens.PREFIX + "_") or tokens.hash_of(text) in self._tokens:
            return self._of_static(text)
        if self._verifier is None:
            raise unauthenticated("this is not a token of this gateway", "invalid_token")
        try:
            claims = await self._verifier.verify(text)
            return _of_claims(claims, self._mapping.grants(claims))
        except KeysError as error:
            raise RefusalError("keys_unavailable", str(error)) from None
        except InvalidTokenError as error:
            raise unauthenticated(f"the token is not accepted: {error}", "invalid_token") from None

    def _of_static(self, text: str) -> Principal:
        token = self._tokens.get(tokens.hash_of(text))
        if token is None:
            wrong = "" if tokens.id_of(text) else ": its checksum is wrong, part of it may be missing"
            raise unauthenticated(f"the token is unknown or was revoked{wrong}", "invalid_token")
        if token.is_expired(self._wall_s()):
            raise unauthenticated("the token has expired", "invalid_token")
        expires = token.expires_at
        return Principal(
            f"token:{token.id}",
            token.grants,
            expires_s=None if expires is None else expires.timestamp(),
            token=token,
        )


def _of_claims(claims: Claims, grants: Sequence[Grant]) -> Principal:
    return Principal(f"jwt:{claims.get('sub')}"[:_SUBJECT_CHARS_MAX], grants, expires_s=float(claims["exp"]))


def _bearer(credentials: bytes) -> str:
    """The token of an Authorization header. Raises `unauthenticated`."""
    if not credentials:
        raise unauthenticated("a token is needed: send Authorization: Bearer <token>", None)
    scheme, _, token = credentials.partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip() or len(credentials) > _CREDENTIALS_BYTES_MAX:
        raise unauthenticated("send the token as Authorization: Bearer <token>", "invalid_request")
    try:
        return token.strip().decode("ascii")
    except UnicodeDecodeError:
        raise unauthenticated("a token is ASCII text", "invalid_token") from None


def unauthenticated(detail: str, error: str | None) -> RefusalError:
    """401; `error` is the word of RFC 6750, 3.1, which says nothing where no credentials were sent."""
    challenge = "Bearer" if error is None else f'Bearer error="{error}"'
    return RefusalError("unauthenticated", detail, headers={"www-authenticate": challenge})
