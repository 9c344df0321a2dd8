"""Other programs read the table: the same entries before, during and after compaction and vacuum.

Knows: how DuckDB, Polars, pandas and pyarrow read a Delta table. Must never know: how Weir does.
"""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from pyspark_weir import clock
from pyspark_weir.table.cleaning import clean_log, vacuum
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.deletions import FOLDER, record
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import id_of_key
from tests.spark.table.making import DAY_MS, Maker, key_of, numbered
from tests.spark.table.test_compaction import ended, running

A, B = key_of("a"), key_of("b")
# What each reader finds of an entry: stream, ID, and microseconds since 1970, or None.
Found = set[tuple[str, str, int | None]]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EDGES: Final = ["0-1", "1795252515378-7", "253402300799999-0", "253402300800000-0", f"{(1 << 64) - 1}-0"]


def _micros(ts: datetime | None) -> int | None:
    if ts is None:
        return None
    apart = ts - _EPOCH
    return (apart.days * 86_400 + apart.seconds) * 1_000_000 + apart.microseconds


def with_pyarrow(table: DeltaTable) -> list[Any]:
    rows = table.to_pyarrow_table(columns=["stream", "id", "ts"]).to_pylist()
    return [(row["stream"], row["id"], _micros(row["ts"])) for row in rows]


def with_duckdb(table: DeltaTable) -> list[Any]:
    with duckdb.connect() as session:
        session.register("entries", table.to_pyarrow_dataset())
        return session.sql("SELECT stream, id, epoch_us(ts) FROM entries").fetchall()


def with_polars(table: DeltaTable) -> list[Any]:
    return pl.scan_delta(table).select("stream", "id", pl.col("ts").dt.epoch("us")).collect().rows()


def with_pandas(table: DeltaTable) -> list[Any]:
    frame = table.to_pandas(columns=["stream", "id", "ts"])
    times = zip(frame["ts"], frame["ts"].notna(), strict=True)
    stamps = [_micros(ts.to_pydatetime()) if known else None for ts, known in times]
    return list(zip(frame["stream"], frame["id"], stamps, strict=True))


# Over each of the readers.
pytestmark = pytest.mark.halved

READERS: Final = {
    "pyarrow": with_pyarrow,
    "DuckDB": with_duckdb,
    "Polars": with_polars,
    "pandas": with_pandas,
}
Reader = Callable[[DeltaTable], list[Any]]


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    found = Maker(tmp_path / "archive")
    found.batch({A: _EDGES})
    for number in range(12):
        found.batch({B: numbered(1 + 10 * number, 10, day=number % 3 + 3 * (number // 3))})
    return found


@pytest.fixture
def tokyo() -> Iterator[None]:
    """A session far from UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def test_all_entries_with_their_times(maker: Maker, reader: Reader) -> None:
    """Those at the limits of IDs and of dates too: no time above the year 9999."""
    found = reader(DeltaTable(maker.table.root.url))
    assert len(found) == len(set(found)) == 125
    assert {row for row in found if row[0] == "a"} == {
        ("a", "0-1", 0),
        ("a", "1795252515378-7", 1_795_252_515_378_000),
        ("a", "253402300799999-0", 253_402_300_799_999_000),
        ("a", "253402300800000-0", None),
        ("a", f"{(1 << 64) - 1}-0", None),
    }


@pytest.mark.usefixtures("tokyo")
def test_times_are_the_same_in_another_time_zone(maker: Maker, reader: Reader) -> None:
    """Before and after compaction, which writes the files anew."""
    before = sorted(reader(DeltaTable(maker.table.root.url)), key=str)
    list(compact(maker.table, CompactionRules()))
    assert sorted(reader(DeltaTable(maker.table.root.url)), key=str) == before
    assert ("b", f"{2 * DAY_MS + 21}-0", (2 * DAY_MS + 21) * 1_000) in before


def test_the_same_after_compaction_vacuum_and_a_cleaned_log(maker: Maker, reader: Reader) -> None:
    """And one that had opened the table before all that."""
    opened = DeltaTable(maker.table.root.url)
    before = sorted(reader(opened), key=str)
    assert list(compact(maker.table, CompactionRules()))
    vacuum(maker.table)
    clean_log(maker.table, clock.wall_ms())
    assert sorted(reader(opened), key=str) == before
    assert sorted(reader(DeltaTable(maker.table.root.url)), key=str) == before


def test_the_same_while_others_compact_and_commit(maker: Maker, reader: Reader) -> None:
    root = maker.table.root.url
    commands = [("compact", root, "1000000"), ("batches", root, "other", "c", "8")]
    with running(commands) as processes:
        while any(process.poll() is None for process in processes):
            found = reader(DeltaTable(root))
            assert len(found) == len(set(found))
            assert sum(1 for row in found if row[0] != "c") == 125
        for process in processes:
            ended(process)
    assert len(reader(DeltaTable(root))) == 205


def test_ids_compare_as_texts(maker: Maker) -> None:
    """By `id_key`, which any engine can order by and search in."""
    rows = DeltaTable(maker.table.root.url).to_pyarrow_table(columns=["stream", "id", "id_key"]).to_pylist()
    ordered = sorted((row for row in rows if row["stream"] == "a"), key=lambda row: row["id_key"])
    assert [row["id"] for row in ordered] == _EDGES
    assert [str(id_of_key(row["id_key"])) for row in ordered] == _EDGES


def test_deletions_are_left_out_with_a_join(maker: Maker) -> None:
    """A second table has them; what is recorded twice counts once."""
    root = ArchiveRoot.of(maker.table.root.url)
    gone = [id_of_key("0" * 31 + "1"), id_of_key(f"{1_795_252_515_378:016x}{7:016x}")]
    record(root, {A: gone[1]}, {A: gone})
    record(root, {A: gone[1]}, {A: gone[:1]})
    with duckdb.connect() as session:
        session.register("entries", DeltaTable(root.url).to_pyarrow_dataset())
        session.register("deletions", DeltaTable(root.inside(FOLDER).url).to_pyarrow_dataset())
        left = session.sql(
            "SELECT id FROM entries ANTI JOIN (FROM deletions WHERE deleted) "
            "USING (gateway, stream, generation, id) WHERE stream = 'a' ORDER BY id_key"
        ).fetchall()
    assert [one for (one,) in left] == _EDGES[2:]
