"""What clients behind fronts leave behind: the same as with one process."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.app.leaving import DOORS, House
from tests.fronts.processes import Fronted

ROUNDS = 10


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("leaving")
    with (
        Fronted(directory / "data", "--set", "log_requests=none") as server,
        closing(House(server.port)) as house,
    ):
        yield house


@pytest.mark.parametrize("door", DOORS)
def test_no_entry_is_lost_to_a_client_that_has_left(house: House, door: str) -> None:
    """Its front and the publisher's may be two: then the entry was delivered, and that is undone."""
    assert house.lost(door, ROUNDS) == 0
