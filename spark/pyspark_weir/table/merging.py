"""Merges sorted entries from many places into one sorted sequence, a bounded part of them in memory.

Knows: how sorted tables are cut so that each round yields what no later row can precede.
Must never know: what is done with the rows.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.table.schema import SORTED_BY

Key = tuple[str, ...]


def _disorder(key: Key, before: Key) -> ArchiveDamagedError:
    return ArchiveDamagedError(f"{key} comes after {before}: a file is out of order; run verify")


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
