"""What the engine's tests share."""

from collections.abc import Iterator

import pytest

from tests.engine.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """An empty world. At the end everything agrees with itself, and nothing would be lost by a restart."""
    world = World()
    yield world
    world.check()
