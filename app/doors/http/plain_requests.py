"""Reads requests of a few well-known forms without a parser.

Knows: which request lines and headers are plain, and those that were read before.
Must never know: connections, answers, what an operation does.

A request is plain if nothing in front of the routes uses its headers, beyond what is checked here. Equal
heads mean the same, so most are looked up, not read.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from app.doors.http.repeats import Repeat
from app.errors import RefusalError
from app.http.middleware.origins import OriginCheck
from app.http.middleware.paths import segments
from app.http.operations.operation import Operation
from app.http.operations.table import RouteTable
from app.settings import Settings
from engine import EngineError

# Larger bodies take longer to read than a task costs.
BODY_BYTES_MAX: Final = 256 << 10
# A few megabytes of lines and heads are remembered at most.
_HEAD_BYTES_MAX: Final = 2_048
REMEMBERED_MAX: Final = 1_024

_VERSION: Final = b" HTTP/1.1"
_HEAD_END: Final = b"\r\n\r\n"
_TARGET: Final = re.compile(rb"(GET|POST) (/(?:v1|healthz)/[A-Za-z0-9._~%/-]+)")
_QUERY: Final = re.compile(rb"[A-Za-z0-9._~%+=&$(),:-]*")
_HEADER: Final = re.compile(rb"([A-Za-z-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)[ \t]*")
# What belongs to a trace differs from request to request.
_TRACE: Final = frozenset({b"traceparent", b"tracestate", b"baggage"})
# No layer in front of the routes looks at these, or only as `_is_plain` does.
_HARMLESS: Final = frozenset(
    {
        *(b"host", b"connection", b"content-length", b"content-type", b"user-agent", b"prefer"),
        *(b"accept", b"accept-encoding", b"accept-language", b"idempotency-key", b"if-match"),
        *_TRACE,
        *(b"producer-id", b"producer-epoch", b"producer-seq", b"stream-seq", b"stream-closed"),
        *(b"authorization", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-real-ip"),
    }
)
_ACCEPTED: Final = frozenset({b"*/*", b"application/json", b"application/json, text/plain, */*"})
# They differ from request to request: not worth remembering.
_FLEETING: Final = frozenset({b"idempotency-key", b"if-match", b"producer-seq", b"stream-seq"}) | _TRACE
# Published together are entries that ask for nothing else.
_ASKING: Final = frozenset({b"idempotency-key", b"if-match", b"prefer"})


class Target(NamedTuple):
    """The target of a request. `path` is as it was sent."""

    route: Operation
    names: Mapping[str, str]
    method: str
    path: str


class Head(NamedTuple):
    """A request's headers, by their lower-case names, and the length of its body. Where nothing but this
    length differs, `kind` is the same object: so is the caller.
    """

    headers: Mapping[bytes, bytes]
    length: int
    kind: object


class PlainRequest(NamedTuple):
    """A plain request; its body is at [`body_at`, `end`), counted from its beginning.

    `stream` is set if it publishes with no options, None for any other request. Then `start` is what it
    begins with, up to its body. `repeat` is set if one like it was answered.
    """

    target: Target
    query: bytes
    head: Head
    body_at: int
    end: int
    stream: str | None
    start: bytes
    repeat: Repeat | None = None


class PlainRequests:
    """Reads plain requests of the routes that the fast path serves, and remembers what it has read."""

    def __init__(self, settings: Settings, routes: RouteTable, origins: OriginCheck) -> None:
        self._routes = routes
        self._origins = origins
        self._requests: dict[bytes, PlainRequest] = {}
        self._heads: dict[bytes, Head] = {}
        self._repeats: dict[tuple[object, ...], Repeat | None] = {}
        self._kinds: dict[tuple[tuple[bytes, bytes], ...], object] = {}
        self._target = lru_cache(REMEMBERED_MAX)(self._read_target)
        # An entry keeps the trace that it belongs to.
        self._asking = _ASKING | _TRACE if settings.tracing else _ASKING
        self._length_max = min(BODY_BYTES_MAX, settings.body_bytes_max)
        self._head_max = min(_HEAD_BYTES_MAX, settings.head_bytes_max)

    def read(self, received: bytes, at: int) -> PlainRequest | None:
        """The request that begins there, whose body may be still to come; None if it is not plain."""
        head_end = received.find(_HEAD_END, at, at + self._head_max)
        if head_end < 0:
            return None
        whole = received[at:head_end]
        return self._requests.get(whole) or self._read(whole)

    def _read(self, whole: bytes) -> PlainRequest | None:
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
        body_at = len(whole) + len(_HEAD_END)
        plain = target.route.coalesced and not query and self._is_alone(target, head)
        stream = target.names["stream"] if plain else None
        start = b"%b\r\n\r\n" % whole if plain else b""
        request = PlainRequest(target, query, head, body_at, body_at + head.length, stream, start)
        if head.length and (repeat := self._repeats.get(_name_of(request))) is not None:
            request = request._replace(repeat=repeat)
        # Queries differ from request to request.
        if not query and headers in self._heads:
            self._remember(whole, request)
        return request

    def note(self, request: PlainRequest, data: bytes, repeat: Repeat | None) -> PlainRequest:
        """Remember what was found of this request, which is `data`; with None, that nothing is known."""
        head = request.head
        if _FLEETING & head.headers.keys():
            return request
        if head.length:
            # The next body will have another length.
            if len(self._repeats) >= REMEMBERED_MAX:
                self._repeats.clear()
            self._repeats[_name_of(request)] = repeat = repeat and repeat._replace(read=None)
        noted = request._replace(repeat=repeat)
        self._remember(data[: request.body_at - len(_HEAD_END)], noted)
        return noted

    def _remember(self, whole: bytes, request: PlainRequest) -> None:
        if len(self._requests) >= REMEMBERED_MAX:
            self._requests.clear()
        self._requests[whole] = request

    def _read_target(self, line: bytes) -> Target | None:
        match = _TARGET.fullmatch(line)
        if match is None:
            return None
        method = match[1].decode()
        try:
            found = self._routes.find(method, segments(match[2]))
        except (RefusalError, EngineError):
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
        if int(length) > self._length_max:
            return None
        kind = tuple(item for item in headers.items() if item[0] != b"content-length")
        if _FLEETING & headers.keys():
            return Head(headers, int(length), kind)
        if len(self._heads) >= REMEMBERED_MAX:
            self._heads.clear()
            self._kinds.clear()
        head = self._heads[block] = Head(headers, int(length), self._kinds.setdefault(kind, kind))
        return head

    def _is_plain(self, headers: Mapping[bytes, bytes]) -> bool:
        return (
            self._origins.knows(headers.get(b"host", b""))
            and headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
            and headers.get(b"accept", b"*/*") in _ACCEPTED
        )

    def _is_alone(self, target: Target, head: Head) -> bool:
        """Whether the headers ask for nothing besides."""
        return not self._asking & head.headers.keys() and target.route.coalesces(target.names, head.headers)


def _name_of(request: PlainRequest) -> tuple[object, ...]:
    """The same for requests whose heads differ in the length of the body alone."""
    return request.head.kind, request.target.method, request.target.path, request.query
