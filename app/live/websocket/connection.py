"""The pump between a socket and its conversation: does what the effects say, and reports what came of it.

Knows: the engine, tails of streams, whether the socket takes anything now, which consumers are taken.
Must never know: what a frame means, credit.

Nothing is read for a socket that has something waiting to leave; what was read and never left goes back. So
does what was asked for before, where much waits by the time it comes.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol

from app.errors import RefusalError
from app.gateway import Gateway
from app.http.calls import Call
from app.http.request_id import as_refusal
from app.live.feeds import FeedGap, FeedPage, Feeds, Subscriber
from app.live.in_flight import CHECK_S
from app.live.leases import ConsumerLease
from app.live.websocket import frames
from app.live.websocket.effects import (
    AcquireLease,
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
from app.live.websocket.session import Session
from app.live.websocket.subscriptions import PAGE_BYTES_MAX
from app.redis import executor
from engine import EngineError, EngineProtocol, errors
from engine.replies import GroupRead, Reply

# What a socket may have asked for without an answer before it is no longer listened to.
_UNANSWERED_MAX: Final = 256
# After `goaway` there is so long to acknowledge, and at most half of the time that a stop has.
_GOAWAY_MS_MAX: Final = 2_000
# A command's answer, as its only copy, waits for who reads slowly.
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
    """All conversations of a gateway, and which of them work as consumers."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        # Dicts for their order: who came first is first told, and looks first.
        self.open: dict[Connection, None] = {}
        self.working: dict[Connection, None] = {}
        self._looking: asyncio.TimerHandle | None = None
        gateway.on_drain.append(self.drain)
        gateway.on_restart.append(self.restart)

    def drain(self) -> None:
        """Tell every conversation that the gateway stops."""
        after_ms = min(_GOAWAY_MS_MAX, self.gateway.settings.drain_s_max * 500)
        for push in list(self.open):
            push.drain(after_ms)

    def restart(self) -> None:
        """End every conversation: the engine that it talks to is given up."""
        for push in list(self.open):
            push.fail(errors.restarting())

    def look_now_and_then(self) -> None:
        """As long as anybody works."""
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
        except Exception as error:  # noqa: BLE001 - logged, counted, and the end of the conversation
            push.fail(error)

    return guarded


class Connection:
    """One socket's pump. `begin` once it is accepted; `closed` when it is gone; `failed` when an exception
    has ended it: something may be lost by then, so nothing is sent behind that.
    """

    def __init__(self, hub: Hub, link: SocketLink, call: Call, session: Session) -> None:
        self._hub = hub
        self._link = link
        self._call = call
        self._session = session
        self._engine: EngineProtocol = call.engine
        self._feeds: Feeds = call.gateway.feeds
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.failed = False
        # Lists, though their heads are taken: they are short, and each empty deque takes 0.7 KB of a socket.
        self._effects: list[Effect] = []
        self._running = False
        self._tails: dict[int, Mapping[str, Subscriber]] = {}
        # Subscriptions whose streams are about to be followed.
        self._opening: set[int] = set()
        self._places: dict[int, ConsumerLease] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # What waits until the socket takes something again.
        self._later: list[FetchPage] = []
        # One page of history at a time: many would all be there before the first of them pauses the socket.
        self._looking_behind = False
        self._writable: list[Callable[[], None]] = []
        # So many of those go before who was just given something.
        self._first = 0
        # Deliveries that may not have left yet: where they end in the socket's bytes, for whom, what.
        self._unsure: list[tuple[int, SendFrame]] = []
        self._unanswered = 0
        # While a command runs what comes behind it waits.
        self._asking = False
        self._texts: list[bytes] = []
        self._beat: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None

    # ---- events

    def begin(self, hello: frames.HelloFrame) -> None:
        """Say hello."""
        self._hub.open[self] = None
        self._link.write_frame(frames.encode(hello))
        self._heartbeat(hello.heartbeat_ms / 1000, first=True)

    @_event
    def received(self, text: bytes) -> None:
        """A text message."""
        if self._asking:
            self._texts.append(text)
        else:
            self._do(self._session.receive(text))

    @_event
    def received_binary(self) -> None:
        """A binary message."""
        self._do(self._session.receive_binary())

    @_event
    def resumed(self) -> None:
        """The socket takes something again."""
        self._wake_writers()
        self._take_again()

    @_event
    def drain(self, after_ms: int) -> None:
        """The gateway stops."""
        self._do(self._session.drain(after_ms))
        if self._end is None and not self.closed.done():
            self._end = self._loop.call_later(after_ms / 1000, self._drained)

    @_event
    def _drained(self) -> None:
        self._do(self._session.drained())

    @_event
    def look(self) -> None:
        """Now and then."""
        self._do(self._session.tick())

    def lost(self, sent_bytes: int) -> None:
        """The connection is gone."""
        self._hub.open.pop(self, None)
        for timer in (self._beat, self._end):
            if timer is not None:
                timer.cancel()
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
            self._do(self._session.lost(unwritten))
        except Exception as error:  # noqa: BLE001 - logged and counted; the connection is gone in any case
            self.fail(error)
        # What a session that has failed did not end.
        for key in {*self._opening, *self._tails, *self._places}:
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
        """Do the effects, and those that they bring about, in order."""
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
        self._do(self._session.done(token, replies))

    def _hold(self) -> None:
        self._link.hold(held=self._asking or self._unanswered >= _UNANSWERED_MAX)

    def _close(self, effect: Close) -> None:
        self._link.close_with(effect.code, effect.reason)

    def fail(self, error: Exception) -> None:
        """End the conversation for an exception, which is logged if it was not expected."""
        refusal = as_refusal(error, self._call.request_id)
        if self.failed or refusal.code == "draining":
            # A conversation that drains ends by itself.
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
            found = await executor.run_unblocked(self._call, effect.command, _COMMAND_BYTES_MAX)
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
            found = as_refusal(error, self._call.request_id)
        self._asking = False
        self._do(self._session.asked(effect.ref, found))
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
                tails[stream] = await self._feeds.tail(stream, after, effect.last)
        except EngineError as error:
            _close_all(tails)
            self._do(self._session.not_opened(effect.key, as_refusal(error, self._call.request_id)))
            return
        if effect.key not in self._opening:
            _close_all(tails)
            return
        self._opening.discard(effect.key)
        self._tails[effect.key] = tails
        places = {stream: (tail.cursor, not tail.ready()) for stream, tail in tails.items()}
        self._do(self._session.opened(effect.key, places))
        for stream, (_, caught_up) in places.items():
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
            self._do(self._session.ready(key, stream))
        else:
            self._wait_for(key, stream)

    def _take_live(self, key: int, stream: str, tail: Subscriber) -> bool:
        """The short way of a page that all wait for, with nothing else to do: one write. Whether it was."""
        if self._running or self._link.paused or (room := self._session.live_room(key)) < 1:
            return False
        page = tail.take_live(room, PAGE_BYTES_MAX, partial(self._ready, key, stream))
        if page is None:
            return False
        self._link.write_frame(self._session.live(key, page))
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
            # What the subscription takes next waits for its turn, like what others take.
            self._took(effect, tail, item)
        finally:
            self._looking_behind = False
        self._take_again()

    def _take_again(self) -> None:
        """Whatever had to wait for the socket, or for another's turn."""
        later: list[Effect] = [*self._later]
        self._later.clear()
        self._do(later)

    def _took(self, effect: FetchPage, tail: Subscriber, item: FeedPage | FeedGap | None) -> None:
        caught_up = not tail.ready()
        self._do(self._session.took(effect.key, item, tail.cursor, caught_up=caught_up))
        if caught_up:
            self._wait_for(effect.key, effect.stream)

    # ---- consumers

    def _claim(self, effect: AcquireLease) -> None:
        place = self._call.gateway.leases.acquire(effect.consumer, partial(self._replaced, effect.key))
        self._places[effect.key] = place
        self._hub.working[self] = None
        self._hub.look_now_and_then()
        if place.alone.done():
            self._owned(effect.key)
        else:
            place.alone.add_done_callback(lambda _: self._owned(effect.key))

    @_event
    def _owned(self, key: int) -> None:
        self._do(self._session.owned(key))

    @_event
    def _replaced(self, key: int) -> None:
        """Somebody else reads as this consumer now."""
        self._do(self._session.revoke(key, "replaced"))

    def _read(self, effect: ReadGroup) -> None:
        place = self._places[effect.key]
        place.begin()
        self._begin_read(effect, place)

    def _begin_read(self, effect: ReadGroup, place: ConsumerLease) -> None:
        done = partial(self._delivered, effect.key, place)
        if place.until.done():
            self._loop.call_soon(done, (GroupRead(()),))
        elif self._link.paused:
            at = len(self._writable) if effect.going_on else self._first
            self._writable.insert(at, partial(self._begin_read, effect, place))
            self._first += not effect.going_on
        else:
            self._engine.read(effect.command, done, place.until, going_on=effect.going_on)

    def _delivered(self, key: int, place: ConsumerLease, replies: Sequence[Reply | EngineError]) -> None:
        (reply,) = replies
        effects: Effects | None = None
        try:
            if not self.failed:
                found = as_refusal(reply, self._call.request_id) if isinstance(reply, EngineError) else reply
                effects = self._session.delivered(key, found, room=not self._link.full)
        except Exception as error:  # noqa: BLE001 - logged, counted, and the end of the conversation
            self.fail(error)
        if effects is None:
            self._give_back(place, reply)
        else:
            self._perform(effects)
        place.end()

    @_event
    def _perform(self, effects: Effects) -> None:
        self._do(effects)

    def _give_back(self, place: ConsumerLease, reply: Reply | EngineError) -> None:
        """Return entries that arrived for a conversation that has failed: they were not sent."""
        given = reply.streams if isinstance(reply, GroupRead) else ()
        for one in given:
            unsent = [entry.id for entry in one.entries]
            self._engine.submit([place.consumer.give_back(unsent)], lambda _: None)

    def _leave(self, effect: Unsubscribe) -> None:
        key = effect.key
        self._opening.discard(key)
        tails = self._tails.pop(key, None)
        place = self._places.pop(key, None)
        if tails is not None:
            _close_all(tails)
        elif place is not None:
            if not self._places:
                self._hub.working.pop(self, None)
            self._engine.submit([place.consumer.leave()], lambda _: None)
            place.leave()
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
    Subscribe: Connection._open,  # noqa: SLF001
    FetchPage: Connection._take,  # noqa: SLF001
    AcquireLease: Connection._claim,  # noqa: SLF001
    ReadGroup: Connection._read,  # noqa: SLF001
    Unsubscribe: Connection._leave,  # noqa: SLF001
    Close: Connection._close,  # noqa: SLF001
}
