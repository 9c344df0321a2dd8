"""Replies with many entries, written directly from the stored text.

Knows: how the stored form of an entry maps to its RESP2 shape.
Must never know: commands beyond their replies' types, limits, HTTP.

    {"id":"1-0","fields":{"a":"b","c":"d"}}   →   ["1-0",["a","b","c","d"]]

Eight megabytes of small fields are a million strings. Shaping them all first would take ten times their
size in memory, and seconds of the event loop. Writing entry by entry avoids both. The text never changes, so
a thread may write it. The result equals that of `replies` and `resp`, byte for byte.
"""

import base64 as base64_codec
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from app.redis import replies
from app.redis.resp import Resp, to_json
from engine import entries
from engine.replies import AutoClaimed, Claimed, Delivered, Entries, GroupRead, Reply, StreamsRead

_encode: Final = msgspec.json.Encoder().encode
# The end of an entry without an encoding and without repeated names; metadata may end so too.
_PLAIN_END: Final = b'"}}'
# Positions in a split at quotation marks, if there is no backslash: id, its text, fields, names and values.
_ID, _FIELDS_FROM = 3, 7


def written(resp: Resp, *, base64: bool) -> bytes:
    """Write any reply as JSON text."""
    return _encode(to_json(resp, base64=base64))


def of_entries(reply: Reply, *, base64: bool) -> bytes | None:
    """Write a reply that consists of whole entries as JSON text; None for any other reply."""
    writer = _WRITERS.get(type(reply))
    return None if writer is None else writer(reply, base64=base64)


def text_bytes(reply: Reply) -> int:
    """The size of the stored text in a reply, in bytes; 0 without entries."""
    if isinstance(reply, Entries):
        return sum(map(len, reply.parts))
    if isinstance(reply, StreamsRead):
        return sum(len(part) for read in reply.streams for part in read.entries.parts)
    if isinstance(reply, GroupRead):
        return sum(len(one.text or b"") for read in reply.streams for one in read.entries)
    if isinstance(reply, Claimed | AutoClaimed):
        return sum(len(one.text or b"") for one in reply.entries)
    return 0


def _entry(text: bytes, *, base64: bool) -> bytes:
    if b"\\" not in text and text.endswith(_PLAIN_END) and not entries.has_meta(text):
        words = text.split(b'"')
        if base64:
            return b'["%b",["%b"]]' % (_base64(words[_ID]), b'","'.join(map(_base64, words[_FIELDS_FROM::2])))
        return b'["%b",["%b"]]' % (words[_ID], b'","'.join(words[_FIELDS_FROM::2]))
    return written(replies.entry(text), base64=base64)


def _base64(word: bytes) -> bytes:
    return base64_codec.b64encode(word)


def _array(pieces: Iterable[bytes]) -> bytes:
    return b"[%b]" % b",".join(pieces)


def _run(run: Entries, *, base64: bool) -> bytes:
    return _array(_entry(text, base64=base64) for part in run.parts for text in entries.texts(part))


def _streams_read(reply: StreamsRead, *, base64: bool) -> bytes:
    if not reply.streams:
        return b"null"
    return _array(
        b"[%b,%b]" % (_name(read.stream, base64=base64), _run(read.entries, base64=base64))
        for read in reply.streams
    )


def _group_read(reply: GroupRead, *, base64: bool) -> bytes:
    if not reply.streams:
        return b"null"
    return _array(
        b"[%b,%b]"
        % (_name(read.stream, base64=base64), _array(_delivered(one, base64=base64) for one in read.entries))
        for read in reply.streams
    )


def _delivered(delivered: Delivered, *, base64: bool) -> bytes:
    if delivered.text is None or delivered.idle_ms is not None:
        return written(replies.delivered_entry(delivered), base64=base64)
    return _entry(delivered.text, base64=base64)


def _claimed(reply: Claimed, *, base64: bool) -> bytes:
    return _array(_claimed_entry(one, base64=base64) for one in reply.entries)


def _claimed_entry(delivered: Delivered, *, base64: bool) -> bytes:
    assert delivered.text is not None, "claims drop deleted entries"
    return _entry(delivered.text, base64=base64)


def _auto_claimed(reply: AutoClaimed, *, base64: bool) -> bytes:
    rest = [written(part, base64=base64) for part in replies.around_claimed(reply)]
    claimed = _array(_claimed_entry(one, base64=base64) for one in reply.entries)
    return _array((rest[0], claimed, rest[1]))


def _name(stream: str, *, base64: bool) -> bytes:
    return written(stream.encode(), base64=base64)


_WRITERS: Final[Mapping[type, Callable[..., bytes]]] = {
    Entries: _run,
    StreamsRead: _streams_read,
    GroupRead: _group_read,
    Claimed: _claimed,
    AutoClaimed: _auto_claimed,
}
