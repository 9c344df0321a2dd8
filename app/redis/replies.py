"""The engine's typed replies in the shapes that Redis gives to RESP2 clients.

Knows: the nesting, the order of flat maps, which numbers are strings, which empty replies are null.
Must never know: commands, JSON, base64.

Eight megabytes of small fields are a million strings. To shape them all would take ten times their size in
memory, and seconds of the event loop. So entries have a `Form`: what writes a reply as text gives it the text
of each entry, written from the stored one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from app.redis.resp import Named, Pairs, Resp
from engine import entries, ids
from engine.replies import (
    Added,
    AutoClaimed,
    Claimed,
    Closed,
    ConsumerDetail,
    ConsumerInfo,
    Deletions,
    Delivered,
    Entries,
    GroupDetail,
    GroupInfo,
    GroupRead,
    Outcomes,
    PendingEntry,
    PendingList,
    PendingSummary,
    Reply,
    StreamDetail,
    StreamInfo,
    StreamsRead,
    Trimmed,
    by_type,
)

# The end of an entry without an encoding and without repeated names; metadata may end so too.
PLAIN_END: Final = b'"}}'
# Positions in a split at quotation marks, if there is no backslash: id, its text, fields, names and values.
ID_AT, FIELDS_FROM = 3, 7


class Form:
    """How entries are shaped: here as any reply; others give text that is written already."""

    # Null in the place of a list, as of the fields of a deleted entry.
    no_list: Resp = None

    def entry(self, text: bytes) -> Resp:
        """Shape one entry from its stored text."""
        return [_id(entries.id_of(text)), _flat(entries.pairs_of(text))]

    def entries(self, texts: Sequence[bytes]) -> Resp:
        """Shape entries, each with a stored text of its own."""
        return [self.entry(text) for text in texts]

    def run(self, run: Entries) -> Resp:
        """Shape entries that are stored together."""
        return self.entries([text for part in run.parts for text in entries.texts(part)])


SHAPED: Final = Form()


def is_plain(text: bytes) -> bool:
    """Whether names and values stand in a stored entry as they are."""
    return b"\\" not in text and text.endswith(PLAIN_END) and not entries.has_meta(text)


def entry_shape(reply: Reply) -> Callable[[Any, Form], Resp] | None:
    """What shapes a reply that consists of whole entries; None for any other."""
    return by_type(ENTRY_SHAPES, reply)


def resp(reply: Reply) -> Resp:
    """Shape a reply as RESP2: True is OK, None is null."""
    if reply is None or reply is True:
        return "OK" if reply else None
    if isinstance(reply, int | str):
        return reply
    of_entries = entry_shape(reply)
    if of_entries is not None:
        return of_entries(reply, SHAPED)
    shape = by_type(SHAPES, reply)
    if shape is not None:
        return shape(reply)
    assert isinstance(reply, Sequence), "every other reply is a list of groups or of consumers"
    return [resp_of_info(element) for element in reply]


def count(reply: Reply) -> Resp:
    """Shape a count as a number; the engine may reply with a boolean."""
    assert isinstance(reply, int), "counting commands count"
    return int(reply)


def resp_of_info(info: object) -> Resp:
    """One element of XINFO GROUPS or XINFO CONSUMERS."""
    assert isinstance(info, GroupInfo | ConsumerInfo), "the only replies that are lists"
    return _group(info) if isinstance(info, GroupInfo) else _consumer(info)


def weir_info(reply: Reply) -> Resp:
    """What Weir has of a stream and Redis has not."""
    assert isinstance(reply, StreamInfo), "it asks for the stream"
    return _map(
        [
            ("generation", reply.generation.encode()),
            ("removed-upto", _id(reply.removed_upto)),
            ("archived-up-to", _id(reply.archived_up_to)),
            ("schedules", reply.schedules),
            ("closed-at-ms", reply.closed_at_ms),
            ("close-reason", reply.close_reason.encode()),
        ]
    )


def _closed(reply: Closed) -> Resp:
    given = [] if reply.added is None else [("id", _id(reply.added.ids[-1]))]
    return _map(
        [
            *given,
            ("last-id", _id(reply.end.last_id)),
            ("closed-at-ms", reply.end.closed_at_ms),
            ("close-reason", reply.end.reason.encode()),
            ("duplicate", int(reply.duplicate)),
        ]
    )


def done_count(reply: Reply) -> Resp:
    """XNACK: with how many it was done."""
    assert isinstance(reply, Outcomes), "giving back answers what became of each"
    return len(reply.done)


def done_ids(reply: Reply) -> Resp:
    """WEIR.EXTEND: with which it was done."""
    assert isinstance(reply, Outcomes), "extending answers what became of each"
    return _ids(reply.done)


def just_ids(reply: Reply) -> Resp:
    """XCLAIM and XAUTOCLAIM with JUSTID."""
    if isinstance(reply, Claimed):
        return _claimed_ids(reply.entries)
    assert isinstance(reply, AutoClaimed), "JUSTID belongs to the claiming commands"
    return [_id(reply.next_start), _claimed_ids(reply.entries), _ids(reply.deleted_ids)]


def _id(entry_id: int) -> bytes:
    return ids.format(entry_id).encode("ascii")


def _ids(entry_ids: Iterable[int]) -> Resp:
    return [_id(entry_id) for entry_id in entry_ids]


def _claimed_ids(claimed: Iterable[Delivered]) -> Resp:
    return [_id(delivered.id) for delivered in claimed]


def _flat(pairs: Iterable[tuple[str, Resp]]) -> list[Resp]:
    """Fields of an entry: names and values alternate, a list in every protocol."""
    return [part for name, value in pairs for part in (name.encode(), value)]


def _map(pairs: Iterable[tuple[str, Resp]]) -> Resp:
    return Pairs(_flat(pairs))


def _run(run: Entries, form: Form) -> Resp:
    return form.run(run)


def _streams_read(reply: StreamsRead, form: Form) -> Resp:
    return Named([read.stream.encode(), form.run(read.entries)] for read in reply.streams) or None


def _group_read(reply: GroupRead, form: Form) -> Resp:
    return Named([read.stream.encode(), _delivered(read.entries, form)] for read in reply.streams) or None


def _delivered(delivered: Sequence[Delivered], form: Form) -> Resp:
    texts = [entry.text for entry in delivered if entry.text is not None and entry.idle_ms is None]
    if len(texts) == len(delivered):
        return form.entries(texts)
    return [_delivered_entry(entry, form) for entry in delivered]


def _delivered_entry(delivered: Delivered, form: Form) -> Resp:
    """Null fields if deleted, idle time and count if claimed."""
    if delivered.text is not None and delivered.idle_ms is None:
        return form.entry(delivered.text)
    fields = form.no_list if delivered.text is None else _flat(entries.pairs_of(delivered.text))
    shape: list[Resp] = [_id(delivered.id), fields]
    if delivered.idle_ms is not None:
        shape += [delivered.idle_ms, delivered.deliveries]
    return shape


def _claimed(reply: Claimed | AutoClaimed, form: Form) -> Resp:
    texts = [entry.text for entry in reply.entries if entry.text is not None]
    assert len(texts) == len(reply.entries), "claims drop deleted entries"
    return form.entries(texts)


def _auto_claimed(reply: AutoClaimed, form: Form) -> Resp:
    return [_id(reply.next_start), _claimed(reply, form), _ids(reply.deleted_ids)]


def _pending_summary(reply: PendingSummary, form: Form) -> Resp:
    if not reply.count:
        return [0, None, None, form.no_list]
    consumers: Resp = [[name.encode(), b"%d" % pending] for name, pending in reply.consumers]
    return [reply.count, _id(reply.first_id), _id(reply.last_id), consumers]


def _pending_entry(pending: PendingEntry) -> Resp:
    return [_id(pending.id), _owner(pending.consumer), pending.idle_ms, pending.delivery_count]


def _owner(consumer: str | None) -> bytes:
    return b"" if consumer is None else consumer.encode()


def _consumer(info: ConsumerInfo) -> Resp:
    return _map(
        [
            ("name", info.name.encode()),
            ("pending", info.pending),
            ("idle", info.idle_ms),
            ("inactive", info.inactive_ms),
        ]
    )


def _group(info: GroupInfo) -> Resp:
    return _map(
        [
            ("name", info.name.encode()),
            ("consumers", info.consumers),
            ("pending", info.pending),
            ("last-delivered-id", _id(info.last_delivered_id)),
            ("entries-read", info.entries_read),
            ("lag", info.lag),
        ]
    )


def _stream_head(info: StreamInfo) -> list[tuple[str, Resp]]:
    """The first fields of XINFO STREAM and of its FULL form."""
    return [
        ("length", info.length),
        ("radix-tree-keys", info.nodes),
        # There is no radix tree here; Redis has at least one node more than keys.
        ("radix-tree-nodes", info.nodes + 1),
        ("last-generated-id", _id(info.last_id)),
        ("max-deleted-entry-id", _id(info.max_deleted_id)),
        ("entries-added", info.entries_added),
        ("recorded-first-entry-id", _id(info.first_id)),
        ("idmp-duration", info.idmp_duration_s),
        ("idmp-maxsize", info.idmp_maxsize),
        ("pids-tracked", info.pids_tracked),
        ("iids-tracked", info.iids_tracked),
        ("iids-added", info.iids_added),
        ("iids-duplicates", info.iids_duplicates),
    ]


def _stream(info: StreamInfo) -> Resp:
    first = None if info.first_entry is None else SHAPED.entry(info.first_entry)
    last = None if info.last_entry is None else SHAPED.entry(info.last_entry)
    tail: list[tuple[str, Resp]] = [("groups", info.groups), ("first-entry", first), ("last-entry", last)]
    return _map(_stream_head(info) + tail)


def _stream_detail(detail: StreamDetail) -> Resp:
    groups: Resp = [_group_detail(group) for group in detail.groups]
    tail: list[tuple[str, Resp]] = [("entries", SHAPED.run(detail.entries)), ("groups", groups)]
    return _map(_stream_head(detail.stream) + tail)


def _group_detail(detail: GroupDetail) -> Resp:
    info = detail.group
    pending: Resp = [
        [_id(entry_id), _owner(consumer), time_ms, deliveries]
        for entry_id, consumer, time_ms, deliveries in detail.pending
    ]
    return _map(
        [
            ("name", info.name.encode()),
            ("last-delivered-id", _id(info.last_delivered_id)),
            ("entries-read", info.entries_read),
            ("lag", info.lag),
            ("pel-count", info.pending),
            ("nacked-count", detail.nacked_count),
            ("pending", pending),
            ("consumers", [_consumer_detail(consumer) for consumer in detail.consumers]),
        ]
    )


def _consumer_detail(detail: ConsumerDetail) -> Resp:
    pending: Resp = [[_id(entry_id), time_ms, deliveries] for entry_id, time_ms, deliveries in detail.pending]
    return _map(
        [
            ("name", detail.name.encode()),
            ("seen-time", detail.seen_time_ms),
            ("active-time", detail.active_time_ms),
            ("pel-count", detail.pending_count),
            ("pending", pending),
        ]
    )


SHAPES: Final[Mapping[type, Callable[[Any], Resp]]] = {
    Added: lambda reply: _id(reply.ids[0]),
    Closed: _closed,
    Deletions: lambda reply: list(reply.results),
    PendingList: lambda reply: list(map(_pending_entry, reply.entries)),
    StreamDetail: _stream_detail,
    StreamInfo: _stream,
    Trimmed: lambda reply: reply.deleted,
}
# Replies of which a protocol has its own form: entries, and null in the place of a list.
ENTRY_SHAPES: Final[Mapping[type, Callable[[Any, Form], Resp]]] = {
    AutoClaimed: _auto_claimed,
    Claimed: _claimed,
    Entries: _run,
    GroupRead: _group_read,
    PendingSummary: _pending_summary,
    StreamsRead: _streams_read,
}
