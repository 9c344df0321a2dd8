"""An archive's root in a folder of the test's own."""

from pathlib import Path

import pytest

from pyspark_weir.table.root import ArchiveRoot


@pytest.fixture
def root(tmp_path: Path) -> ArchiveRoot:
    """A root where nothing is yet."""
    return ArchiveRoot.of(tmp_path / "archive")
