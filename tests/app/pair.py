"""Two gateways side by side, behind our server and behind any ASGI server, asked the same at the same time.

Knows: sockets, how an answer ends, what of an answer is never the same twice.
Must never know: what the answers should be.
"""

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from app.auth import AccessPolicy
from app.gateway import Gateway
from app.main import App
from app.server import http_server
from app.settings import Settings
from engine import Engine, Fsync, SystemClock
from engine.storage import Storage
from engine.storage.memory import MemoryStorage
from tests.app.asgi_server import asgi_server

HOST = b"Host: localhost\r\n"
_PATIENCE_S = 20.0


class OneMoment(SystemClock):
    """The same time of day for ever, so that both gateways give the same IDs; waits end all the same."""

    def wall_ms(self) -> int:
        return 1_000


class Standstill(OneMoment):
    """No time passes at all: what is limited by time has what it had."""

    def monotonic(self) -> float:
        return 1.0


class Served:
    """A gateway in a thread with an event loop of its own, at a moment that does not pass."""

    def __init__(
        self,
        settings: Settings,
        clock: SystemClock,
        policy: AccessPolicy | None,
        *,
        asgi: bool,
        always: bool,
        storage: Storage,
    ) -> None:
        self.app = App(Gateway(settings, clock, policy))
        self.storage = storage
        self._always = always
        self._listener = socket.create_server(("127.0.0.1", 0))
        # As the gateway's own: an answer in two writes would wait 40 ms for the client's acknowledgement.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._listener.getsockname()[1]
        self.server = (asgi_server if asgi else http_server)(settings, self.app)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: list[PairConnection] = []

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        fsync: Fsync = "always" if self._always else "everysec"
        async with Engine.open(self.storage, clock=OneMoment(), fsync=fsync) as engine:
            self.app.life.open(engine)
            self._loop.call_soon(self._ready.set)
            await self.server.serve(self._listener)
            engine.check()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(_PATIENCE_S), "it starts"

    def drain(self) -> None:
        """As a stop begins."""
        self.soon(self.app.life.drain)

    def soon(self, act: Callable[[], object]) -> None:
        """Have its loop do something; do not wait for it."""
        assert self._loop is not None, "it was started"
        self._loop.call_soon_threadsafe(act)

    def settle(self) -> None:
        """Wait for the end of the step that has written what came: it counts behind that."""
        done = threading.Event()
        self.soon(done.set)
        assert done.wait(_PATIENCE_S), "it goes on"

    def leave(self) -> None:
        """Let the server stop; do not wait for it."""
        self.soon(self.server.stop)

    def stop(self) -> None:
        # A test that failed has left some open.
        for line in self._lines:
            line.close()
        # One that was let go before may have ended, and its loop with it.
        with suppress(RuntimeError):
            self.leave()
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive(), "it stops"

    def connect(self) -> "PairConnection":
        line = PairConnection(self.port)
        self._lines.append(line)
        return line

    def connection(self, line: "PairConnection") -> Any:
        """The protocol at the other end of a line."""
        every: set[Any] = {*self.server.service.connections}
        return next(one for one in every if one.client == line.address)


class PairConnection:
    """A connection to one gateway."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address: tuple[str, int] = self._socket.getsockname()
        self._received = b""

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            # A gateway may answer and close before all is sent.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall(piece)

    def answer(self, *, head_alone: bool = False) -> bytes:
        """One answer, or what came of it before the connection was closed."""
        while b"\r\n\r\n" not in self._received:
            if not self._receive():
                return self._take(len(self._received))
        head_end = self._received.index(b"\r\n\r\n") + 4
        head = self._received[:head_end].lower()
        length = re.search(rb"content-length: (\d+)", head)
        if b"transfer-encoding: chunked" in head:
            while not self._received.endswith(b"\r\n0\r\n\r\n") and self._receive():
                pass
            return self._take(len(self._received))
        end = head_end + (int(length[1]) if length and not head_alone else 0)
        while len(self._received) < end and self._receive():
            pass
        return self._take(end)

    def rest(self) -> bytes:
        """All that comes until the connection is closed."""
        while self._receive():
            pass
        return self._take(len(self._received))

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> bool:
        try:
            piece = self._socket.recv(65_536)
        except ConnectionResetError:
            piece = b""
        self._received += piece
        return bool(piece)

    def _take(self, end: int) -> bytes:
        taken, self._received = self._received[:end], self._received[end:]
        return taken


class Pair:
    """The two of them. `both` sends the same bytes to each on a connection, and gives what came back."""

    def __init__(
        self,
        settings: Settings,
        clock: SystemClock | None = None,
        *,
        always: bool = False,
        storages: Sequence[Storage] = (),
        policies: Sequence[AccessPolicy | None] = (None, None),
    ) -> None:
        clock = clock or OneMoment()
        storages = storages or (MemoryStorage(), MemoryStorage())
        self.fast, self.full = [
            Served(settings, clock, policy, asgi=asgi, always=always, storage=storage)
            for asgi, policy, storage in zip((False, True), policies, storages, strict=True)
        ]
        self._lines: tuple[PairConnection, PairConnection] | None = None

    def __enter__(self) -> Self:
        self.fast.start()
        self.full.start()
        # A Host is looked at once: from then on requests with it are plain.
        self.both(b"GET /healthz/live HTTP/1.1\r\n" + HOST + b"\r\n")
        return self

    def __exit__(self, *exception: object) -> None:
        self.hang_up()
        try:
            self.fast.stop()
        finally:
            self.full.stop()

    def both(self, *pieces: bytes, head_alone: bool = False) -> list[bytes]:
        """One answer of each, on connections that are kept."""
        if self._lines is None:
            self._lines = (self.fast.connect(), self.full.connect())
        for line in self._lines:
            line.send(*pieces)
        answers = [plain(line.answer(head_alone=head_alone)) for line in self._lines]
        if b"\r\nconnection: close\r\n" in answers[1] or b"HTTP/1.1 400" in answers[1]:
            self.hang_up()
        return answers

    def streams(self, *pieces: bytes) -> list[bytes]:
        """Everything that each answers, on a connection of its own, until it closes that."""
        lines = (self.fast.connect(), self.full.connect())
        for line in lines:
            line.send(*pieces)
        answers = [plain(line.rest()) for line in lines]
        for line in lines:
            line.close()
        return answers

    def hang_up(self) -> None:
        for line in self._lines or ():
            line.close()
        self._lines = None


_FLEETING = (
    (re.compile(rb"\r\ndate: [^\r]*"), b""),
    (re.compile(rb"\r\nweir-request-id: [^\r]*"), b"\r\nweir-request-id: ?"),
    (re.compile(rb"\r\nweir-generation: [^\r]*"), b"\r\nweir-generation: ?"),
    # What Durable Streams has as an offset names the generation too.
    (re.compile(rb"(\b[0-9a-f]{16}_[0-9a-f]{16}_)[0-9a-f]{16}\b"), rb"\1?"),
    # A stream's tag is of all that is shown, its generation too.
    (re.compile(rb'\r\netag: "[^"-]*"'), b'\r\netag: "?"'),
    (re.compile(rb'"request_id":"[^"]*"'), b'"request_id":"?"'),
    (re.compile(rb'"generation":"[^"]*"'), b'"generation":"?"'),
    # A problem names its request, whose ID may be longer.
    (re.compile(rb"(problem\+json\r\ncontent-length: )\d+"), rb"\1?"),
)


def plain(answer: bytes) -> bytes:
    """An answer without what is never the same twice."""
    for pattern, instead in _FLEETING:
        answer = pattern.sub(instead, answer)
    return answer
