"""Who may use a gateway: the policy, tokens, tickets, what ends with a token, and the audit log.

Knows: that other processes may have the tickets.
Must never know: requests, which operation needs which action.
"""

from collections.abc import Awaitable, Callable

from app.auth import AccessPolicy, OpenPolicy, Principal, TokenPolicy
from app.auth.audit import AuditLog
from app.auth.revocation_file import RevocationFile
from app.auth.tickets import Tickets
from app.errors import RefusalError
from app.live.other_gateways import OtherGateways
from app.live.sessions import OpenSessions
from app.live.token_store import TokenStore
from app.settings import Settings
from engine import Clock, EngineProtocol


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
