"""Merges of sorted runs: every row once and in order, with a bounded part of them in memory.

Knows: arrow tables and Parquet files made here. Must never know: what a table of an archive is.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.table.merging import merge
from pyspark_weir.table.parquet import read_in_pieces, write_table
from pyspark_weir.table.root import ArchiveRoot

KEYS = ("stream", "id_key")
Row = tuple[str, str]

rows = st.tuples(st.sampled_from("abc"), st.integers(0, 30).map(lambda number: f"{number:04d}"))
runs = st.lists(st.tuples(st.lists(rows, max_size=30).map(sorted), st.integers(1, 7)), max_size=6)


def pieces(found: Sequence[Row], size: int) -> Iterator[pa.Table]:
    """Rows as tables of `size` each, and an empty one first."""
    schema = pa.schema([(name, pa.string()) for name in KEYS])
    yield schema.empty_table()
    for start in range(0, len(found), size):
        part = found[start : start + size]
        yield pa.table(dict(zip(KEYS, zip(*part, strict=True), strict=True)), schema=schema)


def merged(tables: Iterator[pa.Table]) -> list[Row]:
    """The rows of tables, one after another."""
    return [(row["stream"], row["id_key"]) for table in tables for row in table.to_pylist()]


@given(runs)
def test_all_rows_come_once_and_in_order(given_runs: Sequence[tuple[list[Row], int]]) -> None:
    """For any rows that the runs share, and any size of the pieces."""
    found = merged(merge((pieces(one, size) for one, size in given_runs), KEYS))
    assert found == sorted(row for one, _ in given_runs for row in one)


def test_a_run_that_is_not_sorted_is_refused() -> None:
    """Within one piece, and from one piece to the next."""
    for size in (1, 3):
        with pytest.raises(ArchiveDamagedError, match="out of order"):
            merged(merge([pieces([("a", "1"), ("b", "1"), ("a", "2")], size)], KEYS))


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    """Eight files of 40 MB, merged with 16 MB: a row group is not read whole."""
    value = np.random.default_rng(1)
    schema = pa.schema([("stream", pa.string()), ("id_key", pa.string()), ("value", pa.binary())])
    for number in range(8):
        ids = [f"{number + 8 * row:06d}" for row in range(4_000)]
        blobs = [value.bytes(10_000) for _ in ids]
        table = pa.table({"stream": ["a"] * len(ids), "id_key": ids, "value": blobs}, schema)
        with (tmp_path / f"{number}.parquet").open("wb") as file:
            write_table(file, table)
        del table, blobs
    pa.default_memory_pool().release_unused()
    before, most, count = pa.total_allocated_bytes(), 0, 0
    root, share = ArchiveRoot.of(tmp_path), (16 << 20) // 8
    runs = [read_in_pieces(root, f"{number}.parquet", share, schema) for number in range(8)]
    for table in merge(runs, KEYS):
        most = max(most, pa.total_allocated_bytes() - before)
        count += table.num_rows
    assert count == 32_000
    assert most < 100 << 20
