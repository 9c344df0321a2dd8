"""The gateway's state: its phase, its engine, and what all requests share.

Knows: when the engine may be used. Must never know: routes, bytes on the wire, how an engine is opened and
ends, which `app/life.py` does.

    Gateway ─┬─ limits: what one request and one caller may have
             ├─ access: who may use it, tokens, tickets, the audit log
             ├─ hooks: who may send what into which stream
             ├─ reports: what is counted, timed and traced
             ├─ operator: what an operator sees of it, and has to act on
             └─ waits, leases: readers that stay
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from app.auth import AccessPolicy
from app.auth.stamp import Stamp
from app.errors import RefusalError, draining, to_refusal
from app.hooks.table import Hooks
from app.live.access import AccessControl, Limits
from app.live.joiner import Joiner
from app.live.leases import ConsumerLeases
from app.live.waiting import Waits
from app.metrics.counters import HookCounts
from app.metrics.reports import Reports
from app.operating import Operator, Phase
from app.settings import Settings
from app.tenants import Tenant, Tenants
from engine import Clock, EngineProtocol, errors

OnEvents = Callable[[Sequence[tuple[str, str]]], None]

# To find a member in its class takes Python 3.11 a third of a microsecond.
_READY: Final = Phase.READY


class Opened(NamedTuple):
    """An engine that was opened, and what the callers of each prefix have of it."""

    engine: EngineProtocol
    tenants: Tenants


class Gateway:
    """What endpoints and protocols have; one for each process. Its `Life` sets the phase and the engine."""

    phase = Phase.STARTING
    # Requests take `engine` and `tenant`, which know the phase.
    opened: Opened | None = None
    # Called with what happens to streams, pairs of event and stream, while somebody wants to know.
    on_events: OnEvents | None = None

    def __init__(self, settings: Settings, clock: Clock, policy: AccessPolicy | None = None) -> None:
        self.settings = settings
        self.clock = clock
        # What is remembered of requests holds while this is the same.
        self.stamp = Stamp(clock)
        self.limits = Limits(settings, clock)
        self.access = AccessControl(settings, clock, policy)
        self.access.policy.on_changed = self.stamp.advance
        self.hooks = Hooks(settings)
        self.reports = Reports(settings, clock)
        # All from the start, as codes of refusals are.
        self.reports.counters.hooks |= {hook.name: HookCounts() for hook in self.hooks.all}
        self.leases = ConsumerLeases()
        self.joiner = Joiner()
        self.waits = Waits(settings, self.access.sessions, self.limits.turns)
        self.operator = Operator(settings, clock, self.limits, self.access, self.reports, self.waits)
        # The description of the API, which takes half a second to make; set by the application.
        self.document: Callable[[], bytes] = bytes

    @property
    def engine(self) -> EngineProtocol:
        """The engine. Raises `draining`, `restarting` or `starting` if requests may not use it."""
        if self.opened is not None and self.phase is Phase.READY:
            return self.opened.engine
        if self.phase is Phase.DRAINING:
            raise draining()
        if self.phase is Phase.RESTARTING:
            raise to_refusal(errors.restarting())
        raise RefusalError("starting", "the log is being read: try again in a moment")

    def tenant(self, prefix: str) -> Tenant:
        """What callers of this prefix have of the engine; raises as `engine` does."""
        if self.opened is None or self.phase is not _READY:
            _ = self.engine
        assert self.opened is not None, "`engine` refuses without one"
        tenants = self.opened.tenants
        return tenants.find(prefix) if prefix else tenants.plain

    def follow_events(self, callback: OnEvents | None) -> None:
        """Call back with what happens to streams; with None no more."""
        self.on_events = callback
        if self.opened is not None:
            self.opened.engine.events.changed = callback

    @property
    def state(self) -> str:
        """The phase, `storage_failed` if the log accepts no writes, or `backend_unavailable`."""
        if self.phase is not Phase.READY:
            return str(self.phase.value)
        if self.operator.health.log_failure is not None:
            return "storage_failed"
        if self.opened is not None and self.opened.engine.figures().outage is not None:
            return "backend_unavailable"
        return self.operator.processes.phase().value
