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
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import zstandard

from app.http.plan import Coding, HeadPlan
from app.http.responses import Compressor, Header, Response, StreamingResponse

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


def choose(plan: HeadPlan, response: Response) -> Coding | None:
    """The coding that an answer shall have: the one that its client likes best, where it gains by one. Its
    headers say then that others may get it in another.
    """
    if not gains(response.raw_headers):
        return None
    if plan.coding is None:
        response.raw_headers = [*response.raw_headers, _VARY]
    return plan.coding


async def encode(response: Response, coding: Coding, *, is_head: bool = False) -> None:
    """Have an answer in a coding, made in a thread, so that others are served meanwhile: all of it now, or
    each piece before it is sent. Of one to HEAD there is no length.
    """
    length = None
    made = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW_BITS) if coding == "gzip" else _zstd()
    if isinstance(response, StreamingResponse):
        response.compressor = made
    elif not is_head:
        response.body = await asyncio.to_thread(_whole, made, response.body)
        length = len(response.body)
    response.raw_headers = _coded(response.raw_headers, coding, length)


def _zstd() -> Compressor:
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()


def _whole(compressor: Compressor, body: bytes) -> bytes:
    return compressor.compress(body) + compressor.flush()


def _coded(headers: Sequence[Header], coding: Coding, length: int | None) -> list[Header]:
    """The headers of an answer in a coding; `length` is None where it is not known."""
    kept = [header for header in headers if header[0] not in (b"content-length", b"etag")]
    # Other bytes have another strong tag (RFC 9110, 8.8.3.3).
    tags = [(name, b'%b-%b"' % (tag[:-1], coding.encode())) for name, tag in headers if name == b"etag"]
    sizes = [] if length is None else [(b"content-length", b"%d" % length)]
    return [*kept, *tags, *sizes, (b"content-encoding", coding.encode()), _VARY]


def uncoded(tag: bytes) -> bytes:
    """The entity tag of the same answer without a coding."""
    return _CODED_TAG.sub(b'"', tag)
