"""The policy that the settings ask for.

Knows: which settings name tokens and keys. Must never know: requests, how a token is checked.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from app import logs
from app.auth import AccessPolicy, Action, Grant, OpenPolicy, TokenPolicy, token_file
from app.auth.jwt import JwtKeys, KeysError, Verifier, read_keys
from app.auth.policy import GrantMapping
from app.auth.tokens import ROOT_ID, Token, hash_of
from app.settings import Settings, SettingsError, host_is_loopback, read_named_file
from engine import Clock

# Shorter secrets can be guessed.
ROOT_TOKEN_CHARS_MIN: Final = 24


def policy_of(settings: Settings, clock: Clock) -> AccessPolicy:
    """The policy. Raises SettingsError where a file that it needs cannot be used."""
    if not settings.has_tokens:
        return OpenPolicy()

    def wall_s() -> float:
        return clock.wall_ms() / 1000

    return TokenPolicy(
        static_tokens(settings),
        wall_s,
        verifier=_verifier(settings, clock, wall_s),
        mapping=_mapping(settings),
    )


def static_tokens(settings: Settings) -> list[Token]:
    """The root token and those of the file, as it is now. Raises SettingsError."""
    known = _root(settings)
    if settings.tokens_file:
        try:
            known += token_file.read(Path(settings.tokens_file))
        except SettingsError as error:
            raise SettingsError(f"tokens_file: {error}") from None
    return known


def _root(settings: Settings) -> list[Token]:
    text = settings.root_token.get_secret_value()
    if settings.root_token_file:
        text = read_named_file(settings, "root_token_file")
    if not text:
        return []
    if len(text) < ROOT_TOKEN_CHARS_MIN:
        raise SettingsError(
            f"root_token: it has fewer than {ROOT_TOKEN_CHARS_MIN} characters; `weir token create` makes one"
        )
    return [Token(id=ROOT_ID, hash=hash_of(text), grants=(Grant(actions=frozenset(Action)),), label="root")]


def _verifier(settings: Settings, clock: Clock, wall_s: Callable[[], float]) -> Verifier | None:
    algorithms = settings.jwt_algorithms
    if not algorithms:
        return None
    if not settings.jwt_keys:
        raise SettingsError("jwt_algorithms: it needs jwt_keys")
    if settings.jwt_keys_url is not None:
        url = urlsplit(settings.jwt_keys_url)
        if url.scheme != "https" and not (url.scheme == "http" and host_is_loopback(url.hostname or "")):
            raise SettingsError("jwt_keys: a URL begins with https://")
        from app.auth import key_server  # noqa: PLC0415 - imports httpx, which nothing else needs

        keys = JwtKeys(
            algorithms,
            clock.monotonic,
            fetch=key_server.fetch_from(settings.jwt_keys_url),
            on_failed=_keys_failed,
        )
    else:
        try:
            keys = JwtKeys(
                algorithms, clock.monotonic, keys=read_keys(Path(settings.jwt_keys).read_bytes(), algorithms)
            )
        except (OSError, KeysError) as error:
            raise SettingsError(f"jwt_keys: {error}") from None
    return Verifier(
        keys,
        algorithms,
        wall_s,
        issuer=settings.jwt_issuer or None,
        audience=settings.jwt_audience or None,
        kind=settings.jwt_typ or None,
    )


def _keys_failed(reason: str) -> None:
    logs.get().error(
        "the keys of JWTs cannot be fetched",
        reason=reason,
        remedy="the last good keys stay in use; check jwt_keys and the identity provider",
    )


def _mapping(settings: Settings) -> GrantMapping:
    scopes: dict[str, list[Grant]] = {}
    for line in settings.jwt_scopes:
        scope, _, grant = line.partition("=")
        try:
            scopes.setdefault(scope.strip(), []).append(Grant.parse(grant.strip()))
        except ValueError as error:
            raise SettingsError(f"jwt_scopes: {line!r} is not SCOPE=GRANT: {error}") from None
    return GrantMapping(settings.jwt_grants_claim, scopes)
