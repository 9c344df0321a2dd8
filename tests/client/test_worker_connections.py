"""When a worker connects again and when it does not, beside a gateway with a script.

Knows: frames of `weir.v1`. Must never know: how a worker keeps its connection.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

import weir
from tests.certificates import Authority
from tests.server import free_port
from weir import Delivery, Worker
from weir.worker import Handler

HELLO: Final = {"op": "hello", "heartbeat_ms": 100}
# Far above what a worker needs on a busy machine, and below its longest pause.
SOON_S: Final = 12.0


class ScriptedGateway:
    """Ends its first connections as `ends` says: by a close code, or None for silence. The next ones get an
    entry.
    """

    def __init__(self, *ends: int | None) -> None:
        self._ends = ends
        self.connections = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen on loopback."""
        async with serve(self._converse, "127.0.0.1", 0, subprotocols=[Subprotocol("weir.v1")]) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield

    async def _converse(self, socket: ServerConnection) -> None:
        place, self.connections = self.connections, self.connections + 1
        await socket.send(json.dumps(HELLO))
        consume = json.loads(await socket.recv())
        await socket.send(json.dumps({"op": "ok", "ref": consume["ref"]}))
        if place >= len(self._ends):
            entries = [{"id": "5-1", "fields": {"n": "1"}}]
            await socket.send(json.dumps({"op": "entries", "sub": "work", "entries": entries}))
        elif (code := self._ends[place]) is not None:
            await socket.close(code, "because")
        await socket.wait_closed()


async def first_of(gateway: ScriptedGateway) -> str:
    """The first entry that a worker gets. It stays unsettled: there is no gateway to settle it with."""
    return await first_of_url(gateway.url)


async def first_of_url(url: str) -> str:
    """The same, of what listens there."""
    worker = Worker(url, "s", group="g", consumer="c", grace_s=0)
    async with asyncio.timeout(SOON_S), worker:
        async for delivery in worker:
            return delivery.entry.id
    raise AssertionError("the worker ended without an entry")


async def test_a_connection_without_heartbeats_is_given_up() -> None:
    """After two of them are missing: the machine on the other side may be gone without a word."""
    gateway = ScriptedGateway(None)
    async with gateway.serve():
        assert await first_of(gateway) == "5-1"
    assert gateway.connections == 2


async def test_pauses_begin_anew_after_a_connection_that_worked() -> None:
    """Else a worker of a gateway that restarts often would come back later each time."""
    gateway = ScriptedGateway(*[1012] * 8)
    async with gateway.serve():
        assert await first_of(gateway) == "5-1"
    assert gateway.connections == 9


async def run_inside(worker: Worker, handle: Handler) -> None:
    async with worker:
        await worker.run(handle)


async def enter_twice(worker: Worker, handle: Handler) -> None:
    async with worker, worker:
        async for delivery in worker:
            await handle(delivery)


async def run_twice(worker: Worker, handle: Handler) -> None:
    await asyncio.gather(worker.run(handle), worker.run(handle))


@pytest.mark.parametrize("use", [Worker.run, run_inside, enter_twice, run_twice])
async def test_a_worker_has_one_connection_however_it_is_begun(use: Callable[..., Awaitable[None]]) -> None:
    """A second one would take the consumer's place from the first."""
    gateway, handled = ScriptedGateway(), list[str]()
    async with gateway.serve():
        worker = Worker(gateway.url, "s", group="g", consumer="c", grace_s=0)

        async def handle(delivery: Delivery) -> None:
            handled.append(delivery.entry.id)
            await asyncio.sleep(0.05)
            worker.stop()

        async with asyncio.timeout(SOON_S):
            await use(worker, handle)
        assert (gateway.connections, handled) == (1, ["5-1"])
        with pytest.raises(weir.ClientClosedError):
            await worker.run(handle)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (4500, weir.AuthenticationError),
        (4501, weir.ConnectionClosedError),
        (4502, weir.ForbiddenError),
        (4503, weir.ConnectionClosedError),
    ],
)
async def test_close_codes_from_4500_on_are_final(code: int, error: type[weir.WeirError]) -> None:
    """The one below is not. Those that HTTP has a status for are the error of that."""
    gateway = ScriptedGateway(4499, code)
    async with gateway.serve():
        with pytest.raises(error, match="because"):
            await first_of(gateway)
    assert gateway.connections == 2


@pytest.mark.parametrize(
    "frame", ["hello", "[1]", '{"op":"hello"}', '{"op":"entries","entries":[{}]}', '{"op":"error"}', b"\xff"]
)
async def test_a_frame_that_is_no_gateways_ends_the_worker(frame: str | bytes) -> None:
    async def send(socket: ServerConnection) -> None:
        await socket.send(frame)
        await socket.wait_closed()

    async with serve(send, "127.0.0.1", 0, subprotocols=[Subprotocol("weir.v1")]) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(weir.NotAGatewayError):
            await first_of_url(url)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("replaced", weir.ConsumerReplacedError),
        ("stream_deleted", weir.StreamDeletedError),
        ("group_destroyed", weir.GroupDeletedError),
        ("forbidden", weir.ForbiddenError),
        ("of_tomorrow", weir.WeirError),
    ],
)
async def test_each_end_of_a_subscription_is_an_error_of_its_own(
    reason: str, error: type[weir.WeirError]
) -> None:
    async def revoke(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"op": "revoked", "sub": "work", "reason": reason}))
        await socket.wait_closed()

    async with serve(revoke, "127.0.0.1", 0, subprotocols=[Subprotocol("weir.v1")]) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(error) as ended:
            await first_of_url(url)
    assert type(ended.value) is error


async def test_a_page_in_place_of_a_gateway_ends_the_worker() -> None:
    def page(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(HTTPStatus.OK, "<html>")

    async with serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0, process_request=page) as server:
        with pytest.raises(weir.NotAGatewayError):
            await first_of_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def logged(caplog: pytest.LogCaptureFixture, url: str) -> list[str]:
    """What a worker logs that tries to reach a gateway, some more attempts after the first line included."""
    trying = asyncio.create_task(first_of_url(url))
    lines: list[str] = []
    async with asyncio.timeout(SOON_S):
        while not lines:
            await asyncio.sleep(0.02)
            lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    await asyncio.sleep(1)
    trying.cancel()
    await asyncio.wait([trying])
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


async def test_a_gateway_that_is_away_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    (line,) = await logged(caplog, url)
    assert url in line


async def test_a_backend_that_is_away_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """And that it is back; the socket stays, and that credit is used up is no news."""
    caplog.set_level("INFO", "weir.worker")

    async def talk(socket: ServerConnection) -> None:
        frames = [
            HELLO,
            {"op": "paused", "sub": "work", "reason": "credit"},
            {"op": "paused", "sub": "work", "reason": "backend"},
            {"op": "resumed", "sub": "work"},
            {"op": "entries", "sub": "work", "entries": [{"id": "5-1", "fields": {"n": "1"}}]},
        ]
        for frame in frames:
            await socket.send(json.dumps(frame))
        await socket.wait_closed()

    async with serve(talk, "127.0.0.1", 0, subprotocols=[Subprotocol("weir.v1")]) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await first_of_url(url) == "5-1"
    lines = [record.getMessage() for record in caplog.records if record.name == "weir.worker"]
    assert lines[:2] == [f"worker c of s waits: the backend of {url} is away", "worker c of s goes on"]


async def test_a_worker_over_tls_checks_the_certificate(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """By the authorities that httpx trusts, if no others are named."""
    pair = Authority(tmp_path).issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    async with serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0, ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        (line,) = await logged(caplog, url)
    assert "certificate verify failed" in line
