"""What others got wrong with credentials, tried here: tokens in logs, names that escape a pattern, keys that
a token brings along, tokens without an end, sockets that a foreign page opens.
"""

import asyncio
import gc
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from pydantic import SecretStr

from app.auth import Grant, Principal, TokenPolicy, tokens
from app.auth.jwt import JwtKeys, Verifier
from app.auth.tokens import CreatedToken
from app.errors import RefusalError
from app.main import create_app
from app.settings import Settings
from engine import Engine, SystemClock
from engine.commands.types import XLen
from engine.commands.weir_commands import EnsureStream
from tests.app.auth.callers import ROOT, app_with, client, made
from tests.app.auth.test_late import connect
from tests.app.conversing import SocketWorld, ops, working
from tests.engine.asking import reply_to

KEY = RSAKey.generate_key(2048, {"kid": "r1"})
EVIL = RSAKey.generate_key(2048, {"kid": "r1"})


async def test_credentials_in_a_url_are_in_no_log(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """A query is never logged, also where the request is refused for it."""
    settings = Settings(log_requests="all", log_format="json", root_token=SecretStr(ROOT))
    app = await asyncio.to_thread(create_app, settings, SystemClock())
    app.life.open(engine)
    async with client(app, ROOT) as http:
        ticket = (await http.post("/v1/tickets")).json()["ticket"]
        for query in (f"ticket={ticket}", f"token={ROOT}", f"access_token={ROOT}", f"ticket=x&token={ROOT}"):
            for path in ("/v1/streams/s/tail", "/v1/streams/s/entries", "/v1/ws"):
                answer = await http.head(f"{path}?{query}", headers={"accept": "text/event-stream"})
                assert answer.status_code != 500
    app.flush_logs()
    logged = "".join(capsys.readouterr())
    assert "/v1/streams/s/entries" in logged
    assert ROOT not in logged
    assert ticket not in logged


@pytest.mark.parametrize(
    ("segment", "status"),
    [
        ("orders.eu", 200),
        # The same name, written otherwise.
        ("orders%2eeu", 200),
        ("%6Frders%2Eeu", 200),
        # Decoded once alone: this is another name.
        ("orders%252eeu", 403),
        # A slash is a character as any other.
        ("orders.eu%2Fnorth", 200),
        ("orders.north%2Feu", 200),
        ("orders.%2Fprivate", 200),
        ("orders%2Feu", 403),
        ("orders%2F%2Feu", 400),
        ("orders.%2F..%2Fprivate", 400),
        ("orders.%00", 400),
        ("..%2Fprivate", 400),
        ("private", 403),
        ("Orders.eu", 403),
        ("%EF%BC%8E", 403),
        # A full stop of another script, and letters that only look alike.
        ("orders%EF%BC%8Eeu", 403),
        ("%D0%BErders.eu", 403),
        ("orders%CC%81.eu", 403),
        ("%C0%AErders.eu", 400),
        ("private%0Aorders.eu", 400),
        ("*", 403),
        ("orders*", 403),
    ],
)
async def test_no_writing_of_a_name_escapes_a_pattern(
    engine: Engine, tmp_path: Path, segment: str, status: int
) -> None:
    for name in ("orders.eu", "private"):
        await reply_to(engine, EnsureStream(stream=name))
    token = made("read:orders.*")
    app = await app_with(engine, tmp_path, token)
    async with client(app, token.text) as http:
        assert (await http.get(f"/v1/streams/{segment}/entries")).status_code == status


def part(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def forged(header: Mapping[str, Any], key: Any = EVIL, algorithm: str = "RS256") -> str:
    claims = {"sub": "root", "exp": time.time() + 60, "grants": ["*:*"]}
    return jwt.encode({"alg": algorithm, **header}, claims, key, algorithms=[algorithm])


def policy(*algorithms: str) -> TokenPolicy:
    keys = JwtKeys(algorithms, time.monotonic, keys=KeySet([KEY]))
    return TokenPolicy([], time.time, verifier=Verifier(keys, algorithms, time.time))


@pytest.mark.parametrize(
    "header",
    [
        {"kid": "r1"},
        {},
        {"kid": "../../../../dev/null"},
        {"kid": "/etc/passwd"},
        {"kid": "r1' OR '1'='1"},
        {"kid": "r1\x00"},
        {"kid": ""},
        # JwtKeys that the token brings along, or says where to fetch.
        {"kid": "r1", "jwk": EVIL.as_dict(private=False)},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/certificate"},
    ],
)
async def test_a_token_does_not_choose_the_key_that_verifies_it(header: dict[str, Any]) -> None:
    with pytest.raises(RefusalError) as caught:
        await policy("RS256").identify(forged(header))
    assert caught.value.code == "unauthenticated"


@pytest.mark.parametrize(
    "header",
    [
        {"zip": "DEF"},
        {"b64": False},
        {"b64": False, "crit": ["b64"]},
        {"crit": ["exp"]},
        {"alg": "dir", "enc": "A256GCM"},
    ],
)
async def test_a_token_says_nothing_of_how_it_is_read(header: dict[str, Any]) -> None:
    """Nor is anything in it decompressed, or decrypted as the five parts of a JWE."""
    claims, signature = forged({"kid": "r1"}, KEY).split(".")[1:]
    head = part({"alg": "RS256", "kid": "r1", **header})
    for text in (f"{head}.{claims}.{signature}", f"{head}..{claims}.{claims}.{signature}"):
        with pytest.raises(RefusalError) as caught:
            await policy("RS256").identify(text)
        assert caught.value.code == "unauthenticated"


def texts_within(kept: object) -> Iterator[str]:
    """All texts that an object holds, however deep; not those of modules, functions and classes."""
    seen, todo = set[int](), [kept]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes):
            yield one if isinstance(one, str) else one.decode("latin-1")
        todo += gc.get_referents(one)


async def test_how_long_a_comparison_takes_tells_nothing_of_a_token() -> None:
    """What is kept is the hash of all of it: nothing that a caller sends is compared with its secret."""
    token = tokens.create((Grant.parse("read:s"),))
    known = TokenPolicy([token.token], time.time)
    head, token_id, secret, _ = token.text.split("_")
    other = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    body = f"{head}_{token_id}_{other}"
    almost = f"{body}_{tokens._checksum(body)}"  # noqa: SLF001 - what makes it whole
    assert tokens.id_of(almost) == token_id
    with pytest.raises(RefusalError):
        await known.identify(almost)
    texts = list(texts_within(known))
    assert any(token.token.hash in text for text in texts)
    assert not [text for text in texts if secret[:8] in text]


@pytest.mark.parametrize("kid", [1, ["r1"], {"r1": 1}, None, True])
async def test_a_kid_of_another_type_is_refused(kid: object) -> None:
    text = forged({"kid": "r1"}, KEY)
    _, claims, signature = text.split(".")
    with pytest.raises(RefusalError) as caught:
        await policy("RS256").identify(f"{part({'alg': 'RS256', 'kid': kid})}.{claims}.{signature}")
    assert caught.value.code == "unauthenticated"


@pytest.mark.parametrize("secret", ["", "\x00", "AAAA"])
async def test_a_secret_that_a_kid_would_lead_to_verifies_nothing(secret: str) -> None:
    """As of an empty file, which a path traversal finds."""
    raw = secret.encode() or b"\x00"
    text = forged({"kid": "../../dev/null"}, OctKey.import_key(raw.ljust(32, b"\x00")), "HS256")
    for algorithms in (("RS256",), ("RS256", "HS256")):
        with pytest.raises(RefusalError):
            await policy(*algorithms).identify(text)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 8_193,
        "weir_" + "a" * (1 << 20),
        f"{'a' * (1 << 20)}.b.c",
        "a.b." + "=" * (1 << 20),
        "." * (1 << 20),
    ],
)
async def test_a_huge_token_costs_nothing(text: str) -> None:
    """In a frame `auth`, which is as long as an entry. It is refused before it is hashed or decoded."""
    known = policy("RS256")
    began = time.process_time()
    for _ in range(200):
        with pytest.raises(RefusalError, match="longer than"):
            await known.identify(text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("text", ["\ud800", "weir_\udfff", "\u00e9", "a.\u00e9.c", "\x00", " ", ""])
async def test_a_token_that_is_no_ascii_is_refused(text: str) -> None:
    with pytest.raises(RefusalError) as caught:
        await policy("RS256").identify(text)
    assert caught.value.code == "unauthenticated"


async def test_a_foreign_page_opens_no_socket_whatever_it_shows(engine: Engine, tmp_path: Path) -> None:
    """A cross-site handshake is refused before its token or its ticket is looked at."""
    app = await app_with(engine, tmp_path)
    for origin, accepted in ((None, True), (b"http://localhost", True), (b"https://evil.example", False)):
        serving, sent = connect(app, "websocket", "/v1/ws", ROOT, lambda: None, origin=origin)
        task = asyncio.ensure_future(serving)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (sent[0]["type"] == "websocket.accept") is accepted, sent
        if not accepted:
            assert sent[0]["status"] == 403
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_a_list_of_streams_names_no_hidden_one(engine: Engine, tmp_path: Path, limit: int) -> None:
    """Not as `next` either, which says where the next page begins."""
    for name in ("a-secret", "b-secret", "orders.1", "orders.2", "p-secret", "orders.3", "z-secret"):
        await reply_to(engine, EnsureStream(stream=name))
    token = made("read:orders.*")
    app = await app_with(engine, tmp_path, token)
    pages: list[list[str]] = []
    after: str | None = ""
    async with client(app, token.text) as http:
        while after is not None:
            query = {"limit": str(limit)} | ({"after": after} if after else {})
            answer = await http.get("/v1/streams", params=query)
            assert b"secret" not in answer.content
            page = answer.json()
            pages.append([one["name"] for one in page["streams"]])
            after = page["next"]
        hidden = await http.get("/v1/streams", params={"limit": 1, "prefix": "a-"})
    found = ["orders.1", "orders.2", "orders.3"]
    assert pages == [found[at : at + limit] for at in range(0, len(found), limit)]
    # As where there is none with the prefix.
    assert hidden.json() == {"streams": [], "next": None}


@pytest.mark.parametrize("how", ["keep", "delete", "acked"])
def test_nor_does_it_over_a_socket(how: str) -> None:
    worker, deleter = (
        Principal("w", [Grant.parse(f"consume,{more}:s")]) for more in ("manage", "manage,write")
    )
    for principal, op, left in ((worker, "error", 1), (deleter, "ok", 0)):
        world = SocketWorld(principal)
        working(world, 1)
        answers = world.say("ack", sub="w", ids=world.pushed("w"), delete=how, ref=1)
        assert ops(answers)[0] == op, answers
        assert world.run(XLen(stream="s")) == left


async def test_callers_share_producers_and_keys_and_learn_nothing_by_them(
    engine: Engine, tmp_path: Path
) -> None:
    """Of /v1/publish: another token goes on where the first one stopped. A stream's keys are its own."""
    first, second, other = made("write:orders.*"), made("write:orders.*"), made("write:stock")
    app = await app_with(engine, tmp_path, first, second, other)
    body = {"streams": {"orders.a": [{"fields": {"n": "1"}}]}}

    async def publish(token: CreatedToken, given: Any, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with client(app, token.text) as http:
            answer = await http.post("/v1/publish", json=given, headers=named)
        return answer.status_code, answer.json()

    def chunk(epoch: int, number: int = 0) -> dict[str, str]:
        return {"weir_producer": "p", "weir_epoch": str(epoch), "weir_chunk": str(number)}

    for headers in ({"idempotency_key": "k"}, chunk(2)):
        stored = await publish(first, body, **headers)
        again = await publish(second, body, **headers)
        assert again == (201, {**stored[1], "duplicate": True})
        # Who may not write there learns neither what was stored nor that the key is known.
        for wanted in (headers, {"idempotency_key": "unknown"}):
            refused = await publish(other, body, **wanted)
            assert (refused[0], refused[1]["code"]) == (403, "forbidden")
    mine = {"streams": {"stock": [{"fields": {"n": "2"}}]}}
    mismatch = await publish(other, mine, idempotency_key="k")
    assert (mismatch[0], mismatch[1]["code"]) == (422, "idempotency_mismatch")
    assert "orders" not in str(mismatch[1])
    # A producer of the same name takes over, and fences the one before.
    assert (await publish(other, mine, **chunk(3)))[0] == 201
    assert (await publish(first, body, **chunk(2, 1)))[1]["code"] == "stale_epoch"
    for token, stream in ((first, "orders.b"), (other, "stock")):
        async with client(app, token.text) as http:
            answer = await http.post(
                f"/v1/streams/{stream}/entries",
                json={"fields": {"a": stream}},
                headers={"idempotency-key": "k"},
            )
        assert (answer.status_code, answer.json()["duplicate"]) == (201, False)


async def test_a_request_has_one_authorization(engine: Engine, tmp_path: Path) -> None:
    """A proxy that looks at the first of two would let the second one in."""
    token = made("read:s")
    app = await app_with(engine, tmp_path, token)
    good, bad = ("authorization", f"Bearer {token.text}"), ("authorization", "Bearer wrong")
    async with client(app, None) as http:
        for headers, status in (([good], 200), ([good, good], 401), ([bad, good], 401), ([good, bad], 401)):
            answer = await http.get("/v1/streams/s", headers=headers)
            assert answer.status_code == status
            refused = 'error="invalid_request"' in answer.headers.get("www-authenticate", "")
            assert refused == (status == 401)


async def test_one_token_is_remembered_once_in_whatever_way_it_is_sent(
    engine: Engine, tmp_path: Path
) -> None:
    """Each way of writing the header would keep another copy of all that is known of its caller."""
    token = made("read:s")
    policy = (await app_with(engine, tmp_path, token)).gateway.access.policy
    ways = [f"{scheme}{' ' * spaces}{token.text}" for scheme in ("Bearer", "bEARER") for spaces in (1, 2, 99)]
    known = [await policy.authenticate({b"authorization": way.encode()}) for way in ways]
    assert {one.name for one in known} == {f"token:{token.token.id}"}
    remembered = [policy.recognise({b"authorization": way.encode()}) is not None for way in ways]
    assert remembered == [True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"sub": "a" * 100 + "1"}, {"sub": "a" * 100 + "2"}),
        ({"sub": "None"}, {}),
        ({"jti": "1"}, {"jti": "2"}),
        ({"jti": "1"}, {"sub": "1"}),
        ({"jti": "a" * 100 + "1"}, {"jti": "a" * 100 + "2"}),
        # Without both it is the token itself.
        ({"x": "1"}, {"x": "2"}),
        ({"jti": 1}, {"jti": "1"}),
        ({"sub": "a" * 95}, {"sub": "a" * 96}),
    ],
)
async def test_callers_with_different_subjects_have_different_names(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """By its name a caller sees and revokes the tokens that it has made, and shares its limits."""
    verifier = Verifier(JwtKeys(["RS256"], time.monotonic, keys=KeySet([KEY])), ["RS256"], time.time)
    policy = TokenPolicy([], time.time, verifier=verifier)
    header, end = {"alg": "RS256", "kid": "r1"}, {"exp": int(time.time()) + 60}
    names = [(await policy.identify(jwt.encode(header, claims | end, KEY))).name for claims in (one, other)]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 100
