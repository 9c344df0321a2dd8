"""A gateway, a client of its HTTP API, and a socket; a conversation without any of them.

Knows: how they are started. Must never know: what is tested.
"""

from collections.abc import Iterator
from typing import Final

import httpx
import pytest

from tests.app.conversing import SocketWorld
from tests.app.sockets import SocketClient, talking
from tests.cluster.clusters import server_words
from tests.cluster.servers import Backend
from tests.server import Server, server_of

LIMITS: Final = ("--bound", "heartbeat_ms=200", "--set", "entry_bytes_max=65536")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backend: Backend | None) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("socket") / "data"
    with Server(directory, *LIMITS, *server_words(backend)) as server:
        yield server


@pytest.fixture
def http(server: Server, backend: Backend | None) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        if backend is None:
            client.post("/v1/commands", json=["FLUSHALL"])
        else:
            backend.call("FLUSHALL")
        yield client


@pytest.fixture
def client(server: Server, http: httpx.Client) -> Iterator[SocketClient]:
    with talking(server) as client:
        yield client


# A gateway of its own, with real patience.
patient = server_of("function")


# A gateway of its own, with little patience.
impatient = server_of("function", "--set", "stall_s_max=0.5")


@pytest.fixture
def world() -> SocketWorld:
    return SocketWorld()
