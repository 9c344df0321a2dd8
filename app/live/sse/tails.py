"""Following streams over a connection: the pump from tails to server-sent events.

Knows: when a client has left or takes nothing, when to say that one is still there, how an end is told.
Must never know: how parameters are written, where entries are kept.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from app.errors import RefusalError, to_refusal
from app.gateway import Gateway, Receive, wait_for_disconnect
from app.http.calls import Answer, Scope, Send
from app.http.entry_pages import gap_refused
from app.live.feeds import FeedGap, FeedPage, Feeds, Subscriber
from app.live.sse import cursors as wire
from app.live.sse import events
from app.live.sse.cursors import TailOptions
from app.transport.http_connection import GONE_EXTENSION
from engine import Clock, EngineError
from engine.replies import Gap as EngineGap

# One piece of an answer: what a client that reads nothing more costs beyond its socket's buffer.
_PIECE_COUNT_MAX: Final = 1_000
_PIECE_BYTES_MAX: Final = 256 << 10
_SEVERAL_COUNT_MAX: Final = 100
# A client that takes nothing for so long is cut.
STALL_S_MAX: Final = 10.0
# Clients come back within this time after an end, not all at once.
_RETRY_MS_LEAST: Final = 1_000
_RETRY_MS_MOST: Final = 5_000

Put = Callable[[bytes], Awaitable[None]]


class StalledError(Exception):
    """The client takes nothing any more, or has gone: what was put last did not leave."""


class EventSource(Protocol):
    """What is pumped: events as text, until it ends by itself or is refused."""

    async def run(self, put: Put) -> None:
        """Pass every event to `put`.

        Raises RefusalError, EngineError, StalledError.
        """
        ...

    def stop(self, pumping: asyncio.Future[None]) -> None:
        """End `run`, which is what `pumping` does, soon."""
        ...

    def close(self) -> None:
        """It has ended."""
        ...


class EventStream(Answer):
    """An answer of server-sent events, without a source the head alone. Whatever ends it, the source is
    closed, and the gateway knows.
    """

    def __init__(self, gateway: Gateway, source: EventSource | None, request_id: str) -> None:
        super().__init__(204)
        self.status_code = 200
        self.raw_headers += events.HEADERS
        self._gateway = gateway
        self._source = source
        self._request_id = request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the source ends, the client leaves or takes nothing."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if self._source is None:
                await send({"type": "http.response.body", "body": b""})
            else:
                gone = scope.get("extensions", {}).get(GONE_EXTENSION, _never)
                await self._run(self._source, receive, partial(_put, send, gone), send)
        finally:
            if self._source is not None:
                self._source.close()
            self._gateway.unfollow()

    async def _run(self, source: EventSource, receive: Receive, put: Put, send: Send) -> None:
        pumping = asyncio.ensure_future(self._pump(source, put, send))
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait((pumping, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not pumping.done():
                source.stop(pumping)
                await asyncio.wait((pumping,))
        if not pumping.cancelled():
            pumping.result()

    async def _pump(self, source: EventSource, put: Put, send: Send) -> None:
        try:
            try:
                await source.run(put)
            except EngineError as refusal:
                await put(self._last(to_refusal(refusal)))
            except RefusalError as refusal:
                await put(self._last(refusal))
        except StalledError:
            # Broken off: neither this nor anything else would reach it.
            return
        await send({"type": "http.response.body", "body": b""})

    def _last(self, refusal: RefusalError) -> bytes:
        if refusal.retryable:
            return wire.end(refusal.code, retry_ms())
        return wire.error(refusal, self._request_id)


def end_with(refusal: RefusalError) -> Answer:
    """A refusal for an EventSource, which gives up for good at any status but 200: the end, and when to come
    back. It has no ID, so that the client keeps the one it has.
    """
    headers = [one for one in events.HEADERS if one[0] != b"content-type"]
    return Answer(200, wire.end(refusal.code, retry_ms()), headers, media_type=events.MEDIA_TYPE)


def retry_ms() -> int:
    """When to come back: another time for each."""
    return _RETRY_MS_LEAST + secrets.randbelow(_RETRY_MS_MOST - _RETRY_MS_LEAST)


def _never() -> bool:
    """Whether the connection is over, where nobody can tell."""
    return False


async def _put(send: Send, gone: Callable[[], bool], piece: bytes) -> None:
    if gone():
        raise StalledError
    try:
        async with asyncio.timeout(STALL_S_MAX):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        raise StalledError from None
    # Over when it was to be written, which nobody waited for since: `send` has dropped it.
    if gone():
        raise StalledError
    # A fast reader never makes `send` wait, and others are there too.
    await asyncio.sleep(0)


class TailSource:
    """The source of one or several tails."""

    def __init__(self, tails: Sequence[Subscriber], wanted: TailOptions, clock: Clock) -> None:
        self._tails = tails
        self._wanted = wanted
        self._clock = clock
        self._changed = asyncio.Event()
        # Each entry of several streams has the cursor of all with it.
        self._count_max = max(_SEVERAL_COUNT_MAX, _PIECE_COUNT_MAX // len(tails))

    @classmethod
    async def begin(cls, feeds: Feeds, wanted: TailOptions, clock: Clock) -> "TailSource":
        """Begin to follow, all streams or none. Raises EngineError."""
        tails: list[Subscriber] = []
        try:
            for stream, after in zip(wanted.streams, wanted.after, strict=True):
                tails.append(await feeds.tail(stream, after, wanted.last, _PIECE_BYTES_MAX))
        except BaseException:
            for tail in tails:
                tail.close()
            raise
        return cls(tails, wanted, clock)

    def stop(self, pumping: asyncio.Future[None]) -> None:
        """Wherever it is, nothing is lost: the client has its cursor."""
        pumping.cancel()

    def close(self) -> None:
        """Follow no more."""
        for tail in self._tails:
            tail.close()

    @property
    def _cursor(self) -> bytes:
        return self._wanted.written([tail.cursor for tail in self._tails])

    async def run(self, put: Put) -> None:
        """Where it begins, what there is, that this is all, what comes."""
        await put(events.position(self._cursor))
        silent_since, behind = self._clock.monotonic(), True
        while True:
            if await self._put_some(put):
                silent_since = self._clock.monotonic()
            elif all(tail.caught_up for tail in self._tails):
                if behind:
                    behind = False
                    await put(wire.caught_up(self._cursor))
                silent_s = self._clock.monotonic() - silent_since
                if silent_s >= events.HEARTBEAT_S:
                    silent_since += silent_s
                    silent_s = 0.0
                    await put(events.COMMENT)
                await self._change(events.HEARTBEAT_S - silent_s)

    async def _put_some(self, put: Put) -> bool:
        """One piece of each stream that has something; whether one had."""
        found = False
        for place, tail in enumerate(self._tails):
            cursors = [one.cursor for one in self._tails]
            item = await tail.look(self._count_max, _PIECE_BYTES_MAX)
            if item is not None:
                found = True
                await put(self._events(item, place, cursors))
        return found

    def _events(self, item: FeedPage | FeedGap, place: int, cursors: Sequence[int]) -> bytes:
        if isinstance(item, FeedPage):
            return wire.page(item, self._wanted, place, cursors)
        if self._wanted.fail_on_gap:
            raise gap_refused(EngineGap(item.after, item.first_available, item.lost))
        return wire.gap(item, named=self._wanted.several)

    async def _change(self, seconds_max: float) -> None:
        """Wait until there may be something to take, or so long."""
        changed = self._changed
        changed.clear()
        for tail in self._tails:
            tail.call_when_ready(changed.set)
        timer = asyncio.get_running_loop().call_later(max(0.0, seconds_max), changed.set)
        try:
            await changed.wait()
        finally:
            timer.cancel()
