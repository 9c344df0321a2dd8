"""The ranges of an archive: their cache, commits that are deleted, and the lock of who deletes.

Knows: the table's API, and where the cache is stored. Must never know: Spark.
"""

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_weir.errors import ArchiveDamagedError, ArchiveLockedError
from pyspark_weir.ids import EntryId
from pyspark_weir.table.cleaning import clean_log, writer_lock
from pyspark_weir.table.files import DataFile, write_files
from pyspark_weir.table.ranges import (
    BatchRanges,
    Range,
    Ranges,
    StreamKey,
    cache_name,
    cached_versions,
    gaps,
    read_cache,
)
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import id_key
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.spark.table.archiving import KEY, batch, rows_of

# After any file was written, by the wall clock.
_LATER_MS = 1 << 42


def _commit(table: ArchiveTable, first: int, end: int) -> None:
    """Batches of one entry each, `1-1` first; their files are one, which has many names."""
    [file] = write_files(table.root, rows_of(KEY, ["1-1"]))
    for number in range(first, end):
        named = _one(file, number)
        os.link(table.root.path(file.path), table.root.path(named.files[0].path))
        table.commit(named)


def _one(file: DataFile, number: int) -> Batch:
    after = EntryId(1, number) if number else EntryId(0, 0)
    key = id_key(EntryId(1, number + 1))
    named = replace(
        file,
        path=f"{Path(file.path).parent}/{number:032x}.parquet",
        low=replace(file.low, id_key=key),
        high=replace(file.high, id_key=key),
    )
    return Batch(BatchRanges("query-1", number, (Range(KEY, after, EntryId(1, number + 1), 1),)), (named,))


def _log(root: ArchiveRoot) -> list[Path]:
    return sorted(Path(root.path("_delta_log")).glob("0*.json"))


def test_a_cache_follows_every_tenth_commit(root: ArchiveRoot) -> None:
    """It holds what the commits say; of older caches one stays."""
    table = ArchiveTable.create(root)
    _commit(table, 0, 9)
    assert cached_versions(root) == []
    _commit(table, 9, 31)
    assert cached_versions(root) == [30, 20]
    found = read_cache(root, 30, str(table.delta.metadata().id))
    assert found is not None
    assert list(found) == [Range(KEY, EntryId(0, 0), EntryId(1, 30), 30)]
    assert found.queries == {"query-1": 29}


def test_what_is_closed_is_known_from_the_cache_too(root: ArchiveRoot) -> None:
    """Said once; not of a stream that the table does not hold."""
    table = ArchiveTable.create(root)
    _commit(table, 0, 1)
    other = StreamKey("g0", "other", "gen-1")
    for _ in range(2):
        table.close([KEY, other])
        assert table.version == 2
    table.checkpoint()
    clean_log(table, _LATER_MS, age_ms=0)
    cached = read_cache(root, 2, str(table.delta.metadata().id))
    assert cached is not None
    assert cached.closed == {KEY}
    assert ArchiveTable.open(root).closed() == {KEY}


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 8] ^= 1
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _newer(path: Path) -> None:
    """A table that was put back to an older copy, `_weir` not."""
    path.rename(path.with_name(Path(cache_name(99)).name))


def _misnamed(path: Path) -> None:
    path.rename(path.with_name(Path(cache_name(9)).name))


@pytest.mark.parametrize("spoil", [_torn, _changed, _empty, _newer, _misnamed, Path.unlink])
def test_a_cache_that_cannot_be_trusted_is_passed_over(
    root: ArchiveRoot, spoil: Callable[[Path], object]
) -> None:
    """The log says the same."""
    table = ArchiveTable.create(root)
    _commit(table, 0, 11)
    spoil(Path(root.path(cache_name(10))))
    again = ArchiveTable.open(root)
    assert again.ranges() == (Range(KEY, EntryId(0, 0), EntryId(1, 11), 11),)
    _commit(again, 11, 12)
    assert ArchiveTable.open(root).positions()["g0", "orders"].upto == EntryId(1, 12)


def test_the_cache_of_another_table_is_passed_over(root: ArchiveRoot, tmp_path: Path) -> None:
    other = ArchiveTable.create(ArchiveRoot.of(tmp_path / "other"))
    _commit(other, 0, 10)
    table = ArchiveTable.create(root)
    Path(root.path("_weir")).mkdir()
    stored = Path(other.root.path(cache_name(10))).read_bytes()
    for number in range(10):
        table.commit(batch(root, number, f"{number + 4}-0" if number else "0-0", [f"{number + 5}-0"]))
    Path(root.path(cache_name(10))).write_bytes(stored)
    assert ArchiveTable.open(root).positions()["g0", "orders"].upto == EntryId(14, 0)


def test_a_log_is_cleaned_of_what_checkpoint_and_ranges_hold(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    _commit(table, 0, 13)
    before = (table.ranges(), set(table.files()), table.version)
    assert clean_log(table, 0, age_ms=0) == 0, "all are younger"
    assert clean_log(table, _LATER_MS, age_ms=0) > 10
    assert [path.name for path in _log(root)] == [f"{version:020d}.json" for version in (11, 12, 13)]
    again = ArchiveTable.open(root)
    assert (again.ranges(), set(again.files()), again.version) == before
    # Both handles go on, and both know what was committed.
    for one in (table, again):
        [file] = write_files(root, rows_of(KEY, ["1-1"]))
        assert one.commit(_one(file, 12)).repeated
    _commit(table, 13, 15)
    _commit(again, 15, 17)
    assert ArchiveTable.open(root).ranges() == (Range(KEY, EntryId(0, 0), EntryId(1, 17), 17),)


def test_commits_that_no_cache_holds_are_missed(root: ArchiveRoot) -> None:
    """An archive whose ranges are not known does not say that it has none."""
    table = ArchiveTable.create(root)
    _commit(table, 0, 12)
    clean_log(table, _LATER_MS, age_ms=0)
    for version in cached_versions(root):
        Path(root.path(cache_name(version))).unlink()
    with pytest.raises(ArchiveDamagedError, match="is missing"):
        ArchiveTable.open(root).ranges()
    with pytest.raises(ArchiveDamagedError, match="is missing"):
        ArchiveTable.open(root).commit(batch(root, 12, "1-12", ["1-13"]))


def test_gaps_are_ranges_that_continue_nothing() -> None:
    one = Range(KEY, EntryId(0, 0), EntryId(5, 0), 1)
    assert gaps([one, Range(KEY, EntryId(5, 0), EntryId(6, 0), 1)]) == []
    lost = Range(KEY, EntryId(5, 1), EntryId(6, 0), 1)
    assert gaps([one, lost]) == [lost]
    late = Range(StreamKey("g0", "orders", "gen-2"), EntryId(0, 1), EntryId(5, 0), 1)
    assert gaps([one, late]) == [late]


@pytest.mark.parametrize(("seq", "is_joined"), [(0, False), (1, True), (2, False)])
def test_a_commit_is_joined_only_to_what_it_continues(seq: int, *, is_joined: bool) -> None:
    """Commits that overlap stay two ranges, so that verify reports them. No writer of Weir's makes such."""
    one = Range(KEY, EntryId(0, 0), EntryId(5, 1), 1)
    other = Range(KEY, EntryId(5, seq), EntryId(6, 0), 2)
    found = Ranges("table-1")
    for number, moved in enumerate((one, other)):
        found.fold(number, BatchRanges("query-1", number, (moved,)).metadata())
    assert list(found) == ([Range(KEY, EntryId(0, 0), EntryId(6, 0), 3)] if is_joined else [one, other])
    assert gaps(found) == ([] if is_joined else [other])


def test_where_a_stream_begins_stays_with_its_ranges(root: ArchiveRoot) -> None:
    """As its first batch says, through the cache too; of what an older version has met it is not known."""
    older = KEY._replace(stream="older")
    table = ArchiveTable.create(root)
    for number, key in enumerate((KEY, older)):
        files = write_files(root, rows_of(key, ["9-0"]))
        moved = (Range(key, EntryId(0, 0), EntryId(9, 0), 1),)
        begins = {KEY: EntryId(5, 2)} if key == KEY else {}
        table.commit(Batch(BatchRanges("query-1", number, moved, (), begins), files))
    later = BatchRanges(
        "query-1", 2, (Range(KEY, EntryId(9, 0), EntryId(10, 0), 0),), (), {KEY: EntryId(9, 0)}
    )
    table.commit(Batch(later, ()))
    assert table.begins() == {KEY: EntryId(5, 2)}
    table.checkpoint()
    cached = read_cache(root, table.version, str(table.delta.metadata().id))
    assert cached is not None
    assert cached.begins == {KEY: EntryId(5, 2)}
    assert ArchiveTable.open(root).begins() == {KEY: EntryId(5, 2)}


def test_commits_cost_the_same_after_many(root: ArchiveRoot) -> None:
    """What is read to open a table that is compacted and cleaned does not grow with its commits."""
    table = ArchiveTable.create(root)
    sizes, number = [], 0
    for _ in range(3):
        _commit(table, number, number + 19)
        number += 19
        old = table.files()
        rows = sum(file.rows for file in old)
        merged = replace(old[0], path=f"{old[0].path}-{number}", rows=rows)
        os.link(root.path(old[0].path), root.path(merged.path))
        # Long ago, so that Delta's checkpoints do not keep what was removed.
        table.replace(old, [merged], now_ms=0)
        clean_log(table, _LATER_MS, age_ms=0)
        log = list(Path(root.path("_delta_log")).iterdir())
        cached = Path(root.path(cache_name(table.version)))
        sizes.append((len(log), sum(path.stat().st_size for path in log), cached.stat().st_size))
        assert len(ArchiveTable.open(root).files()) == 1
    counts, logs, caches = zip(*sizes, strict=True)
    assert set(counts) == {counts[0]}
    # The compaction's commit names all files that it removes; nothing else is larger later.
    assert max(logs[1:]) < 1.05 * min(logs[1:])
    assert max(caches) < 1.05 * min(caches)


_read: list[int] = []


class _WatchedRoot(ArchiveRoot):
    """A root that notes which commits are read for their ranges."""

    def read(self, name: str) -> bytes | None:
        _read.append(int(Path(name).stem))
        return super().read(name)


def test_ranges_cost_the_same_after_many_commits(root: ArchiveRoot) -> None:
    """Trim, verify and a batch read the commits after the last cache, at most nine, each of them once.

    The last one is looked at besides whenever the table is loaded: a power cut may have cut it short. A
    commit follows those that have come since: it looks at the last one, and whether there is a next.
    """
    table = fresh = ArchiveTable.create(root)
    number = 0
    for count in (10, 11, 19, 20, 109):
        _commit(table, number, count)
        number = count
        _read.clear()
        fresh = ArchiveTable.open(_WatchedRoot(root.url))
        assert sum(one.rows for one in fresh.ranges()) == count
        assert fresh.positions()["g0", "orders"].upto == EntryId(1, count)
        assert _read == [count, *range(count // 10 * 10 + 1, count + 1)]
    _commit(fresh, number, number + 1)
    assert _read == [109, *range(101, 110), 109, 110, 109, 110, 111, 110]


def _hold(url: str, ready: "multiprocessing.synchronize.Event") -> None:
    with writer_lock(ArchiveRoot.of(url)):
        ready.set()
        multiprocessing.Event().wait()


def test_a_lock_ends_with_its_process(root: ArchiveRoot) -> None:
    table = ArchiveTable.create(root)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(root.url, ready))
    holder.start()
    try:
        assert ready.wait(60)
        with pytest.raises(ArchiveLockedError), writer_lock(root):
            pass
        # Batches need no lock.
        _commit(table, 0, 1)
    finally:
        holder.kill()
        holder.join()
    with writer_lock(root):
        pass
