"""Vacuum and the cleaning of the log: what anybody may need stays, the rest goes.

Knows: real tables, and how a file is made old. Must never know: how the log is laid out, but for its folder.
"""

import os
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from pyspark_weir import clock
from pyspark_weir.errors import ArchiveDamagedError, ArchiveLockedError, OptionError, StaleFilesError
from pyspark_weir.table import ranges as range_cache
from pyspark_weir.table.cleaning import clean_log, vacuum, writer_lock
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import VACUUM_AGE_MS_MIN, ArchiveTable, Batch
from tests.spark.table.making import Maker, entries_in, key_of, numbered, rows_of

A: Final = key_of("a")
_HOUR_S: Final = 3_600
_WEEK_S: Final = 7 * 24 * _HOUR_S


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    found = Maker(tmp_path / "archive")
    for number in range(25):
        found.batch({A: numbered(1 + number, 1)})
    return found


def folder(maker: Maker) -> Path:
    """The archive's."""
    return Path(maker.table.root.url)


def aged(path: Path, seconds: float) -> None:
    """Make a file look as if it had been written then."""
    then = clock.wall_ms() / 1_000 - seconds
    os.utime(path, (then, then))


def parquet_files(maker: Maker) -> set[str]:
    """All that are stored."""
    return {str(path.relative_to(folder(maker))) for path in folder(maker).glob("date=*/*.parquet")}


def commits(maker: Maker) -> list[int]:
    """The versions whose commits are stored."""
    return sorted(int(path.stem) for path in (folder(maker) / "_delta_log").glob("*.json"))


@pytest.fixture
def stray(maker: Maker) -> Path:
    """A file of a batch that never was committed."""
    (file,) = write_files(maker.table.root, rows_of(A, ["7000-0"]))
    return folder(maker) / file.path


class TestVacuum:
    def test_what_no_commit_names_goes_when_it_is_old(self, maker: Maker, stray: Path) -> None:
        aged(stray, _WEEK_S - _HOUR_S)
        assert vacuum(maker.table) == []
        aged(stray, _WEEK_S + _HOUR_S)
        assert vacuum(maker.table, dry_run=True) == [str(stray.relative_to(folder(maker)))]
        assert stray.exists()
        assert vacuum(maker.table) == [str(stray.relative_to(folder(maker)))]
        assert not stray.exists()

    def test_an_hour_that_has_begun_is_kept_whole(self, maker: Maker, stray: Path) -> None:
        """Delta counts in hours: one millisecond above a week is an hour more."""
        aged(stray, _WEEK_S + _HOUR_S / 2)
        assert vacuum(maker.table, VACUUM_AGE_MS_MIN + 1) == []
        assert vacuum(maker.table, VACUUM_AGE_MS_MIN) == [str(stray.relative_to(folder(maker)))]

    def test_what_counts_stays_however_old_it_is(self, maker: Maker) -> None:
        for path in folder(maker).rglob("*.parquet"):
            aged(path, 10 * _WEEK_S)
        before = entries_in(maker.table)
        assert vacuum(maker.table) == []
        assert entries_in(maker.table) == before

    def test_what_was_replaced_just_now_stays(self, maker: Maker) -> None:
        """Though it was written long ago: a reader may have the version before open."""
        for path in folder(maker).glob("date=*/*.parquet"):
            aged(path, 10 * _WEEK_S)
        older = ArchiveTable.open(maker.table.root)
        before = {file.path for file in older.files()}
        list(compact(maker.table, CompactionRules()))
        assert vacuum(maker.table) == []
        assert before <= parquet_files(maker)

    def test_ranges_stay(self, maker: Maker) -> None:
        for path in (folder(maker) / "_weir").iterdir():
            aged(path, 10 * _WEEK_S)
        before = maker.table.ranges()
        vacuum(maker.table)
        assert range_cache.cached_versions(maker.table.root)
        assert ArchiveTable.open(maker.table.root).ranges() == before

    def test_less_than_a_week_is_refused(self, maker: Maker) -> None:
        with pytest.raises(OptionError, match="seven days"):
            vacuum(maker.table, VACUUM_AGE_MS_MIN - 1)

    def test_a_compaction_as_old_as_half_of_it_is_refused(self, maker: Maker) -> None:
        """One millisecond younger, and it is committed."""
        table = maker.table
        old, (new,) = table.files(), write_files(table.root, rows_of(A, numbered(1, 25)))
        with pytest.raises(StaleFilesError):
            table.replace(old, [new], new.written_ms + VACUUM_AGE_MS_MIN // 2 + 1)
        table.replace(old, [new], new.written_ms + VACUUM_AGE_MS_MIN // 2)
        assert [file.path for file in table.files()] == [new.path]

    def test_a_batch_as_old_as_that_is_refused(self, maker: Maker) -> None:
        (new,) = write_files(maker.table.root, rows_of(A, ["26-0"]))
        position = maker.table.positions()["g0", "a"]
        moved = BatchRanges("query", 25, (Range(A, position.upto, position.upto._replace(ms=26), 1),))
        with pytest.raises(StaleFilesError):
            maker.table.commit(Batch(moved, (new,)), new.written_ms + VACUUM_AGE_MS_MIN // 2 + 1)
        assert not maker.table.commit(Batch(moved, (new,)), new.written_ms + 1).repeated


class TestLock:
    def test_one_at_a_time(self, maker: Maker) -> None:
        """What deletes waits for nothing: it is refused while another process works, and works afterwards."""
        with writer_lock(maker.table.root):
            other = ArchiveTable.open(maker.table.root)
            with pytest.raises(ArchiveLockedError):
                vacuum(other)
            with pytest.raises(ArchiveLockedError):
                clean_log(other, clock.wall_ms())
        assert vacuum(maker.table) == []


class TestLog:
    @staticmethod
    def age_log(maker: Maker, seconds: float) -> None:
        for path in (folder(maker) / "_delta_log").iterdir():
            aged(path, seconds)

    def test_old_commits_go_and_nothing_is_forgotten(self, maker: Maker) -> None:
        self.age_log(maker, _WEEK_S + _HOUR_S)
        ranges, entries = maker.table.ranges(), entries_in(maker.table)
        assert clean_log(maker.table, clock.wall_ms()) > 20
        assert commits(maker) == [21, 22, 23, 24, 25]
        fresh = ArchiveTable.open(maker.table.root)
        assert fresh.ranges() == ranges
        assert entries_in(fresh) == entries
        maker.batch({A: numbered(100, 1)})
        assert sum(one.rows for one in ArchiveTable.open(maker.table.root).ranges()) == 26

    def test_an_archive_without_its_first_commit_goes_on(self, maker: Maker) -> None:
        """The archive job creates its table before each batch, unless there is one."""
        self.age_log(maker, _WEEK_S + _HOUR_S)
        ranges = maker.table.ranges()
        clean_log(maker.table, clock.wall_ms())
        assert 0 not in commits(maker)
        assert ArchiveTable.create(maker.table.root).ranges() == ranges

    def test_young_commits_stay(self, maker: Maker) -> None:
        self.age_log(maker, _WEEK_S - _HOUR_S)
        assert clean_log(maker.table, clock.wall_ms()) == 0
        assert commits(maker) == list(range(26))

    def test_a_cache_that_is_damaged_later_loses_nothing(self, maker: Maker) -> None:
        """The one before it, and the commits since, say the same."""
        self.age_log(maker, _WEEK_S + _HOUR_S)
        ranges = maker.table.ranges()
        clean_log(maker.table, clock.wall_ms())
        newest = range_cache.cached_versions(maker.table.root)[0]
        path = folder(maker) / range_cache.cache_name(newest)
        path.write_bytes(path.read_bytes()[:-1])
        assert ArchiveTable.open(maker.table.root).ranges() == ranges

    def test_nothing_goes_while_only_one_cache_is_whole(self, maker: Maker) -> None:
        self.age_log(maker, _WEEK_S + _HOUR_S)
        for version in range_cache.cached_versions(maker.table.root):
            (folder(maker) / range_cache.cache_name(version)).write_bytes(b"PAR1")
        assert clean_log(maker.table, clock.wall_ms()) == 0
        assert commits(maker) == list(range(26))

    def test_a_cache_that_tells_something_else_stops_it(self, maker: Maker) -> None:
        """As a whole file, with one entry fewer."""
        self.age_log(maker, _WEEK_S + _HOUR_S)
        path = folder(maker) / range_cache.cache_name(range_cache.cached_versions(maker.table.root)[0])
        stored = pq.read_table(path)
        rows = [{**row, "rows": row["rows"] - 1} for row in stored.to_pylist()]
        pq.write_table(stored.from_pylist(rows, stored.schema), path)
        with pytest.raises(ArchiveDamagedError, match="disagree"):
            clean_log(ArchiveTable.open(ArchiveRoot.of(folder(maker))), clock.wall_ms())
        assert commits(maker) == list(range(26))
