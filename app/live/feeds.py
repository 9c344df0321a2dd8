"""Live entries: one read for each stream, shared by all its subscribers, joined to history without a gap.

Knows: recent pages and which subscribers still need them, cursors, how many subscribers to wake at a time.
Must never know: sockets, frames, what a subscriber does with a page.

    engine ──one blocked XREAD a stream──► StreamFeed: newest pages ──same bytes──► Subscriber, Subscriber …
      └──────── XRANGE between a subscriber's cursor and its feed ────────────────► a Subscriber behind

A subscriber's only state is its cursor. At its feed's position it waits. Where a kept page begins, it takes
that page. Anywhere below, it reads from the engine, up to the feed's position and no further. So history and
live entries join without a gap or a duplicate, and no subscriber sees entries that are not yet safe.

As with XREAD, a missing stream is an empty one. A position is of one generation of its stream: a subscriber
whose stream was deleted or is another one gets a gap, and goes on where that says.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from msgspec.structs import replace

from app.live.budgets import FREE_BYTES
from engine import (
    Call,
    CommandEngine,
    EngineError,
    How,
    Reader,
    ReadHandle,
    Refused,
    Replies,
    ask,
    ask_one,
    errors,
    ids,
)
from engine.commands.base import Command
from engine.commands.types import Cursor, Until, XRange, XRead
from engine.commands.weir_commands import DescribeEdges
from engine.replies import Edges, Entries, StreamEnd, StreamsRead
from engine.replies import Gap as EngineGap

PAGE_COUNT_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 256 << 10
# Pages that a feed keeps for its subscribers. A subscriber further behind reads from the engine.
_RING_PAGES_MAX: Final = 64
_RING_BYTES_MAX: Final = 1 << 20
# Waking 10,000 subscribers in one turn of the event loop would take 0.1 s.
_WOKEN_A_TURN_MAX: Final = 200
# Delivering a page takes about this long for each subscriber; meanwhile the next page fills.
_PAGE_A_SUBSCRIBER_S: Final = 5e-6
_GATHER_S_MIN: Final = 5e-4
_GATHER_S_MAX: Final = 5e-3
_PARK_MS: Final = 60_000
_ORIGIN: Final = "a feed"

Callback = Callable[[], None]


class FeedPage:
    """Entries of one stream above the cursor `after`: their stored texts, joined by `,`."""

    __slots__ = ("after", "count", "entries", "first_id", "forms", "generation", "last_id", "stream")

    def __init__(self, stream: str, after: int, entries: Entries, generation: str) -> None:
        self.stream = stream
        self.generation = generation
        self.after = after
        self.entries = entries.json()
        self.count = entries.count
        self.first_id = entries.first
        self.last_id = entries.last
        self.forms: dict[Hashable, bytes] = {}

    def cached(self, key: Hashable, make: "Callable[[FeedPage], bytes]") -> bytes:
        """The page in the form `key`, made once for all subscribers of the page."""
        form = self.forms.get(key)
        if form is None:
            form = self.forms[key] = make(self)
        return form


class FeedGap:
    """Entries above the cursor `after` are not there to be read, as `gap` says. `generation` is that in which
    reading goes on, empty where there is no stream.
    """

    __slots__ = ("after", "first_available", "gap", "generation", "stream")

    def __init__(self, stream: str, gap: EngineGap, generation: str) -> None:
        self.stream = stream
        self.generation = generation
        self.after = gap.requested
        self.first_available = gap.first_available
        self.gap = gap

    @property
    def last_id(self) -> int:
        """The cursor after the gap."""
        return self.gap.goes_on_after


class FeedEnd:
    """The stream is closed, and its reader has all of it: nothing follows."""

    __slots__ = ("end", "stream")

    def __init__(self, end: StreamEnd) -> None:
        self.stream = end.stream
        self.end = end

    def members(self) -> dict[str, str]:
        """As JSON has it."""
        end = self.end
        return {
            "last_id": ids.format(end.last_id),
            "closed_at": ids.rfc3339(end.closed_at_ms),
            "reason": end.reason,
        }


FeedItem = FeedPage | FeedGap | FeedEnd
Found = Callable[[FeedItem | EngineError | None], None]


class _RingSlot:
    """A page or a gap in a feed's ring, and how many subscribers still need it."""

    __slots__ = ("item", "size", "takers")

    def __init__(self, item: FeedPage | FeedGap, takers: int) -> None:
        self.item = item
        self.takers = takers
        self.size = len(item.entries) if isinstance(item, FeedPage) else 0


class Feeds:
    """All feeds of one engine, on its event loop, of one tenant. `close` before the engine closes."""

    def __init__(self, engine: CommandEngine) -> None:
        self.engine = engine
        self._feeds: dict[str, StreamFeed] = {}
        self._due: deque[Subscriber] = deque()
        self._waking = False

    def __len__(self) -> int:
        """The number of followed streams."""
        return len(self._feeds)

    async def subscribe(
        self,
        stream: str,
        after: int | Cursor,
        last: int | None = None,
        bytes_max: int | None = None,
        generation: str = "",
        reader: str | None = None,
    ) -> "Subscriber":
        """Follow `stream` after the ID `after`, which is of this `generation` (empty for the one that there
        is now), or from its end with `Cursor.LATEST`.

        `last` overrides `after`: begin that many entries back, or fewer if they exceed `bytes_max`.
        `reader` is the caller that reads what is archived, None for one that does not.
        The subscriber's `cursor` is an ID from the start: reconnecting with it misses nothing.
        Raises EngineError.
        """
        commands: list[Command] = [XRead(streams=[(stream, Cursor.LATEST)], count=1, known=[""])]
        if last:
            commands.append(
                XRange(
                    stream=stream,
                    start=ids.ID_MIN,
                    end=ids.ID_MAX,
                    count=last,
                    reverse=True,
                    bytes_max=bytes_max,
                )
            )
        replies = await ask(self.engine, Call(commands, How.TOGETHER, origin=_ORIGIN))
        if (refused := _refusal_in(replies)) is not None:
            raise refused
        looked, *newest = replies
        assert isinstance(looked, StreamsRead), "XREAD replies with StreamsRead"
        latest, (there,) = looked.cursors[0][1], looked.generations
        cursor = after if isinstance(after, int) and not last else latest
        for reply in newest:
            if isinstance(reply, Entries) and reply.count:
                cursor = reply.last - 1
        feed = self._feeds.get(stream)
        if feed is None:
            feed = StreamFeed(self, stream, latest, there, looked.closed[0] if looked.closed else None)
            if feed.end is None:
                self._feeds[stream] = feed
        return Subscriber(feed, cursor, there if last or not generation else generation, reader)

    def close(self, failure: EngineError | None = None) -> None:
        """Stop reading. Subscribers fail with `failure`, by default `draining`."""
        for feed in list(self._feeds.values()):
            feed.stop(failure or errors.closing())

    def forget(self, feed: "StreamFeed") -> None:
        """Remove a feed that has failed or has no subscribers."""
        if self._feeds.get(feed.stream) is feed:
            del self._feeds[feed.stream]

    def wake(self, subscribers: Iterable["Subscriber"]) -> None:
        """Call what they wait with, a limited number in each turn of the event loop."""
        self._due.extend(subscribers)
        if self._due and not self._waking:
            self._waking = True
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(len(self._due), _WOKEN_A_TURN_MAX)):
            callback = self._due.popleft().callback
            try:
                if callback is not None:
                    callback()
            except Exception as error:  # noqa: BLE001 - the other subscribers are woken
                context = {"message": "a subscriber's callback failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        self._waking = bool(self._due)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)


class StreamFeed:
    """The only reader of a stream: it has read up to `position` of this `generation`. `edition` counts
    changes.
    """

    def __init__(
        self, feeds: Feeds, stream: str, position: int, generation: str, end: StreamEnd | None
    ) -> None:
        self.engine = feeds.engine
        self.stream = stream
        self.position = position
        self.generation = generation
        # The generation before, and what ended it, where all who followed it have these in common.
        self._ended: tuple[str, EngineGap] | None = None
        self.edition = 0
        self.failure: Exception | None = None
        # Set once the stream is closed, and read to its end.
        self.end = None if end is None else FeedEnd(end)
        self._feeds = feeds
        self._subscribers: set[Subscriber] = set()
        # Subscribers at the position, or reaching it through the ring. Pages are kept for these only.
        self._joined = 0
        self._ring: dict[int, _RingSlot] = {}
        # The page that ends at the position, while it is in the ring.
        self.newest: FeedPage | None = None
        self._ring_bytes = 0
        self._waiting: dict[Subscriber, None] = {}
        # One that is closed already has nothing to wait for: its followers get its end before anything else.
        self._reading = None if end is not None else asyncio.ensure_future(self._read())

    # --- the reader -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                read = XRead(
                    streams=[(self.stream, self.position)],
                    count=PAGE_COUNT_MAX,
                    block_ms=_PARK_MS,
                    bytes_max=PAGE_BYTES_MAX,
                    known=[self.generation],
                    until=Until.CLOSED,
                )
                reply = await ask_one(self.engine, Call((read,), waits=ReadHandle(), origin=_ORIGIN))
                assert isinstance(reply, StreamsRead), "XREAD replies with StreamsRead"
                if reply.streams:
                    self._give_out(reply.streams[0].entries, reply.streams[0].gap, reply.generations[0])
                if reply.closed:
                    self.end, self.newest = FeedEnd(reply.closed[0]), None
                    # Who comes later looks anew: the name may have another stream by then.
                    self._feeds.forget(self)
                    self._changed()
                    return
                if reply.streams:
                    gather_s = min(self._joined * _PAGE_A_SUBSCRIBER_S, _GATHER_S_MAX)
                    await asyncio.sleep(gather_s if gather_s >= _GATHER_S_MIN else 0)
        except Exception as error:  # noqa: BLE001 - reported to the subscribers
            self.stop(error)

    def _give_out(self, entries: Entries, gap: EngineGap | None, generation: str) -> None:
        if gap is not None and gap.next is not None:
            self._turn(gap, gap.next, generation)
            return
        after, self.generation = self.position, generation
        if entries.first <= after:
            # After a failover, below IDs that were lost. Kept pages may hold these: all look for themselves.
            self._part_all()
        if gap is not None:
            missed = FeedGap(self.stream, gap, generation)
            self._keep(after, missed)
            after = missed.last_id
        page = FeedPage(self.stream, after, entries, generation)
        self._keep(after, page)
        # Longer ones are for subscribers that ask how much there is room for.
        self.newest = page if self._ring and len(page.entries) <= FREE_BYTES else None
        self.position = entries.last
        self._changed()

    def _keep(self, after: int, item: FeedPage | FeedGap) -> None:
        if not self._joined:
            return
        kept = self._ring[after] = _RingSlot(item, self._joined)
        self._ring_bytes += kept.size
        while len(self._ring) > _RING_PAGES_MAX or (
            self._ring_bytes > _RING_BYTES_MAX and len(self._ring) > 1
        ):
            self._drop(next(iter(self._ring)))

    def _drop(self, after: int) -> None:
        dropped = self._ring.pop(after)
        self._ring_bytes -= dropped.size
        if dropped.item is self.newest:
            self.newest = None

    def _changed(self) -> None:
        self.edition += 1
        waiting, self._waiting = self._waiting, {}
        self._feeds.wake(waiting)

    def _turn(self, gap: EngineGap, position: int, generation: str) -> None:
        """The position is not of the stream that has the name now: each subscriber gets a gap of its own."""
        self._ended = (self.generation, gap) if self.generation != generation and position == 0 else None
        self.position, self.generation = position, generation
        self._part_all()
        self._changed()

    def end_of(self, generation: str) -> EngineGap | None:
        """What ended the generation before, where that is this one."""
        if self._ended is None or self._ended[0] != generation:
            return None
        return self._ended[1]

    def stop(self, failure: Exception) -> None:
        """Stop reading. Subscribers fail with `failure` after they have taken the pages kept for them."""
        self._cease()
        self.failure, self.newest = failure, None
        self._feeds.forget(self)
        self._changed()

    # --- its subscribers ------------------------------------------------------------------------------------

    def enter(self, subscriber: "Subscriber") -> None:
        """Add a subscriber."""
        self._subscribers.add(subscriber)

    def leave(self, subscriber: "Subscriber") -> None:
        """Remove a subscriber; the last one ends the feed."""
        self.part(subscriber)
        self._subscribers.discard(subscriber)
        self._waiting.pop(subscriber, None)
        if not self._subscribers:
            self._cease()
            self._feeds.forget(self)

    def _cease(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def join(self, subscriber: "Subscriber") -> None:
        """Keep pages for a subscriber, which is at the position."""
        subscriber.joined = True
        self._joined += 1

    def part(self, subscriber: "Subscriber") -> None:
        """Keep no more pages for a subscriber."""
        if not subscriber.joined:
            return
        subscriber.joined = False
        self._joined -= 1
        for after in [after for after in self._ring if after >= subscriber.cursor]:
            self._taken(after)

    def _part_all(self) -> None:
        self._ring.clear()
        self.newest = None
        self._ring_bytes = self._joined = 0
        for subscriber in self._subscribers:
            subscriber.joined = False

    def at(self, cursor: int) -> FeedPage | FeedGap | None:
        """The kept page or gap that begins at the cursor."""
        kept = self._ring.get(cursor)
        return None if kept is None else kept.item

    def take_item(self, subscriber: "Subscriber", item: FeedPage | FeedGap) -> None:
        """Move a joined subscriber past the item that begins at its cursor."""
        self._taken(subscriber.cursor)
        subscriber.cursor, subscriber.generation = item.last_id, item.generation

    def _taken(self, after: int) -> None:
        kept = self._ring[after]
        kept.takers -= 1
        if kept.takers <= 0:
            self._drop(after)

    def wait(self, subscriber: "Subscriber") -> None:
        """Call the subscriber's callback once, on the next change."""
        self._waiting[subscriber] = None


class Subscriber:
    """One subscriber of a stream: it has taken everything up to `cursor`. `close` it.

    `generation` is that of the stream that the cursor is of, empty while there is none. It is read by
    `call_when_ready`, `take` and `look_behind`.
    """

    __slots__ = ("_dry_edition", "_feed", "_has_end", "_reader", "callback", "cursor", "generation", "joined")

    def __init__(self, feed: StreamFeed, cursor: int, generation: str, reader: str | None = None) -> None:
        self.cursor = cursor
        self.generation = generation
        # Called by the feed, while the subscriber waits.
        self.callback: Callback | None = None
        # Whether the feed keeps pages for it. Set by the feed.
        self.joined = False
        # The feed's edition at which no entry was found between the cursor and the position.
        self._dry_edition = -1
        # Whether it was given the end.
        self._has_end = False
        self._feed = feed
        self._reader = None if reader is None else Reader(reader, follows=True)
        feed.enter(self)

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._feed.stream

    @property
    def caught_up(self) -> bool:
        """Whether there is nothing after the cursor at present."""
        return self.ends_at(self.cursor)

    def ends_at(self, cursor: int) -> bool:
        """Whether there is nothing after this place, which is its cursor or will be."""
        feed = self._feed
        return self._dry_edition == feed.edition or (cursor == feed.position and self._is_of_feed)

    @property
    def _is_of_feed(self) -> bool:
        """Whether the cursor is of the stream that the feed reads."""
        return not self.generation or self.generation == self._feed.generation

    def ready(self) -> bool:
        """Whether `take` or `look_behind` may find something, or raise."""
        return self._feed.failure is not None or not self.caught_up or self._comes_to_end

    @property
    def _comes_to_end(self) -> bool:
        return self._feed.end is not None and not self._has_end

    def take(self, count_max: int, bytes_max: int) -> FeedItem | None:
        """Take the kept page or gap that begins at the cursor, and move the cursor past it; or the end, once.

        None if none is kept, or if it exceeds `count_max` (at least 1) or `bytes_max`: use `look_behind`,
        unless `caught_up`. Raises EngineError: `draining` at shutdown, `storage_failed`.
        """
        assert count_max > 0, "a subscriber without room does not take"
        feed = self._feed
        if not self._is_of_feed and (gap := feed.end_of(self.generation)) is not None:
            return self._pass(FeedGap(feed.stream, replace(gap, requested=self.cursor), feed.generation))
        if self.joined:
            item = feed.at(self.cursor)
            if item is not None and _fits(item, count_max, bytes_max):
                feed.take_item(self, item)
                return item
            if self.cursor != feed.position:
                feed.part(self)
        if self._comes_to_end and self.caught_up:
            self._has_end = True
            return self._feed.end
        if feed.failure is not None:
            raise _again(feed.failure)
        self._join()
        return None

    def _join(self) -> None:
        """Have pages kept from now on, if the cursor is at the feed's position."""
        if not self.joined and self.cursor == self._feed.position and self._is_of_feed:
            self.generation = self._feed.generation
            self._feed.join(self)

    def _pass(self, gap: FeedGap) -> FeedGap:
        """Go on where the gap says."""
        self._feed.part(self)
        self.cursor, self.generation, self._dry_edition = gap.last_id, gap.generation, -1
        return gap

    def call_when_ready(self, callback: Callback) -> None:
        """Call `callback` once, from the event loop, when there may be entries; immediately if there are.

        Replaces an earlier callback. There may be no entries when it is called.
        """
        if self.ready():
            asyncio.get_running_loop().call_soon(callback)
            return
        self._join()
        self.callback = callback
        self._feed.wait(self)

    def live_page(self) -> FeedPage | None:
        """The newest page, if it begins at the cursor, as it does for subscribers that are up to date."""
        feed = self._feed
        page = feed.newest
        if page is None or page.after != self.cursor or not self.joined:
            return None
        return page

    def take_live(self, page: FeedPage) -> None:
        """Take this live page. The callback that was called for it is called for the next one."""
        self._feed.take_item(self, page)
        self._feed.wait(self)

    def close(self) -> None:
        """Stop following; closing again has no effect."""
        self.callback = None
        self._feed.leave(self)

    def look_behind(self, count_max: int, bytes_max: int, done: Found) -> None:
        """Read entries between the cursor and the feed's position, and call `done` with what was found and is
        taken with that: None if there is nothing, and the cursor may have moved. A page has at least one
        entry, and otherwise at most `count_max` entries and `bytes_max` bytes. Closed, it has taken nothing.
        """
        feed, cursor, position, edition = self._feed, self.cursor, self._feed.position, self._feed.edition
        between = XRange(
            stream=feed.stream,
            start=min(cursor, position) + 1,
            end=position,
            count=count_max,
            bytes_max=bytes_max,
            up_to_damage=True,
        )
        look = XRead(streams=[(feed.stream, cursor)], count=1, known=[self.generation])
        call = Call(
            [look, between, DescribeEdges(stream=feed.stream)],
            How.TOGETHER,
            origin=_ORIGIN,
            reader=self._reader,
        )

        def answer(replies: Replies) -> None:
            done(_refusal_in(replies) or self._found(cursor, position, edition, replies))

        replies = feed.engine.send(call, answer)
        if replies is not None:
            answer(replies)

    def _found(self, cursor: int, position: int, edition: int, replies: Replies) -> FeedItem | None:
        looked, entries, edges = replies
        assert isinstance(looked, StreamsRead), "XREAD replies with StreamsRead"
        feed, (generation,) = self._feed, looked.generations
        gap = looked.streams[0].gap if looked.streams else None
        if gap is not None:
            return self._pass(FeedGap(feed.stream, gap, generation))
        self.generation = generation
        if isinstance(entries, Entries) and entries.count:
            page = FeedPage(feed.stream, cursor, entries, generation)
            self.cursor = page.last_id
            return page
        self._pass_over(position, edition, edges if isinstance(edges, Edges) else None)
        return None

    def _pass_over(self, position: int, edition: int, edges: Edges | None) -> None:
        """Handle that there are no entries between the cursor and the position."""
        if edges is None or edges.last_id < position or self.cursor > position or not self._is_of_feed:
            # The feed is about to learn that its stream is another one or ends below; or the cursor is beyond
            # it, since entries were lost in a failover.
            self._dry_edition = edition
        elif 0 < self.cursor < edges.removed_upto:
            # The gap is reported with the next entry, when its end is known.
            self._dry_edition = edition
        else:
            self.cursor = position


def _refusal_in(replies: Replies) -> EngineError | None:
    if isinstance(replies, Refused):
        return replies.error
    return next((one for one in replies if isinstance(one, EngineError)), None)


def _fits(item: FeedPage | FeedGap, count_max: int, bytes_max: int) -> bool:
    if isinstance(item, FeedGap):
        return True
    return item.count <= count_max and (item.count == 1 or len(item.entries) <= bytes_max)


def _again(failure: Exception) -> Exception:
    """A copy of the failure, so that each subscriber raises an exception with its own traceback."""
    if isinstance(failure, EngineError):
        return EngineError(failure.code, failure.redis, failure.detail, **failure.members)
    return RuntimeError(f"the feed has failed: {failure!r}")
