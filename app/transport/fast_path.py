"""The thin ways: hot requests answered where their bytes arrive, by the same handlers as everywhere else.

Knows: what makes a request plain, which entries may be stored together, how an answer becomes one write.
Must never know: what a handler does, and what any command means.

    bytes ─► plain, whole, in turn? ─ yes ─► a single entry ─► with those of other connections ─┐
                 │ no                └─────► its handler (`inline`) ────────────────────────────┴─► one write
                 └► untouched to the parser, then task, scope, middleware: the full way

Whether a request is plain is known before anything runs: a line and headers of a few well-known forms, a body
that is all there. A head that was read before means what it meant then, so most are looked up, not read.

It leans on private parts of the very version of uvicorn that is pinned: the cycle and the pipeline of
`HttpToolsProtocol`, its flow control, its timer for idle connections, the state that it shares with its
server. The tests that compare both ways byte by byte are the alarm.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from app.errors import Refusal, of_engine
from app.gateway import Gateway, Phase
from app.http import codings, entry_bodies
from app.http.calls import Answer, refused
from app.http.entry_bodies import Published
from app.http.media import NDJSON, MediaType
from app.http.operations import Operation
from app.http.origins import Origins
from app.http.paths import segments
from app.http.request_id import SAFETY, Envelope, as_refusal
from app.http.routing import HotRoutes, Route, answer
from app.transport.inline import CallInHand, Exchange, Replies
from app.transport.limits import GuardedProtocol, Limits
from engine import EngineError, ids
from engine.commands import XAdd
from engine.replies import Added

# Larger bodies take longer to read than a task costs.
BODY_BYTES_MAX: Final = 256 << 10
# What is remembered of lines and heads: a few megabytes at most.
_HEAD_BYTES_MAX: Final = 2_048
_REMEMBERED_MAX: Final = 1_024
# What one client may send ahead of its answers before it is no longer listened to.
_AHEAD_BYTES_MAX: Final = 64 << 10
# Requests that one connection has served before others have their turn.
_AT_ONCE_MAX: Final = 16
# Large bodies are not copied behind their heads.
_JOINED_BYTES_MAX: Final = 16 << 10

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
# Published together are entries that ask for nothing else.
_ASKING: Final = _FLEETING | {b"prefer"}
_ENTRY: Final = b'{"fields":{'
_LINES: Final = MediaType(NDJSON, NDJSON)
# So many bytes are read and stored at once, and those of one request more. Entries that gain nothing from
# company are alone from the beginning.
_GATHERED_BYTES_MAX: Final = 256 << 10
_GATHERED_ENTRY_BYTES_MAX: Final = 16 << 10
_CLOSE: Final = (b"connection", b"close")


class Target(NamedTuple):
    """What a request's line asks for. `path` is as it came."""

    route: Route | Operation
    names: Mapping[str, str]
    method: str
    path: str


class Due:
    """A request whose answer is due, on its connection; `data` is all of it."""

    __slots__ = ("began_s", "connection", "data", "request", "request_id")

    def __init__(self, connection: "ThinProtocol", request: "Request", data: bytes) -> None:
        ways = connection.ways
        self.connection = connection
        self.request = request
        self.data = data
        self.request_id = ways.envelope.new_id()
        self.began_s = ways.gateway.clock.monotonic()

    @property
    def body(self) -> bytes:
        """The request's body."""
        return self.data[self.request.body_at :]


class Head(NamedTuple):
    """A request's headers, by their lower-case names, and the length of its body."""

    headers: Mapping[bytes, bytes]
    length: int


class Request(NamedTuple):
    """A plain request: counted from its beginning, its body stands in [`body_at`, `end`).

    `stream` is where it publishes JSON and asks for nothing else, None for any other request.
    """

    target: Target
    query: bytes
    head: Head
    body_at: int
    end: int
    stream: str | None


# ---- what is plain


class ThinWays:
    """What the connections of one application share: the hot routes, and what of requests was read before."""

    def __init__(self, gateway: Gateway, routes: HotRoutes, origins: Origins, envelope: Envelope) -> None:
        self.gateway = gateway
        self.envelope = envelope
        self._routes = routes
        self._origins = origins
        self.gathering = Gathering(self)
        self._requests: dict[bytes, Request] = {}
        self._heads: dict[bytes, Head] = {}
        self._target = lru_cache(_REMEMBERED_MAX)(self._read_target)
        self._length_max = min(BODY_BYTES_MAX, gateway.settings.body_bytes_max)
        self._head_max = min(_HEAD_BYTES_MAX, gateway.settings.head_bytes_max)
        # How answers begin, by status, and the headers of which that was made: they change with the date.
        self._starts: dict[int, bytes] = {}
        self._defaults: object = None

    def read(self, received: bytes, at: int) -> Request | None:
        """The request that begins there, whose body may be still to come; None if it is not plain."""
        head_end = received.find(b"\r\n\r\n", at, at + self._head_max)
        if head_end < 0:
            return None
        whole = received[at:head_end]
        return self._requests.get(whole) or self._read(whole)

    def _read(self, whole: bytes) -> Request | None:
        line, end, headers = whole.partition(b"\r\n")
        if not end or not line.endswith(_VERSION):
            return None
        line, _, query = line[: -len(_VERSION)].partition(b"?")
        target = self._target(line)
        if target is None or not (query == b"" or _QUERY.fullmatch(query)):
            return None
        head = self._heads.get(headers) or self._read_head(headers)
        if head is None:
            return None
        body_at = len(whole) + 4
        plain = target.route.operation_id == "addEntries" and not query and _is_json_alone(head)
        stream = target.names["stream"] if plain else None
        request = Request(target, query, head, body_at, body_at + head.length, stream)
        # Queries differ from request to request.
        if not query and headers in self._heads:
            if len(self._requests) >= _REMEMBERED_MAX:
                self._requests.clear()
            self._requests[whole] = request
        return request

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
        """The headers of a block; None if one is not plain."""
        headers: dict[bytes, bytes] = {}
        for line in block.split(b"\r\n"):
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
            if len(self._heads) >= _REMEMBERED_MAX:
                self._heads.clear()
            self._heads[block] = head
        return head

    def _is_plain(self, headers: Mapping[bytes, bytes]) -> bool:
        return (
            self._origins.knows(headers.get(b"host", b""))
            and headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
            and headers.get(b"accept", b"*/*") in _ACCEPTED
        )

    def begin(self, due: Due) -> bool:
        """Serve it by its route's handler. False, with nothing done, if that has to be elsewhere."""
        gateway = self.gateway
        if gateway.phase is not Phase.READY:
            return False
        target, query, head, *_ = due.request
        scope = {"headers": head.headers, "query_string": query, "state": {"request_id": due.request_id}}
        called = partial(CallInHand, gateway, scope, target.names, due.body)
        handler = answer(target.route, called, due.request_id)
        return Exchange(gateway.engine, handler, due.connection.finish).begin()

    def place(self, stream: str) -> bytes:
        """How safe a published entry is, and where: up to its ID."""
        durability = self.gateway.engine.durability
        return f"weir-durability: {durability}\r\nlocation: /v1/streams/{_quoted(stream)}/entries/".encode()

    def start(self, status: int, defaults: Sequence[tuple[bytes, bytes]]) -> bytes:
        """How an answer begins: its status and the server's headers."""
        if defaults is not self._defaults:
            self._defaults, self._starts = defaults, {}
        if status not in self._starts:
            self._starts[status] = STATUS_LINE[status] + _lines(defaults)
        return self._starts[status]


@lru_cache(_REMEMBERED_MAX)
def _quoted(stream: str) -> str:
    return quote(stream, safe="")


def _is_json_alone(head: Head) -> bool:
    """Whether all that the headers say of a body is that it is JSON."""
    return head.headers.get(b"content-type") == b"application/json" and not _ASKING & head.headers.keys()


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


_SAFETY: Final = _lines(SAFETY)
_GOODBYE: Final = _lines([_CLOSE])
_PUBLISHED: Final = (
    b"%b%b%b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nweir-request-id: %b\r\n%b%b\r\n%b"
)


# ---- entries published side by side


class Gathering:
    """Single entries that many connections publish within one cycle of the loop: one command a stream.

    What a body says is not known before they are read together, so only those get here that begin as an
    entry does, on one line. Should one of them be anything else than a plain entry, or should the command be
    refused, which changes nothing, each goes a way of its own.
    """

    def __init__(self, ways: "ThinWays") -> None:
        self._ways = ways
        self._streams: dict[str, list[Due]] = {}
        self._bytes = 0

    def take(self, due: Due, stream: str) -> bool:
        """Publish it with others. False, with nothing done, if it has to be alone."""
        data, body_at = due.data, due.request.body_at
        on_one_line = data.startswith(_ENTRY, body_at) and data.find(b"\n", body_at) < 0
        if not on_one_line or len(data) > _GATHERED_ENTRY_BYTES_MAX:
            return False
        if not self._streams:
            due.connection.loop.call_soon(self._publish)
        self._streams.setdefault(stream, []).append(due)
        self._bytes += len(data)
        if self._bytes > _GATHERED_BYTES_MAX:
            self._publish()
        return True

    def _publish(self) -> None:
        streams, self._streams, self._bytes = self._streams, {}, 0
        for stream, dues in streams.items():
            self._publish_into(stream, dues)

    def _publish_into(self, stream: str, dues: Sequence[Due]) -> None:
        gateway = self._ways.gateway
        published = self._read(dues)
        if published is None or gateway.phase is not Phase.READY:
            self._each_alone(dues)
            return
        command = XAdd(stream=stream, bodies=published.bodies)
        try:
            # Before it is submitted: when the answer comes the gateway may drain.
            place = self._ways.place(stream)
            gateway.engine.submit((command,), partial(self._published, place, dues))
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `as_refusal`
            for due in dues:
                due.connection.finish(refused(as_refusal(error, due.request_id), due.request_id))

    def _read(self, dues: Sequence[Due]) -> Published | None:
        """All bodies as the lines of one; None unless each is one entry without an ID."""
        lines = b"\n".join([due.body for due in dues])
        try:
            published = entry_bodies.read(lines, _LINES, self._ways.gateway.entry_limits)
        except (Refusal, EngineError):
            return None
        return published if len(published.bodies) == len(dues) and not published.ids else None

    def _published(self, place: bytes, dues: Sequence[Due], replies: Replies) -> None:
        (reply,) = replies
        if isinstance(reply, EngineError) and reply.code == "internal":
            # Whichever of them it was that is poison, none is tried again.
            for due in dues:
                due.connection.finish(refused(of_engine(reply), due.request_id))
            return
        if not isinstance(reply, Added):
            self._each_alone(dues)
            return
        for due, entry_id in zip(dues, reply.ids, strict=True):
            due.connection.finish_published(due, place, b"%d-%d" % divmod(entry_id, 1 << ids.SEQUENCE_BITS))

    def _each_alone(self, dues: Sequence[Due]) -> None:
        for due in dues:
            if not self._ways.begin(due):
                due.connection.go_full_way(due)


# ---- a connection


class ThinProtocol(GuardedProtocol):
    """One connection, under its guard. Subclassed with the application's ways, see `thin`."""

    ways: ThinWays

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's, passed on
        super().__init__(*arguments, **named)
        # Bytes not looked at yet: behind a request whose answer is due, behind many in a row, or of one that
        # is not all there, of which so many are missing.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._missing_bytes = 0
        self._catching_up = False
        self._answering: Due | None = None
        self._leaving = False
        self._idle_since = 0.0
        self._idle: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._held or self._answering is not None:
            self._hold(data)
            if self._answering is not None or self._catching_up or self._missing_bytes > 0:
                return
            data = self._release()
        rest = self._serve(data)
        if rest:
            super().data_received(rest)

    def _serve(self, data: bytes) -> bytes:
        """Serve plain requests; what is left for the parser, which is between two requests."""
        at = 0
        for _ in range(_AT_ONCE_MAX):
            request = self.ways.read(data, at) if at < len(data) and self._is_in_turn() else None
            if request is None:
                return data[at:]
            end = at + request.end
            if end > len(data):
                self._await_body(data[at:], end - len(data))
                return b""
            if not self._begin(request, data[at:end]):
                return data[at:]
            at = end
            if self._answering is not None:
                break
        if at < len(data):
            self._hold(data[at:])
            if self._answering is None:
                self._catch_up_soon()
        return b""

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

    def _begin(self, request: Request, data: bytes) -> bool:
        ways = self.ways
        due = self._answering = Due(self, request, data)
        self._unset_keepalive_if_required()
        self._end_deadline()
        stream = request.stream
        if (stream is not None and ways.gathering.take(due, stream)) or ways.begin(due):
            return True
        self._answering = None
        return False

    def go_full_way(self, due: Due) -> None:
        """Hand a request that was taken, and not begun, to the parser."""
        self._answering = None
        if not self.transport.is_closing():
            super().data_received(due.data)
            if self._leaving:
                super().shutdown()
            self._catch_up_soon()

    @property
    def _is_last(self) -> bool:
        """Whether the answer that is due is the connection's last one: the server or the gateway stops."""
        return self._leaving or self.ways.gateway.phase is Phase.DRAINING

    def finish(self, answer: Answer) -> None:
        """Send the answer that is due; a large one in the coding that its client accepts."""
        due = self._answering
        assert due is not None, "an exchange ends once"
        if len(answer.body) >= codings.CODED_BYTES_MIN and codings.gains(answer.raw_headers):
            chosen = codings.accepted(due.request.head.headers.get(b"accept-encoding", b""))
            if chosen is not None:
                making = self.loop.run_in_executor(None, codings.compressed, bytes(answer.body), chosen)
                making.add_done_callback(partial(self._finish_coded, due, answer, chosen))
                return
            answer.raw_headers = codings.varied(answer.raw_headers)
        self._finish(due, answer)

    def _finish_coded(
        self, due: Due, answer: Answer, chosen: codings.Coding, made: asyncio.Future[bytes]
    ) -> None:
        if made.exception() is None:
            answer.body = made.result()
            answer.raw_headers = codings.coded(answer.raw_headers, chosen, len(answer.body))
        self._finish(due, answer)

    def _finish(self, due: Due, answer: Answer) -> None:
        if not self.transport.is_closing():
            self._write(answer, due.request_id)
        elif answer.unsent is not None:
            answer.unsent()
        self._ended(due, answer.status_code, len(answer.body))

    def finish_published(self, due: Due, place: bytes, written_id: bytes) -> None:
        """Send the answer that is due for a single entry: what its route would say, put together at once.
        `place` are the headers of its durability and its location, up to the ID.
        """
        content = b'{"id":"%b","duplicate":false}' % written_id
        if not self.transport.is_closing():
            self.transport.write(
                _PUBLISHED
                % (
                    self.ways.start(201, self.server_state.default_headers),
                    place,
                    written_id,
                    len(content),
                    due.request_id.encode(),
                    _SAFETY,
                    _GOODBYE if self._is_last else b"",
                    content,
                )
            )
            if self._is_last:
                self.transport.close()
        self._ended(due, 201, len(content))

    def _ended(self, due: Due, status: int, sent_bytes: int) -> None:
        self._answering = None
        self.server_state.total_requests += 1
        target = due.request.target
        self.ways.envelope.note(
            due.request_id,
            target.method,
            target.path,
            status=status,
            sent_bytes=sent_bytes,
            began_s=due.began_s,
        )
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(self.timeout_keep_alive, self._idle_over)
        self._catch_up_soon()

    def _write(self, answer: Answer, request_id: str) -> None:
        closing = self._is_last or _CLOSE in answer.raw_headers
        head = b"%b%bweir-request-id: %b\r\n%b%b\r\n" % (
            self.ways.start(answer.status_code, self.server_state.default_headers),
            _lines(answer.raw_headers),
            request_id.encode(),
            _SAFETY,
            _GOODBYE if self._is_last and _CLOSE not in answer.raw_headers else b"",
        )
        if len(answer.body) <= _JOINED_BYTES_MAX:
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
        if self._missing_bytes <= 0 and self._held_bytes > _AHEAD_BYTES_MAX:
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
        self._missing_bytes = missing_bytes + len(data)
        self._hold(data)
        self._complete = False
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.request_s_max, self._late)

    def _catch_up_soon(self) -> None:
        if self._held and not self._catching_up:
            # Others come first, and the turn that brought an answer.
            self._catching_up = True
            self.loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        if self._held and not self.transport.is_closing():
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


def thin(ways: ThinWays, limits: Limits) -> type[ThinProtocol]:
    """The protocol class with these ways and the guard's limits, for uvicorn's `http`."""
    return type(
        "Thin",
        (ThinProtocol,),
        {"ways": ways, "limits": limits, "refuse": staticmethod(ways.envelope.refuse)},
    )
