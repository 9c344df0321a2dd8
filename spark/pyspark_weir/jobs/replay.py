"""Sends entries of an archive, or of a gateway, to a gateway once more: none lost, none twice.

Knows: Spark, the plan, the target. Must never know: how options are written, what is printed.

Each slice of the plan is one write with keys by position, whose epoch is the slice's number. A replay that
was killed goes on with the slice in which it was; the gateway knows the chunks of it that it has.

What is sent does not pass through a shuffle: a task reads the ranges of its own targets one after the other,
so that it sends the same entries in the same order at each run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_weir import ids
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import ArchiveError, DataLoss, OptionError
from pyspark_weir.gateway import GatewayAccess, GatewayClient, PlanQuery, of_one_call
from pyspark_weir.jobs import replay_plan
from pyspark_weir.jobs.batches import write
from pyspark_weir.jobs.replay_plan import Done, Replay, ReplayPlan, ReplayRange
from pyspark_weir.options import SourceOptions
from pyspark_weir.planning import TaskRange
from pyspark_weir.source.decode import Form
from pyspark_weir.source.reading import RangePartition, batches
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.reading import condition_of, scan
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import ENTRY_FIELDS
from pyspark_weir.table.table import ArchiveTable, EntryFilter

# What a source gives of each entry, and with its target.
SCHEMA: Final = pa.schema([("id", pa.string()), ("fields", ENTRY_FIELDS)])
_WITH_TARGET: Final = pa.schema([("stream", pa.string()), *SCHEMA])
_ROWS_AT_ONCE: Final = 20_000
_REMEDY: Final = "what is missing may be in an archive: replay that, or what is left under a new --job-id"


@dataclass(frozen=True)
class Piece:
    """A range, and the files that hold it where it comes from an archive."""

    span: ReplayRange
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class FromArchive:
    """An archive."""

    root: ArchiveRoot

    @property
    def accesses(self) -> tuple[GatewayAccess, ...]:
        return ()

    @property
    def address(self) -> str:
        return self.root.url

    def pieces(self, spans: Sequence[ReplayRange]) -> list[Piece]:
        table = ArchiveTable.open(self.root)
        found: list[Piece] = []
        for span in spans:
            files = table.files(_select(span))
            if not files:
                raise ArchiveError(
                    f"the archive no longer holds {span.stream} from {span.after} to {span.end}, which the "
                    "replay was to send: restore it from a copy"
                )
            found.append(Piece(span, tuple(files)))
        return found

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        condition = condition_of(_select(piece.span))
        batches = [batch for file in piece.files for batch in scan(self.root, file, condition)]
        if batches:
            # A compaction may have put the range into several files.
            rows = pa.Table.from_batches(batches).sort_by("id_key").select(SCHEMA.names)
            yield from rows.cast(SCHEMA).combine_chunks().to_batches(_ROWS_AT_ONCE)


@dataclass(frozen=True)
class FromGateway:
    """The streams of a gateway, as they are when they are read."""

    access: GatewayAccess

    @property
    def accesses(self) -> tuple[GatewayAccess, ...]:
        return (self.access,)

    @property
    def address(self) -> str:
        return self.access.url

    def pieces(self, spans: Sequence[ReplayRange]) -> list[Piece]:
        return [Piece(span) for span in spans]

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        span = piece.span
        own = TaskRange(
            self.access.name, span.stream, span.after, span.end, span.rows, generation=span.generation
        )
        options = SourceOptions(gateways=(self.access,))
        return batches(options, Form(SCHEMA, "entries"), RangePartition((own,)), _REMEDY)


def _select(span: ReplayRange) -> EntryFilter:
    return EntryFilter(
        span.shard, span.stream, span.generation, after=ids.parse(span.after), upto=ids.parse(span.end)
    )


def entries_of(source: FromArchive | FromGateway, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
    """A task's entries in the order of its pieces, with the stream that they go to. Raises PipelineError;
    DataLoss where there are more or fewer than the plan counted.
    """
    for piece in pieces:
        span, rows = piece.span, 0
        for batch in source.batches(piece):
            rows += batch.num_rows
            names = pa.repeat(pa.scalar(span.target), batch.num_rows)
            yield pa.RecordBatch.from_arrays([names, *batch.columns], schema=_WITH_TARGET)
        if rows != span.rows:
            raise DataLoss(
                f"stream {span.stream}, ({span.after}, {span.end}]: {rows:,} entries are there, "
                f"{span.rows:,} were when the replay was planned; {_REMEDY}"
            )


@dataclass(frozen=True)
class Step:
    """A slice that is stored: how many of how many, and entries likewise."""

    slices: int
    slices_all: int
    rows: int
    rows_all: int


def plan_of(source: FromArchive | FromGateway, asked: Replay) -> ReplayPlan:
    """What a replay would send, as things are. Raises PipelineError."""
    if isinstance(source, FromArchive):
        spans = replay_plan.archive_spans(ArchiveTable.open(source.root), asked)
    else:
        spans = list(gateway_spans(source.access, asked))
    return replay_plan.make(spans, asked)


def begin(
    state: StateFolder,
    source: FromArchive | FromGateway,
    target: GatewayAccess,
    asked: Replay,
    look: Callable[[], object] = lambda: None,
) -> ReplayPlan:
    """The plan that was begun in this state, or a new one, written down after a `look` at the gateways.

    Raises OptionError where the one begun is another's, or where the target could not take the IDs that are
    to be kept; PipelineError.
    """
    plan = replay_plan.load(state)
    if plan is not None:
        replay_plan.expect_same(plan, asked)
        look()
        return plan
    plan = plan_of(source, asked)
    look()
    if asked.keep_ids:
        _expect_room(plan, target)
    replay_plan.save(state, plan)
    return plan


def run(
    spark: SparkSession,
    plan: ReplayPlan,
    *,
    source: FromArchive | FromGateway,
    target: GatewayAccess,
    state: StateFolder,
    per_s: int | None = None,
) -> Iterator[Step]:
    """Send what is not yet sent, slice by slice; `per_s` entries a second at most. Raises PipelineError, and
    what Spark raises.
    """
    done = replay_plan.load_done(state)
    share = _share(spark, plan, per_s)
    while done.slices < len(plan.slices):
        number = done.slices
        spans = plan.slices[number]
        _write(_frame(spark, plan, source, spans), plan, number, target, share)
        done = Done(number + 1, done.rows + sum(span.rows for span in spans))
        replay_plan.save_done(state, done)
        yield Step(done.slices, len(plan.slices), done.rows, plan.rows)


def gateway_spans(access: GatewayAccess, asked: Replay) -> Iterator[ReplayRange]:
    """Ranges of a gateway's streams as they are now, about a slice's entries at a time. Raises DataLoss where
    the range begins with entries that were trimmed away; RefusedError, Unavailable.
    """
    wanted = asked.wanted
    with GatewayClient(access) as gateway:
        streams = wanted.streams or [one["name"] for one in gateway.list_streams() if wanted.has(one["name"])]
        names = dict.fromkeys(streams, wanted.after)
        if not names:
            return
        # All of them first: a missing name is refused before ranges are looked for.
        end = {} if wanted.end is None else dict.fromkeys(names, wanted.end)
        whole = gateway.plan_of_each(PlanQuery(streams=names, end=end))
        if whole.missing:
            raise OptionError(f"the gateway has no stream {', '.join(sorted(whole.missing))}")
        ends = {name: one.end for name, one in whole.streams.items() if one.count}
        after: dict[str, str] = {}
        for name, one in whole.streams.items():
            if wanted.after != ids.BEGINNING and ids.is_after(one.removed_upto, wanted.after):
                raise DataLoss(
                    f"stream {name}: entries up to {one.removed_upto} are gone, the replay was to begin "
                    f"after {wanted.after}; begin there, or replay an archive"
                )
            if name in ends:
                # Not 0-0: what is trimmed from now on is to be noticed.
                first = str(ids.previous_id(ids.parse(one.first or ends[name])))
                after[name] = ids.later(wanted.after, first)
        for some in of_one_call(after):
            yield from _ranges(gateway, some, ends, asked)


def _ranges(
    gateway: GatewayClient, after: dict[str, str], ends: Mapping[str, str], asked: Replay
) -> Iterator[ReplayRange]:
    """Of streams of one call: a slice's entries of them all, and again."""
    while after:
        end = {name: ends[name] for name in after}
        query = PlanQuery(streams=after, end=end, max_entries=asked.slice_rows)
        part = gateway.plan(query)
        for name, one in sorted(part.streams.items()):
            if one.count:
                yield ReplayRange(
                    gateway.access.name,
                    name,
                    one.generation,
                    one.after,
                    one.end,
                    one.count,
                    asked.to.of(name),
                )
        after = {name: one.end for name, one in part.streams.items() if one.count and one.end != ends[name]}


def _expect_room(plan: ReplayPlan, target: GatewayAccess) -> None:
    """A kept ID has to come after all that the target has had."""
    with GatewayClient(target) as gateway:
        for name, after in plan.first_ids().items():
            there = gateway.stream(name)
            if there is not None and ids.is_after(there["last_id"], after):
                raise OptionError(
                    f"{name} at {target.url} has had entries up to {there['last_id']}, the replay would "
                    f"begin after {after}: with --keep-ids the target is empty or behind; choose another "
                    "with --to"
                )


def _share(spark: SparkSession, plan: ReplayPlan, per_s: int | None) -> int | None:
    """What each of the tasks that run side by side may send a second."""
    if per_s is None:
        return None
    return max(1, per_s // min(plan.tasks, spark.sparkContext.defaultParallelism))


def _frame(
    spark: SparkSession, plan: ReplayPlan, source: FromArchive | FromGateway, spans: Sequence[ReplayRange]
) -> DataFrame:
    """The entries of a slice: as many partitions as the plan has tasks, each in order."""
    tasks: list[list[Piece]] = [[] for _ in range(plan.tasks)]
    for piece in source.pieces(spans):
        tasks[plan.task_of[piece.span.target]].append(piece)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                yield from entries_of(source, tasks[number])

    rows = spark.range(0, plan.tasks, 1, plan.tasks).mapInArrow(read, from_arrow_schema(_WITH_TARGET))
    if plan.replay.keep_ids:
        return rows
    fields = sf.col("fields")
    if plan.replay.orig_field:
        name = sf.lit(plan.replay.orig_field).alias("name")
        orig = sf.struct(name, sf.col("id").cast("binary").alias("value"))
        fields = sf.concat(fields, sf.array(orig))
    return rows.select("stream", fields.alias("fields"))


def _write(frame: DataFrame, plan: ReplayPlan, number: int, target: GatewayAccess, share: int | None) -> None:
    options = {
        "keyMode": "position",
        "jobId": plan.replay.job,
        "epoch": number,
        "chunkRows": plan.replay.chunk_rows,
        "ordered": True,
        "maxEntriesPerSecond": share,
    }
    write(frame, target, options)
