"""What an operator has to act on, and its lines in the log.

Knows: what can fail beside the engine's turns, and the remedy of each; that syncs take long.
Must never know: how it is shown, how long is too long.
"""

from collections.abc import Callable, Sequence
from typing import Final

from app import logs
from app.metrics.memory_limit import MemoryLog
from engine import Clock, EngineProtocol

_QUIET_S: Final = 60.0


class SlowDiskLog:
    """`note` is the engine's callback."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.is_slow = False
        self._monotonic = monotonic
        self._next_s = monotonic()

    def note(self, seconds: float | None) -> None:
        """A sync took so long, or has not ended after so long; None: they are fast again."""
        self.is_slow = seconds is not None
        if seconds is not None and self._monotonic() >= self._next_s:
            self._next_s = self._monotonic() + _QUIET_S
            logs.get().warning(
                "the disk is slow: answers that wait for a sync are late",
                sync_s=round(seconds, 3),
                remedy="find out what else writes to this disk (iostat -x), or move the data to a faster one",
            )


class Health:
    """That of one process."""

    def __init__(self, clock: Clock) -> None:
        # Files that could not be read again: what was read before stays in use.
        self.stale = {"tokens_stale": False, "hooks_stale": False, "certificate_stale": False}
        # What else fails in this process, by name.
        self.checks: dict[str, Callable[[], bool]] = {}
        # In a front: what an operator has to act on in the engine's process.
        self.elsewhere: Sequence[str] = ()
        # Why the backend cannot be used now, for longer than a moment; set where there is one.
        self.backend_outage: Callable[[], str | None] = lambda: None
        # Whether a server of the backend has no memory left; set where there is one.
        self.is_backend_full: Callable[[], bool] = lambda: False
        self._clock = clock
        self._engine: EngineProtocol | None = None
        self._is_disk_full = False
        self._disk_log = _disk_log(clock)
        self._slow_disk = SlowDiskLog(clock.monotonic)

    def watch(self, engine: EngineProtocol | None) -> None:
        """Report what fails in this engine, and in none before."""
        self._engine = engine
        if engine is not None:
            MemoryLog(engine.memory, self._clock.monotonic)
            events = engine.events
            events.log_failed = _log_failed
            events.disk_full = self._disk_changed
            events.disk_slow = self._slow_disk.note
            events.damaged = _run_damaged
            events.storing_failed = _storing_failed
            events.rewrite_failed = _rewrite_failed
            if self.log_failure is not None:
                _log_failed(self.log_failure)

    @property
    def log_failure(self) -> str | None:
        """Why the log takes no writes any more."""
        log = None if self._engine is None else self._engine.figures().log
        return None if log is None else log.failure

    def failures(self) -> dict[str, bool]:
        """What an operator has to act on, and whether it is so now."""
        found = {**self.stale, **{name: check() for name, check in self.checks.items()}}
        if self._engine is not None:
            figures = self._engine.figures()
            log = figures.log
            found |= {
                "log_failed": log is not None and log.failure is not None,
                "disk_full": self._is_disk_full,
                "disk_slow": self._slow_disk.is_slow,
                "entries_damaged": log is not None and log.stored_damaged > 0,
                "storing_failed": log is not None and log.storing_failure is not None,
                "memory_full": self._engine.memory.is_full or self.is_backend_full(),
                "rewrite_failed": figures.rewrites.failure is not None,
            }
        return found | dict.fromkeys(self.elsewhere, True)

    @property
    def failing(self) -> list[str]:
        """What an operator has to act on now."""
        return [what for what, is_failing in self.failures().items() if is_failing]

    def _disk_changed(self, reason: str | None) -> None:
        """Log that the disk refuses writes for `reason`; without a reason, that it accepts them again."""
        self._is_disk_full = reason is not None
        self._disk_log.change({} if reason is None else {"reason": reason}, is_full=reason is not None)


def _run_damaged(where: str) -> None:
    """Log that a part of a stream is refused, and the remedy."""
    remedy = (
        "check the disk; then restore a backup, or give up what is there, as the refusal of a read says: "
        "until then it gets 500 entries_damaged, and everything else goes on"
    )
    logs.get().critical("entries on the disk cannot be read", where=where, remedy=remedy)


def _storing_failed(reason: str) -> None:
    remedy = "do what the reason says: cold entries stay in memory meanwhile"
    logs.get().error("cold entries could not be stored", reason=reason, remedy=remedy)


def _log_failed(reason: str) -> None:
    """Log that the gateway is read-only, and the remedy."""
    remedy = (
        "do what the reason says, then restart the gateway: until then it takes no writes and answers 503"
    )
    logs.get().critical("the log has failed", reason=reason, remedy=remedy)


def _rewrite_failed(reason: str, retry_s: float) -> None:
    remedy = (
        "the log goes on: do what the reason says; on a full disk trim or delete until what is left fits on "
        "it once more, or enlarge the disk; then POST /v1/admin/rewrite"
    )
    logs.get().error("a rewrite has failed", reason=reason, again_in_s=retry_s, remedy=remedy)


def _disk_log(clock: Clock) -> logs.FullLog:
    return logs.FullLog(
        clock.monotonic,
        full="the disk is full: writes that find no room get 507 storage_full, large ones first; reads, "
        "trims and deletes go on",
        room="there is room on the disk again: writes go on",
        remedy="make room on the disk of the data directory, or trim or delete here: the log is rewritten "
        "then, at the latest by POST /v1/admin/rewrite, and writes go on without a restart",
    )
