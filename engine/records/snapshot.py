"""A snapshot: the keyspace as records that make an empty one equal to it, read while it goes on changing.

Knows: everything that is in a keyspace, nothing left out; what has to be kept of a stream before it changes.
Must never know: files, frames, and how fast it is read.

Taking one costs a copy of the lists of streams and of producers. A stream is held when its turn comes, or
when a command is about to change it, whichever is first: by reference to blocks that are copied before they
are written, so that its length does not matter.

Of deleted entries nothing is in the records but the IDs of those in nodes that are still there.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from zstandard import ZstdCompressor

from engine import entries
from engine.blocks import Snapshot
from engine.dedup import HeldProducer, IdempotentPublishReply
from engine.groups import Group
from engine.keyspace import (
    SETTINGS_DEFAULT,
    Key,
    Keyspace,
)
from engine.nodes import OpenNode, SealedNode, Text, new_compressor
from engine.parts.idempotence import idempotence_of
from engine.pending_states import PendingState, rows_in_order
from engine.record import Record
from engine.records.changes import (
    Configure,
    CreateGroup,
    PublishChunk,
    Regenerate,
    RememberPublish,
    RemoveGroup,
    SetLifetime,
    SetMetadata,
)
from engine.records.durable import NoteFork, RestoreHidden
from engine.records.restored import (
    RestoreConsumer,
    RestoreForgotten,
    RestoreNode,
    RestoreOpenNode,
    RestorePending,
    RestorePrevious,
    RestoreRun,
    RestoreStream,
)
from engine.runs import Run
from engine.sealed import Part

# Where the lifetime stands among the records of parts.
_OWN_RANK: Final = 30


class _HeldStream(NamedTuple):
    """A stream as it was; `before` and `opened` stand around its nodes. What there may be thousands of is
    copied as it is: records are made of it when they are read.
    """

    name: str
    before: list[Record]
    nodes: Snapshot[Part]
    opened: list[Record]
    behind: list[Iterable[Record]]
    groups: "list[_HeldGroup]"


class _HeldGroup(NamedTuple):
    name: str
    before: list[Record]
    # Of each consumer its name, when it was seen, and when it was active.
    consumers: list[tuple[str, int, int]]
    pending: Snapshot[PendingState]
    by_delivery: Snapshot[int]
    behind: list[Iterable[Record]]


class Capture:
    """All streams as they are at its making. Read `records` to the end, or `close`."""

    def __init__(self, keyspace: Keyspace) -> None:
        assert keyspace.before_change is None, "one snapshot at a time"
        self._keyspace = keyspace
        self._settled = list(_without_stream(keyspace))
        self._producers = keyspace.producers.hold()
        self._names = keyspace.names()
        # A stream that is removed stays as it was: nothing changes it any more.
        self._waiting: dict[str, Key] = dict(keyspace.keys)
        self._held: list[_HeldStream] = []
        keyspace.before_change = self._hold

    def _hold(self, name: str) -> None:
        key = self._waiting.pop(name, None)
        if key is not None:
            self._held.append(_hold_stream(name, key))

    def records(self) -> Iterator[Record]:
        """The records, in order. The keyspace may change between any two."""
        try:
            yield from self._settled
            yield from _chunks(self._producers)
            compressor = new_compressor()
            for name in self._names:
                self._hold(name)
                while self._held:
                    yield from _records_of(self._held.pop(), compressor)
        finally:
            self.close()

    def close(self) -> None:
        """Hold nothing any more."""
        self._keyspace.before_change = None
        self._waiting.clear()
        self._held.clear()


def snapshot(keyspace: Keyspace) -> Iterator[Record]:
    """The keyspace as records that make an empty one equal to it, nothing left out."""
    return Capture(keyspace).records()


def _without_stream(keyspace: Keyspace) -> Iterator[Record]:
    for salt in keyspace.generations.salts:
        yield Regenerate(salt)
    for previous in keyspace.generations.previous.values():
        yield RestorePrevious(previous.stream, previous.generation, previous.last_id)
    for name, value in keyspace.settings.items():
        if value != SETTINGS_DEFAULT[name]:
            yield Configure(name, value)
    for name, kept in keyspace.metadata.items():
        yield SetMetadata(name, kept)
    for key, answer in keyspace.answers.items():
        yield _remembered(key, answer)
    for fork, source in keyspace.forks.items():
        yield NoteFork(fork, source)
    for name in keyspace.forks.hidden:
        yield RestoreHidden(name)


def _chunks(held: Sequence[HeldProducer]) -> Iterator[PublishChunk]:
    for producer in held:
        for epoch, chunks in producer.epochs:
            for number, answer in chunks.items():
                yield PublishChunk(producer.name, epoch, number, answer)


def _remembered(key: str, answer: IdempotentPublishReply) -> RememberPublish:
    counts = [len(given) for _, given in answer.streams]
    every = [entry_id for _, given in answer.streams for entry_id in given]
    return RememberPublish(
        key, answer.digest, [name for name, _ in answer.streams], counts, every, answer.at_ms
    )


# --- holding ------------------------------------------------------------------------------------------------


def _hold_stream(name: str, key: Key) -> _HeldStream:
    stream, kept = key.stream, idempotence_of(key)
    before: list[Record] = [
        RestoreStream(
            name, key.generation, stream.first_id, stream.last_live_id, stream.last_id, stream.max_deleted_id,
            stream.removed_upto, stream.entries_added, (kept.duration_s, kept.maxsize, kept.added,
            kept.duplicates),
        )
    ]  # fmt: skip
    if stream.forgotten_upto:
        before.append(RestoreForgotten(name, stream.forgotten_upto))
    before += [record for part in key.parts if part.rank < _OWN_RANK for record in part.before(name)]
    if key.had_group and not key.groups:
        # That there was one says what `keep_unacknowledged` keeps. Older versions read these, too.
        before += [CreateGroup(name, "", 0, None), RemoveGroup(name, "")]
    if key.expires_at_ms is not None:
        before.append(SetLifetime(name, key.expires_at_ms))
    before += [record for part in key.parts if part.rank > _OWN_RANK for record in part.before(name)]
    opened: list[Record] = [] if stream.open is None else [_restore_open(name, stream.open)]
    groups = [_hold_group(name, group_name, group) for group_name, group in sorted(key.groups.items())]
    return _HeldStream(
        name,
        before,
        stream.nodes.snapshot(),
        opened,
        [part.behind(name) for part in key.parts],
        groups,
    )


def _hold_group(stream: str, name: str, group: Group) -> _HeldGroup:
    before: list[Record] = [CreateGroup(stream, name, group.last_delivered_id, group.entries_read)]
    before += [record for part in group.parts for record in part.before(stream, name)]
    consumers = [(one.name, one.seen_time_ms, one.active_time_ms) for one in group.consumers.values()]
    pending, by_delivery = group.pending.snapshot(), group.by_delivery.snapshot()
    behind = [part.behind(stream, name, pending) for part in group.parts]
    return _HeldGroup(name, before, consumers, pending, by_delivery, behind)


def _restore_open(name: str, node: OpenNode) -> RestoreOpenNode:
    texts = tuple(
        entries.blank(text) if node.deleted >> place & 1 else text for place, text in enumerate(node.stored)
    )
    return RestoreOpenNode(name, texts, tuple(node.ids), _mask_bytes(node.deleted))


# --- reading what is held -----------------------------------------------------------------------------------


def _records_of(held: _HeldStream, compressor: ZstdCompressor) -> Iterator[Record]:
    yield from held.before
    for part in held.nodes.values():
        if isinstance(part, Run):
            yield RestoreRun.of(held.name, part)
        else:
            yield _restore_node(held.name, part, compressor)
    yield from held.opened
    for records in held.behind:
        yield from records
    for group in held.groups:
        yield from group.before
        for consumer in sorted(group.consumers):
            yield RestoreConsumer(held.name, group.name, *consumer)
        yield from _restore_pending(held.name, group)
        for records in group.behind:
            yield from records


def _restore_node(name: str, node: SealedNode, compressor: ZstdCompressor) -> RestoreNode:
    """The node without its deleted entries: what is deleted shall be in no file that comes after."""
    text = node.text
    if node.deleted:
        live = [each for place, each in enumerate(node.texts()) if not node.deleted >> place & 1]
        text = Text(b",".join(live))
    return RestoreNode(name, node.first, node.last, node.count, node.live, b"", text.compress(compressor))


def _restore_pending(stream: str, group: _HeldGroup) -> Iterator[RestorePending]:
    for ids, rows in rows_in_order(group.pending, group.by_delivery):
        yield RestorePending(
            stream,
            group.name,
            ids,
            [one.consumer.name if one.consumer else None for one in rows],
            [one.delivery_time_ms for one in rows],
            [one.delivery_count for one in rows],
        )


def _mask_bytes(deleted: int) -> bytes:
    return deleted.to_bytes((deleted.bit_length() + 7) // 8, "little")
