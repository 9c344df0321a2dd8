"""A consumer of a group over SSE: a session whose deliveries are rendered as events.

Knows: when there is room for more, when a client that is silent is sent a heartbeat, what was not sent.
Must never know: how parameters are written, what entries contain, which read comes next.
"""

import asyncio
from typing import Final

from app.doors.sse import cursors as wire
from app.doors.sse import events
from app.doors.sse.tails import Outbox, retry_ms
from app.gateway import Gateway
from app.http.entries.deliveries import delivered
from app.live.consumer import Consumer, Credit, Taken
from app.live.leases import ConsumerKey
from app.live.readers import GroupPump
from app.tenants import Tenant
from engine import ids
from engine.replies import Delivered, StreamDeliveries

# Entries of one read: if the connection breaks during a send, it is unknown how many arrived.
_PIECE_COUNT_MAX: Final = 100
_PIECE_BYTES_MAX: Final = 64 << 10


class ConsumerEvents(Outbox):
    """Events of one consumer: its own pending entries first, then released entries, then new ones."""

    pump: GroupPump

    def __init__(
        self,
        gateway: Gateway,
        tenant: Tenant,
        key: ConsumerKey,
        caller: str,
        *,
        in_flight_max: int,
        claim_min_idle_ms: int | None,
    ) -> None:
        super().__init__(gateway, caller)
        credit = Credit(in_flight_max, _PIECE_COUNT_MAX)
        consumer = Consumer(key, credit, bytes_max=_PIECE_BYTES_MAX, claim_min_idle_ms=claim_min_idle_ms)
        self.pump = GroupPump(tenant.leases, tenant.engine, consumer, self, gateway.reports.trace_read)

    async def begin(self) -> "ConsumerEvents":
        """Wait until the consumer's previous reader has ended. Raises EngineError."""
        try:
            await self.pump.lease.wait_alone()
        except BaseException:
            self.close()
            raise
        return self

    def stop(self, pumping: asyncio.Future[None]) -> None:
        """End `run`. It is not cancelled: a delivery in progress would be lost."""
        self._has_left = True
        self.pump.stop()
        self._news.set()

    def close(self) -> None:
        """End the consumer's read and its lease."""
        super().close()
        self.pump.close()

    def declines(self, _: StreamDeliveries) -> bool:
        """Nothing was written since it was asked for."""
        return False

    def write(self, taken: Taken, *, was_closed: bool) -> None:
        """Have the entries sent, and what is to be said of their stream and group."""
        found, text = taken.found, b""
        if taken.paused is not None:
            text += wire.group_paused(paused=taken.paused)
        if found is not None and taken.ids:
            text += b"" if found.gap is None else wire.group_gap(found.gap)
            text += b"".join([_event(entry) for entry in found.entries])
            self._entries += len(taken.ids)
            self._given = () if found.history else taken.ids
        if taken.end is not None:
            text += b"" if was_closed else wire.group_closed(taken.end)
            text += wire.drained() if taken.end.drained else b""
        if text:
            self.say(text)

    def lack_credit(self) -> None:
        """Clients know how many they have. Raises `draining`."""
        _ = self._gateway.engine

    def replaced(self) -> None:
        """Say so; another reader goes on."""
        self.say(wire.end("replaced", retry_ms()))

    def drop(self) -> None:
        """Give back new entries that the client did not accept."""
        self.pump.give_back(self._given)


def _event(entry: Delivered) -> bytes:
    return events.event(b"entry", delivered(entry), ids.format(entry.id).encode())
