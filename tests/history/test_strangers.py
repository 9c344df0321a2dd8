"""Whoever reaches the service without its token takes the bytes of a head of it, and the time of a request.

Knows: what a client may send before its token is looked at, and what it may leave out.
Must never know: pages.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import pytest

from history.service import History
from history.serving import LIMITS, server_of
from tests.engine.clocks import HandClock, settle
from tests.spark.archive_tables import GENERATION, Maker

TOKEN: Final = b"Authorization: Bearer secret\r\n"
HOST: Final = b"Host: history\r\n"
PAGE: Final = b"/v1/streams/orders/entries?generation=%b" % GENERATION.encode()
GET: Final = b"GET " + PAGE + b" HTTP/1.1\r\n" + HOST
POST: Final = b"POST " + PAGE + b" HTTP/1.1\r\n" + HOST
ENOUGH_BYTES: Final = 4 << 20


class Peer:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send, and let the service do what it can."""
        self._writer.write(data)
        await settle()

    async def answer(self) -> bytes:
        """The head and the body of an answer."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        return head + await self._reader.readexactly(length)

    async def ends(self) -> bytes:
        """All that comes until the service closes."""
        with suppress(ConnectionError):
            return await self._reader.read()
        return b""

    async def flood(self, piece: bytes) -> bytes:
        """Send this until the service has had enough; what it says."""
        reading, sent = asyncio.ensure_future(self.ends()), 0
        with suppress(ConnectionError):
            while not reading.done() and sent < ENOUGH_BYTES:
                self._writer.write(piece)
                sent += len(piece)
                await self._writer.drain()
                await settle()
        assert sent < ENOUGH_BYTES, "it reads on"
        return await reading


class Strangers:
    """A service on a loop whose time the test lets pass."""

    def __init__(self, port: int, clock: HandClock) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.clock = clock

    async def connect(self) -> Peer:
        """A client."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        return Peer(reader, writer)

    async def leave(self) -> None:
        """Close all of them."""
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def serving(maker: Maker) -> AsyncIterator[Strangers]:
    """The service, which has the token `secret`."""
    maker.batch({"orders": ["1-0"]})
    clock, loop = HandClock(), asyncio.get_running_loop()
    history = History(maker.root, clock, lambda: "secret", 1 << 20)
    server = server_of(history)
    listener = await loop.create_server(server.connect, "127.0.0.1")
    clock.drive(loop)
    strangers = Strangers(listener.sockets[0].getsockname()[1], clock)
    try:
        yield strangers
    finally:
        clock.let_be(loop)
        await strangers.leave()
        listener.close()
        await server.drain()
        history.close()


@pytest.fixture
async def strangers(maker: Maker) -> AsyncIterator[Strangers]:
    async with serving(maker) as made:
        yield made


PIECE: Final = b"a" * (16 << 10)
FLOODS: Final = {
    "url": (b"GET /", PIECE, b"431"),
    "header": (GET + b"X: ", PIECE, b"431"),
    "header's name": (GET, PIECE, b"431"),
    "headers": (GET, b"X: a\r\n" * 2_000, b"431"),
    "token": (GET + b"Authorization: Bearer ", PIECE, b"431"),
    "nothing that is HTTP": (b"", b"\0" * 1_000, b"400"),
}


@pytest.mark.parametrize("what", FLOODS)
async def test_a_head_without_end_is_refused(strangers: Strangers, what: str) -> None:
    """Once it is longer than any of a gateway."""
    before, piece, status = FLOODS[what]
    peer = await strangers.connect()
    await peer.send(before)
    assert (await peer.flood(piece)).startswith(b"HTTP/1.1 " + status)


CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"
DRIPS: Final = {
    "nothing": (b"", b""),
    "line": (b"GET /v1/str", b"e"),
    "head": (GET, b"X: a\r\n"),
    "blank lines": (b"", b"\r\n"),
    "body": (POST + b"Content-Length: 500\r\n\r\n", b" "),
    "body behind a token": (POST + TOKEN + b"Content-Length: 500\r\n\r\n", b" "),
    "chunks": (POST + CHUNKED, b"1\r\n \r\n"),
    "trailers": (POST + CHUNKED + b"0\r\n", b"X: a\r\n"),
}


@pytest.mark.parametrize("what", DRIPS)
async def test_a_request_that_drips_has_the_time_of_one(strangers: Strangers, what: str) -> None:
    """All in all; a connection without one has as long."""
    before, piece = DRIPS[what]
    peer = await strangers.connect()
    await peer.send(before)
    for _ in range(20):
        strangers.clock.pass_ms(round(LIMITS.request_s_max * 100))
        await peer.send(piece)
    received = await peer.ends()
    assert received[9:12] in (b"", b"405", b"408"), received


async def test_what_asks_for_a_socket_is_answered_as_a_page(strangers: Strangers) -> None:
    """Nothing speaks WebSocket here."""
    peer = await strangers.connect()
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    await peer.send(GET + upgrade + b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
    assert (await peer.answer()).startswith(b"HTTP/1.1 401 ")


async def test_a_gateway_keeps_its_connection(strangers: Strangers) -> None:
    """For pages one after the other, with pauses in between."""
    peer = await strangers.connect()
    for _ in range(3):
        await peer.send(GET + TOKEN + b"\r\n")
        answer = await peer.answer()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b'"id":"1-0"' in answer
        strangers.clock.pass_ms(round(LIMITS.keep_alive_s * 900))
        await settle()
    strangers.clock.pass_ms(round(LIMITS.keep_alive_s * 100))
    assert await peer.ends() == b""
