"""What one process counts, in a form that can be sent to another one and added up there.

Knows: which figures are of a process, not of the engine. Must never know: how it is sent, how it is shown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

import msgspec

from app.live.budgets import PoolFigures
from app.metrics.counters import Counters, HookCounts
from engine import Histogram

# Processes that have ended: the counts of further ones are kept as one.
_ENDED_MAX: Final = 64


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one process since it started; `requests` are operation, status and count.

    `is_up`: it runs, and answers.
    """

    process: str
    is_up: bool
    requests: Sequence[tuple[str, int, int]]
    seconds: Histogram
    rejected: Mapping[str, int]
    delivered: Mapping[str, int]
    connections: Mapping[str, int]
    open_connections: int
    following: int
    failed: int
    faults: Mapping[str, int]
    failing: Sequence[str]
    loop_lag: Histogram
    history_fetches: Mapping[str, int]
    history_fetch_seconds: Histogram
    pools: Mapping[str, PoolFigures]
    hooks: Mapping[str, HookCounts]

    @classmethod
    def of(
        cls,
        counters: Counters,
        *,
        open_connections: int,
        following: int,
        failed: int,
        faults: Mapping[str, int],
        failing: Sequence[str],
        pools: Mapping[str, PoolFigures],
    ) -> Self:
        """As they are now."""
        known = counters.connections
        # The server counts WebSockets and event streams among its connections, but none of RESP.
        plain = max(0, open_connections - known["sse"] - known["websocket"])
        return cls(
            process=counters.process,
            is_up=True,
            requests=[
                (route, status, count)
                for route, counts in counters.requests.items()
                for status, count in counts.items()
            ],
            seconds=counters.times.histogram.copy(),
            rejected=dict(counters.rejected),
            delivered={str(door): count for door, count in counters.delivered.items()},
            connections={"http": plain} | {str(door): count for door, count in known.items()},
            open_connections=open_connections,
            following=following,
            failed=failed,
            faults=faults,
            failing=failing,
            loop_lag=counters.loop_lag.copy(),
            history_fetches=dict(counters.history_fetches),
            history_fetch_seconds=counters.history_fetch_seconds.copy(),
            pools=pools,
            hooks={name: counts.plus(HookCounts()) for name, counts in counters.hooks.items()},
        )

    def plus(self, other: "Report") -> "Report":
        """Both together."""
        requests: Counter[tuple[str, int]] = Counter()
        for route, status, count in (*self.requests, *other.requests):
            requests[route, status] += count
        return Report(
            process=self.process,
            is_up=self.is_up,
            requests=[(*key, count) for key, count in requests.items()],
            seconds=self.seconds.plus(other.seconds),
            rejected=_sum(self.rejected, other.rejected),
            delivered=_sum(self.delivered, other.delivered),
            connections=_sum(self.connections, other.connections),
            open_connections=self.open_connections + other.open_connections,
            following=self.following + other.following,
            failed=self.failed + other.failed,
            faults=_sum(self.faults, other.faults),
            failing=sorted({*self.failing, *other.failing}),
            loop_lag=self.loop_lag.plus(other.loop_lag),
            history_fetches=_sum(self.history_fetches, other.history_fetches),
            history_fetch_seconds=self.history_fetch_seconds.plus(other.history_fetch_seconds),
            pools={name: pool.plus(other.pools[name]) for name, pool in self.pools.items()},
            hooks={
                name: _counts(self, name).plus(_counts(other, name)) for name in (*self.hooks, *other.hooks)
            },
        )

    def with_all(self, others: Iterable["Report"]) -> "Report":
        """All of them together."""
        total = self
        for other in others:
            total = total.plus(other)
        return total

    @property
    def counts(self) -> "Report":
        """What stays of it once its process has ended."""
        return msgspec.structs.replace(
            self,
            is_up=False,
            connections=dict.fromkeys(self.connections, 0),
            open_connections=0,
            following=0,
            failing=(),
            pools={name: pool.counts for name, pool in self.pools.items()},
        )


class LastReports:
    """The last report of each process: its counts stay in the sums when it ends, so that they never go down.

    What it has counted since that report is lost.
    """

    def __init__(self) -> None:
        self._last: dict[str, Report] = {}

    def complete(self, reports: Sequence[Report]) -> Sequence[Report]:
        """Add the counts of processes that have ended, or do not answer."""
        now = {report.process for report in reports}
        ended = [report.counts for report in self._last.values() if report.process not in now]
        while len(ended) > _ENDED_MAX:
            ended[:2] = [ended[0].plus(ended[1])]
        self._last = {report.process: report for report in (*ended, *reports)}
        return list(self._last.values())


def _counts(report: Report, name: str) -> HookCounts:
    return report.hooks.get(name) or HookCounts()


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}
