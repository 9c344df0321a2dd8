"""The files of an archive: written sorted, described by their statistics, proven by their footers.

Knows: how rows become files that any engine reads little of, and the form of Delta's statistics.
Must never know: commits, ranges, checksums.

```
ROOT/date=2026-11-21/0c1f….parquet                      sorted by (gateway, stream, id_key)
ROOT/date=__HIVE_DEFAULT_PARTITION__/77ab….parquet      entries whose `ts` is null
```
A file counts when a commit names it. Its name is random: a batch that runs again writes others, and vacuum
deletes those that no commit names.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import clock
from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.ids import EntryId
from pyspark_weir.table.parquet import ROW_GROUP_ROWS_MAX, CheckedWriter, Footer, read_footer
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import DATE, IN_FILES, SORTED_BY, complete, id_of_key

# Large values: a group is read and written as a whole.
ROW_GROUP_BYTES_MAX: Final = 32 << 20
# Where a partition's value is null.
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
_OURS: Final = re.compile(rf"{DATE}=[^/]+/[0-9a-f]{{32}}\.parquet")
_BOUNDED: Final = ("gateway", "stream", "generation", "id_key")
# Longer texts are cut in statistics, as Delta does: every reader loads these of every file.
_BOUND_CHARS_MAX: Final = 128
_LAST_CHAR: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Bounds:
    """The least or the greatest value of each column on its own; `ts` is None where all of them are null.

    Texts over 128 characters are cut, the greatest so that it is not below the value.
    """

    gateway: str
    stream: str
    generation: str
    id_key: str
    ts: datetime | None

    @property
    def id(self) -> EntryId:
        return id_of_key(self.id_key)


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of one day (UTC), or of entries without a timestamp (`date` None).

    `path` is relative to the root, `size` in bytes, `written_ms` the wall clock when its writing began.
    """

    path: str
    size: int
    rows: int
    date: date | None
    written_ms: int
    low: Bounds
    high: Bounds
    ts_nulls: int

    @property
    def is_ours(self) -> bool:
        """Whether Weir has named it, and so sorted it; a foreign OPTIMIZE puts rows one behind the other."""
        return _OURS.fullmatch(self.path) is not None

    @property
    def partition(self) -> dict[str, str | None]:
        return {DATE: None if self.date is None else self.date.isoformat()}

    @property
    def stats(self) -> str:
        nulls = dict.fromkeys(_BOUNDED, 0) | {"ts": self.ts_nulls}
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": _values(self.low),
                "maxValues": _values(self.high),
                "nullCount": nulls,
            }
        )


def write_files(root: ArchiveRoot, rows: pa.Table, now_ms: int | None = None) -> tuple[DataFile, ...]:
    """Write rows of `schema.GIVEN`, in any order, as one file a day; the disk holds them when it returns.

    `now_ms` is the wall clock. Raises ArchiveError for rows that are no entries, OSError.
    """
    return write_completed(root, complete(rows), now_ms)


def write_completed(root: ArchiveRoot, rows: pa.Table, now_ms: int | None = None) -> tuple[DataFile, ...]:
    """The same with rows of `schema.SCHEMA`."""
    now_ms = clock.wall_ms() if now_ms is None else now_ms
    keys = [(name, "ascending") for name in (DATE, *SORTED_BY)]
    ordered = rows.sort_by(keys).combine_chunks()
    written = tuple(write_file(root, day, own, now_ms) for day, own in _days(ordered))
    root.sync([file.path for file in written])
    return written


def write_file(root: ArchiveRoot, day: date | None, rows: pa.Table, now_ms: int) -> DataFile:
    """Write rows of one day, at least one, with the columns of `schema.IN_FILES` and sorted by SORTED_BY.

    The disk may not hold it yet: `root.sync` makes sure of it.
    """
    with FileWriter(root, day, now_ms) as writer:
        writer.write(rows)
    return writer.file


class FileWriter:
    """A file of one day, written piece by piece with one row group in memory; `file` is there at the end. Its
    `columns` are those of `schema.IN_FILES`, and perhaps others.
    """

    def __init__(
        self, root: ArchiveRoot, day: date | None, now_ms: int, columns: pa.Schema = IN_FILES
    ) -> None:
        folder = f"{DATE}={NO_DATE if day is None else day.isoformat()}"
        self._path = f"{folder}/{uuid.uuid4().hex}.parquet"
        self._day = day
        self._now_ms = now_ms
        self._stream = root.create(self._path)
        self._parquet = CheckedWriter(self._stream, columns, SORTED_BY)
        self._waiting: list[pa.Table] = []
        self._edges: list[tuple[Bounds, Bounds]] = []
        self._rows = self._ts_nulls = 0
        self.file: DataFile

    def write(self, rows: pa.Table) -> None:
        """Add rows that come after those before."""
        fitting = ROW_GROUP_BYTES_MAX * rows.num_rows // max(1, rows.nbytes)
        step = max(1, min(fitting, ROW_GROUP_ROWS_MAX))
        for start in range(0, rows.num_rows, step):
            self._add(rows.slice(start, step))

    def _add(self, rows: pa.Table) -> None:
        """At most as many rows as a row group has."""
        while rows.num_rows:
            room = ROW_GROUP_ROWS_MAX - sum(table.num_rows for table in self._waiting)
            self._waiting.append(rows.slice(0, room))
            rows = rows.slice(room)
            if room <= self._waiting[-1].num_rows or self._waiting_bytes() >= ROW_GROUP_BYTES_MAX:
                self._write_group()

    def _waiting_bytes(self) -> int:
        return sum(table.nbytes for table in self._waiting)

    def _write_group(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._waiting = []
        if rows.num_rows:
            self._parquet.write(rows)
            self._edges.append(_bounds(rows))
            self._rows += rows.num_rows
            self._ts_nulls += rows["ts"].null_count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is not None:
            # What is stored of it no commit names. It may be the disk that failed, and fails again.
            with suppress(OSError, pa.ArrowException):
                self._parquet.close()
                self._stream.close()
            return
        if self._waiting:
            self._write_group()
        self._parquet.close()
        size = self._stream.tell()
        self._stream.close()
        low, high = _all_bounds(self._edges)
        self.file = DataFile(self._path, size, self._rows, self._day, self._now_ms, low, high, self._ts_nulls)


def prove(root: ArchiveRoot, file: DataFile) -> Footer:
    """Make sure that a file is stored as it was committed: its size, its footer, and the rows that this
    counts; pages are proven when they are read. Raises ArchiveDamagedError.
    """
    size = root.size(file.path)
    if size is not None and size != file.size:
        raise ArchiveDamagedError(f"{file.path} has {size} bytes, not {file.size}: restore it")
    footer = read_footer(root, file.path)
    rows = footer.metadata.num_rows
    if rows != file.rows:
        raise ArchiveDamagedError(f"{file.path} has {rows} rows, not {file.rows}: restore it")
    return footer


def cut_high(text: str) -> str:
    """The greatest value of a column, cut: it is not below any text that begins as `text` does."""
    if len(text) <= _BOUND_CHARS_MAX or text[_BOUND_CHARS_MAX] == _LAST_CHAR:
        return text
    return text[:_BOUND_CHARS_MAX] + _LAST_CHAR


def _days(rows: pa.Table) -> Iterator[tuple[date | None, pa.Table]]:
    """Runs of one date, of rows that are sorted by it; nulls are last."""
    if not rows.num_rows:
        return
    days = pc.fill_null(rows[DATE].cast(pa.int32()), -1).to_numpy()
    starts = [0, *(np.flatnonzero(days[1:] != days[:-1]) + 1).tolist(), len(days)]
    rest = rows.drop_columns([DATE])
    for start, end in pairwise(starts):
        yield rows[DATE][start].as_py(), rest.slice(start, end - start)


def _bounds(rows: pa.Table) -> tuple[Bounds, Bounds]:
    found: Mapping[str, Any] = {name: pc.min_max(rows[name]).as_py() for name in _BOUNDED}
    times = pc.min_max(rows["ts"].cast(pa.int64())).as_py()
    low = {name: both["min"][:_BOUND_CHARS_MAX] for name, both in found.items()}
    high = {name: cut_high(both["max"]) for name, both in found.items()}
    return Bounds(**low, ts=_time(times["min"])), Bounds(**high, ts=_time(times["max"]))


def _all_bounds(edges: Sequence[tuple[Bounds, Bounds]]) -> tuple[Bounds, Bounds]:
    lows, highs = zip(*edges, strict=True)
    low = {name: min(getattr(one, name) for one in lows) for name in _BOUNDED}
    high = {name: max(getattr(one, name) for one in highs) for name in _BOUNDED}
    first = min((one.ts for one in lows if one.ts is not None), default=None)
    last = max((one.ts for one in highs if one.ts is not None), default=None)
    return Bounds(**low, ts=first), Bounds(**high, ts=last)


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def _values(bounds: Bounds) -> dict[str, str]:
    found = {name: getattr(bounds, name) for name in _BOUNDED}
    if bounds.ts is None:
        return found
    # IDs have milliseconds: nothing is cut off here.
    return found | {"ts": bounds.ts.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
