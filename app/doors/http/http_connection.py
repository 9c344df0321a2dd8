"""One HTTP connection: its requests in order, its limits, its end.

Knows: bytes of a request's head, the time it may take to arrive, how long a peer may stop reading its answer,
how long a connection may be idle, whether the client is still connected, which request is answered now.
Must never know: how a request is framed, routes, what a refusal looks like.

Measured without limits: a silent peer, half a head, half a body and a reader that never reads stay connected
for ever.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import httptools

from app.auth import certificates
from app.auth.certificates import ClientCertificate
from app.doors.client import Client, place_of
from app.doors.http.answer_heads import CLOSE, Header, header_lines, status_line
from app.doors.http.asgi_request import AsgiRequest
from app.doors.http.request_parser import RequestHead, RequestParser
from app.doors.http.service import HttpService
from app.errors import RefusalError
from app.http.client_address import Client as Address
from app.http.responses import (
    CERTIFICATE_EXTENSION,
    DEPARTURE_EXTENSION,
    EXCHANGE_EXTENSION,
    GONE_EXTENSION,
    STALL_EXTENSION,
    TRANSPORT_EXTENSION,
    WRITE_EXTENSION,
    Scope,
)
from app.live.stalls import STALL_S_MAX
from app.live.turns import slice_of
from app.live.waiting import Departure
from app.transport.descriptors import Descriptors

# At a stop a peer has this long to answer TLS's goodbye; idle clients do not look for it.
_GOODBYE_S_MAX: Final = 1.0
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}

# Those of the whole process.
DESCRIPTORS: Final = Descriptors()

# Parsing a request takes as long as answering a simple one, and many small ones fit into what is received at
# once: so much is parsed before others have a turn, and more where it is the rest of one body.
_SLICE_BYTES_MIN: Final = 4 << 10
_SLICE_BYTES_MAX: Final = 64 << 10


class HttpConnection(Client):
    """One connection, within the limits of its service."""

    def __init__(self, service: HttpService) -> None:
        super().__init__(service.limits.stall_s_max)
        self.service = service
        self.limits = service.limits
        takes_sockets = service.websocket is not None
        self._parser = RequestParser(self, service.limits.head_bytes_max, takes_sockets=takes_sockets)
        self.client: Address | None = None
        # None without TLS, or where the client has shown none.
        self.client_certificate: ClientCertificate | None = None
        self.departure = Departure()
        # Further bytes are ignored; earlier requests are still answered, and then this is.
        self._is_refused = False
        self._refusal: RefusalError | None = None
        # The request that came last, the one that is answered now, and those between them.
        self._last: AsgiRequest | None = None
        self._answered: AsgiRequest | None = None
        self._pipeline: deque[AsgiRequest] = deque()
        # Of a handshake: the bytes behind it, which are not HTTP.
        self._behind: bytes | None = None
        # A request arrives whose head was read in front of the parser.
        self._is_arriving = False
        # Since when everything is answered; None while a request comes or is served.
        self.idle_since: float | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    # --- asyncio's ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: a peer that sends nothing has the time of a request."""
        super().connection_made(transport)
        self.service.connections.add(self)
        accepted: socket.socket = transport.get_extra_info("socket")
        self.client, self._server = place_of(accepted.getpeername), place_of(accepted.getsockname)
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        tls_connection = transport.get_extra_info("ssl_object")
        found = None if tls_connection is None else tls_connection.getpeercert()
        if found:
            self.client_certificate = certificates.read(found)
        self.extensions = {
            CERTIFICATE_EXTENSION: self.client_certificate,
            GONE_EXTENSION: self.transport.is_closing,
            DEPARTURE_EXTENSION: self.departure,
            STALL_EXTENSION: True,
            TRANSPORT_EXTENSION: self.transport,
            WRITE_EXTENSION: self._write_piece,
        }
        DESCRIPTORS.taken(accepted.fileno(), self.loop.time())
        self._time_request()

    def data_received(self, data: bytes) -> None:
        """Parse, unless requests before it still wait for their answers."""
        try:
            if self._behind is not None:
                self._behind += data
                self.pause_reading()
            elif self.is_behind:
                self.backlog += data
                self.pause_reading()
            else:
                self._parse_slices(data)
        except Exception as error:  # noqa: BLE001 - the transport would cut the connection, and say nothing
            self.fail(error)

    def eof_received(self) -> None:
        """Note that the client leaves. The transport closes next: HTTP's clients do not close one direction
        alone.
        """
        self.departure.note()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is under way for the client."""
        self.departure.note()
        self.service.connections.discard(self)
        self._end_idle()
        super().connection_lost(exc)
        self._may_write.set()
        for request in (self._last, self._answered):
            if request is not None:
                request.disconnect()
        self._parser.release()

    def pause_writing(self) -> None:
        """Hold answers back: the client does not take them."""
        self._may_write.clear()
        # Nothing comes behind a stream.
        last = None if self._last is None else self._last.scope["extensions"].get(EXCHANGE_EXTENSION)
        streams = last is not None and last.has_waited
        longest_s = self.limits.stall_s_max
        self.stall_s_max = min(longest_s, STALL_S_MAX) if streams else longest_s
        super().pause_writing()

    def resume_writing(self) -> None:
        """Let answers go on."""
        self._may_write.set()
        super().resume_writing()

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written."""
        await self._may_write.wait()

    def stalled(self) -> None:
        """End at once: nothing more would arrive."""
        self.transport.abort()

    def pause_reading(self) -> None:
        """Read nothing more for now."""
        self.set_reading(wanted=False)

    def resume_reading(self) -> None:
        """Read again, unless what came before still waits."""
        if not self.backlog and self._behind is None:
            self.set_reading(wanted=True)

    # --- what arrives ---------------------------------------------------------------------------------------

    def _parse_slices(self, data: bytes) -> None:
        """Parse until several requests have begun, or for a while; parse on once they are answered and others
        had a turn.
        """
        has_several, has_time = False, slice_of(self.service.monotonic)
        while data and not has_several and has_time():
            slice_bytes = max(min(self._parser.left_bytes, _SLICE_BYTES_MAX), _SLICE_BYTES_MIN)
            piece, data = data[:slice_bytes], data[slice_bytes:]
            behind = self._parse(piece)
            if self._parser.handshake is not None and not self._is_refused:
                self._upgrade(behind + data)
                return
            has_several = self._parser.begun > 1 or bool(self._pipeline)
        if data:
            self.backlog += data
            self.pause_reading()
            self._go_on()

    def _go_on(self) -> None:
        if self.backlog and not self._pipeline:
            self.loop.call_soon(self._parse_backlog)

    def _parse_backlog(self) -> None:
        if self.backlog and not self._pipeline and not self.transport.is_closing():
            data = self.take_backlog(len(self.backlog))
            self.resume_reading()
            self.data_received(data)

    def _parse(self, data: bytes) -> bytes:
        """Parse, within the time of a request. Returns what stands behind a handshake."""
        if self._is_refused:
            return b""
        self.idle_since = None
        parser, was_over = self._parser, self._parser.is_over
        try:
            behind = parser.feed(data)
        except RefusalError as refusal:
            self._refuse(refusal)
            return b""
        if parser.is_over and (parser.begun or not was_over):
            self.end_deadline()
        elif not parser.is_over or self._last is None or self._last.is_answered:
            # But not for blank lines while an answer is made: some clients end a body so.
            self._time_request()
        return behind

    def begin_request(self, head: RequestHead) -> None:
        """Serve a request of which the head is there, or keep it until those before it are answered."""
        url = httptools.parse_url(head.target)
        self.begin(head, url.path, url.query or b"")

    def begin(self, head: RequestHead, raw_path: bytes, query: bytes) -> None:
        """The same, of which the target is known by its parts."""
        path = raw_path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": head.version,
            "server": self._server,
            "client": self.client,
            "scheme": self._scheme,
            "method": head.method.decode("ascii"),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.headers,
            "extensions": self.extensions,
        }
        self.begin_scope(scope)
        before, self._last = self._last, AsgiRequest(self, head, scope)
        if before is None or before.is_answered:
            self._start(self._last)
        else:
            self.pause_reading()
            self._pipeline.append(self._last)

    def receive_body(self, data: bytes) -> None:
        """Keep a part of the body for the request that came last."""
        assert self._last is not None, "its head came before"
        self._last.add_body(data)

    def end_request(self) -> None:
        """The request that came last is complete."""
        assert self._last is not None, "its head came before"
        self._last.end_body()

    def _start(self, request: AsgiRequest) -> None:
        self._answered = request
        self.begin_parsed(request.scope, lambda: self._run(request))

    def _run(self, request: AsgiRequest) -> None:
        tasks = self.service.tasks
        task = self.loop.create_task(request.run(self.service.app))
        task.add_done_callback(tasks.discard)
        tasks.add(task)

    def _write_piece(self, piece: bytes) -> bool:
        """Write a part of the answer that is being sent, unless something waits. Returns whether it did."""
        request = self._answered
        if request is None or self.has_unsent or self.transport.is_closing():
            return False
        return request.write_piece(piece)

    @property
    def default_headers(self) -> list[Header]:
        """The server's headers; a new list each second."""
        return self.service.default_headers

    @property
    def is_unread_behind(self) -> bool:
        """Whether what has come behind the request that is answered now cannot be read."""
        return self._refusal is not None and not self._pipeline

    def end_answer(self) -> None:
        """Go on with the next request, or be idle."""
        if not self.transport.is_closing():
            self.resume_reading()
            if self._pipeline:
                self._start(self._pipeline.popleft())
            elif self._refusal is not None:
                self._write_refusal(self._refusal)
                self.transport.close()
            elif self._behind is not None:
                self._begin_handshake()
            else:
                self.begin_idle()
        self._go_on()

    # --- another protocol -----------------------------------------------------------------------------------

    def _upgrade(self, behind: bytes) -> None:
        self._behind = behind
        self.end_deadline()
        self._end_idle()
        if self._last is None or self._last.is_answered:
            self._begin_handshake()
        else:
            self.pause_reading()

    def _begin_handshake(self) -> None:
        handshake = self._parser.handshake
        assert handshake is not None, "it has come"
        self.begin_parsed({"client": self.client, "headers": handshake.headers}, self._hand_over)

    def _hand_over(self) -> None:
        handshake = self._parser.handshake
        assert handshake is not None, "it has come"
        behind, self._behind = self._behind, None
        self.resume_reading()
        self.service.connections.discard(self)
        assert self.service.websocket is not None, "it takes handshakes"
        shown = {CERTIFICATE_EXTENSION: self.client_certificate}
        successor = self.service.websocket(self.service, shown)
        successor.connection_made(self.transport)
        line = b"%b %b HTTP/1.1\r\n" % (handshake.method, handshake.target)
        successor.data_received(line + header_lines(handshake.headers) + b"\r\n")
        if behind:
            successor.data_received(behind)
        self.transport.set_protocol(successor)

    # --- for what answers requests in front of the parser ---------------------------------------------------

    def begin_scope(self, scope: Scope) -> None:
        """Note what is known of a request that the parser has read, where anything is."""

    def begin_parsed(self, scope: Mapping[str, Any], begin: Callable[[], None]) -> None:
        """Begin a request or a handshake that the parser has read."""
        begin()

    @property
    def is_upgraded(self) -> bool:
        """Whether a handshake has arrived: the bytes after it are not HTTP."""
        return self._behind is not None

    @property
    def is_between_requests(self) -> bool:
        """Whether the next bytes begin a request, and its answer can be written at once."""
        return (
            self._parser.is_over
            and self._behind is None
            and not self._is_arriving
            and (self._last is None or self._last.is_answered)
            and not self.is_behind
            and not self.has_unsent
            and not self.transport.is_closing()
        )

    @property
    def is_behind(self) -> bool:
        """Whether requests wait until those before them are answered: new ones wait behind them."""
        return bool(self._pipeline or self.backlog)

    def request_taken(self) -> None:
        """Note that a whole request waits in front of the parser, for its turn or its answer."""
        self.idle_since = None
        self.end_deadline()

    def request_arrives(self) -> None:
        """Note that a head has arrived: its body has the time of a request."""
        self.idle_since = None
        self._is_arriving = True
        self._time_request()

    def request_arrived(self) -> None:
        """Note that the body has arrived too."""
        self._is_arriving = False

    def begin_idle(self) -> None:
        """Note that everything is answered. One timer serves many answers: it is set again as it ends. A
        client that has left without its answer is not idle: the timer would keep its connection in memory.
        """
        if self.transport.is_closing():
            return
        self.idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(self.limits.keep_alive_s, self._end_of_idle)

    # --- limits ---------------------------------------------------------------------------------------------

    def _end_of_idle(self) -> None:
        """Close the connection, if it was idle for long enough."""
        self._idle = None
        if self.idle_since is None or self.transport.is_closing():
            return
        left_s = self.idle_since + self.limits.keep_alive_s - self.loop.time()
        if self.has_unsent:
            # The peer has still to take its answer, which has a limit of its own.
            left_s = self.limits.keep_alive_s
        if left_s > 0:
            self._idle = self.loop.call_later(left_s, self._end_of_idle)
        else:
            self.transport.close()

    def _end_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _time_request(self) -> None:
        if not self.has_deadline:
            self.begin_deadline(self.limits.request_s_max, self._end_request_time)

    def _end_request_time(self) -> None:
        if self.transport.is_closing():
            return
        if self._parser.is_over and not self._is_arriving:
            # Nothing came, or nothing but blank lines, which the parser passes over.
            self.transport.close()
        else:
            detail = f"a request arrives within {self.limits.request_s_max:g} seconds"
            self._refuse(RefusalError("request_timeout", detail))

    def _refuse(self, refusal: RefusalError) -> None:
        """Answer with the reason if no answer has begun, and close; but behind the answers to earlier
        requests: the client would take it for the first of those. Behind a refusal nothing is answered.
        """
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self.end_deadline()
        has_begun = self._parser.is_head_over and not self._parser.is_over
        if has_begun and self._pipeline:
            # It is refused instead of being begun.
            self._pipeline.pop()
            has_begun = False
        if has_begun and self._last is not None and self._last.is_answered:
            # What is wrong is the rest of a body that its answer did not wait for.
            self.transport.close()
            return
        answered = self._answered
        if answered is not None and not answered.is_answered and not has_begun:
            self._refusal = refusal
            if self._parser.is_foreign and self._last is not None:
                # The answer to the request that asked for another protocol is the last one.
                self._last.keeps_alive = False
            self.pause_reading()
            return
        if answered is None or answered.is_answered or not answered.is_started:
            self._write_refusal(refusal)
        self.transport.close()

    def _write_refusal(self, refusal: RefusalError) -> None:
        response = self.service.refuse(refusal)
        lines = header_lines([*self.default_headers, *response.raw_headers, CLOSE])
        self.transport.write(b"%b%b\r\n%b" % (status_line(response.status_code), lines, bytes(response.body)))

    def fail(self, error: Exception) -> None:
        """Answer that the gateway has failed to read what came, and close."""
        self.service.faults.note("http", error)
        # A refusal may be what has failed, and was not written.
        self._is_refused = self._refusal is not None
        self._refuse(RefusalError("internal", "something went wrong in the gateway; its log has more"))

    def shutdown(self) -> None:
        """Close the connection once its requests are answered."""
        if self._last is None or self._last.is_answered:
            self.transport.close()
        else:
            self._last.keeps_alive = False
        if self._scheme == "https" and self.transport.is_closing():
            self.loop.call_later(_GOODBYE_S_MAX, self.transport.abort)
