"""One gateway for the tests of the Python client; a test that kills one takes one of its own."""

import re
from collections.abc import Iterator

import pytest

from tests.cluster.clusters import backend_of_tests, server_words
from tests.held import pytest_runtest_call, pytest_runtest_teardown  # noqa: F401 - hooks of pytest
from tests.server import Server


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running gateway, over the backend that the option names."""
    directory = tmp_path_factory.mktemp("client")
    with (
        backend_of_tests(directory / "backend", request.config.getoption("--backend")) as backend,
        Server(directory / "data", *server_words(backend)) as running,
    ):
        yield running


@pytest.fixture
def url(server: Server) -> str:
    """Where it is."""
    return server.url


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, with characters that need encoding."""
    return f"client/ü +{re.sub(r'[^a-z0-9_]', '-', request.node.name.lower())}"
