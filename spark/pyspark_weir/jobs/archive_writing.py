"""A batch's entries as files of an archive, written by Spark's tasks and committed by its driver.

Knows: Spark's writers, Arrow. Must never know: checkpoints, how a file is laid out, how a commit is made.

A task's files have random names. It sends these and the number of its entries to the driver. Where Spark runs
a task twice, after a failure or because it was slow, the driver takes one attempt, and the files of the other
never count.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_weir.table.errors import ArchiveError
from pyspark_weir.table.files import DataFile, write_files
from pyspark_weir.table.ranges import BatchRanges, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable, Batch

# What is read of each entry.
COLUMNS: Final = ("shard", "stream", "id", "fields")
# What a task holds in memory at once, as Arrow; then it writes a file for each day in it.
BYTES_MAX: Final = 256 << 20


@dataclass
class Written(WriterCommitMessage):
    """Files, and how many entries of each stream are in them."""

    files: tuple[DataFile, ...]
    rows: Mapping[StreamKey, int]


class ArchiveWriter(DataSourceArrowWriter):
    """Writes a batch of COLUMNS. `moved` has its ranges, whose rows are not counted yet."""

    def __init__(self, root: ArchiveRoot, moved: BatchRanges) -> None:
        self._root = root
        self._moved = moved

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: its files, which the disk holds when it returns. Raises ArchiveError, OSError."""
        keys = {(one.key.gateway, one.key.stream): one.key for one in self._moved.ranges}
        files: list[DataFile] = []
        rows: Counter[StreamKey] = Counter()
        for part in _parts(iterator):
            given, counted = _given(part, keys)
            files += write_files(self._root, given)
            rows.update(counted)
        return Written(tuple(files), dict(rows))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: one commit of the table. Raises ArchiveError."""
        written = [one for one in messages if isinstance(one, Written)]
        rows: Counter[StreamKey] = Counter()
        for one in written:
            rows.update(one.rows)
        moved = replace(
            self._moved, ranges=tuple(one._replace(rows=rows[one.key]) for one in self._moved.ranges)
        )
        files = tuple(file for one in written for file in one.files)
        ArchiveTable.open(self._root).commit(Batch(moved, files))


def writer_of(root: ArchiveRoot, options: Mapping[str, str]) -> ArchiveWriter:
    """The writer that `options_of` describes."""
    return ArchiveWriter(root, BatchRanges.of_metadata(json.loads(options["moved"])))


def options_of(moved: BatchRanges) -> dict[str, str]:
    """What a writer must know, as options of a data source."""
    return {"moved": json.dumps(moved.metadata(), ensure_ascii=False)}


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= BYTES_MAX:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _given(
    rows: pa.Table, keys: Mapping[tuple[str, str], StreamKey]
) -> tuple[pa.Table, dict[StreamKey, int]]:
    """Rows as the table takes them, and how many there are of each stream."""
    # No name of a gateway or a stream holds a slash.
    joined = pc.binary_join_element_wise(rows["shard"], rows["stream"], "/").combine_chunks()
    names = pc.dictionary_encode(joined)
    found = [_key(name, keys) for name in names.dictionary.to_pylist()]
    given = pa.table(
        {
            "gateway": rows["shard"],
            "stream": rows["stream"],
            "generation": pa.array([key.generation for key in found], pa.string()).take(names.indices),
            "id": rows["id"],
            "fields": rows["fields"],
        }
    )
    counts = np.bincount(names.indices.to_numpy(), minlength=len(found)).tolist()
    return given, dict(zip(found, counts, strict=True))


def _key(name: str, keys: Mapping[tuple[str, str], StreamKey]) -> StreamKey:
    gateway, _, stream = name.partition("/")
    found = keys.get((gateway, stream))
    if found is None:
        raise ArchiveError(f"the batch has entries of {name}, and no range of it")
    return found
