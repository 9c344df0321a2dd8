"""Reading as a consumer of a group over a connection: the pump from deliveries to server-sent events.

Knows: how much is in flight, when there is room for more, and that what was never sent goes back.
Must never know: how parameters are written, what a delivery is about.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from app.gateway import Gateway
from app.http.deliveries import delivered
from app.live.in_flight import CHECK_S, ConsumerKey, PendingCheck
from app.live.sse import cursors as wire
from app.live.sse import events
from app.live.sse.tails import Put, retry_ms
from engine import ids
from engine.commands import Cursor, XReadGroup
from engine.replies import Delivered, GroupRead, PendingList, StreamDeliveries

# So much is read at once, and lost sight of when a connection breaks while it is being sent.
_PIECE_COUNT_MAX: Final = 100
_PIECE_BYTES_MAX: Final = 64 << 10


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer's stream is asked for."""

    stream: str
    group: str
    consumer: str
    in_flight_max: int
    claim_min_idle_ms: int

    @property
    def whose(self) -> ConsumerKey:
        """Whose entries they are."""
        return ConsumerKey(self.stream, self.group, self.consumer)


class ConsumerSource:
    """The source of one consumer's entries: its own pending ones first, then released ones, then new ones."""

    def __init__(self, gateway: Gateway, asked: ConsumerOptions) -> None:
        self._gateway = gateway
        self._engine = gateway.engine
        self._clock = gateway.clock
        self._asked = asked
        self._place = gateway.leases.acquire(asked.whose, self._replace)
        self._replaced = False
        # Sent and, as far as is known, neither acknowledged nor gone to others.
        self._in_flight: set[int] = set()
        self._silent_since = gateway.clock.monotonic()

    @classmethod
    async def begin(cls, gateway: Gateway, asked: ConsumerOptions) -> "ConsumerSource":
        """Take the consumer's place, once another connection has left it."""
        source = cls(gateway, asked)
        try:
            await asyncio.wait((source._place.alone,))
        except BaseException:
            source.close()
            raise
        return source

    def _replace(self) -> None:
        """Another connection reads as this consumer now."""
        self._replaced = True
        self._place.stop()

    def stop(self, pumping: asyncio.Future[None]) -> None:
        """End it; not by cancelling, for what is being delivered at this moment would be nobody's to see."""
        self._place.stop()

    def close(self) -> None:
        """It has ended."""
        self._engine.submit([self._asked.whose.leave()], lambda _: None)
        self._place.leave()

    async def run(self, put: Put) -> None:
        """History, then what is released and what is new, never more in flight than was asked for."""
        until = self._place.until
        with self._gateway.leases.watch(self._asked.stream) as settled:
            cursor: int | Cursor = 0
            while not until.done():
                room = await self._room(put, settled)
                if not room or until.done():
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
        """Some entries; new ones are waited for as long as a client may hear nothing."""
        asked, new = self._asked, cursor is Cursor.NEW
        block_ms = max(1, round(self._silence_left_s() * 1000))
        command = XReadGroup(
            group=asked.group,
            consumer=asked.consumer,
            streams=[(asked.stream, cursor)],
            count=min(room, _PIECE_COUNT_MAX),
            block_ms=block_ms if new else None,
            claim_min_idle_ms=asked.claim_min_idle_ms if new else None,
            claims_own=False,
            bytes_max=_PIECE_BYTES_MAX,
        )
        reply = await self._engine.execute(command, until=self._place.until)
        assert isinstance(reply, GroupRead), "that is what XREADGROUP answers"
        return reply.streams[0] if reply.streams else None

    async def _give(self, found: StreamDeliveries, put: Put) -> None:
        """Send entries; those that the client did not take go back, if they were new to this consumer."""
        text = b"" if found.gap is None else wire.group_gap(found.gap)
        text += b"".join([_event(one) for one in found.entries])
        taken = False
        try:
            if not self._place.until.done():
                await put(text)
                taken = self._replaced or not self._place.until.done()
        finally:
            given = [one.id for one in found.entries]
            if taken:
                self._in_flight.update(given)
                self._silent_since = self._clock.monotonic()
            elif not found.history:
                await self._give_back(given)

    async def _give_back(self, unsent: Sequence[int]) -> None:
        await self._engine.execute(self._asked.whose.give_back(unsent))
        self._gateway.leases.settled(self._asked.stream)

    # --- what is in flight ----------------------------------------------------------------------------------

    async def _room(self, put: Put, settled: asyncio.Event) -> int:
        """How many more entries may be sent, at least one, which is waited for; 0 at the end."""
        most = self._asked.in_flight_max
        while not self._place.until.done():
            if len(self._in_flight) < most:
                return most - len(self._in_flight)
            # Raises `draining`, which nothing else here would notice.
            _ = self._gateway.engine
            settled.clear()
            await self._look()
            if len(self._in_flight) >= most:
                await self._wait(settled)
                await self._beat(put)
        return 0

    async def _look(self) -> None:
        """Forget what is no longer pending with this consumer."""
        look = PendingCheck(self._asked.whose, [*self._in_flight])
        reply = await self._engine.execute(look.command)
        assert isinstance(reply, PendingList), "that is what XPENDING with a range answers"
        self._in_flight.difference_update(look.gone(reply))

    async def _wait(self, settled: asyncio.Event) -> None:
        """Until something may have been settled, the end, or it is time to look or to be heard."""
        wake = settled.set
        timer = asyncio.get_running_loop().call_later(min(CHECK_S, self._silence_left_s()), wake)

        def end(_: asyncio.Future[None]) -> None:
            wake()

        self._place.until.add_done_callback(end)
        try:
            await settled.wait()
        finally:
            timer.cancel()
            self._place.until.remove_done_callback(end)

    # --- being heard ----------------------------------------------------------------------------------------

    def _silence_left_s(self) -> float:
        return max(0.0, self._silent_since + events.HEARTBEAT_S - self._clock.monotonic())

    async def _beat(self, put: Put) -> None:
        if self._silence_left_s() <= 0:
            self._silent_since = self._clock.monotonic()
            await put(events.COMMENT)


def _event(one: Delivered) -> bytes:
    return events.event(b"entry", delivered(one), ids.text(one.id).encode())
