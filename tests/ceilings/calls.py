"""How many functions of Python a request and a delivery call, over sockets that are none: exact, on a busy
machine too.

One gateway in this process, its log in memory, serves some requests of each kind to 1 or to 32 connections
that each wait for their answer; and what is published to 1 or to 32 readers, the publishing included. What is
counted is calls of functions of `app` and `engine`.

    python -m tests.ceilings.calls
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from app.gateway import Gateway
from app.main import App
from app.server import http_server
from app.settings import Settings
from engine import Call, Engine, SystemClock, ask_one, ids
from engine.commands.types import Cursor, XAdd, XGroupCreate, XReadGroup
from engine.storage.memory import MemoryStorage
from tests.app.sockets import masked

_ROOT: Final = Path(__file__).resolve().parents[2]
OURS: Final = (str(_ROOT / "app"), str(_ROOT / "engine"))
MANY: Final = 32
# The first requests read heads and make what is kept for the next ones.
WARM: Final = 4
COUNTED: Final = 5
PENDING: Final = 4_000
_FIRST: Final = 1_000_000

Request = Callable[[int], bytes]


class Socket:
    """What a connection asks of its socket."""

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 5_555)

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 8_080)

    def fileno(self) -> int:
        return 99

    def setsockopt(self, *_: int) -> None:
        """Nothing is set."""


class Transport(asyncio.Transport):
    """Takes what is written, and counts the answers and the entries that are delivered."""

    protocol: Any

    def __init__(self) -> None:
        super().__init__({"socket": Socket()})
        self.answers = self.delivered = 0
        self.last = b""

    def write(self, data: Any) -> None:
        if data.startswith(b"HTTP/1.1 "):
            self.answers += 1
            self.last = bytes(data)
        else:
            self.delivered += data.count(_VALUE)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """It is closed by who made it."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""


def request(method: str, path: str, body: object = None, *headers: str) -> bytes:
    text = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    kind = ["Content-Type: application/json", f"Content-Length: {len(text)}"] if text else []
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, *kind]
    return "\r\n".join([*lines, "", ""]).encode() + text


ENTRY: Final = {"fields": {"temperature": "19.8"}}
_TRACE: Final = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920{:04x}-01"
REQUESTS: Final[Mapping[str, Request]] = {
    "publish": lambda _: request("POST", "/v1/streams/s/entries", ENTRY),
    "publish with a key and a trace": lambda at: request(
        "POST", "/v1/streams/s/entries", ENTRY, f"Idempotency-Key: {at}", _TRACE.format(at)
    ),
    "ack": lambda at: request("POST", "/v1/streams/w/groups/g/ack", {"ids": [f"{_FIRST + at}-0"]}),
    "range": lambda _: request("GET", "/v1/streams/s/entries?count=1"),
    "moving tail": lambda at: request("GET", f"/v1/streams/s/entries?after={_FIRST + at}-0&count=10"),
    "stream": lambda _: request("GET", "/v1/streams/s"),
    "batch of a producer": lambda at: request(
        "POST", "/v1/stream/d", {"a": 1}, "Producer-Id: p", "Producer-Epoch: 0", f"Producer-Seq: {at}"
    ),
}
# A producer's batches follow each other, and each consumer's reads are its own: how many of them the engine
# serves in a cycle depends on the time that they take.
_ONE_AT_A_TIME: Final = frozenset({"batch of a producer", "event of a consumer", "frame of a consumer"})
_VALUE: Final = b"temperature"
_BODY: Final = b'"fields":{"%b":"19.8"}}' % _VALUE
_EVENTS: Final = "Accept: text/event-stream"
_UPGRADE: Final = (
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
# Readers of the stream `f`: paths of events, and frames by WebSocket.
_SUBSCRIBE: Final = {"op": "subscribe", "sub": "f", "streams": {"f": "$"}}
_CONSUME: Final = {"op": "consume", "sub": "f", "stream": "f", "group": "g", "consumer": "c"}
READERS: Final[Mapping[str, object]] = {
    "event of a tail": "/v1/streams/f/tail",
    "event of Durable Streams": "/v1/stream/f?offset=now&live=sse",
    "event of a consumer": "/v1/streams/f/groups/g/consumers/c/stream?max_in_flight=1000",
    "frame of a live page": _SUBSCRIBE,
    # Two entries at once are more than one frame may have, so that each is read.
    "frame of history": {**_SUBSCRIBE, "batch_max": 1},
    "frame of a consumer": {**_CONSUME, "credit": 1_000},
}
_AT_ONCE: Final = {"frame of history": 2}
_CYCLES_MAX: Final = 10_000
# Cycles in which everything comes that does not wait.
_SETTLING: Final = 50


class Calls(NamedTuple):
    """Of a request or a delivery, of each of `MANY` and of one alone."""

    many: float
    one: float


async def all_calls() -> Mapping[str, Calls]:
    """Count them."""
    settings = Settings(port=0, log_requests="none", durable_streams=True)
    app = App(Gateway(settings, SystemClock()))
    engine = Engine.open(MemoryStorage(), clock=SystemClock())
    await engine.start()
    app.life.open(engine)
    await _fill(engine)
    server = http_server(settings, app)
    lines: list[tuple[Any, Transport]] = [(server.connect(), Transport()) for _ in range(MANY)]
    for connection, transport in lines:
        connection.connection_made(transport)
    await _round(lines[:1], [request("PUT", "/v1/stream/d", None, "Content-Type: application/json")])
    found = {}
    for name, make in REQUESTS.items():
        numbers = count()
        many = 0.0 if name in _ONE_AT_A_TIME else await _least(lines, make, numbers)
        found[name] = Calls(many, await _least(lines[:1], make, numbers))
    for connection, _ in lines:
        connection.connection_lost(None)
    for name, asked in READERS.items():
        deliver = partial(_delivery, server, engine, asked, _AT_ONCE.get(name, 1))
        found[name] = Calls(0.0 if name in _ONE_AT_A_TIME else await deliver(MANY), await deliver(1))
    await engine.close()
    return found


async def _least(lines: list[tuple[Any, Transport]], make: Request, numbers: "count[int]") -> float:
    """The calls of one request: of the rounds into which no timer fell."""
    found = []
    for at in range(WARM + COUNTED):
        calls = await _round(lines, [make(next(numbers)) for _ in lines])
        if at >= WARM:
            found.append(calls / len(lines))
    return min(found)


async def _round(lines: list[tuple[Any, Transport]], asked: list[bytes]) -> int:
    """Send a request on each connection, and wait for the answers. Returns the calls."""
    before = [transport.answers for _, transport in lines]

    def ask() -> None:
        for (connection, _), data in zip(lines, asked, strict=True):
            connection.data_received(data)

    calls = await _count(
        ask, lambda: all(one.answers > old for (_, one), old in zip(lines, before, strict=True))
    )
    for _, transport in lines:
        assert transport.last[9:10] == b"2", transport.last
    return calls


async def _count(act: Callable[[], object], is_done: Callable[[], bool], settling: int = 0) -> int:
    """The calls from here until it is done, and in this number of cycles behind it."""
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(note)
    try:
        act()
        for _ in range(_CYCLES_MAX):
            if is_done():
                if not settling:
                    return calls
                settling -= 1
            await asyncio.sleep(0)
    finally:
        sys.setprofile(None)
    raise AssertionError("it was never done")


async def _delivery(server: Any, engine: Engine, asked: object, at_once: int, readers: int) -> float:
    """The calls of one delivery to each of this number of readers of one kind."""
    transports = [Transport() for _ in range(readers)]
    for transport in transports:
        await _open(server.connect(), transport, asked)
    published = Call((XAdd(stream="f", bodies=[_BODY] * at_once),))
    found = []
    for _ in range(WARM + COUNTED):
        before = [transport.delivered for transport in transports]

        def is_done(before: Sequence[int] = before) -> bool:
            return all(one.delivered - old == at_once for one, old in zip(transports, before, strict=True))

        calls = await _count(lambda: engine.send(published, _ignore), is_done, _SETTLING)
        found.append(calls / readers / at_once)
    for transport in transports:
        transport.protocol.connection_lost(None)
    await _pass()
    return min(found[WARM:])


async def _open(connection: Any, transport: Transport, asked: object) -> None:
    """Begin to read, by events of this path or by this frame."""
    transport.protocol = connection
    connection.connection_made(transport)
    if isinstance(asked, str):
        connection.data_received(request("GET", asked, None, _EVENTS))
    else:
        connection.data_received(request("GET", "/v1/ws", None, *_UPGRADE))
        await _pass()
        transport.protocol.data_received(masked(0x1, json.dumps(asked).encode()))
    await _pass()


async def _pass() -> None:
    """Let everything come that does not wait."""
    for _ in range(_SETTLING):
        await asyncio.sleep(0)


def _ignore(_: Sequence[object]) -> None:
    """The answer to who publishes."""


async def _fill(engine: Engine) -> None:
    bodies = [_BODY]
    await ask_one(engine, Call((XAdd(stream="s", bodies=bodies * 200),)))
    await ask_one(engine, Call((XGroupCreate(stream="w", group="g", start=0, mkstream=True),)))
    wanted = [ids.make(_FIRST + at, 0) for at in range(PENDING)]
    await ask_one(engine, Call((XAdd(stream="w", bodies=bodies * PENDING, ids=wanted),)))
    read = XReadGroup(group="g", consumer="c", streams=[("w", Cursor.NEW)], count=PENDING)
    await ask_one(engine, Call((read,)))
    await ask_one(engine, Call((XAdd(stream="f", bodies=bodies),)))
    await ask_one(engine, Call((XGroupCreate(stream="f", group="g", start=Cursor.LATEST),)))


def main() -> None:
    """Print a line for each kind of request."""
    for name, calls in asyncio.run(all_calls()).items():
        sys.stdout.write(f"{name}: {calls.many:.1f} of {MANY}, {calls.one:.0f} alone\n")


if __name__ == "__main__":
    main()
