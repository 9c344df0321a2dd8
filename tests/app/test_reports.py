"""Counts of several processes, added up: of those that run and of those that have ended."""

from typing import Final

from app.live.budgets import PoolFigures
from app.metrics.counters import Counters
from app.metrics.report import LastReports, Report

ROUTE: Final = "GET /v1/streams"
POOLS: Final = {"output": PoolFigures(10, 20, 3, 1)}


def report(counters: Counters) -> Report:
    return Report.of(
        counters,
        open_connections=3,
        following=2,
        failed=1,
        faults={"resp": 1},
        failing=("disk_full",),
        pools=POOLS,
    )


def count(counters: Counters, requests: int = 1) -> None:
    counters.requests[ROUTE][200] += requests
    counters.times.noted.append(0.003)
    counters.rejected["no_stream"] += 1
    counters.delivered["sse"] += 1
    counters.loop_lag.observe(0.001)


def total(reports: LastReports, *now: Report) -> Report:
    first, *others = reports.complete(now)
    return first.with_all(others)


def test_counts_of_a_process_that_has_ended_stay() -> None:
    """What it has open does not, and what failed there fails no more."""
    reports, ended, other = LastReports(), Counters(), Counters()
    for counters in (ended, other):
        count(counters)
    assert len(reports.complete([report(ended), report(other)])) == 2
    for _ in range(2):
        found = total(reports, report(other))
        assert found.requests == [(ROUTE, 200, 2)]
        assert (found.rejected["no_stream"], found.delivered["sse"], found.failed) == (2, 2, 2)
        assert found.faults == {"resp": 2}
        assert (sum(found.seconds.counts), sum(found.loop_lag.counts)) == (2, 2)
        assert (found.open_connections, found.following, found.connections["http"]) == (3, 2, 3)
        assert found.pools == {"output": PoolFigures(10, 20, 6, 2)}
    assert total(reports).failing == []


def test_a_process_that_did_not_answer_once_is_not_counted_twice() -> None:
    reports, stopped, other = LastReports(), Counters(), Counters()
    count(stopped)
    reports.complete([report(stopped), report(other)])
    assert [one.is_up for one in reports.complete([report(other)])] == [False, True]
    count(stopped)
    found = reports.complete([report(stopped), report(other)])
    assert [one.is_up for one in found] == [True, True]
    assert total(reports, *found).requests == [(ROUTE, 200, 2)]


def test_processes_that_end_again_and_again_are_kept_as_one() -> None:
    """None is forgotten, and they take no more room than 64."""
    reports = LastReports()
    for number in range(1, 101):
        counters = Counters()
        count(counters)
        found = reports.complete([report(counters)])
        assert len(found) == min(number, 65)
        assert total(reports, report(counters)).requests == [(ROUTE, 200, number)]
