"""The gateway's state: its phase, its engine, and what all requests share.

Knows: when the engine may be used, what happens when it stops. Must never know: routes, bytes on the wire.
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from app import logs
from app.auth import AccessPolicy, OpenPolicy, Principal, TokenPolicy
from app.auth.audit import AuditLog
from app.auth.rate_limiter import RateLimiter
from app.auth.revocation_file import RevocationFile
from app.auth.tickets import Tickets
from app.backups import Backups
from app.errors import RefusalError, draining, to_refusal
from app.limits import CommandLimits, EntryLimits, ReadLimits
from app.live.budgets import Budgets
from app.live.fair_queue import REQUESTS_A_CYCLE_MAX, FairQueue
from app.live.leases import ConsumerLeases
from app.live.other_gateways import OtherGateways
from app.live.sessions import OpenSessions
from app.live.shares import Shares
from app.live.token_store import TokenStore
from app.live.turns import CallerTurns, CycleBudget
from app.live.waiting import Waits
from app.metrics.counters import Counters
from app.metrics.dead_letter_log import DeadLetterLog
from app.metrics.memory_limit import MemoryLog
from app.metrics.report import Report
from app.metrics.slow_disk import SlowDiskLog
from app.metrics.slow_turns import SlowTurns
from app.metrics.stream_selection import StreamSelection
from app.metrics.tracing import Tracer
from app.settings import Settings
from app.tenants import Tenant, Tenants
from engine import Clock, EngineProtocol, LogFigures, errors
from engine.replies import GroupRead

if TYPE_CHECKING:
    from engine.cluster import BackendFigures

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


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
        # In a front and over a backend: redeems a ticket.
        self.redeem: Callable[[str, str], Awaitable[Principal | None]] | None = None
        # Over a backend: keeps a ticket that was issued for the gateways beside this one.
        self.issued: Callable[[str, Principal, str], Awaitable[None]] | None = None
        # In a front: what an operator has to act on in the engine's process.
        self.failing: Sequence[str] = ()
        # With fronts: ready while all processes can serve.
        self.phase: Callable[[], Phase] = lambda: Phase.READY
        # In the engine's process: what the fronts report of themselves.
        self.reports: Callable[[], Awaitable[Sequence[Report]]] = _no_reports


class Gateway:
    """One for each process. Call `open` when the engine has recovered, `drain` before the process stops."""

    phase = Phase.STARTING
    progress: RecoveryProgress | None = None
    # Without the setting `tracing` there is none.
    tracer: Tracer | None = None
    # WebSocket connections closed by an unexpected exception, since the start.
    failed_conversations = 0
    _engine: EngineProtocol | None = None
    _tenants: Tenants | None = None
    _on_events: Callable[[Sequence[tuple[str, str]]], None] | None = None
    _is_disk_full = False

    def __init__(self, settings: Settings, clock: Clock, policy: AccessPolicy | None = None) -> None:
        self.settings = settings
        self.clock = clock
        self.policy = policy or OpenPolicy()
        self._set_limits()
        self.budgets = Budgets(settings, clock.monotonic)
        self.counters = Counters()
        self.measured_streams = StreamSelection(settings.metrics_streams)
        self.dead_letters = DeadLetterLog(clock.monotonic)
        self.slow_turns = SlowTurns(clock.wall_ms)
        self.backups = Backups(settings, clock)
        # Files that could not be read again: what was read before stays in use.
        self.stale = {"tokens_stale": False, "certificate_stale": False}
        self._started_at = clock.monotonic()
        # The number of connections; set by the server.
        self.connections: Callable[[], int] = lambda: 0
        # Whether connections were closed just now for want of file descriptors; set by the server.
        self.has_no_descriptors: Callable[[], bool] = lambda: False
        self.leases = ConsumerLeases()
        self.tickets = Tickets(clock.monotonic)
        # What is counted of the servers, with a backend.
        self.backend: BackendFigures | None = None
        # Why the backend cannot be used now, for longer than a moment; set where there is one.
        self.backend_outage: Callable[[], str | None] = lambda: None
        # Whether a server of the backend has no memory left; set where there is one.
        self.is_backend_full: Callable[[], bool] = lambda: False
        self.processes = OtherProcesses()
        self.audit = AuditLog(settings.audit_file, clock.wall_ms)
        # Connections and reads that end with their token.
        self.sessions = OpenSessions(clock, self.policy.is_revoked)
        self.waits = Waits(settings, self.sessions, self.turns)
        # Without tokens in the settings there are none in the log either: everybody may do everything.
        self._tokens = (
            TokenStore(self.policy, self.sessions, clock) if isinstance(self.policy, TokenPolicy) else None
        )
        # Called when the gateway stops.
        self.on_drain: list[Callable[[], None]] = []
        # Called when requests may use the engine.
        self.on_ready: list[Callable[[], None]] = []
        # Called when the engine is replaced: release everything that belongs to it.
        self.on_restart: list[Callable[[], None]] = []
        # Called with True when the backend cannot be used for longer than a moment, with False when it can.
        self.on_outage: list[Callable[[bool], None]] = []
        self._disk_log = _disk_log(clock)
        self._slow_disk = SlowDiskLog(clock.monotonic)
        # Called to replace a faulty engine; without it, a fault refuses every request until the process ends.
        self.on_fault: list[Callable[[], None]] = []

    def _set_limits(self) -> None:
        """What one request, and what one caller may have."""
        settings, monotonic = self.settings, self.clock.monotonic
        self.entry_limits = EntryLimits.of(settings)
        self.read_limits = ReadLimits.of(settings)
        self.command_limits = CommandLimits.of(settings)
        # None where no caller can have a limit.
        self.rate_limiter = RateLimiter.of(settings, monotonic)
        # Long work of one caller takes turns.
        self.turns = CallerTurns()
        self.cycle = CycleBudget(monotonic)
        # And so do the connections of callers that have many.
        self.requests = FairQueue(CycleBudget(monotonic), REQUESTS_A_CYCLE_MAX)
        each_max = settings.each_max(settings.connections_per_principal_max, settings.sockets_max)
        self.open_connections = Shares("too_many_sockets", "connections_per_principal_max", each_max)

    @property
    def engine(self) -> EngineProtocol:
        """The engine. Raises `draining`, `restarting` or `starting` if requests may not use it."""
        if self._engine is not None and self.phase is Phase.READY:
            return self._engine
        if self.phase is Phase.DRAINING:
            raise draining()
        if self.phase is Phase.RESTARTING:
            raise to_refusal(errors.restarting())
        raise RefusalError("starting", "the log is being read: try again in a moment")

    def tenant(self, prefix: str) -> Tenant:
        """What callers of this prefix have of the engine; raises as `engine` does."""
        _ = self.engine
        assert self._tenants is not None, "they came with the engine"
        return self._tenants.find(prefix) if prefix else self._tenants.plain

    async def issue_ticket(self, principal: Principal, origin: str) -> str:
        """A ticket, as `Tickets.issue`. Raises `rate_limited`, EngineError."""
        ticket = self.tickets.issue(principal, origin)
        if self.processes.issued is not None:
            await self.processes.issued(ticket, principal, origin)
        return ticket

    async def redeem(self, ticket: str, origin: str) -> Principal | None:
        """Whose ticket it is, as `Tickets.redeem`."""
        if self.processes.redeem is not None:
            return await self.processes.redeem(ticket, origin)
        return self.tickets.redeem(ticket, origin)

    def report(self) -> Report:
        """What is counted in this process."""
        return Report.of(
            self.counters,
            open_connections=self.connections(),
            following=self.waits.count,
            failed=self.failed_conversations,
            failing=self.failing,
            pools=self.budgets.figures,
        )

    @property
    def has_tokens(self) -> bool:
        """Whether callers are known by tokens."""
        return self._tokens is not None

    @property
    def tokens(self) -> TokenStore:
        """The tokens and revocations in the log. Raises `not_configured`."""
        if self._tokens is None:
            raise RefusalError(
                "not_configured",
                "everybody may do everything here: start the gateway with a root token (root_token_file)",
            )
        return self._tokens

    def open(self, engine: EngineProtocol, revoked: RevocationFile | None = None) -> None:
        """Serve requests with this engine, once the tokens in it are known; `revoked` is the file of
        revocations beside its log.
        """
        self._engine = engine
        self._tenants = Tenants(engine, self.leases)
        if engine.memory.bytes_max is not None:
            self.budgets.size(engine.memory.bytes_max)
        engine.memory.buffers = self.budgets.resident_bytes
        MemoryLog(engine.memory, self.clock.monotonic)
        engine.on_dead_lettered = self.dead_letters.note
        engine.on_letters_refused = self.dead_letters.note_refused
        engine.on_slow = self.slow_turns.note
        engine.when_log_fails(_log_failed)
        engine.when_full(self._disk_changed)
        engine.when_slow(self._slow_disk.note)
        engine.rewriting.on_failed = _rewrite_failed
        engine.active_readers = self.leases.active
        engine.on_events = self._on_events
        if self._tokens is None:
            self._be_ready()
        else:
            self._tokens.load(engine, revoked, self._be_ready)
        # Last: its first turns have run, and one of them may have failed.
        engine.when_faulty(self._fault)

    def share(self, others: OtherGateways) -> None:
        """Have consumers, tickets and tokens in common with the other gateways; before `open`."""
        self.leases = others.leases
        self.processes.issued, self.processes.redeem = others.keep, others.redeem
        if self._tokens is not None:
            others.watch_tokens(self._tokens.look)

    def _be_ready(self) -> None:
        if self.phase is not Phase.DRAINING:
            self.phase = Phase.READY
            for ready in self.on_ready:
                ready()

    def follow_events(self, callback: Callable[[Sequence[tuple[str, str]]], None] | None) -> None:
        """Call back with what happens to streams, pairs of event and stream; with None no more."""
        self._on_events = callback
        if self._engine is not None:
            self._engine.on_events = callback

    def _disk_changed(self, reason: str | None) -> None:
        """Log that the disk refuses writes for `reason`; without a reason, that it accepts them again."""
        self._is_disk_full = reason is not None
        self._disk_log.change({} if reason is None else {"reason": reason}, is_full=reason is not None)

    def _fault(self, error: BaseException) -> None:
        """Handle a failed turn: nothing more is served from the engine's memory."""
        if self.phase is Phase.READY:
            self.phase = Phase.RESTARTING
        logs.get().critical(
            "a fault inside the engine",
            error=repr(error),
            trace=logs.trace(error),
            remedy="the engine is restarted from its log, nothing acknowledged is lost; report this line",
        )
        for fault in self.on_fault:
            fault()

    def change_outage(self, is_away: bool) -> None:  # noqa: FBT001 - a callback
        """The backend cannot be used, or can again."""
        for notify in self.on_outage:
            notify(is_away)

    def drop(self) -> None:
        """Drop the engine: end its readers and followers with a retry, and release all consumer leases."""
        tenants, self._engine, self._tenants = self._tenants, None, None
        for restarting in self.on_restart:
            restarting()
        if tenants is not None:
            tenants.close(errors.restarting())
        self.leases.wake()
        self.leases = ConsumerLeases()

    def drain(self) -> None:
        """Begin nothing new. Blocked reads end at once, without entries."""
        self.phase = Phase.DRAINING
        self.leases.wake()
        for notify in self.on_drain:
            notify()
        if self._engine is not None:
            self._engine.end_waits()

    @property
    def state(self) -> str:
        """The phase, `storage_failed` if the log accepts no writes, or `backend_unavailable`."""
        engine = self._engine
        if self.phase is Phase.READY and engine is not None and _has_failed(engine.log_figures()):
            return "storage_failed"
        if self.phase is Phase.READY and engine is not None and engine.outage is not None:
            return "backend_unavailable"
        return (self.processes.phase() if self.phase is Phase.READY else self.phase).value

    def failures(self) -> dict[str, bool]:
        """What an operator has to act on, and whether it is so now."""
        found = {
            **self.stale,
            "backup_failed": self.backups.last.state == "failed",
            "audit_failed": self.audit.is_failing,
            "keys_stale": isinstance(self.policy, TokenPolicy) and self.policy.is_failing,
            "descriptors_used_up": self.has_no_descriptors(),
        }
        if self._engine is not None:
            found |= {
                "log_failed": _has_failed(self._engine.log_figures()),
                "disk_full": self._is_disk_full,
                "disk_slow": self._slow_disk.is_slow,
                "memory_full": self._engine.memory.is_full or self.is_backend_full(),
                "rewrite_failed": self._engine.rewriting.failure is not None,
            }
        return found | dict.fromkeys(self.processes.failing, True)

    @property
    def failing(self) -> list[str]:
        """What an operator has to act on now."""
        return [what for what, is_failing in self.failures().items() if is_failing]

    def trace_read(self, group: str, consumer: str, reply: GroupRead) -> None:
        """Trace what a group is given, if traces are wanted."""
        if self.tracer is not None:
            for one in reply.streams:
                self.tracer.note_read(one.stream, group, consumer, [entry.text for entry in one.entries])

    @property
    def uptime_ms(self) -> int:
        """Time since the start, in milliseconds."""
        return round((self.clock.monotonic() - self._started_at) * 1000)


async def _no_reports() -> Sequence[Report]:
    return ()


def _has_failed(log: LogFigures | None) -> bool:
    return log is not None and log.failure is not None


def _log_failed(reason: str) -> None:
    """Log that the gateway is read-only, and the remedy."""
    remedy = "check the disk, then restart the gateway: until then it takes no writes and answers 503"
    logs.get().critical("the log has failed", reason=reason, remedy=remedy)


def _rewrite_failed(reason: str, retry_s: float) -> None:
    remedy = (
        "the log goes on as it was: trim or delete until what is left fits on the disk once more, or enlarge "
        "the disk, then POST /v1/admin/rewrite; for any reason but a full disk, check the disk"
    )
    logs.get().error("a rewrite has failed", reason=reason, again_in_s=retry_s, remedy=remedy)


def _disk_log(clock: Clock) -> logs.FullLog:
    return logs.FullLog(
        clock.monotonic,
        full="the disk is full: writes get 507 storage_full; reads, trims and deletes go on",
        room="there is room on the disk again: writes go on",
        remedy="make room on the disk of the data directory, or trim or delete here: the log is rewritten "
        "then, at the latest by POST /v1/admin/rewrite, and writes go on without a restart",
    )
