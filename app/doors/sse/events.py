"""Server-sent events as text/event-stream has them (WHATWG HTML, chapter 9.2).

Knows: which bytes end a line (CR, LF and CRLF only); how events, comments and `retry` are written.
Must never know: what an event means, sockets.

    id: 1526919030474-55            only on entries: a client reconnects with it
    event: entry
    data: {"id":"1526919030474-55","fields":{"temperature":"19.8"}}
    (a blank line: the event is dispatched)
"""

import re
from typing import Final

MEDIA_TYPE: Final = b"text/event-stream"
HEADERS: Final = (
    (b"content-type", MEDIA_TYPE),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
# At least one event or comment is sent in this time: a silent connection is a broken one.
HEARTBEAT_S: Final = 15.0
COMMENT: Final = b":\n\n"

# `splitlines` would also split at U+2028, U+0085 and others, which belong to the data.
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


def event(name: bytes, data: bytes, event_id: bytes | None = None, retry_ms: int | None = None) -> bytes:
    """One event. `data` is any UTF-8; its line ends arrive as LF. `name` and `event_id` contain none, and
    the ID no NUL: clients ignore an ID that does.
    """
    assert not _LINE_END.search(name), "names of events are ours"
    head = b"" if event_id is None else _id(event_id)
    if retry_ms is not None:
        head += b"retry: %d\n" % retry_ms
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return b"%bevent: %b\ndata: %b\n\n" % (head, name, data)


def compact(name: bytes, data: bytes) -> bytes:
    """One event without an ID, as clients expect it that read it as text: no blank behind a colon, but before
    a blank of the data.
    """
    lines = [b"data:%b%b" % (b" " * line.startswith(b" "), line) for line in _LINE_END.split(data)]
    return b"event: %b\n%b\n\n" % (name, b"\n".join(lines))


def position(event_id: bytes) -> bytes:
    """Set the ID with which a client reconnects, without an event."""
    return _id(event_id) + b"\n"


def _id(event_id: bytes) -> bytes:
    assert not any(byte in event_id for byte in b"\r\n\0"), "cursors are digits and a few signs"
    return b"id: %b\n" % event_id
