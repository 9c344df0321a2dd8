"""Quotas: how many streams there may be whose names match a pattern, and how much memory they may take.

Knows: a sum for each pattern in use, kept by adding and subtracting as streams come, change and go.
Must never know: how a pattern is written, whose quota it is, commands, what a stream is.

    of(quota)      first use: counts the existing streams, in the order of their names, a part in each
                   call; until that is done the sum is too small
    enter(name)    a stream is created: it joins the sums of the patterns that match its name
    Footprint      holds each sum; streams add to it, and leave it when they are removed

A check costs the same however many streams there are. Creating a stream costs one match for each pattern.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from engine.memory import Footprint, Total
from engine.names import SortedNames

# Patterns that are counted at a time. Where more are in use, the one not used for longest is counted anew
# when it is used again.
PATTERNS_MAX: Final = 1_000
# Streams that one check counts: up to 2 ms.
COUNTED_PER_CHECK: Final = 1_000


class Quota(NamedTuple):
    """At most `streams_max` streams whose names match, and `bytes_max` bytes of memory; None is no limit.

    Quotas with the same `pattern` share a count. Each name that matches begins with `prefix`.
    """

    pattern: str
    prefix: str
    matches: Callable[[str], bool]
    streams_max: int | None = None
    bytes_max: int | None = None


class _Count:
    """The sum of one pattern; names above `upto` have still to be looked at, None for no name."""

    __slots__ = ("quota", "sum", "upto")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.sum = Total()
        self.upto: str | None = ""

    def has_passed(self, name: str) -> bool:
        return (self.upto is None or name <= self.upto) and self.quota.matches(name)


class QuotaCounts:
    """What the streams of each pattern in use take. `names` and `footprint` show the streams."""

    def __init__(self, names: SortedNames, footprint: Callable[[str], Footprint]) -> None:
        self._names = names
        self._footprint = footprint
        # The one used last is the last.
        self._counts: dict[str, _Count] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def of(self, quota: Quota) -> Total:
        """The sum of the quota's pattern: `parts` is the number of streams."""
        count = self._counts.pop(quota.pattern, None) or _Count(quota)
        self._counts[quota.pattern] = count
        if len(self._counts) > PATTERNS_MAX:
            self._forget(next(iter(self._counts)))
        if count.upto is not None:
            self._count_on(count)
        return count.sum

    def enter(self, name: str) -> None:
        """Count a new stream."""
        for count in self._counts.values():
            if count.has_passed(name):
                self._footprint(name).join(count.sum)

    def clear(self) -> None:
        """Forget all counts: there is no stream any more."""
        self._counts.clear()

    def check(self) -> None:
        """Assert that each sum is that of its streams."""
        for count in self._counts.values():
            own = [self._footprint(name) for name in self._names.page() if count.has_passed(name)]
            assert count.sum.bytes == sum(one.bytes for one in own), (
                "a quota's bytes are those of its streams"
            )
            assert count.sum.parts == len(own), "a quota's streams are those that match"

    def _count_on(self, count: _Count) -> None:
        names = self._names.page(count.quota.prefix, count.upto, COUNTED_PER_CHECK + 1)
        for name in names[:COUNTED_PER_CHECK]:
            if count.quota.matches(name):
                self._footprint(name).join(count.sum)
        count.upto = names[COUNTED_PER_CHECK - 1] if len(names) > COUNTED_PER_CHECK else None

    def _forget(self, pattern: str) -> None:
        count = self._counts.pop(pattern)
        for name in self._names.page(count.quota.prefix):
            if count.has_passed(name):
                self._footprint(name).leave(count.sum)
