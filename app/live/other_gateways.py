"""The other gateways of the same backend: they share consumers, tickets and changes of tokens.

Knows: how a ticket is kept for the others. Must never know: the backend's commands, routes.
"""

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from app.auth.principal import Principal, pack_principal, unpack_principal
from app.auth.tickets import LIFETIME_S, Tickets
from app.live.shared_leases import SharedLeases

if TYPE_CHECKING:
    from engine.cluster import Gateways


class OtherGateways:
    """What a gateway with these `tickets` shares over `gateways`, from `join` on."""

    def __init__(self, gateways: "Gateways", tickets: Tickets) -> None:
        self._gateways = gateways
        self._tickets = tickets
        self.leases: Final = SharedLeases(gateways.say)
        # Calls back when another gateway may have changed tokens, and every few seconds.
        self.watch_tokens: Final = gateways.watch_metadata

    async def join(self) -> None:
        """Receive the messages of the others; returns when the backend has answered."""
        await self._gateways.join(self.leases.receive)

    async def keep(self, ticket: str, principal: Principal, origin: str) -> None:
        """Have a ticket redeemed by any of them. Raises EngineError."""
        packed = msgspec.msgpack.encode([origin, pack_principal(principal)])
        await self._gateways.keep(_name(ticket), packed, round(LIFETIME_S * 1000))

    async def redeem(self, ticket: str, origin: str) -> Principal | None:
        """Whose ticket it is, as `Tickets.redeem`. Raises EngineError."""
        # One that was made here is used up here as well.
        self._tickets.redeem(ticket, origin)
        kept = await self._gateways.take(_name(ticket))
        if kept is None:
            return None
        wanted, packed = msgspec.msgpack.decode(kept)
        return unpack_principal(packed) if wanted == origin else None


def _name(ticket: str) -> str:
    """A name from which the ticket cannot be found."""
    return f"ticket/{sha256(ticket.encode()).hexdigest()}"
