"""One turn: what a command sees, and what it changes.

Knows: the keyspace, the reading of the clock, the records emitted so far, which streams may have readers to
wake, and what Redis calls the event of a record in keyspace notifications.
Must never know: what any command means, asyncio, disk, wire formats.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec

from engine import errors
from engine.commands.base import BlockingCommand
from engine.errors import EngineError
from engine.groups import Group
from engine.keyspace import Key, Keyspace
from engine.parts.closing import Closed
from engine.pending_states import Consumer
from engine.record import Record
from engine.records import changes
from engine.runs import HeldRuns, NotInMemoryError, Run, pack_left
from engine.stream import Stream
from engine.versions import Versions

T = TypeVar("T")


def event_of(record: Record) -> str | None:
    """The event that the change is, None for a change that is none."""
    if isinstance(record, changes.Remove):
        return "xdel" if record.tombstone else "xtrim"
    if isinstance(record, changes.SetLifetime):
        return "persist" if record.expires_at_ms is None else "expire"
    return record.event


# What one turn logs at most of lists of IDs and of the names beside them: with the dead letters it stays
# below the log's reserve. Reads and claims stop there; commands that name more are refused.
TURN_FRAME_BYTES_MAX: Final = 3 << 20
# Entries that one turn looks up one by one, to deliver them again, to claim, release or delete them: each
# costs up to 20 µs where it stands in a cold node of its own. Claims and reads end there; a command that
# names more is refused.
TURN_LOOKUPS_MAX: Final = 500
# Entries that one turn removes one by one: trims with regard to references go on in the next call.
TURN_REMOVALS_MAX: Final = 2_000
# Entries that one turn walks over in search of others, pending or stored: up to 1 µs each.
TURN_SCANNED_MAX: Final = 10_000
# Entries that the plain reads of one turn give together: forwards each costs up to 0.06 µs, backwards more.
TURN_ENTRIES_MAX: Final = 160_000
_BACKWARDS_COST: Final = 4
# Bytes that the plain reads of a transaction give together where they are bounded at all: unpacking a MiB
# takes up to 0.5 ms.
TURN_READ_BYTES_MAX: Final = 16 << 20
# New entries that one turn delivers, and IDs that the commands of a transaction name: each costs up to
# 1.2 µs.
TURN_IDS_MAX: Final = 10_000
# Commands of a transaction, which is one turn: a trim that takes a cold node apart takes up to 40 µs.
TURN_COMMANDS_MAX: Final = 300
# What the commands of a transaction may take together beyond what is counted here, as estimated beforehand:
# one at its limit has room beside short ones.
TURN_WORK_US_MAX: Final = 12_000
# IDs and entries of commands that share a turn, before the next one gets a turn of its own.
_SHARED_IDS_MAX: Final = 2_000
# An ID in the log, with its delivery count.
ID_FRAME_BYTES: Final = 25


class Blocked(msgspec.Struct, frozen=True):
    """A read that found nothing and may wait: the command to run again, every cursor in it resolved.

    Reads with the same `wait_key` all find something or all find nothing; None compares with no other read.
    `streams` are the names of the queues in which it waits: of streams, or of what is on disk of them.
    """

    command: BlockingCommand
    streams: tuple[str, ...]
    block_ms: int
    wait_key: Hashable = None


class Unfinished(msgspec.Struct, frozen=True):
    """One turn was not enough: the command runs again in the next one, which continues from `so_far`."""

    so_far: Any


class Missing(Unfinished, frozen=True):
    """Nothing was done: the command runs again once these runs were read, with all that it looks at in
    `held`.
    """

    runs: Sequence[Run]
    held: HeldRuns


class DirtyTurnError(Exception):
    """A turn failed after it had begun to change the keyspace, which now differs from the log.

    Its cause is what went wrong. Nothing may be served from that keyspace any more.
    """


def _note_change(versions: Versions, record: Record) -> None:
    """Give what the record changes another version."""
    if type(record) is changes.RemoveAll:
        versions.change_all()
    elif not record.is_of_consumers:
        versions.change(getattr(record, "stream", ""))
        if type(record) is changes.RenameStream:
            versions.change(record.target)


def cut_of(name: str, stream: Stream, below: int) -> changes.Cut:
    """The record of a cut, with what is left of the run that it ends in, which is looked into."""
    row = stream.left_below(below) if stream.nodes.runs else None
    return changes.Cut(name, below) if row is None else changes.CutStored(name, below, pack_left([row]))


def removal_of(name: str, stream: Stream, gone: Sequence[int], *, tombstone: bool) -> changes.Remove:
    """The same of single live entries."""
    left = stream.left_without(gone) if stream.nodes.runs else ()
    return (
        changes.RemoveStored(name, gone, tombstone, pack_left(left))
        if left
        else changes.Remove(name, gone, tombstone)
    )


class Look:
    """What a waiting read is looked at with: it changes nothing, and takes a quarter of a turn to make."""

    __slots__ = ("keyspace", "now_ms")

    def __init__(self, keyspace: Keyspace, now_ms: int) -> None:
        self.keyspace = keyspace
        self.now_ms = now_ms


class Turn(Look):
    """One command, or one transaction: one reading of the clock, one frame.

    The rule of order for every command: check all arguments and select what is to be done, which takes its
    cost of the turn and changes nothing; emit, return. Only what selects looks into nodes, by `look`. After
    the first emit nothing raises.
    """

    __slots__ = (
        "_seen_at",
        "_shared_ids",
        "auto_ms",
        "dead_lettered",
        "entries_left",
        "events",
        "expired",
        "expired_count",
        "frame_bytes_left",
        "held",
        "ids_seen",
        "letters_bytes",
        "letters_made",
        "letters_refused",
        "lookups_left",
        "may_continue",
        "missing",
        "read_bytes_left",
        "records",
        "scans_left",
        "signalled",
        "so_far",
        "waits",
    )

    def __init__(
        self,
        keyspace: Keyspace,
        now_ms: int,
        so_far: Any = None,  # noqa: ANN401 - each command has its own
        *,
        may_continue: bool = False,
    ) -> None:
        super().__init__(keyspace, now_ms)
        # What earlier turns of the command left, None in the first; and whether there may be another turn.
        self.so_far = so_far
        self.may_continue = may_continue
        self.records: list[Record] = []
        # What it has looked into, and whether it may wait for what is not in memory.
        self.held: HeldRuns = {}
        self.waits = False
        # By stream, what steps of it would have looked into and was not in memory; None without any.
        self.missing: dict[str, list[Run]] | None = None
        # The consumer seen last, and the index of that record.
        self._seen_at: tuple[str, str, str, int] | None = None
        # Streams whose waiting readers may be served, in the order of their signals.
        self.signalled: dict[str, object] = {}
        # Up to which milliseconds IDs that the engine made have to be promised, -1 if it made none.
        self.auto_ms = -1
        # Dead letters made: stream, group, ID and reason of each.
        self.dead_lettered: list[tuple[str, str, int, str]] = []
        # Entries that were too old to be delivered: stream, group and how many.
        self.expired: list[tuple[str, str, int]] = []
        # Entries that were to be dead letters and could not: stream, group, dead-letter stream and why.
        self.letters_refused: list[tuple[str, str, str, str]] = []
        # What happened, and to which stream, in Redis's words for keyspace events; None if no caller asks.
        self.events: list[tuple[str, str]] | None = [] if keyspace.notifies else None
        # The bytes of entries that become dead letters, and how many entries are too old.
        self.letters_bytes = self.expired_count = 0
        # The streams that they make.
        self.letters_made: set[str] = set()
        self.lookups_left = TURN_LOOKUPS_MAX
        self.scans_left = TURN_SCANNED_MAX
        self.entries_left = TURN_ENTRIES_MAX
        self.read_bytes_left = TURN_READ_BYTES_MAX
        # New entries delivered, and IDs named.
        self.ids_seen = 0
        # What is left for lists of IDs and names.
        self.frame_bytes_left = TURN_FRAME_BYTES_MAX
        # What earlier commands of the turn took of it.
        self._shared_ids = 0

    def look(self, select: Callable[[], T], *, has_begun: bool = False) -> T:
        """What is to be done: the one phase that looks into nodes. Raises NotInMemoryError if it waits for
        the disk, which it may not where the command `has_begun` to change something.
        """
        runs = self.keyspace.runs
        if not runs.files:
            return select()
        refused = len(self.letters_refused)
        try:
            return runs.look(self.held, select, waits=self.waits and not has_begun)
        except Exception:
            del self.letters_refused[refused:]
            raise

    def run(self, steps: Generator[None, None, T]) -> T:
        """Select, then emit. Raises NotInMemoryError if it waits for the disk."""
        try:
            self.look(steps.__next__)
            next(steps)
        except StopIteration as ended:
            return cast("T", ended.value)
        raise AssertionError("a command selects once")

    def step(self, stream: str, steps: Generator[None, None, object]) -> None:
        """The same of one of the things that a turn does; one that waits for the disk is for another turn,
        and noted in `missing`.
        """
        try:
            self.run(steps)
        except NotInMemoryError as missing:
            self.missing = self.missing or {}
            self.missing.setdefault(stream, []).extend(missing.runs)

    def touch(self, streams: Iterable[str]) -> None:
        """Note that these streams were used now."""
        for stream in streams:
            key = self.keyspace.find(stream)
            if key is not None:
                key.used_ms = self.keyspace.moment(self.now_ms)

    def renew(self) -> bool:
        """Begin another command as if it had a turn of its own; False where it needs one, because this turn
        has cost something already.
        """
        self._seen_at = None
        self._shared_ids += (
            (TURN_FRAME_BYTES_MAX - self.frame_bytes_left) // ID_FRAME_BYTES
            + (TURN_ENTRIES_MAX - self.entries_left)
            + self.ids_seen
        )
        self.frame_bytes_left, self.entries_left = TURN_FRAME_BYTES_MAX, TURN_ENTRIES_MAX
        self.read_bytes_left, self.ids_seen = TURN_READ_BYTES_MAX, 0
        return (
            self.lookups_left == TURN_LOOKUPS_MAX
            and self.scans_left == TURN_SCANNED_MAX
            and self._shared_ids < _SHARED_IDS_MAX
            and not self.dead_lettered
            and not self.expired
        )

    def ids_left(self) -> int:
        """How many more entries may be delivered or claimed; one always may."""
        return max(1, self.frame_bytes_left // ID_FRAME_BYTES)

    def count_ids(self, count: int) -> None:
        """Count IDs that were delivered or claimed against the frame."""
        self.frame_bytes_left -= count * ID_FRAME_BYTES

    def deliveries_left(self) -> int:
        """How many more new entries may be delivered; one always may."""
        return max(1, min(self.ids_left(), TURN_IDS_MAX - self.ids_seen))

    def count_delivered(self, count: int) -> None:
        """Count new entries that were delivered."""
        self.ids_seen += count

    def most_entries(self, count: int | None, *, reverse: bool = False) -> int:
        """How many entries a plain read of at most `count` may give; one always may."""
        most = max(1, self.entries_left // (_BACKWARDS_COST if reverse else 1))
        return most if count is None else min(count, most)

    def most_bytes(self, bytes_max: int | None) -> int | None:
        """How many bytes a plain read of at most `bytes_max` may give; None where they are not bounded."""
        return None if bytes_max is None else max(0, min(bytes_max, self.read_bytes_left))

    def count_entries(self, count: int, size: int, *, reverse: bool = False) -> None:
        """Count entries that a plain read gives, `size` bytes together."""
        self.entries_left -= count * (_BACKWARDS_COST if reverse else 1)
        self.read_bytes_left -= size

    def ask_named(self, count: int) -> None:
        """Reserve room for `count` IDs that a command names. What one command may name, its first one says:
        those behind it are refused beyond `TURN_IDS_MAX`.
        """
        if self.ids_seen and self.ids_seen + count > TURN_IDS_MAX:
            raise errors.invalid(
                f"ERR too many IDs: the commands of a transaction name and deliver at most {TURN_IDS_MAX} "
                "together; use several transactions"
            )
        self.ids_seen += count
        self.ask_room(count)

    def count_names(self, records: int, *names: str) -> int:
        """Count emitted records with these names against the frame; return their size in IDs."""
        size = records * sum(len(name.encode()) for name in names)
        self.frame_bytes_left -= size
        return size // ID_FRAME_BYTES

    def ask_room(self, count: int) -> None:
        """Reserve room for `count` IDs that a command will log, or refuse the command."""
        if count * ID_FRAME_BYTES > self.frame_bytes_left:
            most = max(0, self.frame_bytes_left // ID_FRAME_BYTES)
            raise errors.invalid(
                f"ERR too many IDs: this turn has room for {most}, send the others in another"
            )
        self.count_ids(count)

    def ask_lookups(self, count: int) -> None:
        """Reserve `count` look-ups of entries that a command names, or refuse the command."""
        if count > self.lookups_left:
            most = max(0, self.lookups_left)
            raise errors.invalid(
                f"ERR too many IDs: a command or transaction looks up at most {TURN_LOOKUPS_MAX} entries, "
                f"this one has room for {most}; use several"
            )
        self.lookups_left -= count

    def emit(self, record: Record) -> None:
        """Record a change and apply it, in this order: a turn without records has changed nothing."""
        self.emit_quietly(record)
        if self.events is not None and (event := event_of(record)) is not None:
            self.notify(event, getattr(record, "stream", ""))

    def emit_quietly(self, record: Record) -> None:
        """The same; what happened is not noted."""
        before_change = self.keyspace.before_change
        if before_change is not None:
            before_change(getattr(record, "stream", ""))
        self.records.append(record)
        record.apply(self.keyspace)
        if self.keyspace.versions:
            _note_change(self.keyspace.versions, record)

    def signal(self, stream: str) -> None:
        """Wake the reads that wait on `stream`."""
        self.signalled[stream] = None

    def signal_all(self, streams: dict[str, object]) -> None:
        """The same for all of these; the values do not matter. The dict is taken over."""
        streams.update(self.signalled)
        self.signalled = streams

    def notify(self, event: str, stream: str) -> None:
        """Note what happened to a stream, if a caller asks for it and the record does not say it."""
        if self.events is not None:
            self.events.append((event, stream))

    def remove_stream(self, stream: str, event: str) -> None:
        """Remove a stream, and wake the reads that wait on it."""
        if event == "expired":
            self.keyspace.generations.note_end(self.keyspace.keys[stream].generation, "expired")
        self.emit(changes.RemoveStream(stream))
        self.signal(stream)
        self.notify(event, stream)

    def expire(self, stream: str) -> None:
        """Remove the stream if its time is over: no command ever sees one that has expired. One that was used
        meanwhile, and lives on for that, gets its next time.
        """
        key = self.keyspace.find(stream)
        if key is None or not key.is_due(self.now_ms):
            return
        expiry_ms = self.keyspace.expiry_of(key)
        if self.keyspace.has_expired(key, self.now_ms):
            self.remove_stream(stream, "expired")
        elif expiry_ms != key.expires_at_ms:
            self.emit_quietly(changes.SetLifetime(stream, expiry_ms))

    def expect_room(self, streams: int) -> None:
        """Refuse `streams` new streams if the limit leaves no room for them."""
        if streams and self.keyspace.names_taken + streams > self.keyspace.caps.streams_max:
            raise errors.too_many_streams(self.keyspace.caps.streams_max)

    def expect_consumer(self, stream: str, group: str, name: str) -> None:
        """Refuse a consumer that is neither there nor has room."""
        consumers = self.keyspace.keys[stream].groups[group].consumers
        if name not in consumers and len(consumers) >= self.keyspace.caps.consumers_max:
            raise errors.too_many_consumers(group, self.keyspace.caps.consumers_max)

    def create_stream(self, stream: str) -> Key:
        """Create a stream; refused if there are too many."""
        self.expect_room(1)
        settings = self.keyspace.settings
        duration_s, maxsize = settings["stream-idmp-duration"], settings["stream-idmp-maxsize"]
        self.emit(changes.CreateStream(stream, self.keyspace.new_generation(), duration_s, maxsize))
        self.signal(stream)
        return self.keyspace.keys[stream]

    def key(self, stream: str) -> Key:
        """The stream, or `no such key`."""
        key = self.keyspace.find(stream)
        if key is None:
            raise errors.no_such_key(stream)
        return key

    def expect_may_end(self, stream: str, end: str = "close") -> None:
        """Refuse to close the stream, or to delete it, while one of its parts keeps it."""
        key = self.keyspace.find(stream)
        for part in () if key is None else key.parts:
            if (refusal := part.may_end(stream, end)) is not None:
                raise refusal

    def refuse_entries(self, stream: str, key: Key, *, for_good: bool = False) -> EngineError | None:
        """Why the stream takes no entries now, or `for_good`: what one of its parts says."""
        for part in key.parts:
            asked = part.may_refuse and part.is_end >= for_good
            if asked and (refusal := part.may_append(stream, key, self.now_ms)) is not None:
                return refusal
        return None

    def group(self, stream: str, group: str) -> tuple[Key, Group]:
        """Stream and group, or the NOGROUP of the pending commands."""
        key = self.keyspace.find(stream)
        if key is None or group not in key.groups:
            raise errors.no_group(stream, group)
        return key, key.groups[group]

    def see_consumer(self, stream: str, group: str, name: str) -> Consumer:
        """Create the consumer if it is missing, and set its seen time. A caller that emits before this has to
        call `expect_consumer` first.
        """
        self.expect_consumer(stream, group, name)
        consumers = self.keyspace.keys[stream].groups[group].consumers
        consumer = consumers.get(name)
        if consumer is None:
            self.emit(changes.CreateConsumer(stream, group, name, self.now_ms))
        elif consumer.seen_time_ms != self.now_ms:
            self._seen_at = (stream, group, name, len(self.records))
            self.emit(changes.SeeConsumer(stream, group, name, self.now_ms, consumer.active_time_ms))
        return consumers[name]

    def mark_active(self, stream: str, group: str, name: str) -> None:
        """Set the consumer's active time: it got something now."""
        seen = changes.SeeConsumer(stream, group, name, self.now_ms, self.now_ms)
        if self._seen_at is not None and self._seen_at[:3] == (stream, group, name):
            # It was seen in this turn already: the later record contains that.
            del self.records[self._seen_at[3]]
        self._seen_at = None
        self.emit(seen)

    def move_group(self, stream: str, name: str, last_delivered_id: int, entries_read: int | None) -> None:
        """Set the group's position, if that changes it."""
        group = self.keyspace.keys[stream].groups[name]
        if (group.last_delivered_id, group.entries_read) != (last_delivered_id, entries_read):
            self.emit(changes.MoveGroup(stream, name, last_delivered_id, entries_read))

    def create_group(self, stream: str, name: str, start: int, entries_read: int | None) -> None:
        """Create a group that reads after `start`; refused if the stream has too many."""
        if len(self.keyspace.keys[stream].groups) >= self.keyspace.caps.groups_max:
            raise errors.too_many_groups(stream, self.keyspace.caps.groups_max)
        self.emit(changes.CreateGroup(stream, name, start, entries_read))

    def settle(self, stream: str, group: str, ids: list[int]) -> None:
        """Take entries off a group's pending list."""
        if ids:
            self.emit(changes.Settle(stream, group, ids))
            self.signal_settled(stream, group)

    def signal_settled(self, stream: str, group: str) -> None:
        """Wake the reads that end with the last pending entry of a closed stream, and those that get what
        stood behind others.
        """
        key = self.keyspace.keys[stream]
        held = key.groups[group]
        is_drained = key.parts and Closed.of(key) is not None and not held.pending
        if is_drained or (held.parts and held.passed_over):
            self.signal(stream)
