"""What the tests of documents share.

Knows: how to start a gateway. Must never know: what a document says.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A gateway of one's own."""
    with Server(tmp_path / "weir-data") as server:
        yield server
