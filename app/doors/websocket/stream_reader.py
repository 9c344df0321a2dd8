"""Following streams: subscriptions that read every entry, from a cursor on.

Knows: which page comes next, what credit allows. Must never know: sockets, clocks, the running engine.

    subscribe(frame) ─► Subscribe ─► on_subscribed(cursors) ─► SendFrame, then
    on_ready(stream) ─► FetchPage ─► on_page(page)          ─► SendFrame …

At most one FetchPage of a subscription is in progress, for no more entries than there is credit for.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import UNSET

from app.auth import Action
from app.doors.websocket import frames
from app.doors.websocket.effects import Effects, FetchPage, SendFrame, Subscribe
from app.doors.websocket.subscription_table import (
    PAGE_BYTES_MAX,
    StreamSubscription,
    SubscriptionTable,
    caught_up_frame,
    closed_frame,
    gap_frame,
)
from app.errors import RefusalError, invalid
from app.http.cursors import Place, Position
from app.http.entries.entry_pages import GapReport
from app.live.feeds import FeedEnd, FeedGap, FeedItem, FeedPage
from engine.commands import Cursor

BATCH_MAX_DEFAULT: Final = 1_000


class StreamReader:
    """The followed streams of one session."""

    def __init__(self, table: SubscriptionTable) -> None:
        self._table = table

    def subscribe(self, frame: frames.SubscribeFrame) -> Effects:
        """Handle the frame `subscribe`."""
        self._table.check_new(frame.sub, len(frame.streams))
        streams: dict[str, Place] = {}
        for text, after in frame.streams.items():
            name = frames.name(text, "stream name")
            self._table.require(Action.READ, name)
            streams[name] = frames.cursor(after)
        last = None if frame.last is UNSET else frame.last
        if last is not None and any(place.id is not Cursor.LATEST for place in streams.values()):
            raise invalid("/last", "it goes with `$` alone")
        if last is not None and last > self._table.limits.batch_max:
            raise invalid("/last", f"it is at most {self._table.limits.batch_max}")
        tail = StreamSubscription(
            self._table.new_key(),
            frame,
            self._table.batch_max(frame.batch_max, BATCH_MAX_DEFAULT),
            in_full=frames.shows_generations(frame, streams.values()),
        )
        self._table.add(tail)
        return [Subscribe(tail.key, streams, last)]

    def on_subscribed(self, key: int, positions: Mapping[str, tuple[Position, bool]]) -> Effects:
        """Handle Subscribe: for each stream the position, and whether there are no entries after it."""
        tail = self._table.by_key.get(key)
        if not isinstance(tail, StreamSubscription):
            return []
        places = {stream: at.text(in_full=tail.in_full) for stream, (at, _) in positions.items()}
        effects: Effects = [SendFrame(frames.ok(tail.ref, {"next": places}))]
        for stream, (position, caught_up) in positions.items():
            if caught_up:
                effects += self._caught_up(tail, stream, position)
            else:
                tail.ready.append(stream)
        return effects + self.go_on(tail)

    def on_subscribe_refused(self, key: int, refusal: RefusalError) -> Effects:
        """Handle that streams cannot be followed."""
        tail = self._table.by_key.get(key)
        if not isinstance(tail, StreamSubscription):
            return []
        return [*self._table.end(tail), self._table.error(tail.ref, refusal)]

    def on_ready(self, key: int, stream: str) -> Effects:
        """Handle that a followed stream has entries."""
        tail = self._table.by_key.get(key)
        if not isinstance(tail, StreamSubscription) or self._table.draining:
            return []
        if stream not in tail.ready and stream != tail.taking:
            tail.ready.append(stream)
        return self.go_on(tail)

    def tail(self, key: int) -> StreamSubscription | None:
        """The subscription that follows streams with this key."""
        found = self._table.by_key.get(key)
        return found if isinstance(found, StreamSubscription) else None

    def go_on(self, tail: StreamSubscription) -> Effects:
        """Take the next page, if there is one and credit for it."""
        effects = self._take_next(tail)
        is_asking = tail.taking or tail.ready or tail.behind
        tail.is_live = not (is_asking or tail.ended or self._table.draining)
        return effects

    def _take_next(self, tail: StreamSubscription) -> Effects:
        if tail.taking is not None or self._table.draining:
            return []
        if not tail.credit.room:
            tail.behind.update(tail.ready)
            return self._table.pause(tail)
        if not tail.ready:
            return []
        tail.paused = False
        tail.taking = tail.ready.pop(0)
        return [FetchPage(tail.key, tail.taking, tail.credit.room, PAGE_BYTES_MAX)]

    def on_page(self, key: int, item: FeedItem | None, position: Position, *, caught_up: bool) -> Effects:
        """Handle FetchPage: a page, or None, and where the reader stands after it."""
        tail = self._table.by_key.get(key)
        if not isinstance(tail, StreamSubscription):
            return []
        assert tail.taking is not None, "a page was requested"
        stream, tail.taking = tail.taking, None
        if isinstance(item, FeedEnd):
            return self._send_end(tail, item)
        # Not before: to follow a stream says nothing of whether its entries can be read.
        effects = [*self._table.note_back(tail), *self._send_page(tail, stream, item)]
        if not caught_up:
            tail.ready.append(stream)
        elif stream in tail.behind:
            effects += self._caught_up(tail, stream, position)
        return effects + self.go_on(tail)

    def on_damage(self, key: int, refusal: RefusalError) -> Effects:
        """Handle a FetchPage that begins where entries cannot be read."""
        return self._table.revoke_damaged(key, refusal)

    def on_away(self, key: int, *, alone: bool = False) -> Effects:
        """Handle a FetchPage that found that the backend cannot be read, or this stream `alone`. `on_ready`
        follows when it can.
        """
        tail = self._table.by_key.get(key)
        if not isinstance(tail, StreamSubscription):
            return []
        tail.taking = None
        return [*self._table.note_away(tail, alone=alone), *self.go_on(tail)]

    def _send_end(self, tail: StreamSubscription, item: FeedEnd) -> Effects:
        """The end of one stream, and with the last one that of the subscription."""
        tail.open.discard(item.stream)
        tail.behind.discard(item.stream)
        effects: Effects = [SendFrame(closed_frame(tail.name, item))]
        if tail.open:
            return effects + self.go_on(tail)
        return [*effects, *self._table.end(tail), *self._table.close_if_idle()]

    def _send_page(self, tail: StreamSubscription, stream: str, item: FeedPage | FeedGap | None) -> Effects:
        if item is None:
            return []
        if isinstance(item, FeedGap):
            generation = item.generation if tail.in_full else ""
            report = GapReport(item.gap, generation, tail.in_full)
            return [SendFrame(gap_frame(tail.name, stream, report))]
        tail.credit.spend(item.count)
        return [SendFrame(tail.frame(item))]

    def _caught_up(self, tail: StreamSubscription, stream: str, position: Position) -> Effects:
        tail.behind.discard(stream)
        return [SendFrame(caught_up_frame(tail.name, stream, position.text(in_full=tail.in_full)))]
