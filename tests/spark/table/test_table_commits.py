"""Commits of an archive: each batch once, and only where it continues what the table holds.

Knows: the table's API. Must never know: Spark.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pyspark_weir.errors import ArchiveError, CommitConflictError, RangeConflictError, StaleFilesError
from pyspark_weir.ids import EntryId
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import ArchivePosition, BatchRanges, Range, StreamKey, gaps
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.spark.table.archiving import KEY, batch, moved, rows_of, stored_ids

_DAY_MS = 86_400_000


def test_files_that_a_foreign_vacuum_deleted_before_their_commit(tmp_path: Path) -> None:
    """It deletes all that no commit names; the table must not count on them."""
    root = ArchiveRoot.of(tmp_path / "archive")
    table = ArchiveTable.create(root)
    table.commit(batch(root, 0, "0-0", ["1-0"]))
    written = batch(root, 1, "1-0", ["2-0"])
    DeltaTable(root.url).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(StaleFilesError, match="another program's VACUUM"):
        table.commit(written)
    assert not table.commit(batch(root, 1, "1-0", ["2-0"])).repeated
    assert stored_ids(table) == ["1-0", "2-0"]


def test_a_table_takes_no_deletion_vectors(tmp_path: Path) -> None:
    """Rows that are only marked as deleted would come back."""
    table = ArchiveTable.create(ArchiveRoot.of(tmp_path / "archive"))
    assert table.delta.metadata().configuration["delta.enableDeletionVectors"] == "false"


def test_a_batch_is_committed_once(root: ArchiveRoot) -> None:
    """A repeat finds it, whether its files are the same ones or were written again."""
    table = ArchiveTable.create(root)
    first = batch(root, 0, "0-0", ["5-0", "5-1"])
    done = table.commit(first)
    assert not done.repeated
    assert table.commit(first).repeated
    assert ArchiveTable.open(root).commit(batch(root, 0, "0-0", ["5-0", "5-1"])).repeated
    assert table.version == done.version
    assert stored_ids(table) == ["5-0", "5-1"]


def test_the_next_batch_begins_where_the_table_ends(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    table.commit(batch(root, 0, "0-0", ["5-0", "5-1"]))
    table.commit(batch(root, 1, "5-1", ["5-2"]))
    assert stored_ids(table) == ["5-0", "5-1", "5-2"]
    assert table.ranges() == (Range(KEY, EntryId(0, 0), EntryId(5, 2), 3),)
    assert table.positions() == {("g0", "orders"): ArchivePosition("gen-1", EntryId(5, 2))}
    assert not gaps(table.ranges())


@pytest.mark.parametrize("after", ["0-0", "5-0", "5-2"])
def test_a_range_that_does_not_continue_the_table_is_refused(root: ArchiveRoot, after: str) -> None:
    """Neither before nor after the end, one beside it included."""
    table = ArchiveTable.create(root)
    table.commit(batch(root, 0, "0-0", ["5-0", "5-1"]))
    with pytest.raises(RangeConflictError, match="up to 5-1"):
        table.commit(batch(root, 1, after, ["5-3"]))
    assert stored_ids(table) == ["5-0", "5-1"]


def test_the_first_range_of_a_stream_begins_at_its_beginning(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    with pytest.raises(RangeConflictError, match="up to 0-0"):
        table.commit(batch(root, 0, "0-1", ["5-0"]))
    assert not table.files()


def test_a_lost_checkpoint_goes_on_from_the_ranges_of_the_table(root: ArchiveRoot) -> None:
    """A new query counts its batches from 0 again: the number alone says nothing."""
    table = ArchiveTable.create(root)
    table.commit(batch(root, 0, "0-0", ["5-0", "5-1"]))
    with pytest.raises(RangeConflictError):
        table.commit(batch(root, 0, "0-0", ["5-0", "5-1"], query="query-2"))
    upto = table.positions()["g0", "orders"].upto
    assert not table.commit(batch(root, 0, str(upto), ["5-2"], query="query-2")).repeated
    assert stored_ids(table) == ["5-0", "5-1", "5-2"]


def test_of_two_checkpoints_the_slower_is_refused(root: ArchiveRoot) -> None:
    """Both planned the same range; the one that is behind gets no entry in twice."""
    one, other = ArchiveTable.create(root), ArchiveTable.open(root)
    mine, theirs = (batch(root, 0, "0-0", ["5-0"], query=query) for query in ("query-1", "query-2"))
    one.commit(mine)
    with pytest.raises(RangeConflictError):
        other.commit(theirs)
    assert stored_ids(other) == ["5-0"]


def test_an_old_copy_of_a_checkpoint_is_refused(root: ArchiveRoot) -> None:
    """Its batch has a number that was committed, and another range: what is beyond it must not be skipped."""
    table = ArchiveTable.create(root)
    table.commit(batch(root, 0, "0-0", ["5-0"]))
    table.commit(batch(root, 1, "5-0", ["5-1"]))
    assert table.commit(batch(root, 0, "0-0", ["5-0"])).repeated
    with pytest.raises(RangeConflictError, match="older copy"):
        table.commit(batch(root, 1, "5-0", ["5-1", "5-2"]))
    assert stored_ids(table) == ["5-0", "5-1"]


def test_a_stream_made_anew_has_ranges_of_its_own(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    table.commit(batch(root, 0, "0-0", ["5-0"]))
    anew = StreamKey("g0", "orders", "gen-2")
    table.commit(batch(root, 1, "0-0", ["3-0"], key=anew))
    assert table.positions() == {("g0", "orders"): ArchivePosition("gen-2", EntryId(3, 0))}
    assert {one.key: one.upto for one in table.ranges()} == {KEY: EntryId(5, 0), anew: EntryId(3, 0)}


def test_a_range_whose_entries_were_all_deleted_is_committed(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    empty = Batch(BatchRanges("query-1", 0, (Range(KEY, EntryId(0, 0), EntryId(5, 0), 0),)), ())
    assert not table.commit(empty).repeated
    assert table.commit(empty).repeated
    table.commit(batch(root, 1, "5-0", ["5-1"]))
    assert table.ranges() == (Range(KEY, EntryId(0, 0), EntryId(5, 1), 1),)


def test_streams_move_in_one_batch_each_for_itself(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    keys = [StreamKey("g0", name, "gen") for name in ("a", "b")]
    files = [write_files(root, rows_of(key, ["5-0", "6-0"])) for key in keys]
    ranges = tuple(moved(key, "0-0", ["5-0", "6-0"]) for key in keys)
    table.commit(Batch(BatchRanges("query-1", 0, ranges), (*files[0], *files[1])))
    assert [file.low.stream for file in table.files()] == ["a", "b"]
    table.commit(batch(root, 1, "6-0", ["7-0"], key=keys[1]))
    assert table.positions()["g0", "a"].upto == EntryId(6, 0)
    assert table.positions()["g0", "b"].upto == EntryId(7, 0)


def test_files_that_do_not_hold_what_the_ranges_count_are_refused(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    files = write_files(root, rows_of(KEY, ["5-0", "5-1"]))
    for wrong in (
        Range(KEY, EntryId(0, 0), EntryId(5, 1), 3),
        Range(KEY, EntryId(0, 0), EntryId(5, 0), 2),
        Range(KEY, EntryId(5, 0), EntryId(5, 1), 2),
    ):
        with pytest.raises(ArchiveError):
            table.commit(Batch(BatchRanges("query-1", 0, (wrong,)), files))
    assert table.version == 0


def test_files_that_vacuum_may_soon_delete_are_written_again(root: ArchiveRoot) -> None:
    """The limit is half of vacuum's seven days."""
    table = ArchiveTable.create(root)
    files = write_files(root, rows_of(KEY, ["5-0"]), now_ms=0)
    late = Batch(BatchRanges("query-1", 0, (moved(KEY, "0-0", ["5-0"]),)), files)
    with pytest.raises(StaleFilesError):
        table.commit(late, now_ms=7 * _DAY_MS // 2 + 1)
    assert not table.commit(late, now_ms=7 * _DAY_MS // 2).repeated
    # A repeat writes nothing: however old its files are.
    assert table.commit(late, now_ms=8 * _DAY_MS).repeated


def test_a_stale_handle_looks_again_before_it_commits(root: ArchiveRoot) -> None:
    ahead, behind = ArchiveTable.create(root), ArchiveTable.open(root)
    ahead.commit(batch(root, 0, "0-0", ["5-0"]))
    assert behind.version == 0
    behind.commit(batch(root, 1, "5-0", ["5-1"]))
    ahead.refresh()
    assert stored_ids(ahead) == ["5-0", "5-1"]


def test_writers_in_threads_lose_nothing_and_write_nothing_twice(root: ArchiveRoot) -> None:
    """Four run the same batches under one query, each with files of its own: one commits, others see it."""
    ArchiveTable.create(root)
    results: list[bool] = []
    errors: list[BaseException] = []
    ready = threading.Barrier(4)

    def write() -> None:
        try:
            table = ArchiveTable.open(root)
            ready.wait()
            for number in range(5):
                after = "0-0" if number == 0 else f"{number}-0"
                results.append(table.commit(batch(root, number, after, [f"{number + 1}-0"])).repeated)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert results.count(False) == 5
    assert stored_ids(ArchiveTable.open(root)) == [f"{number + 1}-0" for number in range(5)]


def test_writers_of_different_streams_all_get_in(root: ArchiveRoot) -> None:
    ArchiveTable.create(root)
    errors: list[BaseException] = []
    ready = threading.Barrier(4)

    def write(name: str) -> None:
        try:
            table, key = ArchiveTable.open(root), StreamKey("g0", name, "gen")
            ready.wait()
            for number in range(5):
                after = "0-0" if number == 0 else f"{number}-0"
                table.commit(batch(root, number, after, [f"{number + 1}-0"], key=key, query=name))
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    table = ArchiveTable.open(root)
    assert {one.key.stream: one.rows for one in table.ranges()} == dict.fromkeys("abcd", 5)
    assert len(stored_ids(table)) == 20


def test_replacing_files_changes_no_entry_and_no_range(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    table.commit(batch(root, 0, "0-0", ["5-0"]))
    table.commit(batch(root, 1, "5-0", ["5-1"]))
    small = table.files()
    large = write_files(root, rows_of(KEY, ["5-0", "5-1"]))
    table.replace(small, large)
    assert [file.path for file in table.files()] == [large[0].path]
    assert table.ranges() == (Range(KEY, EntryId(0, 0), EntryId(5, 1), 2),)
    again = write_files(root, rows_of(KEY, ["5-0", "5-1"]))
    with pytest.raises(CommitConflictError):
        ArchiveTable.open(root).replace(small, again)
    with pytest.raises(ArchiveError, match="more or fewer"):
        table.replace(large, write_files(root, rows_of(KEY, ["5-0"])))
    assert stored_ids(ArchiveTable.open(root)) == ["5-0", "5-1"]


def test_a_table_is_created_once(root: ArchiveRoot) -> None:
    """Not once more by a second writer, as version 1 with another identity."""
    for number in range(5):
        own = ArchiveRoot.of(f"{root.url}-{number}")
        ready = threading.Barrier(4)

        def create(own: ArchiveRoot = own, ready: threading.Barrier = ready) -> ArchiveTable:
            ready.wait()
            return ArchiveTable.create(own)

        with ThreadPoolExecutor() as pool:
            found = [one.result() for one in [pool.submit(create) for _ in range(4)]]
        assert [table.version for table in found] == [0] * 4


@pytest.mark.parametrize("name", ["notes.txt", "data/part-0.parquet"])
def test_a_folder_with_other_files_becomes_no_archive(root: ArchiveRoot, name: str) -> None:
    """Vacuum would delete them after seven days."""
    root.replace(name, b"mine")
    with pytest.raises(ArchiveError, match="give an archive a new folder"):
        ArchiveTable.create(root)
    assert not ArchiveTable.exists(root)


def test_a_folder_with_names_that_vacuum_passes_over_becomes_one(root: ArchiveRoot) -> None:
    root.replace(".hidden", b"mine")
    root.replace("_own/notes.txt", b"mine")
    assert ArchiveTable.create(root).version == 0


def test_files_beside_a_table_keep_it_from_nothing(root: ArchiveRoot) -> None:
    ArchiveTable.create(root).commit(batch(root, 0, "0-0", ["5-0"]))
    root.replace("notes.txt", b"mine")
    assert ArchiveTable.create(root).version == 1


def test_where_no_archive_is_none_is_opened(root: ArchiveRoot) -> None:
    with pytest.raises(ArchiveError, match="no archive"):
        ArchiveTable.open(root)
    assert not Path(root.url).exists()
