"""An archive as a table of Spark, in any session: no jar, no catalog. Entries are read, and batches written.

Knows: Spark's filters, readers and writers, the statistics of an archive's files.
Must never know: checkpoints, how a file is laid out, how a commit is made.

A task that writes gives its files random names, and sends these and the number of its entries to the driver.
Where Spark runs a task twice, after a failure or because it was slow, the driver takes one attempt, and the
files of the other never count.
"""

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Final
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_weir import ids
from pyspark_weir.errors import ArchiveError, PipelineError
from pyspark_weir.filters import Compare, Comparison, PushedFilters, comparison_of
from pyspark_weir.table import deletions
from pyspark_weir.table.files import DataFile, write_completed
from pyspark_weir.table.log import storage_failures
from pyspark_weir.table.ranges import BatchRanges, StreamKey, Tally, add_tallies
from pyspark_weir.table.reading import scan, tally
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import SCHEMA, all_of, complete, id_key
from pyspark_weir.table.table import ArchiveTable, Batch

# What a task reads, of compressed bytes; and files, each of which costs a request or two.
PART_BYTES_MAX: Final = 64 << 20
PART_FILES_MAX: Final = 100
# As the version of the deletions to leave out.
_KEEP: Final = str(None)
_COLUMNS: Final[StructType] = from_arrow_schema(SCHEMA)
_ARROW: Final = to_arrow_schema(_COLUMNS, timezone="UTC")


def entries(
    spark: SparkSession,
    root: str | ArchiveRoot,
    *,
    storage: Mapping[str, str] | None = None,
    fields: str = "entries",
    drop_deleted: bool = False,
) -> DataFrame:
    """The entries of an archive at its latest version: `gateway, stream, generation, id, id_key, ms, seq, ts,
    fields, date`. What is archived later is in the next such table.

    `fields` is `array<struct<name: string, value: binary>>`, which loses nothing; with `fields="map"` a
    `map<string, string>`, which has the first value of a name that repeats. Filters on gateway, stream,
    generation, id, id_key, ms, ts and date (`=`, `IN`, `<`, `BETWEEN` …) keep files from being opened.
    Entries that were deleted in the gateway after they were archived are among them; `drop_deleted` leaves
    out those that are recorded by now, which `table.known_upto` says. `storage` holds the options of
    ArchiveRoot, if the root is no folder. Raises ArchiveError where there is no archive.
    """
    place = root if isinstance(root, ArchiveRoot) else ArchiveRoot.of(root, storage)
    options = {
        **options_of(place),
        "version": str(ArchiveTable.open(place).version),
        "deletions": str(deletions.version(place)) if drop_deleted else _KEEP,
    }
    register(spark)
    found = spark.read.format(ArchiveDataSource.name()).options(**options).load()
    return found.withColumn("fields", as_map(sf.col("fields"))) if fields == "map" else found


_REGISTERED: Final[WeakSet[SparkSession]] = WeakSet()


def register(spark: SparkSession) -> None:
    """Have a session know `weir_archive`; Spark warns of a name that is registered again."""
    if spark not in _REGISTERED:
        spark.dataSource.register(ArchiveDataSource)
        _REGISTERED.add(spark)


def options_of(root: ArchiveRoot) -> dict[str, str]:
    """The options of ArchiveDataSource that say where the archive is."""
    return {"root": root.url, "storage": json.dumps(dict(root.options))}


def as_map(pairs: Column) -> Column:
    """Names and bytes as a map of text; of a name that repeats, the first."""
    names = sf.array_distinct(sf.transform(pairs, lambda one: one["name"]))

    def first(name: Column) -> Column:
        return sf.element_at(sf.filter(pairs, lambda one: one["name"] == name), 1)["value"].cast("string")

    return sf.map_from_arrays(names, sf.transform(names, first))


class ArchiveDataSource(DataSource):
    """`weir_archive`. Options: `root` and `storage` (JSON) of ArchiveRoot; for reading `version` of the
    table, and `deletions`, the version of those to leave out; for writing `moved`, the ranges of the batch as
    a commit holds them.
    """

    @classmethod
    def name(cls) -> str:
        return "weir_archive"

    def schema(self) -> StructType:
        return _COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        dropped = self.options["deletions"]
        version = int(self.options["version"])
        return ArchiveReader(self._root, version, None if dropped == _KEEP else int(dropped))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        return ArchiveWriter(self._root, BatchRanges.of_metadata(json.loads(self.options["moved"])))

    @property
    def _root(self) -> ArchiveRoot:
        return ArchiveRoot.of(self.options["root"], json.loads(self.options["storage"]))


@dataclass
class FilesPartition(InputPartition):
    """The files of one task."""

    files: tuple[DataFile, ...]


class Condition(Comparison):
    """A comparison of a column that files have statistics of."""

    def may_hold(self, file: DataFile) -> bool:
        if self.column == "date":
            low = high = file.date
        else:
            low, high = getattr(file.low, self.column), getattr(file.high, self.column)
        if low is None or high is None:
            # Null in all rows, of which no comparison is true.
            return False
        if self.compare is operator.eq:
            return any(low <= value <= high for value in self.values)
        edge = low if self.compare in (operator.lt, operator.le) else high
        return bool(self.compare(edge, self.values[0]))

    def expression(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """For the rows within a file; None where all rows are alike."""
        if self.column == "date":
            return None
        column, kind = pc.field(self.column), SCHEMA.field(self.column).type
        if self.compare is operator.eq:
            return column.isin(pa.array(self.values, kind))
        return self.compare(column, pa.scalar(self.values[0], kind))


_TEXTS: Final = frozenset(("gateway", "stream", "generation", "id_key"))


def conditions_of(one: Filter) -> tuple[Condition, ...]:
    """What a filter says that files have statistics of; nothing for others, which do not narrow."""
    found = comparison_of(one)
    if found is None:
        return ()
    column, compare, values = found
    try:
        if column == "id" and compare is operator.eq:
            column, values = "id_key", tuple([id_key(ids.parse(str(text))) for text in values])
    except PipelineError:
        return ()
    if column == "ms" and all(type(value) is int for value in values):
        return _of_ms(compare, values)
    if all(_is_of(column, value) for value in values):
        return (Condition(column, compare, values),)
    return ()


def _is_of(column: str, value: object) -> bool:
    if column == "ts":
        return isinstance(value, datetime) and value.tzinfo is not None
    if column == "date":
        return type(value) is date
    return column in _TEXTS and isinstance(value, str)


def _of_ms(compare: Compare, values: Sequence[int]) -> tuple[Condition, ...]:
    """Milliseconds as the first half of an ID; several values as all between the least and the greatest."""
    if compare is operator.eq:
        return *_of_ms(operator.ge, [min(values)]), *_of_ms(operator.le, [max(values)])
    edge = min(max(values[0] + (compare in (operator.le, operator.gt)), 0), ids.HALF_MAX)
    half = operator.lt if compare in (operator.lt, operator.le) else operator.ge
    return (Condition("id_key", half, (id_key(ids.EntryId(edge, 0)),)),)


class ArchiveReader(DataSourceReader):
    """Reads a version of an archive, but for the deletions of a version; all, unless filters narrow it."""

    def __init__(self, root: ArchiveRoot, version: int, dropped: int | None = None) -> None:
        self._root = root
        self._version = version
        self._dropped = dropped
        self._conditions: tuple[Condition, ...] = ()

    @property
    def pushFilters(self) -> PushedFilters:  # noqa: N802 - Spark's
        """Narrow what is read; Spark looks at each row all the same."""
        return PushedFilters(self._narrow)

    def _narrow(self, filters: list[Filter]) -> list[Filter]:
        self._conditions = tuple(found for one in filters for found in conditions_of(one))
        return filters

    @storage_failures()
    def partitions(self) -> Sequence[InputPartition]:
        """One task for about PART_BYTES_MAX of files. Raises ArchiveError."""
        table = ArchiveTable.open(self._root, self._version)
        files = [file for file in table.files() if all(one.may_hold(file) for one in self._conditions)]
        return [FilesPartition(part) for part in _parts(files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own where there is none.
        files = partition.files if isinstance(partition, FilesPartition) else ()
        found = (one.expression() for one in self._conditions)
        condition = all_of([one for one in found if one is not None])
        with storage_failures():
            for file in files:
                for batch in self._scan(file, condition):
                    yield pa.RecordBatch.from_arrays(
                        [batch.column(field.name).cast(field.type) for field in _ARROW], schema=_ARROW
                    )

    def _scan(self, file: DataFile, condition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow has no types
        rows = scan(self._root, file, condition)
        if self._dropped is None:
            return rows
        deleted = deletions.recorded_in(self._root, file, self._dropped)
        return (deletions.without(batch, deleted) for batch in rows)


def _parts(files: Iterable[DataFile]) -> Iterator[tuple[DataFile, ...]]:
    part: list[DataFile] = []
    size = 0
    for file in files:
        if part and (size + file.size > PART_BYTES_MAX or len(part) == PART_FILES_MAX):
            yield tuple(part)
            part, size = [], 0
        part.append(file)
        size += file.size
    if part:
        yield tuple(part)


# What is read of each entry.
COLUMNS: Final = ("shard", "stream", "id", "fields")
# What a task holds in memory at once, as Arrow; then it writes a file for each day in it.
BYTES_MAX: Final = 256 << 20


@dataclass
class Written(WriterCommitMessage):
    """Files, and what is in them of each stream."""

    files: tuple[DataFile, ...]
    tallies: Mapping[StreamKey, Tally]


class ArchiveWriter(DataSourceArrowWriter):
    """Writes a batch of COLUMNS. `moved` has its ranges, whose rows are not counted yet."""

    def __init__(self, root: ArchiveRoot, moved: BatchRanges) -> None:
        self._root = root
        self._moved = moved

    @storage_failures()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: its files, which the disk holds when it returns. Raises PipelineError."""
        keys = {(one.key.gateway, one.key.stream): one.key for one in self._moved.ranges}
        files: list[DataFile] = []
        tallies: dict[StreamKey, Tally] = {}
        for part in _joined(iterator):
            rows = complete(_to_given(part, keys))
            files += write_completed(self._root, rows)
            add_tallies(tallies, tally(rows))
        return Written(tuple(files), tallies)

    @storage_failures()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: one commit of the table. Raises PipelineError."""
        written = [one for one in messages if isinstance(one, Written)]
        tallies: dict[StreamKey, Tally] = {}
        for one in written:
            add_tallies(tallies, one.tallies)
        ranges = tuple(
            one._replace(rows=tallies[one.key].rows if one.key in tallies else 0)
            for one in self._moved.ranges
        )
        digests = {key: one.digest for key, one in tallies.items()}
        moved = replace(self._moved, ranges=ranges, digests=digests)
        files = tuple(file for one in written for file in one.files)
        ArchiveTable.open(self._root).commit(Batch(moved, files))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
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


def _to_given(rows: pa.Table, keys: Mapping[tuple[str, str], StreamKey]) -> pa.Table:
    """Rows as the table takes them."""
    # No name of a gateway holds a slash.
    joined = pc.binary_join_element_wise(rows["shard"], rows["stream"], "/").combine_chunks()
    names = pc.dictionary_encode(joined)
    found = [_key(name, keys) for name in names.dictionary.to_pylist()]
    return pa.table(
        {
            "gateway": rows["shard"],
            "stream": rows["stream"],
            "generation": pa.array([key.generation for key in found], pa.string()).take(names.indices),
            "id": rows["id"],
            "fields": rows["fields"],
        }
    )


def _key(name: str, keys: Mapping[tuple[str, str], StreamKey]) -> StreamKey:
    gateway, _, stream = name.partition("/")
    found = keys.get((gateway, stream))
    if found is None:
        raise ArchiveError(f"the batch has entries of {name}, and no range of it")
    return found
