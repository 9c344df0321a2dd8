"""The thin ways: hot requests answered where their bytes arrive, by the same handlers as everywhere else.

Knows: what makes a request plain, how a handler runs without a task, how an answer becomes one write.
Must never know: what a handler does, and what any command means.

    bytes ─► plain, whole, ready, in turn? ─ yes ─► handler ─► engine.submit ─► one write
                       └ no: untouched to the parser, the task, the middleware (the full way)

Whether a request is plain is known before anything runs: a line and headers of a few well-known forms, a body
that is all there. A line or a block of headers that was read before means what it meant then, so most are
looked up, not read. What a handler then awaits is the engine alone. Should it want to wait for anything else
before it has run a command, it is dropped and the request goes the full way; so no command runs twice.

It leans on private parts of the very version of uvicorn that is pinned: the cycle and the pipeline of
`HttpToolsProtocol`, its timer for idle connections, the state that it shares with its server. The tests that
compare both ways byte by byte are the alarm.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Generator, Mapping, MutableMapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, NoReturn

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from app.calls import Answer, Call
from app.errors import Refusal
from app.gateway import Gateway, Phase
from app.guard import GuardedProtocol, Limits
from app.middleware.envelope import SAFETY, Envelope
from app.middleware.origins import Origins
from app.middleware.paths import segments
from app.routing import HotRoutes, Route, answer
from engine import Command, Engine, EngineError, Reply

Replies = Sequence[Reply | EngineError]

# Larger bodies take longer to read than a task costs.
body_bytes_max: Final = 256 << 10
# What is remembered of lines and heads: a few megabytes at most.
_head_bytes_max: Final = 2_048
_remembered_max: Final = 1_024
# What one client may send ahead of its answers before it is no longer listened to.
_ahead_bytes_max: Final = 64 << 10
# Large bodies are not copied behind their heads.
_joined_bytes_max: Final = 16 << 10

_VERSION: Final = b" HTTP/1.1"
_TARGET: Final = re.compile(rb"(GET|POST) (/v1/streams/[A-Za-z0-9._~%/-]+)")
_QUERY: Final = re.compile(rb"[A-Za-z0-9._~%+=&$(),:-]*")
_HEADER: Final = re.compile(rb"([A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)[ \t]*")
# No layer in front of the routes looks at these, or only as `_is_plain` does.
_HARMLESS: Final = frozenset(
    {
        *(b"host", b"connection", b"content-length", b"content-type", b"user-agent", b"prefer"),
        *(b"accept", b"accept-encoding", b"accept-language", b"idempotency-key", b"if-match"),
    }
)
_ACCEPTED: Final = frozenset({b"*/*", b"application/json", b"application/json, text/plain, */*"})
# They differ from request to request: not worth remembering.
_FLEETING: Final = frozenset({b"idempotency-key", b"if-match"})
_CLOSE: Final = (b"connection", b"close")


class Target(NamedTuple):
    """What a request's line asks for. `path` is as it came."""

    route: Route
    names: Mapping[str, str]
    method: str
    path: str


class Head(NamedTuple):
    """A request's headers, by their lower-case names, and the length of its body."""

    headers: Mapping[bytes, bytes]
    length: int


class Request(NamedTuple):
    """A plain request at the beginning of some bytes: its body stands in [`body_at`, `end`)."""

    target: Target
    query: bytes
    head: Head
    body_at: int
    end: int


# ---- a handler without a task


class _Turn:
    """What a handler awaits: the replies to these commands."""

    __slots__ = ("commands",)

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands

    def __await__(self) -> Generator["_Turn", Replies, Replies]:
        return (yield self)


class _Elsewhere:
    """What a handler awaits that cannot be had here."""

    __slots__ = ()

    def __await__(self) -> Generator["_Elsewhere", None, NoReturn]:
        yield self
        raise AssertionError("a handler that waits for something else is not run on")


async def _receive() -> MutableMapping[str, Any]:
    await _Elsewhere()


class ThinCall(Call):
    """A request whose body is in hand. `Exchange` runs its handler."""

    __slots__ = ("_body",)

    def __init__(self, gateway: Gateway, request: Request, body: bytes, request_id: str) -> None:
        state, headers = {"request_id": request_id}, request.head.headers
        scope = {"headers": headers, "query_string": request.query, "state": state}
        super().__init__(gateway, scope, _receive, request.target.names)
        self._body = body

    async def body(self) -> bytes:
        """The whole body."""
        return self._body

    async def execute(self, command: Command, *, synced: bool = False) -> Reply:
        """Run one command that does not wait."""
        if synced or getattr(command, "block_ms", None) is not None:
            await _Elsewhere()
        (reply,) = await _Turn((command,))
        if isinstance(reply, EngineError):
            raise reply
        return reply

    async def transaction(self, commands: Sequence[Command], *, synced: bool = False) -> list[Reply]:
        """Run commands as one turn; the first refusal among them is raised."""
        if synced:
            await _Elsewhere()
        replies: list[Reply] = []
        for reply in await _Turn(commands):
            if isinstance(reply, EngineError):
                raise reply
            replies.append(reply)
        return replies


class Exchange:
    """A handler at work: each turn that it wants is submitted, until there is an answer for `done`."""

    __slots__ = ("_done", "_engine", "_handler", "_replies", "_submitting")

    def __init__(
        self, engine: Engine, handler: Coroutine[object, Any, Answer], done: Callable[[Answer], None]
    ) -> None:
        self._engine = engine
        self._handler = handler
        self._done = done
        self._replies: Replies | None = None
        self._submitting = False

    def begin(self) -> bool:
        """Run until the answer is there or waited for. False, with nothing done, if it is had elsewhere."""
        try:
            wanted = self._handler.send(None)
        except StopIteration as ended:
            # An answer that is made while it is sent needs somebody to send it.
            plain = type(ended.value) is Answer
            if plain:
                self._done(ended.value)
            return plain
        if not isinstance(wanted, _Turn):
            self._handler.close()
            return False
        self._go_on(wanted)
        return True

    def _go_on(self, wanted: object) -> None:
        try:
            while (replies := self._submit(wanted)) is not None:
                wanted = self._handler.send(replies)
        except StopIteration as ended:
            self._done(ended.value)

    def _submit(self, wanted: object) -> Replies | None:
        """The replies, None if they come later. What goes wrong the handler is told: it has an answer."""
        self._submitting, self._replies = True, None
        try:
            assert isinstance(wanted, _Turn), "once it has run something a handler awaits the engine alone"
            self._engine.submit(wanted.commands, self._told)
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `routing.answer`
            self._handler.throw(error)
        finally:
            self._submitting = False
        return self._replies

    def _told(self, replies: Replies) -> None:
        if self._submitting:
            self._replies = replies
            return
        try:
            wanted = self._handler.send(replies)
        except StopIteration as ended:
            self._done(ended.value)
        else:
            self._go_on(wanted)


# ---- what is plain


class ThinWays:
    """What the connections of one application share: the hot routes, and what of requests was read before."""

    def __init__(self, gateway: Gateway, routes: HotRoutes, origins: Origins, envelope: Envelope) -> None:
        self.gateway = gateway
        self.envelope = envelope
        self._routes = routes
        self._origins = origins
        self._heads: dict[bytes, Head] = {}
        self._target = lru_cache(_remembered_max)(self._read_target)
        self._length_max = min(body_bytes_max, gateway.settings.body_bytes_max)
        self._head_max = min(_head_bytes_max, gateway.settings.head_bytes_max)
        # How answers begin, by status, and the headers of which that was made: they change with the date.
        self._starts: dict[int, bytes] = {}
        self._defaults: object = None

    def read(self, received: bytes) -> Request | None:
        """The request at the beginning of these bytes, whose body may be still to come; None if it is not
        plain.
        """
        head_at = received.find(b"\r\n")
        head_end = received.find(b"\r\n\r\n", head_at, self._head_max)
        if head_end < 0 or not received.startswith(_VERSION, head_at - len(_VERSION)):
            return None
        line, _, query = received[: head_at - len(_VERSION)].partition(b"?")
        target = self._target(line)
        if target is None or not (query == b"" or _QUERY.fullmatch(query)):
            return None
        block = received[head_at:head_end]
        head = self._heads.get(block) or self._read_head(block)
        if head is None:
            return None
        return Request(target, query, head, head_end + 4, head_end + 4 + head.length)

    def _read_target(self, line: bytes) -> Target | None:
        match = _TARGET.fullmatch(line)
        if match is None:
            return None
        method = match[1].decode()
        try:
            found = self._routes.find(method, segments(match[2]))
        except (Refusal, EngineError):
            return None
        return None if found is None else Target(*found, method, match[2].decode())

    def _read_head(self, block: bytes) -> Head | None:
        """The headers of a block, which begins with the end of the line before; None if one is not plain."""
        headers: dict[bytes, bytes] = {}
        for line in block[2:].split(b"\r\n"):
            match = _HEADER.fullmatch(line)
            name = match[1].lower() if match else b""
            if match is None or name not in _HARMLESS or name in headers:
                return None
            headers[name] = match[2]
        length = headers.get(b"content-length", b"0")
        if not self._is_plain(headers) or not length.isdigit() or len(length) > 9:
            return None
        head = Head(headers, int(length))
        if head.length > self._length_max:
            return None
        if not _FLEETING & headers.keys():
            if len(self._heads) >= _remembered_max:
                self._heads.clear()
            self._heads[block] = head
        return head

    def _is_plain(self, headers: Mapping[bytes, bytes]) -> bool:
        return (
            self._origins.knows(headers.get(b"host", b""))
            and headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
            and headers.get(b"accept", b"*/*") in _ACCEPTED
        )

    def begin(self, request: Request, body: bytes, request_id: str, done: Callable[[Answer], None]) -> bool:
        """Serve it. False, with nothing done, if that has to be elsewhere."""
        gateway = self.gateway
        if gateway.phase is not Phase.READY:
            return False
        call = partial(ThinCall, gateway, request, body, request_id)
        return Exchange(gateway.engine, answer(request.target.route, call, request_id), done).begin()

    def start(self, status: int, defaults: Sequence[tuple[bytes, bytes]]) -> bytes:
        """How an answer begins: its status and the server's headers."""
        if defaults is not self._defaults:
            self._defaults, self._starts = defaults, {}
        if status not in self._starts:
            self._starts[status] = STATUS_LINE[status] + _lines(defaults)
        return self._starts[status]


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


_SAFETY: Final = _lines(SAFETY)


# ---- a connection


class ThinProtocol(GuardedProtocol):
    """One connection, under its guard. Subclassed with the application's ways, see `thin`."""

    ways: ThinWays

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's, passed on
        super().__init__(*arguments, **named)
        # Bytes not looked at yet: behind a request whose answer is due, or of one that is not all there.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._missing_bytes = 0
        self._answering: _Answering | None = None
        self._leaving = False
        self._idle_since = 0.0
        self._idle: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._held or self._answering is not None:
            self._hold(data)
            if self._answering is not None or self._missing_bytes > 0:
                return
            data = self._release()
        rest = self._serve(data)
        if rest:
            super().data_received(rest)

    def _serve(self, data: bytes) -> bytes:
        """Serve plain requests; what is left for the parser, which is between two requests."""
        while data and self._is_in_turn():
            request = self.ways.read(data)
            if request is None:
                return data
            if request.end > len(data):
                self._await_body(data, request.end - len(data))
                return b""
            body = data[request.body_at : request.end]
            if not self._begin(request, body):
                return data
            data = data[request.end :]
            if self._answering is not None and data:
                self._hold(data)
                return b""
        return data

    def _is_in_turn(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return (
            self._complete
            and (cycle is None or cycle.response_complete)
            and not self.pipeline
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    # --- one request and its answer -------------------------------------------------------------------------

    def _begin(self, request: Request, body: bytes) -> bool:
        ways = self.ways
        began_s = ways.gateway.clock.monotonic()
        due = self._answering = _Answering(request.target, ways.envelope.new_id(), began_s)
        self._unset_keepalive_if_required()
        self._end_deadline()
        if ways.begin(request, body, due.request_id, self._answer):
            return True
        self._answering = None
        return False

    def _answer(self, answer: Answer) -> None:
        due = self._answering
        assert due is not None, "an exchange ends once"
        self._answering = None
        if not self.transport.is_closing():
            self._write(answer, due.request_id)
        self.server_state.total_requests += 1
        self.ways.envelope.note(
            due.request_id,
            due.target.method,
            due.target.path,
            status=answer.status_code,
            sent_bytes=len(answer.body),
            began_s=due.began_s,
        )
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(self.timeout_keep_alive, self._idle_over)
        if self._held:
            # Not within the turn that brought this answer.
            self.loop.call_soon(self._catch_up)

    def _write(self, answer: Answer, request_id: str) -> None:
        closing = self._leaving or _CLOSE in answer.raw_headers
        head = b"%b%bweir-request-id: %b\r\n%b%b\r\n" % (
            self.ways.start(answer.status_code, self.server_state.default_headers),
            _lines(answer.raw_headers),
            request_id.encode(),
            _SAFETY,
            b"connection: close\r\n" if self._leaving and _CLOSE not in answer.raw_headers else b"",
        )
        if len(answer.body) <= _joined_bytes_max:
            self.transport.write(head + answer.body)
        else:
            self.transport.writelines((head, answer.body))
        if closing:
            self.transport.close()

    # --- bytes that wait ------------------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        self._missing_bytes -= len(data)
        if self._answering is not None and self._held_bytes > _ahead_bytes_max:
            self.flow.pause_reading()

    def _release(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = self._missing_bytes = 0
        self._complete = True
        self.flow.resume_reading()
        return data

    def _await_body(self, data: bytes, missing_bytes: int) -> None:
        """The head is there: the body has the time of a request, as the guard has it."""
        self._unset_keepalive_if_required()
        self._hold(data)
        self._missing_bytes = missing_bytes
        self._complete = False
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.request_s_max, self._late)

    def _catch_up(self) -> None:
        if self._held and self._answering is None and self._missing_bytes <= 0:
            self.data_received(b"")

    # --- the connection's life ------------------------------------------------------------------------------

    def _idle_over(self) -> None:
        """Close what has been idle for long enough. There is one timer for many answers: it looks again where
        some came meanwhile.
        """
        self._idle = None
        if self.transport.is_closing() or self.timeout_keep_alive_task is not None:
            # Closed, or uvicorn's own timer runs, since the last answer went the full way.
            return
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self._answering is not None or not self._is_in_turn():
            left_s = self.timeout_keep_alive
        if left_s > 0:
            self._idle = self.loop.call_later(left_s, self._idle_over)
        else:
            self.transport.close()

    def _end_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def shutdown(self) -> None:
        if self._answering is not None:
            self._leaving = True
            return
        if self._held:
            super().data_received(self._release())
        super().shutdown()

    def handle_websocket_upgrade(self) -> None:
        self._end_idle()
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_idle()
        self._held.clear()
        super().connection_lost(exc)


class _Answering(NamedTuple):
    """A request whose answer is due."""

    target: Target
    request_id: str
    began_s: float


def thin(ways: ThinWays, limits: Limits) -> type[ThinProtocol]:
    """The protocol class with these ways and the guard's limits, for uvicorn's `http`."""
    return type("Thin", (ThinProtocol,), {"ways": ways, "limits": limits})
