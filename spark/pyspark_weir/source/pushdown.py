"""Filters of a query, as fewer streams and shorter ranges.

Knows: Spark's filters; which of them bound streams and IDs. What it does not understand narrows nothing:
Spark looks at every row again.
Must never know: gateways, plans, rows.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pyspark_weir import ids
from pyspark_weir.errors import PipelineError
from pyspark_weir.schema import RESERVED


@dataclass(frozen=True)
class Narrowed:
    """What filters leave: streams and gateways, None for all; IDs after `after` and up to `end`."""

    streams: frozenset[str] | None = None
    gateways: frozenset[str] | None = None
    after: str = str(ids.ZERO)
    end: str = str(ids.LAST)

    @classmethod
    def by(cls, filters: Iterable[object]) -> Self:
        """By all of these at once."""
        narrowed = cls()
        for one in filters:
            narrowed = narrowed.with_filter(one)
        return narrowed

    def takes(self, gateway: str, stream: str) -> bool:
        """Whether a stream can have rows at all."""
        return (self.streams is None or stream in self.streams) and (
            self.gateways is None or gateway in self.gateways
        )

    def between(self, after: str, end: str) -> tuple[str, str]:
        """A range, shortened."""
        return ids.later(after, self.after), ids.earlier(end, self.end)

    def with_filter(self, one: object) -> Self:
        """Narrowed by one filter more, as far as it is understood."""
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            return self
        column = RESERVED.get(attribute[0], attribute[0])
        values = _values(one)
        if column in ("stream", "shard") and values is not None:
            return self._of(column, frozenset(str(value) for value in values))
        if column == "id" and values:
            return self._of_ids(values)
        if column in ("ms", "ts"):
            return self._of_times(one, values)
        return self

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

    def _of_times(self, one: object, values: Iterable[object] | None) -> Self:
        """Whole milliseconds, rounded outwards."""
        if values is not None:
            bounds = [_ms(value) for value in values]
            edges = [bound for bound in bounds if bound is not None]
            if not edges or len(edges) < len(bounds):
                return self
            low, high = min(edges), max(edges)
            return self._inside(_first_of(low), _last_of(high))
        edge = _ms(getattr(one, "value", None))
        if edge is None:
            return self
        if isinstance(one, GreaterThan | GreaterThanOrEqual):
            return self._inside(_first_of(edge), ids.LAST)
        if isinstance(one, LessThan | LessThanOrEqual):
            return self._inside(ids.ZERO, _last_of(edge))
        return self

    def _inside(self, first: ids.EntryId, last: ids.EntryId) -> Self:
        after, end = self.between(str(ids.previous_id(first)), str(last))
        return replace(self, after=after, end=end)


def _values(one: object) -> tuple[object, ...] | None:
    """What the column is equal to, one of; None for other filters, and where null is among them."""
    if isinstance(one, EqualTo | EqualNullSafe):
        found: tuple[object, ...] = (one.value,)
    elif isinstance(one, In):
        found = tuple(one.value)
    else:
        return None
    return None if any(value is None for value in found) else found


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
