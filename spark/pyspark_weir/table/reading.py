"""Reads the table's files: the rows that meet a condition; counts and lists of the entries of streams.

Knows: the columns that name an entry, and when statistics answer without a look into a file.
Must never know: gateways, what the counts are compared with.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveDamagedError, ArchiveError
from pyspark_weir.ids import EntryId
from pyspark_weir.table import digest
from pyspark_weir.table.files import Bounds, DataFile
from pyspark_weir.table.merging import merge
from pyspark_weir.table.parquet import ROW_GROUP_ROWS_MAX, read_in_pieces, read_matching
from pyspark_weir.table.ranges import ENTRY_KEYS, StreamKey, Tally
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import DATE, IN_FILES, SCHEMA, SORTED_BY, all_of, complete, id_key
from pyspark_weir.table.table import EntryFilter

T = TypeVar("T")
# Behind every `id_key`.
_NO_KEY: Final = "~"
_MEMORY_BYTES: Final = 16 << 20
# Each needs a file descriptor, of which a process has 1,024 as a rule.
_FILES_AT_ONCE_MAX: Final = 500

# `(after, upto]` by stream.
RangeByStream = Mapping[StreamKey, tuple[EntryId, EntryId]]


class Span(NamedTuple):
    """Entries of one stream that are side by side in a file: `rows` from `low` to `high`, both `id_key`s."""

    key: StreamKey
    low: str
    high: str
    rows: int


def spans(root: ArchiveRoot, file: DataFile) -> Iterator[tuple[pa.Table, list[Span]]]:
    """A file's columns ENTRY_KEYS piece by piece, with what each piece holds. Raises ArchiveDamagedError."""
    for piece in _in_order(file, read_in_pieces(root, file.path, _MEMORY_BYTES, columns_of(ENTRY_KEYS))):
        yield piece, spans_of(piece)


def spans_of(rows: pa.Table) -> list[Span]:
    """What rows hold of each stream."""
    counted = rows.group_by(StreamKey._fields).aggregate(
        [("id_key", "min"), ("id_key", "max"), ("id_key", "count")]
    )
    return [
        Span(
            StreamKey(*(row[name] for name in StreamKey._fields)),
            row["id_key_min"],
            row["id_key_max"],
            row["id_key_count"],
        )
        for row in counted.to_pylist()
    ]


def _in_order(file: DataFile, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Rows of a file, sorted: those of a foreign one all at once, until `compact` has sorted it."""
    if file.is_ours:
        yield from pieces
        return
    held = list(pieces)
    if held:
        yield pa.concat_tables(held).sort_by([(name, "ascending") for name in SORTED_BY])


def tally(rows: pa.Table, after: Mapping[StreamKey, EntryId] | None = None) -> dict[StreamKey, Tally]:
    """What rows of IN_FILES, in any order, are of each stream: all of them, or those after an ID of each
    stream that has one.
    """
    # No name has a control character.
    joined = pc.binary_join_element_wise(*(rows[name] for name in StreamKey._fields), "\0")
    names = joined.combine_chunks().dictionary_encode()
    keys = [StreamKey(*name.split("\0")) for name in names.dictionary.to_pylist()]
    places = names.indices.to_numpy()
    if after is not None:
        edges = pa.array([id_key(after[key]) if key in after else _NO_KEY for key in keys], pa.string())
        kept = pc.greater(rows["id_key"].combine_chunks(), edges.take(names.indices))
        rows, places = rows.filter(kept), places[kept.to_numpy(zero_copy_only=False)]
    order = np.argsort(places, kind="stable")
    ends = np.cumsum(np.bincount(places, minlength=len(keys))).tolist()
    digests = digest.of_rows(rows)[order]
    return {
        key: Tally(end - start, digest.total(digests[start:end]))
        for key, (start, end) in zip(keys, pairwise([0, *ends]), strict=True)
    }


def read_whole(root: ArchiveRoot, file: DataFile) -> Iterator[pa.Table]:
    """All rows and columns of a file, piece by piece, whose columns agree about IDs. Raises ArchiveError."""
    for rows in read_in_pieces(root, file.path, _MEMORY_BYTES, IN_FILES):
        if not complete(rows).select(IN_FILES.names).equals(rows):
            raise ArchiveDamagedError(f"{file.path} has a row whose columns are of several IDs: restore it")
        yield rows


def repeated(piece: pa.Table) -> int:
    """How many rows of a sorted piece are those of the entry before them."""
    before, after = piece.slice(0, piece.num_rows - 1), piece.slice(1)
    same = pc.equal(before.column("id_key"), after.column("id_key"))
    for name in StreamKey._fields:
        same = pc.and_(same, pc.equal(before.column(name), after.column(name)))
    return int(pc.sum(same).as_py() or 0)


def count(root: ArchiveRoot, files: Iterable[DataFile], wanted: RangeByStream) -> dict[StreamKey, int]:
    """How many entries files hold in each range; no file is read twice. Raises ArchiveDamagedError."""
    found = dict.fromkeys(wanted, 0)
    for file in files:
        keys = [key for key, (after, upto) in wanted.items() if may_hold(file, key, after, upto)]
        whole = _only_stream(file)
        if whole is not None:
            if whole in keys:
                after, upto = wanted[whole]
                if after < file.low.id and file.high.id <= upto:
                    found[whole] += file.rows
                    continue
            else:
                continue
        if keys:
            for piece, here in spans(root, file):
                for span in here:
                    if span.key in found:
                        found[span.key] += _within(piece, span, *wanted[span.key])
    return found


def may_hold(file: DataFile, key: StreamKey, after: EntryId, upto: EntryId) -> bool:
    """Whether a file's statistics allow entries of a range in it."""
    low, high = file.low, file.high
    named = all(getattr(low, name) <= getattr(key, name) <= getattr(high, name) for name in StreamKey._fields)
    return named and file.high.id > after and file.low.id <= upto


def ids_of(
    root: ArchiveRoot, files: Iterable[DataFile], key: StreamKey, after: EntryId, upto: EntryId
) -> Iterator[pa.Table]:
    """The `id_key`s of a stream in `(after, upto]`, in order. Raises ArchiveDamagedError."""
    return entries_of(root, files, key, after, upto, ("id_key",))


def entries_of(
    root: ArchiveRoot,
    files: Iterable[DataFile],
    key: StreamKey,
    after: EntryId,
    upto: EntryId,
    columns: Iterable[str],
) -> Iterator[pa.Table]:
    """Columns of a stream's entries in `(after, upto]`, in order. Raises ArchiveError."""
    wanted = columns_of((*ENTRY_KEYS, *columns))
    chosen = sorted(
        (file for file in files if may_hold(file, key, after, upto)),
        key=lambda file: (file.low.id_key, file.path),
    )
    for together in overlapping(chosen, lambda file: (file.low.id, file.high.id)):
        if len(together) > _FILES_AT_ONCE_MAX:
            raise ArchiveError(f"{len(together):,} files share IDs: run compact, and then this again")
        share = max(1 << 16, _MEMORY_BYTES // len(together))
        runs = (
            _in_order(
                file,
                (
                    _of_stream(piece, key, after, upto)
                    for piece in read_in_pieces(root, file.path, share, wanted)
                ),
            )
            for file in together
        )
        yield from merge(runs, SORTED_BY)


def overlapping(files: Iterable[T], bounds: Callable[[T], tuple[EntryId, EntryId]]) -> Iterator[list[T]]:
    """Files by their first ID, in sets that share no IDs with the next; `bounds`: a file's first and last."""
    together: list[T] = []
    high = ids.ZERO
    for file in files:
        first, last = bounds(file)
        if together and first > high:
            yield together
            together = []
        together.append(file)
        high = max(high, last)
    if together:
        yield together


def _of_stream(piece: pa.Table, key: StreamKey, after: EntryId, upto: EntryId) -> pa.Table:
    return piece.filter(condition_of(EntryFilter(*key, after=after, upto=upto)))


def _within(piece: pa.Table, span: Span, after: EntryId, upto: EntryId) -> int:
    low, high = id_key(after), id_key(upto)
    if low < span.low and span.high <= high:
        return span.rows
    if span.high <= low or high < span.low:
        return 0
    return int(_of_stream(piece, span.key, after, upto).num_rows)


def _only_stream(file: DataFile) -> StreamKey | None:
    """The stream that all entries of a file are of, if its statistics say so: those of long names are cut."""
    low, high = _names(file.low), _names(file.high)
    return low if low == high else None


def _names(bounds: Bounds) -> StreamKey:
    return StreamKey(bounds.gateway, bounds.stream, bounds.generation)


def columns_of(names: Iterable[str]) -> pa.Schema:
    """These columns of files."""
    return pa.schema([IN_FILES.field(name) for name in dict.fromkeys(names)])


def scan(root: ArchiveRoot, file: DataFile, condition: Any = None) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow has no types
    """Rows of SCHEMA in the file's order, at most 10,000 at once; `condition` is pyarrow's expression over
    the columns of IN_FILES. Row groups whose statistics exclude it are not read. Raises ArchiveDamagedError.
    """
    for rows in read_matching(root, file.path, IN_FILES, condition):
        day = pa.repeat(pa.scalar(file.date, SCHEMA.field(DATE).type), rows.num_rows)
        yield from rows.append_column(SCHEMA.field(DATE), day).combine_chunks().to_batches(ROW_GROUP_ROWS_MAX)


def condition_of(selection: EntryFilter) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The rows that a selection means, but for its times: pyarrow's expression, None for all."""
    found: list[Any] = []
    for name in StreamKey._fields:
        value = getattr(selection, name)
        if value is not None:
            found.append(pc.field(name) == value)
    if selection.after is not None:
        found.append(pc.field("id_key") > id_key(selection.after))
    if selection.upto is not None:
        found.append(pc.field("id_key") <= id_key(selection.upto))
    return all_of(found)
