"""Metrics, in the text form of Prometheus or of OpenMetrics.

on the loop   counts are copied, streams that `metrics_streams` names are measured, some in each turn
in a thread   names are matched, free room on the disk is looked up, the text is written
"""

import asyncio
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from app import VERSION
from app.auth import Action
from app.gateway import Gateway
from app.http import media
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response
from app.metrics.families import Figures
from app.metrics.report import Report
from engine import Call, EngineError, EngineProtocol, ask_one
from engine.commands.types import ListStreams
from engine.commands.weir_commands import CountGroups, MeasureStreams
from engine.replies import GroupCounts, GroupMeasure, Listing, Measured, StreamMeasure

if TYPE_CHECKING:
    from engine.cluster import BackendFigures

router: Final = Router("gateway")

# What Prometheus keeps for each series is not free; an alert about one stream needs a few.
STREAM_SERIES_MAX: Final = 1_000
_SERIES_OF_STREAM: Final = 2
_SERIES_OF_GROUP: Final = 5
# Streams measured in one turn: each takes some microseconds, and each of its groups as many.
_STREAMS_PER_TURN: Final = 50

_ORIGIN: Final = "metrics"

_PLAIN: Final = "text/plain"
_OPENMETRICS: Final = "application/openmetrics-text"
_VERSIONS: Final = {_PLAIN: "0.0.4", _OPENMETRICS: "1.0.0"}


@router.get("/metrics", Action.READ, hidden=True, central=True)
async def get_metrics(request: RequestParameter) -> Response:
    """Show the metrics. They are about all streams, so they need `read` on `*`."""
    form = media.accepted(request.headers.get(b"accept", b""), (_PLAIN, _OPENMETRICS))
    text = await write(request.gateway, openmetrics=form == _OPENMETRICS)
    kind = f"{form}; version={_VERSIONS[form]}; charset=utf-8"
    return Response(200, text, media_type=kind.encode())


async def write(gateway: Gateway, *, openmetrics: bool) -> bytes:
    """The metrics of now. Raises `starting`, `restarting`, `draining`."""
    figures = Figures()
    fronts = await gateway.operator.processes.reports()
    report = gateway.operator.report().with_all(fronts)
    _add_report(figures, report)
    figures.add("weir_fronts", gateway.settings.fronts, "wanted")
    figures.add("weir_fronts", sum(front.is_up for front in fronts), "up")
    _add_gateway(figures, gateway, report.failing)
    _add_engine(figures, gateway.engine)
    if gateway.settings.history_url:
        for outcome, count in report.history_fetches.items():
            figures.add("weir_history_fetches_total", count, outcome)
        figures.add("weir_history_fetch_seconds", report.history_fetch_seconds)
    if gateway.operator.backend is not None:
        _add_backend(figures, gateway.operator.backend)
    for state, count in (await _count_groups(gateway.engine)).items():
        figures.add("weir_groups", count, state)
    if gateway.reports.measured_streams.is_wanted:
        await _StreamFigures(figures, gateway).add(gateway.engine)
    return await asyncio.to_thread(_write, figures, gateway.settings.data, openmetrics=openmetrics)


def _write(figures: Figures, data: Path, *, openmetrics: bool) -> bytes:
    try:
        disk = os.statvfs(data)
    except OSError:
        # In memory, or gone: `weir_log_failed` shows that.
        pass
    else:
        figures.add("weir_disk_free_bytes", disk.f_bavail * disk.f_frsize)
        figures.add("weir_disk_size_bytes", disk.f_blocks * disk.f_frsize)
    return figures.text(openmetrics=openmetrics)


def _add_report(figures: Figures, report: Report) -> None:
    for route, status, count in report.requests:
        figures.add("weir_requests_total", count, route, str(status))
    figures.add("weir_request_seconds", report.seconds)
    for code, count in report.rejected.items():
        figures.add("weir_rejected_total", count, code)
    for name, hook in report.hooks.items():
        for result, count in hook.results.items():
            figures.add("weir_hooks_total", count, name, result)
    for door, count in report.faults.items():
        figures.add("weir_faults_total", count, door)
    for api, count in report.delivered.items():
        figures.add("weir_entries_delivered_total", count, api)
    for door, count in report.connections.items():
        figures.add("weir_connections", count, door)
    for name, pool in report.pools.items():
        figures.add("weir_buffer_bytes", pool.held_bytes, name)
        figures.add("weir_buffer_limit_bytes", pool.bytes_max, name)
        figures.add("weir_buffer_refused_total", pool.refused, name)
        figures.add("weir_buffer_closed_total", pool.closed, name)
    figures.add("weir_loop_lag_seconds", report.loop_lag)


def _add_gateway(figures: Figures, gateway: Gateway, failing: Sequence[str]) -> None:
    figures.add("weir_dead_letters_total", gateway.reports.dead_letters.total)
    figures.add("weir_expired_total", gateway.reports.dead_letters.expired_total)
    figures.add("weir_dead_letters_refused_total", gateway.reports.dead_letters.refused_total)
    for what in gateway.operator.health.failures():
        figures.add("weir_failing", what in failing, what)
    figures.add("weir_build_info", 1, VERSION, platform.python_version())


def _add_engine(figures: Figures, engine: EngineProtocol) -> None:
    memory, found = engine.memory, engine.figures()
    figures.add("weir_entries_published_total", found.appended)
    figures.add("weir_streams", found.streams)
    for what, count in (("closed", found.closed_streams), ("hidden", found.hidden_streams)):
        if count is not None:
            figures.add(f"weir_streams_{what}", count)
    figures.add("weir_schedules", found.schedules)
    figures.add("weir_schedules_late_seconds", found.schedules_late_s)
    figures.add("weir_schedules_dropped_total", found.schedules_dropped)
    figures.add("weir_blocked_reads", found.waiting)
    if (log := found.log) is not None:
        figures.add("weir_log_bytes", log.bytes)
        figures.add("weir_log_sync_seconds", found.sync_seconds)
        figures.add("weir_log_answers_waiting", log.answers_waiting)
        figures.add("weir_log_failed", log.failure is not None)
        figures.add("weir_stored_bytes", log.stored_bytes)
        figures.add("weir_stored_reads_in_turns_total", log.stored_reads_in_turns)
    for kind, size in (
        ("used", memory.used_bytes),
        ("data", memory.estimated_bytes),
        ("resident", memory.resident_bytes),
    ):
        figures.add("weir_memory_bytes", size, kind)
    if memory.bytes_soft is not None:
        figures.add("weir_memory_soft_bytes", memory.bytes_soft)
    if memory.bytes_max is not None:
        figures.add("weir_memory_limit_bytes", memory.bytes_max)


def _add_backend(figures: Figures, backend: "BackendFigures") -> None:
    for lane, outcomes in backend.requests.items():
        for outcome, count in outcomes.items():
            figures.add("weir_backend_requests_total", count, lane, outcome)
        figures.add("weir_backend_request_seconds", backend.seconds[lane].copy(), lane)
        figures.add("weir_backend_requests_in_flight", backend.in_flight[lane], lane)
    for reason, count in backend.repeats.items():
        figures.add("weir_backend_repeats_total", count, reason)
    figures.add("weir_backend_wait_seconds", backend.wait_seconds.copy())
    figures.add("weir_backend_connections", backend.connections_wanted, "wanted")
    figures.add("weir_backend_connections", backend.connections_up, "up")
    figures.add("weir_backend_connections_lost_total", backend.connections_lost)
    for reason, count in backend.wakes.items():
        figures.add("weir_backend_wakes_total", count, reason)


async def _count_groups(engine: EngineProtocol) -> Mapping[str, int]:
    """How many groups are in which state; nothing where there are none, and over a backend."""
    counts: Counter[str] = Counter()
    after: str | None = ""
    while after is not None:
        found = await ask_one(engine, Call((CountGroups(after=after or None),), origin=_ORIGIN))
        assert isinstance(found, GroupCounts), "that is its reply"
        counts.update(found.counts)
        after = found.next
    return counts


class _StreamFigures:
    """Adds the figures of the streams that `metrics_streams` names, as far as there is room for series."""

    def __init__(self, figures: Figures, gateway: Gateway) -> None:
        self._figures = figures
        self._names = gateway.reports.measured_streams
        self._dead = gateway.reports.dead_letters.by_group
        self._left = STREAM_SERIES_MAX

    async def add(self, engine: EngineProtocol) -> None:
        """Add them, some in each turn."""
        names, left_out = await self._find(engine), 0
        for at in range(0, len(names), _STREAMS_PER_TURN):
            if self._left < _SERIES_OF_STREAM:
                left_out += len(names) - at
                break
            some = names[at : at + _STREAMS_PER_TURN]
            command = MeasureStreams(streams=some, groups_max=self._left // _SERIES_OF_GROUP)
            measured = await ask_one(engine, Call((command,), origin=_ORIGIN))
            assert isinstance(measured, Measured), "that is its reply"
            left_out += sum([not self._add_stream(stream) for stream in measured.streams])
        self._figures.add("weir_metrics_streams_left_out", left_out)

    async def _find(self, engine: EngineProtocol) -> Sequence[str]:
        """The names of these streams, in order; once the log has failed, those of before."""
        try:
            listing = await ask_one(engine, Call((ListStreams(),), origin=_ORIGIN))
        except EngineError:
            return self._names.selected
        assert isinstance(listing, Listing), "that is its reply"
        await asyncio.to_thread(self._names.select, listing.names)
        return self._names.selected

    def _add_stream(self, stream: StreamMeasure) -> bool:
        """Add what there is room for; whether that is all of it."""
        if not self._has_room(_SERIES_OF_STREAM):
            return False
        self._figures.add("weir_stream_length", stream.length, stream.name)
        self._figures.add("weir_stream_bytes", stream.bytes, stream.name)
        return (
            all(self._add_group(stream.name, group) for group in stream.groups) and not stream.groups_left_out
        )

    def _add_group(self, stream: str, group: GroupMeasure) -> bool:
        if not self._has_room(_SERIES_OF_GROUP):
            return False
        add, labels = self._figures.add, (stream, group.name)
        if group.lag is not None:
            add("weir_group_lag", group.lag, *labels)
        add("weir_group_pending", group.pending, *labels)
        add("weir_group_oldest_pending_seconds", group.oldest_pending_ms / 1000, *labels)
        add("weir_group_dead_letters_total", self._dead.get(labels, 0), *labels)
        add("weir_group_paused", int(group.paused), *labels)
        return True

    def _has_room(self, series: int) -> bool:
        """Take room for this number of series; whether there is enough."""
        has_room = self._left >= series
        self._left -= series * has_room
        return has_room
