"""One request that the ASGI application serves: its body out of the connection, its answer into it.

Knows: ASGI's messages for HTTP, how a body is framed, what an application may do wrong.
Must never know: how requests are parsed, which request comes next.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, Protocol

from app.doors.http.answer_heads import CONTINUE, Header, are_sound, header_lines, status_line
from app.doors.http.request_parser import RequestHead
from app.http.responses import BrokenOffError, Scope, Send
from app.live.waiting import Departure

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

# With more of a body waiting, nothing is read.
_WAITING_BYTES_MAX: Final = 64 << 10
_BODILESS: Final = (204, 304)
_REFUSED: Final = 400
_FAILURE: Final = b"Internal Server Error"
_FAILURE_HEADERS: Final = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"%d" % len(_FAILURE)),
    (b"connection", b"close"),
)

# The standard library's, as asyncio's own faults are logged.
_log: Final = logging.getLogger(__name__)


class Connection(Protocol):
    """What a request needs of its connection."""

    transport: asyncio.Transport
    departure: Departure
    has_unsent: bool

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    async def drain(self) -> None: ...
    @property
    def default_headers(self) -> list[Header]: ...
    @property
    def is_unread_behind(self) -> bool: ...
    def end_answer(self) -> None: ...


class AsgiRequest:
    """One request and its answer."""

    __slots__ = (
        "_body",
        "_connection",
        "_has_all",
        "_head",
        "_is_chunked",
        "_is_head_alone",
        "_is_old",
        "_left_bytes",
        "_must_continue",
        "_news",
        "is_answered",
        "is_disconnected",
        "is_started",
        "keeps_alive",
        "scope",
    )

    def __init__(self, connection: Connection, head: RequestHead, scope: Scope) -> None:
        self._connection = connection
        self.scope = scope
        # Whether the connection is kept after the answer.
        self.keeps_alive = head.keeps_alive
        self._must_continue = head.expects_continue
        self._is_old = head.version == "1.0"
        self._is_head_alone = head.method == b"HEAD"
        # What came of the body and was not received, and whether that is the rest of it.
        self._body = bytearray()
        self._has_all = False
        # Set when there is something to receive.
        self._news = asyncio.Event()
        self.is_started = self.is_answered = self.is_disconnected = False
        self._is_chunked = False
        # That of the answer, until it leaves with the first piece of the body, or by itself a cycle later.
        self._head = b""
        # What a body of known length still lacks.
        self._left_bytes = 0

    # --- for the connection ---------------------------------------------------------------------------------

    def add_body(self, data: bytes) -> None:
        """Take a part of the body. After the answer nothing needs it."""
        if self.is_answered:
            return
        self._body += data
        if len(self._body) > _WAITING_BYTES_MAX:
            self._connection.pause_reading()
        self._news.set()

    def end_body(self) -> None:
        """Note that the body is complete."""
        if not self.is_answered:
            self._has_all = True
            self._news.set()

    def disconnect(self) -> None:
        """Note that the client has left."""
        if not self.is_answered:
            self.is_disconnected = True
        self._news.set()

    async def run(self, app: AsgiApp) -> None:
        """Have the application serve it. What that leaves undone is answered, or ends the connection."""
        fault: BaseException | None = None
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001 - also a cancellation, at the end of a stop
            fault = error
        if fault is None and (self.is_answered or self._has_left):
            return
        undone = "completing" if self.is_started else "starting"
        if isinstance(fault, BrokenOffError):
            _log.warning("an answer was broken off: %s", fault)
        else:
            _log.error(
                "Exception in ASGI application"
                if fault
                else f"ASGI callable returned without {undone} response.",
                exc_info=fault,
            )
        if self.is_started:
            self._write_head()
            self._connection.transport.close()
        else:
            await self._answer_failure()

    @property
    def _has_left(self) -> bool:
        """Whether there is no mistake in an answer that is missing: the connection closes."""
        has_left = self.is_disconnected or self._connection.departure.is_over
        return has_left or (not self.is_started and self._connection.transport.is_closing())

    async def _answer_failure(self) -> None:
        await self.send({"type": "http.response.start", "status": 500, "headers": _FAILURE_HEADERS})
        await self.send({"type": "http.response.body", "body": _FAILURE})

    # --- ASGI -----------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Wait for more of the body, or for the end of the client."""
        connection = self._connection
        if self._must_continue and not connection.transport.is_closing():
            connection.transport.write(CONTINUE)
            self._must_continue = False
        if not self.is_disconnected and not self.is_answered:
            connection.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self.is_disconnected or self.is_answered:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self._has_all}

    async def send(self, message: Message) -> None:
        """Write the head or a part of the body, once the client has taken what was written before."""
        if self._connection.has_unsent and not self.is_disconnected:
            await self._connection.drain()
        if self.is_disconnected:
            return
        expected = "http.response.body" if self.is_started else "http.response.start"
        if self.is_answered or message["type"] != expected:
            raise RuntimeError(f"an answer has a start, then a body: {message['type']} is neither here")
        if self.is_started:
            self._send_body(message.get("body", b""), has_more=message.get("more_body", False))
        else:
            self._send_head(message["status"], message.get("headers", ()))

    def write_piece(self, piece: bytes) -> bool:
        """Write a part of the body that is being sent. Returns whether there is such a body."""
        if not self.is_started or self.is_answered or self.is_disconnected:
            return False
        self._send_body(piece, has_more=True)
        return True

    def _send_head(self, status: int, headers: Sequence[Header]) -> None:
        self.is_started = True
        self._must_continue = False
        sent = [*self._connection.default_headers]
        has_length = is_closing = False
        for given, value in headers:
            name = given.lower()
            sent.append((name, value))
            if name == b"content-length":
                has_length, self._left_bytes = True, int(value)
            elif name == b"connection":
                is_closing |= b"close" in [token.strip() for token in value.lower().split(b",")]
        if status >= _REFUSED and self._connection.is_unread_behind:
            # It may be a body that this request should have had: the one refusal is of both.
            self.keeps_alive = False
        self.keeps_alive &= not is_closing
        if not self.keeps_alive and not is_closing:
            sent.append((b"connection", b"close"))
        # HTTP/1.0 knows no chunks (RFC 9112, 6.1): a body without a length ends with the connection.
        if not has_length and not self._is_old and not self._is_head_alone and status not in _BODILESS:
            self._is_chunked = True
            sent.append((b"transfer-encoding", b"chunked"))
        lines = header_lines(sent)
        if not are_sound(lines):
            raise RuntimeError("a header has a name that is none, or a control character in its value")
        self._head = b"%b%b\r\n" % (status_line(status), lines)
        asyncio.get_running_loop().call_soon(self._write_head)

    def _write_head(self) -> None:
        head, self._head = self._head, b""
        if head and not self._connection.transport.is_closing():
            self._connection.transport.write(head)

    def _send_body(self, body: bytes, *, has_more: bool) -> None:
        transport = self._connection.transport
        if self._is_head_alone:
            self._left_bytes, body = 0, b""
        elif self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if has_more else chunk + b"0\r\n\r\n"
        else:
            # To a client of HTTP/1.0 the end of the connection says the same.
            self._left_bytes = 0 if self._is_old else self._left_bytes - len(body)
            if self._left_bytes < 0:
                raise RuntimeError("an answer is longer than its content-length")
        if self._head:
            body, self._head = self._head + body, b""
        transport.write(body)
        if has_more:
            return
        if self._left_bytes:
            raise RuntimeError("an answer is shorter than its content-length")
        self.is_answered = True
        self._news.set()
        if not self.keeps_alive:
            transport.close()
        self._connection.end_answer()
