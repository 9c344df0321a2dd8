"""Replies as JSON text, entries written directly from the stored text.

Knows: how the stored form of an entry maps to its RESP2 shape.
Must never know: commands beyond their replies' types, limits, HTTP.

    {"id":"1-0","fields":{"a":"b","c":"d"}}   →   ["1-0",["a","b","c","d"]]

The text never changes, so a thread may write it.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from app.limits import TEXT_SIZES, text_bytes
from app.redis import replies
from app.redis.resp import Resp, to_json
from engine import EngineError
from engine.replies import (
    AutoClaimed,
    Listing,
    PendingList,
    PendingSummary,
    Reply,
    StreamDetail,
    by_type,
)

# Longer replies take milliseconds to write, so a thread writes them.
_INLINE_BYTES_MAX: Final = 256 << 10
# A row, as of a pending entry or a group, takes up to 5 us: as long as this much text of entries.
_ROW_BYTES: Final = 512
# A name is compared with what the caller may see.
_NAME_BYTES: Final = _INLINE_BYTES_MAX // 100

_encode: Final = msgspec.json.Encoder().encode


def written(resp: Resp, *, base64: bool) -> bytes:
    """Write any reply as JSON text."""
    return _encode(to_json(resp, base64=base64))


def is_laborious(replies: Iterable[Reply | EngineError | None]) -> bool:
    """Whether writing these replies takes milliseconds: many entries, rows, or names to match."""
    size = 0
    for reply in replies:
        weigh = by_type(WEIGHTS, reply)
        if weigh is not None:
            size += weigh(reply)
    return size > _INLINE_BYTES_MAX


def _rows_of(detail: StreamDetail) -> int:
    return sum(
        1 + len(group.pending) + len(group.consumers) + sum(len(one.pending) for one in group.consumers)
        for group in detail.groups
    )


# How long it takes to write a reply, in bytes of entries' text. All others are short.
WEIGHTS: Final[Mapping[type, Callable[[Any], int]]] = {
    **TEXT_SIZES,
    AutoClaimed: lambda reply: text_bytes(reply) + _ROW_BYTES * len(reply.deleted_ids),
    Listing: lambda reply: _NAME_BYTES * len(reply.names),
    PendingList: lambda reply: _ROW_BYTES * len(reply.entries),
    PendingSummary: lambda reply: _ROW_BYTES * len(reply.consumers),
    StreamDetail: lambda reply: text_bytes(reply.entries) + _ROW_BYTES * _rows_of(reply),
    list: lambda reply: _ROW_BYTES * len(reply),
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
