"""Converts an archive of the old form, manifests and folders, into a table, each entry once.

Knows: the form of manifests, how they become batches of the table, and what is counted afterwards.
Must never know: Spark, gateways, what is printed.

The table itself says how far a conversion has come: each stream goes on where the table's range ends. So it
may be killed at any time and run again. The last commit names the old query's last batch, so that the archive
job goes on with its checkpoint, also where it was stopped between a manifest and Spark's own commit.

    ROOT/_manifest/archive.json              whose archive this is
    ROOT/_manifest/0000000007.json           batch 7 of the query: its files, and per stream how far it went
    ROOT/_manifest/compact-0000000002.json   files that replace others: add, remove
    ROOT/data/batch=0000000007/stream=a/date=2026-11-21/part-….parquet

Each manifest is `{"checksum": "sha256:…", "content": {…}}`; the checksum is that of the content's bytes. What
counts is what all manifests add, less what they remove. A file that no manifest names does not count.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError, ArchiveError, OptionError, PipelineError
from pyspark_weir.ids import EntryId
from pyspark_weir.table.cleaning import repair
from pyspark_weir.table.files import write_files
from pyspark_weir.table.merging import merge, read_in_pieces
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.reading import ids_of, overlapping
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import GIVEN, complete, id_key
from pyspark_weir.table.table import ArchiveTable, Batch, EntryFilter

FOLDER: Final = "_manifest"
DATA: Final = "data"
_ABOUT: Final = "archive.json"
_COMPACTION: Final = "compact-"
_SUFFIX: Final = ".json"
_VERSION: Final = 1


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file: entries of one stream and one day in order; `min` and `max` are IDs of entries."""

    path: str
    shard: str
    stream: str
    generation: str
    rows: int
    min: str
    max: str

    @property
    def key(self) -> StreamKey:
        return StreamKey(self.shard, self.stream, self.generation)


class _Progress(msgspec.Struct, frozen=True, kw_only=True):
    shard: str
    stream: str
    generation: str
    after: str
    upto: str
    rows: int

    def range(self) -> Range:
        key = StreamKey(self.shard, self.stream, self.generation)
        return Range(key, ids.parse(self.after), ids.parse(self.upto), self.rows)


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    kind: str
    number: int
    archive: str
    streams: tuple[_Progress, ...]
    add: tuple[ManifestFile, ...]
    remove: tuple[str, ...]


class _About(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    archive: str


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    checksum: str
    content: msgspec.Raw


_D = TypeVar("_D", _Manifest, _About)


@dataclass(frozen=True)
class OldArchive:
    """What the manifests say: `archive` is the ID of the Spark query that wrote it, `batches` the ranges of
    each of its batches, `files` the files that count, by stream and first ID.
    """

    archive: str
    batches: tuple[tuple[Range, ...], ...]
    files: Mapping[StreamKey, tuple[ManifestFile, ...]]


def is_old_archive(root: ArchiveRoot) -> bool:
    """Whether an archive of that form is stored there."""
    return root.size(f"{FOLDER}/{_ABOUT}") is not None


def read_manifests(root: ArchiveRoot) -> OldArchive:
    """Read all manifests. Raises ArchiveError where there are none, ArchiveDamagedError."""
    about = _decode(root, _ABOUT, _About)
    names = [name for name in root.names(FOLDER) if name.endswith(_SUFFIX) and name != _ABOUT]
    found = [_read(root, name) for name in names]
    for name, manifest in zip(names, found, strict=True):
        if manifest.archive != about.archive:
            raise ArchiveDamagedError(f"{FOLDER}/{name} belongs to another archive: restore one of them")
    batches = sorted((one for one in found if one.kind == "batch"), key=lambda one: one.number)
    for number, batch in enumerate(batches):
        if batch.number != number:
            raise ArchiveDamagedError(f"the manifest of batch {number} is missing: restore it from a copy")
    try:
        ranges = tuple(tuple(moved.range() for moved in batch.streams) for batch in batches)
        return OldArchive(about.archive, ranges, _by_stream(_count(found)))
    except PipelineError as error:
        raise ArchiveDamagedError(f"a manifest names what is no ID: {error.sentence}") from None


def _read(root: ArchiveRoot, name: str) -> _Manifest:
    found = _decode(root, name, _Manifest)
    prefix = _COMPACTION if found.kind == "compaction" else ""
    if name != f"{prefix}{found.number:010d}{_SUFFIX}":
        raise ArchiveDamagedError(f"{FOLDER}/{name} holds another manifest: restore it from a copy")
    return found


def _decode(root: ArchiveRoot, name: str, kind: type[_D]) -> _D:
    stored = root.read(f"{FOLDER}/{name}")
    if stored is None:
        raise ArchiveError(f"{root.url} holds no archive of the old form: there is no {FOLDER}/{name}")
    try:
        envelope = msgspec.json.decode(stored, type=_Envelope)
        content = bytes(envelope.content)
        if envelope.checksum != f"sha256:{hashlib.sha256(content).hexdigest()}":
            raise ArchiveDamagedError(f"{FOLDER}/{name} is damaged: restore it from a copy")
        found = msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveDamagedError(f"{FOLDER}/{name} is damaged: {error}; restore it from a copy") from None
    if found.v != _VERSION:
        raise ArchiveError(f"{FOLDER}/{name} has version {found.v}, known here is {_VERSION}")
    return found


def _count(manifests: Iterable[_Manifest]) -> list[ManifestFile]:
    added: dict[str, ManifestFile] = {}
    removed: list[str] = []
    for manifest in manifests:
        for file in manifest.add:
            if file.path in added or not file.path.startswith(f"{DATA}/") or ".." in file.path.split("/"):
                raise ArchiveDamagedError(f"two manifests add {file.path}, or it is outside of {DATA}/")
            added[file.path] = file
        removed += manifest.remove
    for path in removed:
        if added.pop(path, None) is None:
            raise ArchiveDamagedError(f"{path} was replaced, and no manifest has added it: one is missing")
    return list(added.values())


def _by_stream(files: Iterable[ManifestFile]) -> dict[StreamKey, tuple[ManifestFile, ...]]:
    found: dict[StreamKey, list[ManifestFile]] = {}
    for file in sorted(files, key=lambda one: (ids.parse(one.min), one.path)):
        found.setdefault(file.key, []).append(file)
    return {key: tuple(own) for key, own in found.items()}


# Of a batch in memory, unpacked.
BATCH_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class Adopted:
    """A batch that is in the table now: `rows` entries of `streams` streams."""

    streams: int
    rows: int


class _Piece(NamedTuple):
    range: Range
    rows: pa.Table


class Line:
    """What the manifests say of one stream and generation: ranges that together reach from 0-0 to `upto`.

    Raises ArchiveDamagedError where one is missing.
    """

    def __init__(self, key: StreamKey, ranges: Sequence[Range], files: Sequence[ManifestFile]) -> None:
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
    archive = read_manifests(old)
    lines = lines_of(archive)
    repair(new)
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
        files = table.files(EntryFilter(*line.key, upto=line.upto))
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
    check(old, lines_of(read_manifests(old)), table)
    for folder in (DATA, "_delta_log", FOLDER):
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
    for together in overlapping(files, lambda file: (ids.parse(file.min), ids.parse(file.max))):
        yield from _merge(old, line.key, together, after)


def _merge(
    old: ArchiveRoot, key: StreamKey, files: Sequence[ManifestFile], after: EntryId
) -> Iterator[pa.Table]:
    share = _PIECE_BYTES // len(files)
    runs = (_of_file(old, key, file, share) for file in files)
    last = GIVEN.empty_table()
    for piece in merge(runs, ("id_key",)):
        rows = piece.filter(pc.greater(piece.column("id_key"), id_key(after)))
        rows = _once(key, rows, last)
        if rows.num_rows:
            last = rows.slice(rows.num_rows - 1)
            yield rows


def _of_file(old: ArchiveRoot, key: StreamKey, file: ManifestFile, memory_bytes: int) -> Iterator[pa.Table]:
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
