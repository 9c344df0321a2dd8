"""Entries on their way to a reader that stays: one pump of streams, and one of a group, for all protocols.

Knows: what is next, when there is room, what comes before what, what is in flight, what goes back.
Must never know: sockets, protocols, how entries are written.

    feeds ─► page, gap, end ─► StreamPump ─► StreamSink: server-sent events, Durable Streams, WebSocket
    engine ─► XREADGROUP ────► GroupPump  ─► GroupSink:  server-sent events, WebSocket
                                  ▲      └──► one read at a time
                                  └── `go_on`: the sink has room again

A pump has no task. What it takes it writes in the same step, and it takes nothing while its sink is full: no
entry is between a cursor and its sink, so a pump may be stopped at any time. What a sink raises ends it.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from app.live.consumer import CHECK_S, Consumer, Taken
from app.live.feeds import FeedEnd, FeedItem, FeedPage, Subscriber
from app.live.leases import ConsumerLeases
from app.live.waiting import Outcome
from engine import Call, CommandEngine, EngineError, Refused, Replies, ids
from engine.commands.base import Command
from engine.commands.types import XReadGroup
from engine.errors import OF_BACKEND
from engine.replies import GroupRead, PendingList, StreamDeliveries

READ_WAIT_MS: Final = 60_000


def rest_s() -> float:
    """How long to leave a backend alone that could not be read: not all come again at once."""
    return random.uniform(0.5, 1.5)  # noqa: S311 - jitter


async def rest() -> None:
    """Leave it alone."""
    await asyncio.sleep(rest_s())


class Room(NamedTuple):
    """What a sink can take at once."""

    count_max: int
    bytes_max: int


class Gate:
    """Lets one pump of a connection read history at a time: several reads would all end before the first one
    fills the connection.
    """

    __slots__ = ("_waiting", "is_shut")

    def __init__(self) -> None:
        self.is_shut = False
        # A dict keeps the order.
        self._waiting: dict[StreamPump, None] = {}

    def wait(self, pump: "StreamPump") -> None:
        """Have the pump go on once the gate is open."""
        self._waiting[pump] = None

    def open(self) -> None:
        """Let the next ones try, in a cycle of their own."""
        self.is_shut = False
        waiting, self._waiting = self._waiting, {}
        for pump in waiting:
            asyncio.get_running_loop().call_soon(pump.go_on)


class StreamSink(Protocol):
    """What writes the entries of followed streams, by their places among these."""

    def room(self) -> Room | None:
        """How much it can take; None if nothing: it calls `go_on` when it can. Raises RefusalError."""
        ...

    def write(self, place: int, item: FeedItem | None) -> None:
        """Write what was taken of a stream, whose cursor is behind it; None: nothing was there."""
        ...

    def write_live(self, place: int, page: FeedPage) -> bool:
        """Write a page as it comes, where nothing waits before it; whether it did. It is taken after that."""
        ...

    def caught_up(self, place: int) -> None:
        """All that there was of a stream is written."""
        ...

    def waits(self, place: int, why: EngineError) -> bool:
        """The backend cannot be read. Whether the reader waits: then `follow` goes on with the stream."""
        ...

    def end(self, why: Exception | None) -> None:
        """Nothing follows: all streams are closed and read, or for this reason."""
        ...


class StreamPump:
    """The followed streams of one reader, in turns. It owns its `tails`: `stop` it, also behind its end."""

    __slots__ = ("_gate", "_has_begun", "_looking", "_ready", "_sink", "behind", "is_over", "open", "tails")

    def __init__(self, tails: list[Subscriber], sink: StreamSink, gate: Gate | None = None) -> None:
        self.tails = tails
        # Those that are not closed, or were not read to their end.
        self.open = set(range(len(tails)))
        # Those of which something is to be written before `caught_up`.
        self.behind = set(self.open)
        self.is_over = False
        self._sink = sink
        self._gate = gate or Gate()
        self._ready: list[int] = []
        self._looking = self._has_begun = False

    @property
    def is_idle(self) -> bool:
        """Whether it waits for what is new."""
        return not self._ready and not self._looking

    def begin(self) -> None:
        """Write what is there, and then what comes. Begun already, it does nothing."""
        if not self._has_begun:
            self._has_begun = True
            try:
                for place in range(len(self.tails)):
                    self._next(place)
            except Exception as error:  # noqa: BLE001 - the sink gets it
                self.end(error)
            self.go_on()

    def go_on(self) -> None:
        """Go on as far as there is something, and room."""
        try:
            while not self._looking and not self.is_over:
                room = self._sink.room()
                if room is None or not self._ready or not self._take(self._ready.pop(0), room):
                    return
        except Exception as error:  # noqa: BLE001 - the sink gets it
            self.end(error)

    def fall_behind(self) -> None:
        """What waits does so for its reader: `caught_up` follows it again."""
        self.behind.update(self._ready)

    def follow(self, place: int, tail: Subscriber) -> None:
        """Go on with a stream that could not be read."""
        if self.is_over:
            tail.close()
        else:
            self.tails[place] = tail
            self._ready.append(place)
            self.go_on()

    def _take(self, place: int, room: Room) -> bool:
        """Write what comes next of this stream. Returns False where it is read first: that may be answered in
        this step, but others have their turn behind it.
        """
        tail = self.tails[place]
        try:
            item = tail.take(room.count_max, room.bytes_max)
        except EngineError as error:
            self._fail(place, error)
            return True
        if item is not None or tail.caught_up:
            self._took(place, item)
            return True
        if self._gate.is_shut:
            self._ready.insert(0, place)
            self._gate.wait(self)
        else:
            self._looking = self._gate.is_shut = True
            tail.look_behind(room.count_max, room.bytes_max, partial(self._looked, place))
        return False

    def _looked(self, place: int, found: FeedItem | EngineError | None) -> None:
        self._looking = False
        # Those that waited, and other readers, have their turn between two pages of history.
        self._gate.open()
        if self.is_over:
            return
        try:
            if isinstance(found, EngineError):
                self._fail(place, found)
            else:
                self._took(place, found)
        except Exception as error:  # noqa: BLE001 - the sink gets it
            self.end(error)
        asyncio.get_running_loop().call_soon(self.go_on)

    def _took(self, place: int, item: FeedItem | None) -> None:
        if isinstance(item, FeedEnd):
            self.open.discard(place)
            self.behind.discard(place)
        self._sink.write(place, item)
        if not self.open:
            self.end()
        elif not isinstance(item, FeedEnd):
            self._next(place)

    def _fail(self, place: int, why: EngineError) -> None:
        self.tails[place].close()
        if why.code not in OF_BACKEND or not self._sink.waits(place, why):
            self.end(why)

    def _next(self, place: int) -> None:
        """Go on with this stream in its turn, or when there is something new."""
        if self.is_over:
            return
        tail = self.tails[place]
        if tail.ready():
            self._ready.append(place)
            return
        if place in self.behind:
            self.behind.discard(place)
            self._sink.caught_up(place)
        if not self.is_over:
            tail.call_when_ready(partial(self._changed, place))

    def _changed(self, place: int) -> None:
        """There may be something of a stream of which all was written."""
        tail = self.tails[place]
        try:
            page = None if self._ready or self._looking else tail.live_page()
            if page is None or not self._sink.write_live(place, page):
                self._next(place)
                self.go_on()
            elif not self.is_over:
                tail.take_live(page)
        except Exception as error:  # noqa: BLE001 - the sink gets it
            self.end(error)

    def end(self, why: Exception | None = None) -> None:
        """Write nothing more, and tell the sink."""
        if not self.is_over:
            self.stop()
            self._sink.end(why)

    def stop(self) -> None:
        """Write nothing more. May be called again."""
        self.is_over = True
        for tail in self.tails:
            tail.close()


class GroupSink(Protocol):
    """What writes the entries of a consumer."""

    @property
    def is_full(self) -> bool:
        """Whether nothing is to be read for it: it calls `go_on` when it can take something."""
        ...

    def declines(self, found: StreamDeliveries) -> bool:
        """Whether it takes none of what has come after all."""
        ...

    def write(self, taken: Taken, *, was_closed: bool) -> None:
        """Write what a read has brought. What does not leave goes back by `give_back`."""
        ...

    def lack_credit(self) -> None:
        """As many entries are in flight as may be. Raises RefusalError where the gateway stops."""
        ...

    def replaced(self) -> None:
        """Another reader has taken the consumer over; nothing follows."""
        ...

    def waits(self, why: EngineError) -> bool:
        """The backend cannot be read. Whether the reader waits until it can."""
        ...

    def end(self, why: Exception | None) -> None:
        """Nothing follows: the group is drained, or for this reason."""
        ...


class GroupPump:
    """The reads of one consumer, from its lease on: one at a time, or one look at what is in flight."""

    def __init__(
        self,
        leases: ConsumerLeases,
        engine: CommandEngine,
        consumer: Consumer,
        sink: GroupSink,
        note: Callable[[XReadGroup, GroupRead], None],
    ) -> None:
        self.consumer = consumer
        self.is_over = False
        # Whether the last read brought something new.
        self.going_on = False
        self._engine = engine
        self._sink = sink
        self._note = note
        # Until the lease is its own, and while something is under way.
        self._busy = True
        # Until the next look at what is in flight, and while the backend is left alone.
        self._looking: asyncio.TimerHandle | None = None
        self._resting: asyncio.TimerHandle | None = None
        self.lease = leases.acquire(consumer.key, self._replaced)
        self._forget = leases.follow(consumer.key.stream, self._settled)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._busy

    def begin(self) -> None:
        """Begin once the lease is its own."""
        if self.lease.alone.done():
            self._own(self.lease.alone)
        else:
            self.lease.alone.add_done_callback(self._own)

    def _own(self, alone: "asyncio.Future[EngineError | None]") -> None:
        self._busy = False
        if (refusal := alone.result()) is not None:
            self.end(refusal)
        self.go_on()

    def go_on(self) -> None:
        """Read where there is room, or look at what is in flight."""
        try:
            if self.is_over or self._busy or self._sink.is_full:
                return
            if self.consumer.is_unsure and self.consumer.history is None:
                self._find_unsent()
            elif self.consumer.credit.room:
                self._read()
            else:
                self._look()
        except Exception as error:  # noqa: BLE001 - the sink gets it
            self.end(error)

    def _read(self) -> None:
        command = self.consumer.next_read(READ_WAIT_MS)
        self._busy = True
        self.lease.read_group(
            self._engine, command, partial(self._delivered, command), going_on=self.going_on
        )

    def _delivered(self, command: XReadGroup, reply: Outcome) -> None:
        self._busy = self.going_on = False
        try:
            if isinstance(reply, Exception):
                self._fail(reply)
            else:
                assert isinstance(reply, GroupRead), "XREADGROUP replies with a GroupRead"
                self._take(command, reply)
        except Exception as error:  # noqa: BLE001 - the sink gets it
            self.end(error)
        finally:
            self.lease.end_operation()
        self.go_on()

    def _take(self, command: XReadGroup, reply: GroupRead) -> None:
        found = reply.streams[0] if reply.streams else None
        try:
            self._note(command, reply)
            if self.is_over or (found is not None and self._sink.declines(found)):
                self._decline(found)
                return
            was_closed = self.consumer.is_closed
            taken = self.consumer.take_reply(reply)
            self.going_on = taken.is_new
            self._sink.write(taken, was_closed=was_closed)
        except Exception:
            self._decline(found)
            raise
        if self.consumer.is_drained:
            self.end()

    def _decline(self, found: StreamDeliveries | None) -> None:
        """Give back what is not written. What was the consumer's before stays with it."""
        if found is not None and not found.history:
            self.give_back(self.consumer.decline(found))

    def give_back(self, entry_ids: Sequence[int]) -> None:
        """Return entries that were written and have not left."""
        self.consumer.release(entry_ids)
        if entry_ids:
            self.lease.give_back(self._engine, entry_ids)

    def _fail(self, why: Exception) -> None:
        if self.is_over:
            return
        if isinstance(why, EngineError) and why.code in OF_BACKEND and self._sink.waits(why):
            self.consumer.lose()
            self._busy = True
            self._resting = asyncio.get_running_loop().call_later(rest_s(), self._rested)
        else:
            self.end(why)

    def _rested(self) -> None:
        self._busy = False
        self.go_on()

    def _ask(self, command: Command, done: Callable[[Any], None]) -> None:
        """Run a command; nothing else is under way until it is answered."""
        self._busy = True

        def answer(replies: Replies) -> None:
            self._busy = False
            reply = replies.error if isinstance(replies, Refused) else replies[0]
            try:
                if self.is_over:
                    return
                if isinstance(reply, EngineError):
                    self._end_looking()
                    self._fail(reply)
                else:
                    done(reply)
            except Exception as error:  # noqa: BLE001 - the sink gets it
                self.end(error)

        replies = self._engine.send(Call((command,)), answer)
        if replies is not None:
            answer(replies)

    # ---- what a lost reply has delivered

    def _find_unsent(self, start: int = ids.ID_MIN) -> None:
        def found(reply: PendingList) -> None:
            unsent, following = self.consumer.unsent(reply)
            self._ask(self.consumer.key.give_back(unsent), partial(returned, following))

        def returned(following: int | None, _: object) -> None:
            if following is not None:
                self._find_unsent(following)
            else:
                self.consumer.is_unsure = False
                self.go_on()

        self._ask(self.consumer.find_unsent(start), found)

    # ---- what others have settled

    def _settled(self, entry_ids: Sequence[int]) -> None:
        """These entries of the stream may have been settled; none is any. Many such words are one look."""
        is_ours = not entry_ids or not self.consumer.in_flight.keys().isdisjoint(entry_ids)
        if self._looking is not None and is_ours:
            self._look_in(0)

    def _look_in(self, seconds: float) -> None:
        self._end_looking()
        self._looking = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._looking = None
        self.go_on()

    def _look(self) -> None:
        self.lease.lacks_credit = True
        self._sink.lack_credit()
        if not self.consumer.in_flight:
            return
        check = self.consumer.check()
        # What is settled from now on is looked at again.
        self._look_in(CHECK_S)

        def found(reply: PendingList) -> None:
            self.consumer.note_checked(check, reply)
            if self.consumer.credit.room:
                self._end_looking()
            if self._looking is None:
                self.go_on()

        self._ask(check.command, found)

    def _end_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    # ---- ends

    def _replaced(self) -> None:
        try:
            if not self.is_over:
                self._sink.replaced()
        except Exception as error:  # noqa: BLE001 - the sink gets it
            self.end(error)
        self.end()

    def end(self, why: Exception | None = None) -> None:
        """Read nothing more, and tell the sink."""
        if not self.is_over:
            self.stop()
            self._sink.end(why)

    def stop(self) -> None:
        """Read nothing more; what comes still goes back. The consumer is another's once it is closed."""
        self.is_over = True
        self._end_looking()
        if self._resting is not None:
            self._resting.cancel()
        self._forget()
        self.lease.stop()

    def close(self) -> None:
        """End the lease too, and the consumer's read."""
        self.stop()
        self.lease.close(self._engine)
