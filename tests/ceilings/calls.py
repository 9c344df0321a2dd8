"""How many functions of Python a request calls, over sockets that are none: exact, on a busy machine too.

One gateway in this process, its log in memory, serves some requests of each kind to 1 or to 32 connections
that each wait for their answer. What is counted is calls of functions of `app` and `engine`.

    python -m tests.ceilings.calls
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
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


class Transport(asyncio.Transport):
    """Takes what is written, and counts the answers."""

    def __init__(self) -> None:
        super().__init__({"socket": Socket()})
        self.answers = 0
        self.last = b""

    def write(self, data: Any) -> None:
        if data.startswith(b"HTTP/1.1 "):
            self.answers += 1
            self.last = bytes(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

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
# A producer's batches follow each other.
_ONE_AT_A_TIME: Final = frozenset({"batch of a producer"})


class Calls(NamedTuple):
    """Of a request, of each of `MANY` and of one alone."""

    many: float
    one: float


async def all_calls() -> Mapping[str, Calls]:
    """Count them."""
    settings = Settings(port=0, log_requests="none", durable_streams=True)
    app = App(Gateway(settings, SystemClock()))
    engine = Engine.open(MemoryStorage(), clock=SystemClock())
    await engine.start()
    app.gateway.open(engine)
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
    before, calls = [transport.answers for _, transport in lines], 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(note)
    try:
        for (connection, _), data in zip(lines, asked, strict=True):
            connection.data_received(data)
        while any(one.answers == old for (_, one), old in zip(lines, before, strict=True)):  # noqa: ASYNC110 - cycles
            await asyncio.sleep(0)
    finally:
        sys.setprofile(None)
    for _, transport in lines:
        assert transport.last[9:10] == b"2", transport.last
    return calls


async def _fill(engine: Engine) -> None:
    bodies = [b'"fields":{"temperature":"19.8"}}']
    await ask_one(engine, Call((XAdd(stream="s", bodies=bodies * 200),)))
    await ask_one(engine, Call((XGroupCreate(stream="w", group="g", start=0, mkstream=True),)))
    wanted = [ids.make(_FIRST + at, 0) for at in range(PENDING)]
    await ask_one(engine, Call((XAdd(stream="w", bodies=bodies * PENDING, ids=wanted),)))
    read = XReadGroup(group="g", consumer="c", streams=[("w", Cursor.NEW)], count=PENDING)
    await ask_one(engine, Call((read,)))


def main() -> None:
    """Print a line for each kind of request."""
    for name, calls in asyncio.run(all_calls()).items():
        sys.stdout.write(f"{name}: {calls.many:.1f} of {MANY}, {calls.one:.0f} alone\n")


if __name__ == "__main__":
    main()
