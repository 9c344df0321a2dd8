"""A stream as server-sent events: data, and behind each a word about where the reader is.

Knows: the events `data` and `control`, when a connection ends. Must never know: requests, how entries are
stored.

    event: data
    data:[{"a":1}]

    event: control
    data:{"streamNextOffset":"…","streamCursor":"…","upToDate":true}
"""

import asyncio
import base64
import secrets
from typing import Final

from app.auth import Principal
from app.doors.durable import bodies, offsets
from app.doors.sse import events
from app.doors.sse.tails import EventStream, Put
from app.errors import RefusalError
from app.gateway import Gateway
from app.live.feeds import FeedEnd, FeedGap, FeedItem, FeedPage, Subscriber
from app.live.waiting import Place
from engine.durable_streams import kind_of

_PIECE_COUNT_MAX: Final = 1_000
_PIECE_BYTES_MAX: Final = 256 << 10
# Clients come back at different times, and a proxy's cache has them share a connection again.
_STAY_S_MIN: Final = 55
_STAY_S_MORE: Final = 10
_BASE64: Final = (b"stream-sse-data-encoding", b"base64")


def is_text(kind: str | None) -> bool:
    """Whether events hold it as it is."""
    return kind is None or kind == bodies.JSON or kind.startswith("text/")


class Following:
    """The events of one reader of one stream."""

    def __init__(self, gateway: Gateway, tail: Subscriber, media: str | None, cursor: str) -> None:
        self._gateway = gateway
        self._tail = tail
        self._kind = None if media is None else kind_of(media)
        self._cursor = offsets.cursor(cursor, gateway.clock.wall_ms())
        self._changed = asyncio.Event()
        # What `begin` has found.
        self._first: FeedItem | None = None

    async def begin(self, removed_upto: int) -> bool:
        """Take what comes first; whether entries up to this ID are missing before it. Raises EngineError."""
        self._first = await self._look()
        if self._first is None:
            return 0 < self._tail.cursor < removed_upto
        return isinstance(self._first, FeedGap)

    async def _look(self) -> FeedItem | None:
        bytes_max = self._gateway.limits.budgets.output.piece_bytes(_PIECE_BYTES_MAX)
        return await self._tail.look(_PIECE_COUNT_MAX, bytes_max)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """How its data are written."""
        return [] if is_text(self._kind) else [_BASE64]

    def stop(self, pumping: asyncio.Future[None]) -> None:
        """Cancel `run`: the client has its offset, so nothing is lost."""
        pumping.cancel()

    def close(self) -> None:
        """Stop following."""
        self._tail.close()

    async def run(self, put: Put) -> None:
        """Send what is there, then what comes, for about a minute; then the client begins anew."""
        monotonic = self._gateway.clock.monotonic
        until_s = monotonic() + _STAY_S_MIN + secrets.randbelow(1_000 * _STAY_S_MORE) / 1_000
        is_first = True
        while True:
            item, self._first = self._first or await self._look(), None
            if isinstance(item, FeedGap):
                # It is another stream, or gone: the client comes back with its offset, and is refused.
                return
            if isinstance(item, FeedEnd):
                await put(self._control(is_closed=True))
                return
            if item is not None:
                await put(self._page(item) + self._control())
                self._gateway.reports.counters.deliver("sse", item.count)
            elif is_first:
                await put(self._control())
            is_first = False
            if self._tail.caught_up:
                left_s = until_s - monotonic()
                if left_s <= 0:
                    return
                if not await self._change(min(left_s, events.HEARTBEAT_S)):
                    await put(events.COMMENT)

    def _page(self, page: FeedPage) -> bytes:
        return page.cached(("durable", self._kind), lambda one: _data(self._kind, one))

    def _control(self, *, is_closed: bool = False) -> bytes:
        facts = b'"streamNextOffset":"%b"' % offsets.write(self._tail.cursor, self._tail.generation)
        if not is_closed:
            self._cursor = max(self._cursor, offsets.cursor("", self._gateway.clock.wall_ms()), key=int)
            facts += b',"streamCursor":"%b"' % self._cursor
        if self._tail.caught_up:
            facts += b',"upToDate":true'
        if is_closed:
            facts += b',"streamClosed":true'
        return events.compact(b"control", b"{%b}" % facts)

    async def _change(self, seconds_max: float) -> bool:
        """Wait until there may be something, at most so long; whether there may be."""
        changed = self._changed
        changed.clear()
        self._tail.call_when_ready(changed.set)
        try:
            async with asyncio.timeout(seconds_max):
                await changed.wait()
        except TimeoutError:
            return False
        return True


def _data(kind: str | None, page: FeedPage) -> bytes:
    body = bodies.page(kind, page.entries)
    if not is_text(kind):
        body = base64.b64encode(body)
    elif kind is not None and kind != bodies.JSON:
        # Events are UTF-8: half a character at the end of a page is not.
        body = body.decode(errors="replace").encode()
    return events.compact(b"data", body)


class DurableStreamResponse(EventStream):
    """The answer with these events. A refusal on the way just ends it: the client comes back, and gets it."""

    def __init__(
        self, gateway: Gateway, source: Following, principal: Principal, place: Place, request_id: str
    ) -> None:
        super().__init__(gateway, source, principal, place, request_id)
        self.raw_headers += source.headers

    def _last(self, refusal: RefusalError) -> bytes:
        return b""
