"""Entries as a consumer gets them.

Knows: what is written beside an entry that was delivered, and how a read that found none is answered.
Must never know: how a read is asked for.
"""

from typing import Final

from pydantic import Field

from app.http.entries.entry_pages import Base64, GapReport, Meta, Pairs
from app.http.models import INTEGER_MAX, Count, IdText, Milliseconds, ResponseModel, absent
from engine import ids
from engine.replies import Delivered, GroupInfo, Reply, StreamDeliveries, StreamEnd

CLOSED: Final = Field(description="the stream is closed, and the group has nothing left to read")
DRAINED: Final = Field(description="nor is anything pending in the group")
_JSON_BOOLEANS: Final = {True: b"true", False: b"false"}


class DeliveredEntry(ResponseModel):
    """An entry handed to a consumer. `fields` is null where a pending entry was deleted from the stream,
    `idle_ms` where it was given back before: it had no consumer.
    """

    id: IdText
    fields: dict[str, str] | None
    encoding: Base64 = absent()
    pairs: Pairs = absent()
    meta: Meta = absent()
    delivery_count: Count = absent()
    idle_ms: Milliseconds | None = absent()


def delivered(one: Delivered) -> bytes:
    """An entry with how often it was delivered, this time included, and, where it was taken over, for how
    long it had been idle. `fields` is null where the entry is gone from the stream, the idle time where it
    had been given back.
    """
    text = one.text if one.text is not None else b'{"id":"%b","fields":null}' % ids.format(one.id).encode()
    return b'%b,"delivery_count":%d%b}' % (text[:-1], min(one.delivery_count, INTEGER_MAX), _idle(one))


def _idle(one: Delivered) -> bytes:
    if one.released:
        return b',"idle_ms":null'
    return b"" if one.idle_ms is None else b',"idle_ms":%d' % min(one.idle_ms, INTEGER_MAX)


def deliveries(found: StreamDeliveries, end: StreamEnd | None = None) -> bytes:
    """What a read of one stream gave: new entries as they are stored, others as `delivered` has them."""
    plain = not found.history and all(one.idle_ms is None for one in found.entries)
    texts = [one.text or b"" for one in found.entries] if plain else list(map(delivered, found.entries))
    if found.history:
        after = found.entries[-1].id if found.entries else found.after
        where = b'"next":"%b"' % ids.format(after).encode()
    else:
        where = b'"last_delivered_id":"%b"' % ids.format(found.last_delivered_id).encode()
    gap = b',"gap":' + GapReport(found.gap).text() if found.gap is not None else b""
    more = _JSON_BOOLEANS[found.more]
    return b'{"entries":[%b],%b,"more":%b%b%b}' % (b",".join(texts), where, more, gap, _ended(end))


def _ended(end: StreamEnd | None) -> bytes:
    if end is None:
        return b""
    return b',"closed":true,"drained":true' if end.drained else b',"closed":true'


def nothing_delivered(info: Reply, end: StreamEnd | None = None, *, more: bool) -> bytes:
    """The answer of a read of new entries that found none; `info` is the group. `more`: a limit ended it."""
    assert isinstance(info, GroupInfo), "describing a group answers the group"
    last = ids.format(info.last_delivered_id).encode()
    return b'{"entries":[],"last_delivered_id":"%b","more":%b%b}' % (last, _JSON_BOOLEANS[more], _ended(end))


def no_history(after: int) -> bytes:
    """The answer of a read of history that had no room for any of it."""
    return b'{"entries":[],"next":"%b","more":true}' % ids.format(after).encode()
