"""Entries that were deleted from a stream after they were archived: a small Delta table inside the archive.

Knows: its columns, and that to record something twice changes nothing.
Must never know: how deletions are found.

```
ROOT/_weir/deletions/     gateway, stream, generation, id, id_key, deleted
```
A row with `deleted` names a deleted entry. One without says that all deletions up to this ID are recorded.
The archive's own table keeps the entries: `without` leaves them out.
"""

import json
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from pyspark_weir import clock
from pyspark_weir.errors import CommitConflictError
from pyspark_weir.ids import EntryId
from pyspark_weir.table import log, ranges
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.parquet import read_matching, write_table
from pyspark_weir.table.ranges import ENTRY_KEYS, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import id_key, id_of_key

SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in (*StreamKey._fields, "id", "id_key")),
        pa.field("deleted", pa.bool_(), nullable=False),
    ]
)
FOLDER: Final = f"{ranges.FOLDER}/deletions"
_FILES_MAX: Final = 100
# In a bucket each waits for the network.
_READS_AT_ONCE: Final = 8
_ATTEMPTS_MAX: Final = 100
# A checkpoint may be lost in a power cut: then the log has all of it.
_CONFIGURATION: Final = {"delta.enableExpiredLogCleanup": "false"}
# Each commit is a transaction, with which a whole one ends.
_APPLICATION: Final = "weir-deletions"


def record(
    root: ArchiveRoot, upto: Mapping[StreamKey, EntryId], deleted: Mapping[StreamKey, Iterable[EntryId]]
) -> None:
    """Record deleted entries, and up to which ID of each stream all are known. May be repeated.

    Raises CommitConflictError where other writers are faster each time.
    """
    rows = [(*key, str(one), id_key(one), True) for key, own in deleted.items() for one in own]
    rows += [(*key, str(end), id_key(end), False) for key, end in upto.items()]
    if not rows:
        return
    columns = zip(*rows, strict=True)
    table = pa.Table.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    own = root.inside(FOLDER)
    log.create(own, Schema.from_arrow(SCHEMA), _CONFIGURATION)
    file = _write(own, table)
    for _attempt in range(_ATTEMPTS_MAX):
        stored = _open(own)
        if _commit(own, stored, [file]):
            break
    else:
        raise CommitConflictError(f"{own.url}: other writers were faster {_ATTEMPTS_MAX} times in a row")
    if pa.table(stored.get_add_actions()).num_rows > _FILES_MAX:
        _join(own)


def _join(own: ArchiveRoot) -> None:
    """Make one file of all. Another process that does so at once is refused, which changes nothing."""
    stored = _open(own)
    adds = pa.table(stored.get_add_actions()).to_pylist()
    removed = [RemoveAction(one["path"], False, clock.wall_ms(), one["size_bytes"], {}) for one in adds]  # noqa: FBT003
    _commit(own, stored, [_write(own, _rows(own, stored, None)), *removed])


def _write(own: ArchiveRoot, rows: pa.Table) -> AddAction:
    name = f"{uuid.uuid4().hex}.parquet"
    with own.create(name) as file:
        write_table(file, rows)
    own.sync([name])
    stats = json.dumps({"numRecords": rows.num_rows})
    return AddAction(name, own.size(name) or 0, {}, clock.wall_ms(), True, stats)  # noqa: FBT003


def _commit(own: ArchiveRoot, stored: DeltaTable, actions: list[AddAction | RemoveAction]) -> bool:
    """Commit as the next version, on top of what the disk holds; it holds this too then. False where another
    commit is that version.
    """
    version = stored.version() + 1
    if not log.commit(stored, actions, Transaction(_APPLICATION, version), {}):
        return False
    own.sync([log.commit_name(version)])
    stored.update_incremental()
    return True


def _open(own: ArchiveRoot) -> DeltaTable:
    stored = log.load(own)
    own.sync([log.commit_name(stored.version())])
    return stored


def read(root: ArchiveRoot) -> pa.Table:
    """The deleted entries, each once: the columns of SCHEMA but `deleted`."""
    found = _read(root, pc.field("deleted"))
    return found.drop_columns(["deleted"]).group_by(SCHEMA.names[:-1]).aggregate([])


def known_upto(root: ArchiveRoot) -> dict[StreamKey, EntryId]:
    """Up to which ID of each stream all deletions are recorded; streams of which none are have no item."""
    found = _read(root, ~pc.field("deleted")).group_by(StreamKey._fields).aggregate([("id_key", "max")])
    return {
        StreamKey(row["gateway"], row["stream"], row["generation"]): id_of_key(row["id_key_max"])
        for row in found.to_pylist()
    }


def version(root: ArchiveRoot) -> int | None:
    """The latest version of the recorded deletions; None where none were recorded yet."""
    own = root.inside(FOLDER)
    if not log.has_table(own):
        return None
    return log.load(own).version()


def recorded_in(root: ArchiveRoot, file: DataFile, at: int) -> pa.Table:
    """The deletions at a version that may concern entries of a file: rows for `without`."""
    condition = pc.field("deleted")
    for name in ENTRY_KEYS:
        low, high = getattr(file.low, name), getattr(file.high, name)
        condition &= (pc.field(name) >= low) & (pc.field(name) <= high)
    return _read(root, condition, at)


def without(rows: pa.RecordBatch, deleted: pa.Table) -> pa.RecordBatch:
    """Entries in their order, but those that were deleted."""
    if not deleted.num_rows:
        return rows
    numbers = pa.array(np.arange(rows.num_rows))
    keys = pa.Table.from_batches([rows.select(ENTRY_KEYS)]).append_column("number", numbers)
    kept = keys.join(deleted.select(ENTRY_KEYS), list(ENTRY_KEYS), join_type="left anti")["number"]
    return rows.take(pa.array(np.sort(kept.to_numpy())))


def _read(root: ArchiveRoot, condition: Any, at: int | None = None) -> pa.Table:  # noqa: ANN401 - pyarrow has no types
    at = version(root) if at is None else at
    if at is None:
        return SCHEMA.empty_table()
    own = root.inside(FOLDER)
    return _rows(own, log.load(own, at), condition)


def _rows(own: ArchiveRoot, stored: DeltaTable, condition: Any) -> pa.Table:  # noqa: ANN401 - the same
    paths = pa.table(stored.get_add_actions())["path"].to_pylist()
    with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
        parts = list(threads.map(lambda path: list(read_matching(own, path, SCHEMA, condition)), paths))
    return pa.concat_tables([SCHEMA.empty_table(), *chain.from_iterable(parts)])
