"""Following streams: a subscription that reads every entry, from a cursor on.

Knows: what a follower is sent, what credit allows. Must never know: sockets, clocks, which stream is next.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import UNSET

from app.auth import Action, Principal, Resource
from app.doors.websocket import frames
from app.doors.websocket.subscription_table import (
    PAGE_BYTES_MAX,
    Subscription,
    SubscriptionTable,
    closed_frame,
    gap_frame,
)
from app.errors import invalid, to_refusal
from app.http.cursors import Place, Position
from app.http.entries.entry_pages import GapReport
from app.live import readers
from app.live.consumer import Credit
from app.live.feeds import FeedGap, FeedItem, FeedPage, Subscriber
from app.live.readers import Room, StreamPump
from engine import EngineError
from engine.commands.types import Cursor
from engine.errors import ENTRIES_DAMAGED, OF_BACKEND

BATCH_MAX_DEFAULT: Final = 1_000


def subscribe(table: SubscriptionTable, frame: frames.SubscribeFrame) -> None:
    """Handle the frame `subscribe`. Raises RefusalError."""
    table.check_new(frame.sub, len(frame.streams))
    streams: dict[str, Place] = {}
    for text, after in frame.streams.items():
        name = frames.name(text, "stream name")
        table.require(Action.READ, name)
        streams[name] = frames.cursor(after)
    last = None if frame.last is UNSET else frame.last
    if last is not None and any(place.id is not Cursor.LATEST for place in streams.values()):
        raise invalid("/last", "it goes with `$` alone")
    if last is not None and last > table.limits.batch_max:
        raise invalid("/last", f"it is at most {table.limits.batch_max}")
    StreamSubscription(table, frame, streams, last)


class StreamSubscription(Subscription):
    """Followed streams, as a StreamSink. With `in_full` cursors have generations."""

    __slots__ = ("_link", "_note_delivered", "_ref", "_withdraw", "in_full", "pump", "streams")

    def __init__(
        self,
        table: SubscriptionTable,
        frame: frames.SubscribeFrame,
        streams: Mapping[str, Place],
        last: int | None,
    ) -> None:
        batch_max = table.batch_max(frame.batch_max, BATCH_MAX_DEFAULT)
        super().__init__(table, frame.sub, Credit(None if frame.credit is UNSET else frame.credit, batch_max))
        self.in_full = frames.shows_generations(frame, streams.values())
        self.streams = tuple(streams)
        self.pump: StreamPump | None = None
        self._ref = frame.ref
        self._link = table.host.link
        self._note_delivered = table.host.note_delivered
        table.by_name[self.name] = self
        self._withdraw: Callable[[], object] = table.host.open(lambda: self._open(streams, last))

    def may_go_on(self, principal: Principal) -> bool:
        """Whether the client may read all of them."""
        return all(principal.may(Action.READ, Resource(stream)) for stream in self.streams)

    def close(self) -> None:
        """Stop following."""
        self._withdraw()
        self.stop()

    async def _open(self, streams: Mapping[str, Place], last: int | None) -> None:
        table, tails = self.table, list[Subscriber]()
        try:
            for stream, (after, generation) in streams.items():
                if self.ended:
                    break
                tails.append(await self._follow(stream, after, last, generation))
        except EngineError as error:
            self._close(tails)
            if not self.ended:
                table.end(self)
                table.refuse(self._ref, to_refusal(error))
            return
        if self.ended:
            self._close(tails)
            return
        self.pump = StreamPump(tails, self, table.host.gate)
        following = {tail.stream: self._cursor(tail) for tail in tails}
        table.host.send(frames.ok(self._ref, {"next": following}))
        self.pump.begin()

    async def _follow(
        self, stream: str, after: int | Cursor, last: int | None, generation: str
    ) -> Subscriber:
        host = self.table.host
        return await host.tenant.feeds.subscribe(
            stream, after, last, generation=generation, reader=host.caller
        )

    def _close(self, tails: list[Subscriber]) -> None:
        for tail in tails:
            tail.close()

    def _cursor(self, tail: Subscriber) -> str:
        return Position(tail.cursor, tail.generation).text(in_full=self.in_full)

    # ---- the sink of its pump

    def room(self) -> Room | None:
        """What there is credit for, once the socket accepts data."""
        assert self.pump is not None, "it asks"
        if self.table.draining:
            return None
        if not self.credit.room:
            self.pump.fall_behind()
            self.pause()
            return None
        if self.wait_for_socket():
            return None
        return Room(self.credit.room, self.table.host.output.piece_bytes(PAGE_BYTES_MAX))

    def write(self, place: int, item: FeedItem | None) -> None:
        """Send a page, a gap or an end."""
        # Not before: to follow a stream says nothing of whether its entries can be read.
        self.note_back()
        if isinstance(item, FeedPage):
            self.paused = False
            self.credit.spend(item.count)
            self.table.host.deliver(self._frame(item), self, item.count)
        elif isinstance(item, FeedGap):
            report = GapReport(item.gap, item.generation if self.in_full else "", self.in_full)
            self.table.send(gap_frame(self.name, item.stream, report))
        elif item is not None:
            self.table.send(closed_frame(self.name, item))

    def write_live(self, place: int, page: FeedPage) -> bool:
        """Send a page, if there is credit for it at once, and more: `paused` follows the last."""
        credit, count = self.credit, page.count
        has_credit = count <= credit.batch_max and (credit.left is None or count < credit.left)
        if not has_credit or self.table.draining or not self._link.write_alone(self._frame(page)):
            return False
        credit.spend(count)
        self._note_delivered(count)
        return True

    def _frame(self, page: FeedPage) -> bytes:
        """The frame for a page, made once for all subscriptions of this name."""
        form = frames.SUBPROTOCOL, self.name, self.in_full
        made = page.forms.get(form)
        if made is None:
            following = Position(page.last_id, page.generation).text(in_full=self.in_full)
            made = page.forms[form] = frames.entries(self.name, page.stream, page.entries, following)
        return made

    def caught_up(self, place: int) -> None:
        """Say that every entry of a stream was sent."""
        assert self.pump is not None, "it says so"
        tail = self.pump.tails[place]
        self.table.send(frames.CaughtUpFrame(sub=self.name, stream=tail.stream, next=self._cursor(tail)))

    def waits(self, place: int, why: EngineError) -> bool:
        """Follow the stream anew once the backend can be read, as a client would that connects again."""
        self.note_away(alone=why.code != "backend_unavailable")
        self.table.host.spawn(self._follow_again(place))
        return True

    async def _follow_again(self, place: int) -> None:
        pump = self.pump
        assert pump is not None, "it has lost a stream"
        tail, found = pump.tails[place], None
        while found is None and not pump.is_over:
            await readers.rest()
            try:
                found = await self._follow(tail.stream, tail.cursor, None, tail.generation)
            except EngineError as error:
                if error.code not in OF_BACKEND:
                    raise
        if found is not None:
            pump.follow(place, found)

    def end(self, why: Exception | None) -> None:
        """All streams are closed and read, or for this reason."""
        if why is None:
            self.table.finish(self)
        elif isinstance(why, EngineError) and why.code == ENTRIES_DAMAGED:
            self.table.revoke(self, why.code, to_refusal(why))
        else:
            self.table.host.fail(why)
