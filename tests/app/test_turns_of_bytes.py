"""However short what a client repeats is, others have their turn: no bytes hold the loop for more than 20 ms.

Each door is sent a megabyte of every shortest unit that it takes or refuses, before and after authentication.

Knows: the shortest units of each protocol, how much work fits into 20 ms.
Must never know: how a door cuts its work.

Work is counted in calls of Python functions, which no busy machine changes; the gateway's clock is made of
them.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, Self

import pytest
import uvloop
from pydantic import SecretStr

from app.doors.resp.listening import RespServer
from app.gateway import Gateway
from app.main import App
from app.policies import policy_of
from app.server import http_server
from app.settings import Settings
from engine import Engine, SystemClock
from tests.app.sockets import masked

TOKEN: Final = "root-token-of-at-least-24-characters"
SENT_BYTES: Final = 1 << 20
# What a call of a Python function takes, with all that it does itself: 0.5 to 1.5 µs in the loops of these
# doors (`python -m bench.trace` counts them).
CALL_S: Final = 1e-6
TURN_S_MAX: Final = 0.020
CALLS_MAX: Final = round(TURN_S_MAX / CALL_S)
# By then it is seen that what is left comes in turns too.
SEEN_CALLS: Final = 5 * CALLS_MAX
LATE_S: Final = 20.0
TEXT, BINARY, CONTINUED, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA


class Work(SystemClock):
    """Counts calls of Python functions while it is entered. As a clock, it shows how long they take."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, _: FrameType, event: str, __: object) -> None:
        self.calls += event == "call"

    def monotonic(self) -> float:
        return 1_000.0 + self.calls * CALL_S


class Turns:
    """How much work each turn of the loop does, until `over`: it was enough to see how work is cut."""

    def __init__(self, work: Work) -> None:
        self.counts: list[int] = []
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._work = work
        self._began = self._before = work.calls
        self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        calls = self._work.calls
        self.counts.append(calls - self._before)
        self._before = calls
        if calls - self._began < SEEN_CALLS:
            self._loop.call_soon(self._end_turn)
        elif not self.over.done():
            self.over.set_result(None)


@asynccontextmanager
async def listening(directory: Path, work: Work) -> AsyncIterator[int]:
    """A gateway that needs tokens: the port of HTTP, and a socket `resp` in the directory."""
    settings = Settings(
        log_requests="none",
        root_token=SecretStr(TOKEN),
        resp_listen=(f"unix:{directory}/resp",),
        durable_streams=True,
    )
    app = App(Gateway(settings, work, policy_of(settings, work)))
    engine = Engine.open(None, clock=work)
    await engine.start()
    app.life.open(engine)
    http, resp = http_server(settings, app), await RespServer(app.gateway).start()
    server = await asyncio.get_running_loop().create_server(http.connect, "127.0.0.1")
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        left: set[Any] = {*http.service.connections}
        for connection in left:
            # What it has not read yet would take a while.
            connection.transport.abort()
        await resp.close()
        await asyncio.gather(*http.service.tasks, return_exceptions=True)
        while not http.service.is_over:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        await engine.close()


async def counts_of(door: str, before: bytes, flood: bytes, directory: Path) -> list[int]:
    """The calls in each turn while the flood is read, until the connection ends or enough was seen."""
    work = Work()
    async with listening(directory, work) as port:
        if door == "resp":
            reader, writer = await asyncio.open_unix_connection(f"{directory}/resp")
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if before:
            writer.write(before)
            assert await reader.read(1 << 16)
        with work:
            turns = Turns(work)
            writer.write(flood)
            reading = asyncio.ensure_future(_read_all(reader))
            async with asyncio.timeout(LATE_S):
                await asyncio.wait((reading, turns.over), return_when=asyncio.FIRST_COMPLETED)
        turns.over.cancel()
        writer.transport.abort()
        await reading
    return turns.counts


async def _read_all(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass


def words(*words: str) -> bytes:
    raw = [b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words]
    return b"*%d\r\n%b" % (len(raw), b"".join(raw))


BEARER: Final = f"Authorization: Bearer {TOKEN}\r\n".encode()
WRONG: Final = b"Authorization: Bearer x\r\n"
HOST: Final = b"Host: localhost\r\n"


class Flood(NamedTuple):
    """A unit that is repeated, and what stands before and behind all of it."""

    unit: bytes
    before: bytes = b""
    behind: bytes = b""

    def sent(self) -> bytes:
        """A megabyte of it."""
        return self.before + self.unit * (SENT_BYTES // len(self.unit)) + self.behind


def http_floods(head: bytes) -> dict[str, Flood]:
    """Those of HTTP; `head` are the headers of each request."""
    last = b"GET /healthz/live HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"

    def request(line: bytes, more: bytes = b"", body: bytes = b"") -> bytes:
        return line + b" HTTP/1.1\r\n" + HOST + head + more + b"\r\n" + body

    entry = b'{"fields":{"a":""}}'
    posted = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(entry)
    coded = b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
    chunked = request(b"POST /v1/streams/s/entries", coded)
    # Of what is long, more is read at once.
    size = 200_000
    long = request(b"POST /x", b"Content-Length: %d\r\n" % size, b" " * size)
    long_chunks = request(b"POST /x", coded, b"%x\r\n%b\r\n0\r\n\r\n" % (size, b" " * size))
    units = {
        "line feeds": b"\n",
        "line ends": b"\r\n",
        "zeros": b"\0",
        "lines": b"x\r\n",
        "bare heads": b"GET / HTTP/1.1\r\n\r\n",
        "heads": request(b"GET /"),
        "heads of no path": request(b"GET /x"),
        "probes": request(b"GET /healthz/live"),
        "reads": request(b"GET /v1/streams/s"),
        "reads for the parser": request(b"GET /v1/streams/s", b"X: y\r\n"),
        "questions about the server": request(b"OPTIONS *"),
        "publishes": request(b"POST /v1/streams/s/entries", posted, entry),
        "appends": request(b"POST /v1/stream/d", posted, entry),
        "empty bodies in chunks": chunked + b"0\r\n\r\n",
    }
    return {
        **{name: Flood(unit, behind=last) for name, unit in units.items()},
        "heads behind a long body": Flood(b"GET / HTTP/1.1\r\n\r\n", before=long, behind=last),
        "heads behind long chunks": Flood(b"GET / HTTP/1.1\r\n\r\n", before=long_chunks, behind=last),
        "headers": Flood(b"a:\r\n", before=request(b"GET /")[:-2]),
        "chunks of one byte": Flood(b"1\r\na\r\n", before=chunked, behind=b"0\r\n\r\n" + last),
        "extensions of chunks": Flood(b";a", before=chunked + b"1"),
        "trailers": Flood(b"a:\r\n", before=chunked + b"0\r\n"),
    }


UPGRADE: Final = (
    b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
FRAMES: Final = {
    "zeros": b"\0",
    "empty texts": masked(TEXT),
    "objects": masked(TEXT, b"{}"),
    "frames": masked(TEXT, b'{"op":"ping"}'),
    "wrong tokens": masked(TEXT, b'{"op":"auth","token":"x"}'),
    "empty binaries": masked(BINARY),
    "pings": masked(PING),
    "pongs": masked(PONG),
    "closes": masked(CLOSE),
    "parts of nothing": masked(CONTINUED, fin=False),
    "texts in parts": masked(TEXT, b"{", fin=False) + masked(CONTINUED, b"}"),
}
# A long part lets more be read at once.
PART: Final = masked(TEXT, b" " * 200_000, fin=False)
WEBSOCKET: Final = {
    **{name: Flood(unit, behind=masked(CLOSE)) for name, unit in FRAMES.items()},
    "parts of a text": Flood(masked(CONTINUED, fin=False), before=masked(TEXT, fin=False)),
    "pings behind a long part": Flood(masked(PING), before=PART),
    "parts behind a long part": Flood(masked(CONTINUED, fin=False), before=PART),
}
QUIT: Final = b"QUIT\r\n"
COMMANDS: Final = {
    "line feeds": b"\n",
    "line ends": b"\r\n",
    "blanks": b" \n",
    "no words": b"*0\r\n",
    "fewer words than none": b"*-1\r\n",
    "PINGs in words": b"PING\n",
    "unknown words": b"x\n",
    "empty words": b'""\n',
    "wrong tokens in words": b"AUTH x\n",
    "lines of many words": b"a " * 30_000 + b"\n",
    "lines of many empty words": b'"" ' * 20_000 + b"\n",
    "PINGs": words("PING"),
    "commands without a name": words(""),
    "commands of many empty words": words(*[""] * 10),
    "wrong tokens": words("AUTH", "x"),
    "wrong tokens in HELLO": words("HELLO", "3", "AUTH", "a", "b"),
    "HELLOs": words("HELLO"),
    "RESETs": words("RESET"),
    "MULTIs": words("MULTI"),
    "XADDs": words("XADD", "s", "*", "a", ""),
    "HTTP": b"GET / HTTP/1.1\r\n",
    "counts": b"*1\r\n",
    "zeros": b"\0",
}
RESP: Final = {
    **{name: Flood(unit, behind=QUIT) for name, unit in COMMANDS.items()},
    "a line of many words": Flood(b"a ", behind=b"\n" + QUIT),
    "a command of many empty words": Flood(b"$0\r\n\r\n", before=b"*20000\r\n"),
}
# By the door, how far the client is known there, and the unit: what it sends first, and what then.
FLOODS: Final = {
    **{("http", "before", name): (b"", flood) for name, flood in http_floods(b"").items()},
    **{("http", "wrong", name): (b"", flood) for name, flood in http_floods(WRONG).items()},
    **{("http", "after", name): (b"", flood) for name, flood in http_floods(BEARER).items()},
    **{("websocket", "before", name): (UPGRADE + b"\r\n", flood) for name, flood in WEBSOCKET.items()},
    **{
        ("websocket", "after", name): (UPGRADE + BEARER + b"\r\n", flood) for name, flood in WEBSOCKET.items()
    },
    **{("resp", "before", name): (b"", flood) for name, flood in RESP.items()},
    **{("resp", "after", name): (words("AUTH", TOKEN), flood) for name, flood in RESP.items()},
}


@pytest.mark.parametrize("key", FLOODS, ids=" ".join)
def test_a_megabyte_of_the_shortest_units_is_read_in_turns(key: tuple[str, str, str], tmp_path: Path) -> None:
    """On the loop that the gateway has, which may read several times in a turn."""
    before, flood = FLOODS[key]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        counts = runner.run(counts_of(key[0], before, flood.sent(), tmp_path))
    assert max(counts) <= CALLS_MAX
