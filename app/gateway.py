"""The gateway's state: its phase, its engine, and what all requests share.

Knows: when the engine may be used, what happens when it stops. Must never know: routes, bytes on the wire.

    Gateway ─┬─ limits: what one request and one caller may have
             ├─ access: who may use it, tokens, tickets, the audit log
             ├─ reports: what is counted, timed and traced
             ├─ operator: what an operator sees of it, and has to act on
             └─ waits, leases: readers that stay
"""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final

from app import logs
from app.archived.client import HistoryClient
from app.archived.reaching import ReachingEngine
from app.auth import AccessPolicy
from app.auth.revocation_file import RevocationFile
from app.auth.stamp import Stamp
from app.errors import RefusalError, draining, to_refusal
from app.live.access import AccessControl, Limits
from app.live.joiner import Joiner
from app.live.leases import ConsumerLeases
from app.live.other_gateways import OtherGateways
from app.live.waiting import Waits
from app.metrics.reports import Reports
from app.operating import Operator, Phase
from app.settings import Settings
from app.tenants import SettlingEngine, Tenant, Tenants
from engine import Clock, EngineProtocol, errors

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


# To find a member in its class takes Python 3.11 a third of a microsecond.
_READY: Final = Phase.READY


class Gateway:
    """One for each process. Call `open` when the engine has recovered, `drain` before the process stops."""

    phase = Phase.STARTING
    _engine: EngineProtocol | None = None
    _tenants: Tenants | None = None
    _on_events: Callable[[Sequence[tuple[str, str]]], None] | None = None

    def __init__(self, settings: Settings, clock: Clock, policy: AccessPolicy | None = None) -> None:
        self.settings = settings
        self.clock = clock
        # What is remembered of requests holds while this is the same.
        self.stamp = Stamp(clock)
        self.limits = Limits(settings, clock)
        self.access = AccessControl(settings, clock, policy)
        self.access.policy.on_changed = self.stamp.advance
        self.reports = Reports(settings, clock)
        self.leases = ConsumerLeases()
        self.joiner = Joiner()
        self.waits = Waits(settings, self.access.sessions, self.limits.turns)
        self.operator = Operator(settings, clock, self.limits, self.access, self.reports, self.waits)
        # Reads what the streams have no more.
        self._history = (
            HistoryClient(settings, clock, self.reports.counters) if settings.history_url else None
        )
        self.operator.health.checks["history_unavailable"] = lambda: (
            self._history is not None and self._history.is_away
        )
        # The description of the API, which takes half a second to make; set by the application.
        self.document: Callable[[], bytes] = bytes
        # Called when the gateway stops.
        self.on_drain: list[Callable[[], None]] = []
        # Called when requests may use the engine.
        self.on_ready: list[Callable[[], None]] = []
        # Called when the engine is replaced: release everything that belongs to it.
        self.on_restart: list[Callable[[], None]] = []
        # Called with True when the backend cannot be used for longer than a moment, with False when it can.
        self.on_outage: list[Callable[[bool], None]] = []
        # Called to replace a faulty engine; without it, a fault refuses every request until the process ends.
        self.on_fault: list[Callable[[], None]] = []

    def enter(self, phase: Phase) -> None:
        """Be in this phase."""
        self.phase = phase
        self.stamp.advance()

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
        if self._tenants is None or self.phase is not _READY:
            _ = self.engine
        assert self._tenants is not None, "they came with the engine"
        return self._tenants.find(prefix) if prefix else self._tenants.plain

    def open(self, engine: EngineProtocol, revoked: RevocationFile | None = None) -> None:
        """Serve requests with this engine, once the tokens in it are known; `revoked` is the file of
        revocations beside its log.
        """
        self._engine = engine
        client = self._history
        reaching = ReachingEngine(engine, client) if client else engine
        self._tenants = Tenants(SettlingEngine(reaching, self.leases), self.leases)
        budgets, reports = self.limits.budgets, self.reports
        if engine.memory.bytes_max is not None:
            budgets.size(engine.memory.bytes_max)
        engine.memory.buffers = budgets.resident_bytes
        events = engine.events
        events.dead_lettered = reports.dead_letters.note
        events.expired = reports.dead_letters.note_expired
        events.letters_refused = reports.dead_letters.note_refused
        events.slow_turn = reports.slow_turns.note
        self.operator.health.watch(engine)
        events.active_readers = self.leases.active
        events.changed = self._on_events
        self.access.load(engine, revoked, self._be_ready)
        # Last: its first turns have run, and one of them may have failed.
        events.faulty = self._fault
        if events.fault is not None:
            self._fault(events.fault)

    def share(self, others: OtherGateways) -> None:
        """Have consumers, tickets and tokens in common with the other gateways; before `open`."""
        self.leases = others.leases
        self.access.share(others)

    def _be_ready(self) -> None:
        if self.phase is not Phase.DRAINING:
            self.enter(Phase.READY)
            for ready in self.on_ready:
                ready()

    def follow_events(self, callback: Callable[[Sequence[tuple[str, str]]], None] | None) -> None:
        """Call back with what happens to streams, pairs of event and stream; with None no more."""
        self._on_events = callback
        if self._engine is not None:
            self._engine.events.changed = callback

    def _fault(self, error: BaseException) -> None:
        """Handle a failed turn: nothing more is served from the engine's memory."""
        if self.phase is Phase.READY:
            self.enter(Phase.RESTARTING)
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
        self.operator.health.watch(None)
        self.stamp.advance()
        for restarting in self.on_restart:
            restarting()
        if tenants is not None:
            tenants.close(errors.restarting())
        self.leases.wake()
        self.leases = ConsumerLeases()
        self.joiner = Joiner()

    def drain(self) -> None:
        """Begin nothing new. Blocked reads end at once, without entries."""
        self.enter(Phase.DRAINING)
        self.leases.wake()
        for notify in self.on_drain:
            notify()
        if self._engine is not None:
            self._engine.end_waits()

    @property
    def state(self) -> str:
        """The phase, `storage_failed` if the log accepts no writes, or `backend_unavailable`."""
        if self.phase is not Phase.READY:
            return str(self.phase.value)
        if self.operator.health.log_failure is not None:
            return "storage_failed"
        if self._engine is not None and self._engine.figures().outage is not None:
            return "backend_unavailable"
        return self.operator.processes.phase().value
