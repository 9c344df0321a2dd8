"""Which files of an archive a query opens: those whose statistics a filter leaves, seen without Java."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pyspark_weir import ids
from pyspark_weir.jobs.archived import ArchiveReader, FilesPartition
from pyspark_weir.table import deletions
from pyspark_weir.table.ranges import StreamKey
from tests.spark.archive_tables import FIELDS, GATEWAY, GENERATION, Maker

DAY_MS = 86_400_000
# By file: stream and IDs. `z` is of one partition with all entries that have no timestamp.
STORED = {
    "a1": ("a", ["0-1", "2-0"]),
    "a2": ("a", [f"{DAY_MS}-0", f"{DAY_MS}-1"]),
    "b1": ("b", [f"{DAY_MS}-1", f"{DAY_MS + 5}-0"]),
    "z": ("z", [f"{ids.BIGINT_MAX}-0", f"{ids.HALF_MAX}-{ids.HALF_MAX}"]),
}


def key(ms: int, seq: int = 0) -> str:
    return f"{ms:016x}{seq:016x}"


def at(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Maker, dict[Path, str]]:
    maker = Maker(tmp_path_factory.mktemp("archive"))
    files = {file: name for name, (stream, own) in STORED.items() for file in maker.batch({stream: own})}
    return maker, files


@pytest.mark.parametrize(
    ("filters", "opened", "rows"),
    [
        ([], "a1 a2 b1 z", 8),
        ([EqualTo(("stream",), "a")], "a1 a2", 4),
        ([EqualNullSafe(("stream",), "a")], "a1 a2", 4),
        ([In(("stream",), ("b", "c"))], "b1", 2),
        ([EqualTo(("stream",), "aa")], "", 0),
        ([EqualTo(("gateway",), "g1")], "", 0),
        ([EqualTo(("generation",), "ff")], "", 0),
        ([GreaterThan(("id_key",), key(DAY_MS, 1))], "b1 z", 3),
        ([GreaterThanOrEqual(("id_key",), key(DAY_MS, 1))], "a2 b1 z", 5),
        ([LessThan(("id_key",), key(DAY_MS))], "a1", 2),
        ([LessThanOrEqual(("id_key",), key(DAY_MS))], "a1 a2", 3),
        ([EqualTo(("id",), "2-0")], "a1", 1),
        ([In(("id",), ("2-0", f"{DAY_MS}-1"))], "a1 a2 b1", 3),
        ([EqualTo(("id",), "no ID")], "a1 a2 b1 z", 8),
        ([EqualTo(("ms",), 2)], "a1", 1),
        ([In(("ms",), (2, DAY_MS))], "a1 a2 b1", 4),
        ([GreaterThan(("ms",), DAY_MS)], "b1 z", 3),
        ([GreaterThanOrEqual(("ms",), DAY_MS)], "a2 b1 z", 6),
        ([LessThan(("ms",), 2)], "a1", 1),
        ([LessThan(("ms",), -5)], "", 0),
        ([LessThanOrEqual(("ms",), 2)], "a1", 2),
        ([GreaterThanOrEqual(("ms",), ids.BIGINT_MAX)], "z", 2),
        ([GreaterThanOrEqual(("ts",), at(DAY_MS))], "a2 b1", 4),
        ([GreaterThan(("ts",), at(DAY_MS))], "b1", 1),
        ([LessThan(("ts",), at(DAY_MS))], "a1", 2),
        ([LessThanOrEqual(("ts",), at(DAY_MS + 0.5))], "a1 a2 b1", 5),
        ([EqualTo(("date",), date(1970, 1, 2))], "a2 b1", 4),
        ([LessThan(("date",), date(1970, 1, 2))], "a1", 2),
        ([EqualTo(("stream",), "a"), GreaterThan(("ms",), 2)], "a2", 2),
        # What is not understood narrows nothing: Spark looks at each row again.
        ([Not(EqualTo(("stream",), "a")), IsNull(("ts",)), EqualTo(("seq",), 0)], "a1 a2 b1 z", 8),
        ([EqualTo(("ts",), None), EqualTo(("ms",), 2.5), EqualTo(("fields", "name"), "n")], "a1 a2 b1 z", 8),
    ],
)
def test_a_filter_leaves_the_files_that_may_have_such_rows(
    filters: list[Filter], opened: str, rows: int, archive: tuple[Maker, dict[Path, str]]
) -> None:
    """And of these the rows that it means; every filter goes back to Spark."""
    maker, names = archive
    reader = ArchiveReader(maker.root, maker.table.version)
    assert list(reader.pushFilters(filters)) == filters
    parts = reader.partitions()
    files = [Path(maker.root.path(file.path)) for part in parts for file in files_of(part)]
    assert sorted(names[file] for file in files) == opened.split()
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == rows


def test_a_reader_stays_at_its_version(archive: tuple[Maker, dict[Path, str]]) -> None:
    """Files that were added later are not in it."""
    maker, _names = archive
    reader = ArchiveReader(maker.root, 2)
    assert [file.rows for part in reader.partitions() for file in files_of(part)] == [2, 2]


def test_a_reader_leaves_out_the_deletions_of_a_version(tmp_path: Path) -> None:
    """Of a stream and generation each for itself, in the order of the file; later ones are not in it."""
    maker = Maker(tmp_path)
    for generation in (GENERATION, "ff"):
        maker.batch({name: ["5-0", "5-1", "5-2"] for name in ("a", "b")}, generation=generation)
    key = StreamKey(GATEWAY, "a", GENERATION)
    deletions.record(maker.root, {}, {key: [ids.parse("5-1"), ids.parse("5-3")]})
    recorded = deletions.version(maker.root)
    deletions.record(maker.root, {}, {key: [ids.parse("5-2")]})

    def read(dropped: int | None, *filters: Filter) -> list[tuple[str, str, str]]:
        reader = ArchiveReader(maker.root, maker.table.version, dropped)
        reader.pushFilters(list(filters))
        parts = [batch for part in reader.partitions() for batch in reader.read(part)]
        rows = [row for batch in parts for row in batch.to_pylist()]
        assert all(row["fields"] == FIELDS for row in rows)
        return [(row["stream"], row["generation"], row["id"]) for row in rows]

    every = read(None)
    assert len(every) == 12
    assert read(recorded) == [one for one in every if one != ("a", GENERATION, "5-1")]
    assert read(recorded, EqualTo(("id",), "5-1")) == [one for one in read(recorded) if one[2] == "5-1"]
    gone = [("a", GENERATION, "5-1"), ("a", GENERATION, "5-2")]
    assert read(deletions.version(maker.root)) == [one for one in every if one not in gone]


def test_small_files_share_a_task(tmp_path: Path) -> None:
    """A hundred at most; a task costs a tenth of a second."""
    maker = Maker(tmp_path)
    for number in range(101):
        maker.batch({"a": [f"{number + 1}-0"]})
    parts = ArchiveReader(maker.root, maker.table.version).partitions()
    assert [len(files_of(part)) for part in parts] == [100, 1]


def files_of(part: Any) -> tuple[Any, ...]:
    assert isinstance(part, FilesPartition)
    return part.files
