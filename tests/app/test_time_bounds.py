"""Bounds of a connection, at the limit and one beside it: its times in milliseconds, its head in bytes.

Knows: real sockets, heads that were seen and others, an event loop under a clock that the test moves.
Must never know: which timer ends what.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

from app.live.stalls import STALL_S_MAX
from app.main import create_app
from app.server import http_server
from engine import Engine, Fsync, Storage, entries
from engine.commands.types import Cursor, Delete, XAdd, XPending, XReadGroup
from engine.commands.weir_commands import EnsureGroup
from engine.replies import GroupRead, PendingSummary
from tests.app.asgi_server import asgi_server
from tests.bounds import bounded
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.conversation import SlowDisk

# Each another number, so that no bound is taken for another.
STEP_MS = 20
SETTINGS: Final = bounded(
    log_requests="none",
    head_bytes_max=1_024,
    request_s_max=2,
    stall_s_max=3,
    drain_s_max=4,
    keep_alive_s=5,
    heartbeat_ms=1_500,
)
ENTRIES: Final = b"GET /v1/streams/s/entries HTTP/1.1\r\nHost: localhost\r\n"
PUBLISH: Final = (
    b"POST /v1/streams/s/entries HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 20\r\n\r\n"
)
UPGRADE: Final = (
    b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_PATIENCE_S: Final = 10.0
# What closes the socket of one: the code 4004, and the reason.
SLOW: Final = b"\x0f\xa4slow reader"
_SMALL_BYTES: Final = 64 << 10


async def until(holds: Callable[[], bool]) -> None:
    """Let things happen until this holds; compressing is a thread, which has a time of its own."""
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never held"
        await settle()
        await let_threads_run()


def unacknowledged(connection: Any) -> int:
    """How many packets are on their way: `tcpi_unacked` in the kernel's `struct tcp_info`, a u32."""
    accepted = connection.transport.get_extra_info("socket")
    info: bytes = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
    return int.from_bytes(info[24:28], sys.byteorder)


class ScriptedConnection:
    """A client's end of a connection."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self.received = b""
        self.is_over = False

    async def send(self, data: bytes) -> None:
        """Send, and let the gateway do what it can."""
        self._client.sendall(data)
        await settle()

    async def stays(self) -> bool:
        """Whether the gateway leaves it open."""
        await settle()
        self._read()
        return not self.is_over

    async def take(self, size: int) -> None:
        """Take no more than that."""
        with suppress(BlockingIOError):
            self.received += self._client.recv(size)
        await settle()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Take what comes until this holds."""

        def held() -> bool:
            self._read()
            return holds()

        await until(held)

    async def ends(self) -> bytes:
        """Take what comes until the gateway closes: all that came."""
        await self.until(lambda: self.is_over)
        return self.received

    def _read(self) -> None:
        with suppress(BlockingIOError):
            try:
                while data := self._client.recv(1 << 16):
                    self.received += data
            except ConnectionError:
                pass
            self.is_over = True


class TimedWorld:
    """A gateway on a loop whose time the test lets pass."""

    def __init__(self, clock: HandClock, engine: Engine, *, asgi: bool = False) -> None:
        self.clock = clock
        self.engine = engine
        self.app = create_app(SETTINGS, clock)
        self.app.life.open(engine)
        self.server = (asgi_server if asgi else http_server)(SETTINGS, self.app)
        self.state: Any = self.server.service
        self.sockets: list[socket.socket] = []

    async def connect(self) -> ScriptedConnection:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BYTES)
            client.connect(listener.getsockname())
            accepted, _ = listener.accept()
        client.setblocking(False)  # noqa: FBT003 - the standard library's
        self.sockets.append(client)
        await asyncio.get_running_loop().connect_accepted_socket(self.server.connect, accepted)
        return ScriptedConnection(client)

    @property
    def answers(self) -> int:
        """How many requests were answered."""
        return sum(sum(counts.values()) for counts in self.app.gateway.reports.counters.requests.values())

    async def pass_ms(self, milliseconds: int) -> None:
        self.clock.pass_ms(milliseconds)
        await settle()

    async def stall_ms(self, milliseconds: int) -> None:
        """Pass time in steps: a reader counts as stalled when it was found so several times. What the kernel
        has sent is acknowledged before, which takes up to 200 ms of a time that no test can move.
        """
        await until(lambda: not any(map(unacknowledged, self.state.connections)))
        for _ in range(0, milliseconds, STEP_MS):
            await self.pass_ms(STEP_MS)

    async def fill(self, size: int) -> None:
        """This number of bytes of entries."""
        body = entries.body([("a", "x" * (1 << 19))])
        await reply_to(self.engine, XAdd(stream="s", bodies=[body] * (size >> 19)))


@pytest.fixture(params=[False, True], ids=["own server", "ASGI"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[TimedWorld]:
    async with timed_world(asgi=request.param) as world:
        yield world


@asynccontextmanager
async def timed_world(
    storage: Storage | None = None, fsync: Fsync = "no", *, asgi: bool = False
) -> AsyncIterator[TimedWorld]:
    clock, loop = HandClock(), asyncio.get_running_loop()
    clock.drive(loop)
    engine = Engine.open(storage, clock=clock, fsync=fsync)
    await engine.start()
    world = TimedWorld(clock, engine, asgi=asgi)
    yield world
    for client in world.sockets:
        client.close()
    await settle()
    for connection in list(world.state.connections):
        connection.transport.abort()
    await settle()
    await engine.close()
    clock.let_be(loop)


# ---- a request's time to arrive


@pytest.mark.parametrize(
    ("begun", "answer"),
    [
        (b"", b""),
        (b"\r\n", b""),
        (b"GET /v1/streams", b"HTTP/1.1 408 "),
        (PUBLISH[:-2], b"HTTP/1.1 408 "),
        (PUBLISH + b'{"fields":', b"HTTP/1.1 408 "),
    ],
    ids=["nothing", "a blank line", "half a line", "half a head", "half a body"],
)
async def test_a_request_that_does_not_arrive_in_time_is_refused(
    world: TimedWorld, begun: bytes, answer: bytes
) -> None:
    """Not a millisecond before; a connection that has asked for nothing is closed without a word."""
    line = await world.connect()
    if begun:
        await line.send(begun)
    await world.pass_ms(1_999)
    assert await line.stays()
    assert line.received == b""
    await world.pass_ms(1)
    assert (await line.ends())[: len(b"HTTP/1.1 408 ")] == answer


async def test_a_request_that_arrives_in_the_last_millisecond_is_answered(world: TimedWorld) -> None:
    line = await world.connect()
    await world.pass_ms(1_000)
    await line.send(PUBLISH + b'{"fields":')
    await world.pass_ms(999)
    await line.send(b'{"a":"1"}}')
    await line.until(lambda: line.received.startswith(b"HTTP/1.1 201 "))


@pytest.mark.parametrize(
    ("framing", "rest"),
    [(b"Content-Length: 19", b""), (b"Transfer-Encoding: chunked", b"no length\r\n")],
    ids=["that does not come", "that cannot be read"],
)
async def test_a_request_that_was_answered_early_is_answered_once(
    world: TimedWorld, framing: bytes, rest: bytes
) -> None:
    """The rest of its body ends the connection without a word, which the next request would get."""
    line = await world.connect()
    await line.send(
        b"POST /v1/streams/s/entries?none=1 HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n"
    )
    await line.until(lambda: line.received.startswith(b"HTTP/1.1 400 "))
    await line.send(rest)
    await world.pass_ms(2_000)
    assert (await line.ends()).count(b"HTTP/1.1 ") == 1


# ---- an idle connection


_READ: Final = ENTRIES + b"\r\n"
_ENTRY: Final = PUBLISH + b'{"fields":{"a":"1"}}'


@pytest.mark.parametrize(
    "asked",
    [(_READ, _READ), (_ENTRY, _ENTRY), (_READ, ENTRIES + b"X-Other: 1\r\n\r\n")],
    ids=["a read", "what joins others", "two in turn"],
)
async def test_an_idle_connection_is_closed_at_its_time(
    world: TimedWorld, asked: tuple[bytes, bytes]
) -> None:
    """Each answer begins it anew, also where the timer of an earlier one runs."""
    line = await world.connect()
    # The parser takes a connection's first request, and has a timer of its own.
    for number in range(1, 7):
        await line.send(asked[number % 2])
        await line.until(lambda number=number: line.received.count(b"HTTP/1.1 ") == number)  # type: ignore[misc]
        await world.pass_ms(4_999)
        assert await line.stays()
    await world.pass_ms(1)
    await line.ends()


@pytest.mark.parametrize(
    "read",
    [
        ENTRIES.replace(b"entries", b"entries?after=$&wait=20000") + b"\r\n",
        PUBLISH.replace(b"entries", b"groups/g/consumers/c/read").replace(b"20", b"14") + b'{"wait":20000}',
    ],
    ids=["a stream", "a group"],
)
async def test_a_connection_whose_reader_waits_is_not_idle(world: TimedWorld, read: bytes) -> None:
    """However long ago its last answer was."""
    line = await world.connect()
    for number in (1, 2):
        await line.send(PUBLISH + b'{"fields":{"a":"1"}}')
        await line.until(lambda number=number: line.received.count(b"HTTP/1.1 201 ") == number)  # type: ignore[misc]
    await reply_to(world.engine, EnsureGroup(stream="s", group="g", start=Cursor.LATEST))
    await world.pass_ms(4_000)
    await line.send(read)
    for _ in range(3):
        await world.pass_ms(5_000)
        assert await line.stays()
    await world.fill(1 << 19)
    await line.until(lambda: b"HTTP/1.1 200 " in line.received)


async def test_a_connection_whose_answer_waits_for_the_disk_is_not_idle() -> None:
    """However long that takes: its entry is stored, and its client learns that."""
    disk = SlowDisk()
    async with timed_world(disk, "always") as world:
        line = await world.connect()
        for number in (1, 2):
            await line.send(PUBLISH + b'{"fields":{"a":"1"}}')
            await line.until(lambda number=number: line.received.count(b"HTTP/1.1 201 ") == number)  # type: ignore[misc]
        disk.hold()
        try:
            await line.send(PUBLISH + b'{"fields":{"a":"1"}}')
            for _ in range(3):
                await world.pass_ms(5_000)
                assert await line.stays()
        finally:
            disk.let_go()
        await line.until(lambda: line.received.count(b"HTTP/1.1 201 ") == 3)


# ---- readers that take nothing


LONG: Final = {
    "page": ENTRIES.replace(b"entries", b"entries?count=15") + b"Connection: close\r\n\r\n",
    "export": ENTRIES.replace(b"entries", b"export") + b"\r\n",
    "events": ENTRIES.replace(b"entries", b"tail?after=0") + b"Accept: text/event-stream\r\n\r\n",
}


# What stands at its end, where that is not the end of the connection.
_LAST: Final = {
    "page": b'"more":',
    "export": b"\r\n0\r\n\r\n",
    "events": b"caught_up",
    "socket": b"caught_up",
}


async def whole(line: ScriptedConnection, kind: str) -> None:
    """Take all of it."""
    await line.until(lambda: _LAST[kind] in line.received[-200:])
    assert len(line.received) > 15 << 19


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize(("stalled_ms", "is_whole"), [(2_980, True), (3_500, False), (3_520, False)])
async def test_a_reader_of_a_long_answer_is_cut_at_its_time(
    world: TimedWorld, stalled_ms: int, kind: str, *, is_whole: bool
) -> None:
    """To a tenth, from when it last took something. What it takes before counts: it gets the whole answer."""
    await world.fill(8 << 20)
    line = await world.connect()
    await line.send(LONG[kind])
    await world.stall_ms(stalled_ms)
    if is_whole:
        await whole(line, kind)
    else:
        assert 0 < len(await line.ends()) < 15 << 19


@pytest.mark.parametrize("kind", [*LONG, "socket"])
async def test_a_reader_that_takes_little_is_served_on(world: TimedWorld, kind: str) -> None:
    """Three times as long as it may stall, and then to its end."""
    await world.fill(8 << 20)
    if kind == "socket":
        line = await conversing(world)
        await line.send(frame({"op": "subscribe", "sub": "f", "streams": {"s": "0"}, "batch_max": 2}))
    else:
        line = await world.connect()
        await line.send(LONG[kind])
    for _ in range(9):
        await world.stall_ms(1_000)
        await line.take(_SMALL_BYTES)
    assert len(line.received) < 15 << 19
    await whole(line, kind)


async def test_a_reader_that_goes_on_has_the_whole_time_again(world: TimedWorld) -> None:
    """It stalls a second time, and its connection is used for another request."""
    await world.fill(8 << 20)
    line = await world.connect()
    for number in (1, 2):
        await line.send(ENTRIES.replace(b"entries", b"entries?count=15") + b"\r\n")
        await world.stall_ms(2_980)
        await line.until(lambda number=number: len(line.received) > number * (15 << 19))  # type: ignore[misc]
        await world.pass_ms(1)
        assert await line.stays()


@pytest.mark.parametrize(("stalled_ms", "is_closed"), [(2_980, False), (3_500, True), (3_520, True)])
async def test_a_socket_that_takes_nothing_is_closed_at_its_time(
    world: TimedWorld, stalled_ms: int, *, is_closed: bool
) -> None:
    """To a tenth. It hears why, should it take the rest."""
    line = await conversing(world)
    await world.fill(8 << 20)
    await line.send(frame({"op": "subscribe", "sub": "f", "streams": {"s": "0"}}))
    await world.stall_ms(stalled_ms)
    if is_closed:
        await line.until(lambda: SLOW in line.received[-200:])
    else:
        await line.until(lambda: b'"caught_up"' in line.received[-200:])
        await world.stall_ms(3_520)
        assert await line.stays()
        assert SLOW not in line.received[-200:]


async def test_a_socket_is_cut_no_later_than_any() -> None:
    """Its time is the reader's, and at most ten seconds."""
    for stall_s, found_s in ((9, 9), (10, 10), (11, 10)):
        settings = SETTINGS.model_copy(update={"stall_s_max": stall_s})
        service = http_server(settings, create_app(settings, HandClock())).service
        assert service.websocket is not None
        made: Any = service.websocket(service, {})
        assert made.limits.stall_s_max == found_s <= STALL_S_MAX


async def test_a_heartbeat_comes_when_it_is_due(world: TimedWorld) -> None:
    """And again after the same time."""
    line = await conversing(world)
    for number in (1, 2):
        await world.pass_ms(1_499)
        await line.stays()
        assert line.received.count(b'"heartbeat"') == number - 1
        await world.pass_ms(1)
        await line.until(lambda number=number: line.received.count(b'"heartbeat"') == number)  # type: ignore[misc]


async def conversing(world: TimedWorld) -> ScriptedConnection:
    """A connection that has become a WebSocket."""
    line = await world.connect()
    await line.send(UPGRADE)
    await line.until(lambda: b'"op":"hello"' in line.received)
    return line


def frame(members: dict[str, Any]) -> bytes:
    """A masked text frame, whose mask is nothing."""
    text = json.dumps(members).encode()
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text


# ---- a head's bytes


def head_of(size: int, method: bytes, body: bytes) -> bytes:
    """A request whose line and headers, with the blank line behind them, have this number of bytes."""
    line = (
        method + b" /v1/streams/s/entries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    if body:
        line += b"Content-Length: %d\r\n" % len(body)
    rest = size - len(line) - len(b"X: \r\n\r\n")
    return line + b"X: " + b"x" * rest + b"\r\n\r\n" + body


@pytest.mark.parametrize("piece_bytes", [2_048, 1_000, 700, 50])
@pytest.mark.parametrize(("method", "body"), [(b"GET", b""), (b"POST", b'{"fields":{"a":"1"}}')])
async def test_a_head_has_as_many_bytes_as_are_set(
    world: TimedWorld, method: bytes, body: bytes, piece_bytes: int
) -> None:
    """One less and as many are taken, one more is refused, in however many pieces they come."""
    for size in (1_023, 1_024, 1_025):
        line = await world.connect()
        head = head_of(size, method, body)
        with suppress(ConnectionError):
            for at in range(0, len(head), piece_bytes):
                await line.send(head[at : at + piece_bytes])
        await line.until(lambda line=line: line.received != b"")  # type: ignore[misc]
        assert line.received[9:12] == (b"431" if size > 1_024 else b"201" if body else b"200"), size


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (head_of(1_025, b"GET", b""), b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", b"400"),
    ],
    ids=["too large", "ambiguous", "malformed"],
)
async def test_a_head_that_is_refused_does_not_answer_the_request_before_it(
    world: TimedWorld, refused: bytes, status: bytes
) -> None:
    """That one still waits: it gets its own answer, then the other one, and then the connection ends."""
    line = await world.connect()
    await line.send(ENTRIES.replace(b"entries", b"entries?after=$&wait=1000") + b"\r\n")
    await line.send(refused)
    assert await line.stays()
    assert line.received == b""
    await world.pass_ms(1_000)
    received = await line.ends()
    assert [one[:3] for one in received.split(b"HTTP/1.1 ")[1:]] == [b"200", status]


# ---- a stop


async def test_a_stop_waits_for_answers_as_long_as_is_set(world: TimedWorld) -> None:
    """Then it ends though a read still waits."""
    line = await world.connect()
    await line.send(ENTRIES.replace(b"entries", b"entries?after=$&wait=60000") + b"\r\n")
    stopping = asyncio.ensure_future(world.server.drain())
    await settle()
    await world.pass_ms(100)
    await world.pass_ms(3_999)
    assert not stopping.done()
    await world.pass_ms(1)
    assert stopping.done()
    await stopping


# ---- readers that leave


@pytest.mark.parametrize("coding", [b"identity", b"gzip"])
async def test_a_reader_that_leaves_as_its_answer_comes_is_no_error(
    world: TimedWorld, caplog: pytest.LogCaptureFixture, coding: bytes
) -> None:
    """In whichever turn of the loop that is: nothing is logged, and its entry is the next one's, or its own
    if its answer had left.
    """
    read = ENTRIES.replace(b"entries", b"groups/g/consumers/c/read").replace(b"GET", b"POST")
    body = entries.body([("a", "x" * 5_000)])
    for turns in range(12):
        # An entry that the reader of the round before never got is there to be read.
        await reply_to(world.engine, Delete(streams=["s"]))
        await reply_to(world.engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
        line = await world.connect()
        wait = b'{"wait":60000}'
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(wait)
        await line.send(read + length + b"Accept-Encoding: " + coding + b"\r\n\r\n" + wait)
        await until(lambda: world.engine.figures().waiting == 1)
        (connection,) = world.state.connections
        published = asyncio.ensure_future(reply_to(world.engine, XAdd(stream="s", bodies=[body])))
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.transport.abort()
        await published
        await until(lambda: not world.state.connections and not world.state.tasks)
        kept = await reply_to(world.engine, XPending(stream="s", group="g"))
        read_next = XReadGroup(group="g", consumer="d", streams=[("s", Cursor.NEW)])
        found = await reply_to(world.engine, read_next)
        assert isinstance(kept, PendingSummary)
        assert isinstance(found, GroupRead)
        assert kept.count + len(found.streams) == 1
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
