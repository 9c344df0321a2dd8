"""Innocent callers while one principal floods each way into the gateway.

The gateway, the flood and the innocent callers are three processes. Each flood is measured beside a time
without one, on the same gateway, just before it; each has a gateway of its own.

    python -m bench.floods [--seconds 5] [--connections 32] [--only frames] [--set rate_requests=1000/s]

    p50, p99, most    milliseconds that an innocent caller's request takes: a publish, then a read
    asked, refused    requests of the flood that were answered, and those of them with a status from 400 up
"""

import argparse
import asyncio
import base64
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from app.auth import Grant, token_file, tokens
from bench.peers import free_port

CONNECTIONS: Final = 32
# Requests that each connection of a flood sends before it reads an answer.
AHEAD: Final = 50
INNOCENT: Final = 4
PAUSE_S: Final = 0.005
ENTRIES: Final = 10_000
WAITING: Final = 1_000
_READY_S_MAX: Final = 60.0
_SETTLE_S: Final = 0.5
_PIECE_BYTES: Final = 1 << 16
_ENTRY: Final = b'{"fields":{"a":"%b"}}' % (b"x" * 100)
_FRAME_16: Final = 126


class Took(NamedTuple):
    """What the innocent callers saw, in milliseconds."""

    p50: float
    p99: float
    most: float
    requests: int

    @classmethod
    def of(cls, took_s: Sequence[float]) -> "Took":
        """From the seconds of each request."""
        cuts = statistics.quantiles(took_s, n=100)
        return cls(cuts[49] * 1000, cuts[98] * 1000, max(took_s) * 1000, len(took_s))


# ---- the flood, in a process of its own


def request(line: str, token: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """A request as it is sent."""
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    if body:
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def frame(**members: object) -> bytes:
    """A frame of a client; its mask is zero."""
    text = json.dumps(members).encode()
    size = len(text)
    head = bytes((0x81, 0x80 | size)) if size < _FRAME_16 else b"\x81\xfe" + size.to_bytes(2, "big")
    return head + b"\0\0\0\0" + text


def handshake(token: str) -> bytes:
    """What opens a socket."""
    key = base64.b64encode(b"0123456789abcdef").decode()
    upgrade = f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    head = request("GET /v1/ws", token).removesuffix(b"\r\n")
    return head + b"Connection: Upgrade\r\n" + upgrade.encode() + b"\r\n"


def _subscribing(_: str) -> bytes:
    streams = {f"s{number}": "0" for number in range(8)}
    pair = frame(op="subscribe", sub="a", streams=streams) + frame(op="unsubscribe", sub="a")
    return pair * AHEAD


def _wrong(_: str) -> bytes:
    made = [tokens.create((Grant.parse("read:*"),)).text for _ in range(AHEAD)]
    return b"".join(request("GET /v1/streams/big/entries?count=1", text) for text in made)


# What one connection sends; it is repeated, on a new connection where the gateway closes the old one.
FLOODS: Final[dict[str, Callable[[str], bytes]]] = {
    "publish": lambda token: request("POST /v1/streams/flood/entries?maxlen=1000", token, _ENTRY) * AHEAD,
    "batches": lambda token: (
        request(
            "POST /v1/streams/flood/entries?maxlen=1000",
            token,
            b'{"entries":[%b]}' % b",".join([_ENTRY] * 1_000),
        )
        * 4
    ),
    "reads": lambda token: request("GET /v1/streams/big/entries?count=100", token) * AHEAD,
    "pages": lambda token: request("GET /v1/streams/big/entries?count=10000", token) * 4,
    "long-polls": lambda token: request("GET /v1/streams/idle/entries?after=$&wait=200", token),
    # A close frame: the connection is opened again.
    "sockets": lambda _: b"\x88\x80\0\0\0\0",
    "subscriptions": _subscribing,
    "frames": lambda _: frame(op="publish", stream="flood", fields={"a": "1"}, maxlen=1_000) * AHEAD,
    "commands": lambda token: (
        request("POST /v1/commands", token, b'["XADD","flood","MAXLEN","1000","*","a","1"]') * AHEAD
    ),
    "pipelines": lambda token: (
        request(
            "POST /v1/commands/pipeline",
            token,
            json.dumps([["XADD", "flood", "MAXLEN", "1000", "*", "a", "1"]] * 1_000).encode(),
        )
        * 2
    ),
    "bad tokens": _wrong,
}


# These come behind a handshake.
ON_SOCKETS: Final = ("sockets", "subscriptions", "frames")


class _Count:
    asked = 0
    refused = 0

    def see(self, piece: bytes) -> None:
        self.asked += piece.count(b"HTTP/1.1 ")
        self.refused += piece.count(b"HTTP/1.1 4") + piece.count(b"HTTP/1.1 5")


async def _flood_once(port: int, hello: bytes, sent: bytes, count: _Count, until: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        while time.monotonic() < until:
            writer.write(sent)
            await writer.drain()
            # `drain` waits for nothing while the system takes what is written.
            await asyncio.sleep(0)

    if hello:
        writer.write(hello)
        count.see(await reader.readuntil(b"\r\n\r\n"))
    sending = asyncio.create_task(send())
    try:
        while time.monotonic() < until:
            piece = await reader.read(_PIECE_BYTES)
            if not piece:
                return
            count.see(piece)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def _flood(port: int, token: str, what: str, connections: int, seconds: float) -> None:
    count, until, sent = _Count(), time.monotonic() + seconds, FLOODS[what](token)
    hello = handshake(token) if what in ON_SOCKETS else b""

    async def go_on() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError, EOFError):
                await _flood_once(port, hello, sent, count, until)

    many = max(WAITING, connections) if what == "long-polls" else connections
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(go_on() for _ in range(many)))
    print(count.asked, count.refused)


# ---- the innocent callers, and the gateway


class Flooded:
    """A gateway with tokens, one for the flood and one for the innocent callers."""

    def __init__(self, data: Path, *options: str) -> None:
        made = [tokens.create((Grant.parse("*:*"),)) for _ in range(2)]
        self.greedy, self.innocent = (one.text for one in made)
        self.port = free_port()
        data.mkdir()
        path = data / "tokens.toml"
        path.write_text("".join(token_file.write(one.token) for one in made))
        self._command = [
            *(sys.executable, "-m", "weir", "serve", "--port", str(self.port), "--data", str(data / "d")),
            *("--set", f"tokens_file={path}", "--set", "log_requests=none"),
            *(word for option in options for word in ("--set", option)),
        ]
        self._log = data / "log"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run it, with a stream to read."""
        with self._log.open("wb") as log, subprocess.Popen(self._command, stdout=log, stderr=log) as process:
            try:
                self._await_ready()
                batch = b'{"entries":[%b]}' % b",".join([_ENTRY] * (ENTRIES // 10))
                with self._connected() as client:
                    for _ in range(10):
                        assert self._ask(client, "POST", "/v1/streams/big/entries", batch) == 201
                yield
            finally:
                process.terminate()

    def measure(self, seconds: float) -> Took:
        """The innocent callers alone."""
        took: list[float] = []
        callers = [threading.Thread(target=self._call, args=(took, seconds)) for _ in range(INNOCENT)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        return Took.of(took)

    def measure_flooded(self, what: str, seconds: float, connections: int = CONNECTIONS) -> tuple[Took, str]:
        """The same while another process floods, and what that says of its requests."""
        length_s = seconds + 2 * _SETTLE_S
        words = [str(self.port), self.greedy, what, str(connections), str(length_s)]
        command = [sys.executable, "-m", "bench.floods", "--flood", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
            # Until its modules are loaded and its connections are open.
            time.sleep(_SETTLE_S + 1)
            found = self.measure(seconds)
            said, _ = flood.communicate()
        assert flood.returncode == 0, f"the flood of {what} has failed"
        return found, said.strip()

    def _call(self, took: list[float], seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._connected() as client:
            while time.monotonic() < until:
                for method, path, body, wanted in (
                    ("POST", "/v1/streams/mine/entries?maxlen=1000", _ENTRY, 201),
                    ("GET", "/v1/streams/mine/entries?count=10", b"", 200),
                ):
                    began = time.perf_counter()
                    status = self._ask(client, method, path, body)
                    took.append(time.perf_counter() - began)
                    assert status == wanted, f"an innocent caller got {status}"
                time.sleep(PAUSE_S)

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as client:
            yield client

    def _ask(self, client: http.client.HTTPConnection, method: str, path: str, body: bytes) -> int:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.innocent}"}
        client.request(method, path, body or None, headers)
        answer = client.getresponse()
        answer.read()
        return answer.status

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_S_MAX
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz/ready", timeout=5):
                    return
            except OSError:
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.05)


def main() -> None:
    """Measure each flood beside a time without one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="of each flood")
    parser.add_argument("--only", action="append", choices=list(FLOODS), help="one kind of flood, or several")
    parser.add_argument("--flood", nargs=5, metavar=("PORT", "TOKEN", "WHAT", "CONNECTIONS", "SECONDS"))
    wanted = parser.parse_args()
    if wanted.flood:
        port, token, what, connections, seconds = wanted.flood
        asyncio.run(_flood(int(port), token, what, int(connections), float(seconds)))
        return
    columns = "".join(f"{name:>8}" for name in ("p50", "p99", "most"))
    print(f"{'flood':<14}{columns}  without {columns}  asked refused")
    for what in wanted.only or FLOODS:
        with tempfile.TemporaryDirectory() as place:
            # A gateway of its own: it may still work on what a flood has sent.
            gateway = Flooded(Path(place) / "gateway", *wanted.set)
            with gateway.serving():
                beside = gateway.measure(wanted.seconds)
                found, said = gateway.measure_flooded(what, wanted.seconds, wanted.connections)
        columns = "".join(f"{value:8.1f}" for value in found[:3])
        print(f"{what:<14}{columns}          {''.join(f'{value:8.1f}' for value in beside[:3])}  {said}")


if __name__ == "__main__":
    main()
