"""The fast path: plain requests are answered where their bytes arrive, by the endpoints of their routes.

Knows: when a connection is between two requests, how an answer becomes one write.
Must never know: what an operation does; it knows none by its name.

    bytes ─► plain, whole, in turn? ─ yes ─► a single entry ─► with those of other connections ─┐
                 │ no                └─────► its endpoint (`inline`) ───────────────────────────┴─► one write
                 └► untouched to the parser, then task, scope, middleware: the ordinary way

Tests that compare both ways byte by byte (tests/app/test_fast_path.py) hold them together.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from app.auth import Action, Resource
from app.gateway import Gateway, Phase
from app.http.middleware import codings
from app.http.middleware.origins import Origins
from app.http.middleware.request_id import SAFETY, RequestIds
from app.http.operations.table import RouteTable
from app.http.responses import Response
from app.transport.coalescing import PublishCoalescer
from app.transport.http_connection import HttpConnection, Limits, status_line
from app.transport.inline import InlineHandler, InlineRequest
from app.transport.plain_requests import PlainRequest, PlainRequests

# What one client may send ahead of its answers before reading from it is paused.
_AHEAD_BYTES_MAX: Final = 64 << 10
# Requests that one connection has served before others have their turn.
_AT_ONCE_MAX: Final = 16
# Large bodies are not copied behind their heads.
_JOINED_BYTES_MAX: Final = 16 << 10
_CLOSE: Final = (b"connection", b"close")


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


_SAFETY: Final = _lines(SAFETY)
_GOODBYE: Final = _lines([_CLOSE])
_ENTRY_STORED: Final = (
    b"%b%b%b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nweir-request-id: %b\r\n%b%b\r\n%b"
)


class FastPath:
    """What the connections of one application share."""

    def __init__(
        self, gateway: Gateway, routes: RouteTable, origins: Origins, request_ids: RequestIds
    ) -> None:
        self.gateway = gateway
        self.request_ids = request_ids
        self.requests = PlainRequests(gateway.settings, routes, origins)
        self.coalescer = PublishCoalescer(gateway)
        # How answers begin, by status; made of the server's headers, which change with the date.
        self._starts: dict[int, bytes] = {}
        self._defaults: object = None

    def start(self, status: int, defaults: Sequence[tuple[bytes, bytes]]) -> bytes:
        """How an answer begins: its status and the server's headers."""
        if defaults is not self._defaults:
            self._defaults, self._starts = defaults, {}
        if status not in self._starts:
            self._starts[status] = status_line(status) + _lines(defaults)
        return self._starts[status]


class PendingRequest:
    """A request that waits for its answer, on its connection; `data` is all of it."""

    __slots__ = ("began_s", "connection", "data", "request", "request_id")

    def __init__(self, connection: "FastPathConnection", request: PlainRequest, data: bytes) -> None:
        self.connection = connection
        self.request = request
        self.data = data
        self.request_id = connection.shared.request_ids.new_id()
        self.began_s = connection.shared.gateway.clock.monotonic()

    @property
    def body(self) -> bytes:
        """The request's body."""
        return self.data[self.request.body_at :]

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next cycle of the loop."""
        self.connection.loop.call_soon(callback)

    def begin(self) -> bool:
        """Serve it by its route's endpoint. False, with nothing done, if that has to be the ordinary way."""
        gateway = self.connection.shared.gateway
        if gateway.phase is not Phase.READY:
            return False
        target, query, head, *_ = self.request
        scope = {"headers": head.headers, "query_string": query, "state": {"request_id": self.request_id}}
        called = partial(InlineRequest, gateway, scope, target.names, self.body)
        handler = target.route.respond(called, self.request_id)
        return InlineHandler(gateway.engine, handler, self.finish).begin()

    def serve(self) -> None:
        """Serve it by its route, one way or the other."""
        if not self.begin():
            self.connection.hand_to_parser(self)

    def finish(self, response: Response) -> None:
        """Answer it."""
        self.connection.finish(response)

    def finish_entry(self, location: bytes, entry_id: bytes) -> None:
        """Answer that the entry is stored; `location` are headers that end with the entry's ID."""
        self.connection.finish_entry(self, location, entry_id)


class FastPathConnection(HttpConnection):
    """One connection, under its limits. Subclassed for an application, see `fast_path`."""

    shared: FastPath

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's, passed on
        super().__init__(*arguments, **named)
        # Bytes not looked at yet: behind a request that waits for its answer, behind many in a row, or of a
        # request of which `_missing_bytes` are still to come.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._missing_bytes = 0
        self._catching_up = False
        self._answering: PendingRequest | None = None
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
            is_in_turn = at < len(data) and self.is_between_requests
            request = self.shared.requests.read(data, at) if is_in_turn else None
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

    # --- one request and its answer -------------------------------------------------------------------------

    def _begin(self, request: PlainRequest, data: bytes) -> bool:
        pending = self._answering = PendingRequest(self, request, data)
        self.request_taken()
        stream = request.stream
        if stream is not None and self._may_publish(request, stream):  # noqa: SIM102 - one decision, one act
            if self.shared.coalescer.add(pending, stream):
                return True
        if pending.begin():
            return True
        self._answering = None
        return False

    def _may_publish(self, request: PlainRequest, stream: str) -> bool:
        """Whether the caller is known to have the right to publish. Otherwise its route decides."""
        principal = self.shared.gateway.policy.recognise(request.head.headers)
        return principal is not None and principal.may(Action.WRITE, Resource(stream))

    def hand_to_parser(self, pending: PendingRequest) -> None:
        """Serve a request that was taken, and not begun, the ordinary way."""
        self._answering = None
        if not self.transport.is_closing():
            super().data_received(pending.data)
            if self._leaving:
                super().shutdown()
            self._catch_up_soon()

    @property
    def _is_last(self) -> bool:
        """Whether the answer that is due is the connection's last one: the server or the gateway stops."""
        return self._leaving or self.shared.gateway.phase is Phase.DRAINING

    def finish(self, response: Response) -> None:
        """Send the answer that is due; a large one in the coding that its client accepts."""
        pending = self._answering
        assert pending is not None, "an exchange ends once"
        if len(response.body) >= codings.CODED_BYTES_MIN and codings.gains(response.raw_headers):
            chosen = codings.accepted(pending.request.head.headers.get(b"accept-encoding", b""))
            if chosen is not None:
                making = self.loop.run_in_executor(None, codings.compressed, bytes(response.body), chosen)
                making.add_done_callback(partial(self._finish_coded, pending, response, chosen))
                return
            response.raw_headers = codings.varied(response.raw_headers)
        self._finish(pending, response)

    def _finish_coded(
        self, pending: PendingRequest, response: Response, chosen: codings.Coding, made: asyncio.Future[bytes]
    ) -> None:
        if made.exception() is None:
            response.body = made.result()
            response.raw_headers = codings.coded(response.raw_headers, chosen, len(response.body))
        self._finish(pending, response)

    def _finish(self, pending: PendingRequest, response: Response) -> None:
        if not self.transport.is_closing():
            self._write(response, pending.request_id)
        elif response.unsent is not None:
            response.unsent()
        self._ended(pending, response.status_code, len(response.body))

    def finish_entry(self, pending: PendingRequest, location: bytes, entry_id: bytes) -> None:
        """Send what the route would say of a single entry that is stored."""
        content = b'{"id":"%b","duplicate":false}' % entry_id
        if not self.transport.is_closing():
            self.transport.write(
                _ENTRY_STORED
                % (
                    self.shared.start(201, self.default_headers),
                    location,
                    entry_id,
                    len(content),
                    pending.request_id.encode(),
                    _SAFETY,
                    _GOODBYE if self._is_last else b"",
                    content,
                )
            )
            if self._is_last:
                self.transport.close()
        self._ended(pending, 201, len(content))

    def _ended(self, pending: PendingRequest, status: int, sent_bytes: int) -> None:
        self._answering = None
        self.count_answer()
        target = pending.request.target
        self.shared.request_ids.note(
            pending.request_id,
            target.method,
            target.path,
            status=status,
            sent_bytes=sent_bytes,
            began_s=pending.began_s,
        )
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(self.keep_alive_s, self._idle_over)
        self._catch_up_soon()

    def _write(self, response: Response, request_id: str) -> None:
        closing = self._is_last or _CLOSE in response.raw_headers
        head = b"%b%bweir-request-id: %b\r\n%b%b\r\n" % (
            self.shared.start(response.status_code, self.default_headers),
            _lines(response.raw_headers),
            request_id.encode(),
            _SAFETY,
            _GOODBYE if self._is_last and _CLOSE not in response.raw_headers else b"",
        )
        if len(response.body) <= _JOINED_BYTES_MAX:
            self.transport.write(head + response.body)
        else:
            self.transport.writelines((head, response.body))
        if closing:
            self.transport.close()

    # --- bytes that wait ------------------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes <= 0 and self._held_bytes > _AHEAD_BYTES_MAX:
            self.pause_reading()

    def _release(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = self._missing_bytes = 0
        self.request_arrived()
        self.resume_reading()
        return data

    def _await_body(self, data: bytes, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes + len(data)
        self._hold(data)
        self.request_arrives()

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
        if self.transport.is_closing() or self.is_timed_by_parser:
            # Closed, or uvicorn's own timer runs, since the last answer went the full way.
            return
        left_s = self._idle_since + self.keep_alive_s - self.loop.time()
        if self._answering is not None or not self.is_between_requests:
            left_s = self.keep_alive_s
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


def fast_path(shared: FastPath, limits: Limits) -> type[FastPathConnection]:
    """The protocol class for uvicorn's `http`, with these limits."""
    return type(
        "FastPathConnectionOfApp",
        (FastPathConnection,),
        {"shared": shared, "limits": limits, "refuse": staticmethod(shared.request_ids.refuse)},
    )
