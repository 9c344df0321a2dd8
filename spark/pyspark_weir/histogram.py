"""A histogram that can be added to another: counts in buckets whose width follows the value.

Knows: integers, buckets, how wrong an estimate can be. Must never know: what was measured, Spark, files.

Each power of two is cut into `steps` equal buckets, and below 2 × `steps` each value has its own:

    0 1 2 … 15 | 16 18 20 … 30 | 32 36 40 … 60 | 64 72 …        first values of the buckets, steps = 8

A percentile of percentiles is nobody's percentile; sums of counts are the counts of all. So what was
counted apart, by stream, window, batch or machine, adds up to exactly what counting everything at once gives.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple, Self

step_bits: Final = 3
steps: Final = 1 << step_bits
# Half a bucket, of values from 2 × `steps` on; below, estimates are exact.
relative_error_max: Final = 1 / (2 * steps)


class Estimate(NamedTuple):
    """A quantile as far as buckets tell: the true one is within `low` and `high`, both included."""

    value: float
    low: int
    high: int


def bucket_of(value: int) -> int:
    """The number of the bucket that counts this value, which is not negative."""
    assert value >= 0, "negative values are counted beside the buckets"
    shift = max(value.bit_length() - 1 - step_bits, 0)
    return (shift << step_bits) + (value >> shift)


def bounds_of(bucket: int) -> tuple[int, int]:
    """The first and the last value that this bucket counts."""
    shift = max((bucket >> step_bits) - 1, 0)
    low = (bucket - (shift << step_bits)) << shift
    return low, low + (1 << shift) - 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts per bucket; `low` and `high` are the least and the greatest value, None where there is none.

    `negative` counts values below zero, which two clocks that differ make: no bucket has them, no quantile
    and no mean knows them.
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    negative: int = 0
    total: int = 0
    low: int | None = None
    high: int | None = None

    @classmethod
    def of(cls, values: Iterable[int]) -> Self:
        """Of whole numbers."""
        counts: dict[int, int] = {}
        negative = total = 0
        low: int | None = None
        high: int | None = None
        for value in values:
            if value < 0:
                negative += 1
                continue
            bucket = bucket_of(value)
            counts[bucket] = counts.get(bucket, 0) + 1
            total += value
            low = value if low is None else min(low, value)
            high = value if high is None else max(high, value)
        return cls(counts, negative, total, low, high)

    @property
    def count(self) -> int:
        """How many values stand in buckets."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float | None:
        """The exact mean of what stands in buckets."""
        return self.total / count if (count := self.count) else None

    def __add__(self, other: "Histogram") -> "Histogram":
        counts = dict(self.counts)
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        return Histogram(
            counts,
            self.negative + other.negative,
            self.total + other.total,
            _least(self.low, other.low),
            _greatest(self.high, other.high),
        )

    def quantile(self, share: float) -> Estimate | None:
        """The value that `share` (0 to 1) of all values do not exceed, by nearest rank; None of nothing.

        `value` is the middle of what it can be: never wrong by more than `relative_error_max` of the truth.
        """
        assert 0 <= share <= 1, "a share of all values"
        if self.low is None or self.high is None:
            return None
        rank = max(ceil(share * self.count), 1)
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                first, last = bounds_of(bucket)
                low, high = max(first, self.low), min(last, self.high)
                return Estimate((low + high) / 2, low, high)
        raise AssertionError("a rank is at most the count, and all counts have been taken from it")

    def bars(self) -> list[tuple[int, int, int]]:
        """Bucket by bucket: first value, last value, count; from the first that counts to the last."""
        if not self.counts:
            return []
        numbers = range(min(self.counts), max(self.counts) + 1)
        return [(*bounds_of(number), self.counts.get(number, 0)) for number in numbers]


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _greatest(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
