"""Reads the table's files: the rows that meet a condition; counts and lists of the entries of streams.

Knows: the columns that name an entry, and when statistics answer without a look into a file.
Must never know: gateways, what the counts are compared with.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset as ds

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveError
from pyspark_weir.ids import EntryId
from pyspark_weir.table.files import Bounds, DataFile, reading
from pyspark_weir.table.merging import merge, read_in_pieces
from pyspark_weir.table.ranges import ENTRY_KEYS, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import DATE, IN_FILES, SCHEMA, SORTED_BY, all_of, id_key
from pyspark_weir.table.table import EntryFilter

T = TypeVar("T")
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
    for piece in _in_order(file, read_in_pieces(root, file.path, _MEMORY_BYTES, ENTRY_KEYS)):
        counted = piece.group_by(StreamKey._fields).aggregate(
            [("id_key", "min"), ("id_key", "max"), ("id_key", "count")]
        )
        yield (
            piece,
            [
                Span(
                    StreamKey(*(row[name] for name in StreamKey._fields)),
                    row["id_key_min"],
                    row["id_key_max"],
                    row["id_key_count"],
                )
                for row in counted.to_pylist()
            ],
        )


def _in_order(file: DataFile, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Rows of a file, sorted: those of a foreign one all at once, until `compact` has sorted it."""
    if file.is_ours:
        yield from pieces
        return
    held = list(pieces)
    if held:
        found = pa.concat_tables(held)
        # Each writer names the members of lists as it likes.
        kinds = pa.schema([IN_FILES.field(name) for name in found.column_names])
        yield found.cast(kinds).sort_by([(name, "ascending") for name in SORTED_BY])


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
    wanted = list(dict.fromkeys((*ENTRY_KEYS, *columns)))
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


# As a row group has.
_ROWS_MAX: Final = 10_000


def scan(root: ArchiveRoot, file: DataFile, condition: Any = None) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow has no types
    """Rows of SCHEMA in the file's order, at most 10,000 at once; `condition` is pyarrow's expression over
    the columns of IN_FILES. Row groups whose statistics exclude it are not read. Raises ArchiveDamagedError.
    """
    for batch in _batches(root, file, condition, IN_FILES.names):
        day = pa.repeat(pa.scalar(file.date, SCHEMA.field(DATE).type), batch.num_rows)
        yield pa.RecordBatch.from_arrays([*batch.columns, day], schema=SCHEMA)


def keys_in(root: ArchiveRoot, file: DataFile, selection: EntryFilter) -> dict[StreamKey, pa.Array]:
    """The selected `id_key`s of a file, ascending, by stream. Raises ArchiveDamagedError."""
    found: dict[StreamKey, list[pa.Array]] = {}
    for batch in _batches(root, file, condition_of(selection), list(ENTRY_KEYS)):
        table = pa.Table.from_batches([batch])
        for row in table.group_by(StreamKey._fields).aggregate([]).to_pylist():
            keys = table.filter(condition_of(EntryFilter(**row)))["id_key"].combine_chunks()
            found.setdefault(StreamKey(**row), []).append(keys)
    joined = {key: pa.concat_arrays(parts) for key, parts in found.items()}
    return joined if file.is_ours else {key: keys.sort() for key, keys in joined.items()}


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


def _batches(
    root: ArchiveRoot,
    file: DataFile,
    condition: Any,  # noqa: ANN401 - the same
    columns: list[str],
) -> Iterator[pa.RecordBatch]:
    with reading(file.path):
        found = ds.dataset([root.path(file.path)], schema=IN_FILES, format="parquet", filesystem=root.files)
        scanner = found.scanner(
            columns=columns,
            filter=condition,
            batch_size=_ROWS_MAX,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        yield from (batch for batch in scanner.to_batches() if batch.num_rows)
