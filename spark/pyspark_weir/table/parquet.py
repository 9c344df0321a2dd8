"""Parquet files of an archive, written and read in one way: a reader proves the bytes that it reads.

Knows: what is checked, and by what; how files of other programs are cast. Must never know: commits, what the
rows are.

```
PAR1 │ pages, each with a CRC-32 │ page index │ WEIR, CRC-32 of the footer │ footer │ its length │ PAR1
```
Parquet has no checksum of a footer, whose statistics say which rows need not be read. Ours is in the eight
bytes before it, where other readers do not look. Files that were written before, and those of other programs,
have no checksums, and are read as they are.
"""

import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset as ds

from pyspark_weir.errors import ArchiveDamagedError
from pyspark_weir.table.root import Folder

# Larger groups make one page of a stream expensive: of a file of a million entries, a page of 1,000 costs
# 131 ms so, 323 ms with groups of 100,000 rows.
ROW_GROUP_ROWS_MAX: Final = 10_000
# A page grows by this many rows before its size is looked at: 64 of 1 MiB are what a reader holds at once.
_PAGE_ROWS_STEP: Final = 64
# Read-ahead of one column of one file: without a limit, a whole row group's column is read at once.
_READ_BYTES: Final = 1 << 16
# Most footers are shorter: one read is enough for them.
_TAIL_BYTES: Final = 1 << 16
_MAGIC: Final = b"PAR1"
# What the checksum of a footer begins with.
_SEAL: Final = b"WEIR"
_SEAL_BYTES: Final = 8
# A footer's length, and the magic number.
_END_BYTES: Final = 8
# Beside Arrow's own, what a damaged footer makes it raise.
_DAMAGES: Final = (pa.ArrowException, OSError, ValueError, LookupError, ArithmeticError, MemoryError)


class CheckedWriter:
    """Writes a file to a stream, which it leaves open; rows come `sorted_by` these columns."""

    def __init__(self, stream: Any, schema: pa.Schema, sorted_by: Sequence[str] = ()) -> None:  # noqa: ANN401 - pyarrow has no types
        self._stream = stream
        self._sink = _Sink(stream)
        self._parquet = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            write_page_checksum=True,
            write_page_index=True,
            write_batch_size=_PAGE_ROWS_STEP,
            # Other engines read types of their own out of Arrow's.
            store_schema=not sorted_by,
            sorting_columns=[pq.SortingColumn(schema.get_field_index(name)) for name in sorted_by] or None,
        )

    def write(self, rows: pa.Table) -> None:
        """Add rows, in groups of at most ROW_GROUP_ROWS_MAX."""
        self._parquet.write_table(rows, row_group_size=ROW_GROUP_ROWS_MAX)

    def close(self) -> None:
        """End the file: it is whole when this returns."""
        self._sink.hold()
        self._parquet.close()
        held = bytes(self._sink.held)
        start = len(held) - _END_BYTES - int.from_bytes(held[-_END_BYTES : -len(_MAGIC)], "little")
        self._stream.write(held[:start] + _seal(held[start:-_END_BYTES]) + held[start:])


def _seal(footer: bytes) -> bytes:
    return _SEAL + zlib.crc32(footer).to_bytes(_SEAL_BYTES - len(_SEAL), "little")


class _Sink(io.RawIOBase):
    """What pyarrow writes to: a stream, and memory from `hold` on."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - the same
        self._stream = stream
        self._written = 0
        self._holds = False
        self.held = bytearray()

    def hold(self) -> None:
        self._holds = True

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - bytes, or a buffer
        if self._holds:
            self.held += data
        else:
            self._stream.write(data)
        self._written += len(data)
        return len(data)


def write_table(stream: Any, rows: pa.Table) -> None:  # noqa: ANN401 - the same
    """Write a file of these rows to a stream."""
    writer = CheckedWriter(stream, rows.schema)
    writer.write(rows)
    writer.close()


class Footer(NamedTuple):
    """A file's `metadata`, as pyarrow has it, and their bytes as a file without pages. `is_checked`: the file
    has checksums.
    """

    metadata: Any
    raw: bytes
    is_checked: bool


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raises ArchiveDamagedError where what is read inside is missing, damaged, or no whole Parquet file."""
    try:
        yield
    except FileNotFoundError:
        raise ArchiveDamagedError(f"{path} is missing, and the table counts on it: restore it") from None
    except _DAMAGES as error:
        # Arrow says some things in several lines.
        reason = " ".join(str(error).split()) or type(error).__name__
        what = f"{path} is damaged, or no whole Parquet file"
        raise ArchiveDamagedError(f"{what}: {reason}; restore it") from None


def read_footer(root: Folder, path: str) -> Footer:
    """A file's footer. Raises ArchiveDamagedError."""
    with reading(path), root.files.open_input_file(root.path(path)) as file:
        size = file.size()
        tail = _read_end(file, size, _TAIL_BYTES)
        length = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little")
        needed = length + _END_BYTES + _SEAL_BYTES
        if tail[-len(_MAGIC) :] != _MAGIC or needed > size:
            raise pa.ArrowInvalid("it has no footer")
        if needed > len(tail):
            tail = _read_end(file, size, needed)
        seal, footer = tail[-needed:][:_SEAL_BYTES], tail[-_END_BYTES - length : -_END_BYTES]
        is_checked = seal.startswith(_SEAL)
        if is_checked and seal != _seal(footer):
            raise pa.ArrowInvalid("its footer is not what was written")
        raw = _MAGIC + tail[-_END_BYTES - length :]
        return Footer(pq.read_metadata(pa.BufferReader(raw)), raw, is_checked)


def _read_end(file: Any, size: int, wanted: int) -> bytes:  # noqa: ANN401 - the same
    count = min(size, wanted)
    return bytes(file.read_at(count, size - count))


def read_group(root: Folder, path: str, footer: Footer, number: int, schema: pa.Schema) -> pa.Table:
    """The rows of a row group, with these columns. Raises ArchiveDamagedError."""
    with reading(path), root.files.open_input_file(root.path(path)) as source:
        return _read_group(_open(source, footer, pre_buffer=not root.is_local), footer, number, schema)


def read_table(root: Folder, path: str) -> pa.Table:
    """All rows of a file, as they were written. Raises ArchiveDamagedError."""
    footer = read_footer(root, path)
    with reading(path), root.files.open_input_file(root.path(path)) as source:
        return _open(source, footer).read(use_threads=False)


def read_matching(root: Folder, path: str, schema: pa.Schema, condition: Any = None) -> Iterator[pa.Table]:  # noqa: ANN401 - the same
    """Rows with these columns in the file's order, a row group at a time, none of them empty; those that meet
    pyarrow's expression over these columns. Groups whose statistics exclude it are not read. Raises
    ArchiveDamagedError.
    """
    footer = read_footer(root, path)
    with reading(path), root.files.open_input_file(root.path(path)) as source:
        parquet = _open(source, footer, pre_buffer=not root.is_local)
        for number in _matching(footer, schema, condition):
            rows = _read_group(parquet, footer, number, schema)
            found = rows if condition is None else rows.filter(condition)
            if found.num_rows:
                yield found


def _matching(footer: Footer, schema: pa.Schema, condition: Any) -> Sequence[int]:  # noqa: ANN401 - the same
    every = range(footer.metadata.num_row_groups)
    if condition is None:
        return every
    fragment = ds.ParquetFileFormat().make_fragment(pa.py_buffer(footer.raw))
    try:
        return [group.id for group in fragment.subset(condition, schema).row_groups]
    except pa.ArrowNotImplementedError:
        # Another program's types, which Arrow does not compare with ours.
        return every


def read_in_pieces(root: Folder, path: str, memory_bytes: int, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file in its order with these columns, as tables of about `memory_bytes` each. Raises
    ArchiveDamagedError.
    """
    footer = read_footer(root, path)
    with reading(path), root.files.open_input_file(root.path(path)) as source:
        parquet = _open(source, footer, pre_buffer=False, buffer_size=_READ_BYTES)
        columns = _present(parquet, schema)
        for number in range(footer.metadata.num_row_groups):
            known = footer.metadata.row_group(number)
            row_bytes = max(1, known.total_byte_size // max(1, known.num_rows))
            rows = min(ROW_GROUP_ROWS_MAX, max(1, memory_bytes // row_bytes))
            read = 0
            for batch in parquet.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
                read += batch.num_rows
                yield _conform(pa.Table.from_batches([batch]), footer, schema)
            _check_count(read, known.num_rows)


def _open(source: Any, footer: Footer, **options: Any) -> Any:  # noqa: ANN401 - the same
    return pq.ParquetFile(source, metadata=footer.metadata, page_checksum_verification=True, **options)


def _read_group(parquet: Any, footer: Footer, number: int, schema: pa.Schema) -> pa.Table:  # noqa: ANN401 - the same
    found = parquet.read_row_group(number, columns=_present(parquet, schema), use_threads=False)
    _check_count(found.num_rows, footer.metadata.row_group(number).num_rows)
    return _conform(found, footer, schema)


def _present(parquet: Any, schema: pa.Schema) -> list[str]:  # noqa: ANN401 - the same
    there = set(parquet.schema_arrow.names)
    return [name for name in schema.names if name in there]


def _check_count(found: int, promised: int) -> None:
    if found != promised:
        raise pa.ArrowInvalid(f"a row group has {found} rows, not {promised}")


def _conform(rows: pa.Table, footer: Footer, schema: pa.Schema) -> pa.Table:
    """The same rows with exactly these columns: each writer has types and names of members of its own, and
    leaves out a column that is null.
    """
    if not footer.is_checked:
        # Texts that are none, and places beyond the end.
        rows.validate(full=True)
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            column = rows[field.name]
        elif field.nullable:
            column = pa.nulls(rows.num_rows, field.type)
        else:
            raise pa.ArrowInvalid(f"it has no column {field.name}")
        if column.null_count and not field.nullable:
            raise pa.ArrowInvalid(f"a row has no {field.name}")
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
