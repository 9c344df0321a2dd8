"""Sends entries of an archive, or of a gateway, to a gateway once more: none lost, none twice.

Knows: Spark, what a replay may not change between two runs, the target.
Must never know: how options are written, what is printed.

All of it is one write with keys by position. Begun again it sends the same chunks, and the gateway knows
those that it has: so the ranges, the size of chunks and the number of tasks are written down before the first
entry goes. They are ranges of IDs and no files, which a compaction replaces.

    STATE/plan.json   what is sent, and whether all of it is there

What is sent does not pass through a shuffle: a task reads the ranges of its own targets one after the other,
so that it sends the same entries in the same order at each run.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_weir import ids, offsets
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import DataLoss, OptionError, PipelineError
from pyspark_weir.gateway import GatewayAccess, GatewayClient, PlanQuery
from pyspark_weir.gateways import Gateways
from pyspark_weir.jobs.batches import write
from pyspark_weir.jobs.mirror import Targets
from pyspark_weir.options import SourceOptions, check_pattern
from pyspark_weir.planning import TaskRange
from pyspark_weir.source.decode import Form
from pyspark_weir.source.reading import RangePartition, batches
from pyspark_weir.table.files import DataFile
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.reading import count, entries_of, ids_of
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import ENTRY_FIELDS, id_of_key
from pyspark_weir.table.table import ArchiveTable, EntryFilter

VERSION: Final = 4
PLAN: Final = "plan.json"
ORIG_FIELD_DEFAULT: Final = "_orig_id"
CHUNK_ROWS_MAX: Final = 5_000
# The gateway remembers 100,000 of a task; those that are cut for their bytes come on top.
_CHUNKS_MAX: Final = 50_000
# What a source gives of each entry, and with its target.
SCHEMA: Final = pa.schema([("id", pa.string()), ("fields", ENTRY_FIELDS)])
_WITH_TARGET: Final = pa.schema([("stream", pa.string()), *SCHEMA])
_ROWS_AT_ONCE: Final = 20_000
_REMEDY: Final = "what is missing may be in an archive: replay that, or what is left under a new --job-id"


@dataclass(frozen=True)
class EntrySelection:
    """Which entries: of the named `streams` or of those that `pattern` fits wholly, else of all; those in
    `(after, end]`, IDs as text; `end` None is the last.
    """

    streams: tuple[str, ...] = ()
    pattern: str | None = None
    after: str = ids.BEGINNING
    end: str | None = None

    def __post_init__(self) -> None:
        check_pattern("--pattern", self.pattern)
        if self.end is not None and ids.is_after(self.after, self.end):
            raise OptionError(f"the replay ends at {self.end}, before it begins: after {self.after}")

    def has(self, stream: str) -> bool:
        if self.streams:
            return stream in self.streams
        return self.pattern is None or re.fullmatch(self.pattern, stream) is not None


class ReplayRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of one stream in `(after, end]`, `rows` of them, for the stream `target`."""

    gateway: str
    stream: str
    generation: str
    after: str
    end: str
    rows: int
    target: str

    @property
    def key(self) -> StreamKey:
        return StreamKey(self.gateway, self.stream, self.generation)


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is sent from `source` to the URL `gateway`, and how; all of it is fixed at the first start."""

    job: str
    source: str
    gateway: str = ""
    wanted: EntrySelection = EntrySelection()
    to: Targets = Targets()
    keep_ids: bool = False
    orig_field: str = ORIG_FIELD_DEFAULT
    chunk_rows: int = CHUNK_ROWS_MAX
    tasks: int = 1

    def about(self) -> dict[str, object]:
        return {
            "job ID": self.job,
            "source": self.source,
            "keeping of IDs": self.keep_ids,
            "field for IDs": self.orig_field,
            "gateway to send to": self.gateway,
            "choice of streams": sorted(set(self.wanted.streams)),
            "pattern": self.wanted.pattern,
            "beginning": self.wanted.after,
            "end": self.wanted.end,
            "place for streams": {**self.to.by_stream, "all others": self.to.otherwise},
        }


class ReplayPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replay as it is sent, and whether all of it is there."""

    v: int
    replay: Replay
    ranges: tuple[ReplayRange, ...]
    done: bool = False

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.ranges)

    def tasks(self) -> list[list[ReplayRange]]:
        """The ranges of each task. A target has one writer, which keeps it in order: the largest goes first,
        to the task that has least.
        """
        of_targets: dict[str, list[ReplayRange]] = {}
        for one in self.ranges:
            of_targets.setdefault(one.target, []).append(one)
        found: list[list[ReplayRange]] = [[] for _ in range(min(self.replay.tasks, len(of_targets)))]
        for own in sorted(of_targets.values(), key=_rows, reverse=True):
            min(found, key=_rows).extend(own)
        return found


def _rows(ranges: Iterable[ReplayRange]) -> int:
    return sum(one.rows for one in ranges)


class _Version(msgspec.Struct):
    v: int


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

    def ranges(self, asked: Replay) -> list[ReplayRange]:
        """Of a stream that was made anew the older generation comes first. Raises OptionError where a named
        stream is not archived, ArchiveError.
        """
        table, wanted = ArchiveTable.open(self.root), asked.wanted
        uptos = {one.key: one.upto for one in table.ranges() if wanted.has(one.key.stream)}
        if missing := set(wanted.streams) - {key.stream for key in uptos}:
            raise OptionError(f"the archive has no stream {', '.join(sorted(missing))}")
        after, end = ids.parse(wanted.after), ids.LAST if wanted.end is None else ids.parse(wanted.end)
        files = table.files(EntryFilter(after=after, upto=end))
        bounds = {key: (after, min(upto, end)) for key, upto in uptos.items()}
        rows = count(self.root, files, bounds)
        found: list[ReplayRange] = []
        for key, (_, upto) in bounds.items():
            if rows[key]:
                first = next(ids_of(self.root, files, key, after, upto))["id_key"][0].as_py()
                begin = str(ids.previous_id(id_of_key(first)))
                found.append(ReplayRange(*key, begin, str(upto), rows[key], asked.to.of(key.stream)))
        return found

    def files(self, ranges: Sequence[ReplayRange]) -> list[tuple[DataFile, ...]]:
        """Those of each range."""
        table = ArchiveTable.open(self.root)
        return [
            tuple(table.files(EntryFilter(*one.key, after=ids.parse(one.after), upto=ids.parse(one.end))))
            for one in ranges
        ]

    def batches(self, one: ReplayRange, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
        within = one.key, ids.parse(one.after), ids.parse(one.end)
        for rows in entries_of(self.root, files, *within, SCHEMA.names):
            yield from rows.select(SCHEMA.names).cast(SCHEMA).combine_chunks().to_batches(_ROWS_AT_ONCE)


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

    def ranges(self, asked: Replay) -> list[ReplayRange]:
        """Of streams as they are now. Raises OptionError where a named stream does not exist, DataLoss where
        the range begins with entries that were trimmed away; RefusedError, Unavailable.
        """
        wanted = asked.wanted
        with closing(Gateways(SourceOptions(self.accesses))) as gateways:
            there = gateways.at(self.access.name).list_streams
            listed = wanted.streams or [one["name"] for one in there() if wanted.has(one["name"])]
            after = {offsets.key(self.access.name, name): wanted.after for name in sorted(listed)}
            ends = {} if wanted.end is None else dict.fromkeys(after, wanted.end)
            found = gateways.plan(PlanQuery(after, ends))
        if found.missing:
            missing = sorted(offsets.parts(key)[1] for key in found.missing)
            raise OptionError(f"the gateway has no stream {', '.join(missing)}")
        ranges: list[ReplayRange] = []
        for key, one in found.streams.items():
            name = offsets.parts(key)[1]
            if wanted.after != ids.BEGINNING and ids.is_after(one.removed_upto, wanted.after):
                raise DataLoss(
                    f"stream {name}: entries up to {one.removed_upto} are gone, the replay was to begin "
                    f"after {wanted.after}; begin there, or replay an archive"
                )
            if one.count:
                # Not 0-0: what is trimmed from now on is to be noticed.
                first = ids.later(wanted.after, str(ids.previous_id(ids.parse(one.first or one.end))))
                within = self.access.name, name, one.generation, first, one.end
                ranges.append(ReplayRange(*within, one.count, asked.to.of(name)))
        return ranges

    def files(self, ranges: Sequence[ReplayRange]) -> list[tuple[DataFile, ...]]:
        """None."""
        return [()] * len(ranges)

    def batches(self, one: ReplayRange, _files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
        own = TaskRange(*one.key[:2], one.after, one.end, one.rows, generation=one.generation)
        options = SourceOptions(self.accesses)
        return batches(options, Form(SCHEMA, "entries"), RangePartition((own,)), _REMEDY)


Source = FromArchive | FromGateway
Piece = tuple[ReplayRange, tuple[DataFile, ...]]


def rows_of(source: Source, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """A task's entries in the order of its pieces, with the stream that they go to. Raises PipelineError;
    DataLoss where there are more or fewer than were counted.
    """
    for one, files in pieces:
        rows = 0
        for batch in source.batches(one, files):
            rows += batch.num_rows
            names = pa.repeat(pa.scalar(one.target), batch.num_rows)
            yield pa.RecordBatch.from_arrays([names, *batch.columns], schema=_WITH_TARGET)
        if rows != one.rows:
            raise DataLoss(
                f"stream {one.stream}, ({one.after}, {one.end}]: {rows:,} entries are there, {one.rows:,} "
                f"were when the replay was begun; {_REMEDY}"
            )


def plan_of(source: Source, asked: Replay) -> ReplayPlan:
    """What a replay would send, as things are. Raises PipelineError."""
    ranges = source.ranges(asked)
    if asked.keep_ids:
        _expect_ascending(ranges)
    chunk_rows = enough_rows(asked.chunk_rows, _rows(ranges))
    return ReplayPlan(VERSION, msgspec.structs.replace(asked, chunk_rows=chunk_rows), tuple(ranges))


def enough_rows(chunk_rows: int, rows: int) -> int:
    """The size of chunks: small ones make a slow replay even, and of a long one there would be too many."""
    return max(chunk_rows, min(CHUNK_ROWS_MAX, -(-rows // _CHUNKS_MAX)))


def _expect_ascending(ranges: Iterable[ReplayRange]) -> None:
    before: dict[str, ReplayRange] = {}
    for one in ranges:
        other = before.setdefault(one.target, one)
        if other is not one:
            raise OptionError(
                f"{other.key} and {one.key} both go to {one.target}, where their IDs would not ascend: give "
                "each a target of its own or replay them apart, or leave out --keep-ids"
            )


def begin(
    state: StateFolder,
    source: Source,
    target: GatewayAccess,
    asked: Replay,
    look: Callable[[], object] = lambda: None,
) -> ReplayPlan:
    """The plan that was begun in this state, or a new one, written down after a `look` at the gateways.

    Raises OptionError where the one begun is another's, or where the target could not take the IDs that are
    to be kept; PipelineError.
    """
    plan = load(state)
    if plan is not None:
        _expect_same(plan, asked)
        look()
        return plan
    plan = plan_of(source, asked)
    look()
    if asked.keep_ids:
        _expect_room(plan, target)
    state.replace(PLAN, msgspec.json.encode(plan))
    return plan


def load(state: StateFolder) -> ReplayPlan | None:
    """The plan of before; None at the first start. Raises PipelineError where it cannot be read."""
    stored = state.read(PLAN)
    if stored is None:
        return None
    again = "begin again with a new --job-id"
    try:
        version = msgspec.json.decode(stored, type=_Version).v
        if version == VERSION:
            return msgspec.json.decode(stored, type=ReplayPlan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PipelineError(
            "WEIR_STATE", f"{state.address}/{PLAN} cannot be read ({error}): {again}"
        ) from None
    raise PipelineError(
        "WEIR_STATE",
        f"{state.address}/{PLAN} is of version {version}, not {VERSION}: go on with the version of Weir that "
        f"wrote it, or {again}",
    )


def _expect_same(plan: ReplayPlan, replay: Replay) -> None:
    asked = replay.about()
    for name, before in plan.replay.about().items():
        if before != asked[name]:
            raise OptionError(
                f"this replay was begun with another {name}: {before!r}, now {asked[name]!r}; go on as it "
                "was begun, or begin another with a --job-id of its own"
            )


def _expect_room(plan: ReplayPlan, target: GatewayAccess) -> None:
    """A kept ID has to come after all that the target has had."""
    with GatewayClient(target) as gateway:
        for one in plan.ranges:
            there = gateway.stream(one.target)
            if there is not None and ids.is_after(there["last_id"], one.after):
                raise OptionError(
                    f"{one.target} at {target.url} has had entries up to {there['last_id']}, the replay "
                    f"would begin after {one.after}: with --keep-ids the target is empty or behind; choose "
                    "another with --to"
                )


def run(
    spark: SparkSession,
    plan: ReplayPlan,
    *,
    source: Source,
    target: GatewayAccess,
    state: StateFolder,
    per_s: int | None = None,
) -> None:
    """Send all of it that the target does not have; `per_s` entries a second at most. Raises PipelineError,
    and what Spark raises.
    """
    tasks = plan.tasks()
    if tasks and not plan.done:
        side_by_side = min(len(tasks), spark.sparkContext.defaultParallelism)
        options = {
            "keyMode": "position",
            "jobId": plan.replay.job,
            "chunkRows": plan.replay.chunk_rows,
            "ordered": True,
            "maxEntriesPerSecond": None if per_s is None else max(1, per_s // side_by_side),
        }
        write(_frame(spark, plan.replay, source, tasks), target, options)
    state.replace(PLAN, msgspec.json.encode(msgspec.structs.replace(plan, done=True)))


def _frame(
    spark: SparkSession, asked: Replay, source: Source, tasks: Sequence[Sequence[ReplayRange]]
) -> DataFrame:
    """The entries: a partition for each task, in order."""
    pieces = [list(zip(own, source.files(own), strict=True)) for own in tasks]

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in numbers for number in batch["id"].to_pylist()):
            yield from rows_of(source, pieces[number])

    rows = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, from_arrow_schema(_WITH_TARGET))
    if asked.keep_ids:
        return rows
    fields = sf.col("fields")
    if asked.orig_field:
        name = sf.lit(asked.orig_field).alias("name")
        orig = sf.struct(name, sf.col("id").cast("binary").alias("value"))
        fields = sf.concat(fields, sf.array(orig))
    return rows.select("stream", fields.alias("fields"))
