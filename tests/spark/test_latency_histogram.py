"""Histograms of parts add up to the histogram of all; a quantile is never more wrong than it says."""

import itertools
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_weir.histogram import Histogram, bounds_of, bucket_of, relative_error_max, steps

values = st.lists(st.integers(-5, 2**62) | st.integers(0, 5_000), max_size=60)


@given(st.integers(0, 2**64))
def test_a_value_stands_in_the_bucket_that_counts_it(value: int) -> None:
    """And the bucket is no wider than promised."""
    low, high = bounds_of(bucket_of(value))
    assert low <= value <= high
    assert high - low <= 2 * relative_error_max * low


def test_buckets_follow_each_other_without_a_gap() -> None:
    """From zero on; small values have one each."""
    expected = 0
    for bucket in range(500):
        low, high = bounds_of(bucket)
        assert low == expected
        assert bucket_of(low) == bucket_of(high) == bucket
        expected = high + 1
    assert [bounds_of(n) for n in range(2 * steps)] == [(n, n) for n in range(2 * steps)]


@given(values, values, values)
def test_the_sum_of_histograms_is_the_histogram_of_all(a: list[int], b: list[int], c: list[int]) -> None:
    """In whatever order they are added."""
    whole = Histogram.of(a + b + c)
    assert Histogram.of(a) + Histogram.of(b) + Histogram.of(c) == whole
    assert Histogram.of(c) + (Histogram.of(a) + Histogram.of(b)) == whole


@given(values)
def test_nothing_added_changes_nothing(some: list[int]) -> None:
    """The empty histogram is the zero of addition."""
    assert Histogram() + Histogram.of(some) == Histogram.of(some) == Histogram.of(some) + Histogram()


@given(values, st.integers(0, 1_000))
def test_the_true_quantile_is_where_the_estimate_says(some: list[int], thousandths: int) -> None:
    """The value of that rank is within the bounds, and the estimate off by 1/16 of it at most."""
    share = Fraction(thousandths, 1_000)
    counted = sorted(value for value in some if value >= 0)
    found = Histogram.of(some).quantile(float(share))
    if not counted:
        assert found is None
        return
    assert found is not None
    true = counted[max(ceil(float(share) * len(counted)), 1) - 1]
    assert found.low <= true <= found.high
    # The last factor is a double's own rounding, of values beyond 2^53.
    assert abs(found.value - true) <= relative_error_max * true * (1 + 1e-9)


def test_small_values_are_told_exactly() -> None:
    """Up to twice the steps a bucket is one value."""
    histogram = Histogram.of(range(16))
    assert histogram.quantile(0.5) == (7.0, 7, 7)
    assert histogram.quantile(1) == (15.0, 15, 15)
    assert histogram.quantile(0) == (0.0, 0, 0)


def test_the_ends_are_the_values_seen_not_the_buckets() -> None:
    """One value alone is known exactly, however wide its bucket is."""
    assert Histogram.of([1_000_003]).quantile(0.99) == (1_000_003.0, 1_000_003, 1_000_003)


def test_values_below_zero_are_counted_beside() -> None:
    """They are a sign of clocks that differ, and spoil neither mean nor quantile."""
    histogram = Histogram.of([-7, 10, -1, 20])
    assert (histogram.count, histogram.negative, histogram.mean) == (2, 2, 15.0)
    assert (histogram.low, histogram.high) == (10, 20)
    assert Histogram.of([-1]).quantile(0.5) is None
    assert Histogram.of([-1]).mean is None


@given(values)
def test_bars_have_each_value_once(some: list[int]) -> None:
    """And no hole between them, so that a chart shows where nothing was."""
    bars = Histogram.of(some).bars()
    assert sum(count for _, _, count in bars) == sum(value >= 0 for value in some)
    assert all(high + 1 == low for (_, high, _), (low, _, _) in itertools.pairwise(bars))


def test_a_negative_value_has_no_bucket() -> None:
    """Whoever asks for it has a bug."""
    with pytest.raises(AssertionError):
        bucket_of(-1)
