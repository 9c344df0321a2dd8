"""Bodies: what is written, as stored entries; and pages of these, as they are read.

Knows: JSON messages and plain bytes, each in the field `data` of an entry.
Must never know: offsets, requests.

A JSON message is stored as its text, with the numbers and the order of members that it came with.
"""

import base64
import codecs
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec
import orjson

from app.errors import RefusalError
from app.http import strict_json
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

# They take JSON by its grammar alone: bytes that are no UTF-8, and numbers of any size.
_messages_of: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_message_of: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decoder_of_pieces: Final = codecs.getincrementaldecoder("utf-8")
_PIECE_BYTES: Final = 64 << 10
# A body of this size is decoded to be checked: that is faster, and its values take little memory.
_SHORT_BYTES_MAX: Final = 16 << 10
# What a number beyond a double has, if all its digits are zeros: very many digits, or an exponent of three.
_LARGE: Final = b"0" * 200, b"e000", b"e+000"
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789E", b"000000000e")


class _Stored(msgspec.Struct):
    fields: dict[str, str]
    encoding: str | None = None


_stored_of: Final = msgspec.json.Decoder(list[_Stored]).decode


def read(kind: str, body: bytes, limits: EntryLimits) -> Stored:
    """The stored entries of a body of this media type. Raises RefusalError."""
    return _of_messages(body, limits) if kind == JSON else _of_bytes(body, limits)


def _of_messages(body: bytes, limits: EntryLimits) -> Stored:
    """One entry for each message; those of a list are messages of their own, one level deep. Those of a long
    body are counted and measured before anything is made of them.
    """
    text = body.strip(_BLANKS)
    is_list, is_short = text.startswith(b"["), len(text) <= _SHORT_BYTES_MAX
    if is_list and not is_short and strict_json.has_more_items(text, limits.entries_max):
        check_count(limits.entries_max + 1, limits)
    if not is_short:
        strict_json.within(text)
    try:
        if is_short:
            orjson.loads(text)
        else:
            _check_utf8(text)
        messages = _messages_of(text) if is_list else [_message_of(text)]
        if messages:
            check_count(len(messages), limits)
            check_size(max(map(len, messages)), limits)
        if not is_short:
            for message in messages:
                _check_numbers(bytes(message))
    except (orjson.JSONDecodeError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusalError("malformed_json", f"the body is no JSON text: {error}") from None
    except RecursionError:
        raise RefusalError(
            "malformed_json", "a message is nested too deep: nest it less, or send it as a string"
        ) from None
    return _checked([entries.data_body(bytes(one)) for one in messages], limits)


def _check_utf8(text: bytes) -> None:
    """Raise UnicodeDecodeError for what is no UTF-8. Decoded whole, text may take four times as much."""
    if text.isascii():
        return
    decode = _decoder_of_pieces().decode
    for start in range(0, len(text), _PIECE_BYTES):
        decode(text[start : start + _PIECE_BYTES], final=start + _PIECE_BYTES >= len(text))


def _check_numbers(message: bytes) -> None:
    """Raise `orjson.JSONDecodeError` for a number beyond a double: what may have one is decoded."""
    shape = message.translate(_DIGITS_ALIKE)
    if any(mark in shape for mark in _LARGE):
        strict_json.expect_room(message, copies=2, strings=1, values=sum(map(message.count, b",[{")))
        orjson.loads(message)


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
