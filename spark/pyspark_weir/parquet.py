"""The Parquet files of an archive: what entries are in one, read with plain pyarrow.

Knows: the columns of an entry, how IDs are compared many at once.
Must never know: manifests' form, gateways, Spark.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pyspark_weir import ids
from pyspark_weir.ids import EntryId
from pyspark_weir.manifest import File, ManifestError
from pyspark_weir.place import Place

# Within a file; the stream is the folder's.
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("ms", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        pa.field("fields", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
_rows_at_once: Final = 65_536
Half = npt.NDArray[np.uint64]


class IdRun:
    """IDs in columns, as unsigned halves."""

    def __init__(self, ms: Half, seq: Half) -> None:
        self.ms = ms
        self.seq = seq

    @classmethod
    def of(cls, texts: pa.StringArray) -> "IdRun":
        """From their text form; no Python per row. Raises ArrowInvalid for what are no IDs."""
        if not len(texts):
            return cls(np.empty(0, np.uint64), np.empty(0, np.uint64))
        halves = pc.split_pattern(texts, "-")
        numbers = pc.cast(pc.list_flatten(halves), pa.uint64()).to_numpy(zero_copy_only=False)
        if len(numbers) != 2 * len(texts):
            raise pa.ArrowInvalid("an ID is not like 1700000000000-0")
        return cls(numbers[0::2], numbers[1::2])

    def __len__(self) -> int:
        return len(self.ms)

    def __getitem__(self, index: int) -> EntryId:
        return EntryId(int(self.ms[index]), int(self.seq[index]))

    def up_to(self, end: EntryId) -> int:
        """How many of them are not after `end`."""
        ms, seq = np.uint64(end.ms), np.uint64(end.seq)
        return int(np.count_nonzero((self.ms < ms) | ((self.ms == ms) & (self.seq <= seq))))

    def first_disorder(self) -> EntryId | None:
        """The first that does not come after the one before it; None where they ascend."""
        ms, seq = self.ms, self.seq
        wrong = (ms[1:] < ms[:-1]) | ((ms[1:] == ms[:-1]) & (seq[1:] <= seq[:-1]))
        return self[int(np.argmax(wrong)) + 1] if wrong.any() else None


def first_disorder(runs: Sequence[IdRun]) -> EntryId | None:
    """The first ID of runs, none of them empty, that does not come after the one before it."""
    before: EntryId | None = None
    for run in runs:
        if before is not None and run[0] <= before:
            return run[0]
        if (wrong := run.first_disorder()) is not None:
            return wrong
        before = run[-1]
    return None


def opened(place: Place, name: str) -> pq.ParquetFile:
    """A file with its footer read. Raises ManifestError where it is missing or damaged."""
    try:
        return pq.ParquetFile(place.open(name))
    except FileNotFoundError:
        raise ManifestError(f"{name} is missing: its manifest counts on it; restore it from a copy") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise ManifestError(f"{name} is no whole Parquet file: {error}; restore it from a copy") from None


def footer_rows(place: Place, name: str) -> int:
    """How many rows its footer counts. Raises as `opened`."""
    with opened(place, name) as file:
        return int(file.metadata.num_rows)


def id_runs(place: Place, name: str) -> Iterator[IdRun]:
    """The IDs of a file, as they lie there. Raises ManifestError."""
    with opened(place, name) as file:
        try:
            for batch in file.iter_batches(_rows_at_once, columns=["id"]):
                yield IdRun.of(batch.column(0))
        except (pa.ArrowInvalid, OSError) as error:
            raise ManifestError(f"{name} cannot be read: {error}; restore it from a copy") from None


def rows_within(place: Place, file: File, after: EntryId, end: EntryId) -> int:
    """How many entries of a file lie in `(after, end]`; read only where the file's edges do not say it."""
    from_id, to_id = _edges(file)
    if after < from_id and to_id <= end:
        return file.rows
    if to_id <= after or end < from_id:
        return 0
    return sum(run.up_to(end) - run.up_to(after) for run in id_runs(place, file.path))


def dataset(place: Place, files: Iterable[File]) -> ds.Dataset:
    """Files as one table of `shard, stream, date, id, ms, seq, ts, fields`; the first three come from the
    manifest, so that filters on them pass files over.
    """
    schema = pa.schema([("shard", pa.string()), ("stream", pa.string()), ("date", pa.string()), *SCHEMA])
    form = ds.ParquetFileFormat()
    fragments = [
        form.make_fragment(place.path(file.path), place.files, partition_expression=_told(file))
        for file in files
    ]
    return ds.FileSystemDataset(fragments, schema, form, place.files)


def _told(file: File) -> pc.Expression:
    date = ds.field("date").is_null() if file.date is None else ds.field("date") == file.date
    return (ds.field("shard") == file.shard) & (ds.field("stream") == file.stream) & date


def _edges(file: File) -> tuple[EntryId, EntryId]:
    return ids.parse(file.min), ids.parse(file.max)
