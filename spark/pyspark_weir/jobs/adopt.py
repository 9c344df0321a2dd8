"""Converts an archive of the old form, manifests and folders, into a table, each entry once.

Knows: how ranges and files of manifests become batches of the table, and what is counted afterwards.
Must never know: Spark, gateways, what is printed.

The table itself says how far a conversion has come: each stream goes on where the table's range ends. So it
may be killed at any time and run again. The last commit names the old query's last batch, so that the archive
job goes on with its checkpoint, also where it was stopped between a manifest and Spark's own commit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import ids
from pyspark_weir.errors import OptionError
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs import manifests
from pyspark_weir.jobs.manifests import File, OldArchive
from pyspark_weir.table.counting import ids_of
from pyspark_weir.table.errors import ArchiveDamagedError
from pyspark_weir.table.files import write_files
from pyspark_weir.table.merging import merge, read_in_pieces
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import GIVEN, complete, id_key
from pyspark_weir.table.table import ArchiveTable, Batch, Selection

# Of a batch in memory, unpacked.
BATCH_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class Adopted:
    """A batch that is in the table now: `rows` entries of `streams` streams."""

    streams: int
    rows: int


class _Piece(NamedTuple):
    """A range, and its entries with the columns of `GIVEN`."""

    range: Range
    rows: pa.Table


class Line:
    """What the manifests say of one stream and generation: ranges that together reach from 0-0 to `upto`.

    Raises ArchiveDamagedError where one is missing.
    """

    def __init__(self, key: StreamKey, ranges: Sequence[Range], files: Sequence[File]) -> None:
        self.key = key
        self.ranges = tuple(ranges)
        self.files = tuple(files)
        self.upto = ids.ZERO
        # A stream that was put back to an older state was archived a second time from there on.
        self.overlaps = False
        for one in self.ranges:
            if one.after > self.upto:
                raise ArchiveDamagedError(f"{key}: no manifest has the entries in ({self.upto}, {one.after}]")
            self.overlaps |= one.after < self.upto
            self.upto = max(self.upto, one.upto)


def adopt(old: ArchiveRoot, new: ArchiveRoot, batch_bytes: int = BATCH_BYTES) -> Iterator[Adopted]:
    """Convert what the table at `new` does not hold yet, batch by batch; then count all of it.

    Raises OptionError where one root is inside the other, ArchiveError where the old archive is not whole, or
    where the table holds other entries than the manifests say.
    """
    _check_apart(old, new)
    archive = manifests.read(old)
    lines = lines_of(archive)
    table = ArchiveTable.create(new)
    waiting: list[_Piece] = []
    for line in lines:
        for piece in _pieces(old, line, _begin(table, line.key), batch_bytes):
            waiting.append(piece)
            if sum(one.rows.nbytes for one in waiting) >= batch_bytes:
                yield _commit(table, archive, waiting)
                waiting = []
    if waiting:
        yield _commit(table, archive, waiting)
    table.commit(Batch(BatchRanges(archive.archive, len(archive.batches) - 1, ()), ()))
    check(old, lines, table)


def lines_of(archive: OldArchive) -> list[Line]:
    """The streams of an archive in the order in which it met them, generation after generation."""
    ranges: dict[StreamKey, list[Range]] = {}
    for batch in archive.batches:
        for one in batch:
            ranges.setdefault(one.key, []).append(one)
    if unknown := archive.files.keys() - ranges.keys():
        raise ArchiveDamagedError(f"{min(unknown)} has files and is in no batch")
    return [Line(key, own, archive.files.get(key, ())) for key, own in ranges.items()]


def check(old: ArchiveRoot, lines: Sequence[Line], table: ArchiveTable) -> None:
    """Count the table's entries in each range of the manifests. Raises ArchiveDamagedError."""
    table.refresh()
    for line in lines:
        edges = [line.upto] if line.overlaps else [one.upto for one in line.ranges]
        expected = [_distinct(old, line)] if line.overlaps else [one.rows for one in line.ranges]
        files = table.files(Selection(*line.key, upto=line.upto))
        found = np.zeros(len(edges) + 1, dtype=np.int64)
        keys = np.array([id_key(one) for one in edges])
        for piece in ids_of(table.root, files, line.key, ids.ZERO, line.upto):
            at = np.searchsorted(keys, np.array(piece.column("id_key").to_pylist()))
            found += np.bincount(at, minlength=len(found))
        for edge, rows, counted in zip(edges, expected, found.tolist(), strict=False):
            if rows != counted:
                raise ArchiveDamagedError(
                    f"{line.key}: the manifests have {rows} entries in the range up to {edge}, "
                    f"the table {counted}"
                )


def delete_old(old: ArchiveRoot, table: ArchiveTable) -> None:
    """Delete an archive that was adopted; counts it once more before. Raises ArchiveError.

    The manifests go last: until then it may be repeated.
    """
    check(old, lines_of(manifests.read(old)), table)
    for folder in (manifests.DATA, "_delta_log", manifests.FOLDER):
        old.delete_folder(folder)


def _check_apart(old: ArchiveRoot, new: ArchiveRoot) -> None:
    one, other = f"{old.url}/", f"{new.url}/"
    if one.startswith(other) or other.startswith(one):
        raise OptionError("the table needs a folder of its own, neither inside the old archive nor around it")


def _begin(table: ArchiveTable, key: StreamKey) -> EntryId:
    return max((one.upto for one in table.ranges() if one.key == key), default=ids.ZERO)


def _commit(table: ArchiveTable, archive: OldArchive, pieces: Sequence[_Piece]) -> Adopted:
    files = write_files(table.root, pa.concat_tables([one.rows for one in pieces]))
    # Any number that rises does: what counts is where the ranges end.
    moved = BatchRanges(f"adopt {archive.archive}", table.version, tuple(one.range for one in pieces))
    table.commit(Batch(moved, files))
    return Adopted(len(pieces), sum(one.range.rows for one in pieces))


def _pieces(old: ArchiveRoot, line: Line, begin: EntryId, batch_bytes: int) -> Iterator[_Piece]:
    """What follows `begin`, in ranges of which all but the last have `batch_bytes` at least."""
    after, waiting = begin, [GIVEN.empty_table()]
    if after >= line.upto:
        return
    for rows in _entries(old, line, begin):
        waiting.append(rows.select(GIVEN.names))
        if sum(table.nbytes for table in waiting) >= batch_bytes:
            upto = ids.parse(rows.column("id")[-1].as_py())
            yield _piece(line.key, after, upto, waiting)
            after, waiting = upto, [GIVEN.empty_table()]
    if after < line.upto:
        yield _piece(line.key, after, line.upto, waiting)


def _piece(key: StreamKey, after: EntryId, upto: EntryId, tables: Sequence[pa.Table]) -> _Piece:
    rows = pa.concat_tables(tables)
    return _Piece(Range(key, after, upto, rows.num_rows), rows)


def _distinct(old: ArchiveRoot, line: Line) -> int:
    return sum(rows.num_rows for rows in _entries(old, line, ids.ZERO))


def _entries(old: ArchiveRoot, line: Line, after: EntryId) -> Iterator[pa.Table]:
    """The entries after an ID, in order and each once, with the columns of `IN_FILES`."""
    files = [file for file in line.files if ids.parse(file.max) > after]
    together: list[File] = []
    high = ids.ZERO
    for file in files:
        if together and ids.parse(file.min) > high:
            yield from _merged(old, line.key, together, after)
            together = []
        together.append(file)
        high = max(high, ids.parse(file.max))
    if together:
        yield from _merged(old, line.key, together, after)


def _merged(old: ArchiveRoot, key: StreamKey, files: Sequence[File], after: EntryId) -> Iterator[pa.Table]:
    share = _PIECE_BYTES // len(files)
    runs = (_of_file(old, key, file, share) for file in files)
    last = GIVEN.empty_table()
    for piece in merge(runs, ("id_key",)):
        rows = piece.filter(pc.greater(piece.column("id_key"), id_key(after)))
        rows = _once(key, rows, last)
        if rows.num_rows:
            last = rows.slice(rows.num_rows - 1)
            yield rows


def _of_file(old: ArchiveRoot, key: StreamKey, file: File, memory_bytes: int) -> Iterator[pa.Table]:
    rows = 0
    for piece in read_in_pieces(old, file.path, memory_bytes, ("id", "fields")):
        rows += piece.num_rows
        names = [pa.array([name] * piece.num_rows, pa.string()) for name in key]
        given = pa.table(
            [*names, piece.column("id"), piece.column("fields").cast(GIVEN.field("fields").type)],
            names=GIVEN.names,
        )
        yield complete(given)
    if rows != file.rows:
        raise ArchiveDamagedError(f"{file.path} has {rows} rows, its manifest says {file.rows}: restore it")


def _once(key: StreamKey, rows: pa.Table, last: pa.Table) -> pa.Table:
    """Each entry once: a stream that was put back was archived again. Raises ArchiveDamagedError where two
    entries have one ID.
    """
    found, fields = rows.column("id").to_pylist(), rows.column("fields")
    before = [*last.column("id").to_pylist(), None][0]
    twice = [at for at, one in enumerate(found) if one == (found[at - 1] if at else before)]
    for at in twice:
        if fields[at] != (fields[at - 1] if at else last.column("fields")[0]):
            raise ArchiveDamagedError(f"{key}: the archive holds two different entries {found[at]}")
    if not twice:
        return rows
    mask = np.ones(rows.num_rows, dtype=bool)
    mask[twice] = False
    return rows.filter(pa.array(mask))
