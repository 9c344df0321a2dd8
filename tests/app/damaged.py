"""Damaged HTTP: requests that are cut, repeated, flipped, reordered and sent in pieces, without a socket, and
what a gateway makes of them.

Knows: how requests are damaged, which bytes are never the same twice. Must never know: what is right.

To compare two versions byte for byte, run this in each of them and compare the files:

    python -m tests.app.damaged --first 0 --count 1000000 FILE
"""

import argparse
import asyncio
import hashlib
import random
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from app.main import create_app
from app.server import http_server
from engine import Engine
from engine.commands.types import XAdd
from engine.commands.weir_commands import EnsureGroup
from engine.entries import body
from tests.app.asgi_server import asgi_server
from tests.app.http_requests import ENTRIES, ENTRY, JSON, PLAIN, UNUSUAL, post, request
from tests.app.pair import plain
from tests.bounds import bounded
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock

SETTINGS: Final = bounded(
    port=0,
    log_requests="none",
    log_level="error",
    head_bytes_max=1_024,
    body_bytes_max=64 << 10,
    request_s_max=2,
    stall_s_max=3,
    keep_alive_s=5,
)
# Each of these gets a gateway of its own, so that a difference has no long consequences.
CASES_OF_A_GATEWAY: Final = 200
# After this many turns of the loop every gateway has come to rest.
_TURNS_MAX: Final = 10_000
_CHUNKED: Final = "Transfer-Encoding: chunked"
_UPGRADE: Final = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol: weir.v1",
)
# And what came after the cases were recorded, which would make others of all of them.
_LEFT_OUT: Final = frozenset(
    {
        *("coded body", "large entry", "large batch", "command of a long reply"),
        *("a slash in the name", "into a name with a slash"),
        *("page of Durable Streams", "append of Durable Streams to another stream", "not modified"),
    }
)
_SLASHED: Final = request("GET /v1/streams/a%2Fb/entries")
WHOLE: Final = [
    *(
        _SLASHED if name == "nothing between slashes" else sent
        for name, sent in {**PLAIN, **UNUSUAL}.items()
        if name not in _LEFT_OUT
    ),
    request(f"POST {ENTRIES}", None, JSON, _CHUNKED) + b"14\r\n" + ENTRY + b"\r\n0\r\n\r\n",
    request(f"POST {ENTRIES}", None, JSON, _CHUNKED)
    + b"5;a=b\r\n" + ENTRY[:5] + b"\r\nf\r\n" + ENTRY[5:] + b"\r\n0\r\nTrailer: 1\r\n\r\n",
    post(ENTRIES, ENTRY, JSON, "Expect: 100-continue", "X: 1"),
    request(f"POST {ENTRIES}", ENTRY, JSON).replace(b"HTTP/1.1", b"HTTP/1.0"),
    request(f"GET {ENTRIES}?count=2", None, "Accept: application/x-ndjson").replace(b"HTTP/1.1", b"HTTP/1.0"),
    request("OPTIONS *"),
    request("CONNECT localhost:80"),
    request("GET /v1", None, "Connection: close"),
    request("HEAD /v1/streams/s", None),
    request("DELETE /v1/streams/none"),
    request("GET /v1/ws", None, *_UPGRADE),
    request("POST /v1/ws", b"abc", *_UPGRADE),
    request("GET /v1/none", None, *_UPGRADE),
    request("GET /v1/ws", None, *_UPGRADE)
    + b"\x81\x82\x00\x00\x00\x00{}\x88\x82\x00\x00\x00\x00\x03\xe8",
    request("GET /v1", None, *["X-Filler: " + "x" * 100] * 10),
]  # fmt: skip
_PIECES: Final = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b",", b";", b"#", b"\x80"),
    *(b"\r\n\r\n", b"0\r\n\r\n", b"-1"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 99999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n"),
    b"Transfer-Encoding: gzip, chunked\r\n",
    *(b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: upgrade\r\n"),
    *(b"Upgrade: websocket\r\n", b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Host: other\r\n"),
    *(b" HTTP/1.0\r\n", b" HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"ffffffffffffffffff\r\n"),
    *(b"%", b"%00", b"%zz", b"../", b"?", b"X: " + b"x" * 600 + b"\r\n", b"\xff\xfe"),
)  # fmt: skip
_DATE: Final = re.compile(rb"\r\ndate: [^\r]*", re.IGNORECASE)
_NUMBER: Final = re.compile(rb"\d+")


def damaged(number: int) -> list[bytes]:
    """The pieces that this case sends."""
    dice = random.Random(number)
    sent = b"".join(_damaged(dice, dice.choice(WHOLE)) for _ in range(dice.choice((1, 1, 1, 2, 3, 4))))
    cuts = sorted(dice.randrange(len(sent) + 1) for _ in range(dice.choice((0, 0, 1, 2, 5))))
    return [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]


def _damaged(dice: random.Random, sent: bytes) -> bytes:
    for _ in range(dice.choice((0, 0, 1, 1, 2, 3))):
        sent = dice.choice(_DAMAGES)(dice, sent)
    return sent


def _span(dice: random.Random, sent: bytes) -> tuple[int, int]:
    at = dice.randrange(len(sent) + 1)
    return at, min(len(sent), at + dice.choice((1, 2, 5, 20, 60)))


def _cut(dice: random.Random, sent: bytes) -> bytes:
    return sent[: dice.randrange(len(sent) + 1)]


def _leave_out(dice: random.Random, sent: bytes) -> bytes:
    at, end = _span(dice, sent)
    return sent[:at] + sent[end:]


def _repeat(dice: random.Random, sent: bytes) -> bytes:
    at, end = _span(dice, sent)
    return sent[:end] + sent[at:]


def _flip(dice: random.Random, sent: bytes) -> bytes:
    at, end = _span(dice, sent)
    end = min(end, at + 1)
    return sent[:at] + bytes(one ^ (1 << dice.randrange(8)) for one in sent[at:end]) + sent[end:]


def _insert(dice: random.Random, sent: bytes) -> bytes:
    at = dice.randrange(len(sent) + 1)
    return sent[:at] + dice.choice(_PIECES) + sent[at:]


def _add_header(dice: random.Random, sent: bytes) -> bytes:
    line, end, rest = sent.partition(b"\r\n")
    return line + end + dice.choice(_PIECES) + rest


def _change_number(dice: random.Random, sent: bytes) -> bytes:
    found = [*_NUMBER.finditer(sent)]
    if not found:
        return sent
    one = dice.choice(found)
    number = int(one[0]) + dice.choice((-1, 1, 1, 7, 1 << 16, 1 << 64))
    return sent[: one.start()] + b"%d" % max(0, number) + sent[one.end() :]


def _reorder(dice: random.Random, sent: bytes) -> bytes:
    lines = sent.split(b"\r\n")
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\r\n".join(lines)


_DAMAGES: Final = (
    *(_cut, _leave_out, _repeat, _flip, _insert, _insert, _add_header, _add_header, _change_number, _reorder),
)


class Line(asyncio.Transport):
    """A transport without a socket, whose peer takes everything at once."""

    def __init__(self, accepted: socket.socket) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._accepted = accepted
        self._protocol: Any = None
        self.is_held = False
        self.is_over = False
        self.written = bytearray()

    def connect(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def receive(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def leave(self) -> None:
        """The client closes."""
        if not self.is_over:
            self._protocol.eof_received()
            self.close()

    def write(self, data: Any) -> None:
        if not self.is_over:
            self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._protocol.connection_lost(None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        self.is_held = True

    def resume_reading(self) -> None:
        self.is_held = False

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is taken at once."""

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self._accepted}.get(name, default)


class FuzzedGateway:
    """A gateway in memory, on a loop whose time stands still between cases."""

    def __init__(self, clock: HandClock, *, asgi: bool) -> None:
        self.clock = clock
        self.app = create_app(SETTINGS, clock)
        self.server = (asgi_server if asgi else http_server)(SETTINGS, self.app)
        self.engine = Engine.open(None, clock=clock, fsync="no")

    def connect(self) -> Any:
        return self.server.connect()

    async def open(self) -> None:
        await self.engine.start()
        self.app.life.open(self.engine)
        await reply_to(
            self.engine, XAdd(stream="s", bodies=[body([("a", str(number))]) for number in range(3)])
        )
        await reply_to(self.engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))

    async def outcome(self, pieces: Sequence[bytes], accepted: socket.socket) -> bytes:
        """What comes of these pieces: at once, and once the time of a request has passed."""
        line = Line(accepted)
        line.connect(self.connect())
        for piece in pieces:
            if not line.is_held and not line.is_over:
                line.receive(piece)
                await settle()
        found = bytes(line.written) + _ending(line)
        line.written.clear()
        self.clock.pass_ms(2_000)
        await settle()
        found += bytes(line.written) + _ending(line)
        line.leave()
        await settle()
        return plain(_DATE.sub(b"", found))


def _run_at_once(_: object, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """No thread: when it is over would be left to chance."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    try:
        done.set_result(work(*arguments))
    except Exception as error:  # noqa: BLE001 - as an executor's future has it
        done.set_exception(error)
    return done


def _ending(line: Line) -> bytes:
    return b"\n<closed>\n" if line.is_over else b"\n<held>\n" if line.is_held else b"\n<open>\n"


async def settle() -> None:
    """Let everything run that can run now."""
    ready: Any = vars(asyncio.get_running_loop())["_ready"]
    for _ in range(_TURNS_MAX):
        await asyncio.sleep(0)
        if not ready:
            return


async def outcomes_of(cases: Sequence[Sequence[bytes]]) -> list[bytes]:
    """What comes of the pieces of each case, at both servers by turns."""
    clock, loop, found = HandClock(), asyncio.get_running_loop(), list[bytes]()
    clock.drive(loop)
    vars(loop)["run_in_executor"] = _run_at_once
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.connect(listener.getsockname())
        with listener.accept()[0] as accepted:
            for at in range(0, len(cases), CASES_OF_A_GATEWAY):
                gateway = FuzzedGateway(clock, asgi=at // CASES_OF_A_GATEWAY % 2 == 1)
                await gateway.open()
                for pieces in cases[at : at + CASES_OF_A_GATEWAY]:
                    found.append(await gateway.outcome(pieces, accepted))
                await gateway.engine.close()
    clock.let_be(loop)
    return found


def summary(outcome: bytes) -> str:
    """The statuses of the answers, and how the connection was at both times."""
    return " ".join(one.decode() for one in re.findall(rb"(?<=HTTP/1\.1 )\d{3}|<\w+>", outcome))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("file", type=Path)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--count", type=int, default=1_000)
    chosen = options.parse_args()
    with chosen.file.open("w") as file:
        for first in range(chosen.first, chosen.first + chosen.count, 2_000):
            numbers = range(first, min(first + 2_000, chosen.first + chosen.count))
            found = asyncio.run(outcomes_of([damaged(number) for number in numbers]))
            for number, outcome in zip(numbers, found, strict=True):
                digest = hashlib.sha256(outcome).hexdigest()[:16]
                print(number, digest, summary(outcome), file=file, flush=True)


if __name__ == "__main__":
    main()
