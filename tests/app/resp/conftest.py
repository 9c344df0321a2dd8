"""The port for Redis clients on a Unix socket, in this process, a real engine behind it.

Knows: how it is put together for a test. Must never know: what is tested.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from app.auth import AccessPolicy
from app.doors.resp.listening import RespServer
from app.gateway import Gateway
from app.life import Life
from engine import Clock, Engine, SystemClock
from tests.bounds import bounded

LATE_S: Final = 10.0
_TURNS_MAX: Final = 100_000


async def until(come: Callable[[], bool]) -> None:
    """Wait until it has come, one turn of the loop after the other."""
    for _ in range(_TURNS_MAX):
        if come():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come")


class Wire:
    """A raw connection: bytes there, bytes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *words: str | bytes | int) -> None:
        """Send a command."""
        raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.writer.write(b"*%d\r\n" % len(raw))
        self.writer.write(b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in raw]))

    async def line(self) -> bytes:
        """The next line, without its end."""
        async with asyncio.timeout(LATE_S):
            return (await self.reader.readuntil(b"\r\n"))[:-2]

    async def reply(self) -> object:
        """The next reply: lists as lists, maps as dictionaries, errors as the text `-…`."""
        head = await self.line()
        kind, rest = head[:1], head[1:]
        if kind in b"$=":
            if rest == b"-1":
                return None
            async with asyncio.timeout(LATE_S):
                word = (await self.reader.readexactly(int(rest) + 2))[:-2]
            return word[4:].decode() if kind == b"=" else word
        if kind in b"*>~":
            return None if rest == b"-1" else [await self.reply() for _ in range(int(rest))]
        if kind == b"%":
            return {_hashable(await self.reply()): await self.reply() for _ in range(int(rest))}
        if kind == b"_":
            return None
        return int(rest) if kind == b":" else head.decode() if kind == b"-" else rest.decode()

    async def call(self, *words: str | bytes | int) -> object:
        """The reply to a command."""
        self.send(*words)
        return await self.reply()

    async def ended(self) -> bool:
        """Whether the other side has closed."""
        async with asyncio.timeout(LATE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    def close(self) -> None:
        """Close this side."""
        self.writer.close()


def _hashable(value: object) -> object:
    assert isinstance(value, bytes | str | int), "names of maps are words"
    return value


async def connected(path: Path) -> Wire:
    """A raw connection to the Unix socket there."""
    return Wire(*await asyncio.open_unix_connection(str(path)))


class TestedPort:
    """The port, its gateway, and connections to it."""

    __test__ = False

    def __init__(self, life: Life, path: Path) -> None:
        self.life = life
        self.gateway = life.gateway
        self.server = RespServer(life.gateway)
        life.on_drain.append(self.server.drain)
        self.path = path
        self._wires: list[Wire] = []

    async def connect(self) -> Wire:
        """Another client."""
        wire = await connected(self.path)
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        """Close all clients."""
        for wire in self._wires:
            wire.close()


Open = Callable[..., "asyncio.Future[TestedPort]"]


@pytest.fixture
async def open_port(tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    """Opens ports with settings and a policy; closes them."""
    opened: list[tuple[TestedPort, Engine]] = []

    async def open_one(
        policy: AccessPolicy | None = None, clock: Clock | None = None, **given: Any
    ) -> TestedPort:
        path = tmp_path / f"{len(opened)}.sock"
        given["resp_listen"] = (f"unix:{path}", *given.get("resp_listen", ()))
        settings = bounded(log_requests="none", drain_s_max=1, **given)
        clock = clock or SystemClock()
        life = Life(Gateway(settings, clock, policy))
        engine = Engine.open(None, clock=clock)
        await engine.start()
        life.open(engine)
        port = TestedPort(life, path)
        await port.server.start()
        opened.append((port, engine))
        return port

    yield open_one
    for port, engine in opened:
        port.close()
        await port.server.close()
        engine.check()
        await engine.close()


@pytest.fixture
async def port(open_port: Callable[..., object]) -> TestedPort:
    """An open port, as set by default."""
    made = await open_port()  # type: ignore[misc]
    assert isinstance(made, TestedPort)
    return made


@pytest.fixture
async def wire(port: TestedPort) -> Wire:
    """A client of it."""
    return await port.connect()
