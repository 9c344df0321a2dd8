"""The commands that Redis does not have: retention, policies, dead letters, publishing into many streams.

Knows: the arguments of each, as `engine.commands.types` does for Redis's.
Must never know: how a command was written down, and what it does.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from engine import rows
from engine.commands.base import NO_STREAM, BlockingCommand, Command, MemoryNeed, StreamCommand
from engine.commands.types import Cursor, IdempotencyKey, Ids, XAdd
from engine.keyspace import Keyspace
from engine.name_marks import Body, Mark, NamePlace, StreamKey
from engine.parts.keeping import Retention
from engine.quotas import Quota
from engine.replies import BackendMark, DeliveryMark, StreamInfo

# What a publication takes for each stream, most for one that it makes, and for ten entries.
_PUBLISHED_US: Final = 11
_TEN_ENTRIES_US: Final = 6
# Streams of a plan that cost what a plain read does when it is looked at.
_PLANNED_PER_READ: Final = 4


class NewLifetime(msgspec.Struct, frozen=True, kw_only=True):
    """When a stream is to expire: `ms` from now if `relative`, else since 1970; None for never."""

    ms: int | None = None
    relative: bool = False


class EnsureStream(StreamCommand, frozen=True, kw_only=True):
    """Create the stream, or set the retention of the one there is. Reply: whether it was created.

    `lifetime` None leaves it as it is; a time that is over is refused.
    """

    retention: Retention = Retention()
    lifetime: NewLifetime | None = None

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        return MemoryNeed.ADDS if keyspace.find(self.stream) is None else MemoryNeed.NONE


class UpdateStream(StreamCommand, frozen=True, kw_only=True):
    """Change what is named, of the fields of `Retention`; `expected`: the stream has to be exactly so.

    Reply: True.
    """

    retention: Mapping[str, Any] = {}
    archived_up_to: int | None = None
    lifetime: NewLifetime | None = None
    expected: StreamInfo | None = None


class AddEach(StreamCommand, frozen=True, kw_only=True):
    """A run of plain XADDs (`*`, no options), one for each body. Reply: `Added` with the IDs of
    those that were appended: the first ones, where the IDs of the stream do not suffice for all.

    `apart`: one that the stream does not take is refused alone, and not all of them. A backend refuses all.
    """

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    bodies: Sequence[Body]
    apart: bool = False

    def entry_bytes(self) -> int:
        return rows.size(self.bodies)


class Close(StreamCommand, frozen=True, kw_only=True):
    """End the stream for good, behind the entries of `add` where there are any: both or neither. One that is
    closed stays as it is. Refused while it has schedules, unless `drops_schedules`. Reply: `Closed`.

    `expected_last_id` is a precondition where there are no entries.
    """

    reason: str = ""
    add: XAdd | None = None
    expected_last_id: int | None = None
    drops_schedules: bool = False

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        return MemoryNeed.NONE if self.add is None else self.add.memory_need(keyspace)

    def entry_bytes(self) -> int:
        return 0 if self.add is None else self.add.entry_bytes()


class StreamInfos(Command, frozen=True, kw_only=True):
    """Reply: `StreamPage`, by name, at most `limit` and 8 MiB."""

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    prefix: NamePlace = ""
    after: NamePlace | None = None
    limit: int = 100


class CountGroups(Command, frozen=True, kw_only=True):
    """Reply: `GroupCounts`, of the streams behind `after`, as many as one turn has time for. It is for
    operators, as `MeasureStreams`.
    """

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False

    after: str | None = None

    def depends_on(self) -> tuple[str, ...]:
        return ()


class MeasureStreams(Command, frozen=True, kw_only=True):
    """Reply: `Measured`, of those of the streams that there are, with at most `groups_max` groups in all.

    It depends on no log position: the figures are for operators, also after the log has failed. No mark is on
    its streams, as callers who are shown a part of them do not have it.
    """

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    streams: Sequence[str]
    groups_max: int

    def depends_on(self) -> tuple[str, ...]:
        return ()


class Watch(StreamCommand, frozen=True, kw_only=True):
    """Reply: the version of the stream, an integer, whether or not it exists: for `Unchanged`."""

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False


class Unchanged(Command, frozen=True, kw_only=True):
    """Whether each stream is still the version that `Watch` gave; a transaction that begins with it ends
    there if not. What consumers do with entries of groups is no change.
    """

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False
    guards: ClassVar[bool] = True

    versions: Mapping[StreamKey, int]

    def named_streams(self) -> tuple[str, ...]:
        return tuple(self.versions)


class DescribeEdges(StreamCommand, frozen=True, kw_only=True):
    """Reply: `Edges`, None for a missing stream; at the cost of a look, however long the stream."""

    changes: ClassVar[bool] = False


class DescribeArchived(StreamCommand, frozen=True, kw_only=True):
    """Reply: `Archived`, None for a missing stream. `low` and `high`: among which IDs deleted ones are looked
    for.
    """

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    low: int
    high: int


# The name of the field that a group is ordered by, and how many entries of a key it may allow at a time.
ORDERED_BY_BYTES_MAX: Final = 256
IN_FLIGHT_PER_KEY_MAX: Final = 1_000_000


class EnsureGroup(StreamCommand, frozen=True, kw_only=True):
    """Create the group with what `policy` sets; one that is there keeps position and policy.

    Reply: whether it was created.
    """

    group: str
    start: int | Cursor
    mkstream: bool = False
    entries_read: int | None = None
    policy: Annotated[Mapping[str, Any], Mark.POLICY] = {}

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        key = keyspace.find(self.stream)
        return MemoryNeed.ADDS if key is None or self.group not in key.groups else MemoryNeed.NONE


class UpdateGroup(StreamCommand, frozen=True, kw_only=True):
    """Move the group where `start` is given, and set what `policy` names. Reply: True."""

    group: str
    start: int | Cursor | None = None
    entries_read: int | None = None
    policy: Annotated[Mapping[str, Any], Mark.POLICY] = {}


class DescribeGroup(StreamCommand, frozen=True, kw_only=True):
    """Reply: `GroupInfo`."""

    changes: ClassVar[bool] = False

    group: str


class ExamineGroup(StreamCommand, frozen=True, kw_only=True):
    """Reply: `GroupFacts`, also of what is missing. Of a `consumer` what it holds."""

    changes: ClassVar[bool] = False

    group: str
    consumer: str | None = None


class DeleteGroup(StreamCommand, frozen=True, kw_only=True):
    """Refused while entries are pending, unless `drop`. Reply: True."""

    settles: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True

    group: str
    drop: bool = False


class DeleteConsumer(StreamCommand, frozen=True, kw_only=True):
    """Refused while it holds pending entries, unless they are to be dropped or go to another consumer.

    Reply: how many it held.
    """

    group: str
    consumer: str
    drop: bool = False
    transfer_to: str | None = None


class DeadLetterEntries(StreamCommand, frozen=True, kw_only=True):
    """Move pending entries to the group's dead-letter stream, by hand; with `consumer` what this one holds,
    and nothing else. Reply: `DeadLettered`.

    As many as go into one frame; the others stay pending, for the next call.
    """

    settles: ClassVar[bool] = True
    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    group: str
    ids: Ids
    reason: str
    consumer: str | None = None

    def grown_streams(self, keyspace: Keyspace, quota: Quota) -> Sequence[str]:
        # As where a delivery moves them: they are counted already, in the stream that they come from.
        return ()


class FindDeadLetters(StreamCommand, frozen=True, kw_only=True):
    """Look for dead letters of the group in the dead-letter stream `letters`, from `start` to `end`
    (inclusive), at most `count`; a bounded number of entries in one turn. Reply: `DeadLettersFound`.
    """

    changes: ClassVar[bool] = False

    group: str
    letters: StreamKey
    start: int
    end: int
    count: int
    consumer: str | None = None
    reason: str | None = None

    def depends_on(self) -> tuple[str, ...]:
        return (self.stream, self.letters)


class Redrive(StreamCommand, frozen=True, kw_only=True):
    """Append copies of dead letters of the group to the stream, and delete the dead letters. Reply:
    `Redriven`.

    `ids` are entries of the dead-letter stream `letters`, looked at in their order; those that are not there,
    or are no dead letters of this group, are passed over. As many as one turn takes; `upto` is how far the
    caller has looked for IDs, None where there are no others. With `dry_run` nothing changes.
    """

    group: str
    letters: StreamKey
    ids: Ids
    upto: int | None = None
    dry_run: bool = False
    idempotency: IdempotencyKey | None = None

    def depends_on(self) -> tuple[str, ...]:
        return (self.stream, self.letters)

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        # The dead letters' memory is free only when half of their node is.
        return MemoryNeed.NONE if self.dry_run else MemoryNeed.ADDS


class Chunk(msgspec.Struct, frozen=True):
    """One piece of what a producer publishes: which of its runs it is of, and which piece of that."""

    producer: str
    epoch: int
    number: int


class Publish(Command, frozen=True, kw_only=True):
    """Append to many streams, all or nothing; each stream once. Reply: `Published`, or for a chunk that was
    stored before `Republished`. At most one of `idempotency` and `chunk`.
    """

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    parts: Sequence[XAdd]
    idempotency: Annotated[IdempotencyKey | None, Mark.SHARED_KEY] = None
    chunk: Annotated[Chunk | None, Mark.SHARED_KEY] = None

    def named_streams(self) -> tuple[str, ...]:
        return tuple(part.stream for part in self.parts)

    def depends_on(self) -> tuple[str, ...]:
        # What a key was used for belongs to no stream.
        keyed = (NO_STREAM,) if self.idempotency is not None or self.chunk is not None else ()
        return (*self.named_streams(), *keyed)

    def entry_bytes(self) -> int:
        return sum(part.entry_bytes() for part in self.parts)

    def work_us(self, keyspace: Keyspace) -> int:
        count = sum([len(part.bodies) for part in self.parts])
        return _PUBLISHED_US * len(self.parts) + _TEN_ENTRIES_US * count // 10


class Plan(BlockingCommand, frozen=True, kw_only=True):
    """What there is of each stream after an ID, up to the one in `ends` where it is named, and which part of
    it is read next: at most `max_entries` and `max_bytes` over all streams, but one entry of each. Reply:
    `Planned`.

    `parts` is into how many pieces each range is cut at most. With `durable_only` a range ends where a crash
    may take back what follows. `block_ms` waits while there is nothing at all, None does not.
    """

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    streams: Sequence[tuple[StreamKey, int]]
    ends: Mapping[StreamKey, int] = {}
    max_entries: int | None = None
    max_bytes: int | None = None
    parts: int = 1
    durable_only: bool = False

    def wake_cost(self) -> int:
        return 1 + len(self.streams) // _PLANNED_PER_READ


class PutMetadata(Command, frozen=True, kw_only=True):
    """Keep a value beside the streams, or, without one, remove it. FLUSHALL leaves it. Reply: whether there
    was one of that name.

    Refused beyond `METADATA_BYTES_MAX`, names included: values are few and small.
    """

    name: str
    value: bytes | None

    def depends_on(self) -> tuple[str, ...]:
        return (NO_STREAM,)


class ListMetadata(Command, frozen=True, kw_only=True):
    """Reply: `MetadataPage`, the values whose names begin with `prefix`, by name."""

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    prefix: str = ""

    def depends_on(self) -> tuple[str, ...]:
        return (NO_STREAM,)


class Maintain(Command, frozen=True, kw_only=True):
    """The gateway runs it once a second: retention, overdue entries, idle consumers, old idempotency keys and
    answers.

    A bounded part of it in one turn; a round is over when every stream that needs it was looked at.
    `waiting` returns the (group, consumer) pairs that wait for entries of a stream: they are not idle. Idle
    time counts from `since_ms` (wall clock) at the earliest, when the gateway started.
    Reply: whether the round goes on, in another turn at once.
    """

    is_internal: ClassVar[bool] = True

    waiting: Callable[[str], Collection[tuple[str, str]]] = lambda _: ()
    since_ms: int = 0
    # The streams to look at first: what they wait for was read from the disk.
    again: tuple[str, ...] = ()


class EnforceRetention(Maintain, frozen=True, kw_only=True):
    """The part of it that only removes entries, for a disk without room for more."""

    makes_room: ClassVar[bool] = True


class ExpireStreams(Command, frozen=True, kw_only=True):
    """The gateway runs it when the time of a stream is over: remove those that have expired, a bounded number
    in one turn. Reply: whether there are more.
    """

    is_internal: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True


class ReleaseDeferred(Command, frozen=True, kw_only=True):
    """The gateway runs it when the time of deferred entries has come: release them, a bounded number in one
    turn. Reply: whether there are more.
    """

    is_internal: ClassVar[bool] = True

    # The streams to look at first: what they wait for was read from the disk.
    again: tuple[str, ...] = ()


class EndWait(Command, frozen=True, kw_only=True):
    """The gateway's own: a read of the group has waited in vain or gave up, or the client that read as the
    consumer has left. Reply: True.

    Where the group has a `consumer_timeout_ms` it counts from now: the consumer was there until now.
    """

    streams: Sequence[StreamKey]
    group: str
    consumer: str

    def named_streams(self) -> tuple[str, ...]:
        return tuple(self.streams)


class Acknowledge(StreamCommand, frozen=True, kw_only=True):
    """XACK that says which of the IDs were pending. Reply: `AcknowledgedIds`.

    `holders`, if any, are as many as IDs: the consumer who acknowledges each, "" for any. What another
    consumer holds stays as it is; what was given back has none, and is acknowledged.
    """

    settles: ClassVar[bool] = True
    looks_up: ClassVar[bool] = False

    group: str
    ids: Ids
    holders: Sequence[str] = ()

    def named_ids(self) -> Ids:
        return self.ids


class Extend(StreamCommand, frozen=True, kw_only=True):
    """Start the idle time of pending entries anew, of those that the consumer holds; what was released is the
    consumer's again. They count no delivery. Reply: `Outcomes`, each ID once.
    """

    group: str
    consumer: str
    ids: Ids

    def named_ids(self) -> Ids:
        return self.ids


class Undo(StreamCommand, frozen=True, kw_only=True):
    """Undo a delivery of new entries whose reply never left, if nothing else has moved the group since: it is
    as if they had never been read. Otherwise they stay with their consumer, a delivery less.

    `ids` are all new entries of the reply, none where it was read without acknowledgements. Reply: whether it
    was undone.
    """

    settles: ClassVar[bool] = True
    looks_up: ClassVar[bool] = False

    group: str
    consumer: str
    ids: Ids
    mark: DeliveryMark | BackendMark

    def named_ids(self) -> Ids:
        return self.ids


class GiveBack(StreamCommand, frozen=True, kw_only=True):
    """Release, of these entries, those that this consumer holds: it went away before they reached it.

    As XNACK SILENT does, a delivery less; but what others have claimed meanwhile stays theirs. Reply: how
    many were released.
    """

    settles: ClassVar[bool] = True

    group: str
    consumer: str
    ids: Ids
