"""Sends entries of an archive, or of a gateway, to a gateway once more: none lost, none twice.

Knows: Spark, the plan, the target. Must never know: how options are written, what is printed.

Each slice of the plan is one write with keys by position, whose epoch is the slice's number. A replay that
was killed goes on with the slice in which it was; the gateway knows the chunks of it that it has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from pyspark_weir import gateway as calls
from pyspark_weir import ids
from pyspark_weir.errors import DataLoss, OptionError
from pyspark_weir.gateway import Access, Gateway, PlanQuery
from pyspark_weir.jobs import replay_plan
from pyspark_weir.jobs.replay_plan import Done, Form, Plan, Span, Targets, Wanted
from pyspark_weir.jobs.replay_read import Entries, FromArchive, FromGateway, Piece, Work, encoded
from pyspark_weir.jobs.sinking import written
from pyspark_weir.place import Place
from pyspark_weir.table.table import ArchiveTable


@dataclass(frozen=True)
class Asked:
    """Which entries are to go where."""

    target: Access
    wanted: Wanted
    targets: Targets


@dataclass(frozen=True)
class Step:
    """A slice that is stored: how many of how many, and entries likewise."""

    slices: int
    slices_all: int
    rows: int
    rows_all: int


def planned(source: FromArchive | FromGateway, wanted: Wanted, targets: Targets, form: Form) -> Plan:
    """What a replay would send, as things are. Raises PipelineError."""
    if isinstance(source, FromArchive):
        table = ArchiveTable.open(source.root)
        spans = replay_plan.archive_spans(table, wanted, targets, form.slice_rows)
    else:
        spans = list(gateway_spans(source.access, wanted, targets, form.slice_rows))
    return replay_plan.make(spans, form)


def begun(state: Place, source: FromArchive | FromGateway, asked: Asked, form: Form) -> Plan:
    """The plan that was begun in this state, or a new one, written down. Raises OptionError where the one
    begun is another's, or where the target could not take the IDs that are to be kept; PipelineError.
    """
    made_for = asked.target.url, asked.wanted, asked.targets
    plan = replay_plan.load(state)
    if plan is not None:
        replay_plan.expect_same(plan, form, *made_for)
        return plan
    plan = planned(source, asked.wanted, asked.targets, form).made_for(*made_for)
    if plan.keep_ids:
        _expect_room(plan, asked.target)
    replay_plan.save(state, plan)
    return plan


def run(
    spark: SparkSession,
    plan: Plan,
    *,
    source: FromArchive | FromGateway,
    target: Access,
    state: Place,
    per_s: int | None = None,
) -> Iterator[Step]:
    """Send what is not yet sent, slice by slice; `per_s` entries a second at most. Raises PipelineError, and
    what Spark raises.
    """
    done = replay_plan.load_done(state)
    share = _share(spark, plan, per_s)
    spark.dataSource.register(Entries)
    while done.slices < len(plan.slices):
        number = done.slices
        spans = plan.slices[number]
        _write(_frame(spark, plan, source, spans), plan, number, target, share)
        done = Done(number + 1, done.rows + sum(span.rows for span in spans))
        replay_plan.save_done(state, done)
        yield Step(done.slices, len(plan.slices), done.rows, plan.rows)


def gateway_spans(access: Access, wanted: Wanted, targets: Targets, slice_rows: int) -> Iterator[Span]:
    """Ranges of a gateway's streams as they are now, about `slice_rows` entries at a time. Raises DataLoss
    where the range begins with entries that were trimmed away; Refused, Unavailable.
    """
    with Gateway(access) as gateway:
        names = dict.fromkeys(wanted.streams, wanted.after) if wanted.streams else _found(gateway, wanted)
        if not names:
            return
        # All of them first: a name that is missing is told before ranges are looked for.
        end = {} if wanted.end is None else dict.fromkeys(names, wanted.end)
        whole = calls.plan_of_each(gateway, PlanQuery(streams=names, end=end))
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
        for some in calls.of_one_call(after):
            yield from _ranges(gateway, some, ends, targets, slice_rows)


def _ranges(
    gateway: Gateway, after: dict[str, str], ends: Mapping[str, str], targets: Targets, slice_rows: int
) -> Iterator[Span]:
    """Of streams of one call: `slice_rows` entries of them all, and again."""
    while after:
        query = PlanQuery(streams=after, end={name: ends[name] for name in after}, max_entries=slice_rows)
        part = calls.plan(gateway, query)
        for name, one in sorted(part.streams.items()):
            if one.count:
                yield Span(
                    gateway.access.name, name, one.generation, one.after, one.end, one.count, targets.of(name)
                )
        after = {name: one.end for name, one in part.streams.items() if one.count and one.end != ends[name]}


def _found(gateway: Gateway, wanted: Wanted) -> dict[str, str]:
    return {one["name"]: wanted.after for one in calls.streams(gateway) if wanted.has(one["name"])}


def _expect_room(plan: Plan, target: Access) -> None:
    """A kept ID has to come after all that the target has had."""
    with Gateway(target) as gateway:
        for name, after in plan.first_ids().items():
            there = calls.stream(gateway, name)
            if there is not None and ids.is_after(there["last_id"], after):
                raise OptionError(
                    f"{name} at {target.url} has had entries up to {there['last_id']}, the replay would "
                    f"begin after {after}: with --keep-ids the target is empty or behind; choose another "
                    "with --to"
                )


def _share(spark: SparkSession, plan: Plan, per_s: int | None) -> int | None:
    """What each of the tasks that run side by side may send a second."""
    if per_s is None:
        return None
    return max(1, per_s // min(plan.tasks, spark.sparkContext.defaultParallelism))


def _frame(
    spark: SparkSession, plan: Plan, source: FromArchive | FromGateway, spans: Sequence[Span]
) -> DataFrame:
    """The entries of a slice: as many partitions as the plan has tasks, each in order."""
    tasks: list[list[Piece]] = [[] for _ in range(plan.tasks)]
    for piece in source.pieces(spans):
        tasks[plan.task_of[piece.span.target]].append(piece)
    work = Work(source, tuple(map(tuple, tasks)))
    rows = spark.read.format(Entries.name()).options(**encoded(work)).load()
    if plan.keep_ids:
        return rows
    fields = sf.col("fields")
    if plan.orig_field:
        name = sf.lit(plan.orig_field).alias("name")
        orig = sf.struct(name, sf.col("id").cast("binary").alias("value"))
        fields = sf.concat(fields, sf.array(orig))
    return rows.select("stream", fields.alias("fields"))


def _write(frame: DataFrame, plan: Plan, number: int, target: Access, share: int | None) -> None:
    options = {
        "keyMode": "position",
        "jobId": plan.job,
        "epoch": number,
        "chunkRows": plan.chunk_rows,
        "ordered": True,
        "maxEntriesPerSecond": share,
    }
    written(frame, target, options)
