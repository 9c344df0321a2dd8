"""What an operator sees of a process, and asks of it: health, backups, its phase, the others beside it.

Knows: who reports what; one backup at a time, in a thread. Must never know: routes, how a log is copied.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from app import logs
from app.auth import TokenPolicy
from app.errors import RefusalError, invalid
from app.live.access import AccessControl, Limits
from app.live.waiting import Waits
from app.metrics.health import Health
from app.metrics.report import Report
from app.metrics.reports import Reports
from app.settings import Settings
from engine import Clock, LogRefusedError, StorageLockedError, StorageRefusedError, back_up

if TYPE_CHECKING:
    from engine.cluster import BackendFigures


class Phase(Enum):
    """The phases of the gateway, in order."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"


class RecoveryProgress(NamedTuple):
    """Progress of recovery: the current step, bytes done and bytes in total."""

    step: str
    done_bytes: int
    total_bytes: int


class LastBackup(NamedTuple):
    """The last backup since the gateway started, or the one under way. Counts are null until it is done."""

    state: Literal["none", "running", "done", "failed"] = "none"
    name: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    files: int | None = None
    frames: int | None = None
    bytes: int | None = None
    error: str | None = None


class Backups:
    """`last` is changed by the thread of a backup when it ends, as a whole."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.last = LastBackup()
        self._settings = settings
        self._clock = clock

    async def start(self, name: str) -> LastBackup:
        """Begin a backup of this name, a plain one, below `backup_dir`, and do not wait for it.

        Raises `not_configured`, `invalid`, `busy`.
        """
        if not self._settings.backup_dir:
            hint = "no directory for backups is configured: start the gateway with --set backup_dir=DIR"
            raise RefusalError("not_configured", hint)
        place = Path(self._settings.backup_dir) / name
        if await asyncio.to_thread(place.exists):
            raise invalid("/name", "there is a backup of this name already")
        if self.last.state == "running":
            raise RefusalError("busy", f"the backup {self.last.name} is under way: GET says when it is done")
        self.last = begun = LastBackup("running", name, self._clock.wall_ms())
        # A daemon thread: a shutdown does not wait. An unfinished backup is not valid.
        threading.Thread(target=self._run, args=(begun, place), name="weir-backup", daemon=True).start()
        return begun

    def _run(self, begun: LastBackup, place: Path) -> None:
        log = logs.get()
        try:
            # To load the log beside itself might take more memory than there is.
            copied = back_up(self._settings.data, place, loads=False)
        except (LogRefusedError, StorageLockedError, StorageRefusedError, OSError) as error:
            reason = str(error)  # a sentence for people: no trace would say more
            remedy = (
                "check the disk of the data; `weir backup` on this machine passes over what is not needed"
                if isinstance(error, LogRefusedError)
                else "make room in backup_dir or check its disk, then make another backup"
            )
            log.critical("backup failed", name=begun.name, reason=reason, remedy=remedy)
            end = begun._replace(state="failed", error=reason)
        else:
            log.info("backup done", name=begun.name, frames=copied.frames, bytes=copied.bytes)
            end = begun._replace(state="done", files=copied.files, frames=copied.frames, bytes=copied.bytes)
        self.last = end._replace(ended_ms=self._clock.wall_ms())


class OtherProcesses:
    """What a gateway has of those beside its own; without fronts there are none."""

    def __init__(self) -> None:
        # In a front: runs the operation of this label in the engine's process.
        self.forward: Callable[[str, Any], Awaitable[Any]] | None = None
        # With fronts: ready while all processes can serve.
        self.phase: Callable[[], Phase] = lambda: Phase.READY
        # In the engine's process: what the fronts report of themselves.
        self.reports: Callable[[], Awaitable[Sequence[Report]]] = _no_reports


class Operator:
    """One for each process: its health, its backups, how far recovery is, what it reports to the others."""

    progress: RecoveryProgress | None = None
    # What is counted of the servers, with a backend.
    backend: "BackendFigures | None" = None

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        limits: Limits,
        access: AccessControl,
        reports: Reports,
        waits: Waits,
    ) -> None:
        self._clock, self._limits = clock, limits
        self._access, self._reports, self._waits = access, reports, waits
        self.health = Health(clock)
        self.backups = Backups(settings, clock)
        self.processes = OtherProcesses()
        # The number of connections; set by the server.
        self.connections: Callable[[], int] = lambda: 0
        self._started_at = clock.monotonic()
        self.health.checks |= {
            "backup_failed": lambda: self.backups.last.state == "failed",
            "audit_failed": lambda: access.audit.is_failing,
            "keys_stale": self._are_keys_stale,
            # Set by the server.
            "descriptors_used_up": lambda: False,
        }

    def _are_keys_stale(self) -> bool:
        policy = self._access.policy
        return isinstance(policy, TokenPolicy) and policy.is_failing

    def report(self) -> Report:
        """What is counted in this process."""
        return Report.of(
            self._reports.counters,
            open_connections=self.connections(),
            following=self._waits.count,
            failed=self._reports.failed_conversations,
            faults={str(spoken): count for spoken, count in self._reports.faults.counts.items()},
            failing=self.health.failing,
            pools=self._limits.budgets.figures,
        )

    @property
    def uptime_ms(self) -> int:
        """Time since the start, in milliseconds."""
        return round((self._clock.monotonic() - self._started_at) * 1000)


async def _no_reports() -> Sequence[Report]:
    return ()
