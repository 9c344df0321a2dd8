"""The entries of a replay's ranges, read by the task that sends them: from an archive or from a gateway.

Knows: an archive's files, pages of entries. Must never know: which ranges there are, where entries go.

What is read does not pass through a shuffle: a task reads the ranges of its own targets one after the other,
so that it sends the same entries in the same order at each run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from pyspark_weir import gateway as calls
from pyspark_weir import ids
from pyspark_weir.errors import DataLoss, Refused
from pyspark_weir.gateway import Access, ColumnsPage, Gateway
from pyspark_weir.jobs.replay_plan import Span
from pyspark_weir.source.decode import Form
from pyspark_weir.table.errors import ArchiveError
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.scan import condition_of, scan
from pyspark_weir.table.table import ArchiveTable, Selection

_PAIR: Final = StructType(
    [StructField("name", StringType(), nullable=False), StructField("value", BinaryType(), nullable=False)]
)
_ENTRY: Final = StructType(
    [
        StructField("id", StringType(), nullable=False),
        StructField("fields", ArrayType(_PAIR, containsNull=False), nullable=False),
    ]
)
ROWS: Final = StructType([StructField("stream", StringType(), nullable=False), *_ENTRY])
# What a source gives of each entry, and with its target.
SCHEMA: Final = to_arrow_schema(_ENTRY, timezone="UTC")
_WITH_TARGET: Final = to_arrow_schema(ROWS, timezone="UTC")
_rows_at_once: Final = 20_000
_bytes_at_once: Final = 4 << 20


@dataclass(frozen=True)
class Piece:
    """A range, and the files that hold it where it comes from an archive."""

    span: Span
    files: tuple[DataFile, ...] = ()


class Source(Protocol):
    """Where a replay reads. It travels to tasks as a pickle."""

    @property
    def address(self) -> str:
        """What it is called in the plan."""
        ...

    def pieces(self, spans: Sequence[Span]) -> list[Piece]:
        """On the driver: what tasks need to find the ranges. Raises PipelineError where they are gone."""
        ...

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """On a worker: the entries, ascending, as SCHEMA. Raises PipelineError."""
        ...


@dataclass(frozen=True)
class FromArchive:
    """An archive."""

    root: ArchiveRoot

    @property
    def address(self) -> str:
        return self.root.url

    def pieces(self, spans: Sequence[Span]) -> list[Piece]:
        table = ArchiveTable.open(self.root)
        found: list[Piece] = []
        for span in spans:
            files = table.files(_selected(span))
            if not files:
                raise ArchiveError(
                    f"the archive no longer holds {span.stream} from {span.after} to {span.end}, which the "
                    "replay was to send: restore it from a copy"
                )
            found.append(Piece(span, tuple(files)))
        return found

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        condition = condition_of(_selected(piece.span))
        batches = [batch for file in piece.files for batch in scan(self.root, file, condition)]
        if batches:
            # A compaction may have put the range into several files.
            rows = pa.Table.from_batches(batches).sort_by("id_key").select(SCHEMA.names)
            yield from rows.cast(SCHEMA).combine_chunks().to_batches(_rows_at_once)


@dataclass(frozen=True)
class FromGateway:
    """The streams of a gateway, as they are when they are read."""

    access: Access

    @property
    def address(self) -> str:
        return self.access.url

    def pieces(self, spans: Sequence[Span]) -> list[Piece]:
        return [Piece(span) for span in spans]

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        span, form = piece.span, Form(schema=SCHEMA, format="entries")
        after, more = span.after, True
        with Gateway(self.access) as gateway:
            while more:
                page = _page(gateway, span, after)
                if len(page):
                    yield form.batch(page, self.access.name, span.stream)
                after, more = page.next_id, page.more


def _page(gateway: Gateway, span: Span, after: str) -> ColumnsPage:
    """The next page of a range. Raises DataLoss where it is not what was planned."""
    try:
        page = calls.page(
            gateway,
            span.stream,
            after=after,
            end=span.end,
            count=_rows_at_once,
            max_bytes=_bytes_at_once,
            fail_on_gap=True,
        )
    except Refused as refused:
        if refused.status == 410:
            raise _lost(span, f"entries after {after} were trimmed before they were sent") from None
        raise
    if page.generation != span.generation:
        told = "the stream was deleted" + (" and made anew" if page.generation else "")
        raise _lost(span, f"{told} after the replay was planned")
    # From 0-0 nothing is a gap to the gateway.
    if ids.is_after(page.removed_upto, after):
        raise _lost(span, f"entries up to {page.removed_upto} were trimmed before they were sent")
    return page


def _lost(span: Span, what: str) -> DataLoss:
    return DataLoss(
        f"stream {span.stream}, ({span.after}, {span.end}]: {what}; what is missing may be in an archive: "
        "replay that, or what is left under a new --job-id"
    )


def _selected(span: Span) -> Selection:
    return Selection(
        span.shard, span.stream, span.generation, after=ids.parse(span.after), upto=ids.parse(span.end)
    )


class Entries(DataSource):
    """The entries of one slice, as Spark reads them: one partition for each task, its ranges in order.

    `options` hold which source, where it is, and each task's pieces as JSON.
    """

    @classmethod
    def name(cls) -> str:
        return "weir_replay"

    def schema(self) -> StructType:
        return ROWS

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(decoded(self.options))


@dataclass(frozen=True)
class Work:
    """What an `Entries` reads: each task's pieces."""

    source: FromArchive | FromGateway
    tasks: tuple[tuple[Piece, ...], ...]


def encoded(work: Work) -> dict[str, str]:
    """As options."""
    source = work.source
    where = (
        {"root": source.root.url, "storage": dict(source.root.options)}
        if isinstance(source, FromArchive)
        else {"access": asdict(source.access)}
    )
    return {"source": msgspec.json.encode(where).decode(), "tasks": msgspec.json.encode(work.tasks).decode()}


def decoded(options: Mapping[str, str]) -> Work:
    """From options."""
    where = msgspec.json.decode(options["source"])
    tasks = msgspec.json.decode(options["tasks"], type=tuple[tuple[Piece, ...], ...])
    if "root" in where:
        return Work(FromArchive(ArchiveRoot.of(where["root"], where["storage"])), tasks)
    return Work(FromGateway(Access(**where["access"])), tasks)


class _Reader(DataSourceReader):
    def __init__(self, work: Work) -> None:
        self._work = work

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(len(self._work.tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On a worker. Raises PipelineError."""
        for piece in self._work.tasks[partition.value]:
            batches = whole(self._work.source.batches(piece), piece.span)
            yield from targeted(batches, piece.span.target)


def whole(batches: Iterable[pa.RecordBatch], span: Span) -> Iterator[pa.RecordBatch]:
    """Batches of a range; what is told as sent is what the plan counted. Raises DataLoss where it is not."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    if rows != span.rows:
        raise _lost(span, f"{rows:,} entries are there, {span.rows:,} were when the replay was planned")


def targeted(batches: Iterable[pa.RecordBatch], target: str) -> Iterator[pa.RecordBatch]:
    """Batches with the stream that they go to before their other columns."""
    for batch in batches:
        names = pa.repeat(pa.scalar(target), batch.num_rows)
        yield pa.RecordBatch.from_arrays([names, *batch.columns], schema=_WITH_TARGET)
