"""Who may use a gateway, and how much of it: the policy, tokens, tickets, what ends with a token, the audit
log, and what one request and one caller may have.

Knows: that other processes may have the tickets, and that limits are made from the settings.
Must never know: requests, which operation needs which action, who enforces a limit.
"""

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from app.auth import AccessPolicy, OpenPolicy, Principal, TokenPolicy
from app.auth.audit import AuditLog
from app.auth.rate_limiter import RateLimiter
from app.auth.revocation_file import RevocationFile
from app.auth.tickets import Tickets
from app.errors import RefusalError
from app.limits import CommandLimits, EntryLimits, ReadLimits
from app.live.budgets import Budgets
from app.live.fair_queue import REQUESTS_A_CYCLE_MAX, FairQueue
from app.live.other_gateways import OtherGateways
from app.live.sessions import OpenSessions
from app.live.shares import Shares
from app.live.token_store import TokenStore
from app.live.turns import CallerTurns, CycleBudget
from app.settings import Settings
from engine import Clock, EngineProtocol


class Limits:
    """What one request, and what one caller may have of one process."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.entries = EntryLimits.of(settings)
        # Of publications into one stream.
        self.publications = replace(self.entries, later=True)
        self.reads = ReadLimits.of(settings)
        self.commands = CommandLimits.of(settings)
        # None where no caller can have a limit.
        self.rates = RateLimiter.of(settings, clock.monotonic)
        # Memory of what waits to be sent, and of what is being read.
        self.budgets = Budgets(settings, clock.monotonic)
        # Long work of one caller takes turns.
        self.turns = CallerTurns()
        self.cycle = CycleBudget(clock.monotonic)
        # And so do the connections of callers that have many.
        self.requests = FairQueue(CycleBudget(clock.monotonic), REQUESTS_A_CYCLE_MAX)
        each_max = settings.each_max(settings.sockets_max)
        self.connections = Shares("too_many_sockets", "per_principal_max", each_max)


class AccessControl:
    """That of one process."""

    def __init__(self, settings: Settings, clock: Clock, policy: AccessPolicy | None) -> None:
        self.policy = policy or OpenPolicy()
        self.audit = AuditLog(settings.audit_file, clock.wall_ms)
        # Connections and reads that end with their token.
        self.sessions = OpenSessions(clock, self.policy.is_revoked)
        self.tickets = Tickets(clock.monotonic)
        # In a front and over a backend: redeems a ticket.
        self.redeem_elsewhere: Callable[[str, str], Awaitable[Principal | None]] | None = None
        # Over a backend: keeps a ticket that was issued for the gateways beside this one.
        self._keep_elsewhere: Callable[[str, Principal, str], Awaitable[None]] | None = None
        # Without tokens in the settings there are none in the log either: everybody may do everything.
        self._tokens = (
            TokenStore(self.policy, self.sessions, clock) if isinstance(self.policy, TokenPolicy) else None
        )

    async def issue_ticket(self, principal: Principal, origin: str) -> str:
        """A ticket, as `Tickets.issue`. Raises `rate_limited`, EngineError."""
        ticket = self.tickets.issue(principal, origin)
        if self._keep_elsewhere is not None:
            await self._keep_elsewhere(ticket, principal, origin)
        return ticket

    async def redeem(self, ticket: str, origin: str) -> Principal | None:
        """Whose ticket it is, as `Tickets.redeem`."""
        if self.redeem_elsewhere is not None:
            return await self.redeem_elsewhere(ticket, origin)
        return self.tickets.redeem(ticket, origin)

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

    def load(self, engine: EngineProtocol, revoked: RevocationFile | None, ready: Callable[[], None]) -> None:
        """Call `ready` once the tokens of this engine are known."""
        if self._tokens is None:
            ready()
        else:
            self._tokens.load(engine, revoked, ready)

    def share(self, others: OtherGateways) -> None:
        """Have tickets and tokens in common with the other gateways."""
        self._keep_elsewhere, self.redeem_elsewhere = others.keep, others.redeem
        if self._tokens is not None:
            others.watch_tokens(self._tokens.look)
