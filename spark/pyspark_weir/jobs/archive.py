"""Archives streams as a Delta table, each entry once, through any crash.

Knows: how a batch of a streaming query becomes files and then a commit, and when the gateway learns of it.
Must never know: how often batches come, what is printed, how the table is stored.

A batch has a number and a range of IDs for each stream. Both are in Spark's checkpoint before it runs. Tasks
write its files under random names, so that attempts of one task do not meet; the driver commits the files of
the attempts that Spark counts. A driver that died before the commit runs the batch again and writes other
files, and vacuum deletes the first ones. One that died after it finds the batch in the table.

A batch is settled when Spark's checkpoint says that it has ended: its entries are not read again, and the
gateway learns that they are archived. Before that the gateway might trim what a restart asks for.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from threading import Lock
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir import checkpoint, ids, offsets
from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import ArchiveError, OptionError, RefusedError
from pyspark_weir.gateway import Answer, GatewayClient, PlannedRange, PlanQuery
from pyspark_weir.gateways import Gateways, plan_once
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs import archived
from pyspark_weir.jobs.archived import ArchiveDataSource
from pyspark_weir.jobs.batches import report_failures
from pyspark_weir.offsets import Lost, Offsets, Position
from pyspark_weir.options import EARLIEST, LATEST, source_options
from pyspark_weir.session import with_slots
from pyspark_weir.source.batch import loss_of, lost_of
from pyspark_weir.table.cleaning import repair
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.table import ArchiveTable

SOURCE: Final = "weir"
# What is archived is everything, in the form that loses nothing; the table makes the other columns of the ID.
_FIXED: Final = {
    "fieldsFormat": "entries",
    "relation": "entries",
    "columns": ",".join(archived.COLUMNS),
}
_STARTING: Final = "startingOffsets"


class Archiver:
    """The batches of one streaming query, and the table that they go to: `source` holds options of the data
    source, `checkpoint` is an address that Spark and `pyarrow.fs` both reach. Raises OptionError.
    """

    def __init__(self, root: ArchiveRoot, checkpoint: str, source: Mapping[str, str]) -> None:
        self.root = root
        self.checkpoint = StateFolder.of(checkpoint)
        self._source = _check_source(source)
        self._options = source_options(self._source)
        self.accesses = self._options.gateways
        # Where a query without a checkpoint begins, by key; other streams begin with their first entry.
        self._begun: Offsets = {}
        self._settled: tuple[int, Offsets] | None = None
        # As the last batch found it: loading costs the more the more files it has.
        self._table: ArchiveTable | None = None
        # The table is known to say of these that they are.
        self._closed: set[StreamKey] = set()
        # Batches are stored in a thread of Spark's, and settled in another.
        self._settling = Lock()

    def query(self, spark: SparkSession) -> DataStreamWriter:
        """The query, to be given its checkpoint and a trigger, and started.

        Raises OptionError, PipelineError where the table and the checkpoint do not belong together.
        """
        self.check()
        self.settle()
        source = with_slots(spark, {**self._source, _STARTING: self._starting()})
        archived.register(spark)
        rows = spark.readStream.format(SOURCE).options(**source).load()
        return rows.writeStream.queryName("weir-archive").foreachBatch(
            report_failures(self.store, self.checkpoint)
        )

    def check(self) -> None:
        """Repair the table after a power cut. Refuse a root that holds other files, and a checkpoint that has
        archived what the table does not hold. Raises ArchiveError.
        """
        repair(self.root)
        ArchiveTable.check_place(self.root)
        table = ArchiveTable.open(self.root) if ArchiveTable.exists(self.root) else None
        last = checkpoint.last_commit(self.checkpoint)
        if last is None:
            return
        if table is None:
            raise ArchiveError(
                f"{self.checkpoint.address} has archived before, and {self.root.url} holds no archive: "
                "give the root that belongs to it, or another checkpoint"
            )
        known = {one.key: one.upto for one in table.ranges()}
        for name, end in checkpoint.ends(self.checkpoint, last).items():
            key = StreamKey(*offsets.parts(name), end.generation)
            if end.generation and ids.parse(end.id) > known.get(key, ids.ZERO):
                raise ArchiveError(
                    f"{self.checkpoint.address} has archived {key} up to {end.id}, and {self.root.url} does "
                    "not hold that: give the root that belongs to it, or another checkpoint"
                )

    def _starting(self) -> str:
        """Where a query begins that has no checkpoint: where the table ends, for streams that are still those
        that it holds.
        """
        self._begun = {}
        if checkpoint.query_id(self.checkpoint) is None or checkpoint.last_commit(self.checkpoint) is None:
            self._begun = self._read_positions() if ArchiveTable.exists(self.root) else {}
        starting = {key: place.id for key, place in self._begun.items()}
        return json.dumps(starting, ensure_ascii=False) if starting else EARLIEST

    def _read_positions(self) -> Offsets:
        known = {
            offsets.key(*name): place for name, place in ArchiveTable.open(self.root).positions().items()
        }
        with closing(Gateways(self._options)) as gateways:
            after = {key: ids.BEGINNING for key in gateways.select() if key in known}
            planned = gateways.plan(PlanQuery(after)).streams
        return {
            key: Position(str(known[key].upto), one.generation)
            for key, one in planned.items()
            if known[key].generation == one.generation
        }

    def _plan(self, after: Mapping[str, str]) -> Mapping[str, PlannedRange]:
        """What streams of the query's gateways have after these IDs. Raises RefusedError, Unavailable."""
        names = {one.name for one in self.accesses}
        own = {key: after_id for key, after_id in after.items() if offsets.parts(key)[0] in names}
        return plan_once(self._options, PlanQuery(own)).streams

    def store(self, frame: DataFrame, number: int) -> None:
        """Store a batch, unless the table holds it. Raises PipelineError, and what Spark raises."""
        self.settle()
        moved = self.moved(number)
        if not (moved.ranges or moved.lost):
            return
        if self._table is None:
            self._table = ArchiveTable.create(self.root)
        self._table.refresh()
        if self._table.holds(moved):
            return
        options = {**archived.options_of(self.root), "moved": json.dumps(moved.metadata())}
        frame.write.format(ArchiveDataSource.name()).mode("append").options(**options).save()

    def moved(self, number: int) -> BatchRanges:
        """The IDs of a batch: of each stream in which it goes on, after which one and up to which; and what
        was gone before it.
        """
        query_id = checkpoint.query_id(self.checkpoint)
        if query_id is None:
            raise OptionError(f"{self.checkpoint.address} is not the checkpoint of this query")
        lost = checkpoint.lost(self.checkpoint, number)
        ranges = tuple(sorted(self._ranges(number)))
        moved = BatchRanges(query_id, number, ranges, lost, self._begins(number, ranges))
        if self._options.fail_on_data_loss:
            return moved
        return replace(moved, lost=(*lost, *self._lost_since(moved)))

    def _begins(self, number: int, ranges: Iterable[Range]) -> dict[StreamKey, EntryId]:
        """Up to where the streams that are met in a batch had been trimmed by then. Raises RefusedError,
        Unavailable.
        """
        ends = checkpoint.ends(self.checkpoint, number)
        met = {offsets.key(*one.key[:2]): one.key for one in ranges if one.after == ids.ZERO}
        floors = {key: ends[name].floor for name, key in met.items()}
        begins = {key: ids.parse(floor) for key, floor in floors.items() if floor is not None}
        # The first offset of a query does not say it. Nothing of the batch has been read yet: what is trimmed
        # from now on is found missing when it is.
        unknown = {name: ids.BEGINNING for name, key in met.items() if key not in begins}
        for name, one in self._plan(unknown).items():
            if one.generation == met[name].generation:
                begins[met[name]] = ids.parse(one.removed_upto)
        return begins

    def _ranges(self, number: int) -> Iterator[Range]:
        ends = checkpoint.ends(self.checkpoint, number)
        if number:
            return _ranges_between(checkpoint.ends(self.checkpoint, number - 1), ends)
        for name, start in self._begun.items():
            if name in ends and ends[name].generation != start.generation:
                # Its entries up to the old position were left out.
                raise ArchiveError(
                    f"{name} was deleted and made anew while the archive started: start it again"
                )
        return _ranges_between(self._begun, ends)

    def mark_closed(self) -> None:
        """Have the table say which streams are closed, and archived to their ends, whether or not their last
        batch knew it. Raises RefusedError, Unavailable.
        """
        last = checkpoint.last_commit(self.checkpoint)
        ends = {} if last is None else checkpoint.ends(self.checkpoint, last)
        keys = {name: StreamKey(*offsets.parts(name), end.generation) for name, end in ends.items()}
        planned = self._plan({name: ends[name].id for name, key in keys.items() if key not in self._closed})
        ended = [keys[name] for name, one in planned.items() if _ends_at(one, keys[name].generation)]
        if ended and ArchiveTable.exists(self.root):
            ArchiveTable.open(self.root).close(ended)
            self._closed.update(ended)

    def is_over(self) -> bool:
        """Whether all streams of the query are closed, and archived to their ends: nothing more comes. Raises
        RefusedError, Unavailable.
        """
        last = checkpoint.last_commit(self.checkpoint)
        done = {} if last is None else checkpoint.ends(self.checkpoint, last)
        with closing(Gateways(self._options)) as gateways:
            names = gateways.select(fresh=True)
            after = {name: done[name].id if name in done else ids.BEGINNING for name in names}
            planned = gateways.plan(PlanQuery(after)).streams
        return bool(names) and all(
            _ends_at(planned.get(name), done[name].generation if name in done else "") for name in names
        )

    def _lost_since(self, moved: BatchRanges) -> Iterator[Lost]:
        """What has gone of a batch's ranges since Spark wrote them down. Raises RefusedError, Unavailable."""
        ends = checkpoint.ends(self.checkpoint, moved.number)
        known = {one.key: one.upto for one in moved.lost}
        own = {offsets.key(*one.key[:2]): one for one in moved.ranges}
        after: dict[str, str] = {}
        for key, one in own.items():
            floor = ids.later(ends[key].floor or ids.BEGINNING, known.get(key) or ids.BEGINNING)
            after[key] = ids.later(str(one.after), floor)
        planned = self._plan(after)
        for key, one in own.items():
            at, plan = Position(after[key], one.key.generation), planned.get(key)
            loss = loss_of(at, plan)
            for lost in lost_of(key, at, plan, loss) if loss else ():
                # What comes after the batch is the next one's.
                is_longer = lost.upto is not None and ids.is_after(lost.upto, str(one.upto))
                yield lost._replace(upto=str(one.upto)) if is_longer else lost

    def settle(self) -> None:
        """Have the gateways show, and their retention keep, how far the archive goes: up to the last batch
        that has ended for Spark as well. Raises RefusedError, Unavailable.
        """
        with self._settling:
            last = checkpoint.last_commit(self.checkpoint)
            if last is None or (self._settled is not None and self._settled[0] == last):
                return
            # Each batch settles those before it: when this begins, it may be the last alone that is not.
            if self._settled is not None:
                before = self._settled[1]
            else:
                before = checkpoint.ends(self.checkpoint, last - 1) if last else {}
            ends = checkpoint.ends(self.checkpoint, last)
            # Spark does not sync it: after a power cut it would ask for what was trimmed.
            self.checkpoint.sync(checkpoint.files_of(last))
            names = {one.name for one in self.accesses}
            with closing(Gateways(self._options)) as gateways:
                for name, end in ends.items():
                    gateway, stream = offsets.parts(name)
                    if gateway in names and end != before.get(name):
                        _settle(gateways.at(gateway), stream, end)
            self._settled = last, ends


def _check_source(source: Mapping[str, str]) -> dict[str, str]:
    """The data source's options. Raises OptionError for those that an archive cannot have."""
    fixed = {name.lower(): name for name in (*_FIXED, _STARTING)}
    for name in source:
        if name.lower() in fixed:
            raise OptionError(f"{fixed[name.lower()]} is fixed in an archive: leave it out")
    given = {**source, **_FIXED}
    options = source_options(given)
    if options.on_reset == LATEST:
        raise OptionError("onReset=latest would leave entries out of the archive: use earliest or fail")
    if options.starting is not None:
        raise OptionError(f"an archive starts with the earliest entry: leave {options.starting.option} out")
    return given


def _ranges_between(before: Offsets, ends: Offsets) -> Iterator[Range]:
    """Ranges whose entries are not counted yet."""
    for name, end in ends.items():
        start = before.get(name)
        key = StreamKey(*offsets.parts(name), end.generation)
        # A stream that was made anew is read from its beginning.
        anew = start is None or start.generation != end.generation
        after = ids.ZERO if start is None or anew else ids.parse(start.id)
        upto = ids.parse(end.id)
        if upto < after:
            raise ArchiveError(
                f"{key} was put back to {upto}, and is archived up to {after}: its entries from there on may "
                "be others now; archive it under another root"
            )
        if end.generation and upto > after:
            yield Range(key, after, upto, 0)


def _ends_at(planned: PlannedRange | None, generation: str) -> bool:
    """Whether the stream is closed with nothing after the place that was planned from, if it is that one."""
    return (
        planned is not None and planned.closed and not planned.lag and generation in ("", planned.generation)
    )


def _settle(gateway: GatewayClient, stream: str, end: Position) -> None:
    if not _is_of(end, gateway.stream(stream)):
        return
    try:
        gateway.update_stream(stream, archived_up_to=end.id)
    except RefusedError as refused:
        # The stream was deleted meanwhile.
        if refused.problem != "no_stream":
            raise


def _is_of(end: Position, seen: Answer | None) -> bool:
    """Whether a stream is still the one that was archived. Another one of its name has other entries under
    the same IDs, as may one have that was put back to before: the gateway might trim them unread if they were
    reported as archived. It learns of them when a batch has read them.
    """
    return (
        seen is not None
        and seen["generation"] == end.generation
        and not ids.is_after(end.id, seen["last_id"])
    )
