"""Tokens and revocations over HTTP: what is made works at once, what is taken away ends at once, and both are
in the log and in what is restored.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import KeySet, RSAKey
from structlog.testing import capture_logs

from app.auth import Grant, TokenPolicy, tokens
from app.auth.jwt import LEEWAY_S, JwtKeys, Verifier
from app.auth.policy import GrantMapping
from app.auth.revocation_file import NAME, RevocationFile, RevocationFileError
from app.auth.revocations import Revocation, Revocations
from app.auth.tokens import HANDS_MAX
from app.live.token_store import DROP_TOKENS
from app.main import App
from app.operating import Phase
from engine import Engine, SystemClock
from engine.commands.weir_commands import ListMetadata, PutMetadata
from engine.replies import MetadataPage
from tests.app.auth.callers import ROOT, app_with, client, made
from tests.app.auth.test_jwt import signed
from tests.app.conftest import app_on
from tests.engine.asking import reply_to, turn_of
from tests.engine.clocks import settle

KEY = RSAKey.generate_key(2048, {"kid": "r1"})
READ_S = {"grants": [{"actions": ["read"], "streams": "s"}]}


async def create(app: App, token: str = ROOT, **body: Any) -> httpx.Response:
    async with client(app, token) as http:
        return await http.post("/v1/admin/tokens", json=READ_S | body)


async def revoke(app: App, **body: Any) -> httpx.Response:
    async with client(app, ROOT) as http:
        return await http.post("/v1/admin/revocations", json=body)


async def status(app: App, token: str, path: str = "/v1/streams/s/entries") -> int:
    async with client(app, token) as http:
        return (await http.get(path)).status_code


async def names(engine: Engine) -> list[str]:
    page = await reply_to(engine, ListMetadata())
    assert isinstance(page, MetadataPage)
    return [name for name, _ in page.values]


async def test_a_token_works_from_its_making_to_its_revocation(engine: Engine, tmp_path: Path) -> None:
    app = await app_with(engine, tmp_path)
    answer = await create(app, label="shop", expires_in_ms=60_000)
    token = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/admin/tokens/{token['id']}")
    # The second time it is remembered.
    assert [await status(app, token["token"]) for _ in range(2)] == [200, 200]
    assert await status(app, token["token"], "/v1/streams/t/entries") == 403
    async with client(app, ROOT) as http:
        path = answer.headers["location"]
        shown = (await http.get(path)).json()
        assert shown == {name: value for name, value in token.items() if name != "token"}
        listed = (await http.get("/v1/admin/tokens")).json()["tokens"]
        assert sorted(one["label"] for one in listed) == ["root", "shop"]
        assert token["token"].split("_")[2] not in str(listed)
        assert (await http.delete(path)).status_code == 204
        assert (await http.get(path)).status_code == 404
        assert (await http.delete(path)).json()["code"] == "no_token"
        # The text of a revoked token is refused on every way, the cached one too.
        assert await status(app, token["token"]) == 401
        revoked = (await http.get("/v1/admin/revocations")).json()["revocations"]
    assert [(one["kind"], one["value"]) for one in revoked] == [("token", token["id"])]
    assert await names(engine) == [f"revoked:token:{token['id']}"]


async def test_tokens_come_back_from_the_log(engine: Engine, tmp_path: Path) -> None:
    """As after a restart: another gateway on the same engine."""
    first = await app_with(engine, tmp_path)
    kept, revoked = [(await create(first)).json() for _ in range(2)]
    async with client(first, ROOT) as http:
        await http.delete(f"/v1/admin/tokens/{revoked['id']}")
    again = await app_with(engine, tmp_path)
    assert await status(again, kept["token"]) == 200
    assert await status(again, revoked["token"]) == 401


async def test_a_restored_older_log_does_not_revive_a_token(engine: Engine, tmp_path: Path) -> None:
    """The file beside the log has the revocation that the older log lacks."""
    first = await app_with(engine, tmp_path)
    token = (await create(first)).json()
    name = f"token:{token['id']}"
    page = await reply_to(engine, ListMetadata(prefix=name))
    assert isinstance(page, MetadataPage)
    data = tmp_path / "data"
    await asyncio.to_thread(data.mkdir)
    first.life.open(engine, await asyncio.to_thread(RevocationFile, data))
    async with client(first, ROOT) as http:
        assert (await http.delete(f"/v1/admin/tokens/{token['id']}")).status_code == 204
    # The log as it was in the backup.
    await reply_to(engine, PutMetadata(name=f"revoked:{name}", value=None))
    await reply_to(engine, PutMetadata(name=name, value=page.values[0][1]))
    second = await app_with(engine, tmp_path)
    assert await status(second, token["token"]) == 200, "without the file it would be revived"
    third = await app_with(engine, tmp_path)
    third.life.open(engine, await asyncio.to_thread(RevocationFile, data))
    assert await status(third, token["token"]) == 401


async def test_a_restore_may_drop_all_tokens(engine: Engine, tmp_path: Path) -> None:
    first = await app_with(engine, tmp_path)
    token = (await create(first)).json()
    await reply_to(engine, PutMetadata(name=DROP_TOKENS, value=b"1"))
    second = await app_with(engine, tmp_path)
    assert await status(second, token["token"]) == 401
    await settle()
    assert await names(engine) == []
    assert (await create(second)).status_code == 201


@pytest.mark.parametrize("row", [b"{", b"{}", b'{"id":1}', b"\xff"])
async def test_a_row_that_cannot_be_read_hides_no_other(engine: Engine, tmp_path: Path, row: bytes) -> None:
    """Rows before and behind it count, and the log names it, without what it holds."""
    first = await app_with(engine, tmp_path)
    kept = (await create(first)).json()
    await revoke(first, jti="j1")
    bad = ("token:", "token:~", "revoked:", "revoked:jti:~")
    await turn_of(engine, [PutMetadata(name=name, value=row) for name in bad])
    with capture_logs() as said:
        again = await app_with(engine, tmp_path)
    assert await status(again, kept["token"]) == 200
    assert [one.value for one in again.gateway.access.tokens.revocations] == ["j1"]
    assert [(line["event"], line["log_level"], line["name"]) for line in said] == [
        ("a token or revocation cannot be read", "error", name) for name in bad
    ]
    assert all(line["remedy"] and row.decode("latin-1") not in line["reason"] for line in said)


@pytest.mark.parametrize(
    "content", [b"nothing\n", b"{}\n", b'{"kind":"token","value":"x"}\n', b'{"kind":"token"']
)
def test_a_damaged_file_of_revocations_is_refused(tmp_path: Path, content: bytes) -> None:
    """To pass over a line would revive a token."""
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(RevocationFileError, match="no revocation"):
        RevocationFile(tmp_path)


async def test_a_revocation_that_cannot_be_kept_holds_all_the_same(engine: Engine, tmp_path: Path) -> None:
    app = await app_with(engine, tmp_path)
    token = (await create(app)).json()
    # There is no such directory to write to.
    app.life.open(engine, await asyncio.to_thread(RevocationFile, tmp_path / "gone"))
    async with client(app, ROOT) as http:
        answer = await http.delete(f"/v1/admin/tokens/{token['id']}")
    assert (answer.status_code, answer.json()["code"]) == (503, "storage_failed")
    assert await status(app, token["token"]) == 401


async def test_tokens_are_not_made_where_everybody_may_do_everything(engine: Engine) -> None:
    app = app_on(engine)
    async with client(app, None) as http:
        for path, body in (("/v1/admin/tokens", READ_S), ("/v1/admin/revocations", {"jti": "x"})):
            assert (await http.post(path, json=body)).json()["code"] == "not_configured"
        assert (await http.get("/v1/whoami")).json()["name"] == "anonymous"


async def test_a_gateway_is_ready_once_its_tokens_are_known(engine: Engine, tmp_path: Path) -> None:
    app = await app_with(engine, tmp_path)
    assert app.gateway.phase is Phase.READY
    assert app.gateway.access.tokens.tokens[0].label == "root"


# ---- what is open


async def test_what_waits_ends_within_a_second_and_does_not_come_back(engine: Engine, tmp_path: Path) -> None:
    app = await app_with(engine, tmp_path)
    grants = [{"actions": ["read", "consume"], "streams": "s"}]
    token = (await create(app, grants=grants)).json()
    async with client(app, token["token"]) as http:
        waits = [
            asyncio.create_task(http.get("/v1/streams/s/entries?after=$&wait=30000")),
            asyncio.create_task(http.post("/v1/streams/s/groups/g/consumers/c/read", json={"wait": 30_000})),
        ]
        await settle()
        assert len(app.gateway.access.sessions.open) == 2
        answer = await revoke(app, token=token["id"])
        assert (answer.status_code, answer.json()["ended"]) == (201, 2)
        async with asyncio.timeout(1):
            assert [one.status_code for one in await asyncio.gather(*waits)] == [401, 401]
        assert (await http.get("/v1/streams/s/entries")).status_code == 401


# ---- JWTs


def with_jwts(engine: Engine) -> App:
    clock = SystemClock()
    keys = JwtKeys(["RS256"], clock.monotonic, keys=KeySet([KEY]))
    policy = TokenPolicy(
        [], time.time, verifier=Verifier(keys, ["RS256"], time.time), mapping=GrantMapping("grants", {})
    )
    return app_on(engine, clock=clock, policy=policy)


def jwt(**claims: Any) -> str:
    grants = claims.pop("grants", ["read:*"])
    return signed(KEY, "RS256", {"grants": grants, "exp": time.time() + 60, **claims})


@pytest.mark.parametrize(
    ("body", "claims", "accepted"),
    [
        ({"jti": "j1"}, {"jti": "j1"}, False),
        ({"jti": "j1"}, {"jti": "j2"}, True),
        ({"jti": "j1"}, {}, True),
        # A claim of another kind names nothing, and is none.
        ({"jti": "1"}, {"jti": 1}, True),
        ({"subject": "alice", "issued_before_ms": 1_000_000}, {"iat": 999}, False),
        ({"subject": "alice", "issued_before_ms": 1_000_000}, {"iat": 1_000}, True),
        ({"subject": "alice"}, {"iat": 1_000}, False),
        # Of any time.
        ({"subject": "alice", "issued_before_ms": 1_000_000}, {}, False),
        ({"subject": "bob"}, {"iat": 1_000}, True),
        ({"jti": "alice"}, {}, True),
    ],
)
async def test_jwts_are_revoked_by_jti_and_by_subject_and_time(
    engine: Engine, body: dict[str, Any], claims: dict[str, Any], *, accepted: bool
) -> None:
    """Those that were remembered, and those that come for the first time."""
    app = with_jwts(engine)
    old, new, root = jwt(**claims), jwt(**claims, x=1), jwt(sub="root", grants=["*:*"])
    assert await status(app, old) == 200
    async with client(app, root) as http:
        assert (await http.post("/v1/admin/revocations", json=body)).status_code == 201
    assert await status(app, old) == (200 if accepted else 401)
    assert await status(app, new) == (200 if accepted else 401)
    # Another gateway on the same log knows it too.
    assert await status(with_jwts(engine), old) == (200 if accepted else 401)


async def test_a_revocation_is_forgotten_when_all_of_it_has_expired(engine: Engine, tmp_path: Path) -> None:
    """Half a minute later, for which a JWT is accepted behind its end."""
    app = await app_with(engine, tmp_path)
    past = round((time.time() - LEEWAY_S) * 1000) - 1
    for number in range(3):
        await revoke(app, jti=f"j{number}", expires_at_ms=past)
    assert len(await names(engine)) == 1
    async with client(app, ROOT) as http:
        assert (await http.get("/v1/admin/revocations")).json() == {"revocations": []}


# ---- passing on


ISSUER = '{"actions": ["read", "write", "issue"], "streams": "orders.*"}'


@pytest.mark.parametrize(
    ("grants", "allowed"),
    [
        ([{"actions": ["read"], "streams": "orders.*"}], True),
        ([{"actions": ["read", "write", "issue"], "streams": "orders.*"}], True),
        ([{"actions": ["read"], "streams": "orders.eu.*"}], True),
        ([{"actions": ["read"], "streams": "orders.eu", "groups": "g"}], True),
        ([{"actions": ["read"], "streams": "orders*"}], False),
        ([{"actions": ["read"], "streams": "*"}], False),
        ([{"actions": ["read"]}], False),
        ([{"actions": ["consume"], "streams": "orders.eu"}], False),
        ([{"actions": ["admin"], "streams": "*"}], False),
        # Its other grant has no `issue`.
        ([{"actions": ["read"], "streams": "private"}], False),
        ([{"actions": ["read"], "streams": "orders.eu"}, {"actions": ["read"], "streams": "private"}], False),
    ],
)
async def test_a_token_with_issue_passes_on_what_its_grants_cover(
    engine: Engine, tmp_path: Path, grants: Sequence[Any], *, allowed: bool
) -> None:
    issuer = made(ISSUER, "read:private")
    app = await app_with(engine, tmp_path, issuer)
    answer = await create(app, issuer.text, grants=grants)
    assert answer.status_code == (201 if allowed else 403), answer.text
    if allowed:
        assert answer.json()["created_by"] == f"token:{issuer.token.id}"


def granted(*actions: str, streams: str = "orders.*", **more: Any) -> dict[str, Any]:
    return {"actions": list(actions), "streams": streams, **more}


RATE = {"requests_per_s": 10, "requests_burst": 20}


@pytest.mark.parametrize(
    ("own", "grants", "allowed"),
    [
        # The same, narrower, one wider, and without: in `rate` 0 is no limit, and so is a burst.
        ([granted("read", "issue", rate=RATE)], [granted("read", rate=RATE)], True),
        ([granted("read", "issue", rate=RATE)], [granted("read", rate={"requests_per_s": 10})], True),
        ([granted("read", "issue", rate=RATE)], [granted("read", rate={**RATE, "bytes_per_s": 1})], True),
        (
            [granted("read", "issue", rate=RATE)],
            [granted("read", rate={**RATE, "requests_burst": 21})],
            False,
        ),
        ([granted("read", "issue", rate=RATE)], [granted("read", rate={"requests_per_s": 11})], False),
        ([granted("read", "issue", rate=RATE)], [granted("read", rate={})], False),
        ([granted("read", "issue", rate=RATE)], [granted("read")], False),
        # It holds for all of the token: another grant has it.
        ([granted("read", "issue"), granted("write", rate=RATE)], [granted("read")], False),
        ([granted("read", "issue"), granted("write", rate=RATE)], [granted("read", rate=RATE)], True),
        # Without a rate of its own it has the gateway's, 100 and 200.
        ([granted("read", "issue")], [granted("read", rate={"requests_per_s": 100})], True),
        ([granted("read", "issue")], [granted("read", rate={"requests_per_s": 101})], False),
        ([granted("read", "issue")], [granted("read", rate={})], False),
        # Quotas: the same, narrower, one wider, without, and of what does not write.
        ([granted("*", streams_max=5)], [granted("write", streams_max=5)], True),
        ([granted("*", streams_max=5)], [granted("write", streams_max=4, bytes_max=1)], True),
        ([granted("*", streams_max=5)], [granted("write", streams_max=6)], False),
        ([granted("*", streams_max=5)], [granted("write", bytes_max=5)], False),
        ([granted("*", streams_max=5)], [granted("write")], False),
        ([granted("*", streams_max=5)], [granted("consume")], False),
        ([granted("*", streams_max=5)], [granted("read", "issue")], True),
        ([granted("*", bytes_max=5)], [granted("write", bytes_max=6)], False),
        ([granted("*", bytes_max=5)], [granted("write", bytes_max=5)], True),
        # A part of the pattern has a count of its own; with the whole one beside it, that holds too.
        ([granted("*", streams_max=5)], [granted("write", streams="orders.eu", streams_max=5)], False),
        (
            [granted("*", streams_max=5)],
            [granted("write", streams="orders.eu"), granted("read", streams_max=5)],
            True,
        ),
        # The quota of another grant.
        ([granted("*"), granted("read", streams="orders.eu", streams_max=1)], [granted("write")], False),
        (
            [granted("*"), granted("read", streams="orders.eu", streams_max=1)],
            [granted("write", streams="orders.us")],
            True,
        ),
        (
            [granted("*"), granted("read", streams="orders.eu", streams_max=1)],
            [granted("write", streams_max=1)],
            True,
        ),
    ],
)
async def test_what_is_passed_on_has_no_more_rate_and_quota(
    engine: Engine, tmp_path: Path, own: Sequence[Any], grants: Sequence[Any], *, allowed: bool
) -> None:
    issuer = tokens.create(tuple(map(Grant.from_value, own)))
    app = await app_with(engine, tmp_path, issuer, rate_requests="100/s burst 200")
    answer = await create(app, issuer.text, grants=grants)
    assert answer.status_code == (201 if allowed else 403), answer.text
    if not allowed:
        assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'
        assert answer.json()["errors"][0]["pointer"] == "/grants"


async def test_what_is_passed_on_lives_no_longer(engine: Engine, tmp_path: Path) -> None:
    issuer = made(ISSUER, expires_in_s=60)
    app = await app_with(engine, tmp_path, issuer)
    grants = [{"actions": ["read"], "streams": "orders.eu"}]
    assert issuer.token.expires_at is not None
    for expires_in_ms in (None, 59_000):
        given = {} if expires_in_ms is None else {"expires_in_ms": expires_in_ms}
        answer = await create(app, issuer.text, grants=grants, **given)
        token = app.gateway.access.tokens.find(answer.json()["id"])
        assert token.expires_at is not None
        assert token.expires_at <= issuer.token.expires_at
    answer = await create(app, issuer.text, grants=grants, expires_in_ms=61_000)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/expires_in_ms")


async def test_an_issuer_sees_and_revokes_its_own_tokens_alone(engine: Engine, tmp_path: Path) -> None:
    one, other = made(ISSUER), made(ISSUER)
    app = await app_with(engine, tmp_path, one, other)
    grants = [{"actions": ["read"], "streams": "orders.eu"}]
    mine = (await create(app, one.text, grants=grants)).json()
    theirs = (await create(app, other.text, grants=grants)).json()
    async with client(app, one.text) as http:
        listed = (await http.get("/v1/admin/tokens")).json()["tokens"]
        assert [token["id"] for token in listed] == [mine["id"]]
        for path in (f"/v1/admin/tokens/{theirs['id']}", f"/v1/admin/tokens/{one.token.id}"):
            assert (await http.get(path)).status_code == 404
            assert (await http.delete(path)).status_code == 404
        assert (await http.post("/v1/admin/revocations", json={"jti": "x"})).status_code == 403
        assert (await http.delete(f"/v1/admin/tokens/{mine['id']}")).status_code == 204
    assert await status(app, mine["token"], "/v1/streams/orders.eu/entries") == 401
    assert await status(app, theirs["token"], "/v1/streams/orders.eu/entries") == 200
    # What a caller has made goes with its subject.
    assert (await revoke(app, subject=f"token:{other.token.id}")).status_code == 201
    assert await status(app, theirs["token"], "/v1/streams/orders.eu/entries") == 401
    assert await status(app, other.text, "/v1/streams/orders.eu/entries") == 200


PASSED_ON = granted("read", "write", "issue")


async def test_an_issuer_of_the_same_name_in_another_tenant_sees_none_of_them(engine: Engine) -> None:
    """Two tenants may have the same names of callers, as of streams."""
    app = with_jwts(engine)
    callers = {
        prefix: jwt(sub="alice", grants=[{**PASSED_ON, "prefix": prefix}]) for prefix in ("acme.", "other.")
    }
    grants = [{"actions": ["read"], "streams": "orders.eu"}]
    of = {prefix: (await create(app, text, grants=grants)).json() for prefix, text in callers.items()}
    for prefix, text in callers.items():
        (theirs,) = (one["id"] for whose, one in of.items() if whose != prefix)
        async with client(app, text) as http:
            listed = (await http.get("/v1/admin/tokens")).json()["tokens"]
            assert [one["id"] for one in listed] == [of[prefix]["id"]]
            assert (await http.get(f"/v1/admin/tokens/{theirs}")).status_code == 404
            assert (await http.delete(f"/v1/admin/tokens/{theirs}")).status_code == 404


@pytest.mark.parametrize("subject", ["alice", "a" * 300])
async def test_with_a_subject_goes_what_was_made_for_it(engine: Engine, subject: str) -> None:
    """With its JWTs, and with the tokens that were made with these, also by another's hand in between."""
    app = with_jwts(engine)
    own = {"grants": [PASSED_ON]}
    of_alice, of_bob = jwt(sub=subject, iat=1_000, **own), jwt(sub="bob", iat=1_000, **own)
    path, given = "/v1/streams/orders.eu/entries", {"grants": [PASSED_ON]}
    first = (await create(app, of_alice, **given)).json()
    second = (await create(app, first["token"], **given)).json()
    other = (await create(app, of_bob, **given)).json()
    third = (await create(app, other["token"], **given)).json()
    async with client(app, jwt(sub="root", grants=["*:*"])) as http:
        answer = await http.post(
            "/v1/admin/revocations", json={"subject": subject, "issued_before_ms": 1_000_001}
        )
        assert answer.status_code == 201
        # The tokens were made after that time.
        assert [await status(app, one["token"], path) for one in (first, second)] == [200, 200]
        assert await status(app, of_alice, path) == 401
        # The first goes by its own ID, and what was made with it is still found.
        assert (await http.delete(f"/v1/admin/tokens/{first['id']}")).status_code == 204
        assert await status(app, second["token"], path) == 200
        assert (await http.post("/v1/admin/revocations", json={"subject": subject})).status_code == 201
        listed = (await http.get("/v1/admin/tokens")).json()["tokens"]
    assert sorted(one["id"] for one in listed) == sorted([other["id"], third["id"]])
    for gateway in (app, with_jwts(engine)):
        for text, expected in (
            (of_bob, 200),
            (other["token"], 200),
            (third["token"], 200),
            (second["token"], 401),
        ):
            assert await status(gateway, text, path) == expected


@pytest.mark.parametrize(
    ("subject", "before_s", "is_revoked"),
    [
        ("alice", 100, False),
        # What was stolen before is passed on by the thief after.
        ("alice", 101, True),
        ("jwt:alice", 101, True),
        ("token:Zb3kq0VJm2aX", 200, False),
        ("token:Zb3kq0VJm2aX", 201, True),
        ("bob", 300, False),
        ("jwt:jwt:alice", 300, False),
    ],
)
def test_a_token_goes_with_any_of_those_that_it_comes_from(
    subject: str, before_s: int, *, is_revoked: bool
) -> None:
    first, second, end = (datetime.fromtimestamp(time_s, UTC) for time_s in (100, 200, before_s))
    token = tokens.create(
        (Grant.parse("read:s"),),
        created_at=second,
        created_by="token:Zb3kq0VJm2aX",
        earlier=(tokens.Making(by="jwt:alice", at=first),),
    ).token
    revocations = Revocations(lambda: 0.0)
    revocations.add([Revocation(kind="subject", value=subject, revoked_at=end, issued_before=end)])
    assert revocations.has_token(token) is is_revoked


async def test_a_token_is_passed_on_from_hand_to_hand_a_few_times(engine: Engine, tmp_path: Path) -> None:
    """Each token keeps by whom it was made."""
    issuer = made(ISSUER)
    app = await app_with(engine, tmp_path, issuer)
    text = issuer.text
    for _ in range(HANDS_MAX):
        answer = await create(app, text, grants=[PASSED_ON])
        assert answer.status_code == 201
        text = answer.json()["token"]
    answer = await create(app, text, grants=[PASSED_ON])
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert await status(app, text, "/v1/streams/orders.eu/entries") == 200


async def test_a_jwt_without_a_subject_passes_nothing_on(engine: Engine) -> None:
    """It would be unknown whose tokens these are. A JWT with `admin` may make tokens all the same."""
    app = with_jwts(engine)
    given = {"grants": [{"actions": ["read"], "streams": "orders.eu"}]}
    for claims, expected, name in (
        ({"grants": [PASSED_ON], "sub": None}, 403, None),
        ({"grants": [PASSED_ON], "sub": None, "jti": "j1"}, 403, None),
        ({"grants": [PASSED_ON], "sub": ""}, 401, None),
        ({"grants": ["admin:*"], "sub": None, "jti": "j2"}, 201, "jwt-id:j2"),
    ):
        answer = await create(app, jwt(**claims), **given)
        assert answer.status_code == expected, answer.text
        if expected == 201:
            assert answer.json()["created_by"] == name


async def test_anybody_with_a_token_may_ask_what_it_allows(engine: Engine, tmp_path: Path) -> None:
    token = made("read:s", '{"actions":["consume"],"streams":"s","groups":"g"}')
    app = await app_with(engine, tmp_path, token)
    async with client(app, token.text) as http:
        caller = (await http.get("/v1/whoami")).json()
    assert caller["name"] == f"token:{token.token.id}"
    assert [Grant.from_value(one) for one in caller["grants"]] == list(token.token.grants)
