"""What no server should say and no code should raise: it is reported, and nothing waits for ever after it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import hiredis
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from app.live.other_gateways import OtherGateways
from app.main import create_app
from app.operating import Phase
from app.settings import Settings
from engine import EngineError, SystemClock
from engine.cluster import Address, ClusterEngine, ClusterTopology, ServerAccess, Standalone
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.wire import ConnectionLostError, ServerConnection, ask
from engine.cluster.words import METADATA_KEY
from tests.app.conftest import calling
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer
from tests.waiting import until_async

_BYTES_MAX = 1 << 16
ACCESS = ServerAccess()
BASE = "http://127.0.0.1:8080"
ROOT = "a-root-token-of-enough-characters"


@pytest.fixture
async def reported() -> list[dict[str, Any]]:
    """What the event loop was given to report."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


class _OddConnection(asyncio.Protocol):
    """Answers every command with the number 1."""

    def __init__(self, server: "OddServer") -> None:
        self._server = server
        self._commands = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections += 1

    def data_received(self, data: bytes) -> None:
        self._commands.feed(data)
        while words := self._commands.gets():
            self._server.seen.append(words[0])
            self._transport.write(b":1\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections -= 1


class OddServer:
    """Speaks the protocol, and does not say what a server says."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connections = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        """Where it listens. All connections have ended after that."""
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: _OddConnection(self), "127.0.0.1", 0) as listener:
            yield Address("127.0.0.1", listener.sockets[0].getsockname()[1])
        await until_async(lambda: self.connections == 0)


async def test_a_reply_that_cannot_be_read_is_an_internal_error(
    server: BackendServer, reported: list[dict[str, Any]]
) -> None:
    def decode(found: Any) -> None:
        raise ValueError(found)

    async with opened(server) as engine:
        request = BackendRequest(stream="s", commands=[("ECHO", "a")], decode=decode, lane=Lane.READ)
        with pytest.raises(EngineError) as refusal:
            async with asyncio.timeout(5):
                await engine.run_request(request)
        assert refusal.value.code == "internal"
        assert [str(one["exception"]) for one in reported] == ["[b'a']"]


async def test_a_connection_that_cannot_be_made_is_tried_again(reported: list[dict[str, Any]]) -> None:
    """For a reason that is no failure of a connection, too: no port has this number."""
    connection = ServerConnection(Address("127.0.0.1", 70_000), ACCESS, timeout_s=0.3)
    connection.start()
    await until_async(lambda: len(reported) > 1)
    assert isinstance(reported[0]["exception"], OverflowError)
    assert "70000" in (connection.failure or "")
    lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection.send(("PING",), lost.set_result)
    assert isinstance(await lost, ConnectionLostError)
    await connection.close()


@pytest.mark.parametrize("cycles", range(12))
async def test_a_question_that_is_broken_off_leaves_no_connection(cycles: int) -> None:
    """At any moment: also while its connection is closed, the reply having come."""
    odd = OddServer()
    async with odd.listening() as address:
        asking = asyncio.create_task(ask(address, ACCESS, ("PING",), 1.0))
        while b"PING" not in odd.seen:  # noqa: ASYNC110 - cycle by cycle
            await asyncio.sleep(0)
        for _ in range(cycles):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])


async def test_a_cluster_that_says_something_else_is_asked_again(reported: list[dict[str, Any]]) -> None:
    odd = OddServer()
    async with odd.listening() as address:
        topology = ClusterTopology([address], ACCESS, 1.0)
        topology.start()
        await until_async(lambda: odd.seen.count(b"CLUSTER") > 2)
        assert str(address) in (topology.failure or "")
        assert reported
        await topology.close()


async def test_a_server_that_says_something_else_is_asked_again(reported: list[dict[str, Any]]) -> None:
    odd = OddServer()
    async with odd.listening() as address:
        engine = ClusterEngine(Standalone(address, ACCESS, 1.0), SystemClock())
        is_up = engine.start()
        await until_async(lambda: odd.seen.count(b"INFO") > 2)
        assert not is_up.done()
        assert reported
        await engine.close()


async def test_a_message_that_no_gateway_has_sent_is_passed_over(
    server: BackendServer, reported: list[dict[str, Any]]
) -> None:
    """Those behind it arrive."""
    seen: list[bytes] = []
    async with opened(server, poll_s=0.2) as engine:
        await engine.gateways.join(seen.append)
        server.call("XADD", "weir/gateways", "*", "a", "1", "b", "2")
        await engine.gateways.say(b"after")
        await until_async(lambda: seen == [b"after"])
        assert len(reported) == 1


async def test_a_token_that_cannot_be_read_hides_no_revocation(server: BackendServer) -> None:
    """Nor does a revocation that cannot be read."""
    settings = Settings(log_requests="none", root_token=SecretStr(ROOT))
    async with opened(server, poll_s=0.2) as engine:
        apps = [create_app(settings, SystemClock()) for _ in range(2)]
        for app in apps:
            others = OtherGateways(engine.gateways, app.gateway.access.tickets)
            app.life.share(others)
            app.life.open(engine)
        await until_async(lambda: all(app.gateway.phase is Phase.READY for app in apps))
        first, other = (calling(app) for app in apps)
        async with first, other:
            body = {"grants": [{"actions": ["read"], "streams": "*"}]}
            admin = {"authorization": f"Bearer {ROOT}"}
            made = (await first.post("/v1/admin/tokens", json=body, headers=admin)).json()
            headers = {"authorization": f"Bearer {made['token']}"}

            async def is_eventually(status: int) -> None:
                async with asyncio.timeout(5):
                    while (await other.get("/v1/whoami", headers=headers)).status_code != status:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)

            await is_eventually(200)
            server.call("HSET", METADATA_KEY, "token:odd", "{", "revoked:odd", "{")
            revoked = await first.delete(f"/v1/admin/tokens/{made['id']}", headers=admin)
            assert revoked.status_code == 204
            await is_eventually(401)


async def test_tokens_are_read_once_the_server_answers_again(own_server: BackendServer) -> None:
    """It hangs between the start and this: the log says so once, and no restart is needed."""
    settings = Settings(log_requests="none", root_token=SecretStr(ROOT))
    async with opened(own_server, 0.3) as engine:
        app = create_app(settings, SystemClock())
        own_server.pause()
        with capture_logs() as lines:
            app.life.open(engine)
            await until_async(lambda: len(lines) == 1)
            await asyncio.sleep(1.5)
            own_server.resume()
            await until_async(lambda: app.gateway.phase is Phase.READY)
    assert [(line["log_level"], "0.3 s" in line["reason"]) for line in lines] == [("warning", True)]
