"""The tasks of a batch, and what a task does: the pages of its ranges, one after the other, as Arrow batches.

Knows: that counting comes first, and cutting only where it is worth it; that the next page is got while Spark
takes the last. Must never know: offsets, triggers.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_weir import ids, offsets
from pyspark_weir.errors import DataLoss, PipelineError, RefusedError
from pyspark_weir.gateway import ColumnsPage, GatewayClient, PlannedRange, PlanQuery
from pyspark_weir.gateways import Gateways
from pyspark_weir.options import SourceOptions
from pyspark_weir.planning import Sizes, TaskRange, pack, piece_counts
from pyspark_weir.source.decode import Form

# A batch is held by the worker and by the JVM at once; this is what a page's JSON may have.
PAGE_BYTES_MAX: Final = 4 << 20

_REMEDY: Final = "go on without them with failOnDataLoss=false"

_log: Final = logging.getLogger(__name__)


@dataclass
class RangePartition(InputPartition):
    """The ranges of one task."""

    ranges: tuple[TaskRange, ...]


def batches(
    options: SourceOptions, form: Form, partition: InputPartition | None, remedy: str = _REMEDY
) -> Iterator[pa.RecordBatch]:
    """The entries of a partition, in the order of each stream. Raises DataLoss, which ends with the `remedy`,
    PipelineError.

    Spark makes a partition of its own where there is none: it has no ranges.
    """
    if not isinstance(partition, RangePartition) or not partition.ranges:
        return
    misfits: Counter[str] = Counter()
    with ExitStack() as stack:
        ahead = stack.enter_context(ThreadPoolExecutor(1, "weir-page"))
        opened: dict[str, GatewayClient] = {}
        for one in partition.ranges:
            if one.gateway not in opened:
                opened[one.gateway] = stack.enter_context(GatewayClient(options.access(one.gateway)))
        readers = [_RangeReader(options, form, opened[one.gateway], one, remedy) for one in partition.ranges]
        upcoming = ahead.submit(readers[0].page)
        for place, reader in enumerate(readers):
            while True:
                page = upcoming.result()
                gives = reader.take_page(page)
                # The next page comes while this one is read; that of a short stream is the next stream's.
                if not reader.done:
                    upcoming = ahead.submit(reader.page)
                elif place + 1 < len(readers):
                    upcoming = ahead.submit(readers[place + 1].page)
                if gives:
                    yield form.batch(page, reader.range.gateway, reader.range.stream, misfits)
                if reader.done:
                    break
    if misfits:
        counts = ", ".join(f"{count:,} of column {name}" for name, count in sorted(misfits.items()))
        _log.warning("values that do not fit were read as null: %s; mode=FAILFAST refuses them", counts)


class _RangeReader:
    def __init__(
        self, options: SourceOptions, form: Form, gateway: GatewayClient, one: TaskRange, remedy: str
    ) -> None:
        self._options = options
        self._form = form
        self._gateway = gateway
        self._remedy = remedy
        self.range = one
        self.done = False
        self._cursor = one.after
        self._fields = form.wanted_fields()

    def take_page(self, page: ColumnsPage) -> bool:
        """Go on behind a page; whether it has entries to give. Raises DataLoss where it is of another stream,
        PipelineError.
        """
        is_same = self._is_same_stream(page)
        self.done = not (is_same and page.more and page.next_id != self.range.end)
        if not self.done and not ids.is_after(page.next_id, self._cursor):
            raise PipelineError(
                "WEIR_NO_PROGRESS",
                f"{self._where}: the gateway answers no entry after {self._cursor}, but says there are more",
            )
        self._cursor = page.next_id
        return is_same and len(page) > 0

    def page(self) -> ColumnsPage:
        after = self._cursor
        try:
            page = self._gateway.page(
                self.range.stream,
                after=after,
                end=self.range.end,
                count=self._options.fetch_size,
                max_bytes=PAGE_BYTES_MAX,
                fields=self._fields,
                fail_on_gap=self._options.fail_on_data_loss,
            )
        except RefusedError as refused:
            if refused.status == 410:
                raise self._lost(f"entries after {after} were trimmed before they were read") from None
            raise
        # From 0-0 nothing is a gap to the gateway; what was there when this was planned may be gone even so.
        if self._options.fail_on_data_loss and ids.is_after(page.removed_upto, after):
            raise self._lost(f"entries up to {page.removed_upto} were trimmed before they were read")
        return page

    def _is_same_stream(self, page: ColumnsPage) -> bool:
        """Whether a page is of the stream that was planned. Raises DataLoss."""
        if page.generation == self.range.generation:
            return True
        sentence = "the stream was deleted" + (" and made anew" if page.generation else "")
        if self._options.fail_on_data_loss:
            raise self._lost(f"{sentence} before it was read")
        _log.warning("%s: %s; reading on without it", self._where, sentence)
        return False

    def _lost(self, what: str) -> DataLoss:
        return DataLoss(f"{self._where}: {what}; {self._remedy}")

    @property
    def _where(self) -> str:
        one = self.range
        return f"stream {one.stream} of {one.gateway}, ({one.after}, {one.end}]"


def sizes_of(options: SourceOptions) -> Sizes:
    """What the options, and where they say nothing this machine's cores, make of tasks."""
    return Sizes(
        min_partitions=options.min_partitions,
        max_entries=options.max_entries_per_partition,
        max_bytes=options.max_bytes_per_partition,
        ordered=options.ordered,
    )


def tasks(gateways: Gateways, sizes: Sizes, plans: Mapping[str, PlannedRange]) -> list[RangePartition]:
    """The partitions that read these ranges; long ones are cut where the gateway says. Raises
    PipelineError.
    """
    ranges = [
        TaskRange(*offsets.parts(key), plan.after, plan.end, plan.count, plan.bytes, plan.generation)
        for key, plan in sorted(plans.items())
        if plan.count
    ]
    wanted = piece_counts(ranges, sizes)
    cuts: dict[tuple[str, str], tuple[str, ...]] = {}
    # Mostly one or two long streams; each number of pieces is asked for once.
    for pieces in sorted(set(wanted.values())):
        of_so_many = {one.name: one for one in ranges if wanted.get(one.name) == pieces}
        keys = {offsets.key(*name): name for name in of_so_many}
        answered = gateways.plan(
            PlanQuery(
                streams={key: of_so_many[name].after for key, name in keys.items()},
                end={key: of_so_many[name].end for key, name in keys.items()},
                parts=pieces,
            )
        )
        cuts |= {keys[key]: plan.cuts for key, plan in answered.streams.items()}
    return [RangePartition(task) for task in pack(ranges, sizes, cuts)]
