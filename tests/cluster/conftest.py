"""What the tests of the engine over a server share: one server of each kind for all of them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.cluster import ClusterEngine
from tests.cluster.beside import Beside
from tests.cluster.clusters import BACKENDS, BackendCluster, opened_backend
from tests.cluster.engines import opened
from tests.cluster.servers import Backend, BackendServer
from tests.engine.real_redis import PROGRAMS
from tests.held import pytest_runtest_call, pytest_runtest_teardown  # noqa: F401 - hooks of pytest
from tests.waiting import until


@pytest.fixture(scope="session", params=sorted(PROGRAMS))
def shared_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackendServer]:
    """A server that lives as long as the session."""
    with BackendServer(tmp_path_factory.mktemp("backend"), request.param) as server:
        yield server


@pytest.fixture
def server(shared_server: BackendServer) -> BackendServer:
    """The same, empty."""
    shared_server.call("FLUSHALL")
    return shared_server


@pytest.fixture(scope="session", params=BACKENDS)
def shared_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    """A server or a cluster of them that lives as long as the session."""
    with opened_backend(tmp_path_factory.mktemp("backend"), request.param) as opened:
        yield opened


@pytest.fixture
def backend(shared_backend: Backend) -> Backend:
    """The same, empty."""
    shared_backend.call("FLUSHALL")
    return shared_backend


@pytest.fixture
def cluster(shared_cluster: BackendCluster) -> BackendCluster:
    """One whose slots a test may move, and moves back: empty. Its module has it."""
    shared_cluster.call("FLUSHALL")
    return shared_cluster


@pytest.fixture
def beside(server: BackendServer) -> Beside:
    """A server and a keyspace, both empty."""
    return Beside(server)


@pytest.fixture
async def engine(backend: Backend) -> AsyncIterator[ClusterEngine]:
    """An engine over it."""
    async with opened(backend) as engine:
        yield engine


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[BackendServer]:
    """A server that the test may stop and kill."""
    with BackendServer(tmp_path) as server:
        yield server


@pytest.fixture(params=sorted(PROGRAMS))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[BackendServer, BackendServer]]:
    """A primary and its replica."""
    quick = ["--repl-diskless-sync-delay", "0"]
    with (
        BackendServer(tmp_path, request.param, quick) as primary,
        BackendServer(tmp_path, request.param) as replica,
    ):
        replica.call("REPLICAOF", "127.0.0.1", primary.port)
        until(lambda: _is_confirmed(primary), "the replica follows")
        yield primary, replica


def _is_confirmed(primary: BackendServer) -> bool:
    # A replica says once a second how far it is, asked or not: twice within that time, it answers.
    return [_confirm(primary), _confirm(primary)] == [1, 1]


def _confirm(primary: BackendServer) -> Any:
    primary.call("SET", "probe", "1")
    return primary.call("WAIT", 1, 100)
