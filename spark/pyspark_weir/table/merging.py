"""Merges sorted entries from many places into one sorted sequence, a bounded part of them in memory.

Knows: how sorted tables are cut so that each round yields what no later row can precede.
Must never know: what is done with the rows.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.table.files import ROW_GROUP_ROWS_MAX, reading
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import SORTED_BY

# Read-ahead of one column of one file: without a limit, a whole row group's column is read at once.
_READ_BYTES: Final = 1 << 16

Key = tuple[str, ...]


def _disorder(key: Key, before: Key) -> ArchiveDamagedError:
    return ArchiveDamagedError(f"{key} comes after {before}: a file is out of order; run verify")


def read_in_pieces(
    root: ArchiveRoot, path: str, memory_bytes: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows of a file in its order, as tables of about `memory_bytes` each. Raises ArchiveDamagedError."""
    wanted = None if columns is None else list(columns)
    with reading(path), root.files.open_input_file(root.path(path)) as source:
        parquet = pq.ParquetFile(source, buffer_size=_READ_BYTES, pre_buffer=False)
        for group in range(parquet.metadata.num_row_groups):
            known = parquet.metadata.row_group(group)
            row_bytes = max(1, known.total_byte_size // max(1, known.num_rows))
            rows = min(ROW_GROUP_ROWS_MAX, max(1, memory_bytes // row_bytes))
            for batch in parquet.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
                yield pa.Table.from_batches([batch])


def merge(runs: Iterable[Iterator[pa.Table]], keys: Sequence[str] = SORTED_BY) -> Iterator[pa.Table]:
    """All rows of sorted runs, sorted by `keys`, in tables none of which is empty.

    Rows with equal keys stay, side by side. Raises ArchiveDamagedError where a run is not sorted.
    """
    started = [_Run(run, keys) for run in runs]
    waiting = [run for run in started if run.advance()]
    last: Key | None = None
    while waiting:
        cut = min(run.last for run in waiting)
        taken = [part for run in waiting if (part := run.take_rows(cut)).num_rows]
        found = taken[0] if len(taken) == 1 else _sort(taken, keys)
        first = _key(found, 0, keys)
        if last is not None and first < last:
            raise _disorder(first, last)
        last = _key(found, found.num_rows - 1, keys)
        yield found
        waiting = [run for run in waiting if run.rows.num_rows or run.advance()]


class _Run:
    """One sorted sequence, and the part of it that is in memory."""

    def __init__(self, tables: Iterator[pa.Table], keys: Sequence[str]) -> None:
        self._tables = tables
        self._keys = keys
        self.rows: pa.Table
        self.last: Key = ()

    def advance(self) -> bool:
        """Read the next rows; False at the end. Raises ArchiveDamagedError."""
        for table in self._tables:
            if table.num_rows:
                check_sorted(table, self._keys)
                self.rows = table
                self.last = _key(table, table.num_rows - 1, self._keys)
                return True
        return False

    def take_rows(self, cut: Key) -> pa.Table:
        """Remove and return the rows up to `cut`."""
        rows = self.rows
        if self.last <= cut:
            count = rows.num_rows
        else:
            count = bisect_right(range(rows.num_rows), cut, key=lambda row: _key(rows, row, self._keys))
        self.rows = rows.slice(count)
        return rows.slice(0, count)


def _sort(tables: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    return pa.concat_tables(tables).sort_by([(key, "ascending") for key in keys])


def check_sorted(table: pa.Table, keys: Sequence[str]) -> None:
    """Raises ArchiveDamagedError where a row comes before the one above it."""
    before, after = table.slice(0, table.num_rows - 1), table.slice(1)
    wrong = pc.less(after.column(keys[-1]), before.column(keys[-1]))
    for key in reversed(keys[:-1]):
        one, other = before.column(key), after.column(key)
        wrong = pc.or_(pc.less(other, one), pc.and_(pc.equal(other, one), wrong))
    if pc.any(wrong).as_py():
        row = pc.index(wrong, value=True).as_py()
        raise _disorder(_key(after, row, keys), _key(before, row, keys))


def _key(table: pa.Table, row: int, keys: Sequence[str]) -> Key:
    return tuple(table.column(key)[row].as_py() for key in keys)
