"""One gateway for all tests of the command line, and a Redis; each test takes streams of its own.

Knows: when they start and stop. Must never know: what a test does with them.
"""

import re
from collections.abc import Iterator

import pytest

from tests.cluster.servers import BackendServer
from tests.server import Server, server_of

# A running gateway; who kills one takes one of his own.
# Tests compare streams of 20 000 entries whole, in one answer.
server = server_of("session", "--set", "count_max=20000")


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendServer]:
    """A Redis."""
    with BackendServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def url(server: Server) -> str:
    """Where it is."""
    return server.url


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, with what names may have: a colon, a blank, a letter beyond ASCII."""
    # Tests in two files may have one name, and share a gateway.
    name = f"{request.node.path.stem} {request.node.name}"
    return f"cli:ü {re.sub(r'[^a-z0-9_]', '-', name.lower())}"
