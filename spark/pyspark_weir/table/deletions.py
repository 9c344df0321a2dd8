"""Entries that were deleted from a stream after they were archived: a small Delta table inside the archive.

Knows: its columns, and that to record something twice changes nothing.
Must never know: how deletions are found.

```
ROOT/_weir/deletions/     gateway, stream, generation, id, id_key, deleted
```
A row with `deleted` names a deleted entry. One without says that all deletions up to this ID are recorded.
The archive's own table keeps the entries: `without` leaves them out.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from pyspark_weir.ids import EntryId
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.ranges import FOLDER, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import id_key, id_of_key

SCHEMA: Final = pa.schema(
    [
        *(
            pa.field(name, pa.string(), nullable=False)
            for name in ("gateway", "stream", "generation", "id", "id_key")
        ),
        pa.field("deleted", pa.bool_(), nullable=False),
    ]
)
# What an entry is known by.
_KEYS: Final = [*StreamKey._fields, "id_key"]
_TABLE: Final = f"{FOLDER}/deletions"
# Rows are a set: two that join the files at once leave some twice, which changes nothing.
_FILES_MAX: Final = 100


def location(root: ArchiveRoot) -> str:
    """Where Delta's readers find it."""
    return f"{root.url}/{_TABLE}"


def record(
    root: ArchiveRoot, upto: Mapping[StreamKey, EntryId], deleted: Mapping[StreamKey, Iterable[EntryId]]
) -> None:
    """Record deleted entries, and up to which ID of each stream all are known. May be repeated."""
    rows = [(*key, str(one), id_key(one), True) for key, own in deleted.items() for one in own]
    rows += [(*key, str(end), id_key(end), False) for key, end in upto.items()]
    if not rows:
        return
    columns = zip(*rows, strict=True)
    table = pa.Table.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    write_deltalake(location(root), table, mode="append", storage_options=root.storage_options)
    stored = DeltaTable(location(root), storage_options=root.storage_options)
    if len(stored.file_uris()) > _FILES_MAX:
        stored.optimize.compact()


def read(root: ArchiveRoot) -> pa.Table:
    """The deleted entries, each once: the columns of SCHEMA but `deleted`."""
    found = _stored(root, pc.field("deleted"))
    return found.drop_columns(["deleted"]).group_by(SCHEMA.names[:-1]).aggregate([])


def known_upto(root: ArchiveRoot) -> dict[StreamKey, EntryId]:
    """Up to which ID of each stream all deletions are recorded; streams of which none are have no item."""
    found = _stored(root, ~pc.field("deleted")).group_by(StreamKey._fields).aggregate([("id_key", "max")])
    return {
        StreamKey(row["gateway"], row["stream"], row["generation"]): id_of_key(row["id_key_max"])
        for row in found.to_pylist()
    }


def version(root: ArchiveRoot) -> int | None:
    """The latest version of the recorded deletions; None where none were recorded yet."""
    where, options = location(root), root.storage_options
    if not DeltaTable.is_deltatable(where, storage_options=options):
        return None
    return DeltaTable(where, storage_options=options).version()


def recorded_in(root: ArchiveRoot, file: DataFile, at: int) -> pa.Table:
    """The deletions at a version that may concern entries of a file: rows for `without`."""
    condition = pc.field("deleted")
    for name in _KEYS:
        low, high = getattr(file.low, name), getattr(file.high, name)
        condition &= (pc.field(name) >= low) & (pc.field(name) <= high)
    return _stored(root, condition, at)


def without(rows: pa.RecordBatch, deleted: pa.Table) -> pa.RecordBatch:
    """Entries in their order, but those that were deleted."""
    if not deleted.num_rows:
        return rows
    numbers = pa.array(np.arange(rows.num_rows))
    keys = pa.Table.from_batches([rows.select(_KEYS)]).append_column("number", numbers)
    kept = keys.join(deleted.select(_KEYS), _KEYS, join_type="left anti")["number"]
    return rows.take(pa.array(np.sort(kept.to_numpy())))


def _stored(root: ArchiveRoot, condition: Any, at: int | None = None) -> pa.Table:  # noqa: ANN401 - pyarrow has no types
    at = version(root) if at is None else at
    if at is None:
        return SCHEMA.empty_table()
    table = DeltaTable(location(root), version=at, storage_options=root.storage_options)
    return pa.table(table.to_pyarrow_table(columns=SCHEMA.names, filters=condition)).cast(SCHEMA)
