"""A consumer of a group over SSE: a session whose deliveries are rendered as events.

Knows: when there is room for more, when a client that is silent is sent a heartbeat, what was not sent.
Must never know: how parameters are written, what entries contain, which read comes next.
"""

import asyncio
from typing import Final

from app.doors.sse import cursors as wire
from app.doors.sse import events
from app.doors.sse.tails import Put, retry_ms
from app.gateway import Gateway
from app.http.entries.deliveries import delivered
from app.live.consumer import CHECK_S, Consumer, Credit, Taken
from app.live.leases import ConsumerKey
from app.tenants import Tenant
from engine import Call, ask_one, ids
from engine.replies import Delivered, GroupRead, PendingList

# Entries of one read: if the connection breaks during a send, it is unknown how many arrived.
_PIECE_COUNT_MAX: Final = 100
_PIECE_BYTES_MAX: Final = 64 << 10


class ConsumerSource:
    """Events of one consumer: its own pending entries first, then released entries, then new ones."""

    def __init__(
        self,
        gateway: Gateway,
        tenant: Tenant,
        key: ConsumerKey,
        *,
        in_flight_max: int,
        claim_min_idle_ms: int | None,
    ) -> None:
        self._gateway = gateway
        self._tenant = tenant
        self._clock = gateway.clock
        credit = Credit(in_flight_max, _PIECE_COUNT_MAX)
        self._consumer = Consumer(
            key, credit, bytes_max=_PIECE_BYTES_MAX, claim_min_idle_ms=claim_min_idle_ms
        )
        self._lease = tenant.leases.acquire(key, self._replace)
        self._replaced = False
        self._silent_since = gateway.clock.monotonic()

    async def begin(self) -> "ConsumerSource":
        """Wait until the consumer's previous reader has ended. Raises EngineError."""
        try:
            await self._lease.wait_alone()
        except BaseException:
            self.close()
            raise
        return self

    def _replace(self) -> None:
        """Another connection has taken the consumer over."""
        self._replaced = True
        self._lease.stop()

    def stop(self, pumping: asyncio.Future[None]) -> None:
        """End `run`. It is not cancelled: a delivery in progress would be lost."""
        self._lease.stop()

    def close(self) -> None:
        """End the consumer's read and its lease."""
        self._lease.close(self._tenant.engine)

    async def run(self, put: Put) -> None:
        """Send the history, then released and new entries, as long as there is credit."""
        lease, going_on = self._lease, False
        with self._tenant.leases.watch(self._consumer.key.stream) as settled:
            lease.on_stop = settled.set
            while not lease.is_stopped and not self._consumer.is_drained:
                if self._consumer.credit.room:
                    going_on = await self._read(put, going_on=going_on)
                else:
                    await self._make_room(settled)
                await self._beat(put)
        if self._replaced:
            await put(wire.end("replaced", retry_ms()))

    async def _read(self, put: Put, *, going_on: bool) -> bool:
        """Read some entries, and send them. New ones are waited for until the next heartbeat is due. Returns
        whether any came.
        """
        command = self._consumer.next_read(max(1, round(self._silence_left_s() * 1000)))
        reply = await self._lease.reply(self._tenant.engine, command, going_on=going_on)
        assert isinstance(reply, GroupRead), "XREADGROUP replies with a GroupRead"
        self._gateway.reports.trace_read(command.group, command.consumer, reply)
        was_closed = self._consumer.is_closed
        taken = self._consumer.take_reply(reply)
        if taken.paused is not None:
            await put(wire.group_paused(paused=taken.paused))
        if taken.ids:
            await self._give(taken, put)
        if taken.end is not None:
            text = b"" if was_closed else wire.group_closed(taken.end)
            await put(text + (wire.drained() if taken.end.drained else b""))
        return taken.is_new

    async def _give(self, taken: Taken, put: Put) -> None:
        """Send entries. New entries that the client did not accept are given back."""
        delivered, is_sent = taken.found, False
        assert delivered is not None, "there are entries"
        text = b"" if delivered.gap is None else wire.group_gap(delivered.gap)
        text += b"".join([_event(entry) for entry in delivered.entries])
        try:
            if not self._lease.is_stopped:
                await put(text)
                is_sent = self._replaced or not self._lease.is_stopped
        finally:
            if is_sent:
                self._gateway.reports.counters.deliver("sse", len(taken.ids))
                self._silent_since = self._clock.monotonic()
            elif not delivered.history:
                self._lease.give_back(self._tenant.engine, self._consumer.decline(delivered))

    async def _make_room(self, settled: asyncio.Event) -> None:
        """See what is no longer pending. If that is nothing, wait until entries may have been settled, a
        check or a heartbeat is due, or the source ends.
        """
        # Raises `draining`; nothing else would.
        _ = self._gateway.engine
        settled.clear()
        check = self._consumer.check()
        reply = await ask_one(self._tenant.engine, Call((check.command,)))
        assert isinstance(reply, PendingList), "XPENDING with a range replies with a PendingList"
        self._consumer.note_checked(check, reply)
        if self._consumer.credit.room:
            return
        wait_s = min(CHECK_S, self._silence_left_s())
        timer = asyncio.get_running_loop().call_later(wait_s, settled.set)
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


def _event(entry: Delivered) -> bytes:
    return events.event(b"entry", delivered(entry), ids.format(entry.id).encode())
