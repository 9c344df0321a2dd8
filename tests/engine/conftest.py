"""What the engine's tests share."""

from collections.abc import Iterator

import pytest

from tests.engine.house import House
from tests.engine.real_redis import RealRedis
from tests.engine.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """An empty world. At the end everything agrees with itself, and nothing would be lost by a restart."""
    world = World()
    yield world
    world.check()


@pytest.fixture
def house() -> Iterator[House]:
    """The same for a house."""
    house = House()
    yield house
    house.check()


@pytest.fixture(scope="module", params=["redis", "redis8"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRedis]:
    """A real server, for the tests of a module."""
    server = RealRedis(tmp_path_factory.mktemp("redis"), request.param)
    yield server
    server.end()
