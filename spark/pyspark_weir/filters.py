"""Filters that Spark offers to a source, as comparisons of one column.

Knows: Spark's classes of filters. Must never know: columns, what is narrowed by them.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pyspark.sql import datasource

Compare = Callable[[Any, Any], Any]

_COMPARISONS: Final[Mapping[type, Compare]] = MappingProxyType(
    {
        datasource.EqualTo: operator.eq,
        datasource.EqualNullSafe: operator.eq,
        datasource.In: operator.eq,
        datasource.LessThan: operator.lt,
        datasource.LessThanOrEqual: operator.le,
        datasource.GreaterThan: operator.gt,
        datasource.GreaterThanOrEqual: operator.ge,
    }
)


class Comparison(NamedTuple):
    """With `operator.eq` the column is one of `values`; else `compare` holds between it and the only one."""

    column: str
    compare: Compare
    values: tuple[Any, ...]


class PushedFilters:
    """A reader's `pushFilters`, which Spark calls where `spark.sql.python.filterPushdown.enabled` is true. It
    refuses no reader for it elsewhere: there it looks whether `__func__` is its own.
    """

    def __init__(self, push: Callable[[list[datasource.Filter]], Iterable[datasource.Filter]]) -> None:
        self._push = push
        self.__func__ = datasource.DataSourceReader.pushFilters

    def __call__(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        return self._push(filters)


def comparison_of(one: object) -> Comparison | None:
    """What a filter says; None for other filters, for parts of a column, and where null is compared."""
    compare = _COMPARISONS.get(type(one))
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if compare is None or len(attribute) != 1:
        return None
    value: Any = getattr(one, "value", None)
    values = tuple(value) if isinstance(one, datasource.In) else (value,)
    return None if None in values or not values else Comparison(attribute[0], compare, values)
