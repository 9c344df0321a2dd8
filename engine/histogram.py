"""Counts of measured values by size, cheap enough for every request: a search in a tuple and an addition.

Knows: its bounds. Must never know: what is measured, how it is shown.
"""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec


class Histogram(msgspec.Struct):
    """Counts values by `bounds`, ascending: `counts[i]` are those up to `bounds[i]`, above `bounds[i - 1]`.
    The last of `counts` has those above all bounds. `total` is the sum of all values.
    """

    bounds: Sequence[float]
    counts: list[int] = []
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> "Histogram":
        """The counts of now, for a reader in another thread or process."""
        return Histogram(self.bounds, self.counts.copy(), self.total)

    def plus(self, other: "Histogram") -> "Histogram":
        """Both together; they have the same bounds."""
        counts = [count + another for count, another in zip(self.counts, other.counts, strict=True)]
        return Histogram(self.bounds, counts, self.total + other.total)
