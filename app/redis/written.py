"""Replies as JSON text, entries written directly from the stored text.

Knows: how the stored form of an entry maps to its RESP2 shape.
Must never know: commands beyond their replies' types, limits, HTTP.

    {"id":"1-0","fields":{"a":"b","c":"d"}}   →   ["1-0",["a","b","c","d"]]

The text never changes, so a thread may write it.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from app.redis import replies
from app.redis.resp import Resp, to_json
from engine.replies import AutoClaimed, Claimed, Entries, GroupRead, Reply, StreamsRead

_encode: Final = msgspec.json.Encoder().encode


def written(resp: Resp, *, base64: bool) -> bytes:
    """Write any reply as JSON text."""
    return _encode(to_json(resp, base64=base64))


def text_bytes(reply: Reply) -> int:
    """The size of the stored text in a reply, in bytes; 0 without entries."""
    size = _SIZES.get(type(reply))
    return 0 if size is None else size(reply)


def _in_claim(reply: Any) -> int:  # noqa: ANN401 - one of two types
    return sum(len(one.text or b"") for one in reply.entries)


_SIZES: Final[Mapping[type, Callable[[Any], int]]] = {
    Entries: lambda reply: sum(map(len, reply.parts)),
    StreamsRead: lambda reply: sum(len(part) for read in reply.streams for part in read.entries.parts),
    GroupRead: lambda reply: sum(len(one.text or b"") for read in reply.streams for one in read.entries),
    Claimed: _in_claim,
    AutoClaimed: _in_claim,
}


class _Json(replies.Form):
    """Entries as JSON text."""

    def __init__(self, *, base64: bool) -> None:
        self._base64 = base64

    def entry(self, text: bytes) -> Resp:
        return msgspec.Raw(self._entry(text))

    def entries(self, texts: Sequence[bytes]) -> Resp:
        return msgspec.Raw(b"[%b]" % b",".join(map(self._entry, texts)))

    def _entry(self, text: bytes) -> bytes:
        if not replies.is_plain(text):
            return written(replies.SHAPED.entry(text), base64=self._base64)
        words = text.split(b'"')
        entry_id, fields = words[replies.ID_AT], words[replies.FIELDS_FROM :: 2]
        if self._base64:
            entry_id, fields = b64encode(entry_id), list(map(b64encode, fields))
        return b'["%b",["%b"]]' % (entry_id, b'","'.join(fields))


JSON: Final = _Json(base64=False)
JSON_BASE64: Final = _Json(base64=True)
