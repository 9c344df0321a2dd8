"""A snapshot: the keyspace as records that make an empty one equal to it.

Knows: everything that is in a keyspace, nothing left out.
Must never know: files, frames.
"""

from collections.abc import Iterator
from typing import Final

from engine.groups import Group, Pending, Policy
from engine.keyspace import SETTINGS_DEFAULT, Key, Keyspace, PublishAnswer, Retention
from engine.records.changes import (
    Configure,
    CreateGroup,
    Describe,
    PublishChunk,
    Record,
    RememberAnswer,
    RememberPublish,
    SetPolicy,
)
from engine.records.restored import (
    RestoreConsumer,
    RestoreNode,
    RestoreOpenNode,
    RestorePending,
    RestoreProduction,
    RestoreStream,
)

# Pending entries in one record of a snapshot.
_snapshot_pending_max: Final = 512


def snapshot(keyspace: Keyspace) -> Iterator[Record]:
    """The keyspace as records that make an empty one equal to it, nothing left out."""
    for name, value in keyspace.settings.items():
        if value != SETTINGS_DEFAULT[name]:
            yield Configure(name, value)
    for producer, chunk in keyspace.chunks.items():
        yield PublishChunk(producer, *chunk)
    for key, answer in keyspace.answers.items():
        yield _remembered(key, answer)
    for name in keyspace.names():
        yield from _snapshot_stream(name, keyspace.keys[name])


def _remembered(key: str, answer: PublishAnswer) -> RememberPublish:
    counts = [len(given) for _, given in answer.streams]
    every = [entry_id for _, given in answer.streams for entry_id in given]
    return RememberPublish(
        key, answer.digest, [name for name, _ in answer.streams], counts, every, answer.at_ms
    )


def _snapshot_stream(name: str, key: Key) -> Iterator[Record]:
    stream, kept = key.stream, key.productions
    yield RestoreStream(
        name, key.generation, stream.first_id, stream.top_id, stream.last_id, stream.max_deleted_id,
        stream.removed_upto, stream.entries_added, (kept.duration_s, kept.maxsize, kept.added,
        kept.duplicates),
    )  # fmt: skip
    if key.retention != Retention() or key.archived_up_to:
        yield Describe(name, *key.retention, key.archived_up_to)
    for node in stream.nodes.values():
        yield RestoreNode(
            name, node.first, node.last, node.count, node.held, _mask_bytes(node.deleted), node.text.packed()
        )
    if stream.open is not None:
        yield RestoreOpenNode(
            name, tuple(stream.open.stored), tuple(stream.open.ids), _mask_bytes(stream.open.deleted)
        )
    for producer, keys in kept.producers.items():
        for production_key, entry_id in keys.items():
            yield RestoreProduction(name, producer, production_key, entry_id)
    for answer_key, answer in key.answers.items():
        yield RememberAnswer(name, answer_key, answer.digest, answer.ids, answer.at_ms)
    for group_name, group in sorted(key.groups.items()):
        yield from _snapshot_group(name, group_name, group)


def _snapshot_group(name: str, group_name: str, group: Group) -> Iterator[Record]:
    yield CreateGroup(name, group_name, group.last_delivered_id, group.entries_read)
    if group.policy != Policy():
        yield SetPolicy(name, group_name, *group.policy)
    for consumer in sorted(group.consumers.values(), key=lambda one: one.name):
        yield RestoreConsumer(name, group_name, consumer.name, consumer.seen_time_ms, consumer.active_time_ms)
    rows: list[tuple[int, Pending]] = []
    for row in group.in_order_of_delivery():
        rows.append(row)
        if len(rows) == _snapshot_pending_max:
            yield _restore_pending(name, group_name, rows)
            rows = []
    if rows:
        yield _restore_pending(name, group_name, rows)


def _restore_pending(name: str, group_name: str, rows: list[tuple[int, Pending]]) -> RestorePending:
    return RestorePending(
        name,
        group_name,
        [entry_id for entry_id, _ in rows],
        [one.consumer.name if one.consumer else None for _, one in rows],
        [one.delivery_time_ms for _, one in rows],
        [one.delivery_count for _, one in rows],
    )


def _mask_bytes(deleted: int) -> bytes:
    return deleted.to_bytes((deleted.bit_length() + 7) // 8, "little")
