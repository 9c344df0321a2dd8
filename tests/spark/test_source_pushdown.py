"""Filters narrow what is read, and never leave out a row that they would let through."""

import datetime as dt
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pyspark_weir import ids
from pyspark_weir.source.batch import Narrowed

COMPARISONS: list[tuple[type[Any], Callable[[Any, Any], bool]]] = [
    (EqualTo, operator.eq),
    (GreaterThan, operator.gt),
    (GreaterThanOrEqual, operator.ge),
    (LessThan, operator.lt),
    (LessThanOrEqual, operator.le),
]
UTC = dt.UTC


def reads(narrowed: Narrowed, one: ids.EntryId) -> bool:
    """Whether an entry is in what is still read."""
    after, end = narrowed.between("0-0", str(ids.LAST))
    return ids.parse(after) < one <= ids.parse(end) or one == ids.ZERO


times_ms = st.integers(0, 4_000_000_000_000)


@given(st.sampled_from(COMPARISONS), times_ms, st.integers(-3, 3), st.integers(0, ids.HALF_MAX))
def test_no_entry_that_a_bound_on_ms_lets_through_is_left_out(
    comparison: tuple[type[Any], Callable[[Any, Any], bool]], bound: int, off: int, seq: int
) -> None:
    kind, holds = comparison
    ms = max(bound + off, 0)
    if holds(ms, bound):
        assert reads(Narrowed.by([kind(("ms",), bound)]), ids.EntryId(ms, seq))


@given(st.lists(times_ms, min_size=1, max_size=4), st.integers(0, ids.HALF_MAX))
def test_no_entry_of_listed_times_is_left_out(listed_ms: list[int], seq: int) -> None:
    """In the order of the query, which need not be that of time."""
    narrowed = Narrowed.by([In(("ms",), tuple(listed_ms))])
    assert all(reads(narrowed, ids.EntryId(ms, seq)) for ms in listed_ms)


@given(st.sampled_from(COMPARISONS), times_ms, st.integers(-1_500, 1_500), st.integers(-3, 3))
def test_no_entry_that_a_bound_on_ts_lets_through_is_left_out(
    comparison: tuple[type[Any], Callable[[Any, Any], bool]], bound_ms: int, off_us: int, off_ms: int
) -> None:
    kind, holds = comparison
    epoch = dt.datetime(1970, 1, 1, tzinfo=UTC)
    bound = epoch + dt.timedelta(milliseconds=bound_ms, microseconds=off_us)
    ms = max(bound_ms + off_ms, 0)
    if holds(epoch + dt.timedelta(milliseconds=ms), bound):
        assert reads(Narrowed.by([kind(("ts",), bound)]), ids.EntryId(ms, 5))


def test_a_bound_shortens_the_range() -> None:
    narrowed = Narrowed.by([GreaterThanOrEqual(("ms",), 1_000), LessThan(("ms",), 2_000)])
    assert not reads(narrowed, ids.EntryId(999, ids.HALF_MAX))
    assert reads(narrowed, ids.EntryId(1_000, 0))
    assert not reads(narrowed, ids.EntryId(2_002, 0))


def test_streams_and_gateways_are_chosen() -> None:
    narrowed = Narrowed.by(
        [In(("stream",), ("a", "b")), EqualTo(("stream",), "b"), EqualTo(("shard",), "g1")]
    )
    assert narrowed.takes("g1", "b")
    assert not narrowed.takes("g1", "a")
    assert not narrowed.takes("g0", "b")


def test_an_id_is_a_range_of_one_entry() -> None:
    narrowed = Narrowed.by([EqualNullSafe(("id",), "7-3")])
    assert narrowed.between("0-0", "99-0") == ("7-2", "7-3")
    assert Narrowed.by([In(("id",), ("7-3", "5-1"))]).between("0-0", "99-0") == ("5-0", "7-3")


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("id",), "x"),
        GreaterThan(("id",), "7-3"),
        Not(EqualTo(("stream",), "a")),
        IsNotNull(("stream",)),
        EqualTo(("fields", "stream"), "a"),
        EqualTo(("stream",), None),
        EqualTo(("seq",), 3),
        GreaterThan(("ts",), dt.datetime(2026, 1, 1)),  # noqa: DTZ001 - a time without a zone is what this is about
    ],
)
def test_what_is_not_understood_narrows_nothing(one: Filter) -> None:
    assert Narrowed.by([one]) == Narrowed()
