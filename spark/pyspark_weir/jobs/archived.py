"""An archive as a table of Spark, in any session: no jar, no catalog.

Knows: Spark's filters, the statistics of an archive's files. Must never know: how entries came there.
"""

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_weir import ids
from pyspark_weir.errors import PipelineError
from pyspark_weir.table import deletions
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.scan import scan
from pyspark_weir.table.schema import SCHEMA, id_key
from pyspark_weir.table.table import ArchiveTable

# What a task reads, of compressed bytes; and files, each of which costs a request or two.
PART_BYTES_MAX: Final = 64 << 20
PART_FILES_MAX: Final = 100
# As the version of the deletions to leave out.
_KEEP: Final = str(None)
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
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
        "pushdown": spark.conf.get(_PUSHDOWN, "false") or "false",
    }
    register(spark)
    found = spark.read.format(ArchiveDataSource.name()).options(**options).load()
    return found.withColumn("fields", as_map(sf.col("fields"))) if fields == "map" else found


_registered: Final[WeakSet[SparkSession]] = WeakSet()


def register(spark: SparkSession) -> None:
    """Have a session know `weir_archive`; Spark warns of a name that is registered again."""
    if spark not in _registered:
        spark.dataSource.register(ArchiveDataSource)
        _registered.add(spark)


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
    table, `deletions`, the version of those to leave out, and `pushdown`, whether the session lets sources
    filter; for writing those of `archive_writing`.
    """

    @classmethod
    def name(cls) -> str:
        return "weir_archive"

    def schema(self) -> StructType:
        return _COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        # Spark refuses one that filters, unless its own setting allows it.
        kind = FilteringReader if self.options["pushdown"] == "true" else ArchiveReader
        dropped = self.options["deletions"]
        return kind(self._root, int(self.options["version"]), None if dropped == _KEEP else int(dropped))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        from pyspark_weir.jobs.archive_writing import writer_of  # noqa: PLC0415 - what reads does not load it

        return writer_of(self._root, self.options)

    @property
    def _root(self) -> ArchiveRoot:
        return ArchiveRoot.of(self.options["root"], json.loads(self.options["storage"]))


@dataclass
class FilesPartition(InputPartition):
    """The files of one task."""

    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class Condition:
    """What a filter says of a column that files have statistics of: it is one of `values` in one of the ways
    `==`, `<`, `<=`, `>`, `>=`.
    """

    column: str
    way: str
    values: tuple[Any, ...]

    def may_hold(self, file: DataFile) -> bool:
        """Whether a file may have such rows."""
        if self.column == "date":
            low = high = file.date
        else:
            low, high = getattr(file.low, self.column), getattr(file.high, self.column)
        if low is None or high is None:
            # Null in all rows, of which no comparison is true.
            return False
        return any(_MAY_HOLD[self.way](low, high, value) for value in self.values)

    def expression(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """For the rows within a file; None where all rows are alike."""
        if self.column == "date":
            return None
        column = pc.field(self.column)
        if self.way == "==":
            return column.isin(pa.array(self.values, SCHEMA.field(self.column).type))
        return _COMPARE[self.way](column, pa.scalar(self.values[0], SCHEMA.field(self.column).type))


_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MAY_HOLD: Final[Mapping[str, Callable[[Any, Any, Any], bool]]] = {
    "==": lambda low, high, value: low <= value <= high,
    "<": lambda low, _high, value: low < value,
    "<=": lambda low, _high, value: low <= value,
    ">": lambda _low, high, value: high > value,
    ">=": lambda _low, high, value: high >= value,
}
_WAYS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "==",
    EqualNullSafe: "==",
    In: "==",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}
_TEXTS: Final = frozenset(("gateway", "stream", "generation", "id_key"))


def conditions_of(one: Filter) -> tuple[Condition, ...]:
    """What a filter says that files have statistics of; nothing for others, which do not narrow."""
    way = _WAYS.get(type(one))
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if way is None or len(attribute) != 1:
        return ()
    value: Any = getattr(one, "value", None)
    values: tuple[Any, ...] = tuple(value) if way == "==" and isinstance(one, In) else (value,)
    column = attribute[0]
    try:
        if column == "id" and way == "==":
            column, values = "id_key", tuple([id_key(ids.parse(str(text))) for text in values])
    except PipelineError:
        return ()
    if column == "ms" and values and all(type(value) is int for value in values):
        return _of_ms(way, values)
    if all(_is_of(column, value) for value in values):
        return (Condition(column, way, values),)
    return ()


def _is_of(column: str, value: object) -> bool:
    if column == "ts":
        return isinstance(value, datetime) and value.tzinfo is not None
    if column == "date":
        return type(value) is date
    return column in _TEXTS and isinstance(value, str)


def _of_ms(way: str, values: Sequence[int]) -> tuple[Condition, ...]:
    """Milliseconds as the first half of an ID; several values as all between the least and the greatest."""
    if way == "==":
        return *_of_ms(">=", [min(values)]), *_of_ms("<=", [max(values)])
    edge = min(max(values[0] + (way in ("<=", ">")), 0), ids.HALF_MAX)
    return (Condition("id_key", "<" if way in ("<", "<=") else ">=", (id_key(ids.EntryId(edge, 0)),)),)


class ArchiveReader(DataSourceReader):
    """Reads a version of an archive, but for the deletions of a version; all, unless filters narrow it."""

    def __init__(self, root: ArchiveRoot, version: int, dropped: int | None = None) -> None:
        self._root = root
        self._version = version
        self._dropped = dropped
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        """One task for about PART_BYTES_MAX of files. Raises ArchiveError."""
        table = ArchiveTable.open(self._root, self._version)
        files = [file for file in table.files() if all(one.may_hold(file) for one in self._conditions)]
        return [FilesPartition(part) for part in _parts(files)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's rows, as Arrow. Raises ArchiveDamagedError."""
        # Spark makes a partition of its own where there is none.
        files = partition.files if isinstance(partition, FilesPartition) else ()
        found = [expression for one in self._conditions if (expression := one.expression()) is not None]
        condition = None
        for one in found:
            condition = one if condition is None else condition & one
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


class FilteringReader(ArchiveReader):
    """A reader that Spark gives its filters to."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """Narrow what is read; Spark looks at each row all the same."""
        self._conditions = tuple(found for one in filters for found in conditions_of(one))
        return filters


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
