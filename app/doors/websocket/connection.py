"""A WebSocket connection: performs the effects of its session and passes the results back.

Knows: the engine, feeds, whether the socket accepts data, consumer leases.
Must never know: what a frame means, credit.

Nothing is read for a socket with unsent data. Entries that were read but not sent are given back; so are
entries that arrive when the socket's buffer is full.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec

from msgspec import UNSET

from app.auth import ANONYMOUS, UNAUTHENTICATED, Principal
from app.auth.policy import unauthenticated
from app.auth.rate_limiter import caller_of
from app.doors.client import ClientAccess
from app.doors.websocket import frames
from app.doors.websocket.effects import (
    AcquireLease,
    Authenticate,
    Close,
    Effect,
    Effects,
    FetchPage,
    ReadGroup,
    Rest,
    RunCommand,
    SendFrame,
    Submit,
    Subscribe,
    Unsubscribe,
)
from app.doors.websocket.hub import Hub
from app.doors.websocket.session import Session
from app.doors.websocket.socket_link import SocketLink, UnsentDeliveries
from app.doors.websocket.subscriptions import PAGE_BYTES_MAX
from app.errors import RefusalError
from app.http.client_address import client_address
from app.http.cursors import Position
from app.http.middleware.request_id import as_refusal
from app.http.requests import Request
from app.live.fair_queue import Flow
from app.live.feeds import FeedGap, FeedPage, Subscriber
from app.live.leases import ConsumerLease
from app.live.sessions import AccessEnd
from app.live.shares import Share
from app.metrics import tracing
from app.redis import executor
from app.tenants import Tenant
from engine import EngineError
from engine.commands import XAdd
from engine.errors import OF_BACKEND
from engine.replies import GroupRead, Reply

# Messages that wait before the socket is read no more: a client that sends one at a time is not paused, which
# takes two system calls.
_TEXTS_UNHELD_MAX: Final = 1
# A message of this size takes up to 16 ms to read, with many short fields: longer ones are read in a thread.
_INLINE_BYTES_MAX: Final = 256 << 10
# A client that shows no token within this time is disconnected.
_AUTH_S_MAX: Final = 10.0
# The reply to a command is held in memory until a slow client reads it.
_COMMAND_BYTES_MAX: Final = 1 << 20

P = ParamSpec("P")


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

    def __init__(self, hub: Hub, link: SocketLink, request: Request, session: Session, share: Share) -> None:
        self._hub = hub
        self._link = link
        self._request = request
        self._session = session
        self._counters = request.gateway.counters
        request.door = "websocket"
        # Raises if there is no engine.
        self._tenant: Tenant = request.tenant
        self._output = request.gateway.budgets.output
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.failed = False
        # Lists, not deques: they are short, and an empty deque takes 0.7 KB.
        self._effects: list[Effect] = []
        self._running = False
        self._tails: dict[int, dict[str, Subscriber]] = {}
        # Subscriptions that wait for their turn or their feeds, and what withdraws each of them.
        self._opening: dict[int, Callable[[], object]] = {}
        self._leases: dict[int, ConsumerLease] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Effects that wait until the socket accepts data.
        self._later: list[FetchPage] = []
        # One read of history at a time: several would all finish before the first one pauses the socket.
        self._looking_behind = False
        self._writable: list[Callable[[], None]] = []
        # Of those, the number of reads that were not given entries just before: they go first.
        self._first = 0
        self._unsent = UnsentDeliveries(link)
        # While a Redis command runs, further messages wait in `_texts`.
        self._asking = False
        self._texts: list[bytes] = []
        self._flow = hub.frames.flow(request.caller)
        # Whether the flow will call `_take_turn`.
        self._is_waiting = False
        self._beat: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        # Until the client has shown a token.
        self._unknown: asyncio.TimerHandle | None = None
        self._access = ClientAccess(request.gateway, self._end_access, warn=self._expiring, share=share)

    @property
    def caller(self) -> str:
        """Whose connection it is."""
        return self._request.caller

    @property
    def waiting_bytes(self) -> int:
        """Messages that wait to be handled."""
        return sum(map(len, self._texts))

    # ---- events

    def begin(self, hello: frames.HelloFrame) -> None:
        """Send `hello`."""
        self._hub.open[self] = None
        self._counters.connections["websocket"] += 1
        if self._request.principal is UNAUTHENTICATED:
            self._unknown = self._loop.call_later(_AUTH_S_MAX, self._not_authenticated)
        else:
            self._enter()
        self._link.write_frame(frames.encode(hello))
        if self._hub.is_backend_away:
            self.begin_outage()
        self._heartbeat(hello.heartbeat_ms / 1000, first=True)

    @_event
    def received(self, text: bytes) -> None:
        """Handle a text message, in order: it waits for messages that came before it."""
        if self._texts or self._asking or not self._flow.may_pass():
            self._texts.append(text)
            self._wait_for_turn()
        else:
            self._handle(text)

    def _handle(self, text: bytes) -> None:
        self._flow.note_handled()
        if len(text) <= _INLINE_BYTES_MAX:
            self._do(self._session.receive(text))
        else:
            self._asking = True
            self._spawn(self._handle_long(text))

    async def _handle_long(self, text: bytes) -> None:
        self._flow.begin()
        try:
            frame, publication = await asyncio.to_thread(self._session.read_long, text)
        finally:
            self._flow.end()
        self._go_on(self._session.handle(frame, len(text), publication))

    def _wait_for_turn(self) -> None:
        """Go on with the messages that wait when it is their turn."""
        if self._texts and not self._asking and not self._is_waiting:
            self._is_waiting = True
            self._flow.wait(self._take_turn)
        self._hold()

    def _hold(self) -> None:
        self._link.hold(held=len(self._texts) > _TEXTS_UNHELD_MAX)

    @_event
    def _take_turn(self) -> None:
        self._is_waiting = False
        if self._texts and not self._asking:
            self._handle(self._texts.pop(0))
        self._wait_for_turn()

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
        """Have the session ended when its token ends."""
        principal = self._request.principal
        if self._access.is_followed or principal is not ANONYMOUS:
            self._access.follow(principal)

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

    @_event
    def begin_outage(self) -> None:
        """The backend cannot be used."""
        self._do(self._session.begin_outage())

    @_event
    def end_outage(self) -> None:
        """The backend can be used again."""
        self._do(self._session.end_outage())

    def leaving(self) -> None:
        """End the reads of its consumers, at once: what is published next goes to others."""
        for lease in self._leases.values():
            lease.stop()

    def lost(self, sent_bytes: int) -> None:
        """Release everything: the socket is gone. `sent_bytes` were written to it."""
        if self in self._hub.open:
            del self._hub.open[self]
            self._counters.connections["websocket"] -= 1
        for timer in (self._beat, self._end, self._unknown):
            if timer is not None:
                timer.cancel()
        self._access.leave()
        unwritten = self._unsent.take(sent_bytes)
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
        if effect.code:
            self._counters.rejected[effect.code] += 1
        self._unsent.note(end, effect)

    def _submit(self, effect: Submit) -> None:
        commands = effect.commands
        done: tracing.Done = partial(self._submitted, effect.token, self._flow)
        tracer = self._hub.gateway.tracer
        if tracer is not None and effect.traceparent is not None:
            (command,) = commands
            assert isinstance(command, XAdd), "what has a trace publishes"
            traced, done = tracer.begin_publishing(command, effect.traceparent, done)
            commands = [traced]
        quotas = self._request.principal.quotas
        self._flow.begin()
        try:
            self._tenant.engine.submit(commands, done, synced=effect.synced, quotas=quotas)
        except BaseException:
            # `done` will not be called.
            self._flow.end()
            raise

    def _submitted(self, token: int, flow: Flow, replies: Any) -> None:  # noqa: ANN401 - the engine's
        flow.end()
        self._reply(token, replies)

    @_event
    def _reply(self, token: int, replies: Any) -> None:  # noqa: ANN401 - the engine's, passed on
        self._do(self._session.on_replies(token, replies))

    def _close(self, effect: Close) -> None:
        self._link.close_with(effect.code, effect.reason)

    def _refusal(self, error: Exception) -> RefusalError:
        return as_refusal(error, self._request.request_id)

    def fail(self, error: Exception) -> None:
        """Close the connection because of an exception; an unexpected one is logged."""
        refusal = self._refusal(error)
        if self.failed or refusal.code == "draining":
            # A draining connection closes by itself.
            return
        self.failed = True
        if refusal.code == "internal":
            self._hub.gateway.failed_conversations += 1
            self._counters.rejected["internal"] += 1
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
        self._spawn(self._asked(effect))

    async def _asked(self, effect: RunCommand) -> None:
        found: bytes | RefusalError
        self._flow.begin()
        try:
            found = await executor.run_unblocked(self._request, effect.command, _COMMAND_BYTES_MAX)
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
            found = self._refusal(error)
        finally:
            self._flow.end()
            self._request.release_output()
        self._go_on(self._session.on_command_result(effect.ref, found))

    def _authenticate(self, effect: Authenticate) -> None:
        self._asking = True
        self._spawn(self._authenticated(effect))

    async def _authenticated(self, effect: Authenticate) -> None:
        try:
            principal = await self._request.identify(effect.token)
            tenant = self._find_tenant(principal)
            self._access.count_for(caller_of(principal, client_address(self._request.scope)))
        except RefusalError as refusal:
            self._go_on(self._session.on_principal(effect.ref, refusal))
            return
        self._request.principal, self._tenant = principal, tenant
        self._flow = self._hub.frames.flow(self._request.caller)
        self._request.begin_metering()
        self._session.meter = self._request.meter
        if self._unknown is not None:
            self._unknown.cancel()
        self._enter()
        self._go_on(self._session.on_principal(effect.ref, principal))

    def _find_tenant(self, principal: Principal) -> Tenant:
        """The caller's tenant. Raises `forbidden` if an earlier token on this connection was of another
        one.
        """
        before = self._request.principal
        if before is not UNAUTHENTICATED and before.prefix != principal.prefix:
            raise RefusalError("forbidden", "the token is of another tenant: open another connection")
        return self._request.gateway.tenant(principal.prefix)

    def _go_on(self, effects: Effects) -> None:
        """Perform effects, and then handle the messages that waited for them."""
        self._asking = False
        self._do(effects)
        self._wait_for_turn()

    # ---- followed streams

    def _open(self, effect: Subscribe) -> None:
        flow = self._flow
        self._opening[effect.key] = flow.open(lambda: self._spawn(self._opened(effect, flow)))

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
                tails[stream] = await self._tenant.feeds.subscribe(
                    stream, after, effect.last, generation=generation
                )
        except EngineError as error:
            _close_all(tails)
            self._do(self._session.tails.on_subscribe_refused(effect.key, self._refusal(error)))
            return
        if effect.key not in self._opening:
            _close_all(tails)
            return
        del self._opening[effect.key]
        self._tails[effect.key] = tails
        positions = {stream: (_position(tail), not tail.ready()) for stream, tail in tails.items()}
        self._do(self._session.tails.on_subscribed(effect.key, positions))
        for stream, (_, caught_up) in positions.items():
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
        """Write a page at once, if the subscription has nothing else to do. Returns whether it did so."""
        if self._running or self._link.paused or (room := self._session.tails.live_room(key)) < 1:
            return False
        page = tail.take_live(
            room, self._output.piece_bytes(PAGE_BYTES_MAX), partial(self._ready, key, stream)
        )
        if page is None:
            return False
        self._link.write_frame(self._session.tails.live(key, page))
        self._unsent.forget_sent()
        return True

    def _take(self, effect: FetchPage) -> None:
        tail = self._tails.get(effect.key, {}).get(effect.stream)
        if tail is None:
            return
        if self._link.paused:
            self._later.append(effect)
            return
        item = tail.take(effect.count_max, self._output.piece_bytes(effect.bytes_max))
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
            item = await tail.look(effect.count_max, self._output.piece_bytes(effect.bytes_max))
        except EngineError as error:
            if error.code not in OF_BACKEND:
                raise
            self._follow_later(effect, tail, alone=error.code != "backend_unavailable")
        else:
            # The next page of this subscription waits for its turn.
            self._took(effect, tail, item)
        finally:
            self._looking_behind = False
        self._take_again()

    def _follow_later(self, effect: FetchPage, tail: Subscriber, *, alone: bool) -> None:
        """Follow the stream anew once the backend can be read, as a client would that connects again."""
        tail.close()
        if self._tails.get(effect.key, {}).pop(effect.stream, None) is not None:
            self._spawn(self._follow_again(effect.key, effect.stream, _position(tail)))
            self._do(self._session.tails.on_away(effect.key, alone=alone))

    async def _follow_again(self, key: int, stream: str, position: Position) -> None:
        found: Subscriber | None = None
        while found is None and key in self._tails:
            await asyncio.sleep(_rest_s())
            try:
                found = await self._tenant.feeds.subscribe(
                    stream, position.id, generation=position.generation
                )
            except EngineError as error:
                if error.code not in OF_BACKEND:
                    raise
        if found is not None and key in self._tails:
            self._tails[key][stream] = found
            self._do(self._session.tails.on_ready(key, stream))
        elif found is not None:
            found.close()

    def _take_again(self) -> None:
        """Perform the effects that waited for the socket or for another read."""
        later: list[Effect] = [*self._later]
        self._later.clear()
        self._do(later)

    def _took(self, effect: FetchPage, tail: Subscriber, item: FeedPage | FeedGap | None) -> None:
        if isinstance(item, FeedPage):
            self._counters.delivered["websocket"] += item.count
        caught_up = not tail.ready()
        self._do(self._session.tails.on_page(effect.key, item, _position(tail), caught_up=caught_up))
        if caught_up:
            self._wait_for(effect.key, effect.stream)

    # ---- consumers

    def _rest(self, effect: Rest) -> None:
        self._loop.call_later(_rest_s(), self._rested, effect.key)

    @_event
    def _rested(self, key: int) -> None:
        self._do(self._session.consumers.on_rested(key))

    def _claim(self, effect: AcquireLease) -> None:
        lease = self._tenant.leases.acquire(effect.consumer, partial(self._replaced, effect.key))
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
        if self._link.paused and not lease.is_stopped:
            at = len(self._writable) if effect.going_on else self._first
            self._writable.insert(at, partial(self._begin_read, effect, lease))
            self._first += not effect.going_on
        else:
            lease.read(self._tenant.engine, effect.command, done, going_on=effect.going_on)

    def _delivered(self, key: int, lease: ConsumerLease, reply: Reply | EngineError | RefusalError) -> None:
        effects: Effects | None = None
        try:
            if not self.failed:
                found = self._refusal(reply) if isinstance(reply, Exception) else reply
                effects = self._session.consumers.on_delivery(key, found, room=not self._link.full)
        except Exception as error:  # noqa: BLE001 - logged, counted; closes the connection
            self.fail(error)
        if effects is None:
            # The connection has failed.
            for one in reply.streams if isinstance(reply, GroupRead) else ():
                lease.give_back(self._tenant.engine, [entry.id for entry in one.entries])
        else:
            if isinstance(reply, GroupRead):
                self._request.note_reply(None, reply)
                self._request.gateway.trace_read(lease.consumer.group, lease.consumer.name, reply)
            self._perform(effects)
        lease.end()

    @_event
    def _perform(self, effects: Effects) -> None:
        self._do(effects)

    def _leave(self, effect: Unsubscribe) -> None:
        key = effect.key
        withdraw = self._opening.pop(key, None)
        if withdraw is not None:
            withdraw()
        tails = self._tails.pop(key, None)
        lease = self._leases.pop(key, None)
        if tails is not None:
            _close_all(tails)
        elif lease is not None:
            if not self._leases:
                self._hub.working.pop(self, None)
            lease.close(self._tenant.engine)
            self._wake_writers()


_HEARTBEAT: Final = frames.encode(frames.HeartbeatFrame())
_INTERNAL_CLOSE: Final = 4000


def _rest_s() -> float:
    """How long to leave a backend alone that could not be read: not all come again at once."""
    return random.uniform(0.5, 1.5)  # noqa: S311 - jitter


def _position(tail: Subscriber) -> Position:
    return Position(tail.cursor, tail.generation)


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
    Rest: Connection._rest,  # noqa: SLF001
    Unsubscribe: Connection._leave,  # noqa: SLF001
    Close: Connection._close,  # noqa: SLF001
}
