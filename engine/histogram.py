"""Counts of measured values by size, cheap enough for every request: a search in a tuple and an addition.

Knows: its bounds. Must never know: what is measured, how it is shown.
"""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts values by `bounds`, ascending: `counts[i]` are those up to `bounds[i]`, above `bounds[i - 1]`.
    The last of `counts` has those above all bounds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        # The sum of all values.
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> "Histogram":
        """The counts of now, for a reader in another thread."""
        found = Histogram(self.bounds)
        found.counts[:], found.total = self.counts, self.total
        return found
