"""A WebSocket connection: performs the effects of its session and passes the results back.

Knows: the engine, feeds, whether the socket accepts data, consumer leases.
Must never know: what a frame means, credit.

Nothing is read for a socket with unsent data. Entries that were read but not sent are given back; so are
entries that arrive when the socket's buffer is full.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol

from msgspec import UNSET

from app.auth import ANONYMOUS, UNAUTHENTICATED
from app.auth.policy import unauthenticated
from app.errors import RefusalError
from app.gateway import Gateway
from app.http.middleware.request_id import as_refusal
from app.http.requests import Request
from app.live.feeds import FeedGap, FeedPage, Feeds, Subscriber
from app.live.in_flight import CHECK_S
from app.live.leases import ConsumerLease
from app.live.sessions import AccessEnd, OpenSession
from app.redis import executor
from app.websocket import frames
from app.websocket.effects import (
    AcquireLease,
    Authenticate,
    Close,
    Effect,
    Effects,
    FetchPage,
    ReadGroup,
    RunCommand,
    SendFrame,
    Submit,
    Subscribe,
    Unsubscribe,
)
from app.websocket.session import Session
from app.websocket.subscriptions import PAGE_BYTES_MAX
from engine import EngineError, EngineProtocol, errors
from engine.replies import GroupRead, Reply

# Unanswered frames after which the socket is not read until answers are sent.
_UNANSWERED_MAX: Final = 256
# Time to acknowledge after `goaway`; at most half of the time for a shutdown.
_GOAWAY_MS_MAX: Final = 2_000
# A client that shows no token within this time is disconnected.
_AUTH_S_MAX: Final = 10.0
# The reply to a command is held in memory until a slow client reads it.
_COMMAND_BYTES_MAX: Final = 1 << 20


P = ParamSpec("P")


class SocketLink(Protocol):
    """The socket, as `app.transport.websocket_connection` has it."""

    @property
    def paused(self) -> bool: ...
    @property
    def full(self) -> bool: ...
    @property
    def sent_bytes(self) -> int: ...
    def write_frame(self, data: bytes) -> int: ...
    def hold(self, *, held: bool) -> None: ...
    def close_with(self, code: int, reason: str) -> None: ...


class Hub:
    """All connections of a gateway, and which of them have consumers."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        # Dicts keep the order: the oldest connection is notified and checked first.
        self.open: dict[Connection, None] = {}
        self.working: dict[Connection, None] = {}
        self._looking: asyncio.TimerHandle | None = None
        gateway.on_drain.append(self.drain)
        gateway.on_restart.append(self.restart)

    def drain(self) -> None:
        """Notify every connection that the gateway stops."""
        after_ms = min(_GOAWAY_MS_MAX, self.gateway.settings.drain_s_max * 500)
        for push in list(self.open):
            push.drain(after_ms)

    def restart(self) -> None:
        """End every connection: its engine is replaced."""
        for push in list(self.open):
            push.fail(errors.restarting())

    def look_now_and_then(self) -> None:
        """Check entries in flight at intervals while there are consumers."""
        if self._looking is None and self.working:
            self._looking = asyncio.get_running_loop().call_later(CHECK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        for push in list(self.working):
            push.look()
        self.look_now_and_then()


def _event(
    handle: "Callable[Concatenate[Connection, P], None]",
) -> "Callable[Concatenate[Connection, P], None]":
    """Guard an entry point of a `Connection`: an exception ends the connection, which then ignores events."""

    @wraps(handle)
    def guarded(push: "Connection", /, *arguments: P.args, **named: P.kwargs) -> None:
        if push.failed:
            return
        try:
            handle(push, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - logged, counted; closes the connection
            push.fail(error)

    return guarded


class Connection:
    """One connection. Call `begin` once the socket is accepted; `closed` is done when it is gone.

    `failed`: an exception has ended it. Frames may be lost, so nothing is sent after that.
    """

    def __init__(self, hub: Hub, link: SocketLink, request: Request, session: Session) -> None:
        self._hub = hub
        self._link = link
        self._request = request
        self._session = session
        self._engine: EngineProtocol = request.engine
        self._feeds: Feeds = request.gateway.feeds
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.failed = False
        # Lists, not deques: they are short, and an empty deque takes 0.7 KB.
        self._effects: list[Effect] = []
        self._running = False
        self._tails: dict[int, Mapping[str, Subscriber]] = {}
        # Subscriptions that wait for their feeds.
        self._opening: set[int] = set()
        self._leases: dict[int, ConsumerLease] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Effects that wait until the socket accepts data.
        self._later: list[FetchPage] = []
        # One read of history at a time: several would all finish before the first one pauses the socket.
        self._looking_behind = False
        self._writable: list[Callable[[], None]] = []
        # Of those, the number of reads that were not given entries just before: they go first.
        self._first = 0
        # Deliveries that may be unsent: the socket's byte count at their end, and the effect.
        self._unsure: list[tuple[int, SendFrame]] = []
        self._unanswered = 0
        # While a Redis command runs, further messages wait in `_texts`.
        self._asking = False
        self._texts: list[bytes] = []
        self._beat: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        # Until the client has shown a token.
        self._unknown: asyncio.TimerHandle | None = None
        self._access: OpenSession | None = None

    # ---- events

    def begin(self, hello: frames.HelloFrame) -> None:
        """Send `hello`."""
        self._hub.open[self] = None
        if self._request.principal is UNAUTHENTICATED:
            self._unknown = self._loop.call_later(_AUTH_S_MAX, self._not_authenticated)
        else:
            self._enter()
        self._link.write_frame(frames.encode(hello))
        self._heartbeat(hello.heartbeat_ms / 1000, first=True)

    @_event
    def received(self, text: bytes) -> None:
        """Handle a text message."""
        if self._asking:
            self._texts.append(text)
        else:
            self._do(self._session.receive(text))

    @_event
    def received_binary(self) -> None:
        """Handle a binary message."""
        self._do(self._session.receive_binary())

    @_event
    def resumed(self) -> None:
        """Continue: the socket accepts data again."""
        self._wake_writers()
        self._take_again()

    @_event
    def drain(self, after_ms: int) -> None:
        """Send `goaway`: the gateway stops."""
        self._do(self._session.drain(after_ms))
        if self._end is None and not self.closed.done():
            self._end = self._loop.call_later(after_ms / 1000, self._drained)

    @_event
    def _drained(self) -> None:
        self._do(self._session.finish_drain())

    @_event
    def _not_authenticated(self) -> None:
        """Close: no token came in time."""
        missing = unauthenticated(f"no token came within {_AUTH_S_MAX:.0f} s", None)
        self._do(self._session.on_principal(UNSET, missing))

    def _enter(self) -> None:
        """Have the session end with its token."""
        principal = self._request.principal
        if self._access is not None:
            self._access.renew(principal)
        elif principal is not ANONYMOUS:
            self._access = self._hub.gateway.sessions.enter(principal, self._end_access, self._expiring)

    @_event
    def _end_access(self, end: AccessEnd) -> None:
        self._do(self._session.end_access(end))

    @_event
    def _expiring(self, after_ms: int) -> None:
        self._do(self._session.expiring(after_ms))

    @_event
    def look(self) -> None:
        """Check entries in flight."""
        self._do(self._session.consumers.tick())

    def lost(self, sent_bytes: int) -> None:
        """Release everything: the socket is gone. `sent_bytes` were written to it."""
        self._hub.open.pop(self, None)
        for timer in (self._beat, self._end, self._unknown):
            if timer is not None:
                timer.cancel()
        if self._access is not None:
            self._access.leave()
        unwritten = [(sent.key, sent.entry_ids) for end, sent in self._unsure if end > sent_bytes]
        self._unsure.clear()
        self._texts.clear()
        try:
            self._end_all(unwritten)
        finally:
            if not self.closed.done():
                self.closed.set_result(None)

    def _end_all(self, unwritten: Sequence[tuple[int, Sequence[int]]]) -> None:
        try:
            self._do(self._session.on_disconnect(unwritten))
        except Exception as error:  # noqa: BLE001 - logged and counted; the connection is gone in any case
            self.fail(error)
        # A failed session does not end its subscriptions itself.
        for key in {*self._opening, *self._tails, *self._leases}:
            self._leave(Unsubscribe(key))
        self._wake_writers()

    def _heartbeat(self, every_s: float, *, first: bool = False) -> None:
        self._beat = self._loop.call_later(every_s, self._heartbeat, every_s)
        if not first and not self._link.paused:
            self._link.write_frame(_HEARTBEAT)

    def _wake_writers(self) -> None:
        writable, self._writable, self._first = self._writable, [], 0
        for go_on in writable:
            go_on()

    # ---- effects

    def _do(self, effects: Effects) -> None:
        """Perform effects in order, and the effects that result from them."""
        self._effects.extend(effects)
        if self._running:
            return
        self._running = True
        try:
            while self._effects:
                effect = self._effects.pop(0)
                _PERFORM[type(effect)](self, effect)
        finally:
            self._running = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail(error)

    def _send(self, effect: SendFrame) -> None:
        end = self._link.write_frame(effect.data)
        if not self._link.paused:
            self._unsure.clear()
        elif effect.entry_ids:
            sent_bytes = self._link.sent_bytes
            while self._unsure and self._unsure[0][0] <= sent_bytes:
                self._unsure.pop(0)
            self._unsure.append((end, effect))

    def _submit(self, effect: Submit) -> None:
        self._unanswered += 1
        if self._unanswered == _UNANSWERED_MAX:
            self._hold()
        self._engine.submit(effect.commands, partial(self._submitted, effect.token), synced=effect.synced)

    @_event
    def _submitted(self, token: int, replies: Any) -> None:  # noqa: ANN401 - the engine's, passed on
        self._unanswered -= 1
        if self._unanswered == _UNANSWERED_MAX - 1:
            self._hold()
        self._do(self._session.on_replies(token, replies))

    def _hold(self) -> None:
        self._link.hold(held=self._asking or self._unanswered >= _UNANSWERED_MAX)

    def _close(self, effect: Close) -> None:
        self._link.close_with(effect.code, effect.reason)

    def fail(self, error: Exception) -> None:
        """Close the connection because of an exception; an unexpected one is logged."""
        refusal = as_refusal(error, self._request.request_id)
        if self.failed or refusal.code == "draining":
            # A draining connection closes by itself.
            return
        self.failed = True
        if refusal.code == "internal":
            self._hub.gateway.failed_conversations += 1
        for waiting in (self._effects, self._later, self._texts):
            waiting.clear()
        for tails in self._tails.values():
            _close_all(tails)
        self._opening.clear()
        self._tails.clear()
        self._link.close_with(refusal.kind.close or _INTERNAL_CLOSE, refusal.code)

    # ---- commands

    def _ask(self, effect: RunCommand) -> None:
        self._asking = True
        self._hold()
        self._spawn(self._asked(effect))

    async def _asked(self, effect: RunCommand) -> None:
        found: bytes | RefusalError
        try:
            found = await executor.run_unblocked(self._request, effect.command, _COMMAND_BYTES_MAX)
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
            found = as_refusal(error, self._request.request_id)
        self._go_on(self._session.on_command_result(effect.ref, found))

    def _authenticate(self, effect: Authenticate) -> None:
        self._asking = True
        self._hold()
        self._spawn(self._authenticated(effect))

    async def _authenticated(self, effect: Authenticate) -> None:
        try:
            principal = await self._hub.gateway.policy.identify(effect.token)
        except RefusalError as refusal:
            self._go_on(self._session.on_principal(effect.ref, refusal))
            return
        self._request.principal = principal
        if self._unknown is not None:
            self._unknown.cancel()
        self._enter()
        self._go_on(self._session.on_principal(effect.ref, principal))

    def _go_on(self, effects: Effects) -> None:
        """Perform effects, and then handle the messages that waited for them."""
        self._asking = False
        self._do(effects)
        while self._texts and not self._asking:
            self.received(self._texts.pop(0))
        self._hold()

    # ---- followed streams

    def _open(self, effect: Subscribe) -> None:
        self._opening.add(effect.key)
        self._spawn(self._opened(effect))

    async def _opened(self, effect: Subscribe) -> None:
        tails: dict[str, Subscriber] = {}
        try:
            for stream, after in effect.streams.items():
                tails[stream] = await self._feeds.subscribe(stream, after, effect.last)
        except EngineError as error:
            _close_all(tails)
            self._do(
                self._session.tails.on_subscribe_refused(
                    effect.key, as_refusal(error, self._request.request_id)
                )
            )
            return
        if effect.key not in self._opening:
            _close_all(tails)
            return
        self._opening.discard(effect.key)
        self._tails[effect.key] = tails
        cursors = {stream: (tail.cursor, not tail.ready()) for stream, tail in tails.items()}
        self._do(self._session.tails.on_subscribed(effect.key, cursors))
        for stream, (_, caught_up) in cursors.items():
            if caught_up:
                self._wait_for(effect.key, stream)

    def _wait_for(self, key: int, stream: str) -> None:
        tail = self._tails.get(key, {}).get(stream)
        if tail is not None:
            tail.call_when_ready(partial(self._ready, key, stream))

    @_event
    def _ready(self, key: int, stream: str) -> None:
        tail = self._tails.get(key, {}).get(stream)
        if tail is None or self._take_live(key, stream, tail):
            return
        if tail.ready():
            self._do(self._session.tails.on_ready(key, stream))
        else:
            self._wait_for(key, stream)

    def _take_live(self, key: int, stream: str, tail: Subscriber) -> bool:
        """Write a page at once if nothing else is to do for the subscription; whether that was so."""
        if self._running or self._link.paused or (room := self._session.tails.live_room(key)) < 1:
            return False
        page = tail.take_live(room, PAGE_BYTES_MAX, partial(self._ready, key, stream))
        if page is None:
            return False
        self._link.write_frame(self._session.tails.live(key, page))
        if self._unsure and not self._link.paused:
            self._unsure.clear()
        return True

    def _take(self, effect: FetchPage) -> None:
        tail = self._tails.get(effect.key, {}).get(effect.stream)
        if tail is None:
            return
        if self._link.paused:
            self._later.append(effect)
            return
        item = tail.take(effect.count_max, effect.bytes_max)
        if item is None:
            self._take_behind(effect, tail)
        else:
            self._took(effect, tail, item)

    def _take_behind(self, effect: FetchPage, tail: Subscriber) -> None:
        if self._looking_behind:
            self._later.append(effect)
        else:
            self._looking_behind = True
            self._spawn(self._take_history(effect, tail))

    async def _take_history(self, effect: FetchPage, tail: Subscriber) -> None:
        try:
            item = await tail.look(effect.count_max, effect.bytes_max)
            # The next page of this subscription waits for its turn.
            self._took(effect, tail, item)
        finally:
            self._looking_behind = False
        self._take_again()

    def _take_again(self) -> None:
        """Perform the effects that waited for the socket or for another read."""
        later: list[Effect] = [*self._later]
        self._later.clear()
        self._do(later)

    def _took(self, effect: FetchPage, tail: Subscriber, item: FeedPage | FeedGap | None) -> None:
        caught_up = not tail.ready()
        self._do(self._session.tails.on_page(effect.key, item, tail.cursor, caught_up=caught_up))
        if caught_up:
            self._wait_for(effect.key, effect.stream)

    # ---- consumers

    def _claim(self, effect: AcquireLease) -> None:
        lease = self._request.gateway.leases.acquire(effect.consumer, partial(self._replaced, effect.key))
        self._leases[effect.key] = lease
        self._hub.working[self] = None
        self._hub.look_now_and_then()
        if lease.alone.done():
            self._owned(effect.key)
        else:
            lease.alone.add_done_callback(lambda _: self._owned(effect.key))

    @_event
    def _owned(self, key: int) -> None:
        self._do(self._session.consumers.on_lease(key))

    @_event
    def _replaced(self, key: int) -> None:
        """Another reader has taken the consumer over."""
        self._do(self._session.revoke(key, "replaced"))

    def _read(self, effect: ReadGroup) -> None:
        lease = self._leases[effect.key]
        lease.begin()
        self._begin_read(effect, lease)

    def _begin_read(self, effect: ReadGroup, lease: ConsumerLease) -> None:
        done = partial(self._delivered, effect.key, lease)
        if lease.until.done():
            self._loop.call_soon(done, (GroupRead(()),))
        elif self._link.paused:
            at = len(self._writable) if effect.going_on else self._first
            self._writable.insert(at, partial(self._begin_read, effect, lease))
            self._first += not effect.going_on
        else:
            self._engine.read(effect.command, done, lease.until, going_on=effect.going_on)

    def _delivered(self, key: int, lease: ConsumerLease, replies: Sequence[Reply | EngineError]) -> None:
        (reply,) = replies
        effects: Effects | None = None
        try:
            if not self.failed:
                found = (
                    as_refusal(reply, self._request.request_id) if isinstance(reply, EngineError) else reply
                )
                effects = self._session.consumers.on_delivery(key, found, room=not self._link.full)
        except Exception as error:  # noqa: BLE001 - logged, counted; closes the connection
            self.fail(error)
        if effects is None:
            self._give_back(lease, reply)
        else:
            self._perform(effects)
        lease.end()

    @_event
    def _perform(self, effects: Effects) -> None:
        self._do(effects)

    def _give_back(self, lease: ConsumerLease, reply: Reply | EngineError) -> None:
        """Give back entries that arrived after the connection had failed."""
        given = reply.streams if isinstance(reply, GroupRead) else ()
        for one in given:
            unsent = [entry.id for entry in one.entries]
            self._engine.submit([lease.consumer.give_back(unsent)], lambda _: None)

    def _leave(self, effect: Unsubscribe) -> None:
        key = effect.key
        self._opening.discard(key)
        tails = self._tails.pop(key, None)
        lease = self._leases.pop(key, None)
        if tails is not None:
            _close_all(tails)
        elif lease is not None:
            if not self._leases:
                self._hub.working.pop(self, None)
            self._engine.submit([lease.consumer.leave()], lambda _: None)
            lease.leave()
            self._wake_writers()


_HEARTBEAT: Final = frames.encode(frames.HeartbeatFrame())
_INTERNAL_CLOSE: Final = 4000


def _close_all(tails: Mapping[str, Subscriber]) -> None:
    for tail in tails.values():
        tail.close()


_PERFORM: Final[Mapping[type[Effect], Callable[[Connection, Any], None]]] = {
    SendFrame: Connection._send,  # noqa: SLF001 - the table of its own methods
    Submit: Connection._submit,  # noqa: SLF001
    RunCommand: Connection._ask,  # noqa: SLF001
    Authenticate: Connection._authenticate,  # noqa: SLF001
    Subscribe: Connection._open,  # noqa: SLF001
    FetchPage: Connection._take,  # noqa: SLF001
    AcquireLease: Connection._claim,  # noqa: SLF001
    ReadGroup: Connection._read,  # noqa: SLF001
    Unsubscribe: Connection._leave,  # noqa: SLF001
    Close: Connection._close,  # noqa: SLF001
}
