"""The commands: frozen, typed, one a Redis command, free of any wire format.

Knows: what each command may be asked, and the special cursors. IDs are integers, names text, times
milliseconds.
Must never know: how a command was written down, and what it does.
"""

from collections.abc import Sequence
from enum import Enum, Flag, auto
from typing import ClassVar, Final

import msgspec

from engine import rows
from engine.commands.base import NO_STREAM, BlockingCommand, Command, MemoryNeed, StreamCommand
from engine.copying import copy_cost
from engine.keyspace import Keyspace
from engine.name_marks import Body, NamePlace, StreamKey
from engine.quotas import Quota
from engine.replies import StreamInfo

# What a row of a reply takes, with what is written of it: of a group, a consumer, a pending entry.
_GROUP_US: Final = 6
_CONSUMER_US: Final = 4
_PENDING_US: Final = 2
# Pending entries that XAUTOCLAIM looks at for each one that it may claim.
_ATTEMPTS_FACTOR: Final = 10
# Pending entries that it looks at in all, at 1.5 us each; the returned cursor continues from there.
_ATTEMPTS_MAX: Final = 5_000
# A node that is copied.
_COPIED_US: Final = 6
# Names of streams that are listed.
_NAMES_A_US: Final = 50
# A stream that is removed, and one that is read by a group.
_REMOVED_US: Final = 10
_DELIVERING_US: Final = 8
# What looking at an entry that is not claimed takes.
_ATTEMPT_US: Final = 2


class Refs(Enum):
    """How a deletion treats references to the entry in the groups' pending lists."""

    KEEP = "keep"
    """The pending entries stay and dangle."""
    DELETE = "delete"
    """They go too."""
    ACKED = "acked"
    """The entry is deleted only when every group has read and acknowledged it."""


class Cursor(Enum):
    """Words in the place of an ID. A blocked read never holds one: they are resolved once."""

    LATEST = "$"
    LAST_ENTRY = "+"
    NEW = ">"


class NackMode(Enum):
    """What XNACK does to the delivery count: one back, nothing, to the largest number."""

    SILENT = "silent"
    FAIL = "fail"
    FATAL = "fatal"


class AutoSequence(msgspec.Struct, frozen=True):
    """`ms-*`: the milliseconds are given, the sequence is the engine's."""

    ms: int


# None is `*`: wholly the engine's.
NewId = int | AutoSequence | None
Ids = Sequence[int]


class Trim(msgspec.Struct, frozen=True, kw_only=True):
    """One of `maxlen`, `minid` and `older_than_ms`. `limit` None is the default of `~`, 0 no limit.

    With `count_pending` the reply counts the pending entries that lose their entry, which takes a look into
    every group; else it says 0. Below a deleted entry that is exact for the first 10,000; beyond, pending
    entries that have lost theirs before count too.
    """

    maxlen: int | None = None
    minid: int | None = None
    older_than_ms: int | None = None
    approx: bool = False
    limit: int | None = None
    refs: Refs = Refs.KEEP
    count_pending: bool = False


class ProducerKey(msgspec.Struct, frozen=True):
    """IDMP and IDMPAUTO: the producer, and its key for this entry (both raw bytes)."""

    producer: bytes
    key: bytes


class IdempotencyKey(msgspec.Struct, frozen=True):
    """The HTTP header's key, per stream, and a digest of the body that it came with."""

    key: str
    digest: bytes


class XAdd(StreamCommand, frozen=True, kw_only=True):
    """Append entries, all or none. Reply: `Added`, or None where `mkstream` is false and the stream missing.

    `bodies` are stored forms without their ID (`engine.entries.body`). `ids` is empty (all automatic and
    consecutive) or has one for each body. `expected_last_id` is a precondition (0: empty or missing).
    """

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    bodies: Sequence[Body]
    ids: Sequence[NewId] = ()
    mkstream: bool = True
    trim: Trim | None = None
    producer_key: ProducerKey | None = None
    idempotency: IdempotencyKey | None = None
    expected_last_id: int | None = None

    def entry_bytes(self) -> int:
        return rows.size(self.bodies)


class XLen(StreamCommand, frozen=True, kw_only=True):
    changes: ClassVar[bool] = False


class XRange(StreamCommand, frozen=True, kw_only=True):
    """`start` and `end` inclusive, `start` the lower one also in reverse. Reply: `Entries`.

    `count` None is all; 0 answers None on an existing stream (Redis's null array). `bytes_max` the text
    text, at least one entry is given. `up_to_damage` is for readers who see that there are more: of a range
    that leads into a part that the disk does not give, they get what is before it.
    """

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    start: int
    end: int
    count: int | None = None
    reverse: bool = False
    bytes_max: int | None = None
    up_to_damage: bool = False


class XDel(StreamCommand, frozen=True, kw_only=True):
    makes_room: ClassVar[bool] = True

    ids: Ids

    def named_ids(self) -> Ids:
        return self.ids


class XDelEx(StreamCommand, frozen=True, kw_only=True):
    """Reply: `Deletions`. On a missing stream all IDs are absent."""

    settles: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True

    ids: Ids
    refs: Refs = Refs.KEEP

    def named_ids(self) -> Ids:
        return self.ids


class XTrim(StreamCommand, frozen=True, kw_only=True):
    """Reply: `Trimmed`. `dry_run` changes nothing; `guard` refuses to remove what a group still needs."""

    makes_room: ClassVar[bool] = True

    trim: Trim
    dry_run: bool = False
    guard: bool = False


class Until(Enum):
    """When a read that waits ends in vain: Redis's at its time, others also where nothing more can come."""

    TIMEOUT = "timeout"
    CLOSED = "closed"
    """All its streams are closed, and nothing is left to read."""
    DRAINED = "drained"
    """Nor is anything pending in the group."""


def until_end(claim_min_idle_ms: int | None) -> Until:
    """Until nothing more can come to a read of a group: one that claims may get what is pending."""
    return Until.CLOSED if claim_min_idle_ms is None else Until.DRAINED


class BoundedRead(BlockingCommand, frozen=True, kw_only=True):
    """A read of several streams: `count` is the most entries of each, `count_total` of all together; None is
    no limit. `bytes_max` and `bytes_total` are the most bytes of their stored texts together: the gateway's
    limit and the caller's. One entry is always given. Streams are read in order until a limit is reached.
    """

    count: int | None = None
    count_total: int | None = None
    bytes_max: int | None = None
    bytes_total: int | None = None
    until: Until = Until.TIMEOUT

    @property
    def has_totals(self) -> bool:
        """Whether what one stream gives depends on the streams before it, as the caller wants it."""
        return self.count_total is not None or self.bytes_total is not None

    @property
    def count_of_one(self) -> int | None:
        """The most entries of its first stream."""
        return _least(self.count, self.count_total)

    @property
    def bytes_of_all(self) -> int | None:
        """The most bytes."""
        return _least(self.bytes_max, self.bytes_total)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


class XRead(BoundedRead, frozen=True, kw_only=True):
    """Reply: `StreamsRead`. `block_ms` None does not wait.

    `known` has the generation of which each cursor is, empty where the reader does not know it: such a reader
    gets a gap at once when its cursor is of another stream. None reads as Redis does.
    """

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    streams: Sequence[tuple[StreamKey, int | Cursor]]
    known: Sequence[str] | None = None


class XReadGroup(BoundedRead, frozen=True, kw_only=True):
    """Reply: `GroupRead`. Cursors are IDs (history) or `Cursor.NEW`.

    With `claims_own` false, CLAIM passes over what the consumer holds itself, which Redis claims too. At most
    one such read of a consumer waits. With `knows_paused` a wait ends as well when the group of the first
    stream is paused and the reader does not know it, or is not any more.
    """

    queues: ClassVar[bool] = True
    long_reply: ClassVar[bool] = True

    group: str
    consumer: str
    streams: Sequence[tuple[StreamKey, int | Cursor]]
    noack: bool = False
    claim_min_idle_ms: int | None = None
    claims_own: bool = True
    knows_paused: bool | None = None

    def reader(self) -> tuple[str, str]:
        return self.group, self.consumer

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        reads_new = not self.noack and any(cursor is Cursor.NEW for _, cursor in self.streams)
        return MemoryNeed.DELIVERS if reads_new else MemoryNeed.NONE

    def work_us(self, keyspace: Keyspace) -> int:
        return _DELIVERING_US * len(self.streams)


class XAck(StreamCommand, frozen=True, kw_only=True):
    settles: ClassVar[bool] = True
    looks_up: ClassVar[bool] = False

    group: str
    ids: Ids

    def named_ids(self) -> Ids:
        return self.ids


class XAckDel(StreamCommand, frozen=True, kw_only=True):
    """Reply: `Deletions`. Where stream or group is missing all IDs are absent. With `consumer`, which Redis
    has not, what another one holds stays as it is.
    """

    settles: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True

    group: str
    ids: Ids
    refs: Refs = Refs.KEEP
    consumer: str | None = None

    def named_ids(self) -> Ids:
        return self.ids


# How long entries can be deferred: seven days.
DELAY_MS_MAX: Final = 7 * 24 * 3600 * 1000


class Nack(msgspec.Struct, frozen=True, kw_only=True):
    """With `delay_ms` the entries come back after that time, and until then belong to no consumer."""

    ids: Ids
    mode: NackMode
    retry_count: int | None = None
    force: bool = False
    delay_ms: int = 0


class XNack(StreamCommand, frozen=True, kw_only=True):
    """With `consumer` what this one holds, and nothing else. Reply: `Outcomes`, an ID for each mention."""

    settles: ClassVar[bool] = True

    group: str
    nack: Nack
    consumer: str | None = None

    def named_ids(self) -> Ids:
        return self.nack.ids

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        return MemoryNeed.DELIVERS if self.nack.force else MemoryNeed.NONE


class _LookAtConsumers(StreamCommand, frozen=True, kw_only=True):
    """Looks at each consumer of a group."""

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    group: str

    def work_us(self, keyspace: Keyspace) -> int:
        key = keyspace.find(self.stream)
        group = None if key is None else key.groups.get(self.group)
        return _CONSUMER_US * len(group.consumers) if group is not None else 0


class XPending(_LookAtConsumers, frozen=True, kw_only=True):
    """Reply: `PendingSummary`."""


class XPendingRange(StreamCommand, frozen=True, kw_only=True):
    """Reply: `PendingList`. `count` 0 or less gives an empty list."""

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    group: str
    start: int
    end: int
    count: int
    consumer: str | None = None
    min_idle_ms: int = 0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """`idle_ms` and `time_ms` exclude each other (the later word wins); `last_id` raises the group's."""

    ids: Ids
    min_idle_ms: int
    idle_ms: int | None = None
    time_ms: int | None = None
    retry_count: int | None = None
    force: bool = False
    just_ids: bool = False
    last_id: int | None = None


# Bytes of entries that a claim takes over where it does not say: they are answered all at once.
CLAIMED_BYTES_MAX: Final = 8 << 20


class XClaim(StreamCommand, frozen=True, kw_only=True):
    """Reply: `Claimed`. Entries beyond `bytes_max` stay as they were; one is always given."""

    settles: ClassVar[bool] = True
    needs: ClassVar[MemoryNeed] = MemoryNeed.DELIVERS

    group: str
    consumer: str
    claim: Claim
    bytes_max: int = CLAIMED_BYTES_MAX

    def named_ids(self) -> Ids:
        return self.claim.ids

    def has_long_reply(self) -> bool:
        return not self.claim.just_ids


class XAutoClaim(StreamCommand, frozen=True, kw_only=True):
    """Reply: `AutoClaimed`. `start` is inclusive; it ends at `count` or `bytes_max`, one is always given."""

    settles: ClassVar[bool] = True
    needs: ClassVar[MemoryNeed] = MemoryNeed.DELIVERS
    long_reply: ClassVar[bool] = True

    group: str
    consumer: str
    min_idle_ms: int
    start: int
    count: int = 100
    just_ids: bool = False
    bytes_max: int = CLAIMED_BYTES_MAX

    def work_us(self, keyspace: Keyspace) -> int:
        key = keyspace.find(self.stream)
        group = None if key is None else key.groups.get(self.group)
        attempts = 0 if group is None else min(len(group.pending), self.attempts)
        return _ATTEMPT_US * attempts

    @property
    def attempts(self) -> int:
        """How many pending entries it looks at."""
        return min(self.count * _ATTEMPTS_FACTOR, _ATTEMPTS_MAX)


class XGroupCreate(StreamCommand, frozen=True, kw_only=True):
    """`start` is where the group begins to read (exclusive); `entries_read` None is unknown. Reply: True."""

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    group: str
    start: int | Cursor
    mkstream: bool = False
    entries_read: int | None = None


class XGroupSetId(StreamCommand, frozen=True, kw_only=True):
    group: str
    start: int | Cursor
    entries_read: int | None = None


class XGroupDestroy(StreamCommand, frozen=True, kw_only=True):
    settles: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True

    group: str


class XGroupCreateConsumer(StreamCommand, frozen=True, kw_only=True):
    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    group: str
    consumer: str


class XGroupDelConsumer(StreamCommand, frozen=True, kw_only=True):
    """Reply: how many pending entries the consumer had; they are no longer pending."""

    settles: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True

    group: str
    consumer: str


class XSetId(StreamCommand, frozen=True, kw_only=True):
    last_id: int
    entries_added: int | None = None
    max_deleted_id: int | None = None


class IdmpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """At least one of them."""

    duration_s: int | None = None
    maxsize: int | None = None


class XCfgSet(StreamCommand, frozen=True, kw_only=True):
    settings: IdmpSettings


class XIdmpRecord(StreamCommand, frozen=True, kw_only=True):
    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    producer_key: ProducerKey
    id: int


class XInfoStream(StreamCommand, frozen=True, kw_only=True):
    """Reply: `StreamInfo`."""

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True


class XInfoStreamFull(StreamCommand, frozen=True, kw_only=True):
    """Reply: `StreamDetail`. `count` bounds entries and each pending list, None is all; `bytes_max` the text
    of the entries, but over a backend, whose server knows no such bound.
    """

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    count: int | None = 10
    bytes_max: int | None = None

    def work_us(self, keyspace: Keyspace) -> int:
        key, took_us = keyspace.find(self.stream), 0
        for group in () if key is None else key.groups.values():
            consumers, pending = len(group.consumers), len(group.pending)
            shown = 2 * pending if self.count is None else min(pending, self.count) * (1 + consumers)
            took_us += _GROUP_US + _CONSUMER_US * consumers + _PENDING_US * min(shown, 2 * pending)
        return took_us


class XInfoGroups(StreamCommand, frozen=True, kw_only=True):
    """Reply: a list of `GroupInfo`, by name."""

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    def work_us(self, keyspace: Keyspace) -> int:
        key = keyspace.find(self.stream)
        return 0 if key is None else _GROUP_US * len(key.groups)


class XInfoConsumers(_LookAtConsumers, frozen=True, kw_only=True):
    """Reply: a list of `ConsumerInfo`, by name."""


class Delete(Command, frozen=True, kw_only=True):
    """DEL, UNLINK. `expected`: each stream has to be exactly so. Unless `drops_schedules`, one that has some
    is refused, and then none is deleted. Reply: how many there were.
    """

    settles: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True

    streams: Sequence[StreamKey]
    expected: StreamInfo | None = None
    drops_schedules: bool = True

    def named_streams(self) -> tuple[str, ...]:
        return tuple(self.streams)

    def work_us(self, keyspace: Keyspace) -> int:
        return _REMOVED_US * len(self.streams)


class ExpireCondition(Flag):
    """Conditions of EXPIRE: the stream has no lifetime, it has one, the new one is longer, it is shorter. A
    stream without a lifetime lives longer than any other.
    """

    NX = auto()
    XX = auto()
    GT = auto()
    LT = auto()


class Expire(StreamCommand, frozen=True, kw_only=True):
    """EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT: `ms` from now if `relative`, else since 1970 by the wall clock.

    A time that is over removes the stream. `named` is the command as Redis names it in a refusal. Reply:
    whether the lifetime was changed.
    """

    ms: int
    relative: bool
    condition: ExpireCondition = ExpireCondition(0)
    named: str = "pexpireat"


class Persist(StreamCommand, frozen=True, kw_only=True):
    """Reply: whether the stream had a lifetime."""


class TimeToLive(StreamCommand, frozen=True, kw_only=True):
    """TTL and EXPIRETIME. Reply: milliseconds that are left, or (`absolute`) when they are over; -1 without
    a lifetime, -2 without a stream.
    """

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False

    absolute: bool = False


class Rename(StreamCommand, frozen=True, kw_only=True):
    """RENAME and (`replace` false) RENAMENX. What has the name `target` is removed, or refuses the change.
    Reply: whether the name was changed; the own name is none.
    """

    target: StreamKey
    replace: bool = True

    def named_streams(self) -> tuple[str, ...]:
        return (self.stream, self.target)

    def grown_streams(self, keyspace: Keyspace, quota: Quota) -> Sequence[str]:
        # Under a name of the same quota it takes no more.
        return () if quota.matches(self.stream) or not quota.matches(self.target) else (self.target,)


class Copy(StreamCommand, frozen=True, kw_only=True):
    """Make `target` a copy; one that is there stays unless `replace`. Reply: whether it was made."""

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    target: StreamKey
    replace: bool = False

    def work_us(self, keyspace: Keyspace) -> int:
        key = keyspace.find(self.stream)
        return 0 if key is None else _COPIED_US * copy_cost(key)

    def named_streams(self) -> tuple[str, ...]:
        return (self.stream, self.target)

    def grown_streams(self, keyspace: Keyspace, quota: Quota) -> Sequence[str]:
        return (self.target,) if quota.matches(self.target) else ()


class Exists(Command, frozen=True, kw_only=True):
    """Reply: how many of the names there are, repeated ones counted each time."""

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False

    streams: Sequence[StreamKey]

    def named_streams(self) -> tuple[str, ...]:
        return tuple(self.streams)


class FindGroup(Command, frozen=True, kw_only=True):
    """Weir's own: look for the group on each of the streams. Reply: a `Presence` for each, in order."""

    changes: ClassVar[bool] = False

    streams: Sequence[StreamKey]
    group: str

    def named_streams(self) -> tuple[str, ...]:
        return tuple(self.streams)


class Type(StreamCommand, frozen=True, kw_only=True):
    """Reply: `"stream"` or `"none"`."""

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False


class DescribeUse(StreamCommand, frozen=True, kw_only=True):
    """MEMORY USAGE and OBJECT IDLETIME. Reply: `StreamUse`, None without a stream."""

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False


class ListStreams(Command, frozen=True, kw_only=True):
    """Reply: `Listing`, in order of names after `after` that start with `prefix`; `limit` None is all.

    `at`: from this part of the names on (0 to 1), and at their end from the first. `scheduled`: those that
    have schedules alone.
    """

    changes: ClassVar[bool] = False
    long_reply: ClassVar[bool] = True

    prefix: NamePlace = ""
    after: NamePlace | None = None
    limit: int | None = None
    at: float | None = None
    scheduled: bool = False

    def work_us(self, keyspace: Keyspace) -> int:
        names = len(keyspace.keys)
        return (names if self.limit is None else min(self.limit, names)) // _NAMES_A_US


class DbSize(Command, frozen=True, kw_only=True):
    changes: ClassVar[bool] = False


class FlushAll(Command, frozen=True, kw_only=True):
    """Reply: True."""

    makes_room: ClassVar[bool] = True


class ConfigGet(Command, frozen=True, kw_only=True):
    """Reply: `NamedValues`: all settings of the engine by name, and the limit of memory; the API filters
    them.
    """

    changes: ClassVar[bool] = False

    def depends_on(self) -> tuple[str, ...]:
        return (NO_STREAM,)


class ConfigSet(Command, frozen=True, kw_only=True):
    """Names and values as written; a wrong one refuses all. Reply: True."""

    values: Sequence[tuple[str, str]]
