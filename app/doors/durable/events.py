"""A stream as server-sent events: data, and behind each a word about where the reader is.

Knows: the events `data` and `control`, when a connection ends. Must never know: requests, how entries are
stored.

    event: data
    data:[{"a":1}]

    event: control
    data:{"streamNextOffset":"…","streamCursor":"…","upToDate":true}
"""

import base64
import secrets
from typing import Final

from app.doors.durable import bodies, offsets
from app.doors.sse import events
from app.doors.sse.tails import EventStream, StreamOutbox
from app.errors import RefusalError
from app.gateway import Gateway
from app.http.requests import Request
from app.live.feeds import FeedGap, FeedItem, FeedPage, Subscriber
from app.live.waiting import Place
from engine.parts.durable import kind_of

_PIECE_COUNT_MAX: Final = 1_000
# Clients come back at different times, and a proxy's cache has them share a connection again.
_STAY_S_MIN: Final = 55
_STAY_S_MORE: Final = 10
_BASE64: Final = (b"stream-sse-data-encoding", b"base64")


def is_text(kind: str | None) -> bool:
    """Whether events hold it as it is."""
    return kind is None or kind == bodies.JSON or kind.startswith("text/")


class Following(StreamOutbox):
    """The events of one reader of one stream."""

    def __init__(
        self, gateway: Gateway, caller: str, tail: Subscriber, media: str | None, cursor: str
    ) -> None:
        super().__init__([tail], _PIECE_COUNT_MAX, gateway, caller)
        self._tail = tail
        self._kind = None if media is None else kind_of(media)
        self._cursor = offsets.cursor(cursor, gateway.clock.wall_ms())
        self._has_item = self._has_gap = False
        # Then it begins anew.
        stay_s = _STAY_S_MIN + secrets.randbelow(1_000 * _STAY_S_MORE) / 1_000
        self._until_s = gateway.clock.monotonic() + stay_s

    async def begin(self, removed_upto: int) -> bool:
        """Have what comes first; whether entries up to this ID are missing before it. Raises EngineError."""
        self.pump.begin()
        await self._news.wait()
        if self._why is not None:
            raise self._why
        return self._has_gap or (not self._has_item and 0 < self._tail.cursor < removed_upto)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """How its data are written."""
        return [] if is_text(self._kind) else [_BASE64]

    def write(self, place: int, item: FeedItem | None) -> None:
        """Have an item sent; behind a gap nothing: it is another stream, or gone, as its offset tells."""
        self._has_item = self._has_item or item is not None
        if isinstance(item, FeedGap):
            self._has_gap = True
            self.pump.end()
        else:
            super().write(place, item)

    def caught_up(self, place: int) -> None:
        """Say where the reader is, where nothing else has."""
        if not self._has_item:
            self.say(self._control(self._tail.cursor, self._tail.generation))

    def _rendered(self, place: int, item: FeedItem) -> bytes:
        if isinstance(item, FeedPage):
            return self._page(item) + self._control(item.last_id, item.generation)
        return self._control(self._tail.cursor, self._tail.generation, is_closed=True)

    def _page(self, page: FeedPage) -> bytes:
        return page.cached(("durable", self._kind), lambda one: _data(self._kind, one))

    def _control(self, last_id: int, generation: str, *, is_closed: bool = False) -> bytes:
        facts = b'"streamNextOffset":"%b"' % offsets.write(last_id, generation)
        if not is_closed:
            self._cursor = max(self._cursor, offsets.cursor("", self._clock.wall_ms()), key=int)
            facts += b',"streamCursor":"%b"' % self._cursor
        if self._tail.ends_at(last_id):
            facts += b',"upToDate":true'
        if is_closed:
            facts += b',"streamClosed":true'
        return events.compact(b"control", b"{%b}" % facts)


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

    def __init__(self, request: Request, source: Following, place: Place) -> None:
        super().__init__(request, source, place)
        self.raw_headers += source.headers

    def _last(self, refusal: RefusalError) -> bytes:
        return b""
