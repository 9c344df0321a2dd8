"""Tenants: what belongs to the streams of one prefix.

Knows: that callers without a prefix have the engine itself.
Must never know: who belongs to a tenant.
"""

from typing import Final

from app.live.feeds import Feeds
from app.live.leases import ConsumerLeases
from app.tenants.tenant_engine import TenantEngine
from engine import Call, CommandEngine, EngineError, taking_back
from engine.commands import XReadGroup
from engine.replies import GroupRead, Reply

# Beyond it, tenants whose streams are not followed are forgotten, until they come again.
TENANTS_MAX: Final = 1_000


class Tenant:
    """The engine, the feeds and the consumer leases for the callers of one prefix, which may be empty."""

    __slots__ = ("engine", "feeds", "leases", "prefix")

    def __init__(self, prefix: str, engine: CommandEngine, leases: ConsumerLeases) -> None:
        self.prefix: Final = prefix
        self.engine: Final = TenantEngine(engine, prefix) if prefix else engine
        self.feeds: Final = Feeds(self.engine)
        self.leases: Final = leases.under(prefix)

    def take_back(self, command: XReadGroup, reply: Reply | EngineError) -> None:
        """Undo what was delivered to a client that never gets it: it has left."""
        if isinstance(reply, GroupRead):
            for one in taking_back(command, reply):
                # Each by itself: a large one takes several turns, which a transaction may not.
                self.engine.send(Call((one,)), lambda _: None)
                self.leases.settled(one.stream)


class Tenants:
    """All tenants of one engine; they share the leases."""

    def __init__(self, engine: CommandEngine, leases: ConsumerLeases) -> None:
        self._engine = engine
        self._leases = leases
        # Callers without a prefix.
        self.plain: Final = Tenant("", engine, leases)
        self._tenants: dict[str, Tenant] = {}

    def find(self, prefix: str) -> Tenant:
        """The tenant of this prefix."""
        if not prefix:
            return self.plain
        tenant = self._tenants.get(prefix)
        if tenant is None:
            if len(self._tenants) >= TENANTS_MAX:
                self._tenants = {key: one for key, one in self._tenants.items() if len(one.feeds)}
            tenant = self._tenants[prefix] = Tenant(prefix, self._engine, self._leases)
        return tenant

    def close(self, failure: EngineError) -> None:
        """End all feeds with `failure`."""
        for tenant in (self.plain, *self._tenants.values()):
            tenant.feeds.close(failure)
