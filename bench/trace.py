"""Through how many files a request goes: how much a reader has to follow, not how fast it is.

One gateway in this process, with its log in memory, serves a few requests of each kind; the last of them is
traced. Counted are the files of `app` and `engine` in which a function was called, and the moves: calls whose
file is another one than that of the call before. `--show` lists the calls of one kind of request in order; a
star marks each move.

    python -m bench.trace [--show publish]
"""

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Final

from app.gateway import Gateway
from app.main import App
from app.server import http_server
from app.settings import Settings
from engine import Engine, SystemClock
from engine.storage.memory import MemoryStorage

ROOT: Final = Path(__file__).resolve().parent.parent
OURS: Final = (str(ROOT / "app"), str(ROOT / "engine"))
# The first requests read heads and make what is kept for the next ones.
WARM: Final = 3
STREAM: Final = "/v1/streams/s"

Request = Callable[["TraceLine"], Awaitable[None]]


class Trace:
    """Files and moves between `start` and `stop`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.moves = 0
        self.calls: list[str] = []
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

    async def receive(self) -> None:
        """Read an answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert head.split(b" ", 2)[1][:1] == b"2", head
        await self._reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


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
    """The trace of one request after some others."""
    for _ in range(WARM):
        await request(line)
    trace = Trace()
    trace.start()
    try:
        await request(line)
        await asyncio.sleep(0)
    finally:
        trace.stop()
    return trace


async def main(show: str | None) -> None:
    """Print a line for each kind of request, and the calls of that to `show`."""
    settings = Settings(port=0, log_requests="none")
    app = App(Gateway(settings, SystemClock()), fast_path=True)
    engine = Engine.open(MemoryStorage(), clock=SystemClock())
    await engine.start()
    app.gateway.open(engine)
    server, listener = http_server(settings, app), socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    serving = asyncio.create_task(server.serve(listener))
    line, other = [TraceLine(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(2)]
    await publish(line)
    for name, request in (
        ("publish", publish),
        ("range", read_one),
        ("XADD as a command", xadd),
        ("blocked read", blocked_read(other)),
    ):
        trace = await traced(line, request)
        if name == show:
            print(*trace.calls, sep="\n")
        print(f"{name}: {len(trace.files)} files, {trace.moves} moves between files")
    server.stop()
    await serving
    await engine.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--show", help="a kind of request, as it is called in the figures")
    asyncio.run(main(options.parse_args().show))
