"""A caller that is revoked while what it has sent is being done: at each door, after each step.

Counted is what was handed to the engine before and after. What is one command, or one turn, is done or not;
of what is several nothing begins once the caller is revoked.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from engine import Call, Done, Engine, Replies
from engine.commands.durable_commands import AppendDurable
from engine.commands.types import Exists, XAdd, XLen
from engine.commands.weir_commands import AddEach
from tests.app.ten_doors import LATE_S, Bench, opened
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock

SENT: Final = 600
# More than a slice of work takes: so each call of the engine is a step.
STEP_MS: Final = 6
STEPS: Final = (1, 2, SENT // 2)
_ADDS: Final = (XAdd, AddEach, AppendDurable)


class Steps:
    """Counts the entries that are handed to the engine, and revokes their caller once it has some of them."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self._bench, self._after = bench, after
        self.before = self.late = 0
        send = Engine.send

        def counted(engine: Engine, call: Call, done: Done) -> Replies | None:
            adds = sum(len(one.bodies) for one in call.commands if isinstance(one, _ADDS))
            replies = send(engine, call, done)
            self._note(adds)
            return replies

        monkeypatch.setattr(Engine, "send", counted)

    def _note(self, adds: int) -> None:
        if not adds:
            return
        clock = self._bench.gateway.clock
        assert isinstance(clock, HandClock)
        clock.pass_ms(STEP_MS)
        if self._bench.policy.revoked:
            self.late += adds
            return
        self.before += adds
        if self.before >= self._after:
            self._bench.policy.revoke(self._bench.gateway.access.sessions)


async def resp(bench: Bench) -> None:
    """Commands in one write."""
    wire = await bench.wire()
    await wire.call("AUTH", "default", "secret")
    for n in range(SENT):
        wire.send("XADD", "orders", "*", "n", n)
    await _until_closed(wire.reader)
    wire.close()


async def resp_by_turns(bench: Bench) -> None:
    """One behind the other's reply."""
    wire = await bench.wire()
    await wire.call("AUTH", "default", "secret")
    for n in range(SENT):
        wire.send("XADD", "orders", "*", "n", n)
        try:
            if str(await wire.reply()).startswith("-"):
                break
        except (asyncio.IncompleteReadError, ConnectionError):
            break
    wire.close()


async def requests(bench: Bench) -> None:
    """Requests of HTTP in one write."""
    body = b'{"fields":{"n":"1"}}'
    await _raw(bench, [_request("POST", "/v1/streams/orders/entries", body)] * SENT)


async def appends(bench: Bench) -> None:
    """The same of Durable Streams."""
    await _raw(bench, [_request("PUT", "/v1/stream/orders.d", b"")])
    await _raw(bench, [_request("POST", "/v1/stream/orders.d", b'{"n":1}')] * SENT)


async def pipeline(bench: Bench) -> None:
    """Commands of one request."""
    body = json.dumps([["XADD", "orders", "*", "n", n] for n in range(SENT)]).encode()
    await _raw(bench, [_request("POST", "/v1/commands/pipeline", body)])


async def frames(bench: Bench) -> None:
    """Frames of a socket, which are sent together."""
    url = f"ws://127.0.0.1:{await bench.port()}/v1/ws"
    async with connect(url, subprotocols=[Subprotocol("weir.v1")], compression=None) as socket:
        try:
            for n in range(SENT):
                await socket.send(
                    json.dumps({"op": "publish", "ref": str(n), "stream": "orders", "fields": {"n": "1"}})
                )
            while True:
                await socket.recv()
        except ConnectionClosed:
            pass


def _request(method: str, path: str, body: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _raw(bench: Bench, sent: Sequence[bytes]) -> None:
    """Send requests in one write, and wait for as many answers or for the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", await bench.port())
    writer.write(b"".join(sent))
    answers = b""
    async with asyncio.timeout(LATE_S):
        while answers.count(b"HTTP/1.1 ") < len(sent) and (piece := await reader.read(1 << 16)):
            answers += piece
    writer.close()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(LATE_S):
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


class Way(NamedTuple):
    """What sends entries one by one, and into which stream."""

    send: Callable[[Bench], Awaitable[None]]
    stream: str = "orders"


WAYS: Final = [
    Way(resp),
    Way(resp_by_turns),
    Way(requests),
    Way(appends, "orders.d"),
    Way(pipeline),
    Way(frames),
]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as bench:
        yield bench


@pytest.mark.parametrize("after", STEPS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.send.__name__)
async def test_nothing_begins_once_its_caller_is_revoked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: Way, after: int
) -> None:
    """What is stored is what the engine had before."""
    steps = Steps(bench, monkeypatch, after)
    await way.send(bench)
    stored: Any = await reply_to(bench.engine, XLen(stream=way.stream))
    assert (steps.late, stored) == (0, steps.before)
    assert steps.before >= after
    assert await reply_to(bench.engine, Exists(streams=[way.stream])) == 1
