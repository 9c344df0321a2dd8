"""Entries as a consumer gets them.

Knows: what is written beside an entry that was delivered, and how a read that found none is answered.
Must never know: how a read is asked for.
"""

from typing import Final

from pydantic import Field

from app.http.entries.entry_pages import Base64, GapReport, Meta, Pairs
from app.http.models import ABSENT, INTEGER_MAX, Count, IdText, Milliseconds, ResponseModel
from engine import ids
from engine.replies import Delivered, GroupInfo, Reply, StreamDeliveries, StreamEnd

CLOSED: Final = Field(description="the stream is closed, and the group has nothing left to read")
DRAINED: Final = Field(description="nor is anything pending in the group")
PAUSED: Final = Field(description="the group was paused: it delivers nothing until it is resumed")
_JSON_BOOLEANS: Final = {True: b"true", False: b"false"}


class DeliveredEntry(ResponseModel):
    """An entry handed to a consumer. `fields` is null where a pending entry was deleted from the stream,
    `idle_ms` where it was given back before: it had no consumer.
    """

    id: IdText
    fields: dict[str, str] | None
    encoding: Base64 = ABSENT
    pairs: Pairs = ABSENT
    meta: Meta = ABSENT
    delivery_count: Count = ABSENT
    idle_ms: Milliseconds | None = ABSENT


def delivered(entry: Delivered) -> bytes:
    """An entry with how often it was delivered, this time included, and, where it was taken over, for how
    long it had been idle. `fields` is null where the entry is gone from the stream, the idle time where it
    had been given back.
    """
    text = (
        entry.text if entry.text is not None else b'{"id":"%b","fields":null}' % ids.format(entry.id).encode()
    )
    return b'%b,"delivery_count":%d%b}' % (text[:-1], min(entry.delivery_count, INTEGER_MAX), _idle(entry))


def _idle(entry: Delivered) -> bytes:
    if entry.released:
        return b',"idle_ms":null'
    return b"" if entry.idle_ms is None else b',"idle_ms":%d' % min(entry.idle_ms, INTEGER_MAX)


def deliveries(stream: StreamDeliveries, end: StreamEnd | None = None) -> bytes:
    """What a read of one stream gave: new entries as they are stored, others as `delivered` has them."""
    plain = not stream.history and all(entry.idle_ms is None for entry in stream.entries)
    texts = [entry.text or b"" for entry in stream.entries] if plain else list(map(delivered, stream.entries))
    if stream.history:
        after = stream.entries[-1].id if stream.entries else stream.after
        where = b'"next":"%b"' % ids.format(after).encode()
    else:
        where = b'"last_delivered_id":"%b"' % ids.format(stream.last_delivered_id).encode()
    gap = b',"gap":' + GapReport(stream.gap).text() if stream.gap is not None else b""
    more = _JSON_BOOLEANS[stream.more]
    return b'{"entries":[%b],%b,"more":%b%b%b}' % (b",".join(texts), where, more, gap, _ended(end))


def _ended(end: StreamEnd | None) -> bytes:
    if end is None:
        return b""
    return b',"closed":true,"drained":true' if end.drained else b',"closed":true'


def nothing_delivered(info: Reply, end: StreamEnd | None = None, *, more: bool) -> bytes:
    """The answer of a read of new entries that found none; `info` is the group. `more`: a limit ended it."""
    assert isinstance(info, GroupInfo), "describing a group answers the group"
    last = ids.format(info.last_delivered_id).encode()
    state = (b',"paused":true' if info.paused else b"") + _ended(end)
    return b'{"entries":[],"last_delivered_id":"%b","more":%b%b}' % (last, _JSON_BOOLEANS[more], state)


def no_history(after: int) -> bytes:
    """The answer of a read of history that had no room for any of it."""
    return b'{"entries":[],"next":"%b","more":true}' % ids.format(after).encode()
