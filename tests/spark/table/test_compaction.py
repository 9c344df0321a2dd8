"""Compaction: the same entries in fewer files, however many compact at once and whenever one is killed.

Knows: real tables, real processes. Must never know: how files are merged.
"""

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pyspark_weir.errors import ArchiveDamagedError, CommitConflictError
from pyspark_weir.table.compaction import CompactionRules, Merge, compact, merges
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable, EntryFilter
from tests.spark.table.making import DAY_MS, Maker, entries_in, key_of, numbered

A, B = key_of("a"), key_of("b")
_TARGET = 1 << 20


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "archive")


def compacted(table: ArchiveTable, rules: CompactionRules = CompactionRules()) -> int:  # noqa: B008 - it is frozen
    """Compact; how many commits that took."""
    return len(list(compact(table, rules)))


class TestWhatIsWritten:
    def test_small_files_of_a_day_become_one(self, maker: Maker) -> None:
        for number in range(4):
            maker.batch({A: numbered(1 + 10 * number, 10), B: numbered(1 + 10 * number, 10)})
        maker.batch({A: numbered(0, 3, day=1)})
        before = entries_in(maker.table)
        assert compacted(maker.table) == 1
        assert [(file.rows, str(file.date)) for file in maker.table.files()] == [
            (80, "1970-01-01"),
            (3, "1970-01-02"),
        ]
        assert entries_in(maker.table) == before
        assert set(before.values()) == {1}

    def test_nothing_is_left_to_do_the_second_time(self, maker: Maker) -> None:
        for number in range(3):
            maker.batch({A: numbered(1 + number, 1)})
        compacted(maker.table)
        version = maker.table.version
        assert compacted(maker.table) == 0
        assert maker.table.version == version

    def test_files_are_sorted_in_row_groups_that_can_be_skipped(self, maker: Maker) -> None:
        for number in range(3):
            maker.batch({B: numbered(1 + 9_000 * number, 9_000), A: numbered(1 + 9_000 * number, 9_000)})
        compacted(maker.table)
        (file,) = maker.table.files()
        found = pq.ParquetFile(maker.table.root.path(file.path))
        groups = [found.metadata.row_group(group).num_rows for group in range(found.num_row_groups)]
        assert groups == [10_000, 10_000, 10_000, 10_000, 10_000, 4_000]
        rows = found.read(["stream", "id_key"]).to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["stream"], row["id_key"]))
        assert found.metadata.row_group(0).column(0).has_offset_index

    def test_statistics_are_those_of_the_rows(self, maker: Maker) -> None:
        maker.batch({A: ["0-1", "5-0"]})
        maker.batch({B: ["7-0"]})
        compacted(maker.table)
        (file,) = maker.table.files()
        assert (file.low.stream, str(file.low.id)) == ("a", "0-1")
        assert (file.high.stream, str(file.high.id)) == ("b", "7-0")
        assert maker.table.files(EntryFilter(stream="c")) == []

    def test_ids_of_any_size_keep_their_order(self, maker: Maker) -> None:
        """Beyond what a bigint and a date hold."""
        edges = ["0-1", f"{(1 << 63) - 1}-0", f"{1 << 63}-0", f"{(1 << 64) - 1}-{(1 << 64) - 1}"]
        for one in edges:
            maker.batch({A: [one]})
        before = entries_in(maker.table)
        assert compacted(maker.table) == 1
        rows = [file.rows for file in maker.table.files()]
        assert rows == [1, 3]
        assert entries_in(maker.table) == before

    def test_entries_of_two_generations_both_stay(self, maker: Maker) -> None:
        """Under the very same IDs."""
        anew = key_of("a", "00000000000000bb")
        maker.batch({A: ["1-0", "2-0"]})
        maker.batch({anew: ["1-0", "2-0"]})
        compacted(maker.table)
        assert len(entries_in(maker.table)) == 4

    def test_a_large_whole_is_cut_in_even_parts(self, maker: Maker) -> None:
        """None of them so small that it is merged again."""
        for number in range(6):
            maker.batch({A: numbered(1 + 2_000 * number, 2_000)})
        size = sum(file.size for file in maker.table.files())
        before = entries_in(maker.table)
        compacted(maker.table, CompactionRules(target_bytes=size // 2))
        rows = [file.rows for file in maker.table.files()]
        assert len(rows) in (2, 3)
        assert max(rows) - min(rows) <= 1
        assert entries_in(maker.table) == before

    @pytest.mark.parametrize("memory_bytes", [256 << 20, 1])
    def test_what_another_program_has_rewritten_is_sorted(self, maker: Maker, memory_bytes: int) -> None:
        """A foreign OPTIMIZE puts the rows of files one behind the other, and names them as it likes."""
        for number in range(3):
            maker.batch({A: numbered(1 + 10 * number, 10), B: numbered(1 + 10 * number, 10)})
        before = entries_in(maker.table)
        DeltaTable(maker.table.root.url).optimize.compact()
        maker.batch({A: numbered(31, 10)})
        compacted(maker.table, CompactionRules(memory_bytes=memory_bytes))
        (file,) = maker.table.files()
        assert (file.rows, file.is_ours) == (70, True)
        rows = pq.read_table(maker.table.root.path(file.path), columns=["stream", "id_key"]).to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["stream"], row["id_key"]))
        found = entries_in(maker.table)
        assert len(found) == 70
        assert found >= before
        assert set(found.values()) == {1}

    def test_ranges_stay(self, maker: Maker) -> None:
        for number in range(3):
            maker.batch({A: numbered(1 + number, 1)}, upto={A: f"{1 + number}-7"})
        before = maker.table.ranges()
        compacted(maker.table)
        assert ArchiveTable.open(maker.table.root).ranges() == before


class TestWhatIsChosen:
    @staticmethod
    def files(maker: Maker, count: int) -> list[DataFile]:
        for number in range(count):
            maker.batch({A: numbered(1 + number, 1)})
        return maker.table.files()

    def test_a_file_of_half_the_target_stays(self, maker: Maker) -> None:
        """One byte less, and it is merged."""
        files = self.files(maker, 2)
        largest = max(file.size for file in files)
        assert merges(files, CompactionRules(target_bytes=2 * largest)) == []
        assert merges(files, CompactionRules(target_bytes=2 * largest + 2)) == [
            Merge(files[0].date, tuple(files))
        ]

    def test_memory_bounds_how_many_are_open(self, maker: Maker) -> None:
        """Two at least, or nothing would ever be merged."""
        files = self.files(maker, 6)
        need = 4 * max(file.size for file in files)
        assert [len(one.files) for one in merges(files, CompactionRules(memory_bytes=3 * need))] == [3, 3]
        assert [len(one.files) for one in merges(files, CompactionRules(memory_bytes=1))] == [2, 2, 2]

    def test_repeating_it_leaves_one_file(self, maker: Maker) -> None:
        self.files(maker, 7)
        compacted(maker.table, CompactionRules(memory_bytes=1))
        assert [file.rows for file in maker.table.files()] == [7]


class TestWhatIsRefused:
    def test_a_file_that_is_damaged(self, maker: Maker) -> None:
        """Nothing is changed then."""
        for number in range(2):
            maker.batch({A: numbered(1 + number, 1)})
        path = Path(maker.table.root.path(maker.table.files()[1].path))
        path.write_bytes(path.read_bytes()[:-9])
        version = maker.table.version
        with pytest.raises(ArchiveDamagedError, match="or no whole Parquet file"):
            compacted(maker.table)
        assert ArchiveTable.open(maker.table.root).version == version

    def test_a_file_with_other_rows_than_were_committed(self, maker: Maker) -> None:
        for number in range(2):
            maker.batch({A: numbered(1 + 2 * number, 2)})
        path = maker.table.root.path(maker.table.files()[1].path)
        pq.write_table(pq.read_table(path).slice(1), path)
        with pytest.raises(ArchiveDamagedError, match="has 1 rows, not 2"):
            compacted(maker.table)

    def test_a_replacement_of_what_is_replaced(self, maker: Maker) -> None:
        """The commit of a compaction that was overtaken."""
        for number in range(2):
            maker.batch({A: numbered(1 + number, 1)})
        stale, old = ArchiveTable.open(maker.table.root), maker.table.files()
        compacted(maker.table)
        with pytest.raises(CommitConflictError):
            stale.replace(old, maker.table.files())


# ---- processes


def started(*arguments: str) -> subprocess.Popen[str]:
    """A program that compacts or commits."""
    command = [sys.executable, "-m", "tests.spark.table.making", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def running(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Several of them at once; none outlives the block."""
    processes = [started(*one) for one in commands]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=60)


def ended(process: subprocess.Popen[str]) -> list[str]:
    """Wait; what it printed."""
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return printed.splitlines()


def test_two_compactions_and_two_archives_at_once(maker: Maker) -> None:
    """Every entry is there once, in the end and for each reader in between."""
    for number in range(40):
        maker.batch({A: numbered(1 + 10 * number, 10, day=number % 4 + 4 * (number // 4))})
    root = str(maker.table.root.url)
    compaction, writing = ("compact", root, str(_TARGET)), ("batches", root)
    commands = [compaction, compaction, (*writing, "q1", "x", "30"), (*writing, "q2", "y", "30")]
    with running(commands) as processes:
        reader = ArchiveTable.open(ArchiveRoot.of(root))
        while any(process.poll() is None for process in processes):
            found = entries_in(reader)
            assert set(found.values()) == {1}
            assert sum(1 for entry in found if entry[0] == "a") == 400
        for process in processes:
            ended(process)
    found = entries_in(maker.table)
    assert (len(found), set(found.values())) == (1_000, {1})
    assert sum(one.rows for one in maker.table.ranges()) == 1_000


def test_two_compactions_of_the_same_files(maker: Maker) -> None:
    """Each file is replaced once: the slower one finds nothing left to do."""
    for number in range(30):
        maker.batch({A: numbered(1 + 2_000 * number, 2_000)})
    commands = [("compact", maker.table.root.url, str(1 << 30))] * 2
    with running(commands) as processes:
        steps = [line for process in processes for line in ended(process)]
    assert steps == ["30 1"]
    assert set(entries_in(maker.table).values()) == {1}
    assert maker.table.files()[0].rows == 60_000


def test_a_compaction_killed_at_any_moment_changes_nothing(maker: Maker) -> None:
    """The next one does it."""
    for number in range(24):
        maker.batch({A: numbered(1 + 1_000 * number, 1_000), B: numbered(1 + 1_000 * number, 1_000)})
    before = entries_in(maker.table)
    dice = random.Random(7)
    for _kill in range(6):
        process = started("compact", maker.table.root.url, str(_TARGET))
        time.sleep(dice.uniform(0.3, 1.6))
        process.kill()
        process.communicate(timeout=60)
        assert entries_in(maker.table) == before
        maker.batch({A: numbered(100_000 + 10 * maker.number, 10)})
        before = entries_in(maker.table)
    compacted(maker.table)
    assert entries_in(maker.table) == before
    assert len(maker.table.files()) == 1


def test_days_are_apart(maker: Maker) -> None:
    """An entry of a day's last millisecond and one of the next day's first are never in one file."""
    maker.batch({A: [f"{DAY_MS - 1}-0", f"{DAY_MS}-0"]})
    maker.batch({A: [f"{DAY_MS}-1"]})
    compacted(maker.table)
    assert [(file.rows, str(file.date)) for file in maker.table.files()] == [
        (1, "1970-01-01"),
        (2, "1970-01-02"),
    ]
