"""Policies: who a request comes from.

Knows: credentials in headers, which tokens there are, what was recognised before.
Must never know: routes, what an action is needed for.

    Authorization ─► seen before? ─ yes ─► principal              (a head that is judged looks only here)
                        │ no
                        ├─ weir_…      ─► static token by its hash ─┐
                        └─ header.…    ─► JWT by its signature     ─┴─► principal, remembered
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from app import logs
from app.auth import tokens
from app.auth.certificates import ClientCertificate
from app.auth.grants import Grant, common_prefix
from app.auth.jwt import LEEWAY_S, Claims, InvalidTokenError, KeysError, Verifier
from app.auth.principal import ANONYMOUS, Principal
from app.auth.revocations import JwtIdentity, Revocation, Revocations
from app.auth.tokens import Token
from app.errors import RefusalError

# Recognised credentials that are remembered.
_REMEMBERED_MAX: Final = 10_000
# Longer credentials are not looked at: the largest JWT that identity providers issue is below it.
_CREDENTIALS_BYTES_MAX: Final = 8 << 10

Headers = Mapping[bytes, bytes]
# By what a caller is recognised: Authorization, Origin, and the certificate of the connection.
_Shown: TypeAlias = tuple[bytes, bytes, ClientCertificate | None]


class AccessPolicy(Protocol):
    """Identifies callers. Calls `on_changed` when one that was recognised may not be good any more."""

    on_changed: Callable[[], None]

    def recognise(self, headers: Headers, certificate: ClientCertificate | None = None) -> Principal | None:
        """The caller with these headers, on a connection with this certificate, if the answer is at hand."""
        ...

    async def authenticate(self, headers: Headers, certificate: ClientCertificate | None = None) -> Principal:
        """The caller with these headers, or else with this certificate. Raises `unauthenticated`."""
        ...

    async def identify(self, text: str) -> Principal:
        """Whose token this is. Raises `unauthenticated`."""
        ...

    def is_revoked(self, principal: Principal) -> bool:
        """Whether a caller that was recognised before would be refused now, for another reason than time."""
        ...


def _ignore() -> None:
    """Nothing is remembered of callers."""


class OpenPolicy:
    """Allows everything to every caller: for loopback, or with the setting `insecure`."""

    def __init__(self) -> None:
        self.on_changed: Callable[[], None] = _ignore

    def recognise(self, headers: Headers, certificate: ClientCertificate | None = None) -> Principal | None:
        return ANONYMOUS

    async def authenticate(self, headers: Headers, certificate: ClientCertificate | None = None) -> Principal:
        return ANONYMOUS

    async def identify(self, text: str) -> Principal:
        return ANONYMOUS

    def is_revoked(self, principal: Principal) -> bool:
        return False


class GrantMapping:
    """The grants of a JWT: from a claim that lists them, and from the words of `scope`."""

    def __init__(self, claim: str, scopes: Mapping[str, Sequence[Grant]]) -> None:
        self._claim = claim
        self._scopes = scopes

    def grants(self, claims: Claims) -> list[Grant]:
        """What the claims allow. Raises InvalidTokenError where a grant is malformed, or there are too many:
        a caller who got some of them would be refused at random.
        """
        listed = claims.get(self._claim, [])
        if not isinstance(listed, list):
            raise InvalidTokenError(f"its claim {self._claim} is no list of grants")
        if len(listed) > tokens.GRANTS_MAX:
            logs.get().warning(
                "a JWT was refused for its number of grants",
                grants=len(listed),
                remedy=f"list at most {tokens.GRANTS_MAX} in {self._claim}: patterns cover many streams",
            )
            raise InvalidTokenError(f"its claim {self._claim} lists more than {tokens.GRANTS_MAX} grants")
        try:
            grants = [Grant.from_value(value) for value in listed]
        except ValueError as error:
            raise InvalidTokenError(f"its claim {self._claim} is wrong: {error}") from None
        for word in _words(claims.get("scope")):
            grants += self._scopes.get(word, ())
        try:
            common_prefix(grants)
        except ValueError as error:
            raise InvalidTokenError(str(error)) from None
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
        # By their hashes: those of the settings, and those that are kept in the log.
        self._configured = {token.hash: token for token in known}
        self._stored: dict[str, Token] = {}
        self.revocations = Revocations(wall_s)
        self._wall_s = wall_s
        self._verifier = verifier
        self._mapping = mapping or GrantMapping("grants", {})
        self._remembered: dict[_Shown, Principal] = {}
        # What was remembered when tokens last changed: each is looked at again when it comes.
        self._before: dict[_Shown, Principal] = {}
        self.on_changed: Callable[[], None] = _ignore
        if verifier is not None:
            verifier.on_withdrawn(self._forget_jwts)

    @property
    def is_failing(self) -> bool:
        """Whether the keys of JWTs could not be fetched anew."""
        return self._verifier is not None and self._verifier.is_failing

    def _forget(self) -> None:
        """Tokens have changed: none is good without another look. Others than those that have changed stay
        known: where an address has shown too many wrong ones, new ones are not looked at.
        """
        if len(self._before) >= _REMEMBERED_MAX:
            self._before.clear()
        # Who a certificate stands for depends on all tokens.
        self._before.update({key: one for key, one in self._remembered.items() if key[0]})
        self._remembered.clear()
        self.on_changed()

    def _forget_jwts(self) -> None:
        """A key was withdrawn: each JWT is verified again when it comes."""
        for room in (self._remembered, self._before):
            for key in [key for key, principal in room.items() if principal.jwt is not None]:
                del room[key]
        self.on_changed()

    def _still_good(self, key: _Shown) -> Principal | None:
        """The caller that was remembered before tokens changed, unless its own has."""
        principal = self._before.pop(key, None)
        if principal is None or self.is_revoked(principal):
            return None
        self._remember(key, principal)
        return principal

    def _remember(self, key: _Shown, principal: Principal) -> None:
        if len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[key] = principal

    def replace_tokens(self, known: Iterable[Token]) -> None:
        """Have these static tokens in the settings from now on, and no others."""
        self._configured = {token.hash: token for token in known}
        self._forget()

    def replace_stored(self, known: Iterable[Token]) -> None:
        """Have these static tokens in the log from now on, and no others."""
        self._stored = {token.hash: token for token in known}
        self._forget()

    def add(self, token: Token) -> None:
        """Know one more token, which is in the log."""
        self._stored[token.hash] = token

    def remove(self, token: Token) -> None:
        """Know a token of the log no more."""
        self._stored.pop(token.hash, None)
        self._forget()

    def revoke(self, revocations: Iterable[Revocation]) -> None:
        """Accept no more what these name."""
        self.revocations.add(revocations)
        self._forget()

    @property
    def tokens(self) -> list[Token]:
        """The static tokens that are known and not revoked; they may have expired."""
        known = (self._stored | self._configured).values()
        return [token for token in known if not self.revocations.has_token(token)]

    def is_stored(self, token: Token) -> bool:
        """Whether a known token is kept in the log, not in the settings."""
        return token.hash in self._stored and token.hash not in self._configured

    def is_revoked(self, principal: Principal) -> bool:
        """Whether the caller's token was revoked. A static token that is known no more, or is another one
        now, with other grants or another end, was revoked too.
        """
        if principal.jwt is not None:
            return self.revocations.has_jwt(principal.jwt)
        token = principal.token
        if token is None:
            return False
        return self._known(token.hash) != token or self.revocations.has_token(token)

    def _known(self, token_hash: str) -> Token | None:
        return self._configured.get(token_hash) or self._stored.get(token_hash)

    def recognise(self, headers: Headers, certificate: ClientCertificate | None = None) -> Principal | None:
        """The caller, if these credentials were recognised before and are still good."""
        key = headers.get(b"authorization", b""), headers.get(b"origin", b""), certificate
        principal = self._remembered.get(key) or self._still_good(key)
        # Most never expire: then the time does not matter.
        if principal is None or principal.expires_s is None or not principal.is_expired(self._wall_s()):
            return principal
        del self._remembered[key]
        return None

    async def authenticate(self, headers: Headers, certificate: ClientCertificate | None = None) -> Principal:
        """The caller. Raises `unauthenticated`."""
        known = self.recognise(headers, certificate)
        if known is not None:
            return known
        credentials, origin = headers.get(b"authorization", b""), headers.get(b"origin", b"")
        if certificate is not None and not credentials:
            written, principal = b"", self.of_certificate(certificate)
        else:
            token = _bearer(credentials)
            written, principal = b"Bearer " + token.encode(), await self.identify(token)
        if origin:
            principal = principal.on_page(origin.decode("latin-1"))
        if credentials != written:
            # Any number of ways to write it would each keep a principal.
            return principal
        self._remember((credentials, origin, certificate), principal)
        return principal

    async def identify(self, text: str) -> Principal:
        """Whose token this is. Raises `unauthenticated`."""
        # It may come in a frame, which is as long as an entry.
        if len(text) > _CREDENTIALS_BYTES_MAX:
            raise unauthenticated(f"it is longer than {_CREDENTIALS_BYTES_MAX} characters", "invalid_token")
        if not text.isascii():
            raise unauthenticated("a token is ASCII text", "invalid_token")
        if text.startswith(tokens.PREFIX + "_") or self._known(tokens.hash_of(text)) is not None:
            return self._of_static(text)
        if self._verifier is None:
            raise unauthenticated("this is not a token of this gateway", "invalid_token")
        try:
            claims = await self._verifier.verify(text)
            principal = _of_claims(text, claims, self._mapping.grants(claims))
        except KeysError as error:
            raise RefusalError("keys_unavailable", str(error)) from None
        except InvalidTokenError as error:
            raise unauthenticated(f"the token is not accepted: {error}", "invalid_token") from None
        if self.is_revoked(principal):
            raise unauthenticated("the token was revoked", "invalid_token")
        return principal

    def of_certificate(self, certificate: ClientCertificate) -> Principal:
        """Who a verified certificate stands for: its first identity that is known. Raises
        `unauthenticated`.
        """
        for identity in certificate.identities:
            token = self._known(tokens.certificate_hash(identity))
            if token is None or self.revocations.has_token(token):
                continue
            principal = self._of_token(token, until_s=certificate.expires_s)
            if principal.is_expired(self._wall_s()):
                raise unauthenticated("the certificate, or its entry in tokens_file, has expired", None)
            return principal
        shown = " or ".join(certificate.identities)
        raise unauthenticated(f"the certificate is known by none of its names: {shown}", None)

    def _of_static(self, text: str) -> Principal:
        token = self._known(tokens.hash_of(text))
        if token is None or self.revocations.has_token(token):
            wrong = "" if tokens.id_of(text) else ": its checksum is wrong, part of it may be missing"
            raise unauthenticated(f"the token is unknown or was revoked{wrong}", "invalid_token")
        if token.is_expired(self._wall_s()):
            raise unauthenticated("the token has expired", "invalid_token")
        return self._of_token(token)

    @staticmethod
    def _of_token(token: Token, until_s: float = math.inf) -> Principal:
        ends_s = until_s if token.expires_at is None else min(until_s, token.expires_at.timestamp())
        return Principal(
            f"token:{token.id}", token.grants, expires_s=None if ends_s == math.inf else ends_s, token=token
        )


def _of_claims(text: str, claims: Claims, grants: Sequence[Grant]) -> Principal:
    # It is verified, and so good, until the leeway is over: what it opens ends then too.
    expires_s = float(claims["exp"]) + LEEWAY_S
    subject, jwt_id, issued_s = claims.get("sub"), claims.get("jti"), claims.get("iat")
    identity = JwtIdentity(
        jwt_id if isinstance(jwt_id, str) else None,
        subject,
        None if issued_s is None else float(issued_s),
    )
    return Principal(identity.name(text), grants, expires_s=expires_s, jwt=identity)


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
