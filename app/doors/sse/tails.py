"""Streams over SSE: entries of followed streams become server-sent events.

Knows: when a client has left or accepts no data, when a heartbeat is due, how a connection ends.
Must never know: how parameters are written, where entries are stored.
"""

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from app.doors.sse import cursors as wire
from app.doors.sse import events
from app.doors.sse.cursors import TailOptions
from app.errors import RefusalError, to_refusal
from app.gateway import Gateway
from app.http.requests import Request
from app.http.responses import STALL_EXTENSION, WRITE_EXTENSION, Exchange, Receive, Response, Send, send_body
from app.live.budgets import FREE_BYTES, Reader, Reservation
from app.live.feeds import FeedEnd, FeedItem, FeedPage, Feeds, Subscriber
from app.live.readers import GroupPump, Room, StreamPump
from app.live.sessions import AccessEnd
from app.live.stalls import STALL_S_MAX
from app.live.waiting import Place
from engine import EngineError

# Maximum size of one write: what a stalled client costs beyond its socket's buffer.
_PIECE_COUNT_MAX: Final = 1_000
_PIECE_BYTES_MAX: Final = 256 << 10
_SEVERAL_COUNT_MAX: Final = 100
# Clients reconnect at random times in this range, not all at once.
_RETRY_MS_LEAST: Final = 1_000
_RETRY_MS_MOST: Final = 5_000


class StalledError(Exception):
    """The client accepts no data or has left: the last piece was not sent."""


class Put:
    """Writes pieces of an answer."""

    __slots__ = ("_exchange", "_send", "_stall_s", "_write")

    def __init__(self, exchange: Exchange, send: Send) -> None:
        self._exchange = exchange
        self._send = send
        self._write: Callable[[bytes], bool] | None = exchange.extensions.get(WRITE_EXTENSION)
        self._stall_s = None if STALL_EXTENSION in exchange.extensions else STALL_S_MAX

    @property
    def reader(self) -> Reader | None:
        """Who takes the pieces, on a server that counts what waits."""
        return self._exchange.reader

    def write_now(self, piece: bytes) -> bool:
        """Write at most `FREE_BYTES` if the client has taken everything before. Returns whether it has."""
        if self._write is None or not self._write(piece):
            return False
        self._exchange.sent_bytes += len(piece)
        return True

    async def __call__(self, piece: bytes) -> None:
        """Write a piece once the client has taken what came before. Raises StalledError."""
        if self._exchange.has_left:
            raise StalledError
        try:
            async with asyncio.timeout(self._stall_s):
                await send_body(self._exchange, self._send, piece, more=True)
        except TimeoutError:
            raise StalledError from None
        # The connection ended before the write: `send` has dropped the piece.
        if self._exchange.has_left:
            raise StalledError
        # A fast reader never makes `send` wait: let other tasks run.
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Nothing follows."""
        await send_body(self._exchange, self._send, b"")


class EventStream(Response):
    """A response of server-sent events; without a source, only its headers. The source is always closed."""

    def __init__(self, request: Request, source: "Outbox | None", place: Place) -> None:
        super().__init__(204)
        self.status_code = 200
        self.raw_headers += events.HEADERS
        self._request = request
        self._source = source
        self._place = place

    async def send(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Send events until the source ends, or the client leaves or accepts no data."""
        connections = self._request.gateway.reports.counters.connections
        connections["sse"] += 1
        exchange.has_waited = True
        try:
            await self._send_head(exchange, send)
            put = Put(exchange, send)
            if self._source is None:
                await put.end()
            else:
                await self._run(self._source, partial(exchange.when_gone, receive), put)
        finally:
            if self._source is not None:
                self._source.close()
            self._place.leave()
            connections["sse"] -= 1

    async def _run(
        self,
        source: "Outbox",
        following: Callable[[Callable[[], None]], Callable[[], None]],
        put: Put,
    ) -> None:
        ended: asyncio.Future[AccessEnd] = asyncio.get_running_loop().create_future()
        session = self._request.gateway.access.sessions.enter(self._request.principal, ended.set_result)
        pumping = asyncio.ensure_future(self._pump(source, put))
        # At once: what is published next goes to others.
        stay = following(lambda: source.stop(pumping))
        try:
            await asyncio.wait((pumping, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            session.leave()
            stay()
            if not pumping.done():
                source.stop(pumping)
                await asyncio.wait((pumping,))
        if pumping.cancelled() and not ended.done():
            return
        try:
            if not pumping.cancelled():
                pumping.result()
            if ended.done():
                await put(self._last(ended.result().refusal))
        except StalledError:
            # No last event: it would not arrive.
            return
        await put.end()

    async def _pump(self, source: "Outbox", put: Put) -> None:
        """Send what the source has, and the refusal that ends it. Raises StalledError."""
        try:
            await source.run(put)
        except EngineError as refusal:
            await put(self._last(to_refusal(refusal)))
        except RefusalError as refusal:
            await put(self._last(refusal))

    def _last(self, refusal: RefusalError) -> bytes:
        if refusal.retryable:
            return wire.end(refusal.code, retry_ms())
        return wire.error(refusal, self._request.request_id)


def end_with(refusal: RefusalError) -> Response:
    """A refusal that makes an EventSource reconnect: it gives up at any status but 200. The event has no ID,
    so that the client keeps its own.
    """
    headers = [one for one in events.HEADERS if one[0] != b"content-type"]
    response = Response(200, wire.end(refusal.code, retry_ms()), headers, media_type=events.MEDIA_TYPE)
    # Counted and logged as the refusal that it is.
    response.code = refusal.code
    return response


def retry_ms() -> int:
    """A random time after which to reconnect."""
    return _RETRY_MS_LEAST + secrets.randbelow(_RETRY_MS_MOST - _RETRY_MS_LEAST)


class Outbox:
    """The events of a reader: what its pump has written and its connection has not sent.

    It is full until that is sent: at most one piece of each reader waits, which the output budget counts.
    """

    pump: StreamPump | GroupPump

    def __init__(self, gateway: Gateway, caller: str) -> None:
        self._gateway = gateway
        self._caller = caller
        self._clock = gateway.clock
        self._put: Put | None = None
        self._held: Reservation | None = None
        # What is to be sent or being sent, the number of its entries, and those that would go back.
        self._piece = b""
        self.is_full = False
        self._entries = 0
        self._given: Sequence[int] = ()
        # Set where there is something for `run` to do.
        self._news = asyncio.Event()
        self._why: Exception | None = None
        self._silent_since = 0.0
        # When the client is sent away.
        self._until_s = math.inf
        # The client has left, or may not read any more.
        self._has_left = False

    def waits(self, *_: object) -> bool:
        """Not for a backend: clients come back."""
        return False

    def end(self, why: Exception | None) -> None:
        """Nothing follows what waits."""
        self._why = why
        self._news.set()

    def say(self, text: bytes) -> None:
        """Have this sent behind what waits."""
        self._piece += text
        self.is_full = True
        if len(self._piece) > FREE_BYTES:
            self._hold(len(self._piece))
        self._news.set()

    def _hold(self, size: int) -> None:
        """Count what waits: all of it until all is sent."""
        self._let_go()
        reader = None if self._put is None else self._put.reader
        self._held = self._gateway.limits.budgets.output.hold(self._caller, size, reader)
        self._held.note_sliced(size)

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def stop(self, pumping: asyncio.Future[None]) -> None:
        """End `run`, the task `pumping`: a client that follows has its cursor, so nothing is lost."""
        self.pump.stop()
        pumping.cancel()

    def close(self) -> None:
        """Release what it holds, after `run` has ended."""
        self._let_go()
        self.pump.stop()

    def drop(self) -> None:
        """What was being sent has not left."""

    async def run(self, put: Put) -> None:
        """Send what the pump writes, and comments between. Raises what ended it: RefusalError, EngineError;
        StalledError.
        """
        self._put = put
        self._silent_since = self._clock.monotonic()
        if self._held is not None:
            # The budget did not know its reader until now.
            self._hold(len(self._piece))
        self.pump.begin()
        while True:
            if self.is_full:
                piece, is_sent = self._piece, False
                try:
                    if not self._has_left:
                        await put(piece)
                        is_sent = not self._has_left
                finally:
                    self._let_go()
                    if not is_sent:
                        self.drop()
                if is_sent:
                    self._gateway.reports.counters.deliver("sse", self._entries)
                # Behind it may stand by now that another reader goes on.
                self._piece, self._entries, self._given = self._piece[len(piece) :], 0, ()
                self.is_full = bool(self._piece)
                self._silent_since = self._clock.monotonic()
                self.pump.go_on()
            elif not self.pump.is_over:
                await self._wait(put)
            elif self._why is not None:
                raise self._why
            else:
                return

    async def _wait(self, put: Put) -> None:
        """Wait until there is something to send. It may be a heartbeat."""
        now_s = self._clock.monotonic()
        silent_s, left_s = now_s - self._silent_since, self._until_s - now_s
        if left_s <= 0:
            if self.pump.is_idle:
                self.pump.end()
                return
            left_s = math.inf
        if silent_s >= events.HEARTBEAT_S:
            await put(events.COMMENT)
            self._silent_since, silent_s = now_s, 0.0
        self._news.clear()
        if self.is_full or self.pump.is_over:
            return
        wait_s = min(events.HEARTBEAT_S - silent_s, left_s)
        timer = asyncio.get_running_loop().call_later(wait_s, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()


class StreamOutbox(Outbox):
    """Events of followed streams. Subclasses render them."""

    pump: StreamPump

    def __init__(self, tails: list[Subscriber], count_max: int, gateway: Gateway, caller: str) -> None:
        super().__init__(gateway, caller)
        self._count_max = count_max
        self.pump = StreamPump(tails, self)

    def room(self) -> Room | None:
        """A piece, where none waits."""
        if self.is_full:
            return None
        return Room(self._count_max, self._gateway.limits.budgets.output.piece_bytes(_PIECE_BYTES_MAX))

    def write(self, place: int, item: FeedItem | None) -> None:
        """Have an item sent."""
        if item is not None:
            self.say(self._rendered(place, item))
        if isinstance(item, FeedPage):
            self._entries += item.count

    def write_live(self, place: int, page: FeedPage) -> bool:
        """Send a page at once, where the client has taken all before it."""
        if self._put is None or self.is_full or page.count > self._count_max:
            return False
        text = self._rendered(place, page)
        if len(text) > FREE_BYTES or not self._put.write_now(text):
            return False
        self._gateway.reports.counters.deliver("sse", page.count)
        self._silent_since = self._clock.monotonic()
        return True

    def caught_up(self, place: int) -> None:
        """All that there was of a stream was written."""

    def _rendered(self, place: int, item: FeedItem) -> bytes:
        raise NotImplementedError


class Tail(StreamOutbox):
    """Events of one or several followed streams."""

    def __init__(self, tails: list[Subscriber], wanted: TailOptions, gateway: Gateway, caller: str) -> None:
        # With several streams, each entry carries the cursors of all.
        super().__init__(tails, max(_SEVERAL_COUNT_MAX, _PIECE_COUNT_MAX // len(tails)), gateway, caller)
        self._wanted = wanted
        self._is_behind = True

    @classmethod
    async def begin(cls, feeds: Feeds, wanted: TailOptions, gateway: Gateway, caller: str) -> "Tail":
        """Follow all streams or none. Raises EngineError."""
        tails: list[Subscriber] = []
        try:
            for stream, (after, generation) in zip(wanted.streams, wanted.after, strict=True):
                tails.append(
                    await feeds.subscribe(stream, after, wanted.last, _PIECE_BYTES_MAX, generation, caller)
                )
        except BaseException:
            for tail in tails:
                tail.close()
            raise
        return cls(tails, wanted, gateway, caller)

    @property
    def _places(self) -> Sequence[str]:
        return [self._wanted.place(tail.cursor, tail.generation) for tail in self.pump.tails]

    @property
    def _cursor(self) -> bytes:
        return self._wanted.written(self._places)

    async def run(self, put: Put) -> None:
        """Send the position, existing entries, `caught_up`, then new ones, until all streams are closed."""
        await put(events.position(self._cursor))
        await super().run(put)

    def caught_up(self, place: int) -> None:
        """Say so once, of all streams."""
        if self._is_behind and not self.pump.behind:
            self._is_behind = False
            self.say(wire.caught_up(self._cursor))

    def write(self, place: int, item: FeedItem | None) -> None:
        """Have an item sent. The end of one stream may be what the others have waited for."""
        super().write(place, item)
        if isinstance(item, FeedEnd) and self.pump.open:
            self.caught_up(place)

    def _rendered(self, place: int, item: FeedItem) -> bytes:
        places = self._places if self._wanted.several else ()
        if isinstance(item, FeedPage):
            return wire.page(item, self._wanted, place, places)
        if isinstance(item, FeedEnd):
            return wire.closed(item, self._wanted)
        if self._wanted.fail_on_gap:
            raise self._wanted.report(item.gap, item.generation).refused()
        return wire.gap(item, self._wanted, place, places)
