"""An archive in a folder, and the service that reads it, as a process.

Knows: how the service is started. Must never know: what is tested.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.history.served import Served
from tests.spark.archive_tables import Maker


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    """Of an empty archive."""
    return Maker(tmp_path / "archive")


@pytest.fixture
def serve(maker: Maker) -> Iterator[Callable[..., Served]]:
    """Starts a service of the archive; it ends with the test."""
    begun: list[Served] = []

    def start(*flags: str) -> Served:
        begun.append(Served(maker.root.url, *flags))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()
