"""What a browser makes of text/event-stream: the parser of WHATWG HTML 9.2.6, and a client that comes back.

Knows: the standard, word by word, and nothing of how the gateway writes.
Must never know: what events mean.
"""

import contextlib
import http.client
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit


class ReceivedEvent(NamedTuple):
    """A dispatched event; `last_id` is the last event ID string at that time."""

    name: str
    data: str
    last_id: str


class Parser:
    """Bytes in, events out. Lines end with CR LF, LF or CR, wherever the bytes are cut."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry_ms: int | None = None
        self.comments = 0
        self._line = bytearray()
        self._after_cr = False
        self._id = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[ReceivedEvent]:
        for byte in piece:
            if byte == 0x0A and self._after_cr:
                self._after_cr = False
                continue
            self._after_cr = byte == 0x0D
            if byte in (0x0A, 0x0D):
                line, self._line = self._line.decode(), bytearray()
                yield from self._take(line)
            else:
                self._line.append(byte)

    def _take(self, line: str) -> Iterator[ReceivedEvent]:
        if not line:
            yield from self._dispatch()
            return
        if line.startswith(":"):
            self.comments += 1
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)

    def _dispatch(self) -> Iterator[ReceivedEvent]:
        self.last_id = self._id
        if self._data:
            yield ReceivedEvent(self._name or "message", "\n".join(self._data), self.last_id)
        self._name, self._data = "", []


class EventSourceClient:
    """One connection after the other, each with the last ID of the one before."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self.parser = Parser()
        self.headers: dict[str, str] = {}

    def events(self, timeout_s: float = 20.0) -> Iterator[ReceivedEvent]:
        """The events of one connection, until it ends, one way or another."""
        connection = http.client.HTTPConnection(self._parts.netloc, timeout=timeout_s)
        headers = {"Accept": "text/event-stream"}
        if self.parser.last_id:
            headers["Last-Event-ID"] = self.parser.last_id
        parser = Parser()
        parser.last_id = parser._id = self.parser.last_id  # noqa: SLF001 - it lives on over connections
        self.parser = parser
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", f"{self._parts.path}?{self._parts.query}", headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            self.headers = {name.lower(): value for name, value in answer.getheaders()}
            while piece := answer.read1(1 << 16):
                yield from parser.feed(piece)
