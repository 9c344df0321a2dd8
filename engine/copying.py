"""A copy of a stream with everything that hangs on it.

Knows: all parts of a stream, nothing left out, and which of them never change, so that both may hold them.
Must never know: names, records, who asks.

Bytes of entries are shared. What is copied is an object a node, a pending entry and a consumer.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final

from engine import entries, ids
from engine.groups import Group
from engine.keyspace import Key
from engine.nodes import SealedNode, Text
from engine.parts.idempotence import idempotence_of
from engine.pending_states import Consumer
from engine.runs import Run
from engine.sealed import Part
from engine.stream import NodeLimits, Stream

# What a copy costs, in nodes.
_ENTRIES_A_NODE: Final = 20
_PENDING_A_NODE: Final = 2


def copy_cost(key: Key) -> int:
    """About how many nodes' time a copy takes."""
    groups = key.groups.values()
    small = idempotence_of(key).copy_cost + sum(len(one.consumers) for one in groups)
    entries = 0 if key.stream.open is None else len(key.stream.open.ids)
    pending = sum(len(one.pending) for one in groups)
    return (
        len(key.stream.nodes) + entries // _ENTRIES_A_NODE + pending // _PENDING_A_NODE + small + len(groups)
    )


def copy_key(key: Key, generation: str) -> tuple[Key, list[Text]]:
    """The copy, and those of its texts that are to be compressed. Nothing of it is archived."""
    copy = Key(generation, parts=tuple(part for one in key.parts if (part := one.copy()) is not None))
    cold = _copy_entries(key.stream, copy.stream)
    copy.expires_at_ms = key.expires_at_ms
    if key.had_group:
        copy.own_groups()
    for name, group in key.groups.items():
        one = copy.own_groups()[name] = _copy_group(group)
        copy.footprint.add(one.kept_bytes)
    return copy, cold


def texts_to_fork(stream: Stream, upto: int) -> list[bytes] | None:
    """The entries that a fork has of the run in which it ends; None where it ends in none."""
    part = stream.part_of(upto)
    return _texts_in(stream, part.first, upto) if isinstance(part, Run) and upto < part.last else None


def fork_key(
    key: Key, generation: str, upto: int, limits: NodeLimits, texts: Sequence[bytes] | None = None
) -> tuple[Key, list[Text]]:
    """A stream with the entries up to an ID, and those of its texts that are to be compressed. Nothing else
    that hangs on the first one is in it. `texts` is what `texts_to_fork` gave.
    """
    fork = Key(generation, parts=tuple(part for one in key.parts if (part := one.begin_fork()) is not None))
    return fork, _copy_upto(key.stream, fork.stream, upto, limits, texts)


def _copy_upto(
    stream: Stream, copy: Stream, upto: int, limits: NodeLimits, texts: Sequence[bytes] | None
) -> list[Text]:
    nodes = _copies(takewhile(lambda part: part.last <= upto, stream.nodes.values()))
    for node in nodes:
        copy.restore_node(node)
    if nodes:
        copy.first_id, copy.last_live_id = stream.first_id, stream.last_of(nodes[-1])
    if texts is None:
        texts = _texts_in(stream, nodes[-1].last + 1 if nodes else ids.ID_MIN, upto)
    cold = copy.append(entries.ids_of(texts), texts, limits) if texts else []
    copy.last_id = min(upto, stream.last_id)
    copy.max_deleted_id, copy.removed_upto = min(stream.max_deleted_id, upto), min(stream.removed_upto, upto)
    copy.forgotten_upto = min(stream.forgotten_upto, upto)
    copy.entries_added = max(copy.length, stream.entries_added - (stream.length - copy.length))
    return [*cold, *_unpacked(nodes)]


def _texts_in(stream: Stream, low: int, high: int) -> list[bytes]:
    return [text for part in stream.range(low, high).parts for text in entries.texts(part)]


def _copy_entries(stream: Stream, copy: Stream) -> list[Text]:
    copy.first_id, copy.last_live_id, copy.last_id = stream.first_id, stream.last_live_id, stream.last_id
    copy.max_deleted_id, copy.removed_upto = stream.max_deleted_id, stream.removed_upto
    copy.forgotten_upto, copy.entries_added = stream.forgotten_upto, stream.entries_added
    nodes = _copies(stream.nodes.values())
    for node in nodes:
        copy.restore_node(node)
    if stream.open is not None:
        copy.restore_open(list(stream.open.ids), list(stream.open.stored), stream.open.deleted)
    return _unpacked(nodes)


def _copies(parts: Iterable[Part]) -> list[Part]:
    """The same for another stream; a run may be in both."""
    return [part if isinstance(part, Run) else part.copy() for part in parts]


def _unpacked(parts: Sequence[Part]) -> list[Text]:
    return [part.text for part in parts if isinstance(part, SealedNode) and not part.text.is_packed]


def _copy_group(group: Group) -> Group:
    copy = Group(group.last_delivered_id, group.entries_read)
    copy.note_seen(group.seen_ms, group.active_ms)
    copy.note_failed(group.failed_ms)
    for consumer in group.consumers.values():
        one = copy.consumers[consumer.name] = Consumer(consumer.name, consumer.seen_time_ms)
        one.active_time_ms = consumer.active_time_ms
    rows = list(group.in_order_of_delivery())
    if rows:
        owners = [copy.consumers[one.consumer.name] if one.consumer else None for _, one in rows]
        times_ms = [one.delivery_time_ms for _, one in rows]
        copy.restore(
            [entry_id for entry_id, _ in rows], owners, times_ms, [n.delivery_count for _, n in rows]
        )
    for part in group.parts:
        part.copy_to(copy, group)
    return copy
