"""Clients that leave while their group's read waits, over a server as the engine."""

from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from tests.app.leaving import DOORS, House
from tests.cluster.servers import BackendServer
from tests.server import Server

ROUNDS: Final = 8


@pytest.mark.parametrize("door", DOORS)
def test_no_entry_is_lost_to_a_client_that_has_left(server: BackendServer, tmp_path: Path, door: str) -> None:
    """Each is new to the next consumer, as if nobody had waited before."""
    with (
        Server(tmp_path / "data", "--backend", server.url, "--set", "log_requests=none") as gateway,
        closing(House(gateway.port)) as house,
    ):
        assert house.lost(door, ROUNDS) == 0
