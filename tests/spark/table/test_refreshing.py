"""A table is loaded anew when there is something new, which costs the more the more files it has."""

import shutil
from pathlib import Path

import pytest

from pyspark_weir.errors import ArchiveError
from pyspark_weir.table.table import ArchiveTable
from tests.spark.table.making import Maker, key_of


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    found = Maker(tmp_path / "archive")
    found.batch({key_of("a"): ["1-0"]})
    return found


def test_a_table_without_a_new_commit_is_not_loaded_again(maker: Maker) -> None:
    """However often it is looked at; its files and ranges stay as they are known."""
    table = ArchiveTable.open(maker.table.root)
    loaded, files = table.delta, table.files()
    for _ in range(3):
        table.refresh()
    assert table.delta is loaded
    assert table.files() == files


def test_commits_of_others_are_seen_at_the_next_look(maker: Maker) -> None:
    """One, and several at once."""
    table = ArchiveTable.open(maker.table.root)
    for number in (1, 3):
        for _ in range(number):
            maker.batch({key_of("a"): [f"{maker.table.version + 1}-0"]})
        table.refresh()
        assert table.version == maker.table.version
        assert len(table.files()) == maker.table.version


def test_another_archive_of_the_same_version_is_seen(maker: Maker, tmp_path: Path) -> None:
    """As when a folder was restored, or begun anew."""
    table = ArchiveTable.open(maker.table.root)
    other = Maker(tmp_path / "other")
    other.batch({key_of("b"): ["1-0"]})
    folder = Path(maker.table.root.url)
    shutil.rmtree(folder)
    shutil.copytree(other.table.root.url, folder)
    table.refresh()
    assert (table.version, table.table_id) == (other.table.version, other.table.table_id)
    assert [file.low.stream for file in table.files()] == ["b"]


def test_an_archive_that_is_gone_is_missed(maker: Maker) -> None:
    """And not taken for one without news."""
    table = ArchiveTable.open(maker.table.root)
    shutil.rmtree(maker.table.root.url)
    with pytest.raises(ArchiveError, match="holds no archive"):
        table.refresh()
