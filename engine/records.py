"""The log's vocabulary: each resolved change with its `apply`, and a snapshot in the same words.

Knows: what can change, and how each change is done; how records become the payload of a frame and come back.
Must never know: files, frames, clients, why something changed.

A record is resolved: explicit IDs, absolute times, exact cuts; never `*`, `~` or "now". Changing the keyspace
means applying a record, when a command runs and when the log is read again, so both give the same state. A
payload is a MessagePack array of records, each an array of its number and its fields in the order below:

    [[3, "orders", {"id":"1-0",…},{"id":"2-0",…}], [14, "orders", "g", …]]

IDs are 16 bytes, big-endian; lists of IDs the same side by side; entries their stored text joined by `,`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Final, get_type_hints

import msgspec

from engine import entries
from engine.groups import Consumer, Group, Pending
from engine.ids import ID_BYTES
from engine.keyspace import SETTINGS_DEFAULT, Answer, Chunk, Key, Keyspace, Retention
from engine.nodes import SealedNode, Text
from engine.productions import Productions

Id = Annotated[int, "id"]
IdList = Annotated[Sequence[int], "ids"]
TextList = Annotated[Sequence[bytes], "texts"]

answer_age_ms_max: Final = 24 * 3600 * 1000
answers_max: Final = 10_000
# Pending entries in one record of a snapshot.
_snapshot_pending_max: Final = 512


class Record(msgspec.Struct, frozen=True):
    """The base of all. `stream`, where there is one, is the name that the change touches."""

    number: ClassVar[int]

    def apply(self, keyspace: Keyspace) -> None:
        """Do the change. Never fails: what could be wrong was checked before the record was made."""
        raise AssertionError("each record has its own")


class CreateStream(Record, frozen=True):
    number = 1
    stream: str
    generation: str
    idmp_duration_s: int
    idmp_maxsize: int

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.create(
            self.stream, Key(self.generation, Productions(self.idmp_duration_s, self.idmp_maxsize))
        )


class RemoveStream(Record, frozen=True):
    number = 2
    stream: str

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.remove(self.stream)


class Append(Record, frozen=True):
    """Entries with ascending IDs. `ids` are those in the texts, known to the command that made the record."""

    number = 3
    stream: str
    texts: TextList
    ids: Annotated[Sequence[int], "in the texts"]

    def apply(self, keyspace: Keyspace) -> None:
        stream = keyspace.keys[self.stream].stream
        keyspace.cold += stream.append(self.ids, list(self.texts), keyspace.node_limits())


class Cut(Record, frozen=True):
    """A trim that removed everything below an ID."""

    number = 4
    stream: str
    below: Id

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].stream.cut(self.below)


class Remove(Record, frozen=True):
    """Single entries removed: deleted (`tombstone`), or trimmed."""

    number = 5
    stream: str
    ids: IdList
    tombstone: bool

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].stream.remove(self.ids, tombstone=self.tombstone)


class SetCounters(Record, frozen=True):
    """XSETID. Groups that claim to have read more than was added are brought down to it."""

    number = 6
    stream: str
    last_id: Id
    entries_added: int
    max_deleted_id: Id

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.keys[self.stream]
        key.stream.last_id = self.last_id
        key.stream.entries_added = self.entries_added
        key.stream.max_deleted_id = self.max_deleted_id
        for group in key.groups.values():
            if group.entries_read is not None:
                group.entries_read = min(group.entries_read, self.entries_added)


class Describe(Record, frozen=True):
    """Retention, and how far the stream is archived."""

    number = 7
    stream: str
    max_len: int | None
    max_age_ms: int | None
    max_bytes: int | None
    archived_up_to: Id

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.keys[self.stream]
        key.retention = Retention(self.max_len, self.max_age_ms, self.max_bytes)
        key.archived_up_to = self.archived_up_to


class CreateGroup(Record, frozen=True):
    number = 8
    stream: str
    group: str
    last_delivered_id: Id
    entries_read: int | None

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].groups[self.group] = Group(self.last_delivered_id, self.entries_read)


class MoveGroup(Record, frozen=True):
    """The group's position, after a read or XGROUP SETID."""

    number = 9
    stream: str
    group: str
    last_delivered_id: Id
    entries_read: int | None

    def apply(self, keyspace: Keyspace) -> None:
        group = keyspace.keys[self.stream].groups[self.group]
        group.last_delivered_id = self.last_delivered_id
        group.entries_read = self.entries_read


class RemoveGroup(Record, frozen=True):
    number = 10
    stream: str
    group: str

    def apply(self, keyspace: Keyspace) -> None:
        del keyspace.keys[self.stream].groups[self.group]


class CreateConsumer(Record, frozen=True):
    number = 11
    stream: str
    group: str
    consumer: str
    seen_time_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        group = keyspace.keys[self.stream].groups[self.group]
        group.consumers[self.consumer] = Consumer(self.consumer, self.seen_time_ms)


class RemoveConsumer(Record, frozen=True):
    """The consumer with its pending entries."""

    number = 12
    stream: str
    group: str
    consumer: str

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].groups[self.group].remove_consumer(self.consumer)


class SeeConsumer(Record, frozen=True):
    """When a consumer last tried, and when it last got something (-1: never)."""

    number = 13
    stream: str
    group: str
    consumer: str
    seen_time_ms: int
    active_time_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        consumer = keyspace.keys[self.stream].groups[self.group].consumers[self.consumer]
        consumer.seen_time_ms = self.seen_time_ms
        consumer.active_time_ms = self.active_time_ms


class Own(Record, frozen=True):
    """Entries delivered to or claimed by a consumer, with their delivery counts."""

    number = 14
    stream: str
    group: str
    consumer: str
    ids: IdList
    time_ms: int
    delivery_counts: Sequence[int]

    def apply(self, keyspace: Keyspace) -> None:
        group = keyspace.keys[self.stream].groups[self.group]
        group.own_run(self.ids, group.consumers[self.consumer], self.time_ms, self.delivery_counts)


class Release(Record, frozen=True):
    """Entries that nobody owns any more, in the order of their release."""

    number = 15
    stream: str
    group: str
    ids: IdList
    delivery_counts: Sequence[int]

    def apply(self, keyspace: Keyspace) -> None:
        group = keyspace.keys[self.stream].groups[self.group]
        for entry_id, delivery_count in zip(self.ids, self.delivery_counts, strict=True):
            group.release(entry_id, delivery_count)


class Settle(Record, frozen=True):
    """Entries no longer pending: acknowledged, or their references removed."""

    number = 16
    stream: str
    group: str
    ids: IdList

    def apply(self, keyspace: Keyspace) -> None:
        group = keyspace.keys[self.stream].groups[self.group]
        for entry_id in self.ids:
            group.settle(entry_id)


class Produce(Record, frozen=True):
    """An entry stored under a producer's key."""

    number = 17
    stream: str
    producer: bytes
    key: bytes
    id: Id

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].productions.record(self.producer, self.key, self.id)


class RepeatProduction(Record, frozen=True):
    """A key was used again: only counted."""

    number = 18
    stream: str

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].productions.duplicates += 1


class ConfigureProductions(Record, frozen=True):
    number = 19
    stream: str
    duration_s: int
    maxsize: int

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].productions.configure(self.duration_s, self.maxsize)


class ForgetProductions(Record, frozen=True):
    """A producer's oldest keys."""

    number = 20
    stream: str
    producer: bytes
    count: int

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].productions.forget(self.producer, self.count)


class RememberAnswer(Record, frozen=True):
    """What an idempotency key was answered; keys older than a day, and the oldest beyond 10 000, are
    forgotten.
    """

    number = 21
    stream: str
    key: str
    digest: bytes
    ids: IdList
    at_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        answers = keyspace.keys[self.stream].answers
        answers.pop(self.key, None)
        answers[self.key] = Answer(self.digest, tuple(self.ids), self.at_ms)
        while (
            len(answers) > answers_max or next(iter(answers.values())).at_ms < self.at_ms - answer_age_ms_max
        ):
            del answers[next(iter(answers))]


class PublishChunk(Record, frozen=True):
    """The last chunk of a producer of many streams."""

    number = 22
    producer: str
    epoch: int
    chunk: int
    answer: bytes

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.chunks[self.producer] = Chunk(self.epoch, self.chunk, self.answer)


class Configure(Record, frozen=True):
    """A setting of the engine (CONFIG SET)."""

    number = 23
    name: str
    value: int

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.settings[self.name] = self.value


class RestoreStream(Record, frozen=True):
    """Of a snapshot: a stream's counters and edges, before its nodes."""

    number = 64
    stream: str
    generation: str
    first_id: Id
    top_id: Id
    last_id: Id
    max_deleted_id: Id
    removed_upto: Id
    entries_added: int
    productions: tuple[int, int, int, int]

    def apply(self, keyspace: Keyspace) -> None:
        duration_s, maxsize, added, duplicates = self.productions
        key = Key(self.generation, Productions(duration_s, maxsize))
        key.productions.added, key.productions.duplicates = added, duplicates
        key.stream.first_id, key.stream.top_id = self.first_id, self.top_id
        key.stream.last_id, key.stream.max_deleted_id = self.last_id, self.max_deleted_id
        key.stream.removed_upto, key.stream.entries_added = self.removed_upto, self.entries_added
        keyspace.create(self.stream, key)


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


class RestoreOpenNode(Record, frozen=True):
    """Of a snapshot: the node that takes entries; last of its stream."""

    number = 66
    stream: str
    texts: TextList
    ids: Annotated[Sequence[int], "in the texts"]
    deleted: bytes

    def apply(self, keyspace: Keyspace) -> None:
        stream = keyspace.keys[self.stream].stream
        stream.restore_open(list(self.ids), list(self.texts), int.from_bytes(self.deleted, "little"))


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
        keyspace.keys[self.stream].groups[self.group].consumers[self.consumer] = consumer


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
        group = keyspace.keys[self.stream].groups[self.group]
        for entry_id, owner, time_ms, count in zip(
            self.ids, self.owners, self.times_ms, self.delivery_counts, strict=True
        ):
            if owner is None:
                group.release(entry_id, count)
            else:
                group.own(entry_id, group.consumers[owner], time_ms, count)


class RestoreProduction(Record, frozen=True):
    """Of a snapshot: a key without counting it."""

    number = 69
    stream: str
    producer: bytes
    key: bytes
    id: Id

    def apply(self, keyspace: Keyspace) -> None:
        producers = keyspace.keys[self.stream].productions.producers
        producers.setdefault(self.producer, {})[self.key] = self.id


# --- payloads -----------------------------------------------------------------------------------------------

_Pack = Callable[[Any], object]


def _pack_ids(packed: Sequence[int]) -> bytes:
    return b"".join([entry_id.to_bytes(ID_BYTES, "big") for entry_id in packed])


def _unpack_ids(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + ID_BYTES], "big") for at in range(0, len(packed), ID_BYTES)]


_FORMS: Final[dict[str, tuple[_Pack, _Pack]]] = {
    "id": (lambda entry_id: entry_id.to_bytes(ID_BYTES, "big"), lambda packed: int.from_bytes(packed, "big")),
    "ids": (_pack_ids, _unpack_ids),
    "texts": (b",".join, lambda joined: entries.texts(joined) if joined else []),
    "in the texts": (lambda _: None, lambda _: ()),
}


class _Form:
    """How the fields of one kind of record are written: the places of those not written as they are."""

    def __init__(self, kind: type[Record]) -> None:
        self.kind = kind
        hints = get_type_hints(kind, include_extras=True)
        names = [field.name for field in msgspec.structs.fields(kind)]
        marked = [(place, getattr(hints[name], "__metadata__", ())) for place, name in enumerate(names)]
        self.special = [(place, *_FORMS[marks[0]]) for place, marks in marked if marks]
        self.texts_at = names.index("texts") if "texts" in names else None
        self.ids_at = names.index("ids") if "ids" in names else None

    def fields(self, record: Record) -> list[object]:
        values = list(msgspec.structs.astuple(record))
        for place, pack, _ in self.special:
            values[place] = pack(values[place])
        return values

    def record(self, values: list[Any]) -> Record:
        for place, _, unpack in self.special:
            values[place] = unpack(values[place])
        if self.texts_at is not None and self.ids_at is not None:
            values[self.ids_at] = entries.ids_of(values[self.texts_at])
        return self.kind(*values)


_KINDS: Final[dict[int, _Form]] = {kind.number: _Form(kind) for kind in Record.__subclasses__()}
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[list[Any]]).decode


def encode(records: Sequence[Record]) -> bytes:
    """The payload of a frame."""
    return _encode([[record.number, *_KINDS[record.number].fields(record)] for record in records])


def decode(payload: bytes) -> list[Record]:
    """The records of a payload. ValueError if it holds a record that this version does not know."""
    try:
        return [_KINDS[number].record(values) for number, *values in _decode(payload)]
    except (KeyError, msgspec.DecodeError) as error:
        raise ValueError(f"not a payload of this version: {error!r}") from error


def replay(keyspace: Keyspace, payload: bytes) -> None:
    """Apply what a frame holds."""
    for record in decode(payload):
        record.apply(keyspace)


# --- snapshots ----------------------------------------------------------------------------------------------


def snapshot(keyspace: Keyspace) -> Iterator[Record]:
    """The keyspace as records that make an empty one equal to it, nothing left out."""
    for name, value in keyspace.settings.items():
        if value != SETTINGS_DEFAULT[name]:
            yield Configure(name, value)
    for producer, chunk in keyspace.chunks.items():
        yield PublishChunk(producer, *chunk)
    for name in keyspace.names():
        yield from _snapshot_stream(name, keyspace.keys[name])


def _snapshot_stream(name: str, key: Key) -> Iterator[Record]:
    stream, kept = key.stream, key.productions
    yield RestoreStream(
        name, key.generation, stream.first_id, stream.top_id, stream.last_id, stream.max_deleted_id,
        stream.removed_upto, stream.entries_added, (kept.duration_s, kept.maxsize, kept.added,
        kept.duplicates),
    )  # fmt: skip
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
