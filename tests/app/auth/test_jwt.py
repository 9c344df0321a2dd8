"""JWTs: what is accepted, what is refused, how keys rotate. Keys and signatures are real, clocks are not."""

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, OKPKey, RSAKey

from app.auth import TokenPolicy
from app.auth.jwt import (
    KEYS_BYTES_MAX,
    LEEWAY_S,
    UNKNOWN_KEY_S,
    InvalidTokenError,
    JwtKeys,
    KeysError,
    Verifier,
    read_keys,
)
from app.gateway import Gateway
from app.settings import Settings
from engine import SystemClock

NOW = 1_795_000_000.0
RSA = RSAKey.generate_key(2048, {"kid": "r1"})
RSA_NEW = RSAKey.generate_key(2048, {"kid": "r2"})
EC = ECKey.generate_key("P-256", {"kid": "e1"})
ED = OKPKey.generate_key("Ed25519", {"kid": "d1"})
SECRET = OctKey.generate_key(256, {"kid": "s1"})


def signed(key: Any, algorithm: str, claims: Mapping[str, Any] | None = None, **header: Any) -> str:
    said = {"sub": "alice", "exp": NOW + 60, **(claims or {})}
    return jwt.encode({"alg": algorithm, "kid": key.kid, **header}, said, key, algorithms=[algorithm])


def public(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def _part(said: Mapping[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


def verifier(keys: KeySet, *algorithms: str, **demands: str) -> Verifier:
    return Verifier(JwtKeys(algorithms, lambda: 0.0, keys=keys), algorithms, lambda: NOW, **demands)


def by_hand(claims: str, header: str = '{"alg":"HS256","kid":"s1"}') -> str:
    """A token with this very text, signed with `SECRET`."""
    said = b".".join(urlsafe_b64encode(part.encode()).rstrip(b"=") for part in (header, claims))
    signature = hmac.digest(SECRET.raw_value, said, "sha256")
    return f"{said.decode()}.{urlsafe_b64encode(signature).decode().rstrip('=')}"


def claims_with(members: str) -> str:
    """Claims of a token that is good now, with these."""
    return f'{{{members},"exp":{NOW + 60:.0f}}}'


async def reason(checker: Verifier, text: str) -> str:
    with pytest.raises(InvalidTokenError) as caught:
        await checker.verify(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256"), (ED, "Ed25519"), (SECRET, "HS256")],
)
async def test_each_kind_of_key_signs(key: Any, algorithm: str) -> None:
    checker = verifier(KeySet([key]), algorithm)
    assert (await checker.verify(signed(key, algorithm)))["sub"] == "alice"


async def test_an_algorithm_that_is_not_on_the_list_is_refused() -> None:
    checker = verifier(KeySet([RSA]), "RS256")
    assert "signature" in await reason(checker, signed(RSA, "RS512"))


async def test_none_is_refused() -> None:
    checker = verifier(KeySet([RSA]), "RS256")
    # {"alg":"none"}.{"sub":"alice","exp":…}.
    _, claims, _ = signed(RSA, "RS256").split(".")
    for header in ("eyJhbGciOiJub25lIn0", "eyJhbGciOiJub25lIiwia2lkIjoicjEifQ"):
        await reason(checker, f"{header}.{claims}.")


async def test_a_public_key_is_no_secret() -> None:
    """Signed by HS256 with the text of the public key, which everybody has."""
    for secret in (RSA.as_pem(private=False), public(RSA)):
        said = f"{_part({'alg': 'HS256', 'kid': 'r1'})}.{_part({'sub': 'root', 'exp': NOW + 60})}"
        signature = hmac.digest(secret, said.encode(), "sha256")
        forged = f"{said}.{urlsafe_b64encode(signature).decode().rstrip('=')}"
        await reason(verifier(KeySet([RSA]), "RS256"), forged)
        await reason(verifier(KeySet([RSA]), "RS256", "HS256"), forged)


def test_keys_of_the_wrong_kind_are_left_out() -> None:
    with pytest.raises(KeysError, match="no key for RS256"):
        read_keys(json.dumps({"keys": [SECRET.as_dict()]}).encode(), ["RS256"])
    kept = read_keys(json.dumps({"keys": [SECRET.as_dict(), RSA.as_dict(private=False)]}).encode(), ["RS256"])
    assert [key.kid for key in kept.keys] == ["r1"]


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"keys":[]}', b'{"keys":[{}]}', b'{"keys":"x"}', b"\xff"]
)
def test_a_key_set_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(KeysError):
        read_keys(text, ["RS256"])


def test_a_key_set_has_a_limit() -> None:
    keys = public(RSA)
    read_keys(keys.ljust(KEYS_BYTES_MAX), ["RS256"])
    with pytest.raises(KeysError, match="more than"):
        read_keys(keys.ljust(KEYS_BYTES_MAX + 1), ["RS256"])


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": NOW - LEEWAY_S}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "exp"),
        ({"exp": True}, "exp"),
        ({"nbf": NOW + LEEWAY_S + 1}, "nbf"),
        ({"iat": NOW + LEEWAY_S + 1}, "iat"),
        ({"sub": 1}, "sub"),
        ({"sub": ["a"]}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": "a\r\nid=1"}, "sub"),
        ({"sub": "a\u2028b"}, "sub"),
        ({"sub": "s" * 513}, "sub"),
        ({"jti": "a\nb"}, "jti"),
        ({"iss": "other"}, "iss"),
        ({"iss": None}, "iss"),
        ({"aud": "other"}, "aud"),
        ({"aud": None}, "aud"),
        ({"aud": ["other"]}, "aud"),
    ],
)
async def test_a_claim_that_does_not_fit_is_named(claims: dict[str, Any], says: str) -> None:
    checker = verifier(KeySet([RSA]), "RS256", issuer="me", audience="weir")
    good = {"iss": "me", "aud": ["weir", "x"]}
    await checker.verify(signed(RSA, "RS256", good))
    assert says in await reason(checker, signed(RSA, "RS256", {**good, **claims}))


@pytest.mark.parametrize("sub", ["s" * 512, "auth0|5", "https://example.com/u?a=b", "Jo Ünal"])
async def test_a_subject_is_any_name_of_a_line(sub: str) -> None:
    assert (await verifier(KeySet([RSA]), "RS256").verify(signed(RSA, "RS256", {"sub": sub})))["sub"] == sub


async def test_a_subject_that_is_no_utf_8_is_refused() -> None:
    assert "sub" in await reason(verifier(KeySet([SECRET]), "HS256"), by_hand(claims_with('"sub":"\\ud800"')))


@pytest.mark.parametrize("levels", [33, 990, 3_000])
async def test_claims_have_a_bounded_number_of_levels(levels: int) -> None:
    """990 can be read, and then not be walked through."""
    checker = verifier(KeySet([SECRET]), "HS256")
    await checker.verify(by_hand(claims_with(f'"x":{"[" * 31}{"]" * 31}')))
    await reason(checker, by_hand(claims_with(f'"x":{"[" * (levels - 1)}{"]" * (levels - 1)}')))
    await reason(checker, by_hand(claims_with('"x":1'), header="[" * levels + "]" * levels))


@pytest.mark.parametrize("crit", ["[]", '["exp"]', '["b64"]', "null"])
async def test_extensions_that_must_be_understood_are_refused(crit: str) -> None:
    header = f'{{"alg":"HS256","kid":"s1","b64":true,"crit":{crit}}}'
    checker = verifier(KeySet([SECRET]), "HS256")
    assert "crit" in await reason(checker, by_hand(claims_with('"sub":"a"'), header=header))


async def test_a_member_that_is_there_twice_is_refused() -> None:
    """Of the claims, at any depth, and of the header."""
    checker = verifier(KeySet([SECRET]), "HS256")
    await checker.verify(by_hand(claims_with('"sub":"a"')))
    for twice in ('"sub":"root","sub":"a"', '"x":[{"a":1,"\\u0061":2}]'):
        assert "twice" in await reason(checker, by_hand(claims_with(twice)))
    doubled = '{"alg":"HS256","kid":"s2","kid":"s1"}'
    assert "twice" in await reason(checker, by_hand(claims_with('"sub":"a"'), header=doubled))


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        ({}, ["JWT", "jwt", "at+jwt", "application/at+JWT", None], ["logout+jwt", "dpop+jwt", "", 7]),
        ({"kind": "application/at+jwt"}, ["at+jwt", "AT+JWT"], ["JWT", None, "x"]),
    ],
)
async def test_a_token_of_another_type_is_refused(
    kind: dict[str, str], accepted: list[Any], refused: list[Any]
) -> None:
    checker = verifier(KeySet([SECRET]), "HS256", **kind)
    claims = claims_with('"sub":"a"')

    def of_type(typ: object) -> str:
        header = {"alg": "HS256", "kid": "s1"} | ({} if typ is None else {"typ": typ})
        return by_hand(claims, header=json.dumps(header))

    for one in accepted:
        await checker.verify(of_type(one))
    for one in refused:
        assert "typ" in await reason(checker, of_type(one))


async def test_clocks_may_differ_by_the_leeway() -> None:
    checker = verifier(KeySet([RSA]), "RS256")
    await checker.verify(signed(RSA, "RS256", {"exp": NOW - LEEWAY_S + 0.001}))
    await checker.verify(signed(RSA, "RS256", {"nbf": NOW + LEEWAY_S, "iat": NOW + LEEWAY_S}))


@pytest.mark.parametrize(
    "text", ["", "a", "a.b.c", "a.b.c.d", "a.b.c.d.e", "..", "e30.e30.", "\x00.\x00.\x00"]
)
async def test_what_is_no_jwt_is_refused(text: str) -> None:
    await reason(verifier(KeySet([RSA]), "RS256"), text)


class KeyServer:
    """A key set that rotates; `now` is the monotonic clock."""

    def __init__(self, *keys: Any) -> None:
        self.text = public(*keys)
        self.asked = 0
        self.down = False
        self.now = 0.0
        self.failures: list[str] = []
        self.keys = JwtKeys(["RS256"], lambda: self.now, fetch=self.fetch, on_failed=self.failures.append)
        self.verifier = Verifier(self.keys, ["RS256"], lambda: NOW)

    async def fetch(self) -> bytes:
        self.asked += 1
        if self.down:
            raise KeysError("refused")
        return self.text


async def test_keys_rotate() -> None:
    """A new key works at once; the one that is gone works no more."""
    server = KeyServer(RSA)
    await server.verifier.verify(signed(RSA, "RS256"))
    server.text, server.now = public(RSA_NEW), UNKNOWN_KEY_S
    await server.verifier.verify(signed(RSA_NEW, "RS256"))
    await reason(server.verifier, signed(RSA, "RS256"))
    assert server.asked == 2


async def test_a_flood_of_unknown_keys_fetches_once_a_minute() -> None:
    server = KeyServer(RSA)
    await server.verifier.verify(signed(RSA, "RS256"))
    for number in range(200):
        await reason(server.verifier, signed(RSA_NEW, "RS256", kid=f"made-up-{number}"))
    assert server.asked == 1
    server.now = UNKNOWN_KEY_S - 0.001
    await reason(server.verifier, signed(RSA_NEW, "RS256"))
    assert server.asked == 1
    server.now = UNKNOWN_KEY_S
    await reason(server.verifier, signed(RSA_NEW, "RS256"))
    assert server.asked == 2


async def test_the_last_good_keys_are_kept_while_the_server_is_down() -> None:
    server = KeyServer(RSA)
    await server.verifier.verify(signed(RSA, "RS256"))
    server.down, server.now = True, UNKNOWN_KEY_S
    with pytest.raises(KeysError, match="cannot be had"):
        await server.verifier.verify(signed(RSA_NEW, "RS256"))
    assert server.failures == ["refused"]
    await server.verifier.verify(signed(RSA, "RS256"))
    policy = TokenPolicy([], lambda: NOW, verifier=server.verifier)
    gateway = Gateway(Settings(log_requests="none"), SystemClock(), policy)
    assert gateway.operator.health.failures()["keys_stale"]
    server.down, server.now = False, 2 * UNKNOWN_KEY_S
    await reason(server.verifier, signed(RSA_NEW, "RS256"))
    assert not gateway.operator.health.failures()["keys_stale"]


async def test_without_any_key_nobody_is_let_in() -> None:
    server = KeyServer(RSA)
    server.down = True
    with pytest.raises(KeysError, match="cannot be had"):
        await server.verifier.verify(signed(RSA, "RS256"))
    server.down, server.now = False, UNKNOWN_KEY_S
    await server.verifier.verify(signed(RSA, "RS256"))


async def test_a_key_set_beyond_the_limit_changes_nothing() -> None:
    server = KeyServer(RSA)
    await server.verifier.verify(signed(RSA, "RS256"))
    server.text, server.now = b" " * (10 << 20), UNKNOWN_KEY_S
    with pytest.raises(KeysError, match="cannot be had"):
        await server.verifier.verify(signed(RSA_NEW, "RS256"))
    assert "more than" in server.failures[0]
    await server.verifier.verify(signed(RSA, "RS256"))
