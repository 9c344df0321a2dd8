"""Requests out of bytes, with httptools: heads, bodies, and where another protocol begins.

Knows: how a request is framed, how long its head may be, which heads can be read in two ways.
Must never know: connections, time, answers.

Measured without its bound (httptools 0.9): heads of 200 MB are taken.
"""

import logging
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import httptools

from app.doors.http.answer_heads import Header
from app.errors import RefusalError

# Forms of a target: a path, `*`, or a whole URL, whose host has to be that of the Host header.
_ABSOLUTE: Final = re.compile(rb"https?://([^/?]*)/.*", re.IGNORECASE | re.DOTALL)
# What a head has besides its method, its path and its headers.
_LINE_BYTES: Final = len("  HTTP/1.1\r\n\r\n")

_log: Final = logging.getLogger(__name__)


class _HeadTooLargeError(Exception):
    """Raised inside the parser, which then stops."""


class _AmbiguousError(Exception):
    """Also raised inside the parser: a proxy may have read this head in another way."""


# What says in the parser that bytes are refused. Anything else that is raised there is a fault of ours.
_REFUSING: Final = (_HeadTooLargeError, _AmbiguousError, httptools.HttpParserError)


class RequestHead(NamedTuple):
    """What stands before a request's body; names of headers are in lower case."""

    method: bytes
    target: bytes
    version: str
    headers: list[Header]
    expects_continue: bool
    keeps_alive: bool


class RequestSink(Protocol):
    """Takes what comes, while it is parsed. An exception refuses the request."""

    def begin_request(self, head: RequestHead) -> None: ...
    def receive_body(self, data: bytes) -> None: ...
    def end_request(self) -> None: ...


class RequestParser:
    """The requests of one connection. A handshake is kept, with its head, instead of being handed on, where
    something `takes_sockets`.
    """

    def __init__(self, sink: RequestSink, head_bytes_max: int, *, takes_sockets: bool = True) -> None:
        self._sink = sink
        self._takes_sockets = takes_sockets
        self._head_bytes_max = head_bytes_max
        # What came of a body, handed on as one however short its chunks are: what httptools calls here is no
        # function of Python.
        self._body: list[bytes] = []
        self.on_body = self._body.append
        self._parser = httptools.HttpRequestParser(self)
        # A request behind one that asks to close is read: it may have been sent before its answer.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # Of a head that is not over: what came of it, and what the parser has made of it.
        self._head_bytes = 0
        self._parsed_bytes = 0
        # What came since the head or the last of the body and is none: extensions of chunks, trailers.
        self._void_bytes = 0
        self._has_body_come = False
        self._target = b""
        self._headers: list[Header] = []
        self._expects_continue = False
        # Of the last request that has begun.
        self.is_over = True
        self.is_head_over = False
        # What a body of known length still lacks.
        self.left_bytes = 0
        # Requests that have begun within the bytes that were fed last.
        self.begun = 0
        # The request to speak WebSocket, once it has come.
        self.handshake: RequestHead | None = None
        # Whether what comes may be of another protocol, for which a request has asked in vain.
        self.is_foreign = False

    def feed(self, data: bytes) -> bytes:
        """Parse. Returns what stands behind a handshake, and is not HTTP.

        Raises RefusalError for what cannot be read as requests.
        """
        before, was_over = self._head_bytes, self.is_over
        awaits_body = self.is_head_over and not was_over
        self.begun, self._has_body_come = 0, False
        behind = self._feed(data)
        self._hand_body_on()
        # The head goes on: what the parser holds back of a long header counts too, unless these bytes are of
        # an earlier request as well.
        if self._head_bytes and (not self.begun or (was_over and self.begun == 1)):
            self._head_bytes = before + len(data)
        # Where another request has begun, the body before is over.
        if awaits_body and not self.begun:
            self._void_bytes = 0 if self._has_body_come or self.is_over else self._void_bytes + len(data)
        if max(self._head_bytes, self._void_bytes) > self._head_bytes_max:
            raise self._too_large
        return behind

    def release(self) -> None:
        """End the circle of references with httptools's parser: nothing more comes."""
        del self._parser

    def _feed(self, data: bytes) -> bytes:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(cause, _REFUSING):
                raise cause or error from None
            _log.warning("Invalid HTTP request received.")
            if self._parsed_bytes > self._head_bytes_max:
                raise self._too_large from None
            detail = "it cannot be read as HTTP/1.1, or it can be read in two ways"
            raise RefusalError("malformed_request", detail) from None
        except httptools.HttpParserUpgrade as upgrade:
            behind = data[upgrade.args[0] :]
            if self.handshake is not None:
                return behind
            _log.warning("Unsupported upgrade request.")
            if behind:
                self.is_foreign = True
                # For a proxy it may be of the other protocol. The request before it is answered as HTTP/1.1.
                detail = "nothing stands behind an upgrade that is not taken"
                raise RefusalError("malformed_request", detail) from None
        return b""

    def _hand_body_on(self) -> None:
        """Hand on what came of the body; a handshake's is ignored."""
        if self._body:
            self._has_body_come = True
            body = b"".join(self._body)
            self._body.clear()
            self.left_bytes = max(0, self.left_bytes - len(body))
            if self.handshake is None:
                self._sink.receive_body(body)

    @property
    def _too_large(self) -> RefusalError:
        detail = f"a request's line and headers have at most {self._head_bytes_max} bytes"
        return RefusalError("headers_too_large", detail)

    def _count(self, length: int) -> None:
        self._parsed_bytes += length
        if self._parsed_bytes > self._head_bytes_max:
            raise _HeadTooLargeError

    # --- called by httptools --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Note the first byte of a request."""
        self._head_bytes = 1
        self._parsed_bytes = self._void_bytes = 0
        self.begun += 1
        self.is_over = self.is_head_over = False
        self._target, self._headers, self._expects_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        """Add to the target."""
        self._count(len(url))
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. A trailer is none: what it would say of the request has been decided."""
        if self.is_head_over:
            return
        self._count(len(name) + len(value) + 4)
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Hand the head on, if it can be read in one way only."""
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version()
        self._count(len(method) + _LINE_BYTES)
        if _is_ambiguous(version, self._target, self._headers):
            raise _AmbiguousError
        self._head_bytes = 0
        self.is_head_over = True
        self.left_bytes = int(dict(self._headers).get(b"content-length", b"0"))
        # HTTP/1.0 knows neither (RFC 9110, 10.1.1).
        is_new = version != "1.0"
        head = RequestHead(
            method,
            self._target,
            version,
            self._headers,
            expects_continue=self._expects_continue and is_new,
            keeps_alive=parser.should_keep_alive() and is_new,
        )
        if self._takes_sockets and parser.should_upgrade() and _is_for_websocket(self._headers):
            self.handshake = head
        else:
            self._sink.begin_request(head)

    def on_message_complete(self) -> None:
        """Note the last byte of a request."""
        self._hand_body_on()
        if self.handshake is None:
            self._sink.end_request()
        self.is_over = True


def _is_for_websocket(headers: Sequence[Header]) -> bool:
    # Of a header that comes twice the last one counts.
    named = dict(headers)
    tokens = [token.strip() for token in named.get(b"connection", b"").lower().split(b",")]
    return b"upgrade" in tokens and named.get(b"upgrade", b"").lower() == b"websocket"


def _is_ambiguous(version: str, target: bytes, headers: Sequence[Header]) -> bool:
    """Whether the length of the body or the target can be read in two ways, though the parser accepts the
    head.
    """
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if version not in ("1.0", "1.1") or (codings and (version == "1.0" or len(codings) > 1)):
        return True
    if codings and codings[0].strip().lower() != b"chunked":
        return True
    if b"#" in target or not target.isascii():
        return True
    if target.startswith(b"/") or target == b"*":
        return False
    absolute = _ABSOLUTE.fullmatch(target)
    hosts = [value.lower() for name, value in headers if name == b"host"]
    return absolute is None or hosts != [absolute[1].lower()]
