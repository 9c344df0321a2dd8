"""Spark's batch reader: streams between two places, as they are at one moment.

Knows: where a batch begins and ends; that `latest` is resolved once, so that all tasks read one snapshot;
what filters narrow (Spark looks at every row again); when entries that were to be read are gone.
Must never know: checkpoints, triggers, how a page becomes rows.
"""

import logging
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Final, Self

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyspark_weir import ids, offsets, schema
from pyspark_weir.errors import DataLoss, OptionError, PipelineError
from pyspark_weir.filters import Compare, PushedFilters, comparison_of
from pyspark_weir.gateway import PlannedRange, PlanQuery
from pyspark_weir.gateways import Gateways
from pyspark_weir.offsets import Lost, Position
from pyspark_weir.options import EARLIEST, FAILFAST, LATEST, OffsetBounds, SourceOptions
from pyspark_weir.schema import RESERVED
from pyspark_weir.source import reading, relations
from pyspark_weir.source.decode import Form
from pyspark_weir.source.reading import batches

# What a column of the entry's own name is, unless the user's schema names its fields.
_ENTRYS: Final = MappingProxyType({name: name for name in RESERVED.values()})


@dataclass(frozen=True)
class Narrowed:
    """What filters leave: streams and gateways, None for all; IDs after `after` and up to `end`."""

    streams: frozenset[str] | None = None
    gateways: frozenset[str] | None = None
    after: str = str(ids.ZERO)
    end: str = str(ids.LAST)

    @classmethod
    def by(cls, filters: Iterable[object], meant: Mapping[str, str] = _ENTRYS) -> Self:
        """`meant`: columns of the schema, and what of the entry each of them is; others are its fields."""
        narrowed = cls()
        for one in filters:
            narrowed = narrowed.with_filter(one, meant)
        return narrowed

    def takes(self, gateway: str, stream: str) -> bool:
        """Whether a stream can have rows at all."""
        return (self.streams is None or stream in self.streams) and (
            self.gateways is None or gateway in self.gateways
        )

    def between(self, after: str, end: str) -> tuple[str, str]:
        return ids.later(after, self.after), ids.earlier(end, self.end)

    def with_filter(self, one: object, meant: Mapping[str, str]) -> Self:
        """Narrowed by one filter more, as far as it is understood."""
        found = comparison_of(one)
        if found is None:
            return self
        column, is_equal = meant.get(found.column), found.compare is operator.eq
        if column in ("stream", "shard") and is_equal:
            return self._of(column, frozenset(map(str, found.values)))
        if column == "id" and is_equal:
            return self._of_ids(found.values)
        return self._of_times(found.compare, found.values) if column in ("ms", "ts") else self

    def _of(self, column: str, names: frozenset[str]) -> Self:
        if column == "stream":
            return replace(self, streams=names if self.streams is None else self.streams & names)
        return replace(self, gateways=names if self.gateways is None else self.gateways & names)

    def _of_ids(self, values: Iterable[object]) -> Self:
        try:
            found = sorted(ids.parse(str(value)) for value in values)
        except PipelineError:
            return self
        return self._inside(found[0], found[-1])

    def _of_times(self, compare: Compare, values: Sequence[object]) -> Self:
        """Whole milliseconds, rounded outwards."""
        edges = [edge for edge in map(_ms, values) if edge is not None]
        if len(edges) < len(values):
            return self
        first = ids.ZERO if compare in (operator.lt, operator.le) else _first_of(min(edges))
        last = ids.LAST if compare in (operator.gt, operator.ge) else _last_of(max(edges))
        return self._inside(first, last)

    def _inside(self, first: ids.EntryId, last: ids.EntryId) -> Self:
        after, end = self.between(str(ids.previous_id(first)), str(last))
        return replace(self, after=after, end=end)


def _ms(value: object) -> int | None:
    """Milliseconds since 1970, of a number or of a time with a zone."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return math.floor(value.astimezone(UTC).timestamp() * 1_000)
    return None


def _first_of(ms: int) -> ids.EntryId:
    return ids.EntryId(min(max(ms, 0), ids.HALF_MAX), 0)


def _last_of(ms: int) -> ids.EntryId:
    # A time's part below the millisecond is cut off: one more is enough.
    return ids.EntryId(min(max(ms + 1, 0), ids.HALF_MAX), ids.HALF_MAX)


class Loss(Enum):
    """What has become of a position."""

    TRIMMED = "trimmed"
    RECREATED = "recreated"
    AHEAD = "ahead"
    GONE = "gone"

    @property
    def is_reset(self) -> bool:
        """Whether the position means nothing any more, so that reading has to begin somewhere else."""
        return self in (Loss.RECREATED, Loss.AHEAD)


def loss_of(at: Position, plan: PlannedRange | None) -> Loss | None:
    """What was lost behind a position; `plan` is None where the stream is missing.

    A position without generation was written before the stream was seen: it cannot have lost anything.
    """
    if not at.generation:
        return None
    if plan is None:
        return Loss.GONE
    if plan.generation != at.generation:
        return Loss.RECREATED
    if ids.is_after(at.id, plan.last):
        return Loss.AHEAD
    # Also from 0-0: a stream that had lost its first entries by then was begun behind them.
    return Loss.TRIMMED if ids.is_after(plan.removed_upto, at.id) else None


def lost_of(key: str, at: Position, plan: PlannedRange | None, loss: Loss) -> list[Lost]:
    """What is noted of an accepted loss; of entries that were put back to before nothing was unread."""
    if loss is Loss.TRIMMED and plan is not None:
        return [Lost(key, at.generation, at.id, plan.removed_upto, "trimmed")]
    if loss is Loss.AHEAD:
        return []
    return [Lost(key, at.generation, at.id, None, "deleted" if plan is None else "deleted and made anew")]


def loss_sentence(key: str, at: Position, plan: PlannedRange | None, loss: Loss) -> str:
    """What happened to a stream, where, and what to do."""
    gateway, stream = offsets.parts(key)
    where = f"stream {stream} of {gateway} after {at.id}"
    if plan is None:
        return (
            f"{where}: the stream was deleted; what was unread of it is lost; go on without it with "
            "failOnDataLoss=false"
        )
    if loss is Loss.TRIMMED:
        return (
            f"{where}: entries up to {plan.removed_upto} were trimmed or deleted before they were read, the "
            f"first one left is {plan.first or 'none'}; trim later, or go on without them with "
            "failOnDataLoss=false"
        )
    what = (
        f"the stream was deleted and made anew (generation {at.generation} is now {plan.generation}); what "
        "was unread of the old one is lost"
        if loss is Loss.RECREATED
        else f"the stream ends at {plan.last}, before what was read of it; older data was restored, or a "
        "crash took entries back"
    )
    return f"{where}: {what}; go on with onReset=earliest or onReset=latest"


_log: Final = logging.getLogger(__name__)


def form_of(options: SourceOptions, given: StructType) -> Form:
    """How entries become the rows of a schema that Spark hands over. Raises OptionError."""
    filled, format_ = schema.resolve(options, given)
    if options.relation == "deadletter":
        format_ = "deadletter"
    return Form(
        schema.arrow_of(filled), format_, options.on_bad_utf8, options.dup_fields, options.mode == FAILFAST
    )


class BatchReader(DataSourceReader):
    """Reads entries, or the rows of another relation."""

    def __init__(self, options: SourceOptions, given: StructType) -> None:
        self._options = options
        self._form = form_of(options, given)
        self._narrowed = Narrowed()

    @property
    def pushFilters(self) -> PushedFilters:  # noqa: N802 - Spark's
        """Narrows what is read; every filter goes back, for Spark to look at each row."""
        return PushedFilters(self._narrow)

    def _narrow(self, filters: list[Filter]) -> list[Filter]:
        if self._options.pushdown:
            self._narrowed = Narrowed.by(filters, RESERVED if self._form.format == "columns" else _ENTRYS)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Spark makes one partition of None where there is none."""
        gateways = Gateways(self._options)
        try:
            if self._options.relation in relations.SNAPSHOTS:
                return [relations.SnapshotPartition(one.name) for one in self._options.gateways]
            return list(reading.tasks(gateways, reading.sizes_of(self._options), self._snapshot(gateways)))
        finally:
            gateways.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, relations.SnapshotPartition):
            return relations.batches(self._options, self._form.schema, partition)
        return batches(self._options, self._form, partition)

    def _snapshot(self, gateways: Gateways) -> dict[str, PlannedRange]:
        """What is read of each stream: counted once between places that stay."""
        options = self._options
        keys = [key for key in gateways.select() if self._narrowed.takes(*offsets.parts(key))]
        seen = gateways.heads(keys)
        if seen.missing:
            sentence = f"these streams do not exist: {', '.join(sorted(seen.missing))}"
            if options.fail_on_missing_stream:
                raise PipelineError(
                    "WEIR_NO_STREAM", f"{sentence}; leave failOnMissingStream out to read none of them"
                )
            _log.info("%s; they are read as empty", sentence)
        after: dict[str, str] = {}
        ends: dict[str, str] = {}
        for key, plan in seen.streams.items():
            start, end = self._bounds(key, plan)
            if ids.is_after(end, start):
                after[key], ends[key] = start, end
        counted = gateways.plan(PlanQuery(after, ends))
        return self._check(seen.streams, counted.streams)

    def _bounds(self, key: str, plan: PlannedRange) -> tuple[str, str]:
        """The range of one stream by the options, and by what was pushed down."""
        gateway, stream = offsets.parts(key)
        bounds = self._options.starting or OffsetBounds(EARLIEST)
        start = starting_id(key, bounds, plan, self._options)
        end = self._options.ending.of(gateway, stream)
        # The plan's end is the head, or what of it is durable.
        end = {LATEST: plan.end, EARLIEST: plan.removed_upto}.get(end, end)
        start, end = self._narrowed.between(start, end)
        return start, ids.earlier(end, plan.end)

    def _check(
        self, seen: Mapping[str, PlannedRange], counted: Mapping[str, PlannedRange]
    ) -> dict[str, PlannedRange]:
        """What was counted, as long as it is of the streams that were seen."""
        kept: dict[str, PlannedRange] = {}
        for key, plan in counted.items():
            at = Position(plan.after, seen[key].generation)
            loss = loss_of(at, plan)
            if loss is not None and self._options.fail_on_data_loss:
                raise DataLoss(loss_sentence(key, at, plan, loss))
            if loss is None or not loss.is_reset:
                # PlanQuery from behind the floor: the task reports what went from there on.
                kept[key] = plan
        return kept


def starting_id(key: str, bounds: OffsetBounds, plan: PlannedRange, options: SourceOptions) -> str:
    """After which ID a stream is read, as it is now. Raises DataLoss, PipelineError.

    Never before what is gone: then a later loss differs from what was gone from the start.
    """
    wanted = bounds.of(*offsets.parts(key))
    latest = plan.durable if options.durable_only and plan.durable is not None else plan.last
    if wanted == LATEST:
        return latest
    if wanted in (EARLIEST, ids.BEGINNING):
        return plan.removed_upto
    if bounds.option.endswith("Offsets"):
        at = Position(wanted, plan.generation)
        loss = loss_of(at, plan)
        if loss is Loss.AHEAD:
            raise OptionError(
                f"{bounds.option}: {key}: {wanted} lies behind the stream's last entry {plan.last}: give an "
                "ID that the stream has, or latest"
            )
        if loss is not None and options.fail_on_data_loss:
            raise DataLoss(loss_sentence(key, at, plan, loss))
    # A time may lie behind all that there is, and before what is gone.
    return ids.later(ids.earlier(wanted, plan.last), plan.removed_upto)
