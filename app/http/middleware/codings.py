"""Content codings of answers: gzip and zstd, by Accept-Encoding (RFC 9110, 12.5.3).

Knows: which answers gain by it, what a client accepts, how headers change, whole answers and those sent in
pieces.
Must never know: routes, connections.

Small answers stay as they are: compressing costs more than sending them. Live events do too, for each is to
arrive at once.
"""

import asyncio
import re
import zlib
from collections.abc import MutableMapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import zstandard

from app.http.plan import Coding
from app.http.responses import GONE_EXTENSION, UNSENT_STATE, Header, Scope, Send

# Below, a compressed answer saves less than a millisecond on most networks, and costs one here.
CODED_BYTES_MIN: Final = 32 << 10
STREAMED: Final = b"application/x-ndjson"
_KINDS: Final = re.compile(
    rb"application/(?:[a-z.-]+\+)?json|text/(?:html|css|javascript|plain)|image/svg\+xml"
)
_PIECE: Final = re.compile(r"\s*([a-z0-9*-]+)\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*)?", re.IGNORECASE)
_NAMES: Final[dict[str, Coding]] = {"zstd": "zstd", "gzip": "gzip", "x-gzip": "gzip"}
# In this order where a client likes both alike.
_OFFERED: Final[tuple[Coding, ...]] = ("zstd", "gzip")
_CODED_TAG: Final = re.compile(rb'-(?:%b)"$' % "|".join(_OFFERED).encode())
_GZIP_LEVEL: Final = 5
_GZIP_WINDOW_BITS: Final = 31
_ZSTD_LEVEL: Final = 3
_VARY: Final = (b"vary", b"Accept-Encoding")


class Compressor(Protocol):
    """Pieces in, what is ready of the coded text out."""

    def compress(self, data: bytes, /) -> bytes:
        """Take a piece."""
        ...

    def flush(self) -> bytes:
        """End."""
        ...


# A header may be as long as a head: few of them are remembered.
@lru_cache(32)
def accepted(header: bytes) -> Coding | None:
    """The coding that an Accept-Encoding likes best, None for none."""
    quality: dict[str, float] = {}
    for piece in header.decode("latin-1").split(","):
        match = _PIECE.fullmatch(piece)
        if match is not None:
            name = match[1].lower()
            quality[_NAMES.get(name, name)] = min(1.0, float(match[2] or 1))
    anything = quality.get("*", 0.0)
    liked = {coding: quality.get(coding, anything) for coding in _OFFERED}
    best = max(liked.values())
    # Without a word for it, no coding at all is as good as the least that is named.
    if best <= 0 or best < quality.get("identity", 0.0):
        return None
    return next(coding for coding in _OFFERED if liked[coding] == best)


def gains(headers: Sequence[Header]) -> bool:
    """Whether the answer with these headers is worth a coding."""
    given = dict(headers)
    kind = given.get(b"content-type", b"").partition(b";")[0]
    if b"content-encoding" in given:
        return False
    if kind == STREAMED:
        return True
    return _KINDS.fullmatch(kind) is not None and int(given.get(b"content-length", b"0")) >= CODED_BYTES_MIN


def varied(headers: Sequence[Header]) -> list[Header]:
    """The headers of an answer that others may get in a coding."""
    return [*headers, _VARY]


def coded(headers: Sequence[Header], coding: Coding, length: int | None) -> list[Header]:
    """The headers of an answer in a coding; `length` is None where it is not known."""
    kept = [header for header in headers if header[0] not in (b"content-length", b"etag")]
    # Other bytes have another strong tag (RFC 9110, 8.8.3.3).
    tags = [(name, b'%b-%b"' % (tag[:-1], coding.encode())) for name, tag in headers if name == b"etag"]
    sizes = [] if length is None else [(b"content-length", b"%d" % length)]
    return varied([*kept, *tags, *sizes, (b"content-encoding", coding.encode())])


def uncoded(tag: bytes) -> bytes:
    """The entity tag of the same answer without a coding."""
    return _CODED_TAG.sub(b'"', tag)


def compressor(coding: Coding) -> Compressor:
    """For one answer."""
    if coding == "gzip":
        return zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW_BITS)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()


def compressed(body: bytes, coding: Coding) -> bytes:
    """All of an answer."""
    made = compressor(coding)
    return made.compress(body) + made.flush()


class Coded:
    """Sends a large answer in the coding that its client likes best, made in a thread, so that others are
    served meanwhile.
    """

    __slots__ = ("_chosen", "_compressor", "_is_head", "_scope", "_send", "_start")

    def __init__(self, send: Send, chosen: Coding | None, scope: Scope, *, is_head: bool) -> None:
        self._send = send
        self._scope = scope
        self._chosen = chosen
        self._is_head = is_head
        self._compressor: Compressor | None = None
        # The head of a whole answer waits for its length.
        self._start: MutableMapping[str, Any] | None = None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._compressor is not None and message["type"] == "http.response.body":
            await self._pass_on(message, self._compressor)
        else:
            await self._send(message)

    async def _begin(self, message: MutableMapping[str, Any]) -> None:
        headers = message["headers"]
        if not gains(headers):
            await self._send(message)
        elif self._chosen is None:
            await self._send({**message, "headers": varied(headers)})
        elif self._is_head:
            await self._send({**message, "headers": coded(headers, self._chosen, None)})
        else:
            self._compressor = compressor(self._chosen)
            self._start = message

    async def _pass_on(self, message: MutableMapping[str, Any], compressor: Compressor) -> None:
        more = message.get("more_body", False)
        piece = message.get("body", b"")
        body = await asyncio.to_thread(_piece, compressor, piece, is_last=not more)
        if self._start is not None:
            assert self._chosen is not None, "there is a compressor"
            start, self._start = self._start, None
            if self._is_taken_back():
                return
            headers = coded(start["headers"], self._chosen, None if more else len(body))
            await self._send({**start, "headers": headers})
        await self._send({**message, "body": body})

    def _is_taken_back(self) -> bool:
        """Whether the client left while its answer was compressed: what it was to get has gone back."""
        unsent = self._scope["state"].get(UNSENT_STATE)
        gone = self._scope.get("extensions", {}).get(GONE_EXTENSION)
        if unsent is None or gone is None or not gone():
            return False
        unsent()
        return True


def _piece(compressor: Compressor, piece: bytes, *, is_last: bool) -> bytes:
    return compressor.compress(piece) + (compressor.flush() if is_last else b"")
