"""Tokens that end after a request was authenticated and before it is known as open: a slow body, a slow
handshake, a response that is begun.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import KeySet, RSAKey

from app.auth import Principal, TokenPolicy
from app.auth.jwt import LEEWAY_S, JwtKeys, Verifier
from app.auth.policy import GrantMapping
from app.auth.tokens import GRANTS_MAX
from app.errors import RefusalError
from app.live.sessions import AccessEnd, OpenSessions
from app.main import App
from engine import Engine
from engine.commands.types import XLen
from tests.app.auth.callers import app_with, client, made
from tests.app.auth.test_jwt import signed
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, settle

Message = MutableMapping[str, Any]
KEY = RSAKey.generate_key(2048, {"kid": "r1"})


def forget(app: App) -> None:
    """As SIGHUP does, when the file of tokens is empty."""
    policy = app.gateway.access.policy
    assert isinstance(policy, TokenPolicy)
    policy.replace_tokens([])
    app.gateway.access.sessions.revoke(policy.is_revoked)


async def test_a_body_that_comes_after_its_token_was_revoked_changes_nothing(
    engine: Engine, tmp_path: Path
) -> None:
    token = made("read,write,consume:s")
    app = await app_with(engine, tmp_path, token)

    async def slow(*, revoking: bool) -> AsyncIterator[bytes]:
        yield b'{"fields"'
        if revoking:
            forget(app)
        yield b':{"a":"b"}}'

    async with client(app, token.text) as http:
        http.headers["content-type"] = "application/json"
        assert (await http.post("/v1/streams/s/entries", content=slow(revoking=False))).status_code == 201
        answer = await http.post("/v1/streams/s/entries", content=slow(revoking=True))
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert "invalid_token" in answer.headers["www-authenticate"]
    assert await reply_to(engine, XLen(stream="s")) == 1


async def test_a_token_that_expires_while_its_body_comes_is_refused(engine: Engine, tmp_path: Path) -> None:
    clock = HandClock(round(time.time() * 1000))
    token = made("write:s", expires_in_s=60)
    app = await app_with(engine, tmp_path, token, clock=clock)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"fields"'
        clock.pass_ms(60_001)
        yield b':{"a":"b"}}'

    async with client(app, token.text) as http:
        answer = await http.post("/v1/streams/s/entries", content=slow())
    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


def connect(
    app: App,
    kind: str,
    path: str,
    token: str,
    on_first: Callable[[], None],
    *,
    origin: bytes | None = None,
) -> tuple[Awaitable[None], list[Message]]:
    """Open something that stays; `on_first` is called while its first message is being sent."""
    sent: list[Message] = []

    async def receive() -> Message:
        if kind == "websocket" and not sent:
            return {"type": "websocket.connect"}
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # never done

    async def send(message: Message) -> None:
        if not sent:
            on_first()
        sent.append(message)

    scope = {
        "type": kind,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "http_version": "1.1",
        "scheme": "ws" if kind == "websocket" else "http",
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "subprotocols": [],
        "headers": [
            (b"host", b"localhost"),
            (b"accept", b"text/event-stream"),
            (b"authorization", f"Bearer {token}".encode()),
            *([] if origin is None else [(b"origin", origin)]),
        ],
    }
    return app(scope, receive, send), sent


@pytest.mark.parametrize(
    ("kind", "path", "says"),
    [("http", "/v1/streams/s/tail", b"unauthenticated"), ("websocket", "/v1/ws", b"4500")],
)
async def test_what_is_opened_while_its_token_is_revoked_ends_at_once(
    engine: Engine, tmp_path: Path, kind: str, path: str, says: bytes
) -> None:
    """Its authentication was before the revocation, its registration after it."""
    token = made("read:s")
    app = await app_with(engine, tmp_path, token)
    serving, sent = connect(app, kind, path, token.text, lambda: forget(app))
    task = asyncio.ensure_future(serving)
    for _ in range(5):
        await settle()
    assert any(says in one.get("body", b"") or one.get("code") == 4500 for one in sent), sent
    assert not app.gateway.access.sessions.open
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_session_of_a_revoked_caller_ends_once_and_not_after_it_was_left() -> None:
    token = made("read:s")
    policy = TokenPolicy([token.token], time.time)
    principal = await policy.identify(token.text)
    sessions = OpenSessions(HandClock(), policy.is_revoked)
    ends: list[AccessEnd] = []
    sessions.enter(principal, ends.append)
    await settle()
    assert not ends
    policy.replace_tokens([])
    entered = sessions.enter(principal, ends.append)
    assert not ends
    entered.leave()
    sessions.enter(principal, ends.append)
    await settle()
    assert ends == [AccessEnd.REVOKED]
    assert sessions.revoke(policy.is_revoked) == 1
    await settle()
    assert ends == [AccessEnd.REVOKED] * 2


async def test_each_token_of_a_session_is_said_to_expire() -> None:
    """Also one that comes after a warning, and is not good for long."""
    sessions, warned = OpenSessions(HandClock(), lambda _: False), list[int]()
    first, second = (Principal("c", [], expires_s=sessions.wall_s() + left_s) for left_s in (30, 20))
    session = sessions.enter(first, lambda _: None, warned.append)
    await settle()
    session.renew(second)
    await settle()
    session.leave()
    assert warned == [30_000, 20_000]


async def test_a_ticket_is_worth_nothing_when_its_token_is_revoked(engine: Engine, tmp_path: Path) -> None:
    token = made("read:s")
    app = await app_with(engine, tmp_path, token)
    async with client(app, token.text) as http, client(app, None) as page:
        ticket = (await http.post("/v1/tickets")).json()["ticket"]
        forget(app)
        events = {"accept": "text/event-stream"}
        assert (await page.head(f"/v1/streams/s/tail?ticket={ticket}", headers=events)).status_code == 401


# ---- JWTs


class World:
    """A policy that takes JWTs of one key, at a time that a test lets pass."""

    def __init__(self) -> None:
        self.now_s = 1_795_000_000.0
        self.verified = 0
        keys = JwtKeys(["RS256"], lambda: 0.0, keys=KeySet([KEY]))
        self.verifier = Verifier(keys, ["RS256"], self._wall_s)
        self.policy = TokenPolicy(
            [], lambda: self.now_s, verifier=self.verifier, mapping=GrantMapping("grants", {})
        )

    def _wall_s(self) -> float:
        """The verifier asks for the time once for each token that it verifies."""
        self.verified += 1
        return self.now_s

    def headers(self, **claims: Any) -> dict[bytes, bytes]:
        text = signed(KEY, "RS256", {"grants": ["read:s"], "exp": self.now_s + 60, **claims})
        return {b"authorization": b"Bearer " + text.encode()}


async def test_a_jwt_is_remembered_until_the_leeway_is_over() -> None:
    """What it opens ends then too, not at once when it is used after `exp`."""
    world = World()
    headers = world.headers()
    world.now_s += 60 + LEEWAY_S - 0.001
    principal = await world.policy.authenticate(headers)
    assert world.policy.recognise(headers) is principal
    assert await world.policy.authenticate(headers) is principal
    assert world.verified == 1
    assert not principal.is_expired(world.now_s)
    world.now_s += 0.001
    assert world.policy.recognise(headers) is None
    with pytest.raises(RefusalError, match="expired"):
        await world.policy.authenticate(headers)


async def test_a_jwt_with_too_many_grants_is_refused_and_logged(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    principal = await world.policy.authenticate(world.headers(grants=["read:s"] * GRANTS_MAX))
    assert len(principal.grants) == GRANTS_MAX
    with pytest.raises(RefusalError, match=f"more than {GRANTS_MAX} grants"):
        await world.policy.authenticate(world.headers(grants=["read:s"] * (GRANTS_MAX + 1)))
    assert "refused for its number of grants" in "".join(capsys.readouterr())


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -1, 10**400, 10**15])
async def test_a_claim_that_is_no_time_is_refused(claim: str, value: float) -> None:
    """NaN is before no time: a token with it would never expire."""
    world = World()
    with pytest.raises(RefusalError, match="token is not accepted"):
        await world.policy.authenticate(world.headers(**{claim: value}))
