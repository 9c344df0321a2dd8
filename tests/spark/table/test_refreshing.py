"""What is held of a table follows the commits that come: to load it costs the more the more files it has."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from pyspark_weir import clock, ids
from pyspark_weir.errors import ArchiveError
from pyspark_weir.table import log
from pyspark_weir.table.cleaning import clean_log, vacuum
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.erasure import Erasure, accept_foreign, erase
from pyspark_weir.table.table import VACUUM_AGE_MS_MIN, ArchiveTable, EntryFilter
from tests.spark.table.making import Maker, key_of, numbered

A, B = key_of("a"), key_of('b"é%2F')


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    found = Maker(tmp_path / "archive")
    found.batch({A: ["1-0"]})
    return found


def merge(table: ArchiveTable) -> None:
    """All files of a day are one."""
    assert list(compact(table, CompactionRules(target_bytes=1 << 20)))


def take_first_commit(table: ArchiveTable) -> bytes:
    """The log begins too late then to be loaded."""
    first = Path(table.root.path(log.commit_name(0)))
    content = first.read_bytes()
    first.unlink()
    with pytest.raises(DeltaError):
        ArchiveTable.open(table.root)
    return content


def check_same(table: ArchiveTable) -> None:
    """What is held of a table is what is loaded."""
    fresh = ArchiveTable.open(table.root)
    assert (table.version, table.ranges(), table.columns) == (fresh.version, fresh.ranges(), fresh.columns)
    held, loaded = (one.adds(EntryFilter()).sort_by("path") for one in (table, fresh))
    assert held.schema == loaded.schema
    assert held.to_pylist() == loaded.to_pylist()


def test_commits_of_ours_are_read_and_nothing_else_is(maker: Maker) -> None:
    """Batches, one that changes files, and one that changes none."""
    table = ArchiveTable.open(maker.table.root)
    assert (len(table.files()), len(table.ranges())) == (1, 1)
    maker.batch({A: ["2-0"]})
    merge(maker.table)
    maker.batch({B: ["9223372036854775808-0"]})
    maker.table.close([B])
    take_first_commit(table)
    table.refresh()
    assert table.version == maker.table.version
    assert [(one.low.stream, one.rows) for one in table.files()] == [(A.stream, 2), (B.stream, 1)]
    assert table.closed() == {B}
    table.refresh()
    assert table.version == maker.table.version


def test_what_another_program_commits_is_loaded(maker: Maker) -> None:
    """Its actions may be of any form."""
    table = ArchiveTable.open(maker.table.root)
    DeltaTable(table.root.url).delete("id = '1-0'")
    first = take_first_commit(table)
    with pytest.raises(DeltaError):
        table.refresh()
    Path(table.root.path(log.commit_name(0))).write_bytes(first)
    table.refresh()
    assert not table.files()


def test_many_commits_are_not_followed_without_end(maker: Maker) -> None:
    """Each leaves a trace in memory, so the table is loaded again now and then."""
    table = ArchiveTable.open(maker.table.root)
    for number in range(2, 53):
        maker.batch({A: numbered(number, 1)})
    # Deltalake has stored a checkpoint by now.
    Path(table.root.path(log.LAST_CHECKPOINT)).unlink()
    for checkpoint in Path(table.root.path(log.FOLDER)).glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    take_first_commit(table)
    with pytest.raises(DeltaError):
        table.refresh()


@pytest.mark.parametrize("often", [True, False], ids=["at-each-step", "at-the-end"])
def test_what_is_followed_is_what_is_loaded(maker: Maker, *, often: bool) -> None:
    """Text that is escaped, no timestamps, files that come and go, other programs, a log that is cleaned."""
    table, root, days = ArchiveTable.open(maker.table.root), maker.table.root, numbered(10, 3, day=3)

    def look() -> None:
        if often:
            table.refresh()
            check_same(table)

    maker.batch({B: ["1-5", "18446744073709551615-18446744073709551615"], A: days})
    look()
    maker.batch({A: numbered(20, 2, day=3)})
    merge(maker.table)
    look()
    assert erase(maker.table, Erasure("a", ids=frozenset({ids.parse(days[0])}))).tallies
    look()
    DeltaTable(root.url).delete(f"id = '{days[1]}'")
    look()
    assert accept_foreign(maker.table)
    DeltaTable(root.url).alter.add_columns([Field("note", PrimitiveType("string"))])
    look()
    maker.batch({A: numbered(1, 2, day=4)})
    look()
    vacuum(maker.table)
    look()
    clean_log(maker.table, clock.wall_ms() + 2 * VACUUM_AGE_MS_MIN)
    look()
    maker.batch({A: numbered(1, 1, day=5)})
    table.refresh()
    check_same(table)


def test_what_follows_a_table_commits_to_it(maker: Maker) -> None:
    """As the next version of what it has followed."""
    other = Maker(maker.table.root, "other")
    for number in range(2, 8, 2):
        maker.batch({A: numbered(number, 1)})
        other.table.refresh()
        other.batch({A: numbered(number + 1, 1)})
        check_same(other.table)
        maker.table.refresh()
    assert sum(file.rows for file in maker.table.files()) == 7


def test_a_table_without_a_new_commit_stays(maker: Maker) -> None:
    """However often it is looked at."""
    table = ArchiveTable.open(maker.table.root)
    files = table.files()
    take_first_commit(table)
    for _ in range(3):
        table.refresh()
    assert table.files() == files


def test_another_archive_of_the_same_version_is_seen(maker: Maker, tmp_path: Path) -> None:
    """As when a folder was restored, or begun anew."""
    table = ArchiveTable.open(maker.table.root)
    other = Maker(tmp_path / "other")
    other.batch({B: ["1-0"]})
    folder = Path(maker.table.root.url)
    shutil.rmtree(folder)
    shutil.copytree(other.table.root.url, folder)
    table.refresh()
    assert (table.version, table.table_id) == (other.table.version, other.table.table_id)
    assert [file.low.stream for file in table.files()] == [B.stream]


def test_an_archive_that_is_gone_is_missed(maker: Maker) -> None:
    """And not taken for one without news."""
    table = ArchiveTable.open(maker.table.root)
    shutil.rmtree(maker.table.root.url)
    with pytest.raises(ArchiveError, match="holds no archive"):
        table.refresh()
