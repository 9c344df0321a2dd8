"""The engine over encrypted connections: one server, a cluster, the primary that Sentinel names."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from app.backend import make_topology, read_access
from app.settings import Settings
from engine import SystemClock
from engine.cluster import ClusterEngine
from engine.commands.types import Cursor, XAdd, XRead
from engine.replies import Added, StreamsRead
from tests.certificates import Authority
from tests.cluster.engines import BODY
from tests.cluster.sentinels import NAME, Sentinel
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_to
from tests.server import free_port
from tests.waiting import until, until_async

TIMEOUT_MS = 2_000
UP_S_MAX = 10


class Encrypted(NamedTuple):
    """A server that takes encrypted connections too, and who signed its certificate."""

    server: BackendServer
    url: str
    authority: Authority


def _options(authority: Authority) -> dict[str, str]:
    pair = authority.issue("server")
    return {
        "tls-port": str(free_port()),
        "tls-cert-file": str(pair.certificate),
        "tls-key-file": str(pair.key),
        "tls-ca-cert-file": str(authority.file),
        "tls-auth-clients": "no",
    }


def _words(options: dict[str, str]) -> list[str]:
    return [word for key, value in options.items() for word in (f"--{key}", value)]


def _one(directory: Path, authority: Authority) -> tuple[BackendServer, str]:
    options = _options(authority)
    server = BackendServer(directory, "redis", _words(options))
    return server, f"rediss://localhost:{options['tls-port']}"


def _cluster(directory: Path, authority: Authority) -> tuple[BackendServer, str]:
    options = {**_options(authority), "cluster-enabled": "yes", "cluster-port": str(free_port())}
    # Else the port that servers name is the one without encryption.
    options["tls-cluster"] = "yes"
    server = BackendServer(directory, "redis", _words(options))
    server.call("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
    until(lambda: b"cluster_state:ok" in server.call("CLUSTER", "INFO"), "the cluster is up")
    return server, f"rediss+cluster://localhost:{options['tls-port']}"


@pytest.fixture(params=[_one, _cluster])
def encrypted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Encrypted]:
    make: Callable[[Path, Authority], tuple[BackendServer, str]] = request.param
    authority = Authority(tmp_path)
    server, url = make(tmp_path, authority)
    with server:
        # The connection of the test itself is not encrypted, and has no password.
        server.call("ACL", "SETUSER", "weir", "on", ">secret", "~*", "&*", "+@all")
        yield Encrypted(server, url, authority)


async def _settings(directory: Path, url: str, authority: Authority) -> Settings:
    password = directory / "password"
    await asyncio.to_thread(password.write_text, "secret\n")
    return Settings(
        backend=url.replace("://", "://weir@"),
        backend_ca=str(authority.file),
        backend_password_file=str(password),
        backend_durability="memory",
        backend_timeout_ms=TIMEOUT_MS,
    )


async def _opened(settings: Settings) -> ClusterEngine:
    topology = make_topology(settings, await asyncio.to_thread(read_access, settings))
    return ClusterEngine(topology, SystemClock(), 3_600.0)


async def test_all_connections_are_encrypted_and_have_the_password(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    """Those of requests, of notifications, and those that ask for slots."""
    engine = await _opened(await _settings(tmp_path, encrypted.url, encrypted.authority))
    await asyncio.wait_for(engine.start(), UP_S_MAX)
    waiting = asyncio.ensure_future(reply_to(engine, XRead(streams=[("s", Cursor.LATEST)], block_ms=10_000)))
    await until_async(lambda: engine.figures().waiting == 1)
    assert isinstance(await reply_to(engine, XAdd(stream="s", bodies=[BODY])), Added)
    found = await asyncio.wait_for(waiting, TIMEOUT_MS / 1000)
    assert isinstance(found, StreamsRead)
    assert len(found.streams) == 1
    lines = encrypted.server.call("CLIENT", "LIST").splitlines()
    assert len([line for line in lines if b"user=weir" in line]) >= 4
    assert len([line for line in lines if b"user=default" in line]) == 1
    await engine.close()


async def test_a_certificate_of_somebody_else_is_not_taken(encrypted: Encrypted, tmp_path: Path) -> None:
    """No time cures that, and the reason says what does."""
    other = Authority(tmp_path, "Other CA")
    engine = await _opened(await _settings(tmp_path, encrypted.url, other))
    is_up = engine.start()
    await until_async(lambda: "its certificate is refused (" in str(engine.misfit))
    assert not is_up.done()
    await engine.close()


async def test_sentinel_is_asked_over_tls_too(tmp_path: Path) -> None:
    """It wants no password here, and the server does."""
    authority = Authority(tmp_path)
    options = _options(authority)
    # What Sentinel names is the port that it watches itself.
    with BackendServer(tmp_path, "redis", [*_words(options), "--tls-replication", "yes"]) as primary:
        primary.call("ACL", "SETUSER", "weir", "on", ">secret", "~*", "&*", "+@all")
        own = _options(authority)
        with Sentinel(
            tmp_path, "redis", int(options["tls-port"]), [*_words(own), "--tls-replication", "yes"]
        ):
            url = f"rediss+sentinel://localhost:{own['tls-port']}/{NAME}"
            engine = await _opened(await _settings(tmp_path, url, authority))
            await asyncio.wait_for(engine.start(), UP_S_MAX)
            assert isinstance(await reply_to(engine, XAdd(stream="s", bodies=[BODY])), Added)
            await engine.close()
        assert primary.call("XLEN", "s") == 1
