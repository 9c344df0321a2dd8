"""Live entries: one reader a stream, however many follow it, and history that joins it without a seam.

Knows: pages and who has still to take them, cursors, whom to wake and how many at a time.
Must never know: sockets, frames, what a follower does with a page.

    engine ──one parked XREAD a stream──► Feed: the newest pages ──the very same bytes──► Tail, Tail, Tail …
      └────────────── XRANGE of what lies between a tail and its feed ──────────────────► a Tail behind

A tail is its cursor and nothing else. At its feed's position it waits; where the next page begins it takes
that page; anywhere below it reads what lies between, up to the feed's position and no further. So what is
old and what is new join without a gap and without a duplicate, and nobody sees what the engine holds back.

Where the engine's rules leave no choice: a missing stream is an empty one; one that was deleted and made
again goes on for a tail with the first entry above its cursor, as XREAD has it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from engine import EngineError, EngineProtocol, errors, ids
from engine.commands import Command, Cursor, DescribeEdges, XRange, XRead
from engine.replies import Edges, Entries, Reply, StreamsRead
from engine.replies import Gap as EngineGap

PAGE_COUNT_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 256 << 10
# What a feed keeps for tails that have not taken it yet. One that is further behind reads the engine.
_RING_PAGES_MAX: Final = 64
_RING_BYTES_MAX: Final = 1 << 20
# Waking 10 000 at once would take 0.1 s.
_WOKEN_A_TURN_MAX: Final = 200
# While a page is on its way to its tails, which takes about that long, the next one gathers.
_PAGE_A_TAIL_S: Final = 5e-6
_GATHER_S_MIN: Final = 5e-4
_GATHER_S_MAX: Final = 5e-3
_PARK_MS: Final = 60_000

Callback = Callable[[], None]


class FeedPage:
    """Entries of one stream above the cursor `after`: their stored texts, joined by `,`."""

    __slots__ = ("_forms", "after", "count", "entries", "first_id", "last_id", "stream")

    def __init__(self, stream: str, after: int, found: Entries) -> None:
        self.stream = stream
        self.after = after
        self.entries = found.json()
        self.count = found.count
        self.first_id = found.first
        self.last_id = found.last
        self._forms: dict[Hashable, bytes] = {}

    def cached(self, key: Hashable, make: "Callable[[FeedPage], bytes]") -> bytes:
        """The page in the form `key`, made once for all tails that share the page."""
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = make(self)
        return form


class FeedGap:
    """Entries above the cursor `after` were removed before they were read; `lost` is their number or None."""

    __slots__ = ("after", "first_available", "lost", "stream")

    def __init__(self, stream: str, gap: EngineGap) -> None:
        self.stream = stream
        self.after = gap.requested
        self.first_available = gap.first_available
        self.lost = gap.lost

    @property
    def last_id(self) -> int:
        """The cursor behind the gap."""
        return self.first_available - 1


class _RingSlot:
    """A page or a gap in a feed's ring, and how many tails have still to take it."""

    __slots__ = ("item", "size", "takers")

    def __init__(self, item: FeedPage | FeedGap, takers: int) -> None:
        self.item = item
        self.takers = takers
        self.size = len(item.entries) if isinstance(item, FeedPage) else 0


class Feeds:
    """All feeds of one engine, on its event loop. `close` when the engine is about to go."""

    def __init__(self, engine: EngineProtocol) -> None:
        self.engine = engine
        self._feeds: dict[str, StreamFeed] = {}
        self._due: deque[Callback] = deque()
        self._waking = False

    def __len__(self) -> int:
        """How many streams are followed."""
        return len(self._feeds)

    async def tail(
        self, stream: str, after: int | Cursor, last: int | None = None, bytes_max: int | None = None
    ) -> "Subscriber":
        """Follow `stream` from behind `after`, an ID or `Cursor.LATEST`; with `last` from so many entries
        back (fewer where they have more than `bytes_max`), whatever `after` is.

        The tail's `cursor` is an ID from the start: reconnecting with it misses nothing. Raises EngineError.
        """
        commands: list[Command] = [XRead(streams=[(stream, Cursor.LATEST)], count=1)]
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
        looked, *newest = await _turn(self.engine, commands)
        assert isinstance(looked, StreamsRead), "that is what XREAD answers"
        latest = looked.cursors[0][1]
        cursor = after if isinstance(after, int) and not last else latest
        for found in newest:
            if isinstance(found, Entries) and found.count:
                cursor = found.last - 1
        feed = self._feeds.get(stream)
        if feed is None:
            feed = self._feeds[stream] = StreamFeed(self, stream, latest)
        return Subscriber(feed, cursor)

    def close(self, failure: EngineError | None = None) -> None:
        """Stop reading, and tell all tails why: `draining` if nothing else is said."""
        for feed in list(self._feeds.values()):
            feed.stop(failure or errors.closing())

    def forget(self, feed: "StreamFeed") -> None:
        """A feed without tails, or one that failed, is no longer anybody's."""
        if self._feeds.get(feed.stream) is feed:
            del self._feeds[feed.stream]

    def wake(self, callbacks: Iterable[Callback]) -> None:
        """Call them, a few a turn of the loop: others have their turns between."""
        self._due.extend(callbacks)
        if self._due and not self._waking:
            self._waking = True
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(len(self._due), _WOKEN_A_TURN_MAX)):
            callback = self._due.popleft()
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - whoever it is, the others are woken
                told = {"message": "a follower's callback failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)
        self._waking = bool(self._due)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)


class StreamFeed:
    """The one reader of a stream: everything up to `position` was read. `edition` counts what changed."""

    def __init__(self, feeds: Feeds, stream: str, position: int) -> None:
        self.engine = feeds.engine
        self.stream = stream
        self.position = position
        self.edition = 0
        self.failure: Exception | None = None
        self._feeds = feeds
        self._tails: set[Subscriber] = set()
        # Tails at the position, or on their way there through the ring: pages are kept for these alone.
        self._joined = 0
        self._ring: dict[int, _RingSlot] = {}
        self._ring_bytes = 0
        self._waiting: dict[Subscriber, Callback] = {}
        self._reading = asyncio.ensure_future(self._read())

    # --- the reader -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                found = await self.engine.execute(
                    XRead(
                        streams=[(self.stream, self.position)],
                        count=PAGE_COUNT_MAX,
                        block_ms=_PARK_MS,
                        bytes_max=PAGE_BYTES_MAX,
                    )
                )
                assert isinstance(found, StreamsRead), "that is what XREAD answers"
                if found.streams:
                    self._give_out(found.streams[0].entries, found.streams[0].gap)
                    gather_s = min(self._joined * _PAGE_A_TAIL_S, _GATHER_S_MAX)
                    await asyncio.sleep(gather_s if gather_s >= _GATHER_S_MIN else 0)
        except Exception as error:  # noqa: BLE001 - whatever it is, the tails are told, for nobody else is there
            self.stop(error)

    def _give_out(self, found: Entries, gap: EngineGap | None) -> None:
        after = self.position
        if gap is not None:
            missed = FeedGap(self.stream, gap)
            self._keep(after, missed)
            after = missed.last_id
        self._keep(after, FeedPage(self.stream, after, found))
        self.position = found.last
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
        self._ring_bytes -= self._ring.pop(after).size

    def _changed(self) -> None:
        self.edition += 1
        waiting, self._waiting = self._waiting, {}
        self._feeds.wake(waiting.values())

    def rewind(self, position: int) -> None:
        """Read from an earlier position: the stream was made again, or its last ID was set back, and entries
        may come that are new to a tail there.
        """
        self._reading.cancel()
        self.position = position
        self._ring.clear()
        self._ring_bytes = self._joined = 0
        for tail in self._tails:
            tail.joined = False
        self._reading = asyncio.ensure_future(self._read())
        self._changed()

    def stop(self, failure: Exception) -> None:
        """Read no more; the tails are told why, once they have taken what is there for them."""
        self._reading.cancel()
        self.failure = failure
        self._feeds.forget(self)
        self._changed()

    # --- its tails ------------------------------------------------------------------------------------------

    def enter(self, tail: "Subscriber") -> None:
        """A tail follows this feed."""
        self._tails.add(tail)

    def leave(self, tail: "Subscriber") -> None:
        """A tail follows no more; the last one ends the feed."""
        self.part(tail)
        self._tails.discard(tail)
        self._waiting.pop(tail, None)
        if not self._tails:
            self._reading.cancel()
            self._feeds.forget(self)

    def join(self, tail: "Subscriber") -> None:
        """A tail is at the position: from now on pages are kept until it has taken them."""
        tail.joined = True
        self._joined += 1

    def part(self, tail: "Subscriber") -> None:
        """A tail takes no more pages from here."""
        if not tail.joined:
            return
        tail.joined = False
        self._joined -= 1
        for after in [after for after in self._ring if after >= tail.cursor]:
            self._taken(after)

    def at(self, cursor: int) -> FeedPage | FeedGap | None:
        """What begins at the cursor."""
        kept = self._ring.get(cursor)
        return None if kept is None else kept.item

    def take(self, tail: "Subscriber", item: FeedPage | FeedGap) -> None:
        """A joined tail has the item that begins at its cursor, and moves on."""
        self._taken(tail.cursor)
        tail.cursor = item.last_id

    def _taken(self, after: int) -> None:
        kept = self._ring[after]
        kept.takers -= 1
        if kept.takers <= 0:
            self._drop(after)

    def wait(self, tail: "Subscriber", callback: Callback) -> None:
        """Call once, when something has changed."""
        self._waiting[tail] = callback

    def stop_waiting(self, tail: "Subscriber") -> None:
        """Call no more."""
        self._waiting.pop(tail, None)


class Subscriber:
    """One follower: everything up to `cursor` has been taken. `close` it.

    `next` waits; whoever has no task to wait in registers with `call_when_ready` and asks `take`.
    """

    __slots__ = ("_dry_edition", "_feed", "cursor", "joined")

    def __init__(self, feed: StreamFeed, cursor: int) -> None:
        self.cursor = cursor
        # Whether the feed keeps pages for it: the feed's to say.
        self.joined = False
        # The feed's edition at which nothing was found behind the cursor though it lies below the position.
        self._dry_edition = -1
        self._feed = feed
        feed.enter(self)

    @property
    def stream(self) -> str:
        """The name of what is followed."""
        return self._feed.stream

    @property
    def caught_up(self) -> bool:
        """Whether nothing lies behind the cursor at present."""
        feed = self._feed
        return self.cursor >= feed.position or self._dry_edition == feed.edition

    def ready(self) -> bool:
        """Whether `next` would answer, or raise, without waiting for new entries."""
        return self._feed.failure is not None or not self.caught_up

    def take(self, count_max: int, bytes_max: int) -> FeedPage | FeedGap | None:
        """The shared page, or the gap, that begins at the cursor, which moves behind it. None if there is
        none at hand, or it has more than so many entries (at least one) or bytes: then `next` has it.
        """
        assert count_max > 0, "who has no room takes nothing"
        feed = self._feed
        if self.joined:
            item = feed.at(self.cursor)
            if item is not None and _fits(item, count_max, bytes_max):
                feed.take(self, item)
                return item
            if self.cursor != feed.position:
                feed.part(self)
        self._join()
        return None

    def _join(self) -> None:
        """At the feed's position pages are kept for it from now on."""
        if not self.joined and self.cursor == self._feed.position:
            self._feed.join(self)

    async def next(self, count_max: int, bytes_max: int) -> FeedPage | FeedGap:
        """What comes behind the cursor, which moves behind it; waits for it. A page has at least one entry,
        and else at most so many entries and bytes.

        Raises EngineError: `draining` at the end, `storage_failed`. Cancelled it has taken nothing.
        """
        while True:
            item = await self.look(count_max, bytes_max)
            if item is not None:
                return item
            if not self.ready():
                await self._change()

    async def look(self, count_max: int, bytes_max: int) -> FeedPage | FeedGap | None:
        """The same for who waits in a way of its own (`call_when_ready`): None where nothing is there yet, or
        where only the cursor has moved.
        """
        item = self.take(count_max, bytes_max)
        if item is None and self._feed.failure is not None:
            raise _again(self._feed.failure)
        if item is None and not self.caught_up:
            return await self._look_behind(count_max, bytes_max)
        return item

    def call_when_ready(self, callback: Callback) -> None:
        """Call once, from the event loop, when there may be something to take; at once if there is already.
        It replaces an earlier callback. A call may be for nothing.
        """
        if self.ready():
            asyncio.get_running_loop().call_soon(callback)
            return
        self._join()
        self._feed.wait(self, callback)

    def take_live(self, count_max: int, bytes_max: int, callback: Callback) -> FeedPage | None:
        """The shared page at the cursor, if that is all there is, with `callback` registered for what comes
        next: the short way for those who wait at the end. None, with nothing done, for everything else.
        """
        assert count_max > 0, "who has no room takes nothing"
        feed, cursor = self._feed, self.cursor
        if not self.joined or feed.failure is not None:
            return None
        item = feed.at(cursor)
        if not isinstance(item, FeedPage) or item.last_id != feed.position:
            return None
        if not _fits(item, count_max, bytes_max):
            return None
        feed.take(self, item)
        feed.wait(self, callback)
        return item

    def close(self) -> None:
        """Follow no more; closing again does nothing."""
        self._feed.leave(self)

    async def _change(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._feed.wait(self, lambda: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            self._feed.stop_waiting(self)

    async def _look_behind(self, count_max: int, bytes_max: int) -> FeedPage | FeedGap | None:
        """What lies between the cursor and the feed's position, or nothing, and then the cursor may move."""
        feed, cursor, position, edition = self._feed, self.cursor, self._feed.position, self._feed.edition
        between = XRange(
            stream=feed.stream, start=cursor + 1, end=position, count=count_max, bytes_max=bytes_max
        )
        look = XRead(streams=[(feed.stream, cursor)], count=1)
        looked, found, edges = await _turn(feed.engine, [look, between, DescribeEdges(stream=feed.stream)])
        assert isinstance(looked, StreamsRead), "that is what XREAD answers"
        gap = looked.streams[0].gap if looked.streams else None
        if gap is not None:
            missed = FeedGap(feed.stream, gap)
            self.cursor = missed.last_id
            return missed
        if isinstance(found, Entries) and found.count:
            page = FeedPage(feed.stream, cursor, found)
            self.cursor = page.last_id
            return page
        self._pass_over(position, edition, edges if isinstance(edges, Edges) else None)
        return None

    def _pass_over(self, position: int, edition: int, edges: Edges | None) -> None:
        """Nothing was found below the position."""
        feed = self._feed
        if edition == feed.edition and (edges is None or edges.last_id < position):
            # The next entry may be one below the position, which the feed would never see.
            feed.rewind(self.cursor)
        elif edges is not None and 0 < self.cursor < edges.removed_upto:
            # What was removed is told with the first entry that comes: then it is known where to go on.
            self._dry_edition = edition
        elif edges is not None and edges.last_id >= position:
            self.cursor = position


async def _turn(engine: EngineProtocol, commands: Sequence[Command]) -> list[Reply]:
    replies: list[Reply] = []
    for reply in await engine.transaction(commands):
        if isinstance(reply, EngineError):
            raise reply
        replies.append(reply)
    return replies


def _fits(item: FeedPage | FeedGap, count_max: int, bytes_max: int) -> bool:
    if isinstance(item, FeedGap):
        return True
    return item.count <= count_max and (item.count == 1 or len(item.entries) <= bytes_max)


def _again(failure: Exception) -> Exception:
    """The failure, for one of many that it is raised in: each has a trace of its own."""
    if isinstance(failure, EngineError):
        return EngineError(failure.code, failure.redis, failure.detail, **failure.members)
    return RuntimeError(f"the feed has failed: {failure!r}")
