"""Spark's batch reader: streams between two places, as they are at one moment.

Knows: where a batch begins and ends; that `latest` is resolved once, so that all tasks read one snapshot.
Must never know: checkpoints, triggers, how a page becomes rows.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_weir import ids, offsets, schema
from pyspark_weir.errors import DataLoss, OptionError, PipelineError
from pyspark_weir.gateway import StreamPlan
from pyspark_weir.offsets import Position
from pyspark_weir.options import EARLIEST, FAILFAST, LATEST, Bounds, SourceOptions
from pyspark_weir.source import losses, ranges, relations
from pyspark_weir.source.decode import Form
from pyspark_weir.source.gateways import Asked, Gateways
from pyspark_weir.source.pushdown import Narrowed
from pyspark_weir.source.reading import batches

_log: Final = logging.getLogger(__name__)


def form_of(options: SourceOptions, given: StructType) -> Form:
    """How entries become the rows of a schema that Spark hands over. Raises OptionError."""
    filled, format_ = schema.checked(options, given)
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

    def partitions(self) -> Sequence[InputPartition]:
        """Spark makes one partition of None where there is none."""
        gateways = Gateways(self._options)
        try:
            if self._options.relation in relations.SNAPSHOTS:
                return [relations.SnapshotPartition(one.name) for one in self._options.gateways]
            return list(ranges.tasks(gateways, ranges.sizes_of(self._options), self._snapshot(gateways)))
        finally:
            gateways.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, relations.SnapshotPartition):
            return relations.batches(self._options, self._form.schema, partition)
        return batches(self._options, self._form, partition)

    def _snapshot(self, gateways: Gateways) -> dict[str, StreamPlan]:
        """What is read of each stream: counted once between places that stay."""
        options = self._options
        keys = [key for key in gateways.selected() if self._narrowed.takes(*offsets.parts(key))]
        seen = gateways.heads(keys)
        if seen.missing:
            told = f"these streams do not exist: {', '.join(sorted(seen.missing))}"
            if options.fail_on_missing_stream:
                raise PipelineError(
                    "WEIR_NO_STREAM", f"{told}; leave failOnMissingStream out to read none of them"
                )
            _log.info("%s; they are read as empty", told)
        after: dict[str, str] = {}
        ends: dict[str, str] = {}
        for key, plan in seen.streams.items():
            start, end = self._between(key, plan)
            if ids.is_after(end, start):
                after[key], ends[key] = start, end
        counted = gateways.plan(Asked(after, ends))
        return self._checked(seen.streams, counted.streams)

    def _between(self, key: str, plan: StreamPlan) -> tuple[str, str]:
        """The range of one stream by the options, and by what was pushed down."""
        gateway, stream = offsets.parts(key)
        bounds = self._options.starting or Bounds(EARLIEST)
        start = starting_id(key, bounds, plan, self._options)
        end = self._options.ending.of(gateway, stream)
        # The plan's end is the head, or what of it is durable.
        end = {LATEST: plan.end, EARLIEST: plan.removed_upto}.get(end, end)
        start, end = self._narrowed.between(start, end)
        return start, ids.earlier(end, plan.end)

    def _checked(
        self, seen: Mapping[str, StreamPlan], counted: Mapping[str, StreamPlan]
    ) -> dict[str, StreamPlan]:
        """What was counted, as long as it is of the streams that were seen."""
        kept: dict[str, StreamPlan] = {}
        for key, plan in counted.items():
            at = Position(plan.after, seen[key].generation)
            loss = losses.loss_of(at, plan)
            if loss is not None and self._options.fail_on_data_loss:
                raise DataLoss(losses.sentence(key, at, plan, loss))
            if loss is None or not loss.is_reset:
                # Asked from behind the floor: what went from there on is told by the task.
                kept[key] = plan
        return kept


class PushdownReader(BatchReader):
    """A reader that filters are pushed to; Spark refuses it unless its own setting allows that."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's
        """Narrows what is read; every filter goes back, for Spark to look at each row."""
        self._narrowed = Narrowed.by(filters)
        yield from filters


def starting_id(key: str, bounds: Bounds, plan: StreamPlan, options: SourceOptions) -> str:
    """After which ID a stream is read, as it is now. Raises DataLoss, PipelineError.

    Never before what is gone: then a later loss is told apart from what was gone from the start.
    """
    wanted = bounds.of(*offsets.parts(key))
    latest = plan.durable if options.durable_only and plan.durable is not None else plan.last
    if wanted == LATEST:
        return latest
    if wanted in (EARLIEST, ids.BEGINNING):
        return plan.removed_upto
    if bounds.option.endswith("Offsets"):
        at = Position(wanted, plan.generation)
        loss = losses.loss_of(at, plan)
        if loss is losses.Loss.AHEAD:
            raise OptionError(
                f"{bounds.option}: {key}: {wanted} lies behind the stream's last entry {plan.last}: give an "
                "ID that the stream has, or latest"
            )
        if loss is not None and options.fail_on_data_loss:
            raise DataLoss(losses.sentence(key, at, plan, loss))
    # A time may lie behind all that there is, and before what is gone.
    return ids.later(ids.earlier(wanted, plan.last), plan.removed_upto)


def reader_of(options: SourceOptions, given: StructType) -> BatchReader:
    """The reader that goes with the options."""
    return (PushdownReader if options.pushdown else BatchReader)(options, given)
