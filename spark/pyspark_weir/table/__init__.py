"""The archive: one Delta table a root, which any engine reads. Knows neither Spark nor gateways.

    root = ArchiveRoot.of("s3://bucket/archive", {"AWS_REGION": "…"})  # or a path; can be pickled
    table = ArchiveTable.create(root)  # or .open(root)
    files = write_files(root, rows)  # a pyarrow table of GIVEN: gateway, stream, generation, id, fields
    key = StreamKey("g0", "orders", generation)
    moved = BatchRanges(query_id, batch_id, (Range(key, after, upto, rows.num_rows),))  # (after, upto]
    table.commit(Batch(moved, files))  # once; a repeat returns Committed(repeated=True)
    table.positions()[("g0", "orders")]  # Position(generation, upto): the next batch's `after`
    table.files(Selection(stream="orders", since=…, after=…))  # the DataFiles whose statistics match
    gaps(table.ranges())  # joined ranges; no gaps where they are contiguous from the beginning
    table.replace(old_files, new_files)  # compaction; CommitConflictError: begin again
    with writer_lock(table) as held: ...; held.keep()  # one maintenance at a time; ArchiveLockedError
    known_upto(root)  # {StreamKey: EntryId}: up to where deletions after archiving are recorded
    prove(root, file), read_rows(root, file), read_footer(root, path)  # ArchiveDamagedError

A handle stays at its version until `refresh()`; `commit` and `replace` refresh first. IDs are `ids.EntryId`s.
"""

from pyspark_weir.table.deletions import known_upto
from pyspark_weir.table.errors import (
    ArchiveDamagedError,
    ArchiveError,
    ArchiveLockedError,
    CommitConflictError,
    RangeConflictError,
    StaleFilesError,
)
from pyspark_weir.table.files import (
    Bounds,
    DataFile,
    prove,
    read_footer,
    read_rows,
    write_file,
    write_files,
)
from pyspark_weir.table.lock import Held, writer_lock
from pyspark_weir.table.ranges import BatchRanges, Position, Range, StreamKey, gaps
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import GIVEN, SCHEMA, complete, id_key, id_of_key
from pyspark_weir.table.table import ArchiveTable, Batch, Committed, Selection

__all__ = [
    "GIVEN",
    "SCHEMA",
    "ArchiveDamagedError",
    "ArchiveError",
    "ArchiveLockedError",
    "ArchiveRoot",
    "ArchiveTable",
    "Batch",
    "BatchRanges",
    "Bounds",
    "CommitConflictError",
    "Committed",
    "DataFile",
    "Held",
    "Position",
    "Range",
    "RangeConflictError",
    "Selection",
    "StaleFilesError",
    "StreamKey",
    "complete",
    "gaps",
    "id_key",
    "id_of_key",
    "known_upto",
    "prove",
    "read_footer",
    "read_rows",
    "write_file",
    "write_files",
    "writer_lock",
]
