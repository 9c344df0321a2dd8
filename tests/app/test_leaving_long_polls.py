"""A client that leaves while its long-poll waits, and an entry that comes at once: it is for others."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.app.leaving import DOORS, House
from tests.server import Server

ROUNDS = 10


# Behind fronts a client's may be another one than the publisher's: then the entry was delivered, and that is
# undone.
SERVERS = (("--fsync", "everysec"), ("--fsync", "always"), ("--fronts", "2"))


@pytest.fixture(scope="module", params=SERVERS, ids=lambda words: words[-1])
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("leaving")
    with (
        Server(directory / "data", *request.param, "--set", "log_requests=none") as server,
        closing(House(server.port)) as house,
    ):
        yield house
        log = server.data.with_name(f"{server.data.name}.log").read_text()
        assert '"level":"error"' not in log


@pytest.mark.parametrize("door", DOORS)
def test_no_entry_is_lost_to_a_client_that_has_left(house: House, door: str) -> None:
    """Each is new to the next consumer, as if nobody had waited before."""
    assert house.lost(door, ROUNDS) == 0
