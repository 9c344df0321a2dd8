"""Plain integers that count what happens, where it happens; `/metrics` shows them.

Knows: what is counted, by which labels. Must never know: how it is shown, routes, connections.

A count costs a tenth of a microsecond here, a labelled counter of a metrics library twenty times as much, and
requests are counted one by one.
"""

from bisect import bisect_right
from collections import defaultdict
from math import inf
from secrets import token_hex
from typing import Final, Literal, get_args

import msgspec

from app.errors import CODES
from engine import Histogram

# How clients are served. `commands` are Redis commands over HTTP, `resp` those over Redis's own protocol.
Door = Literal["rest", "sse", "websocket", "commands", "resp"]
DOORS: Final[tuple[Door, ...]] = get_args(Door)
# From an answer out of memory to one that waits for a slow disk.
REQUEST_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
# From a quiet loop to one that was held for long.
LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


# Times that are counted together: that takes a tenth of a millisecond.
TIMES_MAX: Final = 1_024


class RequestTimes:
    """How long requests took: each time is only noted, which is a fifth of the work of counting it."""

    __slots__ = ("_histogram", "noted")

    def __init__(self) -> None:
        self._histogram = Histogram(REQUEST_BOUNDS_S)
        # Code that adds to it calls `count` at `TIMES_MAX`.
        self.noted: Final[list[float]] = []

    @property
    def histogram(self) -> Histogram:
        """All of them."""
        self.count()
        return self._histogram

    def count(self) -> None:
        """Count those that are only noted."""
        noted, histogram = sorted(self.noted), self._histogram
        self.noted.clear()
        at = 0
        for place, bound in enumerate((*histogram.bounds, inf)):
            end = bisect_right(noted, bound, at)
            histogram.counts[place] += end - at
            at = end
        histogram.total += sum(noted)


HookResult = Literal["stored", "duplicate", "challenge", "refused", "rejected"]


class HookCounts(msgspec.Struct):
    """What came for one hook, by its result, and when the last came that was not refused."""

    results: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(get_args(HookResult), 0))
    last_ms: int = 0

    def plus(self, other: "HookCounts") -> "HookCounts":
        """Both together."""
        results = {name: count + other.results[name] for name, count in self.results.items()}
        return HookCounts(results, max(self.last_ms, other.last_ms))


class Counters:
    """The counts of one gateway, since it started."""

    def __init__(self) -> None:
        # No other process has it, nor the one that is started in the place of this one.
        self.process: Final = token_hex(8)
        # By the label of the operation, then by status: a key of both would be made for each request.
        self.requests: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        # How long whole answers took that did not wait for entries.
        self.times = RequestTimes()
        # By the code of the refusal.
        # All from the start: Prometheus does not see the first increase of a series that begins with it.
        self.rejected: dict[str, int] = dict.fromkeys(CODES, 0)
        self.delivered: dict[Door, int] = dict.fromkeys(DOORS, 0)
        # Open ones; those of `rest` and `commands` are the connections that are none of the others.
        self.connections: dict[Door, int] = {"sse": 0, "websocket": 0, "resp": 0}
        self.loop_lag = Histogram(LAG_BOUNDS_S)
        # Pages that the service of history was asked for, by how that ended.
        self.history_fetches = {"ok": 0, "busy": 0, "unavailable": 0}
        # How long it took until one came.
        self.history_fetch_seconds = Histogram(REQUEST_BOUNDS_S)

        # Of webhooks, by the names of their hooks; empty for names that are not there.
        self.hooks: dict[str, HookCounts] = {}

    def deliver(self, door: Door, number: int) -> None:
        """Count entries that leave, as a reply or pushed."""
        self.delivered[door] += number

    def note_hook(self, name: str, result: HookResult, now_ms: int) -> None:
        """Count a webhook."""
        counts = self.hooks.setdefault(name, HookCounts())
        counts.results[result] += 1
        if result != "refused":
            counts.last_ms = now_ms

    def refuse(self, code: str, number: int = 1) -> None:
        """Count what was refused with this code, whichever way in it came by."""
        self.rejected[code] += number
