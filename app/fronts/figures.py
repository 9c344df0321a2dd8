"""The figures of the engine, which its process reports to the fronts a few times a second.

Knows: the figures, and the forms in which `EngineProtocol` has them. Must never know: how they travel.
"""

from collections.abc import Callable

import msgspec

from app.metrics.report import Timings
from engine import EngineProtocol, Histogram, LogFigures, Memory, Rewritten


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine at one moment, as `EngineProtocol` has it."""

    streams: int
    expiring_streams: int
    closed_streams: int | None
    hidden_streams: int | None
    mean_expiry_ms: int
    schedules: int
    schedules_late_s: float
    schedules_dropped: int
    appended: int
    memory_used_bytes: int
    memory_estimated_bytes: int
    memory_resident_bytes: int
    memory_bytes_max: int | None
    memory_bytes_soft: int | None
    log: LogFigures | None
    is_rewriting: bool
    last_rewrite: Rewritten | None
    rewrite_failure: str | None
    syncs: Timings

    @classmethod
    def of(cls, engine: EngineProtocol) -> "EngineFigures":
        """As they are now."""
        memory, rewriting = engine.memory, engine.rewriting
        return cls(
            streams=engine.streams,
            expiring_streams=engine.expiring_streams,
            closed_streams=engine.closed_streams,
            hidden_streams=engine.hidden_streams,
            mean_expiry_ms=engine.mean_expiry_ms,
            schedules=engine.schedules,
            schedules_late_s=engine.schedules_late_s,
            schedules_dropped=engine.schedules_dropped,
            appended=engine.appended,
            memory_used_bytes=memory.used_bytes,
            memory_estimated_bytes=memory.estimated_bytes,
            memory_resident_bytes=memory.resident_bytes,
            memory_bytes_max=memory.bytes_max,
            memory_bytes_soft=memory.bytes_soft,
            log=engine.log_figures(),
            is_rewriting=rewriting.running,
            last_rewrite=rewriting.last,
            rewrite_failure=rewriting.failure,
            syncs=Timings.of(engine.sync_seconds),
        )

    @property
    def sync_seconds(self) -> Histogram:
        """How long syncs of the log have taken."""
        return self.syncs.histogram


class ReportedMemory(Memory):
    """The memory of the engine's process, as last reported."""

    def __init__(self, figures: Callable[[], EngineFigures]) -> None:
        super().__init__(figures().memory_bytes_max, figures().memory_bytes_soft)
        self._figures = figures
        self.resident_bytes = figures().memory_resident_bytes

    @property
    def estimated_bytes(self) -> int:
        return self._figures().memory_estimated_bytes

    @property
    def used_bytes(self) -> int:
        return self._figures().memory_used_bytes


class ReportedRewriting:
    """The rewrite in the engine's process, as last reported. One cannot be begun from here."""

    def __init__(self, figures: Callable[[], EngineFigures]) -> None:
        self._figures = figures
        # Never called: the engine's process logs it.
        self.on_failed: Callable[[str, float], None] | None = None

    @property
    def running(self) -> bool:
        """Whether a rewrite is under way."""
        return self._figures().is_rewriting

    @property
    def last(self) -> Rewritten | None:
        """What the last one did."""
        return self._figures().last_rewrite

    @property
    def failure(self) -> str | None:
        """Why the last one failed."""
        return self._figures().rewrite_failure

    def begin(self) -> object:
        """Never called: the engine's process serves what administers the log."""
        raise AssertionError("a rewrite begins in the engine's process")
