"""What the commands answer: typed, frozen, free of any wire format.

Knows: the shape of each answer. IDs are integers (`engine.ids`), times milliseconds of the wall clock,
entries their stored JSON text (`engine.entries`).
Must never know: RESP, JSON bodies, statuses.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec

from engine import entries
from engine.ids import EntryId
from engine.name_marks import Body, NamePlace, StoredText, StreamKey
from engine.recurrence import Rule

T = TypeVar("T")


class Entries(msgspec.Struct, frozen=True):
    """A run of entries in the order asked for.

    `parts` are slices of stored text, each one or more entries joined by `,`; joining the parts by `,` gives
    the inside of a JSON array. `first` and `last` are the IDs of the first and last entry answered, 0 when
    there is none. `more` means that a limit ended the run, not the end of the range. `closed`: the stream is
    closed, and has nothing above the run; never of one that was read backwards. `archived`: the stream has
    them no more. `whole`: what was trimmed before them was read, in the archive.
    """

    parts: Sequence[StoredText] = ()
    count: int = 0
    first: int = 0
    last: int = 0
    more: bool = False
    closed: bool = False
    archived: bool = False
    whole: bool = False

    def json(self) -> bytes:
        """The entries as the inside of a JSON array."""
        return b",".join(self.parts)

    def pairs(self) -> Iterator[tuple[EntryId, list[tuple[str, bytes]]]]:
        """Each entry as its ID and its fields, in order; repeated names stay, values are bytes."""
        for part in self.parts:
            for text in entries.texts(part):
                yield entries.id_of(text), entries.pairs_of(text)


class Gap(msgspec.Struct, frozen=True):
    """Entries after the cursor `requested` are not there to be read.

    Without a `reason` they were removed from the front; `lost` is their number where it can be computed, else
    None. With "failover" a server that took over does not have the last entries before the cursor. All other
    reasons say that the cursor is not of this stream (`engine.generations`), which is then `first_available`
    on; reading goes on after `next`, which is None where that is directly before `first_available`.
    """

    requested: int
    first_available: int
    lost: int | None
    reason: str | None = None
    next: int | None = None

    @property
    def goes_on_after(self) -> int:
        """Where reading goes on."""
        return self.first_available - 1 if self.next is None else self.next


class StreamEnd(msgspec.Struct, frozen=True):
    """A closed stream of which nothing is left to read. `drained`: nor is anything pending in the group that
    reads it.
    """

    stream: StreamKey
    last_id: int
    closed_at_ms: int
    reason: str
    drained: bool = False


class Closed(msgspec.Struct, frozen=True):
    """A stream that was closed now, or (`duplicate`) before; `added` are the entries that the command had."""

    end: StreamEnd
    added: "Added | None" = None
    duplicate: bool = False


class Added(msgspec.Struct, frozen=True):
    """XADD. `ids` are in order of the entries; `duplicate` if idempotence found them stored already.

    `trimmed` entries were removed by the trim, `pending_affected` of them are still pending in some group.
    Of entries that were added apart those at the places `refused` were not, for the reason `refusal`.
    """

    ids: Sequence[int]
    duplicate: bool = False
    trimmed: int = 0
    pending_affected: int = 0
    refused: Sequence[int] = ()
    refusal: str = ""


class Trimmed(msgspec.Struct, frozen=True):
    """XTRIM. `first_id` is the first ID kept, 0 for an empty or missing stream."""

    deleted: int
    first_id: int = 0
    pending_affected: int = 0


class StreamEntries(msgspec.Struct, frozen=True):
    """XREAD: the entries of one stream after the cursor `after` (resolved, never `$`); none where the `gap`
    says that the cursor is of another stream.
    """

    stream: StreamKey
    entries: Entries
    after: int
    gap: Gap | None = None


class StreamsRead(msgspec.Struct, frozen=True):
    """XREAD: the streams that had something, in argument order; none of them means null.

    `cursors` has every stream asked for with its resolved cursor, in argument order. `unfinished` are those
    that have something and that the budget left no room for. `generations` has those of all streams, empty
    for one that is missing, where the read says which it knows. `closed` are those of which nothing is left.
    """

    streams: Sequence[StreamEntries]
    cursors: Sequence[tuple[StreamKey, int]]
    unfinished: Sequence[StreamKey] = ()
    generations: Sequence[str] = ()
    closed: Sequence[StreamEnd] = ()


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """One entry handed to a consumer. `text` is None where a pending entry is deleted from the stream.

    `idle_ms` and `deliveries` are None for plain new entries; for claims they are those before this delivery
    (0 and 0 for new entries of a read with CLAIM). `delivery_count` counts this delivery. An entry that was
    `released` had no owner: its `idle_ms` counts from 1970, as in Redis.
    """

    id: int
    text: StoredText | None
    delivery_count: int
    idle_ms: int | None = None
    deliveries: int | None = None
    released: bool = False

    def pairs(self) -> list[tuple[str, bytes]] | None:
        """The fields in order, values as bytes; None where `text` is None."""
        return None if self.text is None else entries.pairs_of(self.text)


class DeliveryMark(NamedTuple):
    """By which a delivery of new entries can be undone: what the group was before it, and what it is as long
    as nothing else has moved it. Worth something in the process alone that made it.
    """

    # The stream's generation, and which group it is.
    generation: str
    group: int
    # The numbers of the move before the delivery, and of the one that it was.
    move_before: int
    move: int
    # Where the group was before.
    last_delivered_id: int
    entries_read: int | None
    # The order of the first new entry, which those of the others follow; 0 where none is pending.
    order: int
    # How many of the reply's entries are not new but claimed: its first ones.
    claimed: int


class BackendMark(NamedTuple):
    """The same of a server, which has no numbers of moves: where the group was before and behind the
    delivery, and between which readings of the server's clock that was, in milliseconds.
    """

    last_delivered_id: int
    entries_read: int | None
    last_delivered_id_after: int
    began_ms: int
    ended_ms: int
    claimed: int


class StreamDeliveries(msgspec.Struct, frozen=True):
    """XREADGROUP: what one stream gave.

    `history` marks a read of the consumer's own pending entries, else of new entries; `after` is the
    cursor of such a history read, else the group's last-delivered ID from before; `last_delivered_id` is the
    one after. `more` means that a limit ended the read. `mark` is there if some of the entries are new.
    """

    stream: StreamKey
    entries: Sequence[Delivered]
    history: bool
    after: int
    last_delivered_id: int
    gap: Gap | None = None
    more: bool = False
    mark: DeliveryMark | BackendMark | None = None


class GroupRead(msgspec.Struct, frozen=True):
    """XREADGROUP: streams in argument order, those without new entries left out; none of them means null.

    `unfinished` are the streams left out because a limit ended the read before they gave anything, `closed`
    those of which the group has nothing left to read, `paused` those of which it delivers nothing now.
    """

    streams: Sequence[StreamDeliveries]
    unfinished: Sequence[StreamKey] = ()
    closed: Sequence[StreamEnd] = ()
    paused: Sequence[StreamKey] = ()


class Outcomes(msgspec.Struct, frozen=True):
    """XNACK and Extend: the IDs with which it was done, and those of a command with a consumer that are
    pending and not this consumer's. All others are not pending.
    """

    done: Sequence[int]
    not_held: Sequence[int] = ()


class Claimed(msgspec.Struct, frozen=True):
    """XCLAIM. With JUSTID each `text` is None. `more` means that a limit ended it before the last ID."""

    entries: Sequence[Delivered]
    more: bool = False


class AutoClaimed(msgspec.Struct, frozen=True):
    """XAUTOCLAIM. `next_start` is the cursor to go on from, 0 at the end."""

    next_start: int
    entries: Sequence[Delivered]
    deleted_ids: Sequence[int]


class PendingSummary(msgspec.Struct, frozen=True):
    """XPENDING. `consumers` are those with pending entries, by name; unowned entries are in `count` only."""

    count: int
    first_id: int
    last_id: int
    consumers: Sequence[tuple[str, int]]


class PendingEntry(NamedTuple):
    """XPENDING with a range. `consumer` is None and `idle_ms` -1 if the entry has no owner; a deferred one
    comes back at `until_ms`, by the wall clock.
    """

    id: int
    consumer: str | None
    idle_ms: int
    delivery_count: int
    until_ms: int | None = None


class PendingList(msgspec.Struct, frozen=True):
    """`more` means that `count` ended the list, not the end of the range."""

    entries: Sequence[PendingEntry]
    more: bool = False


class ConsumerInfo(msgspec.Struct, frozen=True):
    """XINFO CONSUMERS. `inactive_ms` is -1 before the first delivery."""

    name: str
    pending: int
    idle_ms: int
    inactive_ms: int


class GroupInfo(msgspec.Struct, frozen=True):
    """XINFO GROUPS. `entries_read` and `lag` are None where they are unknown. `passed_over` entries, which
    count in `lag`, were read and wait for others of their keys.
    """

    name: str
    consumers: int
    pending: int
    last_delivered_id: int
    entries_read: int | None
    lag: int | None
    dead_letter_stream: StreamKey | None = None
    max_deliveries: int | None = None
    ack_timeout_ms: int | None = None
    consumer_timeout_ms: int | None = None
    max_age_ms: int | None = None
    paused: bool = False
    state: str = ""
    ordered_by: str | None = None
    in_flight_per_key: int = 1
    passed_over: int = 0


class StreamInfo(msgspec.Struct, frozen=True):
    """XINFO STREAM, and what is Weir's own: generation, removed_upto, retention, archived_up_to, memory.

    `first_entry` and `last_entry` are stored text or None; `memory_bytes` is the stored text as it is held;
    `closed_at_ms` is None for an open stream. `held_by` is the group that keeps all of it in spite of its
    limits, and needs `held_id`; `errors.NO_GROUP` and 0 where it waits for one; empty where nothing does. No
    field has a default: each engine, and `ShownInfo` of tenants, says all of them.
    """

    length: int
    nodes: int
    last_id: int
    max_deleted_id: int
    entries_added: int
    first_id: int
    idmp_duration_s: int
    idmp_maxsize: int
    pids_tracked: int
    iids_tracked: int
    iids_added: int
    iids_duplicates: int
    groups: int
    first_entry: StoredText | None
    last_entry: StoredText | None
    generation: str
    removed_upto: int
    max_len: int | None
    max_age_ms: int | None
    max_bytes: int | None
    keep_unacknowledged: bool
    keep_unarchived: bool
    archived_up_to: int
    expires_at_ms: int | None
    memory_bytes: int
    closed_at_ms: int | None
    close_reason: str
    # Of a stream of Durable Streams: its media type, and the stream that it is a fork of.
    media: str | None
    forked_from: StreamKey | None
    # Entries for later, which go with it.
    schedules: int
    state: str
    held_by: str
    held_id: int

    @property
    def entries_bytes(self) -> int:
        """The bytes of its first and last entry, by which a list of streams is long."""
        return len(self.first_entry or b"") + len(self.last_entry or b"")


class GroupMeasure(NamedTuple):
    """A group's figures. `lag` is None where it is unknown.

    `oldest_pending_ms` is the longest time since the last delivery of an entry that a consumer holds, 0 if
    none holds any.
    """

    name: str
    lag: int | None
    pending: int
    oldest_pending_ms: int
    paused: bool = False


class StreamMeasure(NamedTuple):
    """A stream's figures; `bytes` is the memory of its entries' texts. `groups_left_out` had no room."""

    name: StreamKey
    length: int
    bytes: int
    groups: Sequence[GroupMeasure]
    groups_left_out: int


class Measured(msgspec.Struct, frozen=True):
    """The figures of some streams, in the order asked for."""

    streams: Sequence[StreamMeasure]


class Edges(msgspec.Struct, frozen=True):
    """Where a stream begins and ends, and which of its name it is. 0 for no ID."""

    first_id: int
    last_id: int
    removed_upto: int
    generation: str


class Archived(msgspec.Struct, frozen=True):
    """What an archive may have of a stream that the stream has no more. `deleted` are entries that were
    deleted one by one, ascending, of those in the range that was asked about.
    """

    generation: str
    removed_upto: int
    archived_up_to: int
    deleted: Sequence[int] = ()


class DurableInfo(msgspec.Struct, frozen=True):
    """A stream as Durable Streams has it; `media` is None for one that was not made by it. Without entries
    `last_id` is 0. `gap` says that the position that was asked about is not of this stream.
    """

    media: str | None
    ttl_ms: int | None
    expires_at_ms: int | None
    last_id: int
    removed_upto: int
    generation: str
    closed: bool = False
    gap: Gap | None = None


class DurableCreated(msgspec.Struct, frozen=True):
    """`created` is false where the stream was there already, made alike."""

    info: DurableInfo
    created: bool


class DurableAppended(msgspec.Struct, frozen=True):
    """The last ID after an append, and the stream's generation; `duplicate` if the batch was there already.
    `epoch` and `seq` are how far its producer is, None without one.
    """

    last_id: int
    generation: str
    epoch: int | None = None
    seq: int | None = None
    duplicate: bool = False
    closed: bool = False


class BatchesAppended(msgspec.Struct, frozen=True):
    """What became of each batch; None of one that is refused: asked for alone, the refusal says why."""

    replies: Sequence[DurableAppended | None]


class StreamUse(msgspec.Struct, frozen=True):
    """The estimated memory of a stream with all that hangs on it, and the time since a command last named it,
    at most since the start.
    """

    memory_bytes: int
    idle_ms: int


class ConsumerDetail(msgspec.Struct, frozen=True):
    """`pending` is (ID, delivery time, delivery count); `active_time_ms` is -1 before the first delivery."""

    name: str
    seen_time_ms: int
    active_time_ms: int
    pending_count: int
    pending: Sequence[tuple[int, int, int]]


class GroupDetail(msgspec.Struct, frozen=True):
    """`pending` is (ID, consumer or None, delivery time, delivery count)."""

    group: GroupInfo
    nacked_count: int
    pending: Sequence[tuple[int, str | None, int, int]]
    consumers: Sequence[ConsumerDetail]


class StreamDetail(msgspec.Struct, frozen=True):
    """XINFO STREAM FULL."""

    stream: StreamInfo
    entries: Entries
    groups: Sequence[GroupDetail]


class Listing(msgspec.Struct, frozen=True):
    """Names in order; `next` is where to go on (exclusive), None at the end."""

    names: Sequence[StreamKey]
    next: NamePlace | None = None


class MetadataPage(msgspec.Struct, frozen=True):
    """Values by name."""

    values: Sequence[tuple[str, bytes]]


class StreamPage(msgspec.Struct, frozen=True):
    """Streams by name; `next` is the name to go on after, None at the end."""

    streams: Sequence[tuple[StreamKey, StreamInfo]]
    next: NamePlace | None = None


class ScheduleInfo(msgspec.Struct, frozen=True):
    """A schedule: when its entry, of which `body` is the body, is appended next. `left` runs are left, None
    where they are not counted.
    """

    name: str
    at_ms: int
    body: Body
    rule: Rule
    left: int | None = None


class ScheduleSet(msgspec.Struct, frozen=True):
    """A schedule that was made or changed; without `changed` it was the same before. `replaced_recurring`:
    what it has replaced recurred.
    """

    schedule: ScheduleInfo
    created: bool
    changed: bool = True
    replaced_recurring: bool = False


class SchedulePage(msgspec.Struct, frozen=True):
    """Schedules in the order asked for; `more` if there are others behind them."""

    schedules: Sequence[ScheduleInfo]
    more: bool


class AddedScheduled(msgspec.Struct, frozen=True):
    """What was appended, None for nothing; each schedule's name and time; whether one was cancelled; which of
    those that were cancelled or replaced recurred.
    """

    added: Added | None
    scheduled: Sequence[tuple[str, int]] = ()
    cancelled: bool = False
    recurring: Sequence[str] = ()


class Dropped(msgspec.Struct, frozen=True):
    """`reply`, of a command that ended streams with entries for later: this number of schedules went too."""

    reply: "Closed | bool | int"
    schedules: int


class DeadLettered(msgspec.Struct, frozen=True):
    """Entries moved to the dead-letter stream `stream`, and those that were not the consumer's to move."""

    stream: StreamKey
    ids: Sequence[int]
    not_held: Sequence[int] = ()


class DeadLettersFound(msgspec.Struct, frozen=True):
    """IDs of dead letters, ascending. `upto` is the last entry that was looked at, None at the end."""

    ids: Sequence[int]
    upto: int | None


class Redriven(msgspec.Struct, frozen=True):
    """Dead letters that were redriven, and the IDs of their copies in the same order (none of a dry run).

    `upto` is the last dead letter that was looked at, None at the end; `duplicate` if the idempotency key was
    used before.
    """

    letters: Sequence[int]
    copies: Sequence[int]
    upto: int | None
    duplicate: bool = False


class Published(msgspec.Struct, frozen=True):
    """What each stream got; `duplicate` if the idempotency key was used before."""

    streams: Sequence[tuple[StreamKey, Added]]
    duplicate: bool = False


class StoredRun(msgspec.Struct, frozen=True):
    """What one stream got."""

    stream: StreamKey
    first_id: int
    last_id: int
    count: int


class Republished(msgspec.Struct, frozen=True):
    """What each stream got when the chunk was stored."""

    streams: Sequence[StoredRun]


class StreamPlan(msgspec.Struct, frozen=True):
    """Of one stream: `(after, end]` has `count` entries whose stored texts take about `bytes`; `end` is an
    entry's, or `after` where there is nothing to read. `lag` is the number of all entries after `after`.

    `durable` is the highest ID that a crash cannot take back, None where none is known. `cuts` are the IDs
    that end all pieces but the last. 0 for no ID. Of a `closed` stream `last_id` stays the last.
    """

    stream: StreamKey
    after: int
    end: int
    count: int
    bytes: int
    first_id: int
    last_id: int
    removed_upto: int
    max_deleted_id: int
    generation: str
    durable: int | None
    lag: int
    cuts: Sequence[int]
    closed: bool = False


class PreviousStream(msgspec.Struct, frozen=True):
    """The stream that had the name before, or had it last: its generation, and the last ID that it gave."""

    stream: StreamKey
    generation: str
    last_id: int


class Planned(msgspec.Struct, frozen=True):
    """`missing` are the streams that do not exist. `previous`: who had these names before, of both, where it
    is known: of the last `PREVIOUS_MAX` names whose stream ended after a part of it was archived.
    """

    streams: Sequence[StreamPlan]
    missing: Sequence[StreamKey]
    previous: Sequence[PreviousStream] = ()


class AcknowledgedIds(msgspec.Struct, frozen=True):
    """The IDs that were pending and are acknowledged, each once, in no order. `not_held`: those that another
    consumer holds than the one that was named, each as often as it was named so.
    """

    ids: Sequence[int]
    not_held: Sequence[int] = ()


# Of an entry, in `Deletions`.
NOT_HELD: Final = -2


class Deletions(msgspec.Struct, frozen=True):
    """XDELEX and XACKDEL: for each ID in order 1 deleted, -1 absent (not pending), 2 kept because still
    referenced, -2 held by another consumer than the one that was named.
    """

    results: Sequence[int]


class Presence(Enum):
    """FindGroup: the state of a group on one stream."""

    NO_STREAM = "no stream"
    NO_GROUP = "no group"
    FOUND = "found"


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What says why a group delivers nothing. `pending` are its oldest entries, or those of the consumer that
    was asked about.
    """

    now_ms: int
    stream_exists: bool = False
    group: GroupInfo | None = None
    length: int = 0
    first_id: int = 0
    last_live_id: int = 0
    removed_upto: int = 0
    pending: Sequence[PendingEntry] = ()
    # Of a group with an order: the key that most entries wait for, as text, how many do, and one that is
    # pending and has it, 0 where none is among the oldest.
    busy_key: str = ""
    busy_count: int = 0
    busy_id: int = 0
    # Whether as many wait as may.
    busy_all: bool = False
    # What holds all entries of the stream against its limits, 0 for nothing.
    holds_id: int = 0
    consumer_is_known: bool = False
    has_delivered: bool = False
    memory_full: bool = False


class GroupCounts(msgspec.Struct, frozen=True):
    """How many groups are in which state; `next` is the stream to go on behind, None at the end."""

    counts: Mapping[str, int]
    next: str | None = None


class NamedValues(msgspec.Struct, frozen=True):
    """CONFIG GET, and what a part says of a stream: names and values in order."""

    values: Sequence[tuple[str, int | str]]


# Plain replies: counts (XLEN, XDEL, XACK, XNACK, XGROUP DESTROY …) are integers, `True` is Redis's OK,
# None is Redis's null (XADD NOMKSTREAM on a missing stream, XRANGE COUNT 0).
Reply = (
    Added
    | Closed
    | Trimmed
    | Entries
    | StreamsRead
    | GroupRead
    | Outcomes
    | Claimed
    | AutoClaimed
    | PendingSummary
    | PendingList
    | StreamInfo
    | StreamDetail
    | Listing
    | AcknowledgedIds
    | Deletions
    | GroupCounts
    | GroupFacts
    | NamedValues
    | StreamPage
    | ScheduleInfo
    | ScheduleSet
    | SchedulePage
    | AddedScheduled
    | Dropped
    | DeadLettered
    | MetadataPage
    | DeadLettersFound
    | Redriven
    | Published
    | Republished
    | Planned
    | Edges
    | Archived
    | StreamUse
    | DurableInfo
    | DurableCreated
    | BatchesAppended
    | DurableAppended
    | Measured
    | GroupInfo
    | Sequence[GroupInfo]
    | Sequence[ConsumerInfo]
    | Sequence[Presence]
    | int
    | str
    | bool
    | None
)


def by_type(table: Mapping[type, T], reply: object) -> T | None:
    """What a table has for the type of a reply, or for the nearest class that it derives from."""
    for kind in type(reply).__mro__:
        found = table.get(kind)
        if found is not None:
            return found
    return None
