"""Bodies: what is written, as stored entries; and pages of these, as they are read.

Knows: JSON messages and plain bytes, each in the field `data` of an entry.
Must never know: offsets, requests.

A JSON message is stored as its text, with the numbers and the order of members that it came with.
"""

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import orjson

from app.errors import RefusalError
from app.http.entries.stored_entries import check_count, check_size
from app.limits import EntryLimits
from engine import entries

# Entries as they are stored, without their IDs.
Stored = Sequence[bytes]

JSON: Final = "application/json"
_BLANKS: Final = b" \t\r\n"
# What a stored entry has around its value.
_AROUND_BYTES: Final = 64

# Pages that are kept take 8 MB at most, with the entries that they are found by.
_KEPT_PAGES_MAX: Final = 64
_KEPT_BYTES_MAX: Final = 64 << 10

_messages_of: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Stored(msgspec.Struct):
    fields: dict[str, str]
    encoding: str | None = None


_stored_of: Final = msgspec.json.Decoder(list[_Stored]).decode


def read(kind: str, body: bytes, limits: EntryLimits) -> Stored:
    """The stored entries of a body of this media type. Raises RefusalError."""
    return _of_messages(body, limits) if kind == JSON else _of_bytes(body, limits)


def _of_messages(body: bytes, limits: EntryLimits) -> Stored:
    """One entry for each message; those of a list are messages of their own, one level deep."""
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusalError("malformed_json", f"the body is no JSON text: {error}") from None
    text = body.strip(_BLANKS)
    if not text.startswith(b"["):
        return _checked([entries.data_body(text)], limits)
    try:
        messages = [bytes(one) for one in _messages_of(text)]
    except RecursionError:
        raise RefusalError(
            "malformed_json", "a message of a list is nested too deep: nest it less, or send it as a string"
        ) from None
    if messages:
        check_count(len(messages), limits)
    return _checked([entries.data_body(one) for one in messages], limits)


def _of_bytes(body: bytes, limits: EntryLimits) -> Stored:
    """As many entries as the bytes need."""
    size = (limits.entry_bytes_max - _AROUND_BYTES) // 4 * 3
    return _checked([entries.data_body(body[at : at + size]) for at in range(0, len(body), size)], limits)


def _checked(bodies: Stored, limits: EntryLimits) -> Stored:
    if bodies:
        check_size(max(map(len, bodies)), limits)
    return bodies


def page(kind: str | None, joined: bytes) -> bytes:
    """The body of an answer with these stored entries; without a kind, the entries themselves. A short one is
    kept for a while: long-polls that end together get the same.
    """
    return _page(kind, joined) if len(joined) > _KEPT_BYTES_MAX else _kept_page(kind, joined)


def _page(kind: str | None, joined: bytes) -> bytes:
    if kind is None:
        return b"[%b]" % joined
    values = [_value(one) for one in _stored_of(b"[%b]" % joined)]
    return b"[%b]" % b",".join(values) if kind == JSON else b"".join(values)


_kept_page: Final = lru_cache(_KEPT_PAGES_MAX)(_page)


def _value(stored: _Stored) -> bytes:
    # Only a program at the backend's own port can store an entry without it.
    data = stored.fields.get("data", "")
    return data.encode() if stored.encoding is None else base64.b64decode(data)
