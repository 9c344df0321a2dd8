"""What can change, and how each change is done.

Knows: each resolved change, with its `apply`.
Must never know: files, frames, clients, why something changed.

Changing the keyspace means applying a record, when a command runs and when the log is read again, so both
give the same state.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice, takewhile

from engine.copying import copy_key
from engine.dedup import PUBLISHED, IdempotentPublishReply
from engine.groups import Group
from engine.keyspace import (
    Key,
    Keyspace,
)
from engine.parts.idempotence import UNUSED, Idempotence
from engine.parts.part import counted
from engine.pending_states import Consumer
from engine.record import Bound, Id, IdList, IdsInTexts, Record, TextList
from engine.runs import Run, RunLeft, unpack_left


class CreateStream(Record, frozen=True):
    number = 1
    event = "new"
    stream: str
    generation: str
    idmp_duration_s: int
    idmp_maxsize: int

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.create(self.stream, Key(self.generation))
        if (self.idmp_duration_s, self.idmp_maxsize) != UNUSED[:2]:
            keyspace.put_part(self.stream, Idempotence(self.idmp_duration_s, self.idmp_maxsize))


class RemoveStream(Record, frozen=True):
    number = 2
    stream: str

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.remove(self.stream)


class Append(Record, frozen=True):
    """Entries with ascending IDs. `ids` are those in the texts, known to the command that made the record."""

    number = 3
    event = "xadd"
    stream: str
    texts: TextList
    ids: IdsInTexts

    def apply(self, keyspace: Keyspace) -> None:
        stream = keyspace.keys[self.stream].stream
        keyspace.cold += stream.append(self.ids, self.texts, keyspace.node_limits())
        keyspace.appended += len(self.texts)


class Cut(Record, frozen=True):
    """A trim that removed everything below an ID."""

    number = 4
    event = "xtrim"
    stream: str
    below: Bound

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.keys[self.stream]
        key.stream.cut(self.below)
        _drop_passed(key, below=self.below)
        keyspace.cold += key.stream.take_cold()


class Remove(Record, frozen=True):
    """Single entries removed: deleted (`tombstone`), or trimmed."""

    number = 5
    stream: str
    ids: IdList
    tombstone: bool

    def apply(self, keyspace: Keyspace) -> None:
        self._remove(keyspace, {})

    def _remove(self, keyspace: Keyspace, left: Mapping[int, RunLeft]) -> None:
        key = keyspace.keys[self.stream]
        key.stream.remove(self.ids, tombstone=self.tombstone, left=left)
        _drop_passed(key, self.ids)
        if self.tombstone:
            for part in key.parts:
                part.note_deleted(key, self.ids)
        keyspace.cold += key.stream.take_cold()


def _drop_passed(key: Key, gone: Sequence[int] = (), below: int = 0) -> None:
    """Entries were removed, ascending ones or all below an ID: no group has them passed over any more."""
    for group in key.groups.values():
        if group.parts and group.passed_over:
            before = group.kept_bytes
            rows = takewhile(lambda row: row[0] < below, group.passed_over.items()) if below else ()
            group.drop_passed([row[0] for row in rows] if below else gone)
            key.footprint.add(group.kept_bytes - before)


class CutStored(Cut, frozen=True):
    """A trim that ends in a run: what that has left, so that no file is needed to do it again."""

    number = 47
    left: bytes

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.keys[self.stream]
        key.stream.cut(self.below, unpack_left(self.left))
        _drop_passed(key, below=self.below)


class RemoveStored(Remove, frozen=True):
    """Single entries removed, some of them from runs: the same."""

    number = 48
    left: bytes

    def apply(self, keyspace: Keyspace) -> None:
        self._remove(keyspace, unpack_left(self.left))


class Stored(Record, frozen=True):
    """Nodes are in a file from here on, or a run in another one. The bytes were synced before."""

    number = 44
    is_of_consumers = True
    stream: str
    first: Id
    last: Id
    file: int
    offset: int
    length: int
    checksum: int
    live: int
    nodes: int
    size: int
    text_bytes: int
    first_live: Id
    last_live: Id

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].stream.store(self.run())

    def run(self) -> Run:
        """What takes the place of the nodes."""
        return Run(
            first=self.first,
            last=self.last,
            file=self.file,
            offset=self.offset,
            length=self.length,
            checksum=self.checksum,
            held=self.live,
            live=self.live,
            nodes=self.nodes,
            size=self.size,
            weight=self.live << 64 | self.text_bytes,
            first_live=self.first_live,
            last_live=self.last_live,
        )


class SetCounters(Record, frozen=True):
    """XSETID. Groups that claim to have read more than was added are brought down to it; and entries that get
    IDs below what was removed before are none that a reader has missed.
    """

    number = 6
    event = "xsetid"
    stream: str
    last_id: Id
    entries_added: int
    max_deleted_id: Id

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.keys[self.stream]
        stream = key.stream
        gone_upto = stream.gone_upto
        stream.last_id = self.last_id
        stream.removed_upto = min(stream.removed_upto, self.last_id)
        stream.entries_added = self.entries_added
        stream.max_deleted_id = self.max_deleted_id
        if stream.gone_upto < gone_upto:
            # Groups may still have some of these pending, between the entries that come now.
            stream.forgotten_upto = gone_upto
        for group in key.groups.values():
            if group.entries_read is not None and group.entries_read > self.entries_added:
                group.entries_read = self.entries_added
                group.note_move()


class CreateGroup(Record, frozen=True):
    number = 8
    event = "xgroup-create"
    stream: str
    group: str
    last_delivered_id: Id
    entries_read: int | None

    def apply(self, keyspace: Keyspace) -> None:
        key, group = keyspace.keys[self.stream], Group(self.last_delivered_id, self.entries_read)
        key.own_groups()[self.group] = group
        key.footprint.add(group.kept_bytes)


class MoveGroup(Record, frozen=True):
    """The group's position, after a read or XGROUP SETID."""

    number = 9
    is_of_consumers = True
    stream: str
    group: str
    last_delivered_id: Id
    entries_read: int | None

    def apply(self, keyspace: Keyspace) -> None:
        group = keyspace.keys[self.stream].groups[self.group]
        group.last_delivered_id = self.last_delivered_id
        group.entries_read = self.entries_read
        group.note_move()


class RemoveGroup(Record, frozen=True):
    number = 10
    event = "xgroup-destroy"
    stream: str
    group: str

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.keys[self.stream]
        group = key.own_groups().pop(self.group)
        key.footprint.add(-group.kept_bytes)
        keyspace.garbage.add(group, group.kept_bytes)


class CreateConsumer(Record, frozen=True):
    number = 11
    event = "xgroup-createconsumer"
    is_of_consumers = True
    stream: str
    group: str
    consumer: str
    seen_time_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            group.consumers[self.consumer] = Consumer(self.consumer, self.seen_time_ms)
            group.note_seen(self.seen_time_ms, -1)


class RemoveConsumer(Record, frozen=True):
    """The consumer with its pending entries."""

    number = 12
    event = "xgroup-delconsumer"
    is_of_consumers = True
    stream: str
    group: str
    consumer: str

    def apply(self, keyspace: Keyspace) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            group.remove_consumer(self.consumer)


class SeeConsumer(Record, frozen=True):
    """When a consumer last tried, and when it last got something (-1: never)."""

    number = 13
    is_of_consumers = True
    stream: str
    group: str
    consumer: str
    seen_time_ms: int
    active_time_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        group = keyspace.keys[self.stream].groups[self.group]
        consumer = group.consumers[self.consumer]
        consumer.seen_time_ms = self.seen_time_ms
        consumer.active_time_ms = self.active_time_ms
        group.note_seen(self.seen_time_ms, self.active_time_ms)


class Own(Record, frozen=True):
    """Entries delivered to or claimed by a consumer, with their delivery counts."""

    number = 14
    is_of_consumers = True
    stream: str
    group: str
    consumer: str
    ids: IdList
    time_ms: int
    delivery_counts: Sequence[int]

    def apply(self, keyspace: Keyspace) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            group.own_run(self.ids, group.consumers[self.consumer], self.time_ms, self.delivery_counts)


class Release(Record, frozen=True):
    """Released entries, without an owner, in the order of their release."""

    number = 15
    is_of_consumers = True
    stream: str
    group: str
    ids: IdList
    delivery_counts: Sequence[int]

    def apply(self, keyspace: Keyspace) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            group.release_run(self.ids, self.delivery_counts)


class Settle(Record, frozen=True):
    """Entries no longer pending: acknowledged, or their references removed."""

    number = 16
    is_of_consumers = True
    stream: str
    group: str
    ids: IdList

    def apply(self, keyspace: Keyspace) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            group.settle_run(self.ids)


class PublishChunk(Record, frozen=True):
    """A chunk of a producer's last epoch, or the first one of a newer epoch, and what was answered."""

    number = 22
    producer: str
    epoch: int
    chunk: int
    answer: bytes

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.producers.remember(self.producer, self.epoch, self.chunk, self.answer)


class Configure(Record, frozen=True):
    """A setting of the engine (CONFIG SET)."""

    number = 23
    name: str
    value: int

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.settings[self.name] = self.value


class RememberPublish(Record, frozen=True):
    """What a publication into many streams was answered under its key; forgotten as single answers are."""

    number = 25
    key: str
    digest: bytes
    names: Sequence[str]
    counts: Sequence[int]
    ids: IdList
    at_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        rest = iter(self.ids)
        streams = [(name, tuple(islice(rest, n))) for name, n in zip(self.names, self.counts, strict=True)]
        answer = IdempotentPublishReply(self.digest, tuple(streams), self.at_ms)
        keyspace.memory.shared.add(PUBLISHED.put(keyspace.answers, self.key, answer))


class RemoveAll(Record, frozen=True):
    """FLUSHALL: every stream, and what was published under keys and in chunks. Settings stay."""

    number = 26

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.clear()


class SetLifetime(Record, frozen=True):
    """When the stream is removed, by the wall clock; None for never. The removal is a record of its own."""

    number = 30
    stream: str
    expires_at_ms: int | None

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.expire_at(self.stream, self.expires_at_ms)


class RenameStream(Record, frozen=True):
    """The stream has another name, which no other stream has, and is a new generation there. The archive of
    that name has nothing of it.
    """

    number = 31
    stream: str
    target: str
    generation: str

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.rename(self.stream, self.target)
        key.generation = self.generation
        for part in key.parts:
            part.renamed(keyspace, self.target)


class CopyStream(Record, frozen=True):
    """The stream is a copy of another, as that is now, with groups and lifetime; no stream has its name."""

    number = 32
    stream: str
    source: str
    generation: str

    def apply(self, keyspace: Keyspace) -> None:
        key, cold = copy_key(keyspace.keys[self.source], self.generation)
        keyspace.create(self.stream, key)
        keyspace.cold += cold
        if self.source in keyspace.maintained:
            keyspace.maintained[self.stream] = None


class Regenerate(Record, frozen=True):
    """The log was restored from a backup: no stream is the one that readers knew by its generation.

    Of a snapshot, before all streams: a restore that readers may still have to hear of.
    """

    number = 28
    salt: bytes

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.generations.salts.append(self.salt)
        renew = partial(keyspace.generations.regenerate, salt=self.salt)
        for key in keyspace.keys.values():
            key.generation = renew(key.generation)
            for part in key.parts:
                part.regenerate(renew)


class SetMetadata(Record, frozen=True):
    """A value that is kept beside the streams; an empty one is removed."""

    number = 29
    name: str
    value: bytes

    def apply(self, keyspace: Keyspace) -> None:
        if self.value:
            keyspace.metadata[self.name] = self.value
        else:
            del keyspace.metadata[self.name]
