"""Server-sent events: the parser, and a live tail as a state machine without I/O.

Knows: the event stream format of WHATWG HTML, the gateway's events. Must never know: sockets, time.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from weir._cursors import WITH_GENERATION
from weir._http import Call
from weir.entries import Entry, Gap, gap_error, parse_gap
from weir.errors import ApiError, GapError, InvalidValueError, NotAGatewayError, of_problem
from weir.paths import stream_path

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
# A stream without news sends a comment every 15 seconds; after twice that the connection is dead.
SILENCE_S_MAX: Final = 30.0
# How long to wait before coming back, where the gateway did not say.
RETRY_MS_DEFAULT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `id` is None where none was sent with it, `retry_ms` likewise."""

    name: str
    data: str
    id: str | None
    retry_ms: int | None


class EventParser:
    """Bytes in, events out. Lines end at LF, CRLF or CR, and nowhere else."""

    def __init__(self) -> None:
        self._rest = b""
        self._begin()

    def _begin(self) -> None:
        self._name, self._data = "", list[str]()
        self._id: str | None = None
        self._retry_ms: int | None = None
        self._empty = True

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that `data` completes."""
        buffer = self._rest + data
        # A CR at the end may be half of a CRLF.
        usable = len(buffer) - 1 if buffer.endswith(b"\r") else len(buffer)
        start = 0
        for end in _LINE_END.finditer(buffer, 0, usable):
            line = buffer[start : end.start()]
            start = end.end()
            if line:
                self._line(line.decode("utf-8", "replace"))
            elif not self._empty:
                yield Event(self._name or "message", "\n".join(self._data), self._id, self._retry_ms)
                self._begin()
        self._rest = buffer[start:]

    def _line(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self._retry_ms = int(value)
        else:
            return
        self._empty = False


class Tail:
    """Where a live tail is. Ask `request` for the next connection, `accept` its events, until `ended`.

    `on_gap` is called for entries that were removed before they were read; without it GapError is raised.
    """

    def __init__(
        self, streams: tuple[str, ...], after: str, last: int | None, on_gap: Callable[[Gap], None] | None
    ) -> None:
        if not streams:
            raise InvalidValueError("name at least one stream")
        self._streams = streams
        self._begin: dict[str, object] = {"last": last} if last is not None else {"after": after}
        self._cursor: str | None = None
        self._on_gap = on_gap
        # Whether the gateway has ended this connection, and in how many milliseconds to come back.
        self.ended = False
        self.retry_ms = RETRY_MS_DEFAULT
        # Streams that are not closed, or have entries left.
        self._open = set(streams)

    @property
    def is_over(self) -> bool:
        """Whether all streams are closed, and were read to their end."""
        return not self._open

    def end(self) -> None:
        """The gateway has nothing more, as it answers a reconnect."""
        self._open.clear()

    def request(self) -> Call[None]:
        """The next connection."""
        self.ended = False
        headers = {"accept": "text/event-stream, application/problem+json"}
        query = dict(self._begin)
        if self._cursor is not None:
            headers["last-event-id"] = self._cursor
        path = "/v1/tail"
        if len(self._streams) == 1:
            path = f"{stream_path(self._streams[0])}/tail"
        else:
            query = {"stream": list(self._streams), **query}
        return Call("GET", path, lambda _: None, query={**query, **WITH_GENERATION}, headers=headers)

    def accept(self, event: Event) -> Entry | None:
        """The entry that an event holds, if any. Raises ApiError, GapError, NotAGatewayError."""
        if event.retry_ms is not None:
            self.retry_ms = event.retry_ms
        try:
            found = self._parse(event)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotAGatewayError("the tail has an event that is not a gateway's") from error
        if isinstance(found, GapError):
            self._report(found)
        elif isinstance(found, ApiError):
            raise found
        elif event.name == "end":
            self.ended = True
        elif event.name == "closed":
            self._open.discard(self._closed(event))
            self.ended = self.is_over
        if event.id is not None:
            self._cursor = event.id
        return found if isinstance(found, Entry) else None

    def _closed(self, event: Event) -> str:
        return str(json.loads(event.data).get("stream", self._streams[0]))

    def _parse(self, event: Event) -> Entry | GapError | ApiError | None:
        if event.name not in ("entry", "gap", "error"):
            return None
        members = json.loads(event.data)
        if event.name == "entry":
            return Entry.parse(members, self._streams[0])
        if event.name == "error":
            return of_problem(members, members.get("status", 500))
        gap = parse_gap(members)
        return gap_error(members.get("stream", self._streams[0]), gap)

    def _report(self, lost: GapError) -> None:
        if self._on_gap is None:
            raise lost
        self._on_gap(Gap(lost.requested, lost.first_available, lost.lost, lost.reason))
