"""What a request says in its headers and its query, checked.

Knows: names, forms and combinations of the protocol's headers. Must never know: what is done about them.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from app import names
from app.doors.durable import offsets
from app.errors import RefusalError, locate
from engine.commands.durable_commands import ForkPoint, ProducerBatch

PREFIX: Final = "/v1/stream/"
# A page of another site may not embed what answers bring.
SAFE: Final = (b"cross-origin-resource-policy", b"same-origin")
OCTETS: Final = "application/octet-stream"
_WHOLE: Final = re.compile(b"0|[1-9][0-9]{0,15}")
# Numbers that JavaScript has exactly.
_NUMBER_MAX: Final = (1 << 53) - 1
_MEDIA_TYPE: Final = re.compile(r"[!#-'*+.^-z|~0-9A-Z-]+/[!#-'*+.^-z|~0-9A-Z-]+(?:\s*;[\x20-\x7e]*)?")
_MEDIA_BYTES_MAX: Final = 256
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
_PRODUCER_BYTES_MAX: Final = 256
_REMEMBERED_MAX: Final = 256
_SEQ_BYTES_MAX: Final = 256

Headers = Mapping[bytes, bytes]


class Lifetime(NamedTuple):
    """How long a stream lives after each use, or when it ends."""

    ttl_ms: int | None = None
    expires_at_ms: int | None = None


def config(lifetime: Lifetime, fork: ForkPoint | None) -> bytes:
    """Identifies both, to find out whether a stream was created alike."""
    if fork is None and lifetime == Lifetime():
        return b""
    facts = (*lifetime, *(() if fork is None else (fork.source, fork.upto, fork.beyond)))
    return sha256(repr(facts).encode()).digest()[:16]


def malformed(name: str, detail: str) -> RefusalError:
    """400: what stands in this header or parameter is wrong."""
    return RefusalError("malformed_header", f"{name}: {detail}", places=[locate(name, detail)])


def media_type(headers: Headers) -> str:
    """The media type as it is given, empty for none."""
    return _media_type(headers.get(b"content-type", b""))


@lru_cache(_REMEMBERED_MAX)
def _media_type(header: bytes) -> str:
    text = header.decode("latin-1").strip()
    if text and (len(text) > _MEDIA_BYTES_MAX or not _MEDIA_TYPE.fullmatch(text)):
        raise malformed("Content-Type", "it is type/subtype, with or without parameters")
    return text


def is_closed(headers: Headers) -> bool:
    """Whether it says that the stream ends."""
    return headers.get(b"stream-closed", b"").lower() == b"true"


def lifetime(headers: Headers) -> Lifetime:
    """How long the stream shall live."""
    ttl, expires_at = headers.get(b"stream-ttl"), headers.get(b"stream-expires-at")
    if ttl is not None and expires_at is not None:
        raise malformed("Stream-TTL", "it does not go with Stream-Expires-At")
    if ttl is not None:
        return Lifetime(ttl_ms=1000 * whole("Stream-TTL", ttl))
    if expires_at is not None:
        return Lifetime(expires_at_ms=_time_ms(expires_at.decode("latin-1")))
    return Lifetime()


def _time_ms(text: str) -> int:
    refusal = malformed("Stream-Expires-At", "it is a time as RFC 3339 has it")
    if not _TIME.fullmatch(text):
        raise refusal
    try:
        return max(0, int(datetime.fromisoformat(text.upper()).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise refusal from None


def whole(name: str, text: bytes) -> int:
    """The number that a header says."""
    if not _WHOLE.fullmatch(text) or (number := int(text)) > _NUMBER_MAX:
        raise malformed(name, f"it is a whole number from 0 to {_NUMBER_MAX}, without leading zeros")
    return number


def batch(headers: Headers) -> ProducerBatch | None:
    """Which batch of which producer it is."""
    names = (b"producer-id", b"producer-epoch", b"producer-seq")
    given = [headers[name] for name in names if name in headers]
    if not given:
        return None
    if len(given) < len(names):
        raise malformed("Producer-Id", "it goes with Producer-Epoch and Producer-Seq")
    producer, epoch, seq = given
    if not 0 < len(producer) <= _PRODUCER_BYTES_MAX:
        raise malformed("Producer-Id", f"it has 1 to {_PRODUCER_BYTES_MAX} bytes")
    return ProducerBatch(
        producer.decode("latin-1"), whole("Producer-Epoch", epoch), whole("Producer-Seq", seq)
    )


def fork(headers: Headers) -> ForkPoint | None:
    """Of which stream it is a fork, and where it begins."""
    source, at = headers.get(b"stream-forked-from"), headers.get(b"stream-fork-offset")
    beyond = headers.get(b"stream-fork-sub-offset")
    if source is None:
        if at is not None or beyond is not None:
            raise malformed("Stream-Forked-From", "Stream-Fork-Offset and Stream-Fork-Sub-Offset need it")
        return None
    offset = offsets.Word.NOW if at is None else offsets.parse(at.decode("latin-1"))
    if offset is None:
        raise malformed("Stream-Fork-Offset", "it is what an answer gave as Stream-Next-Offset")
    more = 0 if beyond is None else whole("Stream-Fork-Sub-Offset", beyond)
    name = _source(source.decode("latin-1"))
    if offset is offsets.Word.NOW:
        return ForkPoint(name, None, more)
    after, generation = offsets.BEGINNING if isinstance(offset, offsets.Word) else offset
    return ForkPoint(name, after, more, generation)


def _source(path: str) -> str:
    """The name of the stream at a path, or at a URL."""
    _, found, rest = path.partition(PREFIX)
    if not found or not rest:
        raise malformed("Stream-Forked-From", f"it is the path of a stream: {PREFIX}…")
    return names.check(unquote_to_bytes(rest.partition("?")[0]), "stream name")


def writer_seq(headers: Headers) -> bytes | None:
    """The sequence of a writer."""
    found = headers.get(b"stream-seq")
    if found is not None and len(found) > _SEQ_BYTES_MAX:
        raise malformed("Stream-Seq", f"it has at most {_SEQ_BYTES_MAX} bytes")
    return found


class Query(NamedTuple):
    """From where is read, whether a reader stays, and the cursor that it has."""

    offset: offsets.Offset | offsets.Word
    live: str
    cursor: str


def asks_for_events(text: bytes) -> bool:
    """Whether a query asks for a stream as events, however wrong the rest of it is."""
    return dict(_pairs(text)).get("live") == "sse"


def _pairs(text: bytes) -> list[tuple[str, str]]:
    return parse_qsl(text.decode("latin-1"), keep_blank_values=True)


def query(text: bytes) -> Query:
    """What a read asks for. Parameters of others are ignored, as the protocol has it."""
    pairs = _pairs(text)
    given = [value for name, value in pairs if name == "offset"]
    others = dict(pairs)
    live = others.get("live", "")
    if live not in ("", "long-poll", "sse"):
        raise malformed("live", "it is long-poll or sse")
    if len(given) > 1:
        raise malformed("offset", "it is given once")
    if live and not given:
        raise malformed("offset", "a reader that stays says where it begins: -1, now, or an offset")
    offset = offsets.parse(given[0]) if given else offsets.Word.BEGINNING
    if offset is None:
        raise malformed("offset", "it is -1, now, or what an answer gave as Stream-Next-Offset")
    return Query(offset, live, others.get("cursor", ""))
