"""What a connection reads for its subscriptions: pages of followed streams, and entries of groups.

Knows: feeds, consumer leases, whether the socket accepts data. Must never know: frames, credit, bytes.

    Subscribe ─► feeds ─► FetchPage, or a live page at once ─► the session ─► frames
    AcquireLease ─► ReadGroup, once the socket has no unsent data ─► the session ─► frames, or given back
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from app.doors.websocket.effects import (
    AcquireLease,
    Effect,
    Effects,
    FetchPage,
    ReadGroup,
    Rest,
    Subscribe,
)
from app.doors.websocket.hub import Hub, OpenConnection
from app.doors.websocket.session import Session
from app.doors.websocket.socket_link import SocketLink, UnsentDeliveries
from app.doors.websocket.subscription_table import StreamSubscription
from app.errors import RefusalError
from app.http.cursors import Position
from app.http.requests import Request
from app.live.fair_queue import Flow
from app.live.feeds import FeedEnd, FeedItem, FeedPage, Subscriber
from app.live.leases import ConsumerLease
from app.metrics.counters import Counters
from app.tenants import Tenant
from engine import EngineError
from engine.errors import ENTRIES_DAMAGED, OF_BACKEND
from engine.replies import GroupRead, Reply


class Failing(Protocol):
    """What an exception ends."""

    @property
    def failed(self) -> bool: ...
    def fail(self, error: Exception) -> None: ...


class ReadingConnection(OpenConnection, Protocol):
    """The connection that something is read for."""

    failed: bool
    tenant: Tenant
    # The frames of its caller.
    flow: Flow
    # Whether effects are performed.
    is_performing: bool

    @property
    def link(self) -> SocketLink: ...
    @property
    def session(self) -> Session: ...
    @property
    def request(self) -> Request: ...
    @property
    def unsent(self) -> UnsentDeliveries: ...
    def perform(self, effects: Effects) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def refusal(self, error: Exception) -> RefusalError: ...


P = ParamSpec("P")
F = TypeVar("F", bound=Failing)


def event(handle: Callable[Concatenate[F, P], None]) -> Callable[Concatenate[F, P], None]:
    """Guard an entry point: an exception ends the connection, which then ignores events."""

    @wraps(handle)
    def guarded(one: F, /, *arguments: P.args, **named: P.kwargs) -> None:
        if one.failed:
            return
        try:
            handle(one, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - logged, counted; closes the connection
            one.fail(error)

    return guarded


class _Reads:
    """What both kinds need of the connection."""

    def __init__(self, connection: ReadingConnection) -> None:
        self._connection = connection
        self._link = connection.link
        self._session = connection.session

    @property
    def failed(self) -> bool:
        """Whether an exception has ended the connection."""
        return self._connection.failed

    def fail(self, error: Exception) -> None:
        """Close the connection because of an exception."""
        self._connection.fail(error)


class FollowedStreams(_Reads):
    """The followed streams of one connection, by the keys of its subscriptions."""

    def __init__(self, connection: ReadingConnection) -> None:
        super().__init__(connection)
        self._output = connection.request.gateway.limits.budgets.output
        self._counters = connection.request.gateway.reports.counters
        self._tails: dict[int, dict[str, Subscriber]] = {}
        # Subscriptions that wait for their turn or their feeds, and what withdraws each of them.
        self._opening: dict[int, Callable[[], object]] = {}
        # Effects that wait until the socket accepts data.
        self._later: list[FetchPage] = []
        # One read of history at a time: several would all finish before the first one pauses the socket.
        self._looking_behind = False

    @property
    def keys(self) -> set[int]:
        """The subscriptions that are open, or wait to be."""
        return {*self._opening, *self._tails}

    def leave(self, key: int) -> bool:
        """End a subscription. Returns whether it was open."""
        withdraw = self._opening.pop(key, None)
        if withdraw is not None:
            withdraw()
        tails = self._tails.pop(key, None)
        if tails is not None:
            _close_all(tails)
        return tails is not None

    def abandon(self) -> None:
        """End all of them: the connection has failed."""
        for tails in self._tails.values():
            _close_all(tails)
        self._later.clear()
        self._opening.clear()
        self._tails.clear()

    def open(self, effect: Subscribe) -> None:
        """Follow streams, once fewer of the caller's subscriptions are being opened."""
        flow = self._connection.flow
        self._opening[effect.key] = flow.open(lambda: self._connection.spawn(self._opened(effect, flow)))

    async def _opened(self, effect: Subscribe, flow: Flow) -> None:
        try:
            await self._follow(effect)
        finally:
            flow.end_opening()

    async def _follow(self, effect: Subscribe) -> None:
        tails: dict[str, Subscriber] = {}
        try:
            for stream, (after, generation) in effect.streams.items():
                if effect.key not in self._opening:
                    break
                tails[stream] = await self._connection.tenant.feeds.subscribe(
                    stream, after, effect.last, generation=generation, reader=self._connection.request.caller
                )
        except EngineError as error:
            _close_all(tails)
            refusal = self._connection.refusal(error)
            self._connection.perform(self._session.tails.on_subscribe_refused(effect.key, refusal))
            return
        if effect.key not in self._opening:
            _close_all(tails)
            return
        del self._opening[effect.key]
        self._tails[effect.key] = tails
        positions = {stream: (_position(tail), not tail.ready()) for stream, tail in tails.items()}
        self._connection.perform(self._session.tails.on_subscribed(effect.key, positions))
        for stream, (_, caught_up) in positions.items():
            if caught_up:
                self._wait_for(effect.key, stream)

    def _wait_for(self, key: int, stream: str) -> None:
        tail, subscription = self._tails.get(key, {}).get(stream), self._session.tails.tail(key)
        if tail is not None and subscription is not None:
            live = LiveTail(self, self._link, subscription, tail, self._counters)
            tail.call_when_ready(live.ready)

    @event
    def look(self, key: int, tail: Subscriber) -> None:
        """Handle that a stream may have entries, or has ended."""
        if self._tails.get(key, {}).get(tail.stream) is not tail:
            return
        if tail.ready():
            self._connection.perform(self._session.tails.on_ready(key, tail.stream))
        else:
            self._wait_for(key, tail.stream)

    def fetch(self, effect: FetchPage) -> None:
        """Take the next page, once the socket accepts data."""
        tail = self._tails.get(effect.key, {}).get(effect.stream)
        if tail is None:
            return
        if self._link.paused:
            self._later.append(effect)
            return
        item = tail.take_next(effect.count_max, self._output.piece_bytes(effect.bytes_max))
        if item is None:
            self._fetch_behind(effect, tail)
        else:
            self._took(effect, tail, item)

    def _fetch_behind(self, effect: FetchPage, tail: Subscriber) -> None:
        if self._looking_behind:
            self._later.append(effect)
        else:
            self._looking_behind = True
            self._connection.spawn(self._fetch_history(effect, tail))

    async def _fetch_history(self, effect: FetchPage, tail: Subscriber) -> None:
        try:
            item = await tail.look(effect.count_max, self._output.piece_bytes(effect.bytes_max))
        except EngineError as error:
            if error.code == ENTRIES_DAMAGED:
                refusal = self._connection.refusal(error)
                self._connection.perform(self._session.tails.on_damage(effect.key, refusal))
            elif error.code in OF_BACKEND:
                self._follow_later(effect, tail, alone=error.code != "backend_unavailable")
            else:
                raise
        else:
            # The next page of this subscription waits for its turn.
            self._took(effect, tail, item)
        finally:
            self._looking_behind = False
        self.fetch_again()

    def _follow_later(self, effect: FetchPage, tail: Subscriber, *, alone: bool) -> None:
        """Follow the stream anew once the backend can be read, as a client would that connects again."""
        tail.close()
        if self._tails.get(effect.key, {}).pop(effect.stream, None) is not None:
            self._connection.spawn(self._follow_again(effect.key, effect.stream, _position(tail)))
            self._connection.perform(self._session.tails.on_away(effect.key, alone=alone))

    async def _follow_again(self, key: int, stream: str, position: Position) -> None:
        found: Subscriber | None = None
        while found is None and key in self._tails:
            await asyncio.sleep(_rest_s())
            try:
                found = await self._connection.tenant.feeds.subscribe(
                    stream,
                    position.id,
                    generation=position.generation,
                    reader=self._connection.request.caller,
                )
            except EngineError as error:
                if error.code not in OF_BACKEND:
                    raise
        if found is not None and key in self._tails:
            self._tails[key][stream] = found
            self._connection.perform(self._session.tails.on_ready(key, stream))
        elif found is not None:
            found.close()

    def fetch_again(self) -> None:
        """Perform the effects that waited for the socket or for another read."""
        later: list[Effect] = [*self._later]
        self._later.clear()
        self._connection.perform(later)

    def _took(self, effect: FetchPage, tail: Subscriber, item: FeedItem | None) -> None:
        if isinstance(item, FeedPage):
            self._counters.deliver("websocket", item.count)
        caught_up = not tail.ready()
        self._connection.perform(
            self._session.tails.on_page(effect.key, item, _position(tail), caught_up=caught_up)
        )
        if isinstance(item, FeedEnd):
            tail.close()
            self._tails.get(effect.key, {}).pop(effect.stream, None)
        elif caught_up:
            self._wait_for(effect.key, effect.stream)


class LiveTail:
    """A followed stream of which everything was sent: its new pages are written as they come.

    There may be thousands of a stream: what a page takes of each is looked up before.
    """

    __slots__ = ("_counters", "_link", "_streams", "_subscription", "_tail")

    def __init__(
        self,
        streams: FollowedStreams,
        link: SocketLink,
        subscription: StreamSubscription,
        tail: Subscriber,
        counters: Counters,
    ) -> None:
        self._streams = streams
        self._link = link
        self._subscription = subscription
        self._tail = tail
        self._counters = counters

    def ready(self) -> None:
        """Write a page, if subscription and socket have nothing else to do; else leave it to the session."""
        try:
            if not self._write():
                self._streams.look(self._subscription.key, self._tail)
        except Exception as error:  # noqa: BLE001 - logged, counted; closes the connection
            self._streams.fail(error)

    def _write(self) -> bool:
        tail, subscription = self._tail, self._subscription
        page = tail.live_page()
        if page is None or not subscription.is_live or not subscription.has_live_room(page.count):
            return False
        if not self._link.write_alone(subscription.frame(page)):
            return False
        tail.take_live(page)
        subscription.credit.spend(page.count)
        self._counters.deliver("websocket", page.count)
        return True


class GroupReads(_Reads):
    """The consumers of one connection, by the keys of its subscriptions."""

    def __init__(self, connection: ReadingConnection, hub: Hub) -> None:
        super().__init__(connection)
        self._hub = hub
        self._leases: dict[int, ConsumerLease] = {}
        # Reads that wait until the socket accepts data. Of those, the number of reads that were not given
        # entries just before: they go first.
        self._writable: list[Callable[[], None]] = []
        self._first = 0

    @property
    def keys(self) -> set[int]:
        """The subscriptions that have a lease."""
        return {*self._leases}

    def stop(self) -> None:
        """End the reads, at once: what is published next goes to others."""
        for lease in self._leases.values():
            lease.stop()

    def go_on(self) -> None:
        """Begin the reads that waited: the socket accepts data, or has ended."""
        writable, self._writable, self._first = self._writable, [], 0
        for go_on in writable:
            go_on()

    def leave(self, key: int) -> None:
        """End a consumer."""
        lease = self._leases.pop(key, None)
        if lease is not None:
            if not self._leases:
                self._hub.working.pop(self._connection, None)
            lease.close(self._connection.tenant.engine)
            self.go_on()

    def rest(self, effect: Rest) -> None:
        """Leave the backend alone for a moment."""
        asyncio.get_running_loop().call_later(_rest_s(), self._rested, effect.key)

    @event
    def _rested(self, key: int) -> None:
        self._connection.perform(self._session.consumers.on_rested(key))

    def acquire(self, effect: AcquireLease) -> None:
        """Lease a consumer."""
        lease = self._connection.tenant.leases.acquire(effect.consumer, partial(self._replaced, effect.key))
        self._leases[effect.key] = lease
        self._hub.working[self._connection] = None
        self._hub.look_now_and_then()
        if lease.alone.done():
            self._owned(effect.key, lease.alone)
        else:
            lease.alone.add_done_callback(partial(self._owned, effect.key))

    @event
    def _owned(self, key: int, alone: asyncio.Future[EngineError | None]) -> None:
        refusal = alone.result()
        found = None if refusal is None else self._connection.refusal(refusal)
        self._connection.perform(self._session.consumers.on_lease(key, found))

    @event
    def _replaced(self, key: int) -> None:
        """Another reader has taken the consumer over."""
        self._connection.perform(self._session.revoke(key, "replaced"))

    def read(self, effect: ReadGroup) -> None:
        """Read as a consumer, once the socket accepts data."""
        lease = self._leases[effect.key]
        lease.begin_operation()
        self._begin(effect, lease)

    def _begin(self, effect: ReadGroup, lease: ConsumerLease) -> None:
        done = partial(self._delivered, effect, lease)
        if self._link.paused and not lease.is_stopped:
            at = len(self._writable) if effect.going_on else self._first
            self._writable.insert(at, partial(self._begin, effect, lease))
            self._first += not effect.going_on
        else:
            lease.read_group(self._connection.tenant.engine, effect.command, done, going_on=effect.going_on)

    def _delivered(
        self, effect: ReadGroup, lease: ConsumerLease, reply: Reply | EngineError | RefusalError
    ) -> None:
        effects: Effects | None = None
        try:
            if not self.failed:
                found = self._connection.refusal(reply) if isinstance(reply, Exception) else reply
                effects = self._session.consumers.on_delivery(effect.key, found, room=not self._link.full)
        except Exception as error:  # noqa: BLE001 - logged, counted; closes the connection
            self.fail(error)
        if effects is None:
            # The connection has failed.
            for one in reply.streams if isinstance(reply, GroupRead) else ():
                lease.give_back(self._connection.tenant.engine, [entry.id for entry in one.entries])
        else:
            if isinstance(reply, GroupRead):
                self._connection.request.note_reply(effect.command, reply)
            self._perform(effects)
        lease.end_operation()

    @event
    def _perform(self, effects: Effects) -> None:
        self._connection.perform(effects)


def _rest_s() -> float:
    """How long to leave a backend alone that could not be read: not all come again at once."""
    return random.uniform(0.5, 1.5)  # noqa: S311 - jitter


def _position(tail: Subscriber) -> Position:
    return Position(tail.cursor, tail.generation)


def _close_all(tails: Mapping[str, Subscriber]) -> None:
    for tail in tails.values():
        tail.close()
