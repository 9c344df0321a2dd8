"""A consumer of a group over SSE: delivered entries become server-sent events.

Knows: how many entries are in flight, when there is room for more, that unsent entries are given back.
Must never know: how parameters are written, what entries contain.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from app.doors.sse import cursors as wire
from app.doors.sse import events
from app.doors.sse.tails import Put, retry_ms
from app.gateway import Gateway
from app.http.entries.deliveries import delivered
from app.live.in_flight import CHECK_S, ConsumerKey, PendingCheck
from app.tenants import Tenant
from engine import ids, reply_of
from engine.commands import Cursor, XReadGroup
from engine.replies import Delivered, GroupRead, PendingList, StreamDeliveries

# Entries of one read: if the connection breaks during a send, it is unknown how many arrived.
_PIECE_COUNT_MAX: Final = 100
_PIECE_BYTES_MAX: Final = 64 << 10


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a request for a consumer's events asks for."""

    stream: str
    group: str
    consumer: str
    in_flight_max: int
    claim_min_idle_ms: int

    @property
    def key(self) -> ConsumerKey:
        """The consumer whose entries are read."""
        return ConsumerKey(self.stream, self.group, self.consumer)


class ConsumerSource:
    """Events of one consumer: its own pending entries first, then released entries, then new ones."""

    def __init__(self, gateway: Gateway, tenant: Tenant, options: ConsumerOptions) -> None:
        self._gateway = gateway
        self._engine = tenant.engine
        self._leases = tenant.leases
        self._clock = gateway.clock
        self._options = options
        self._lease = tenant.leases.acquire(options.key, self._replace)
        self._replaced = False
        # Sent and, as far as known, neither acknowledged nor claimed by others.
        self._in_flight: set[int] = set()
        self._silent_since = gateway.clock.monotonic()

    @classmethod
    async def begin(cls, gateway: Gateway, tenant: Tenant, options: ConsumerOptions) -> "ConsumerSource":
        """Lease the consumer; waits until its previous reader has ended."""
        source = cls(gateway, tenant, options)
        try:
            await asyncio.wait((source._lease.alone,))
        except BaseException:
            source.close()
            raise
        return source

    def _replace(self) -> None:
        """Another connection has taken the consumer over."""
        self._replaced = True
        self._lease.stop()

    def stop(self, pumping: asyncio.Future[None]) -> None:
        """End `run`. It is not cancelled: a delivery in progress would be lost."""
        self._lease.stop()

    def close(self) -> None:
        """End the consumer's read and its lease."""
        self._engine.submit([self._options.key.leave()], lambda _: None)
        self._lease.leave()

    async def run(self, put: Put) -> None:
        """Send the history, then released and new entries, with at most `in_flight_max` in flight."""
        lease = self._lease
        with self._leases.watch(self._options.stream) as settled:
            lease.on_stop = settled.set
            cursor: int | Cursor = 0
            while not lease.is_stopped:
                room = await self._room(put, settled)
                if not room or lease.is_stopped:
                    break
                found = await self._read(cursor, room)
                if found is not None and found.entries:
                    await self._give(found, put)
                if isinstance(cursor, int) and found is not None:
                    over = not found.entries and not found.more
                    cursor = Cursor.NEW if over else max([cursor, *(one.id for one in found.entries)])
                await self._beat(put)
        if self._replaced:
            await put(wire.end("replaced", retry_ms()))

    # --- reading --------------------------------------------------------------------------------------------

    async def _read(self, cursor: int | Cursor, room: int) -> StreamDeliveries | None:
        """Read some entries. New ones are waited for until the next heartbeat is due."""
        options, new = self._options, cursor is Cursor.NEW
        block_ms = max(1, round(self._silence_left_s() * 1000))
        command = XReadGroup(
            group=options.group,
            consumer=options.consumer,
            streams=[(options.stream, cursor)],
            count=min(room, _PIECE_COUNT_MAX),
            block_ms=block_ms if new else None,
            claim_min_idle_ms=options.claim_min_idle_ms if new else None,
            claims_own=False,
            bytes_max=_PIECE_BYTES_MAX,
        )
        reply = await reply_of(lambda done: self._lease.hold(self._engine.read(command, done)))
        assert isinstance(reply, GroupRead), "XREADGROUP replies with a GroupRead"
        self._gateway.trace_read(options.group, options.consumer, reply)
        return reply.streams[0] if reply.streams else None

    async def _give(self, found: StreamDeliveries, put: Put) -> None:
        """Send entries. New entries that the client did not accept are given back."""
        text = b"" if found.gap is None else wire.group_gap(found.gap)
        text += b"".join([_event(one) for one in found.entries])
        taken = False
        try:
            if not self._lease.is_stopped:
                await put(text)
                taken = self._replaced or not self._lease.is_stopped
        finally:
            given = [one.id for one in found.entries]
            if taken:
                self._in_flight.update(given)
                self._gateway.counters.delivered["sse"] += len(given)
                self._silent_since = self._clock.monotonic()
            elif not found.history:
                await self._give_back(given)

    async def _give_back(self, unsent: Sequence[int]) -> None:
        await self._engine.execute(self._options.key.give_back(unsent))
        self._leases.settled(self._options.stream)

    # --- what is in flight ----------------------------------------------------------------------------------

    async def _room(self, put: Put, settled: asyncio.Event) -> int:
        """Wait until an entry may be sent; how many may be. 0 at the end."""
        most = self._options.in_flight_max
        while not self._lease.is_stopped:
            if len(self._in_flight) < most:
                return most - len(self._in_flight)
            # Raises `draining`; nothing else in this loop would.
            _ = self._gateway.engine
            settled.clear()
            await self._look()
            if len(self._in_flight) >= most:
                await self._wait(settled)
                await self._beat(put)
        return 0

    async def _look(self) -> None:
        """Remove what is no longer pending with this consumer."""
        look = PendingCheck(self._options.key, [*self._in_flight])
        reply = await self._engine.execute(look.command)
        assert isinstance(reply, PendingList), "XPENDING with a range replies with a PendingList"
        self._in_flight.difference_update(look.gone(reply))

    async def _wait(self, settled: asyncio.Event) -> None:
        """Wait until entries may have been settled, a check or a heartbeat is due, or the source ends."""
        timer = asyncio.get_running_loop().call_later(min(CHECK_S, self._silence_left_s()), settled.set)
        try:
            await settled.wait()
        finally:
            timer.cancel()

    # --- heartbeats -----------------------------------------------------------------------------------------

    def _silence_left_s(self) -> float:
        return max(0.0, self._silent_since + events.HEARTBEAT_S - self._clock.monotonic())

    async def _beat(self, put: Put) -> None:
        if self._silence_left_s() <= 0:
            self._silent_since = self._clock.monotonic()
            await put(events.COMMENT)


def _event(one: Delivered) -> bytes:
    return events.event(b"entry", delivered(one), ids.format(one.id).encode())
