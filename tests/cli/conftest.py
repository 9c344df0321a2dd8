"""One gateway for all tests of the command line; each test takes streams of its own.

Knows: when it starts and stops. Must never know: what a test does with it.
"""

import re
from collections.abc import Iterator

import pytest

from tests.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running gateway; who kills one takes one of his own."""
    # Tests compare streams of 20 000 entries whole, in one answer.
    with Server(tmp_path_factory.mktemp("cli") / "data", "--set", "count_max=20000") as running:
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
