"""What tests of the pipeline share that need a gateway and no Spark.

Knows: how to start one. Must never know: what is tested.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_weir.gateway import GatewayAccess, GatewayClient
from tests.server import Server, server_of
from tests.spark.table.object_store import ObjectStore
from tests.spark.weir import Weir

# So that all that is published can be read at once.
DURABLE = ("--fsync", "always")


# A gateway whose entries are on disk when they are acknowledged; shared by the tests of a module.
durable_server = server_of("module", *DURABLE)


@pytest.fixture
def weir(durable_server: Server, request: pytest.FixtureRequest) -> Iterator[Weir]:
    """The shared gateway, with streams of one's own."""
    found = Weir(durable_server, f"t{abs(hash(request.node.nodeid))}")
    yield found
    found.close()


# A gateway for the tests of a module.
server = server_of("module")


@pytest.fixture
def gateway(server: Server) -> Iterator[GatewayClient]:
    """A client of it."""
    with GatewayClient(GatewayAccess("g0", server.url)) as opened:
        yield opened


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """A server of buckets, for the tests of a module."""
    with ObjectStore() as found:
        yield found


# A gateway of one's own, which may be killed.
own_server = server_of("function")


@pytest.fixture
def own_weir(tmp_path: Path) -> Iterator[Weir]:
    """A gateway of one's own, which may be stopped."""
    with Server(tmp_path / "data", *DURABLE) as server:
        found = Weir(server, "own")
        yield found
        found.close()


other_server = server_of("module", *DURABLE)


@pytest.fixture
def other_weir(other_server: Server) -> Iterator[Weir]:
    """A second gateway; its streams of one name are those of all tests."""
    found = Weir(other_server, "other")
    yield found
    found.close()
