"""What a task does: the pages of its ranges, one after the other, as Arrow batches.

Knows: ranges, pages, that the next page is got while Spark takes the last.
Must never know: how ranges were planned, offsets, triggers.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pipeline import gateway as calls
from pipeline import ids
from pipeline.errors import DataLoss, PipelineError, Refused
from pipeline.gateway import ColumnsPage, Gateway
from pipeline.options import SourceOptions
from pipeline.planning import Range
from pipeline.source.decode import Form

# A batch is held by the worker and by the JVM at once; this is what a page's JSON may have.
page_bytes_max: Final = 4 << 20

_log: Final = logging.getLogger(__name__)


@dataclass
class RangePartition(InputPartition):
    """The ranges of one task."""

    ranges: tuple[Range, ...]


def partitions(tasks: Sequence[tuple[Range, ...]]) -> list[RangePartition]:
    """A partition for each task."""
    return [RangePartition(ranges) for ranges in tasks]


def batches(options: SourceOptions, form: Form, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The entries of a partition, in the order of each stream. Raises DataLoss, PipelineError.

    Spark makes a partition of its own where there is none: it has no ranges.
    """
    if not isinstance(partition, RangePartition):
        return
    with ExitStack() as stack:
        ahead = stack.enter_context(ThreadPoolExecutor(1, "weir-page"))
        opened: dict[str, Gateway] = {}
        for one in partition.ranges:
            if one.gateway not in opened:
                opened[one.gateway] = stack.enter_context(Gateway(options.access(one.gateway)))
            reader = _RangeReader(options, form, opened[one.gateway], one)
            yield from reader.batches(ahead)


class _RangeReader:
    """One range: page after page."""

    def __init__(self, options: SourceOptions, form: Form, gateway: Gateway, one: Range) -> None:
        self._options = options
        self._form = form
        self._gateway = gateway
        self._range = one
        self._fields = form.wanted_fields()

    def batches(self, ahead: ThreadPoolExecutor) -> Iterator[pa.RecordBatch]:
        cursor = self._range.after
        page = self._page(cursor)
        while True:
            if not self._is_same_stream(page):
                return
            going_on = page.more and page.next_id != self._range.end
            if going_on and not ids.is_after(page.next_id, cursor):
                raise PipelineError(
                    "WEIR_NO_PROGRESS",
                    f"{self._where}: the gateway answers no entry after {cursor}, but more",
                )
            cursor = page.next_id
            following = ahead.submit(self._page, cursor) if going_on else None
            if len(page):
                yield self._form.batch(page, self._range.gateway, self._range.stream)
            if following is None:
                return
            page = following.result()

    def _page(self, after: str) -> ColumnsPage:
        try:
            page = calls.page(
                self._gateway,
                self._range.stream,
                after=after,
                end=self._range.end,
                count=self._options.fetch_size,
                max_bytes=page_bytes_max,
                fields=self._fields,
                fail_on_gap=self._options.fail_on_data_loss,
            )
        except Refused as refused:
            if refused.status == 410:
                raise self._lost(f"entries after {after} were trimmed before they were read") from None
            raise
        # From 0-0 nothing is a gap to the gateway; what was there when this was planned may be gone even so.
        known = ids.later(after, self._range.floor)
        if self._options.fail_on_data_loss and ids.is_after(page.removed_upto, known):
            raise self._lost(f"entries up to {page.removed_upto} were trimmed before they were read")
        return page

    def _is_same_stream(self, page: ColumnsPage) -> bool:
        if page.generation == self._range.generation:
            return True
        told = "the stream was deleted" + (" and made anew" if page.generation else "")
        if self._options.fail_on_data_loss:
            raise self._lost(f"{told} before it was read")
        _log.warning("%s: %s; reading on without it", self._where, told)
        return False

    def _lost(self, what: str) -> DataLoss:
        return DataLoss(f"{self._where}: {what}; go on without them with failOnDataLoss=false")

    @property
    def _where(self) -> str:
        one = self._range
        return f"stream {one.stream} of {one.gateway}, ({one.after}, {one.end}]"
