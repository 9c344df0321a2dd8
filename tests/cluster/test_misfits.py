"""A backend that does not fit the settings ends the start; one that cannot be used yet is tried again. Either
says what to do, once.
"""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from app.lifespan import EngineLife, ServerStoppedError
from app.main import App, create_app
from app.settings import Settings
from engine.cluster import misfits
from tests.app.conftest import calling
from tests.certificates import Authority
from tests.cluster.engines import AdjustedClock
from tests.cluster.sentinels import NAME, Sentinel
from tests.cluster.servers import BackendServer
from tests.engine.real_redis import PROGRAMS
from tests.server import free_port
from tests.waiting import completed, until_async

LATE_S: Final = 10.0
OUTAGE_S: Final = 4.0


def opening(url: str, clock: AdjustedClock, **settings: Any) -> tuple[App, EngineLife]:
    """A gateway over this backend, and the life of its engine."""
    app = create_app(Settings(backend=url, log_requests="none", **settings), clock)
    return app, EngineLife(app.life, lambda: None)


def as_user(url: str, user: str) -> str:
    """The URL of a server that the gateway greets so."""
    return url.replace("://", f"://{user}")


async def why_it_ends(url: str, **settings: Any) -> str:
    """What ends the start."""
    _, life = opening(url, AdjustedClock(), **settings)
    try:
        async with asyncio.timeout(LATE_S):
            with pytest.raises(ServerStoppedError) as stopped:
                await life.open()
        assert stopped.value.exit_code == 2
        return str(stopped.value)
    finally:
        await life.close()


async def health(app: App) -> dict[str, Any]:
    """What the gateway says of itself."""
    async with calling(app) as http:
        body: dict[str, Any] = (await http.get("/healthz/ready")).json()
        return body


async def is_tried_again(url: str, reason: str, cure: Callable[[], object] | None, **settings: Any) -> None:
    """Until it is cured, the log and the health say why, the log once; then the gateway is ready."""
    clock = AdjustedClock()
    app, life = opening(url, clock, **settings)
    with capture_logs() as lines:
        begun = asyncio.ensure_future(life.open())
        try:
            clock.ahead_s = OUTAGE_S
            async with asyncio.timeout(LATE_S):
                while reason not in (found := await health(app)).get("reason", ""):  # noqa: ASYNC110 - a process
                    await asyncio.sleep(0.01)
            assert found["status"] == "starting"
            await until_async(lambda: any(reason in line.get("reason", "") for line in lines))
            if cure is not None:
                cure()
                async with asyncio.timeout(LATE_S):
                    await begun
                assert await health(app) == {"status": "ready"}
        finally:
            life.stop()
            await begun
            await life.close()
    assert len([line for line in lines if reason in line.get("reason", "")]) == 1


def test_the_start_ends_as_wrong_usage(own_server: BackendServer) -> None:
    """With one line that says what to do."""
    url = own_server.url.removesuffix("/0") + "/99"
    words = [str(Path(sys.executable).parent / "weir"), "serve", "--backend", url, "--port", "0"]
    ran = completed(words, timeout=60)
    assert ran.returncode == 2
    remedy = "name another database in `backend`, or raise `databases` at the server"
    place = f"127.0.0.1:{own_server.port}"
    *_, line = map(json.loads, ran.stderr.splitlines())
    assert line["reason"] == f"backend: {place}: ERR DB index is out of range: {remedy}"


async def test_a_database_that_is_not_there(server: BackendServer) -> None:
    assert "name another database" in await why_it_ends(server.url.removesuffix("/0") + "/99")


async def test_users_and_passwords(server: BackendServer, tmp_path: Path) -> None:
    """None, a wrong one, an unknown user, and one that may not do what the gateway does."""
    password = tmp_path / "password"
    password.write_text("wrong")
    given = {"backend_password_file": str(password)}
    server.call("ACL", "SETUSER", "weir", "on", ">wrong", "~*", "&*", "+@all", "-info")
    server.call("CONFIG", "SET", "requirepass", "right")
    try:
        assert "it wants a password: name a file" in await why_it_ends(server.url)
        for user in ("", "joe@"):
            assert "correct the user in `backend`, and `backend_password_file`" in await why_it_ends(
                as_user(server.url, user), **given
            )
        allowed = await why_it_ends(as_user(server.url, "weir@"), **given)
        assert "NOPERM" in allowed
        assert "let the user of the gateway run this command" in allowed
    finally:
        server.call("CONFIG", "SET", "requirepass", "")
        server.call("ACL", "DELUSER", "weir")


@pytest.mark.parametrize("rule", ["resetkeys", "-xrevrange"])
async def test_a_user_that_may_not_read_what_gateways_say(own_server: BackendServer, rule: str) -> None:
    own_server.call("ACL", "SETUSER", "default", rule)
    refusal = await why_it_ends(own_server.url)
    assert "weir/gateways: NOPERM" in refusal
    assert "let the user of the gateway run this command" in refusal


async def test_a_key_in_the_place_of_what_gateways_say(server: BackendServer) -> None:
    server.call("SET", "weir/gateways", "1")
    await is_tried_again(server.url, "weir/gateways: WRONGTYPE", lambda: server.call("DEL", "weir/gateways"))


async def test_a_server_of_another_kind(server: BackendServer, tmp_path: Path) -> None:
    """A cluster, a single server, a Sentinel: each where the URL is for another one."""
    place = f"127.0.0.1:{server.port}"
    assert "it is a single server: say redis://" in await why_it_ends(f"redis+cluster://{place}")
    assert "it is no Sentinel: say redis://" in await why_it_ends(f"redis+sentinel://{place}/{NAME}")
    options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    with BackendServer(tmp_path, server.kind, options) as cluster:
        for url in (cluster.url, cluster.url.removesuffix("/0") + "/1"):
            assert "it is a server of a cluster: say redis+cluster://" in await why_it_ends(url)
    with Sentinel(tmp_path, server.kind, server.port) as sentinel:
        assert "it is a Sentinel: say redis+sentinel://HOST:PORT/NAME" in await why_it_ends(sentinel.url)
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/payments"
        await is_tried_again(url, "watches no primary 'payments'", None)


@asynccontextmanager
async def answering(reply: bytes) -> AsyncIterator[str]:
    """What says this to all that it is asked; its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(reply)
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


HELLO_OF_6_2: Final = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n6.2.6\r\n"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it is an HTTP server, and speaks no RESP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "it speaks TLS, no RESP without it: say rediss"),
        (b"220 mail.example ESMTP\r\n", "it speaks no RESP: name a Redis or Valkey server"),
        (b"-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n", "that needs Redis from 7.0"),
        (HELLO_OF_6_2, "it is Redis 6.2.6: it is older than the gateway can use"),
    ],
    ids=["http", "tls", "mail", "redis-5", "redis-6"],
)
async def test_what_is_no_server_of_today(reply: bytes, reason: str) -> None:
    async with answering(reply) as url:
        assert reason in await why_it_ends(url)


async def test_encryption_on_one_side_alone(tmp_path: Path) -> None:
    """And a certificate that is not trusted."""
    authority = await asyncio.to_thread(Authority, tmp_path)
    pair, port = authority.issue("server"), free_port()
    words = ["--tls-port", port, "--tls-cert-file", pair.certificate, "--tls-key-file", pair.key]
    with BackendServer(
        tmp_path, "redis", [*map(str, words), "--tls-ca-cert-file", str(authority.file)]
    ) as server:
        reason = "If it speaks TLS, say rediss in the place of redis"
        await is_tried_again(f"redis://127.0.0.1:{port}", reason, None)
        assert "its certificate is refused (" in await why_it_ends(f"rediss://127.0.0.1:{port}")
        plain = f"rediss://127.0.0.1:{server.port}"
        await is_tried_again(plain, "If it speaks no TLS, say redis", None, backend_timeout_ms=200)
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        assert "it speaks no TLS: say redis in the place of rediss" in await why_it_ends(
            url.replace("redis", "rediss")
        )


def test_a_server_that_wants_a_certificate_of_the_gateway() -> None:
    """The system's loop has no more than a reset, the gateway's has this."""
    error = ssl.SSLError(1, "tlsv13 alert certificate required")
    error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    found = misfits.of_system(error)
    assert isinstance(found, misfits.Misfit)
    assert "it wants a certificate of the gateway, which has none" in found


async def test_a_replica_may_become_the_primary(server: BackendServer) -> None:
    server.call("REPLICAOF", "127.0.0.1", 1)
    try:
        place = f"127.0.0.1:{server.port} is a replica of 127.0.0.1:1"
        await is_tried_again(server.url, place, lambda: server.call("REPLICAOF", "NO", "ONE"))
    finally:
        server.call("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("kind", sorted(PROGRAMS))
async def test_a_server_may_take_more_clients_later(kind: str, tmp_path: Path) -> None:
    with BackendServer(tmp_path, kind, ["--maxclients", "1"]) as server:
        reason = "max number of clients reached: raise `maxclients`"
        await is_tried_again(server.url, reason, lambda: server.call("CONFIG", "SET", "maxclients", 100))


@pytest.mark.parametrize("kind", sorted(PROGRAMS))
async def test_a_server_that_reads_its_data_will_be_there(kind: str, tmp_path: Path) -> None:
    with BackendServer(tmp_path, kind, ["--enable-debug-command", "yes"]) as server:
        server.call("DEBUG", "POPULATE", 4_000, "key", 100)
        server.call("SAVE")
    # It takes four seconds, and answers about seven times in each.
    slowly = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"]
    with BackendServer(tmp_path, kind, slowly) as server:
        await is_tried_again(server.url, "LOADING", lambda: None, backend_timeout_ms=200)
