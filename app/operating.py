"""What an operator sees of a process, and asks of it: health, backups, its phase, the others beside it.

Knows: who reports what. Must never know: engines, routes.
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from app.auth import TokenPolicy
from app.backups import Backups
from app.live.access import AccessControl, Limits
from app.live.waiting import Waits
from app.metrics.health import Health
from app.metrics.report import Report
from app.metrics.reports import Reports
from app.settings import Settings
from engine import Clock

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
