"""What a snapshot is made of: streams, nodes and pending lists as they are held, so that loading is copying.

Knows: each part, with its `apply` to an empty keyspace.
Must never know: files, frames, how the keyspace came to be so.
"""

from collections.abc import Sequence
from typing import Final

from engine.keyspace import Key, Keyspace
from engine.nodes import SealedNode, Text
from engine.parts.idempotence import UNUSED, Idempotence
from engine.parts.part import counted
from engine.pending_states import Consumer
from engine.record import Id, IdList, IdsInTexts, Record, TextList
from engine.replies import PreviousStream
from engine.runs import Run


class RestoreStream(Record, frozen=True):
    """Of a snapshot: a stream's counters and edges, before its nodes."""

    number = 64
    stream: str
    generation: str
    first_id: Id
    last_live_id: Id
    last_id: Id
    max_deleted_id: Id
    removed_upto: Id
    entries_added: int
    idempotency_table: tuple[int, int, int, int]

    def apply(self, keyspace: Keyspace) -> None:
        key = Key(self.generation)
        stream = key.stream
        # Equal ones are one integer: there may be hundreds of thousands of streams with one entry.
        stream.last_id = self.last_id
        stream.last_live_id = self.last_id if self.last_live_id == self.last_id else self.last_live_id
        stream.first_id = self.last_id if self.first_id == self.last_id else self.first_id
        stream.max_deleted_id = self.max_deleted_id
        stream.removed_upto, stream.entries_added = self.removed_upto, self.entries_added
        keyspace.create(self.stream, key)
        if tuple(self.idempotency_table) != UNUSED:
            keyspace.put_part(self.stream, Idempotence(*self.idempotency_table))


class RestorePrevious(Record, frozen=True):
    """Of a snapshot: the stream that had this name last, before the one that may have it."""

    number = 78
    stream: str
    generation: str
    last_id: Id

    def apply(self, keyspace: Keyspace) -> None:
        previous = PreviousStream(self.stream, self.generation, self.last_id)
        keyspace.generations.note_previous(previous)


class RestoreForgotten(Record, frozen=True):
    """Of a snapshot: how far entries were removed before XSETID lowered the counters of the stream."""

    number = 70
    stream: str
    upto: Id

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].stream.forgotten_upto = self.upto


class RestoreNode(Record, frozen=True):
    """Of a snapshot: a sealed node as it is held, its text under zstd. `deleted` is little-endian."""

    number = 65
    stream: str
    first: Id
    last: Id
    count: int
    held: int
    deleted: bytes
    packed: bytes

    def apply(self, keyspace: Keyspace) -> None:
        deleted = int.from_bytes(self.deleted, "little")
        node = SealedNode(
            first=self.first, last=self.last, count=self.count, held=self.held, deleted=deleted,
            text=Text(None, self.packed),
        )  # fmt: skip
        keyspace.keys[self.stream].stream.restore_node(node)


class RestoreRun(Record, frozen=True):
    """Of a snapshot: a run, with where it is and what is left of it; its texts stay where they are."""

    number = 74
    stream: str
    first: Id
    last: Id
    file: int
    offset: int
    length: int
    checksum: int
    held: int
    live: int
    nodes: int
    size: int
    text_bytes: int
    first_live: Id
    last_live: Id
    floor: Id
    ids: IdList

    @classmethod
    def of(cls, stream: str, run: Run) -> "RestoreRun":
        """The record of a run."""
        return cls(
            stream, run.first, run.last, run.file, run.offset, run.length, run.checksum, run.held, run.live,
            run.nodes, run.size, run.weight & _BYTES, run.first_live, run.last_live, run.floor, run.gone,
        )  # fmt: skip

    def apply(self, keyspace: Keyspace) -> None:
        # Equal ones are one integer, as of nodes that were just stored.
        first_live = self.first if self.first_live == self.first else self.first_live
        last_live = self.last if self.last_live == self.last else self.last_live
        run = Run(
            first=self.first, last=self.last, file=self.file, offset=self.offset, length=self.length,
            checksum=self.checksum, held=self.held, live=self.live, nodes=self.nodes, size=self.size,
            weight=self.live << 64 | self.text_bytes, first_live=first_live, last_live=last_live,
            floor=self.floor, gone=tuple(self.ids),
        )  # fmt: skip
        keyspace.keys[self.stream].stream.restore_node(run)


_BYTES: Final = (1 << 64) - 1


class RestoreOpenNode(Record, frozen=True):
    """Of a snapshot: the node that takes entries; last of its stream."""

    number = 66
    stream: str
    texts: TextList
    ids: IdsInTexts
    deleted: bytes

    def apply(self, keyspace: Keyspace) -> None:
        stream = keyspace.keys[self.stream].stream
        ids = (stream.last_id,) if len(self.ids) == 1 and self.ids[0] == stream.last_id else self.ids
        stream.restore_open(ids, self.texts, int.from_bytes(self.deleted, "little"))


class RestoreConsumer(Record, frozen=True):
    number = 67
    stream: str
    group: str
    consumer: str
    seen_time_ms: int
    active_time_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        consumer = Consumer(self.consumer, self.seen_time_ms)
        consumer.active_time_ms = self.active_time_ms
        with counted(keyspace, self.stream, self.group) as group:
            group.consumers[self.consumer] = consumer
            group.note_seen(self.seen_time_ms, self.active_time_ms)


class RestorePending(Record, frozen=True):
    """Of a snapshot: pending entries in order of delivery. `owners` are names, None for released ones."""

    number = 68
    stream: str
    group: str
    ids: IdList
    owners: Sequence[str | None]
    times_ms: Sequence[int]
    delivery_counts: Sequence[int]

    def apply(self, keyspace: Keyspace) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            owners = [None if owner is None else group.consumers[owner] for owner in self.owners]
            group.restore(self.ids, owners, self.times_ms, self.delivery_counts)
