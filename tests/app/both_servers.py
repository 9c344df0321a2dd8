"""Two gateways at a moment that stands still: one behind our server, one behind any ASGI server.

Knows: a caller's connection to each, what may change between two of its requests, and whether a head is kept.
Must never know: what the answers should be.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from pydantic import SecretStr

from app.auth import Grant, TokenPolicy, tokens
from app.auth.revocations import Revocation
from app.main import App, create_app
from app.operating import Phase
from app.server import http_server
from app.settings import Settings
from engine import Call, Done, Engine, Fsync
from engine.commands.base import Command
from engine.read_handle import Replies
from engine.storage import Storage
from engine.storage.memory import MemoryStorage
from tests.app.asgi_server import asgi_server
from tests.app.pair import HOST, plain
from tests.engine.clocks import HandClock, settle

LATE_S: Final = 10.0
LIVES_S: Final = 60
ALL: Final = ("read", "write", "consume", "close", "manage")
BURST: Final = 6
RATE: Final = {"requests_per_s": 1_000, "requests_burst": BURST}
# Where an answer goes on names a generation, which is never the same.
_GENERATION: Final = re.compile(rb"\.[0-9a-f]{16}")


class Side:
    """A gateway that listens, with one caller's token, and a connection of that caller."""

    def __init__(
        self, app: App, policy: TokenPolicy, engine: Engine, token: tokens.CreatedToken, *, asgi: bool
    ) -> None:
        self.app = app
        self.gateway, self.life = app.gateway, app.life
        self.policy = policy
        self.engine = engine
        self.token = token
        self.server = (asgi_server if asgi else http_server)(self.gateway.settings, app)

    async def connect(self, port: int, stack: AsyncExitStack) -> None:
        """Connect to it."""
        self._port, self._stack = port, stack
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(self.writer.close)

    async def ask(self, *pieces: bytes) -> bytes:
        """An answer without what differs each time; with what comes behind it, if that is the end. Without
        a piece it is that to what was sent before.
        """
        for piece in pieces:
            self.writer.write(piece)
            await settle()
        async with asyncio.timeout(LATE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HTTP/1.1 100 "):
                head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
            is_head = b"".join(pieces).startswith(b"HEAD ")
            body = b"" if is_head else await self.reader.readexactly(length)
            if b"\r\nconnection: close\r\n" in head:
                body += await self.reader.read()
        await settle()
        return _GENERATION.sub(b".?", plain(head + body))

    async def another(self) -> "Side":
        """Another connection of the caller."""
        other = copy(self)
        await other.connect(self._port, self._stack)
        return other

    @property
    def lines(self) -> list[bytes]:
        """The log of requests that is not written yet."""
        return self.app.exchanges._lines._lines  # noqa: SLF001

    @property
    def connection(self) -> Any:
        """The protocol at its end of the connection."""
        address = self.writer.get_extra_info("sockname")
        found: set[Any] = {*self.server.service.connections}
        return next(one for one in found if one.client == address)

    def keeps(self, asked: bytes) -> bool:
        """Whether the plan of a request like this is kept, and holds."""
        return self.connection._heads.find(asked, 0) is not None  # noqa: SLF001

    def change_token(self, **members: Any) -> None:
        """The file of tokens was read again, and the caller's has another grant."""
        grant = Grant.from_value({"actions": ALL, **members})
        self.policy.replace_tokens([self.token.token.model_copy(update={"grants": (grant,)})])


class Sides(NamedTuple):
    """One behind our server, one behind any other, and the time of both."""

    ours: Side
    theirs: Side
    clock: HandClock

    async def both(self, *pieces: bytes) -> bytes:
        """The answer of both."""
        ours, theirs = await self.ours.ask(*pieces), await self.theirs.ask(*pieces)
        assert ours == theirs, (pieces, ours, theirs)
        return ours

    async def status(self, *pieces: bytes) -> int:
        """The status of both."""
        return int((await self.both(*pieces))[9:12])

    async def others(self) -> "Sides":
        """Another connection of the caller to each."""
        return Sides(await self.ours.another(), await self.theirs.another(), self.clock)

    def change_token(self, **members: Any) -> None:
        """See `Side`."""
        for side in (self.ours, self.theirs):
            side.change_token(**members)

    def own(self, asked: bytes) -> bytes:
        """A request as one of the caller."""
        return asked.replace(HOST, HOST + f"Authorization: Bearer {self.ours.token.text}\r\n".encode())


def sent_from_now(side: Side, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """The commands that its engine gets from now on."""
    sent: list[Command] = []
    send = side.engine.send

    def note(call: Call, done: Done) -> Replies | None:
        sent.extend(call.commands)
        return send(call, done)

    monkeypatch.setattr(side.engine, "send", note)
    return sent


@asynccontextmanager
async def opened(
    fsync: Fsync = "everysec", storages: Sequence[Storage] = (), **set_to: Any
) -> AsyncIterator[Sides]:
    """Both, and a caller that may do everything."""
    clock, loop = HandClock(), asyncio.get_running_loop()
    end = datetime.fromtimestamp(clock.wall_ms() / 1000 + LIVES_S, UTC)
    token = tokens.create((Grant.from_value({"actions": ALL}),), expires_at=end)
    storages = storages or (MemoryStorage(), MemoryStorage())
    clock.drive(loop)
    async with AsyncExitStack() as stack:
        stack.callback(clock.let_be, loop)
        ours, theirs = [
            await _side(stack, clock, token, fsync, storage, set_to, asgi=asgi)
            for asgi, storage in zip((False, True), storages, strict=True)
        ]
        yield Sides(ours, theirs, clock)


async def _side(
    stack: AsyncExitStack,
    clock: HandClock,
    token: tokens.CreatedToken,
    fsync: Fsync,
    storage: Storage,
    set_to: dict[str, Any],
    *,
    asgi: bool,
) -> Side:
    settings = Settings(root_token=SecretStr("x" * 24), **{"log_requests": "none", **set_to})
    policy = TokenPolicy([token.token], lambda: clock.wall_ms() / 1000)
    app = await asyncio.to_thread(partial(create_app, settings, clock, policy=policy))
    engine = Engine.open(storage, clock=clock, fsync=fsync)
    await engine.start()
    stack.push_async_callback(engine.close)
    app.life.open(engine)
    side = Side(app, policy, engine, token, asgi=asgi)
    server = await asyncio.get_running_loop().create_server(side.server.connect, "127.0.0.1")
    stack.callback(server.close)
    await side.connect(server.sockets[0].getsockname()[1], stack)
    return side


def _expire(sides: Sides) -> None:
    sides.clock.pass_ms(LIVES_S * 1_000)


def _revoked(token: tokens.Token) -> Revocation:
    now = datetime.now(UTC)
    return Revocation(kind="token", value=token.id, revoked_at=now, expires_at=None)


def _each(change: Callable[[Side], object]) -> Callable[[Sides], None]:
    def act(sides: Sides) -> None:
        for side in (sides.ours, sides.theirs):
            change(side)

    return act


# What may change between two requests of a caller that may do everything.
CHANGES: Final[dict[str, Callable[[Sides], None]]] = {
    "nothing": _each(lambda _: None),
    "it drains": _each(lambda side: side.life.drain()),
    "its engine fails": _each(lambda side: side.life.enter(Phase.RESTARTING)),
    "its engine is gone": _each(lambda side: side.life.drop()),
    "the token is gone": _each(lambda side: side.policy.replace_tokens([])),
    "the token is revoked": _each(lambda side: side.policy.revoke([_revoked(side.token.token)])),
    "the token has expired": _expire,
    "it may not write": _each(lambda side: side.change_token(actions=["read"])),
    "it may only write": _each(lambda side: side.change_token(actions=["write"])),
    "it may do that elsewhere": _each(lambda side: side.change_token(streams="t")),
    "it may use another group": _each(lambda side: side.change_token(groups="h")),
    "it has a rate": _each(lambda side: side.change_token(rate=RATE)),
    "it has a quota": _each(lambda side: side.change_token(bytes_max=1)),
    "it is a tenant": _each(lambda side: side.change_token(prefix="t")),
}
