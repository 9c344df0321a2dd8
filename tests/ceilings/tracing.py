"""Through how many files a request goes, and in how many ways: how much there is to follow, not the time.

One gateway in this process, with its log in memory, serves a few requests of each kind; the last of them is
traced. Counted are the files of `app` and `engine` in which a function was called, and the moves: calls whose
file is another one than that of the call before. A way is the set of the door's own files (`MECHANISM`) that
are on the stack when the engine gets a command: it should not depend on what a request asks for. `--show`
lists the calls of one kind of request in order; a star marks each move.

    python -m tests.ceilings.tracing [--show publish]
"""

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from app.gateway import Gateway
from app.main import App
from app.server import http_server
from app.settings import Settings
from engine import Engine, SystemClock
from engine.storage.memory import MemoryStorage

ROOT: Final = Path(__file__).resolve().parents[2]
OURS: Final = (str(ROOT / "app"), str(ROOT / "engine"))
# What carries a request to the engine, whatever it asks for.
MECHANISM: Final = ("app/doors/http", "app/http/operations", "app/live/joiner.py")
SEND: Final = "Engine.send"
# The first requests read heads and make what is kept for the next ones.
WARM: Final = 3
TRACED: Final = 5
STREAM: Final = "/v1/streams/s"

Request = Callable[["TraceLine"], Awaitable[None]]


class Trace:
    """Files, moves and ways between `start` and `stop`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.moves = 0
        self.calls: list[str] = []
        self.ways: set[frozenset[str]] = set()
        self._at: str | None = None

    def start(self) -> None:
        """Begin to count."""
        sys.setprofile(self._event)

    def stop(self) -> None:
        """End it."""
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            return
        is_move = self._at is not None and file != self._at
        self.files.add(file)
        self.moves += is_move
        self.calls.append(
            f"{'*' if is_move else ' '} {'  ' * _depth(frame)}{Path(file).relative_to(ROOT)} "
            f"{frame.f_code.co_qualname}"
        )
        self._at = file
        if frame.f_code.co_qualname == SEND:
            self.ways.add(_way(frame))


def _way(frame: FrameType) -> frozenset[str]:
    """The door's own files that are being called."""
    files = set()
    caller: FrameType | None = frame
    while caller is not None:
        files.add(caller.f_code.co_filename.removeprefix(f"{ROOT}/"))
        caller = caller.f_back
    return frozenset(file for file in files if file.startswith(MECHANISM))


def _depth(frame: FrameType) -> int:
    """How many of the callers are ours."""
    depth, caller = 0, frame.f_back
    while caller is not None:
        depth += caller.f_code.co_filename.startswith(OURS)
        caller = caller.f_back
    return depth


class TraceLine:
    """A connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: object, *headers: str) -> None:
        """Send a request and read its answer."""
        self.send("POST", path, json.dumps(body).encode(), *headers)
        await self.receive()

    def send(self, method: str, path: str, body: bytes, *headers: str) -> None:
        """Send a request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}"])
        self._writer.write(head.encode() + b"\r\n\r\n" + body)

    def send_chunked(self, method: str, path: str, body: bytes) -> None:
        """Send a request without its length."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        self._writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    async def receive(self) -> None:
        """Read an answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        is_fine = head.split(b" ", 2)[1][:1] == b"2"
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if length:
            body = await self._reader.readexactly(int(length))
            assert is_fine, head + body
        elif b"transfer-encoding: chunked" in head:
            await self._reader.readuntil(b"\r\n0\r\n\r\n")


async def publish(line: TraceLine) -> None:
    """One entry."""
    await line.post(f"{STREAM}/entries", {"fields": {"a": "1"}})


async def read_one(line: TraceLine) -> None:
    """A page of one entry."""
    line.send("GET", f"{STREAM}/entries?count=1", b"")
    await line.receive()


async def xadd(line: TraceLine) -> None:
    """The same as a command."""
    await line.post("/v1/commands", ["XADD", "s", "*", "a", "1"])


def blocked_read(other: TraceLine) -> Request:
    """A read that waits, and the publish on another connection that ends it."""

    async def read(line: TraceLine) -> None:
        line.send("GET", f"{STREAM}/entries?after=$&wait=5000", b"")
        await asyncio.sleep(0.05)
        await publish(other)
        await line.receive()

    return read


async def traced(line: TraceLine, request: Request) -> Trace:
    """The trace of one request after some others: the shortest of a few, into which no timer fell."""
    for _ in range(WARM):
        await request(line)
    traces = []
    for _ in range(TRACED):
        trace = Trace()
        trace.start()
        try:
            await request(line)
            await asyncio.sleep(0)
        finally:
            trace.stop()
        traces.append(trace)
    return min(traces, key=lambda trace: (len(trace.files), trace.moves))


def padded(size: int) -> Request:
    """A publish whose body has this many bytes or more."""

    async def send(line: TraceLine) -> None:
        await line.post(f"{STREAM}/entries", {"fields": {"a": "1" * size}})

    return send


async def pipelined(line: TraceLine) -> None:
    """Several publishes in one write."""
    for _ in range(3):
        line.send("POST", f"{STREAM}/entries", b'{"fields":{"a":"1"}}')
    for _ in range(3):
        await line.receive()


async def chunked(line: TraceLine) -> None:
    """A publish of unknown length."""
    line.send_chunked("POST", f"{STREAM}/entries", b'{"fields":{"a":"1"}}')
    await line.receive()


def asking(method: str, path: str, body: object = None, *headers: str) -> Request:
    """Any request."""

    async def send(line: TraceLine) -> None:
        line.send(method, path, b"" if body is None else json.dumps(body).encode(), *headers)
        await line.receive()

    return send


REQUESTS: Final[Mapping[str, Request]] = {
    "publish": publish,
    "range": read_one,
    "XADD as a command": xadd,
}
# Further ones, whose ways count: what an application sends in its first hour.
MORE: Final[Mapping[str, Request]] = {
    "publish under a key": asking("POST", f"{STREAM}/entries", {"fields": {"a": "1"}}, "Idempotency-Key: k"),
    "publishes in one write": pipelined,
    "publish in chunks": chunked,
    "large publish": padded(1 << 17),
    "batch": asking("POST", f"{STREAM}/entries", [{"a": "1"}, {"a": "2"}]),
    "ack": asking("POST", f"{STREAM}/groups/g/ack", {"ids": ["1-1"]}),
    "read of a group": asking("POST", f"{STREAM}/groups/g/consumers/c/read", {}),
    "description": asking("GET", STREAM),
    "description in full": asking("GET", f"{STREAM}?full=true"),
    "trim": asking("POST", f"{STREAM}/trim", {"maxlen": 100}),
    "export": asking("GET", f"{STREAM}/export?count=1"),
    "pipeline": asking("POST", "/v1/commands/pipeline", [["XLEN", "s"], ["XADD", "s", "*", "a", "1"]]),
    "transaction": asking("POST", "/v1/commands/multi-exec", [["XLEN", "s"]]),
    "append": asking("POST", "/v1/stream/d", {"a": 1}),
    "page of a Durable Stream": asking("GET", "/v1/stream/d?offset=-1"),
}


class Traces(NamedTuple):
    """Each kind of request, and the ways that all of them take."""

    kinds: Mapping[str, Trace]
    ways: frozenset[frozenset[str]]


async def all_traces() -> Traces:
    """Trace one gateway that serves each kind."""
    settings = Settings(port=0, log_requests="none")
    app = App(Gateway(settings, SystemClock()))
    engine = Engine.open(MemoryStorage(), clock=SystemClock())
    await engine.start()
    app.life.open(engine)
    server, listener = http_server(settings, app), socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    serving = asyncio.create_task(server.serve(listener))
    line, other = [TraceLine(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(2)]
    await publish(line)
    await asking("PUT", f"{STREAM}/groups/g")(line)
    await asking("PUT", "/v1/stream/d")(line)
    kinds = {**REQUESTS, "blocked read": blocked_read(other), **MORE}
    traces = {}
    for name, request in kinds.items():
        traces[name] = await traced(line, request)
    line.close()
    other.close()
    server.stop()
    await serving
    await engine.close()
    return Traces(traces, frozenset(way for one in traces.values() for way in one.ways))


def main(show: str | None) -> None:
    """Print a line for each kind of request, and the calls of that to `show`."""
    traces = asyncio.run(all_traces())
    lines = []
    for name, trace in traces.kinds.items():
        lines += trace.calls if name == show else []
        lines.append(f"{name}: {len(trace.files)} files, {trace.moves} moves between files")
    lines.append(f"{len(traces.ways)} ways to the engine:")
    lines += (f"  {' '.join(Path(file).stem for file in way)}" for way in sorted(map(sorted, traces.ways)))
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--show", help="a kind of request, as it is called in the figures")
    main(options.parse_args().show)
