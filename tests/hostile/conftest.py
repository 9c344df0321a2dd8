"""Gateways that are attacked: real processes on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.peers import ask_json
from tests.server import Server, server_of

# How long a reader may take nothing.
STALL_S = 0.4
IMPATIENT = ("--set", "request_s_max=1", "--set", f"stall_s_max={STALL_S}", "--set", "keep_alive_s=1")


# One for the attacks of a file, with little patience.
server = server_of("module", *IMPATIENT)


@pytest.fixture
def untouched(server: Server) -> Iterator[Server]:
    """A server on which an attack has to leave nothing at all, and which has to serve on."""
    assert ask_json(server.port, "POST", "/v1/commands", ["FLUSHALL"]).status == 200
    yield server
    assert ask_json(server.port, "POST", "/v1/commands", ["DBSIZE"]).json() == {"result": 0}


def log_of(server: Server) -> Path:
    """What the process wrote."""
    return server.data.with_name(f"{server.data.name}.log")
