"""A stream as one text, which DUMP gives and RESTORE takes.

Knows: the form of the text, and every part of a stream that is in it.
Must never know: names, records, commands, what is done with a stream.

    WEIRDUMP1:9c2f01ab:{"last_id":"9-0",…,"nodes":[…],"groups":{…}}
    kind and version : crc32 of what follows, hexadecimal : JSON, UTF-8 as a whole

JSON has no lengths that could lie, and every API can carry it. A caller may send any text of this form with
a sound checksum: nothing in it is true until it was checked.

Not in it: when the stream expires (RESTORE is given that), `archived_up_to`, what was answered under
idempotency keys over REST, and the policies of groups, since these name other streams.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Final, Literal
from zlib import crc32

import msgspec

from engine import entries, ids
from engine.durable_streams import DurableStream
from engine.groups import Group
from engine.keyspace import REASON_BYTES_MAX, Key
from engine.nodes import OpenNode, live_places
from engine.pending_states import PendingState

# What one turn writes or reads; and the same in entries, of up to 6 µs each.
DUMP_BYTES_MAX: Final = 512 << 10
DUMP_COST_MAX: Final = 2_000
_HEAD: Final = b"WEIRDUMP1:"
_CHECKSUM_BYTES: Final = 8

_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Limit = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
_ProducerName = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    """IDs are text, times milliseconds."""


class EntryPart(_Part, omit_defaults=True):
    """An entry as it is stored (`engine.entries`)."""

    id: str
    fields: dict[str, str]
    encoding: Literal["base64"] | None = None
    pairs: list[tuple[str, str]] | None = None
    meta: Annotated[dict[str, str], msgspec.Meta(min_length=1)] | None = None


class NodePart(_Part):
    """A sealed node: its borders, and how many entries Redis would count in it, deleted ones too."""

    first: str
    last: str
    count: _Natural
    entries: list[EntryPart]


class OpenPart(_Part):
    """The node that takes entries. Of a deleted one there is the ID, and how long its text was."""

    entries: list[EntryPart]
    deleted: dict[str, _Natural]


class GroupPart(_Part):
    """`consumers`: when each was seen, and active. `pending`, in order of delivery: ID, consumer, time and
    delivery count. Without a consumer the time is 0, or that at which the entry comes back.
    """

    last_delivered_id: str
    entries_read: _Natural | None
    consumers: dict[str, tuple[_Natural, Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]]]
    pending: list[tuple[str, str | None, _Natural, _Natural]]


class IdempotencyPart(_Part):
    """The table of one stream; `keys`: producer, key, ID, each producer's in order of use."""

    duration_s: Annotated[int, msgspec.Meta(ge=1, le=86_400)]
    maxsize: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    added: _Natural
    duplicates: _Natural
    keys: list[tuple[bytes, bytes, str]]


class RetentionPart(_Part):
    """As `engine.keyspace.Retention`."""

    max_len: _Limit | None
    max_age_ms: _Limit | None
    max_bytes: _Limit | None
    keep_unacknowledged: bool
    keep_unarchived: bool


class ClosedPart(_Part):
    """As `engine.keyspace.Closed`."""

    at_ms: _Natural
    reason: Annotated[str, msgspec.Meta(max_length=REASON_BYTES_MAX)]


class DurablePart(_Part):
    """What a stream of Durable Streams has beside; `producers`: name, epoch, sequence and time, in order of
    time.
    """

    # It stands in a header of HTTP.
    media: Annotated[str, msgspec.Meta(pattern=r"\A[!-~]+/[ -~]+\Z", max_length=256)]
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=1000 * ((1 << 53) - 1))] | None
    config: Annotated[bytes, msgspec.Meta(max_length=16)]
    writer_seq: Annotated[bytes, msgspec.Meta(max_length=256)]
    producers: list[tuple[_ProducerName, _Limit, _Limit, _Natural]]


class StreamDump(_Part, omit_defaults=True):
    """A stream. `forgotten_upto` is only there where XSETID made it so, `closed` where the stream is, and
    `durable` where it is one of Durable Streams.
    """

    last_id: str
    max_deleted_id: str
    removed_upto: str
    entries_added: _Natural
    nodes: list[NodePart]
    open: OpenPart | None
    groups: dict[str, GroupPart]
    idempotency: IdempotencyPart
    retention: RetentionPart
    forgotten_upto: str = "0-0"
    closed: ClosedPart | None = None
    durable: DurablePart | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(StreamDump).decode
_decode_entries: Final = msgspec.json.Decoder(list[EntryPart]).decode


class WrongChecksumError(ValueError):
    """Not a text of this kind and version, or a damaged one."""


def encode(dump: StreamDump) -> bytes:
    """The text of a stream."""
    text = _encode(dump)
    return b"%b%08x:%b" % (_HEAD, crc32(text), text)


def decode(payload: bytes) -> StreamDump:
    """The stream that `payload` describes; what it says is typed, and otherwise not checked.

    Raises WrongChecksumError; ValueError for what has another form.
    """
    text = payload[len(_HEAD) + _CHECKSUM_BYTES + 1 :]
    if payload[: -len(text)] != b"%b%08x:" % (_HEAD, crc32(text)):
        raise WrongChecksumError
    return _decode(text)


def encode_entry(entry: EntryPart) -> bytes:
    """The stored form of the entry. Raises ValueError if it has no fields, or if they make no sense."""
    if not entry.fields:
        raise ValueError("an entry has fields")
    text = _encode(entry)
    if entry.encoding is None and entry.pairs is None:
        return text
    pairs = entries.pairs_of(text)
    if not pairs:
        raise ValueError("an entry has fields")
    body = entries.with_meta(entries.body(pairs), entry.meta or {})
    return entries.encode(entries.id_of(text), body)


def dump_cost(dump: StreamDump) -> int:
    """How many entries of the usual form take as long to write or to read."""
    opened = () if dump.open is None else (dump.open,)
    nodes = sum(2 + sum(map(_entry_cost, part.entries)) for part in (*dump.nodes, *opened))
    deleted = sum(len(part.deleted) for part in opened)
    groups = sum(1 + len(group.consumers) + len(group.pending) for group in dump.groups.values())
    if dump.durable is not None:
        # What its entries hold is looked at.
        nodes += nodes + len(dump.durable.producers)
    return nodes + deleted + groups + len(dump.idempotency.keys)


def _entry_cost(entry: EntryPart) -> int:
    cost = 1 + (len(entry.fields) + len(entry.meta or ())) // 8
    return cost if entry.encoding is None and entry.pairs is None else 4 + cost + len(entry.pairs or ())


def key_cost(key: Key) -> int:
    """The same of a stream that was not dumped yet; at least."""
    groups = sum(1 + len(group.consumers) + len(group.pending) for group in key.groups.values())
    producers = 0 if key.durable is None else len(key.durable.producers)
    return key.stream.length + groups + key.idempotency_table.keys_tracked + producers


def dump_key(key: Key) -> StreamDump:
    """Describe a stream."""
    stream, table = key.stream, key.idempotency_table
    nodes = []
    for node in stream.nodes_from():
        if isinstance(node, OpenNode):
            break
        texts = node.texts()
        live = [texts[place] for place in live_places(node, node.held)]
        nodes.append(NodePart(ids.format(node.first), ids.format(node.last), node.count, entry_parts(live)))
    return StreamDump(
        ids.format(stream.last_id),
        ids.format(stream.max_deleted_id),
        ids.format(stream.removed_upto),
        stream.entries_added,
        nodes,
        None if stream.open is None else _dump_open(stream.open),
        {name: _dump_group(group) for name, group in sorted(key.groups.items())},
        IdempotencyPart(
            table.duration_s,
            table.maxsize,
            table.added,
            table.duplicates,
            [
                (producer, key, ids.format(entry_id))
                for producer, keys in table.producers.items()
                for key, entry_id in keys.items()
            ],
        ),
        RetentionPart(*key.retention),
        ids.format(stream.forgotten_upto),
        None if key.closed is None else ClosedPart(*key.closed),
        None if key.durable is None else _dump_durable(key.durable),
    )


def _dump_durable(durable: DurableStream) -> DurablePart:
    producers = [(name, *place) for name, place in durable.producers.items()]
    return DurablePart(durable.media, durable.ttl_ms, durable.config, durable.writer_seq, producers)


def _dump_open(node: OpenNode) -> OpenPart:
    deleted = {
        ids.format(node.ids[place]): len(text)
        for place, text in enumerate(node.stored)
        if node.deleted >> place & 1
    }
    return OpenPart(entry_parts([node.stored[place] for place in live_places(node, len(node.ids))]), deleted)


def entry_parts(texts: Sequence[bytes]) -> list[EntryPart]:
    """Stored entries as parts of a stream."""
    return _decode_entries(b"[%b]" % b",".join(texts))


def _dump_group(group: Group) -> GroupPart:
    consumers = group.consumers.values()
    return GroupPart(
        ids.format(group.last_delivered_id),
        group.entries_read,
        {
            consumer.name: (consumer.seen_time_ms, consumer.active_time_ms)
            for consumer in sorted(consumers, key=lambda c: c.name)
        },
        [
            _pending_row(entry_id, state)
            for entry_id, state in chain(group.in_order_of_delivery(), group.deferred_first())
        ],
    )


def _pending_row(entry_id: int, state: PendingState) -> tuple[str, str | None, int, int]:
    owner = None if state.consumer is None else state.consumer.name
    return ids.format(entry_id), owner, state.until_ms or state.delivery_time_ms, state.delivery_count
