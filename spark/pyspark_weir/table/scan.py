"""The rows of an archive's file that meet a condition, read in pieces.

Knows: Parquet. Must never know: which files count.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset as ds

from pyspark_weir.table.errors import ArchiveDamagedError
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import DATE, IN_FILES, SCHEMA, id_key
from pyspark_weir.table.table import Selection

# As a row group has.
_ROWS_MAX: Final = 10_000


def scan(root: ArchiveRoot, file: DataFile, condition: Any = None) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow has no types
    """Rows of SCHEMA in the file's order, at most 10,000 at once; `condition` is pyarrow's expression over
    the columns of IN_FILES. Row groups whose statistics exclude it are not read. Raises ArchiveDamagedError.
    """
    for batch in _batches(root, file, condition, IN_FILES.names):
        day = pa.repeat(pa.scalar(file.date, SCHEMA.field(DATE).type), batch.num_rows)
        yield pa.RecordBatch.from_arrays([*batch.columns, day], schema=SCHEMA)


def keys_in(root: ArchiveRoot, file: DataFile, selection: Selection) -> dict[StreamKey, pa.Array]:
    """The selected `id_key`s of a file, ascending, by stream. Raises ArchiveDamagedError."""
    found: dict[StreamKey, list[pa.Array]] = {}
    names = ["gateway", "stream", "generation"]
    for batch in _batches(root, file, condition_of(selection), [*names, "id_key"]):
        table = pa.Table.from_batches([batch])
        for row in table.group_by(names).aggregate([]).to_pylist():
            own = pc.field("gateway") == row["gateway"]
            for name in names[1:]:
                own &= pc.field(name) == row[name]
            keys = table.filter(own)["id_key"].combine_chunks()
            found.setdefault(StreamKey(**row), []).append(keys)
    return {key: pa.concat_arrays(parts) for key, parts in found.items()}


def condition_of(selection: Selection) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The rows that a selection means, but for its times: pyarrow's expression, None for all."""
    found: list[Any] = []
    for name in ("gateway", "stream", "generation"):
        value = getattr(selection, name)
        if value is not None:
            found.append(pc.field(name) == value)
    if selection.after is not None:
        found.append(pc.field("id_key") > id_key(selection.after))
    if selection.upto is not None:
        found.append(pc.field("id_key") <= id_key(selection.upto))
    both = found[0] if found else None
    for one in found[1:]:
        both &= one
    return both


def _batches(
    root: ArchiveRoot,
    file: DataFile,
    condition: Any,  # noqa: ANN401 - the same
    columns: list[str],
) -> Iterator[pa.RecordBatch]:
    try:
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
    except FileNotFoundError:
        raise ArchiveDamagedError(f"{file.path} is missing, and the table counts on it: restore it") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise ArchiveDamagedError(f"{file.path} cannot be read: {error}; restore it") from None
