"""Spark's streaming reader: where the next batch ends, and which tasks read it.

Knows: offsets, read limits, triggers; that a loss has to be raised before Spark writes a batch's end down.
Must never know: how a page becomes rows, HTTP.

It exists twice: on the driver, in a process of its own that asks for offsets one after the other, and in
every task, unpickled, to read. Only the first has a state.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_weir import ids, offsets
from pyspark_weir.clock import monotonic_s, pause
from pyspark_weir.errors import DataLoss, OptionError, PipelineError
from pyspark_weir.gateway import GatewayPlan, PlannedRange, PlanQuery, PreviousStream
from pyspark_weir.gateways import Gateways
from pyspark_weir.offsets import Lost, Offsets, Position
from pyspark_weir.options import EARLIEST, LATEST, OffsetBounds, SourceOptions
from pyspark_weir.source import reading, relations
from pyspark_weir.source.batch import Loss, form_of, loss_of, loss_sentence, lost_of, starting_id
from pyspark_weir.source.reading import batches

_log: Final = logging.getLogger(__name__)


class StreamingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is new. `clock` gives seconds that never go back, `sleep` waits for a number of them."""

    def __init__(
        self,
        options: SourceOptions,
        given: StructType,
        *,
        clock: Callable[[], float] = monotonic_s,
        sleep: Callable[[float], None] = pause,
    ) -> None:
        if options.relation in relations.SNAPSHOTS:
            raise OptionError(
                f"relation={options.relation} is a snapshot: read it with spark.read, once a batch of "
                "foreachBatch where it is to be read again and again"
            )
        if options.ending.option:
            raise OptionError(
                f"{options.ending.option}: a stream has no end; leave it out, or use spark.read, or read "
                "what there is and stop, with trigger(availableNow=True)"
            )
        self._options = options
        self._form = form_of(options, given)
        self._clock = clock
        self._sleep = sleep
        self._gateways = Gateways(options, clock)
        # Under AvailableNow: what there was at the start, by key.
        self._targets: Mapping[str, PlannedRange] | None = None
        self._selected: list[str] = []
        self._seen: dict[str, PlannedRange] = {}
        self._previous: dict[str, PreviousStream] = {}
        self._told: set[tuple[str, Loss]] = set()
        self._last_batch_s = clock()

    # ---- where to begin and to end

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Where a new query begins; streams that are missing are read from their beginning."""
        bounds = self._options.starting or OffsetBounds(LATEST)
        keys = self._keys({})
        found = self._gateways.heads(keys)
        self._look(found)
        begun: Offsets = {}
        for key in keys:
            plan = found.streams.get(key)
            if plan is not None:
                self._check_time(key, bounds, plan)
                begun[key] = Position(starting_id(key, bounds, plan, self._options), plan.generation)
                continue
            wanted = bounds.of(*offsets.parts(key))
            begun[key] = Position(ids.BEGINNING if wanted in (EARLIEST, LATEST) else wanted, "")
        return offsets.encode(begun)

    def _check_time(self, key: str, bounds: OffsetBounds, plan: PlannedRange) -> None:
        """Raises OptionError for a time to come: what is published until then would be read as well."""
        wanted = bounds.of(*offsets.parts(key))
        if "Timestamp" not in bounds.option or wanted in (EARLIEST, LATEST):
            return
        if self._options.starting_strategy != LATEST and ids.is_after(wanted, plan.last):
            raise OptionError(
                f"{bounds.option}: {key} has no entry of that time or later, its last one is {plan.last}: "
                "give an earlier time, or begin behind what there is with startingTimestampStrategy=latest"
            )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Spark knows no limit of entries and bytes at once: `latestOffset` adds the bytes."""
        return ReadMaxRows(self._options.max_entries_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Streams that exist now are read; later ones are left to the next run."""
        keys = self._gateways.select(fresh=True)
        found = self._gateways.heads(keys)
        self._look(found)
        self._targets = found.streams
        self._selected = keys

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the batch after `start` ends; `start` itself where there is nothing to read.

        Raises DataLoss, PipelineError: before Spark writes anything down.
        """
        known, gone = offsets.decode(start), offsets.gone(start)
        at = {key: known.get(key, Position(ids.BEGINNING, "")) for key in self._keys(known)}
        found = self._plan(at, limit)
        resets, lost = self._resets(at, found, gone)
        # Told once, also to later runs, which have not seen the stream's end.
        missing = frozenset(key for key in known.keys() & found.missing if known[key].generation)
        if resets:
            # Both budgets hold for all streams together: so all are planned again.
            at |= resets
            found = self._plan(at, limit, wait=False)
        moved = {
            key: Position(plan.end, plan.generation, _floor(at[key], plan, resets.get(key)))
            for key, plan in found.streams.items()
            if plan.count
        }
        if self._options.on_reset == LATEST:
            # A batch of its own, of nothing: what came behind the head since is the next one's.
            moved |= resets
        # What all of it lost is read up to there: so that it is noted, and not reported again.
        for one in lost:
            if one.upto is not None and one.key not in moved:
                moved[one.key] = Position(one.upto, one.generation)
        # One that was made anew is known to have gone until something of it is read.
        back = (
            key for key in gone & found.streams.keys() if self._is_back(key, known, found) or key in moved
        )
        gone_now = gone.difference(back) | missing
        lost = [one for one in lost if one.key in moved or one.key in gone_now]
        if gone_now == gone and (not moved or (not resets and self._is_too_little(found, limit))):
            return dict(start)
        self._last_batch_s = self._clock()
        sizes = reading.sizes_of(self._options)
        return offsets.encode({**known, **moved}, gone=gone_now, lost=lost, cut=sizes)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """The heads as they were seen last; Spark asks right after `latestOffset`, so no other call is
        made.
        """
        if not self._seen:
            return None
        return offsets.encode({key: Position(one.last, one.generation) for key, one in self._seen.items()})

    # ---- what to read

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch. Raises DataLoss where the batch, written down before, is not there any
        more.
        """
        known, until = offsets.decode(start), offsets.decode(end)
        wanted = {key: begun for key, to in until.items() if (begun := self._begin(known.get(key), to))}
        if not wanted:
            return []
        found = self._gateways.plan(
            PlanQuery({key: at.id for key, at in wanted.items()}, {key: until[key].id for key in wanted})
        )
        plans: dict[str, PlannedRange] = {}
        for key, at in wanted.items():
            plan = found.streams.get(key)
            loss = loss_of(at, plan)
            if loss is None and plan is not None and ids.is_after(until[key].id, plan.last):
                loss = Loss.AHEAD
            if loss is not None:
                self._lose(key, at, plan, loss)
            if plan is not None and (loss is None or loss is Loss.TRIMMED):
                plans[key] = plan
        # A sink knows a chunk by its task: run again, on another machine say, the batch keeps its tasks.
        sizes = offsets.cut(end) or reading.sizes_of(self._options)
        return reading.tasks(self._gateways, sizes, plans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(self._options, self._form, partition)

    def stop(self) -> None:
        self._gateways.close()

    # ---- inside

    def _keys(self, known: Mapping[str, Position]) -> list[str]:
        """The streams that are read now; under AvailableNow those that were there, or should have been."""
        if self._targets is None:
            keys = self._gateways.select()
        else:
            keys = [key for key in self._selected if key in self._targets or key in known]
        # Who deletes a stream takes it from the listing too: what was unread of it is lost all the same.
        met = (key for key, place in known.items() if place.generation and self._gateways.may_have(key))
        return sorted({*keys, *met})

    def _query(self, after: Mapping[str, str]) -> PlanQuery:
        return PlanQuery(after, durable_only=self._options.durable_only)

    def _plan(self, at: Mapping[str, Position], limit: ReadLimit, *, wait: bool = True) -> GatewayPlan:
        """Plans after these places, within the limit and, under AvailableNow, up to the targets."""
        options = self._options
        asked = self._query({key: place.id for key, place in at.items()})
        # Spark wants everything: then no limit of our own counts.
        if not isinstance(limit, ReadAllAvailable | ReadMinRows):
            asked = replace(
                asked,
                max_entries=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                max_bytes=limit.max_bytes
                if isinstance(limit, ReadMaxBytes)
                else options.max_bytes_per_trigger,
            )
        if self._targets is not None:
            ends = {key: one.end for key, one in self._targets.items() if key in at}
            found = self._gateways.plan(replace(asked, end=ends))
            found = self._within_targets(found)
        else:
            wait_ms = options.poll_timeout_ms if wait else 0
            found = self._gateways.plan(replace(asked, wait_ms=wait_ms))
        self._look(found)
        return found

    def _within_targets(self, found: GatewayPlan) -> GatewayPlan:
        """A stream that was made anew since the run began has nothing to be read in it."""
        assert self._targets is not None, "only under AvailableNow"
        kept = {
            key: plan if self._is_target(key, plan) else replace(plan, count=0)
            for key, plan in found.streams.items()
        }
        return replace(found, streams=kept)

    def _is_target(self, key: str, plan: PlannedRange) -> bool:
        target = None if self._targets is None else self._targets.get(key)
        return target is not None and target.generation == plan.generation

    def _look(self, found: GatewayPlan) -> None:
        """Keep what was seen of each stream, and refuse what is missing where that is asked for."""
        self._seen |= found.streams
        self._previous |= found.previous
        if found.missing and self._options.fail_on_missing_stream:
            raise PipelineError(
                "WEIR_NO_STREAM",
                f"these streams do not exist: {', '.join(sorted(found.missing))}; leave failOnMissingStream "
                "out to read them from when they appear",
            )

    def _resets(
        self, at: Mapping[str, Position], found: GatewayPlan, gone: frozenset[str]
    ) -> tuple[Offsets, list[Lost]]:
        """Where streams are read on whose place means nothing any more, and what is lost; of those that are
        `gone` it is known. Raises DataLoss.
        """
        resets: Offsets = {}
        lost: list[Lost] = []
        for key, place in at.items():
            plan = found.streams.get(key)
            loss = loss_of(place, plan)
            if loss is None or (loss is Loss.GONE and key in gone):
                continue
            # It had gone before it was made anew.
            known = loss is Loss.RECREATED and key in gone
            if not known and self._lose(key, place, plan, loss):
                lost += lost_of(key, place, plan, loss)
            if loss.is_reset:
                assert plan is not None, "only a stream that is there can be another one"
                resets[key] = self._reset(plan)
        return resets, lost

    @staticmethod
    def _is_back(key: str, known: Offsets, found: GatewayPlan) -> bool:
        """Whether a stream that had gone is there again as it was."""
        return key not in known or found.streams[key].generation == known[key].generation

    def _reset(self, plan: PlannedRange) -> Position:
        floor = plan.removed_upto
        if self._options.on_reset != LATEST:
            return Position(floor, plan.generation, floor)
        head = plan.durable if self._options.durable_only and plan.durable is not None else plan.last
        return Position(head, plan.generation, floor)

    def _begin(self, start: Position | None, end: Position) -> Position | None:
        """After which place a stream of a batch is read; None where the batch has nothing of it."""
        if start is None or not start.generation:
            # It appeared in this batch; what had been gone by then is no loss.
            place = ids.BEGINNING if start is None else start.id
            begun = Position(ids.later(place, end.floor or ids.BEGINNING), end.generation)
        elif start.generation == end.generation and not ids.is_after(start.id, end.id):
            begun = start
        elif self._options.on_reset == LATEST:
            return None
        else:
            begun = Position(end.floor or ids.BEGINNING, end.generation)
        return begun if end.generation and ids.is_after(end.id, begun.id) else None

    def _lose(self, key: str, at: Position, plan: PlannedRange | None, loss: Loss) -> bool:
        """Raise, or go on and tell once; whether anything may be lost. Raises DataLoss."""
        if loss in (Loss.GONE, Loss.RECREATED) and self._had_read_all(key, at):
            return False
        sentence = loss_sentence(key, at, plan, loss)
        fails = self._options.on_reset == "fail" if loss.is_reset else self._options.fail_on_data_loss
        if fails:
            raise DataLoss(sentence)
        if (key, loss) not in self._told:
            self._told.add((key, loss))
            _log.warning("%s", sentence)
        return True

    def _had_read_all(self, key: str, at: Position) -> bool:
        """Whether a stream that is gone had nothing unread at its end, or when it was last looked at."""
        ends: list[PreviousStream | PlannedRange | None] = [self._previous.get(key), self._seen.get(key)]
        known = [one for one in ends if one is not None]
        return any(one.generation == at.generation and not ids.is_after(one.last, at.id) for one in known)

    def _is_too_little(self, found: GatewayPlan, limit: ReadLimit) -> bool:
        """Whether a batch is to wait for more; then a moment is waited here, for Spark asks again at once."""
        options = self._options
        least = limit.min_rows if isinstance(limit, ReadMinRows) else options.min_entries_per_trigger
        if least is None or self._targets is not None or found.sum("lag") >= least:
            return False
        left_s = self._last_batch_s + options.max_trigger_delay_ms / 1_000 - self._clock()
        if left_s <= 0:
            return False
        self._sleep(min(left_s, options.poll_timeout_ms / 1_000))
        return True


def _floor(at: Position, plan: PlannedRange, reset: Position | None) -> str | None:
    """What was gone already, noted in the offset in which a stream is met, or met anew."""
    if reset is not None:
        return reset.floor
    return None if at.generation else plan.removed_upto
