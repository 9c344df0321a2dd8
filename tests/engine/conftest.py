"""What the engine's tests share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache

import pytest

from tests.cluster.clusters import opened_backend
from tests.cluster.house import BackendHouse
from tests.cluster.servers import Backend
from tests.engine.house import OWN, House
from tests.engine.real_redis import RealRedis
from tests.engine.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """An empty world. At the end everything agrees with itself, and nothing would be lost by a restart."""
    world = World()
    yield world
    world.check()


@pytest.fixture(scope="session")
def backend_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Backend]]:
    """The server or cluster of a kind; from the first test over it to the last."""
    with ExitStack() as stack:
        yield cache(
            lambda kind: stack.enter_context(opened_backend(tmp_path_factory.mktemp("backend"), kind))
        )


@pytest.fixture
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    """The same for a house; for a test that is `everywhere`, over backends too."""
    if (kind := getattr(request, "param", OWN)) == OWN:
        house = House()
        yield house
        house.check()
    else:
        with closing(BackendHouse(request.getfixturevalue("backend_of")(kind))) as over:
            yield over


@pytest.fixture(scope="module", params=["redis", "redis8"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRedis]:
    """A real server, for the tests of a module."""
    server = RealRedis(tmp_path_factory.mktemp("redis"), request.param)
    yield server
    server.end()
