"""A guard in front of uvicorn's HTTP protocol: limits that apply before there is a request.

Knows: bytes of a request's head, the time it may take to arrive, how long a peer may stop reading its answer,
and whether the client is still connected.
Must never know: ASGI, routes, what a refusal looks like.

It uses private attributes of the pinned version of uvicorn; the tests of slow and oversized requests fail if
those change.

Measured without it (uvicorn 0.54): httptools takes heads of 200 MB; a silent peer, half a head, half a body
and a reader that never reads stay connected for ever.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.auth import certificates
from app.auth.certificates import CERTIFICATE_STATE, ClientCertificate
from app.errors import RefusalError
from app.http.responses import (
    DEPARTURE_EXTENSION,
    GONE_EXTENSION,
    STALL_EXTENSION,
    TRANSPORT_EXTENSION,
    WAITED_STATE,
    Response,
)
from app.live.stalls import STALL_S_MAX, StallTimer
from app.live.waiting import Departure
from app.transport.descriptors import Descriptors

# Makes the answer to a refused request; its request ID is in the log.
Refuse = Callable[[RefusalError], Response]
# Forms of a target: a path, `*`, or a whole URL, whose host has to be that of the Host header.
_ABSOLUTE: Final = re.compile(rb"https?://([^/?]*)(?:[/?].*)?", re.IGNORECASE | re.DOTALL)

# What a head has besides its method, its path and its headers.
_LINE_BYTES: Final = len("  HTTP/1.1\r\n\r\n")
# At a stop a peer has this long to answer TLS's goodbye; idle clients do not look for it.
_GOODBYE_S_MAX: Final = 1.0

# Those of the whole process.
DESCRIPTORS: Final = Descriptors()


# Parsing a request takes as long as answering a simple one, and many small ones fit into what is received at
# once: so much is parsed before others have a turn, and more where it holds one request at most.
_SLICE_BYTES_MIN: Final = 4 << 10
_SLICE_BYTES_MAX: Final = 64 << 10


class _HeadTooLargeError(Exception):
    """Raised inside the parser, which then stops."""


class _AmbiguousError(Exception):
    """Also raised inside the parser: a proxy may have read this head in another way."""


class Limits(NamedTuple):
    """Bytes of a head, seconds in which a request arrives, seconds in which a reader takes something."""

    head_bytes_max: int
    request_s_max: float
    stall_s_max: float


class _FlowControl(FlowControl):
    """Pauses reading while received data waits; uvicorn would resume it for the body of each request."""

    def __init__(self, transport: asyncio.Transport, is_behind: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_behind = is_behind

    def resume_reading(self) -> None:
        if not self._is_behind():
            super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    """One connection. Subclassed with its limits, see `guarded`."""

    limits: Limits
    # A plain function: `guarded` keeps it from becoming a method.
    refuse: Refuse

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's, passed on
        super().__init__(*arguments, **named)
        # None without TLS, or where the client has shown none.
        self.client_certificate: ClientCertificate | None = None
        # Further bytes are ignored; earlier requests are still answered.
        self._refused = False
        # Of a head that is not over: what came of it, and what the parser has made of it.
        self._head_bytes = 0
        self._parsed_bytes = 0
        self._begun = 0
        self._complete = True
        self._head_over = False
        # What came since the head or the last of the body and is none: extensions of chunks, trailers.
        self._void_bytes = 0
        self._body_came = False
        # The request that is answered now; `cycle` is the last one that came.
        self._answered: RequestResponseCycle | None = None
        # Received and not parsed: requests before it wait for their answers, or others have a turn.
        self._backlog = b""
        self._slice_bytes = _SLICE_BYTES_MIN
        self._upgraded = False
        self._deadline: asyncio.TimerHandle | None = None
        self.departure = Departure()
        self._stall: StallTimer | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _FlowControl(transport, lambda: bool(self._backlog))
        tls_connection = transport.get_extra_info("ssl_object")
        found = None if tls_connection is None else tls_connection.getpeercert()
        if found:
            self.client_certificate = certificates.read(found)
            # In the state of its requests and of its WebSocket.
            self.app_state = {**self.app_state, CERTIFICATE_STATE: self.client_certificate}
        DESCRIPTORS.taken(transport.get_extra_info("socket").fileno(), self.loop.time())
        # A peer that sends nothing has the time of a request.
        self._deadline = self.loop.call_later(self.limits.request_s_max, self._late)

    def eof_received(self) -> None:
        # The transport closes next: HTTP's clients do not close one direction alone.
        self.departure.note()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.departure.note()
        self._end_deadline()
        self.resume_writing()
        super().connection_lost(exc)
        # uvicorn does so for `cycle` alone.
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._backlog or self.pipeline:
            self._backlog += data
            self.flow.pause_reading()
        else:
            self._parse_slices(data)

    def _parse_slices(self, data: bytes) -> None:
        """Parse until several requests have begun; parse on once they are answered and others had a turn."""
        has_several = False
        while data and not has_several:
            piece, data = data[: self._slice_bytes], data[self._slice_bytes :]
            self._parse(piece)
            has_several = self._begun > 1 or bool(self.pipeline)
            self._slice_bytes = (
                _SLICE_BYTES_MIN if has_several else min(2 * self._slice_bytes, _SLICE_BYTES_MAX)
            )
        if data and not self._upgraded:
            self._backlog = data
            self.flow.pause_reading()
            self._go_on()

    def _go_on(self) -> None:
        if self._backlog and not self.pipeline:
            self.loop.call_soon(self._parse_backlog)

    def _parse_backlog(self) -> None:
        if self._backlog and not self.pipeline and not self.transport.is_closing():
            data, self._backlog = self._backlog, b""
            self.flow.resume_reading()
            self.data_received(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._backlog:
            self._go_on()

    def _parse(self, data: bytes) -> None:
        if self._refused:
            return
        before, was_idle = self._head_bytes, self._complete
        awaits_body = self._head_over and not was_idle
        self._begun, self._body_came = 0, False
        super().data_received(data)
        # The head goes on: what the parser holds back of a long header counts too, unless these bytes are of
        # an earlier request as well.
        if self._head_bytes and (before or (was_idle and self._begun == 1)):
            self._head_bytes = before + len(data)
        if awaits_body:
            self._void_bytes = 0 if self._body_came or self._complete else self._void_bytes + len(data)
        longest = max(self._head_bytes, self._void_bytes)
        if longest > self.limits.head_bytes_max and not self.transport.is_closing():
            self._refuse("headers_too_large", self._too_large)
        cycle: RequestResponseCycle | None = self.cycle
        if self._complete and (self._begun or not was_idle):
            self._end_deadline()
        elif self._complete and cycle is not None and not cycle.response_complete:
            # Blank lines while an answer is made: some clients end a body so.
            return
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.request_s_max, self._late)

    def on_message_begin(self) -> None:
        self._head_bytes = 1
        self._parsed_bytes = 0
        self._begun += 1
        self._complete = self._head_over = False
        self._void_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer is no header: what it would say of the request has been decided.
        if not self._head_over:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._count(len(self.parser.get_method()) + _LINE_BYTES)
        if _is_ambiguous(self.parser.get_http_version(), self.url, self.headers):
            raise _AmbiguousError
        self._head_bytes = 0
        self._head_over = True
        # uvicorn's `send` silently drops data after the peer has left, and reports the end later.
        cast("dict[str, Any]", self.scope)["extensions"] = {
            GONE_EXTENSION: self.transport.is_closing,
            DEPARTURE_EXTENSION: self.departure,
            STALL_EXTENSION: True,
            TRANSPORT_EXTENSION: self.transport,
        }
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._complete = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Callable[..., Any]) -> None:
        is_old = cycle.scope["http_version"] == "1.0"
        # HTTP/1.0 has no 100 Continue (RFC 9110, 10.1.1).
        cycle.waiting_for_100_continue &= not is_old

        async def response(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - uvicorn's, passed on
            await app(scope, receive, partial(_send_unchunked, cycle) if is_old else send)
            # What was not answered because the connection was closing is no mistake, which uvicorn would log.
            if not cycle.response_started and self.transport.is_closing():
                cycle.disconnected = True

        self._answered = cycle
        scope = cast("Mapping[str, Any]", cycle.scope)
        self.begin_parsed(scope, partial(super()._start_asgi_task, cycle, response))

    def shutdown(self) -> None:
        super().shutdown()
        if self.scheme == "https" and self.transport.is_closing():
            self.loop.call_later(_GOODBYE_S_MAX, self.transport.abort)

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        self._end_deadline()
        scope = cast("Mapping[str, Any]", self.scope)
        self.begin_parsed(scope, super().handle_websocket_upgrade)

    @property
    def _stall_s_max(self) -> float:
        # Of the request that was parsed last: nothing comes behind a stream. On the fast path there is none.
        scope = cast("Mapping[str, Any] | None", self.scope)
        streams = scope is not None and WAITED_STATE in scope.get("state", ())
        return min(self.limits.stall_s_max, STALL_S_MAX) if streams else self.limits.stall_s_max

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = StallTimer(self.transport, self._stall_s_max, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        if self._parsed_bytes > self.limits.head_bytes_max:
            self._refuse("headers_too_large", self._too_large)
        else:
            self._refuse("malformed_request", "it cannot be read as HTTP/1.1, or it can be read in two ways")

    @property
    def _too_large(self) -> str:
        return f"a request's line and headers have at most {self.limits.head_bytes_max} bytes"

    # --- for what answers requests in front of the parser ---------------------------------------------------

    def begin_parsed(self, scope: Mapping[str, Any], begin: Callable[[], None]) -> None:
        """Begin a request or a handshake that the parser has read."""
        begin()

    @property
    def is_upgraded(self) -> bool:
        """Whether a handshake has arrived: the bytes after it are not HTTP."""
        return self._upgraded

    @property
    def is_between_requests(self) -> bool:
        """Whether the next bytes begin a request, and its answer can be written at once."""
        cycle: RequestResponseCycle | None = self.cycle
        return (
            self._complete
            and (cycle is None or cycle.response_complete)
            and not self.is_behind
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    @property
    def is_behind(self) -> bool:
        """Whether requests wait until those before them are answered: new ones wait behind them."""
        return bool(self.pipeline or self._backlog)

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """The server's headers; a new list each second."""
        return self.server_state.default_headers

    @property
    def keep_alive_s(self) -> float:
        """How long a connection may be idle."""
        return self.timeout_keep_alive

    @property
    def is_timed_by_parser(self) -> bool:
        """Whether uvicorn's own timer for idle connections runs."""
        return self.timeout_keep_alive_task is not None

    def request_taken(self) -> None:
        """Note that a whole request waits in front of the parser, for its turn or its answer."""
        self._unset_keepalive_if_required()
        self._end_deadline()

    def request_arrives(self) -> None:
        """Note that a head has arrived: its body has the time of a request."""
        self._unset_keepalive_if_required()
        self._complete = False
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.request_s_max, self._late)

    def request_arrived(self) -> None:
        """Note that the body has arrived too."""
        self._complete = True

    def count_answer(self) -> None:
        """Count an answer for the server's limit of requests."""
        self.server_state.total_requests += 1

    def pause_reading(self) -> None:
        """Stop reading from the peer."""
        self.flow.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self.flow.resume_reading()

    # --- limits ---------------------------------------------------------------------------------------------

    def _count(self, length: int) -> None:
        self._parsed_bytes += length
        if self._parsed_bytes > self.limits.head_bytes_max:
            raise _HeadTooLargeError

    def _late(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._complete:
            # Nothing came, or nothing but blank lines, which the parser passes over.
            self.transport.close()
        else:
            self._refuse("request_timeout", f"a request arrives within {self.limits.request_s_max:g} seconds")

    def _refuse(self, code: str, detail: str) -> None:
        """Answer with the reason if no answer has begun, and close.

        If earlier requests still wait for their answers, the refusal would be taken for the first of those:
        they are answered, and then the connection closes without it.
        """
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._end_deadline()
        cycle: RequestResponseCycle | None = self.cycle
        answered = cycle is None or cycle.response_complete
        is_its_own = self._head_over and not self._complete
        if cycle is not None and not answered and not is_its_own:
            cycle.keep_alive = False
            self.flow.pause_reading()
            return
        if answered or (cycle is not None and not cycle.response_started):
            self._write_refusal(self.refuse(RefusalError(code, detail)))
        self.transport.close()

    def _write_refusal(self, response: Response) -> None:
        headers = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        self.transport.write(STATUS_LINE[response.status_code] + lines + b"\r\n" + bytes(response.body))

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


async def _send_unchunked(cycle: RequestResponseCycle, message: Any) -> None:  # noqa: ANN401 - uvicorn's
    """Send to a client of HTTP/1.0, which knows no chunks (RFC 9112, 6.1): a body without a length ends with
    the connection.
    """
    if message["type"] == "http.response.start":
        if all(name.lower() != b"content-length" for name, _ in message["headers"]):
            cycle.chunked_encoding = False
    else:
        # uvicorn refuses a body that is not as long as expected.
        cycle.expected_content_length = len(message.get("body", b""))
    await cycle.send(message)


def _is_ambiguous(version: str, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether the length of the body or the target can be read in two ways, though the parser accepts the
    head.
    """
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if version not in ("1.0", "1.1") or (codings and (version == "1.0" or len(codings) > 1)):
        return True
    if codings and codings[0].strip().lower() != b"chunked":
        return True
    if url.startswith(b"/") or url == b"*":
        return b"#" in url
    absolute = _ABSOLUTE.fullmatch(url)
    hosts = [value.lower() for name, value in headers if name == b"host"]
    return absolute is None or b"#" in url or hosts != [absolute[1].lower()]


def guarded(limits: Limits, refuse: Refuse) -> type[HttpConnection]:
    """The protocol class with these limits, for uvicorn's `http`."""
    return type("Guarded", (HttpConnection,), {"limits": limits, "refuse": staticmethod(refuse)})


def status_line(status: int) -> bytes:
    """An answer's first line."""
    return STATUS_LINE[status]
