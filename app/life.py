"""The gateway's life: its engine is opened, replaced, and ends; its phases, and who hears of them.

Knows: in which order an engine's readers, leases and followers begin and end with it.
Must never know: routes, protocols, how a log is read and a process ends: `lifespan` does.
"""

from collections.abc import Callable

from app import logs
from app.archived.client import HistoryClient
from app.archived.reaching import ReachingEngine
from app.auth.revocation_file import RevocationFile
from app.gateway import Gateway, Opened
from app.live.joiner import Joiner
from app.live.leases import ConsumerLeases
from app.live.other_gateways import OtherGateways
from app.operating import Phase
from app.tenants import Tenants
from engine import EngineProtocol, errors


class Life:
    """Of one gateway. Call `open` when the engine has recovered, `drain` before the process stops."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        # Reads what the streams have no more.
        self._history: HistoryClient | None = None
        if gateway.settings.history_url:
            self._history = HistoryClient(gateway.settings, gateway.clock, gateway.reports.counters)
        gateway.operator.health.checks["history_unavailable"] = lambda: (
            self._history is not None and self._history.is_away
        )
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
        """Have the gateway be in this phase."""
        self.gateway.phase = phase
        self.gateway.stamp.advance()

    def open(self, engine: EngineProtocol, revoked: RevocationFile | None = None) -> None:
        """Serve requests with this engine, once the tokens in it are known; `revoked` is the file of
        revocations beside its log.
        """
        gateway, client = self.gateway, self._history
        reaching = ReachingEngine(engine, client) if client else engine
        leases, reports = gateway.leases, gateway.reports
        gateway.opened = Opened(engine, Tenants(reaching, leases))
        budgets = gateway.limits.budgets
        if engine.memory.bytes_max is not None:
            budgets.size(engine.memory.bytes_max)
        engine.memory.buffers = budgets.resident_bytes
        events = engine.events
        events.dead_lettered = reports.dead_letters.note
        events.expired = reports.dead_letters.note_expired
        events.letters_refused = reports.dead_letters.note_refused
        events.slow_turn = reports.slow_turns.note
        gateway.operator.health.watch(engine)
        events.active_readers = leases.active
        events.changed = gateway.on_events
        gateway.access.load(engine, revoked, self._be_ready)
        # Last: its first turns have run, and one of them may have failed.
        events.faulty = self._fault
        if events.fault is not None:
            self._fault(events.fault)

    def share(self, others: OtherGateways) -> None:
        """Have consumers, tickets and tokens in common with the other gateways; before `open`."""
        self.gateway.leases = others.leases
        self.gateway.access.share(others)

    def _be_ready(self) -> None:
        if self.gateway.phase is not Phase.DRAINING:
            self.enter(Phase.READY)
            for ready in self.on_ready:
                ready()

    def _fault(self, error: BaseException) -> None:
        """Handle a failed turn: nothing more is served from the engine's memory."""
        if self.gateway.phase is Phase.READY:
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
        gateway = self.gateway
        opened, gateway.opened = gateway.opened, None
        gateway.operator.health.watch(None)
        gateway.stamp.advance()
        for restarting in self.on_restart:
            restarting()
        if opened is not None:
            opened.tenants.close(errors.restarting())
        gateway.leases.wake()
        gateway.leases = ConsumerLeases()
        gateway.joiner = Joiner()

    def drain(self) -> None:
        """Begin nothing new. Blocked reads end at once, without entries."""
        self.enter(Phase.DRAINING)
        self.gateway.leases.wake()
        for notify in self.on_drain:
            notify()
        if self.gateway.opened is not None:
            self.gateway.opened.engine.end_waits()
