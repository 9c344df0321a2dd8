"""A WebSocket connection: the host of its session; and the hub of all connections of a gateway.

Knows: the order of messages, who the caller is, when the connection ends, and what ends all of them.
Must never know: what a frame means, credit, how streams are read.

Nothing is read for a socket with unsent data. Entries that were read but not sent are given back; so are
entries that arrive when the socket's buffer is full.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec

from msgspec import UNSET

from app.auth import ANONYMOUS, UNAUTHENTICATED, Principal
from app.auth.policy import unauthenticated
from app.auth.rate_limiter import caller_of
from app.doors.client import ClientAccess
from app.doors.websocket import frames
from app.doors.websocket.frame_reader import Ref, RefusedFrameError
from app.doors.websocket.session import Session
from app.doors.websocket.socket_link import SocketLink, UnsentDeliveries
from app.doors.websocket.subscription_table import SessionLimits, Subscription
from app.errors import CODES, RefusalError
from app.gateway import Gateway
from app.http.client_address import client_address
from app.http.common.exchanges import as_refusal
from app.http.request_bodies import read_in_thread
from app.http.requests import Request
from app.live.budgets import Reservation
from app.live.fair_queue import FRAMES_A_CYCLE_MAX, FairQueue, Flow
from app.live.joiner import Joint
from app.live.readers import Gate
from app.live.sessions import AccessEnd
from app.live.shares import Share
from app.live.turns import CycleBudget
from app.redis.bodies import run_unblocked
from app.tenants import Tenant
from engine import Call, Done, EngineError, How, Replies, errors
from engine.commands.base import Command
from engine.commands.schedule_commands import AddScheduled
from engine.commands.types import XAdd
from engine.commands.weir_commands import Close as CloseStream
from engine.replies import AddedScheduled

# Messages that wait before the socket is read no more: a client that sends one at a time is not paused, which
# takes two system calls.
_TEXTS_UNHELD_MAX: Final = 1
# A message of this size takes up to 16 ms to read, with many short fields: longer ones are read in a thread.
_INLINE_BYTES_MAX: Final = 256 << 10
# A client that shows no token within this time is disconnected.
_AUTH_S_MAX: Final = 10.0
# The reply to a command is held in memory until a slow client reads it.
_COMMAND_BYTES_MAX: Final = 1 << 20
# Time to acknowledge after `goaway`; at most half of the time for a shutdown.
_GOAWAY_MS_MAX: Final = 2_000

P = ParamSpec("P")


def event(
    handle: "Callable[Concatenate[Connection, P], None]",
) -> "Callable[Concatenate[Connection, P], None]":
    """Guard an entry point: an exception ends the connection, which then ignores events."""

    @wraps(handle)
    def guarded(one: "Connection", /, *arguments: P.args, **named: P.kwargs) -> None:
        if one.failed:
            return
        try:
            handle(one, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - logged, counted; closes the connection
            one.fail(error)

    return guarded


class Connection:
    """One connection. Call `begin` once the socket is accepted; `closed` is done when it is gone.

    `failed`: an exception has ended it. Frames may be lost, so nothing is sent after that.
    """

    def __init__(
        self,
        hub: "Hub",
        link: SocketLink,
        request: Request,
        share: Share,
        limits: SessionLimits,
        kind: type[Session] = Session,
    ) -> None:
        self._hub = hub
        self.link = link
        self.request = request
        self._counters = request.gateway.reports.counters
        request.door = "websocket"
        # Raises if there is no engine.
        self.tenant: Tenant = request.tenant
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.failed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.note_delivered = partial(self._counters.deliver, "websocket")
        self._unsent: UnsentDeliveries[Subscription] = UnsentDeliveries(link, self.note_delivered)
        self.gate = Gate()
        self.output = request.gateway.limits.budgets.output
        self.trace_read = request.gateway.reports.trace_read
        # While a Redis command runs, further messages wait in `_texts`: a short list, since an empty
        # deque takes 0.7 KB.
        self._asking = False
        self._texts: list[bytes] = []
        self.flow = hub.frames.flow(request.caller)
        # Whether the flow will call `_take_turn`.
        self._is_waiting = False
        self._beat: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        # Until the client has shown a token.
        self._unknown: asyncio.TimerHandle | None = None
        # What this connection and others ask in this cycle, if it asks anything.
        self._shared: Joint | None = None
        self.session = kind(
            self,
            limits,
            request.principal,
            request.request_id,
            depth_max=request.gateway.settings.json_depth_max,
            meter=request.meter,
        )
        self._access = ClientAccess(request.gateway, self._end_access, warn=self._expiring, share=share)

    @property
    def caller(self) -> str:
        """Whose connection it is."""
        return self.request.caller

    @property
    def waiting_bytes(self) -> int:
        """Messages that wait to be handled."""
        return sum(map(len, self._texts))

    # ---- events

    def begin(self, hello: frames.HelloFrame) -> None:
        """Send `hello`."""
        self._hub.open[self] = None
        self._counters.connections["websocket"] += 1
        if self.request.principal is UNAUTHENTICATED:
            self._unknown = self._loop.call_later(_AUTH_S_MAX, self._not_authenticated)
        else:
            self._enter()
        self.link.write_frame(frames.encode(hello))
        if self._hub.is_backend_away:
            self.begin_outage()
        self._heartbeat(hello.heartbeat_ms / 1000, first=True)

    @event
    def received(self, text: bytes) -> None:
        """Handle a text message, in order: it waits for messages that came before it."""
        if self._texts or self._asking or not self.flow.may_pass():
            self._texts.append(text)
            self._wait_for_turn()
        else:
            self._handle(text)

    def _handle(self, text: bytes) -> None:
        self.flow.note_handled()
        if len(text) <= _INLINE_BYTES_MAX:
            self.session.receive(text)
        else:
            self._asking = True
            self.spawn(self._handle_long(text))

    async def _handle_long(self, text: bytes) -> None:
        pool, held = self.request.gateway.limits.budgets.bodies, list[Reservation]()

        def hold(size: int) -> None:
            held.append(pool.reserve(self.caller, size - sum(one.size for one in held)))

        self.flow.begin_work()
        try:
            frame, publication = await read_in_thread(self.session.read_long, text, pool, hold)
        except (EngineError, RefusalError) as refusal:
            frame, publication = RefusedFrameError(as_refusal(refusal, self.request.request_id), UNSET), None
        finally:
            self.flow.end_work()
            for one in held:
                one.release()
        self._go_on(partial(self.session.handle, frame, len(text), publication))

    def _wait_for_turn(self) -> None:
        """Go on with the messages that wait when it is their turn."""
        if self._texts and not self._asking and not self._is_waiting:
            self._is_waiting = True
            self.flow.wait(self._take_turn)
        self._hold()

    def _hold(self) -> None:
        self.link.hold(held=len(self._texts) > _TEXTS_UNHELD_MAX)

    @event
    def _take_turn(self) -> None:
        self._is_waiting = False
        if self._texts and not self._asking:
            self._handle(self._texts.pop(0))
        self._wait_for_turn()

    @event
    def received_binary(self) -> None:
        """Handle a binary message."""
        self.session.receive_binary()

    @event
    def resumed(self) -> None:
        """Continue: the socket accepts data again."""
        self._unsent.forget_sent()
        self.session.table.go_on()

    @event
    def drain(self, after_ms: int) -> None:
        """Send `goaway`: the gateway stops."""
        self.session.table.drain(after_ms)
        if self._end is None and not self.closed.done():
            self._end = self._loop.call_later(after_ms / 1000, self._drained)

    @event
    def _drained(self) -> None:
        self.session.table.finish_drain()

    @event
    def _not_authenticated(self) -> None:
        """Close: no token came in time."""
        missing = unauthenticated(f"no token came within {_AUTH_S_MAX:.0f} s", None)
        self.session.on_principal(UNSET, missing)

    def _enter(self) -> None:
        """Have the session ended when its token ends."""
        principal = self.request.principal
        if self._access.is_followed or principal is not ANONYMOUS:
            self._access.follow(principal)

    @event
    def _end_access(self, end: AccessEnd) -> None:
        self.session.end_access(end)

    @event
    def _expiring(self, after_ms: int) -> None:
        self.session.expiring(after_ms)

    @event
    def begin_outage(self) -> None:
        """The backend cannot be used."""
        self.session.table.begin_outage()

    @event
    def end_outage(self) -> None:
        """The backend can be used again."""
        self.session.table.end_outage()

    def leaving(self) -> None:
        """End its reads, at once: what is published next goes to others."""
        self.session.table.stop()

    def lost(self, sent_bytes: int) -> None:
        """Release everything: the socket is gone. `sent_bytes` were written to it."""
        if self in self._hub.open:
            del self._hub.open[self]
            self._counters.connections["websocket"] -= 1
        for timer in (self._beat, self._end, self._unknown):
            if timer is not None:
                timer.cancel()
        self._access.leave()
        unwritten = self._unsent.take_first(sent_bytes)
        self._texts.clear()
        try:
            self._end_all(unwritten)
        finally:
            if not self.closed.done():
                self.closed.set_result(None)

    def _end_all(self, unwritten: Sequence[tuple[Subscription, Sequence[int]]]) -> None:
        try:
            self.session.on_disconnect(unwritten)
        except Exception as error:  # noqa: BLE001 - logged and counted; the connection is gone in any case
            self.fail(error)
        # A failed session does not end its subscriptions itself.
        for one in [*self.session.table.by_name.values()]:
            self.session.table.end(one)

    def _heartbeat(self, every_s: float, *, first: bool = False) -> None:
        self._beat = self._loop.call_later(every_s, self._heartbeat, every_s)
        if not first and not self.link.paused:
            self.link.write_frame(_HEARTBEAT)

    # ---- what the session asks

    def send(self, data: bytes) -> None:
        """Write a frame."""
        self.link.write_frame(data)

    def deliver(self, data: bytes, work: Subscription, count: int, entry_ids: Sequence[int] = ()) -> None:
        """Write a frame with this number of entries of a subscription: these go back if it never leaves."""
        self._unsent.note(self.link.write_frame(data), count, work, entry_ids)

    def refuse(self, data: bytes, code: str) -> None:
        """Write a frame `error` with this code."""
        self._counters.refuse(code)
        self.send(data)

    def flush(self) -> None:
        """Send what waits for others of this cycle."""
        if self._shared is not None:
            self._shared.send()
            self._shared = None

    def open(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Open a subscription, once fewer of the caller's are being opened. Returns what withdraws that."""
        flow = self.flow
        return flow.open(lambda: self.spawn(self._open(work(), flow)))

    async def _open(self, work: Coroutine[Any, Any, None], flow: Flow) -> None:
        try:
            await work
        finally:
            flow.end_opening()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this; its exception closes the connection."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail(error)

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call this after a while, as long as the connection is there."""
        self._loop.call_later(seconds, self._call, act)

    @event
    def _call(self, act: Callable[[], None]) -> None:
        if not self.closed.done():
            act()

    def submit(
        self,
        commands: Sequence[Command],
        done: Callable[[Replies], None],
        *,
        synced: bool = False,
        traceparent: bytes | None = None,
    ) -> None:
        """Run commands in one turn; `done` gets the replies, if `synced` once they are on disk."""
        finish: Done = partial(self._submitted, self.flow, done)
        tracer = self._hub.gateway.reports.tracer
        if tracer is not None and traceparent is not None:
            (command,) = commands
            assert isinstance(command, XAdd | CloseStream), "what has a trace publishes"
            traced, finish = tracer.begin_publishing(command, traceparent, finish)
            commands = [traced]
        if isinstance(commands[0], CloseStream | AddScheduled):
            finish = self._auditing(commands[0], finish)
        self.flow.begin_work()
        call = Call(
            commands,
            How.ALONE if len(commands) == 1 else How.TOGETHER,
            synced=synced,
            quotas=self.request.principal.quotas,
            origin=self.request.request_id,
        )
        joiner = self._hub.gateway.joiner
        self._shared = joiner.send(self.tenant.engine, call, finish, behind=self._shared)

    def _submitted(self, flow: Flow, done: Callable[[Replies], None], replies: Replies) -> None:
        flow.end_work()
        self._reply(done, replies)

    @event
    def _reply(self, done: Callable[[Replies], None], replies: Replies) -> None:
        done(replies)

    def _auditing(self, command: CloseStream | AddScheduled, done: Done) -> Done:
        """Have the audit log say that a publish has closed the stream, or has cancelled or replaced what
        recurs; or why not.
        """

        def end(replies: Replies) -> None:
            reply = replies[0]
            code = reply.code if isinstance(reply, EngineError) else ""
            if isinstance(command, CloseStream):
                self._note("close", command.stream, code)
            elif code == "forbidden" or (isinstance(reply, AddedScheduled) and reply.recurring):
                self._note("manage", command.stream, code)
            done(replies)

        return end

    def note_refused_end(self, stream: str, code: str) -> None:
        """Have the audit log say that a publish was not allowed to close this stream."""
        self._note("close", stream, code)

    def _note(self, action: str, stream: str, code: str) -> None:
        facts = {"action": action, "operation": "publish", "stream": stream}
        self.request.audit(facts, status=CODES[code].status if code else 200, code=code)

    def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        self.link.close_with(code, reason)

    def fail(self, error: Exception) -> None:
        """Close the connection because of an exception; an unexpected one is logged."""
        refusal = as_refusal(error, self.request.request_id)
        if self.failed or refusal.code == "draining":
            # A draining connection closes by itself.
            return
        self.failed = True
        if refusal.code == "internal":
            self._hub.gateway.reports.failed_conversations += 1
            self._counters.refuse("internal")
        self._texts.clear()
        self.session.table.stop()
        self.link.close_with(refusal.kind.close or _INTERNAL_CLOSE, refusal.code)

    # ---- what is done before any further frame

    def run_command(self, ref: Ref, command: bytes) -> None:
        """Run this Redis command before any further frame."""
        self._asking = True
        self.spawn(self._ask(ref, command))

    async def _ask(self, ref: Ref, command: bytes) -> None:
        found: bytes | RefusalError
        self.flow.begin_work()
        try:
            found = await run_unblocked(self.request, command, _COMMAND_BYTES_MAX)
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
            found = as_refusal(error, self.request.request_id, of_command=True)
        finally:
            self.flow.end_work()
            self.request.release_output()
        self._go_on(partial(self.session.on_command_result, ref, found))

    def authenticate(self, ref: Ref, token: str) -> None:
        """Authenticate the token before any further frame."""
        self._asking = True
        self.spawn(self._authenticate(ref, token))

    async def _authenticate(self, ref: Ref, token: str) -> None:
        try:
            principal = await self.request.identify(token)
            tenant = self._find_tenant(principal)
            self._access.count_for(caller_of(principal, client_address(self.request.scope)))
        except RefusalError as refusal:
            self._go_on(partial(self.session.on_principal, ref, refusal))
            return
        self.request.principal, self.tenant = principal, tenant
        self.flow = self._hub.frames.flow(self.request.caller)
        self.request.begin_metering()
        self.session.meter = self.request.meter
        if self._unknown is not None:
            self._unknown.cancel()
        self._enter()
        self._go_on(partial(self.session.on_principal, ref, principal))

    def _find_tenant(self, principal: Principal) -> Tenant:
        """The caller's tenant. Raises `forbidden` if an earlier token on this connection was of another
        one.
        """
        before = self.request.principal
        if before is not UNAUTHENTICATED and before.prefix != principal.prefix:
            raise RefusalError("forbidden", "the token is of another tenant: open another connection")
        return self.request.gateway.tenant(principal.prefix)

    @event
    def _go_on(self, act: Callable[[], None]) -> None:
        """Do this, and then handle the messages that waited for it."""
        self._asking = False
        act()
        self._wait_for_turn()


class Hub:
    """All connections of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        # A dict keeps the order: the oldest connection is notified first.
        self.open: dict[Connection, None] = {}
        # Callers take turns with their frames.
        self.frames = FairQueue(CycleBudget(gateway.clock.monotonic), FRAMES_A_CYCLE_MAX)
        # Whether the backend cannot be used, for longer than a moment.
        self.is_backend_away = False

    def drain(self) -> None:
        """Notify every connection that the gateway stops."""
        after_ms = min(_GOAWAY_MS_MAX, int(self.gateway.settings.drain_s_max * 500))
        for connection in list(self.open):
            connection.drain(after_ms)

    def restart(self) -> None:
        """End every connection: its engine is replaced."""
        for connection in list(self.open):
            connection.fail(errors.restarting())

    def change_outage(self, is_away: bool) -> None:  # noqa: FBT001 - a callback
        """Notify every connection that the backend cannot be used, or can again."""
        self.is_backend_away = is_away
        for connection in list(self.open):
            if is_away:
                connection.begin_outage()
            else:
                connection.end_outage()


_HEARTBEAT: Final = frames.encode(frames.HeartbeatFrame())
_INTERNAL_CLOSE: Final = 4000
