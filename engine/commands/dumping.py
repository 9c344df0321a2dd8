"""DUMP and RESTORE: a stream as text, and a stream from such a text.

Knows: what makes a described stream sound, the records of one, and how much one turn describes or restores.
Must never know: wire formats, who wrote a text.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from engine import entries, errors, ids
from engine.commands import types
from engine.commands.expiring import expiry_of
from engine.commands.keys import clear
from engine.commands.registry import ends_streams, runs
from engine.commands.turn import Turn
from engine.dump import (
    DUMP_BYTES_MAX,
    DUMP_COST_MAX,
    DurablePart,
    EntryPart,
    GroupPart,
    IdempotencyPart,
    OpenPart,
    StreamDump,
    dump_cost,
    dump_key,
    encode,
    encode_entry,
    key_cost,
)
from engine.durable_streams import JSON_MEDIA, PRODUCERS_MAX, kind_of
from engine.keyspace import REASON_BYTES_MAX, Caps, Retention
from engine.nodes import Text, new_compressor
from engine.records import (
    AdvanceProducer,
    CloseStream,
    CreateGroup,
    Describe,
    Record,
    RestoreConsumer,
    RestoreDeferred,
    RestoreForgotten,
    RestoreNode,
    RestoreOpenNode,
    RestorePending,
    RestoreProducerKey,
    RestoreStream,
    SetLifetime,
    SetMedia,
    SetWriterSeq,
)
from engine.replies import Dumped


@runs(types.Dump)
def dump(turn: Turn, command: types.Dump) -> Dumped | None:
    key = turn.keyspace.find(command.stream)
    if key is None:
        return None
    open_bytes = 0 if key.stream.open is None else key.stream.open.size
    stored_bytes = key.stream.nodes.byte_counter.plain_bytes + open_bytes
    if stored_bytes > DUMP_BYTES_MAX or key_cost(key) > DUMP_COST_MAX:
        raise errors.too_large_to_dump()
    described = dump_key(key)
    text = encode(described)
    if len(text) > DUMP_BYTES_MAX or dump_cost(described) > DUMP_COST_MAX:
        raise errors.too_large_to_dump()
    return Dumped(text.decode())


@runs(types.Restore)
@ends_streams
def restore(turn: Turn, command: types.Restore) -> bool:
    stream, described = command.stream, command.dump
    there = turn.keyspace.find(stream) is not None
    if there and not command.replace:
        raise errors.busy_key()
    if command.size > DUMP_BYTES_MAX or dump_cost(described) > DUMP_COST_MAX:
        raise errors.too_large_to_restore()
    at_ms = None
    if command.ms:
        at_ms = expiry_of(turn, command.ms, relative=command.relative, command="restore")
    try:
        records = list(_records(stream, turn.keyspace.new_generation(), described))
    except ValueError:
        raise errors.bad_data_format() from None
    _check_caps(stream, described, turn.keyspace.caps)
    turn.expect_room(not there)
    if at_ms is not None and at_ms <= turn.now_ms:
        if there:
            turn.remove_stream(stream, "del")
        return True
    clear(turn, stream)
    if at_ms is not None:
        records.append(SetLifetime(stream, at_ms))
    for record in records:
        turn.emit_quietly(record)
    turn.signal(stream)
    turn.notify("new", stream)
    turn.notify("restore", stream)
    return True


def _check_caps(stream: str, described: StreamDump, caps: Caps) -> None:
    """Refuse what could not have come into being here."""
    if len(described.groups) > caps.groups_max:
        raise errors.too_many_groups(stream, caps.groups_max)
    for name, group in described.groups.items():
        if len(group.consumers) > caps.consumers_max:
            raise errors.too_many_consumers(name, caps.consumers_max)


def _expect(sound: bool) -> None:  # noqa: FBT001 - it is the one thing that is said
    if not sound:
        raise ValueError("the parts do not make a stream")


def _id(text: str) -> int:
    found = ids.parse(text)
    if found is None or ids.format(found) != text:
        raise ValueError("not an ID")
    return found


def _records(stream: str, generation: str, described: StreamDump) -> Iterator[Record]:
    """The records that make the stream. Raises ValueError if it is none that commands could have made."""
    nodes = list(_nodes(stream, described))
    if described.open is not None:
        nodes.append(_open(stream, described.open))
    if described.durable is not None:
        _expect_data(described, kind_of(described.durable.media))
    live = [entry_id for _, _, live in nodes for entry_id in live]
    last = nodes[-1][1][1] if nodes else 0
    last_id, max_deleted_id = _id(described.last_id), _id(described.max_deleted_id)
    _expect(all(before[1] < after[0] for (_, before, _), (_, after, _) in pairwise(nodes)))
    _expect(all(before < after for before, after in pairwise(live)))
    _expect(last_id >= max(last, max_deleted_id) and described.entries_added >= len(live))
    table = described.idempotency
    yield RestoreStream(
        stream, generation, live[0] if live else 0, live[-1] if live else 0, last_id, max_deleted_id,
        _id(described.removed_upto), described.entries_added,
        (table.duration_s, table.maxsize, table.added, table.duplicates),
    )  # fmt: skip
    forgotten_upto = _id(described.forgotten_upto)
    if forgotten_upto:
        yield RestoreForgotten(stream, forgotten_upto)
    closed = described.closed
    if closed is not None:
        _expect(len(closed.reason.encode()) <= REASON_BYTES_MAX)
        yield CloseStream(stream, closed.at_ms, closed.reason)
    if described.durable is not None:
        yield from _durable(stream, described.durable)
    retention = Retention(*(getattr(described.retention, name) for name in Retention._fields))
    if retention != Retention():
        yield Describe(stream, *retention, 0)
    yield from (node for node, _, _ in nodes)
    yield from _producer_keys(stream, table)
    for name, group in described.groups.items():
        yield from _group(stream, name, group, described.entries_added)


def _expect_data(described: StreamDump, kind: str) -> None:
    """Expect what readers of Durable Streams can read in each entry."""
    opened = () if described.open is None else (described.open,)
    for part in (*described.nodes, *opened):
        for entry in part.entries:
            pairs = entries.pairs_of(encode_entry(entry))
            _expect([name for name, _ in pairs] == ["data"])
            _expect(kind != JSON_MEDIA or entries.is_json(pairs[0][1]))


def _durable(stream: str, part: DurablePart) -> Iterator[Record]:
    yield SetMedia(stream, part.media, part.ttl_ms, part.config)
    if part.writer_seq:
        yield SetWriterSeq(stream, part.writer_seq)
    names, times_ms = [row[0] for row in part.producers], [row[3] for row in part.producers]
    _expect(len(set(names)) == len(names) <= PRODUCERS_MAX and times_ms == sorted(times_ms))
    for producer, epoch, seq, at_ms in part.producers:
        yield AdvanceProducer(stream, producer, epoch, seq, at_ms)


# A node's record, its borders, and the IDs of its live entries.
_Node: TypeAlias = "tuple[RestoreNode | RestoreOpenNode, tuple[int, int], list[int]]"


def _nodes(stream: str, described: StreamDump) -> Iterator[_Node]:
    """The sealed ones."""
    compressor = new_compressor()
    for part in described.nodes:
        live, texts = _entries(part.entries)
        first, last = _id(part.first), _id(part.last)
        _expect(0 < first <= live[0] and live[-1] <= last and part.count >= len(live))
        packed = Text(b",".join(texts)).compress(compressor)
        yield RestoreNode(stream, first, last, part.count, len(live), b"", packed), (first, last), live


def _entries(parts: list[EntryPart]) -> tuple[list[int], list[bytes]]:
    """The IDs and texts of a node's live entries: one at least."""
    _expect(bool(parts))
    return [_id(part.id) for part in parts], [encode_entry(part) for part in parts]


def _open(stream: str, part: OpenPart) -> _Node:
    live, texts = _entries(part.entries)
    gone = {_id(text): size for text, size in part.deleted.items()}
    _expect(gone.keys().isdisjoint(live) and sum(gone.values()) <= DUMP_BYTES_MAX)
    rows = dict(zip(live, texts, strict=True))
    for entry_id, size in gone.items():
        empty = entries.encode(entry_id, entries.body_of_fields(b"{}"))
        _expect(size >= len(empty))
        rows[entry_id] = empty[:-2] + b" " * (size - len(empty)) + b"}}"
    every = sorted(rows)
    _expect(every[0] > 0)
    mask = sum(1 << place for place, entry_id in enumerate(every) if entry_id in gone)
    deleted = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
    node = RestoreOpenNode(stream, [rows[entry_id] for entry_id in every], every, deleted)
    return node, (every[0], every[-1]), live


def _producer_keys(stream: str, table: IdempotencyPart) -> Iterator[RestoreProducerKey]:
    counts: dict[bytes, int] = {}
    _expect(len({(producer, key) for producer, key, _ in table.keys}) == len(table.keys))
    for producer, key, entry_id in table.keys:
        counts[producer] = counts.get(producer, 0) + 1
        _expect(counts[producer] <= table.maxsize)
        yield RestoreProducerKey(stream, producer, key, _id(entry_id))


def _group(stream: str, name: str, group: GroupPart, entries_added: int) -> Iterator[Record]:
    read = group.entries_read
    yield CreateGroup(
        stream, name, _id(group.last_delivered_id), None if read is None else min(read, entries_added)
    )
    for consumer, (seen_ms, active_ms) in group.consumers.items():
        yield RestoreConsumer(stream, name, consumer, seen_ms, active_ms)
    if group.pending:
        _expect(len({row[0] for row in group.pending}) == len(group.pending))
    # Those without a consumer but with a time are deferred.
    deferred = [row for row in group.pending if row[1] is None and row[2]]
    delivered = [row for row in group.pending if row[1] is not None or not row[2]]
    if delivered:
        pending, owners, times_ms, counts = zip(*delivered, strict=True)
        pending_ids = [_id(text) for text in pending]
        _expect({one for one in owners if one is not None} <= group.consumers.keys())
        # Released ones come first, without a time.
        order = [-1 if owner is None else time_ms for owner, time_ms in zip(owners, times_ms, strict=True)]
        _expect(all(before <= after for before, after in pairwise(order)))
        yield RestorePending(stream, name, pending_ids, owners, times_ms, counts)
    if deferred:
        pending, _, times_ms, counts = zip(*deferred, strict=True)
        _expect(all(before <= after for before, after in pairwise(times_ms)))
        yield RestoreDeferred(stream, name, [_id(text) for text in pending], times_ms, counts)
