"""Two gateways at a moment that stands still: one with lanes, one without the fast path.

Knows: a caller's connection to each, and what may change between two of its requests.
Must never know: what the answers should be.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeVar

import pytest
from pydantic import SecretStr

from app.auth import Grant, TokenPolicy, tokens
from app.auth.revocations import Revocation
from app.gateway import Phase
from app.main import App, create_app
from app.server import http_server
from app.settings import Settings
from engine import Call, Done, Engine, Fsync
from engine.commands import Command
from engine.read_handle import Replies
from engine.storage.memory import MemoryStorage
from tests.app.fast_requests import ENTRIES, ENTRY, JSON, post, request
from tests.app.pair import HOST, plain
from tests.engine.clocks import HandClock, settle

LATE_S: Final = 10.0
LINE_ID: Final = re.compile(rb'"request_id":"[^"]*"')
LIVES_S: Final = 60
APPENDS: Final = "/v1/stream/d"
MESSAGE: Final = b'{"token":"Hel"}'
SIX: Final = {"requests_per_s": 1, "requests_burst": 6}


class Side:
    """A gateway that listens, with one caller's token, and a connection of that caller."""

    def __init__(self, app: App, policy: TokenPolicy, engine: Engine, token: tokens.CreatedToken) -> None:
        self.app = app
        self.gateway = app.gateway
        self.policy = policy
        self.engine = engine
        self.token = token
        self.server = http_server(self.gateway.settings, app)

    async def connect(self, port: int, stack: AsyncExitStack) -> None:
        """Connect to it."""
        self._port, self._stack = port, stack
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(self.writer.close)

    async def ask(self, *pieces: bytes) -> bytes:
        """An answer without what differs each time; with what comes behind it, if that is the end."""
        for piece in pieces:
            self.writer.write(piece)
            await settle()
        async with asyncio.timeout(LATE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 100 "):
                head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
            body = await self.reader.readexactly(length)
            if b"\r\nconnection: close\r\n" in head:
                body += await self.reader.read()
        await settle()
        return plain(head + body)

    async def another(self) -> "Side":
        """Another connection of the caller."""
        other = copy(self)
        await other.connect(self._port, self._stack)
        return other

    @property
    def lines(self) -> list[bytes]:
        """The log of requests that is not written yet."""
        return self.app._outermost._lines._lines  # noqa: SLF001

    @property
    def connection(self) -> Any:
        """The protocol at its end of the connection."""
        address = self.writer.get_extra_info("sockname")
        found: set[Any] = {*self.server.service.connections}
        return next(one for one in found if one.client == address)

    def change_token(self, **members: Any) -> None:
        """The file of tokens was read again, and the caller's has another grant."""
        grant = Grant.from_value({"actions": ["read", "write"], **members})
        self.policy.replace_tokens([self.token.token.model_copy(update={"grants": (grant,)})])


class Sides(NamedTuple):
    """One with lanes, one without the fast path, and the time of both."""

    fast: Side
    full: Side
    clock: HandClock

    async def both(self, asked: bytes) -> bytes:
        """The answer of both."""
        fast, full = await self.fast.ask(asked), await self.full.ask(asked)
        assert fast == full, (fast, full)
        return fast

    async def open_lane(self, *headers: str) -> bytes:
        """Publish with this head, after which the next request may take the lane. Returns what was asked."""
        asked = self.entry(ENTRY, *headers)
        await self.open(repeat(asked), b"201")
        return asked

    async def open_append_lane(self, *headers: str) -> bytes:
        """The same of an append to the stream `d`, which is created."""
        assert (await self.both(self.own(request(f"PUT {APPENDS}", b"", JSON))))[9:12] == b"201"
        asked = self.append(MESSAGE, *headers)
        await self.open(repeat(asked), b"204")
        return asked

    async def open(self, asked: Iterator[bytes], status: bytes) -> None:
        """Ask these, which are answered with this status, until the next one may take the lane."""
        # A head is remembered, and a token is known, only behind a request that went the ordinary way.
        for _ in range(3):
            assert (await self.both(next(asked)))[9:12] == status
        assert self.fast.connection.lane is not None

    def own(self, asked: bytes) -> bytes:
        """A request as one of the caller."""
        return asked.replace(HOST, HOST + f"Authorization: Bearer {self.fast.token.text}\r\n".encode())

    def append(self, body: bytes, *headers: str) -> bytes:
        """A request of the caller to append."""
        return self.own(post(APPENDS, body, *(headers or (JSON,))))

    def entry(self, body: bytes, *headers: str) -> bytes:
        """A request of the caller to publish."""
        return self.own(post(ENTRIES, body, *(headers or (JSON,))))


C = TypeVar("C", bound=Command)


def sent_from_now(sides: Sides, monkeypatch: pytest.MonkeyPatch, kind: type[C]) -> list[C]:
    """The commands of this kind that the engine behind the lanes gets from now on."""
    sent: list[C] = []
    send = sides.fast.engine.send

    def note(call: Call, done: Done) -> Replies | None:
        sent.extend(one for one in call.commands if isinstance(one, kind))
        return send(call, done)

    monkeypatch.setattr(sides.fast.engine, "send", note)
    return sent


@asynccontextmanager
async def opened(fsync: Fsync = "everysec", **set_to: Any) -> AsyncIterator[Sides]:
    clock, loop = HandClock(), asyncio.get_running_loop()
    end = datetime.fromtimestamp(clock.wall_ms() / 1000 + LIVES_S, UTC)
    token = tokens.create((Grant.parse("read,write:*"),), expires_at=end)
    clock.drive(loop)
    async with AsyncExitStack() as stack:
        stack.callback(clock.let_be, loop)
        fast, full = [
            await _side(stack, clock, token, fsync, set_to, fast_path=fast_path)
            for fast_path in (True, False)
        ]
        yield Sides(fast, full, clock)


async def _side(
    stack: AsyncExitStack,
    clock: HandClock,
    token: tokens.CreatedToken,
    fsync: Fsync,
    set_to: dict[str, Any],
    *,
    fast_path: bool,
) -> Side:
    settings = Settings(root_token=SecretStr("x" * 24), **{"log_requests": "none", **set_to})
    policy = TokenPolicy([token.token], lambda: clock.wall_ms() / 1000)
    app = await asyncio.to_thread(partial(create_app, settings, clock, fast_path=fast_path, policy=policy))
    engine = Engine.open(MemoryStorage(), clock=clock, fsync=fsync)
    await engine.start()
    stack.push_async_callback(engine.close)
    app.gateway.open(engine)
    side = Side(app, policy, engine, token)
    server = await asyncio.get_running_loop().create_server(side.server.connect, "127.0.0.1")
    stack.callback(server.close)
    await side.connect(server.sockets[0].getsockname()[1], stack)
    return side


def _expire(sides: Sides) -> None:
    sides.clock.pass_ms(LIVES_S * 1_000)


def _revoked(token: tokens.Token) -> Revocation:
    now = datetime.now(UTC)
    return Revocation(kind="token", value=token.id, revoked_at=now, expires_at=None)


def each(change: Callable[[Side], object]) -> Callable[[Sides], None]:
    def act(sides: Sides) -> None:
        for side in (sides.fast, sides.full):
            change(side)

    return act


# What may change between two requests of a caller that may read and write everything.
CHANGES: Final[dict[str, Callable[[Sides], None]]] = {
    "nothing": each(lambda _: None),
    "it drains": each(lambda side: side.gateway.drain()),
    "its engine fails": each(lambda side: side.gateway.enter(Phase.RESTARTING)),
    "its engine is gone": each(lambda side: side.gateway.drop()),
    "the token is gone": each(lambda side: side.policy.replace_tokens([])),
    "the token is revoked": each(lambda side: side.policy.revoke([_revoked(side.token.token)])),
    "the token has expired": _expire,
    "it may not write": each(lambda side: side.change_token(actions=["read"])),
    "it may not write here": each(lambda side: side.change_token(streams="t")),
    "it has a rate": each(lambda side: side.change_token(rate=SIX)),
    "it has a quota": each(lambda side: side.change_token(streams="s", bytes_max=1)),
    "it is a tenant": each(lambda side: side.change_token(prefix="t")),
}
