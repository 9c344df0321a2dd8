"""Nothing that is thrown where bytes arrive reaches the transport, which would cut the connection silently.

Every function of the gateway that is called there fails once, one after the other.

Knows: where bytes arrive at each door, how each says that something went wrong.
Must never know: which function is called for what.
"""

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, Self

import pytest
from structlog.testing import capture_logs

import app
from app.api.metrics import write
from tests.app.http_requests import JSON, post, request
from tests.app.metrics import parse, value
from tests.app.sockets import masked
from tests.app.ten_doors import Bench, opened
from tests.engine.clocks import HandClock

APP: Final = str(Path(app.__file__).parent)
DOORS: Final = f"{APP}/doors/"
LATE_S: Final = 10.0
TEXT, CONTINUED, PING = 0x1, 0x0, 0x9
# As far as an answer is the same each time: its status, or its kind.
KIND_BYTES: Final = {"http": 13, "websocket": 1, "resp": 1}
# What says that something went wrong: a status, a close frame, an error.
FAILED: Final = {"http": b"HTTP/1.1 500 ", "websocket": b"\x0f\xa0internal", "resp": b"-ERR "}
# Closing these counts as a call too, where nothing can be raised.
GENERATORS: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE


class PlantedError(Exception):
    """What a function raises that has a bug."""


class Planted:
    """While it is entered, the function that is called as the `at`-th where bytes arrive fails, once."""

    def __init__(self, at: int = 0, kind: type[Exception] = PlantedError) -> None:
        self.calls = 0
        self._at = at
        self._kind = kind
        self._inside = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code.co_name == "data_received" and code.co_filename.startswith(DOORS):
            self._inside += {"call": 1, "return": -1}.get(event, 0)
        elif self._inside and event == "call" and self._counts(frame):
            self.calls += 1
            if self.calls == self._at:
                # The interpreter takes it for raised by the function, and calls this no more.
                raise self._kind(f"{code.co_filename}:{code.co_qualname}")

    def _counts(self, frame: FrameType) -> bool:
        code = frame.f_code
        return code.co_filename.startswith(APP) and not code.co_flags & GENERATORS


class Way(NamedTuple):
    """Bytes that a client sends one after the other; before the last ones it waits for an answer to each."""

    door: str
    pieces: Sequence[bytes]

    async def connect(self, bench: Bench) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of a client."""
        if self.door == "resp":
            return await asyncio.open_unix_connection(str(bench.directory / "port.sock"))
        return await asyncio.open_connection("127.0.0.1", await bench.port())

    async def answer(self, bench: Bench, planted: Planted) -> bytes:
        """What is answered to the last bytes."""
        reader, writer = await self.connect(bench)
        *before, last = self.pieces
        for piece in before:
            writer.write(piece)
            assert await received(reader)
        with planted:
            writer.write(last)
            found = await received(reader)
        writer.close()
        return found


async def received(reader: asyncio.StreamReader) -> bytes:
    """What comes next, empty at the end of the connection."""
    async with asyncio.timeout(LATE_S):
        return await reader.read(1 << 16)


def words(*words: str) -> bytes:
    """A command."""
    raw = [b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words]
    return b"*%d\r\n%b" % (len(raw), b"".join(raw))


ENTRIES: Final = "/v1/streams/orders/entries"
ENTRY: Final = b'{"fields":{"a":"1"}}'
ACK: Final = post("/v1/streams/orders/groups/g/ack", b'{"ids":["1-1"]}')
APPEND: Final = post("/v1/stream/orders.d", b"[1]")
READ: Final = request(f"GET {ENTRIES}?count=1")
ODD: Final = "X-Other: 1"
CHUNKED: Final = (
    request(f"POST {ENTRIES}", None, JSON, "Transfer-Encoding: chunked") + b"14\r\n%b\r\n0\r\n\r\n" % ENTRY
)
UPGRADE: Final = (
    b"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
XADD: Final = words("XADD", "orders", "*", "f", "v")
WAYS: Final = {
    "a read": Way("http", [READ]),
    "a read like one before": Way("http", [READ, READ]),
    "a publish": Way("http", [post(ENTRIES, ENTRY)]),
    "a publish like one before": Way("http", [post(ENTRIES, ENTRY)] * 2),
    "an append": Way("http", [APPEND]),
    "an append like one before": Way("http", [APPEND, APPEND]),
    "acknowledging": Way("http", [ACK]),
    "acknowledging as before": Way("http", [ACK, ACK]),
    "a request for the parser": Way("http", [post(ENTRIES, ENTRY, JSON, ODD)]),
    "chunks": Way("http", [CHUNKED]),
    "no request": Way("http", [b"\x00\r\n\r\n"]),
    "a handshake": Way("http", [UPGRADE]),
    "a text": Way("websocket", [UPGRADE, masked(TEXT, b'{"op":"ping","ref":1}')]),
    "no frame": Way("websocket", [UPGRADE, masked(TEXT, b"{")]),
    "a text in parts": Way(
        "websocket", [UPGRADE, masked(TEXT, b'{"op":"ping",', fin=False) + masked(CONTINUED, b'"ref":1}')]
    ),
    "a ping": Way("websocket", [UPGRADE, masked(PING, b"")]),
    "a command": Way("resp", [words("XLEN", "orders")]),
    "a command like one before": Way("resp", [words("XLEN", "orders")] * 2),
    "an XADD": Way("resp", [XADD]),
    "an XADD like one before": Way("resp", [XADD, XADD]),
    "many XADDs": Way("resp", [XADD * 8]),
    "a command in words": Way("resp", [b"XLEN orders\r\n"]),
    "a command about the connection": Way("resp", [words("CLIENT", "ID")]),
    "a transaction": Way("resp", [words("MULTI"), words("XLEN", "orders"), words("EXEC")]),
    "no command": Way("resp", [b"*x\r\n"]),
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as bench:
        for line in (
            request("GET /healthz/live"),
            post(ENTRIES, ENTRY),
            post("/v1/streams/orders/groups", b'{"name":"g","start":"0"}'),
            request("PUT /v1/stream/orders.d", b"", JSON),
        ):
            assert await Way("http", [line]).answer(bench, Planted())
        yield bench


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("name", WAYS)
async def test_a_function_that_fails_where_bytes_arrive_leaves_no_client_without_a_word(
    bench: Bench, name: str
) -> None:
    """Whichever it is, the client is answered as usual, or that something went wrong."""
    cut: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: cut.append(context))
    way, counted = WAYS[name], Planted()
    usual = (await way.answer(bench, counted))[: KIND_BYTES[way.door]]
    with capture_logs():
        for at in range(1, counted.calls + 1):
            answer = await way.answer(bench, Planted(at))
            assert answer.startswith(usual) or FAILED[way.door] in answer, (at, answer)
    assert [one for one in cut if "transport" in one] == []
    assert counted.calls > 10
    assert sum(bench.gateway.reports.faults.counts.values()) > 0


def test_each_place_where_bytes_arrive_is_tried() -> None:
    """What another process of the gateway sends is no client's: `fronts/link.py` handles each by itself."""
    root = Path(APP)
    found = [path for path in root.rglob("*.py") if "def data_received(" in path.read_text()]
    assert {str(path.relative_to(root)) for path in found} == {
        *("doors/http/http_connection.py", "doors/http/planned.py", "doors/resp/connection.py"),
        *("doors/websocket/websocket_connection.py", "fronts/link.py"),
    }


async def test_each_fault_is_counted_and_one_of_a_kind_is_logged_in_a_minute(bench: Bench) -> None:
    """With its trace and the remedy."""
    clock = bench.gateway.clock
    assert isinstance(clock, HandClock)
    with capture_logs() as lines:
        for name, kind in (("a read", PlantedError), ("a read", PlantedError), ("a read", KeyError)):
            await WAYS[name].answer(bench, Planted(2, kind))
        await WAYS["a command"].answer(bench, Planted(2))
        assert [(line["door"], line["count"]) for line in lines] == [("http", 1), ("http", 3), ("resp", 1)]
        clock.pass_ms(60_000)
        await WAYS["a read"].answer(bench, Planted(2))
    assert all(line["log_level"] == "error" and line["remedy"] for line in lines)
    assert [line["count"] for line in lines[3:]] == [4]
    assert "PlantedError" in lines[0]["error"]
    assert "planned.py" in lines[0]["trace"][0]
    found = parse((await write(bench.gateway, openmetrics=False)).decode())
    assert value(found, "weir_faults_total", door="http") == 4
    assert value(found, "weir_faults_total", door="resp") == 1
    assert value(found, "weir_faults_total", door="websocket") == 0
