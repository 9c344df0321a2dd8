"""An archive of many commits is opened and written as one of few; `tests.spark.growth` measures it by hand.

Knows: archives whose commits are simulated. Must never know: times.
"""

import subprocess
import sys
from pathlib import Path

from pyspark_weir.table import log
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable
from tests.spark.growth import append, build
from tests.spark.table.making import key_of

_ROWS = 4_000
_read: list[str] = []


class _WatchedRoot(ArchiveRoot):
    """A root that notes what is read of it."""

    def read(self, name: str) -> bytes | None:
        _read.append(name)
        return super().read(name)


def _cost(root: ArchiveRoot, commits: int) -> tuple[int, int]:
    """The commits that opening and a batch read, and the size of the checkpoint."""
    built = build(root, key_of("a"), _ROWS, commits)
    checkpoint = root.size(log.checkpoint_name(built.version))
    assert checkpoint is not None
    _read.clear()
    table = ArchiveTable.open(_WatchedRoot(root.url))
    assert [(one.rows, str(one.upto)) for one in table.ranges()] == [(_ROWS, f"{_ROWS}-0")]
    append(table)
    assert sum(one.rows for one in ArchiveTable.open(root).ranges()) == _ROWS + 1
    return len(_read), checkpoint


def test_many_commits_cost_what_few_do(tmp_path: Path) -> None:
    """Of the log the last commits are read, and a checkpoint has what counts."""
    few, many = (_cost(ArchiveRoot.of(tmp_path / str(commits)), commits) for commits in (40, 4_000))
    assert many[0] == few[0]
    assert many[1] < 1.2 * few[1]


def _peak_mib(root: ArchiveRoot, commits: int) -> float:
    """The peak memory of a process that works on an archive of this many commits."""
    build(root, key_of("a"), _ROWS, commits)
    command = [sys.executable, "-m", "tests.spark.growth", "memory", root.url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(said.removeprefix("memory "))


def test_many_commits_need_the_memory_of_few(tmp_path: Path) -> None:
    """Ranges are joined, and of files only those are kept that count: 4,000 commits are nowhere in memory."""
    few, many = (_peak_mib(ArchiveRoot.of(tmp_path / str(commits)), commits) for commits in (40, 4_000))
    assert many < few + 10
