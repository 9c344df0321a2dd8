"""Name → stream, with all that hangs on it; settings; an integrity check that walks everything.

Knows: which streams there are and what belongs to one.
Must never know: commands, waiting readers, the log.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from secrets import token_bytes
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from engine.capability import Capability
from engine.dedup import PUBLISHED, IdempotentPublishReply, Producers
from engine.forks import Forks
from engine.garbage import Garbage
from engine.generations import GENERATION_BYTES, Generations, Identity
from engine.groups import Group
from engine.lifetimes import DueTimes, Lifetimes
from engine.memory import (
    STREAM_BYTES,
    Footprint,
    Memory,
    Total,
)
from engine.names import SortedNames
from engine.nodes import Text
from engine.parts import GROUP_PARTS, PARTS
from engine.parts.idempotence import DURATION_S_DEFAULT, MAXSIZE_DEFAULT
from engine.parts.part import P, PartIndex, StreamPart
from engine.quotas import QuotaCounts
from engine.replies import PreviousStream
from engine.runs import Runs
from engine.sealed import DecodedNodeCache
from engine.stream import NodeLimits, Stream
from engine.versions import Versions

# Weir's own bytes a node may hold for each byte that Redis allows: JSON repeats what a listpack leaves out.
_NODE_BYTES_FACTOR: Final = 16
# By how much it may seem longer ago that a stream was used.
_MOMENT_MS: Final = 100

SETTINGS_DEFAULT: Final = {
    "stream-idmp-duration": DURATION_S_DEFAULT,
    "stream-idmp-maxsize": MAXSIZE_DEFAULT,
    "stream-node-max-bytes": 4096,
    "stream-node-max-entries": 100,
}


class Caps(NamedTuple):
    """How many there may be: of streams, of groups in a stream, of consumers in a group, of schedules in all
    and in a stream; and how much memory all of it may take, None for any. Above the soft limit cold entries
    go to files.

    Clients name them, and each costs memory for good. What a log holds beyond them is kept: they concern
    what comes into being.
    """

    streams_max: int = 100_000
    groups_max: int = 1_000
    consumers_max: int = 10_000
    memory_bytes_max: int | None = None
    schedules_max: int = 1_000_000
    stream_schedules_max: int = 100_000
    memory_bytes_soft: int | None = None


CAPS_DEFAULT: Final = Caps()


# What has no groups.
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Key(msgspec.Struct, gc=False, eq=False):
    """A stream with its groups and parts. `generation` is new with each creation.

    What most streams do not have is one for all of them until it is written: `own_` gives what may be.
    The collector passes a key over: nothing that it holds leads back to it.
    """

    # In bytes, where it is sixteen digits as the gateway makes them: that takes half the memory.
    _generation: str | bytes
    stream: Stream = msgspec.field(default_factory=Stream)
    groups: Mapping[str, Group] = _NOTHING
    # When it is removed, by the wall clock; None for never.
    expires_at_ms: int | None = None
    # What it has of each part, in the order of their ranks.
    parts: tuple[StreamPart, ...] = ()
    # When a command last named it, a `Keyspace.moment`; 0 if none has since the start.
    used_ms: int = 0

    def __post_init__(self) -> None:
        of_parts = sum([part.kept_bytes for part in self.parts]) if self.parts else 0
        self.stream.footprint.add(STREAM_BYTES + of_parts)
        if isinstance(self._generation, str):
            self.generation = self._generation

    @property
    def generation(self) -> str:
        """Which of the streams that had this name it is."""
        kept = self._generation
        return kept if isinstance(kept, str) else kept.hex()

    @generation.setter
    def generation(self, generation: str) -> None:
        try:
            packed = bytes.fromhex(generation)
        except ValueError:
            self._generation = generation
        else:
            self._generation = packed if packed.hex() == generation else generation

    @property
    def footprint(self) -> Footprint:
        """How much memory it takes, kept."""
        return self.stream.footprint

    @property
    def is_archived(self) -> bool:
        """Whether somebody elsewhere may ask for it once it is gone."""
        return any(part.is_archived for part in self.parts)

    def own_groups(self) -> dict[str, Group]:
        """The groups, to add to."""
        if not isinstance(self.groups, dict):
            self.groups = {}
        return self.groups

    @property
    def had_group(self) -> bool:
        """Whether it has or had a group: what these leave behind is a mapping of its own, empty or not."""
        return self.groups is not _NOTHING

    def is_due(self, now_ms: int) -> bool:
        """Whether its lifetime is to be looked at."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    def due_ms(self, kind: type[Capability]) -> int | None:
        """When something of a part of this kind falls due first, in it or in its groups."""
        held = [kind.of(self), *(kind.of(group) for group in self.groups.values())]
        times_ms = [part.due_ms for part in held if part is not None]
        return min((at_ms for at_ms in times_ms if at_ms is not None), default=None)

    @property
    def identity(self) -> Identity:
        """What positions are compared with."""
        stream = self.stream
        was_filled = bool(stream.last_id or stream.entries_added)
        return Identity(self.generation, stream.first_id, stream.last_id, was_filled)

    def garbage(self) -> list[object]:
        """What is large in a key that was removed."""
        own = [self.groups, self.stream.nodes]
        return [one for one in own if one] + [one for part in self.parts for one in part.garbage()]

    @property
    def footprint_bytes(self) -> int:
        """How much memory the stream takes with all that hangs on it, counted anew."""
        groups_bytes = sum(group.footprint_bytes for group in self.groups.values())
        parts_bytes = sum(part.footprint_bytes for part in self.parts)
        return STREAM_BYTES + self.stream.footprint_bytes + groups_bytes + parts_bytes


def _new_generation() -> str:
    return token_bytes(GENERATION_BYTES).hex()


def _no_readers(_: str) -> Collection[tuple[str, str]]:
    return ()


class Keyspace:
    """All streams. `new_generation` gives the random part of a new stream."""

    def __init__(
        self, new_generation: Callable[[], str] = _new_generation, *, caps: Caps = CAPS_DEFAULT
    ) -> None:
        self.new_generation = new_generation
        self.caps = caps
        self.keys: dict[str, Key] = {}
        self.settings = dict(SETTINGS_DEFAULT)
        # Values that the gateway keeps beside the streams, by name: it alone knows what they mean.
        self.metadata: dict[str, bytes] = {}
        self.memory = Memory(caps.memory_bytes_max, caps.memory_bytes_soft)
        self.producers = Producers(self.memory.shared)
        self._names = SortedNames()
        self.quotas = QuotaCounts(self._names, lambda name: self.keys[name].footprint)
        # IDs made by the clock stay above this: one below may have been shown before a crash and lost in it.
        self.floor_ms = -1
        # Entries appended since the keyspace was made, those that were read from the log among them.
        self.appended = 0
        # Streams that time changes: with retention, policies, producers' keys or answers under keys.
        self.maintained: dict[str, None] = {}
        self.lifetimes = Lifetimes()
        self.forks = Forks()
        # What is kept of all streams with a part; of parts in which something falls due, when to look at
        # which stream.
        self.indexes: dict[type[StreamPart], PartIndex] = {kind: kind.new_index() for kind in PARTS}
        kinds: tuple[type[Capability], ...] = (*PARTS, *GROUP_PARTS)
        self.due_times = {kind: DueTimes() for kind in kinds if kind.falls_due}
        self._moment_ms = 0
        self.generations = Generations()
        self.versions = Versions()
        # When commands began to run: no stream counts as unused for longer.
        self.opened_ms = 0
        # Those of them that have still to be looked at in this round of housekeeping; some may be gone.
        self.round: deque[str] = deque()
        # What was published into many streams under an idempotency key, oldest first.
        self.answers: dict[str, IdempotentPublishReply] = {}
        # Whether turns note what happens to which stream.
        self.notifies = False
        # Called with a stream's name before it changes, for a snapshot that has yet to read it.
        self.before_change: Callable[[str], None] | None = None
        # Returns the lowest ID of a stream that a crash may take back; set by the writer of the log.
        self.unsynced_from: Callable[[str], int] | None = None
        # The consumers of a stream, as (group, name), that are connected or wait for entries.
        self.readers: Callable[[str], Collection[tuple[str, str]]] = _no_readers
        # What was removed, to be freed bit by bit.
        self.garbage = Garbage(self.memory.garbage)
        # Texts that wait to be compressed.
        self.cold: list[Text] = []
        # All names in order.
        self._is_loading = False
        # Shared by all streams.
        self._node_cache = DecodedNodeCache(caps.memory_bytes_max)

    def moment(self, now_ms: int) -> int:
        """This time, or one shortly before: streams that are used at about the same time share one integer,
        which costs as much memory as four fields.
        """
        if not 0 <= now_ms - self._moment_ms < _MOMENT_MS:
            self._moment_ms = now_ms
        return self._moment_ms

    def find(self, name: str) -> Key | None:
        """The stream of that name."""
        return self.keys.get(name)

    def create(self, name: str, key: Key) -> None:
        """Enter a new stream."""
        assert name not in self.keys, "the command has looked for it"
        if not self._is_loading:
            self._names.add(name)
        self.forks.take(name)
        self.keys[name] = key
        key.footprint.join(self.memory.streams)
        key.stream.node_cache = self._node_cache
        key.stream.nodes.enter(self.runs)
        self.quotas.enter(name)
        if key.expires_at_ms is not None:
            self.lifetimes.add(name, key.expires_at_ms)
        for part in key.parts:
            self.indexes[type(part)].enter(name, part)
        for kind, times in self.due_times.items() if key.parts or key.groups else ():
            times.hasten(name, key.due_ms(kind))

    def remove(self, name: str) -> None:
        """Take a stream out, with all that hangs on it."""
        key = self._take_out(name)
        for part in key.parts:
            self.indexes[type(part)].lose(part)
        self.forks.remove(name)
        self.garbage.add(key, key.footprint.bytes)

    def rename(self, name: str, target: str) -> Key:
        """Give a stream another name, which no stream has."""
        maintained = name in self.maintained
        key = self._take_out(name)
        self.create(target, key)
        self.forks.rename(name, target)
        if maintained:
            self.maintained[target] = None
        return key

    def _take_out(self, name: str) -> Key:
        key = self.keys.pop(name)
        self._note_previous(name, key)
        self._drop_lifetime(name, key)
        for part in key.parts:
            self.indexes[type(part)].leave(name, part)
        for times in self.due_times.values():
            times.replace(name, None)
        key.footprint.leave_all()
        key.stream.nodes.leave()
        self.maintained.pop(name, None)
        if not self._is_loading:
            self._names.remove(name)
        return key

    def _note_previous(self, name: str, key: Key) -> None:
        """An archive may ask for a stream that ends. One that was never archived matters where one before it
        was: its entries are lost. Without any it changes nothing.
        """
        last_id, generations = key.stream.last_id, self.generations
        if last_id and (key.is_archived or name in generations.previous):
            generations.note_previous(PreviousStream(name, key.generation, last_id))

    def begin_loading(self) -> None:
        """Many records are about to be applied: the order of names is made at the end, once for all."""
        self._is_loading = True

    def end_loading(self) -> None:
        """Everything is as if each record had been applied by itself."""
        self._is_loading = False
        self._names.replace(sorted(self.keys))

    def put_part(self, name: str, part: P) -> P:
        """Give a stream what it has of a part in the place of what it had."""
        key, kind = self.keys[name], type(part)
        if kind.of(key) is not None:
            self.drop_part(name, kind)
        key.parts = tuple(sorted([*key.parts, part], key=attrgetter("rank")))
        key.footprint.add(part.kept_bytes)
        self.indexes[kind].enter(name, part)
        if kind.falls_due:
            self.due_times[kind].hasten(name, part.due_ms)
        return part

    def drop_part(self, name: str, kind: type[StreamPart]) -> None:
        """Take that away."""
        key = self.keys[name]
        part = kind.of(key)
        assert part is not None, "the command has looked"
        key.parts = tuple(one for one in key.parts if one is not part)
        key.footprint.add(-part.kept_bytes)
        self.indexes[kind].leave(name, part)
        if part.garbage():
            self.garbage.add(part, part.kept_bytes)

    def end(self, name: str) -> None:
        """Take away all that goes with the end of a stream."""
        for part in self.keys[name].parts:
            if part.ends_with_stream:
                self.indexes[type(part)].lose(part)
                self.drop_part(name, type(part))

    def expire_at(self, name: str, at_ms: int | None) -> None:
        """Let a stream expire at that time; None for never."""
        key = self.keys[name]
        self._drop_lifetime(name, key)
        key.expires_at_ms = at_ms
        if at_ms is not None:
            self.lifetimes.add(name, at_ms)

    def expiry_of(self, key: Key) -> int | None:
        """When a stream expires unless it is used again; None for never."""
        ttl_ms = next((ms for part in key.parts if (ms := part.lives_on_ms) is not None), None)
        if key.expires_at_ms is None or ttl_ms is None:
            return key.expires_at_ms
        return max(key.expires_at_ms, max(key.used_ms + _MOMENT_MS, self.opened_ms) + ttl_ms)

    def has_expired(self, key: Key, now_ms: int) -> bool:
        """Whether its time is over, and none of its parts keeps it."""
        expiry_ms = self.expiry_of(key) if key.is_due(now_ms) else None
        return expiry_ms is not None and expiry_ms <= now_ms and not any(one.keeps(key) for one in key.parts)

    def _drop_lifetime(self, name: str, key: Key) -> None:
        if key.expires_at_ms is not None:
            self.lifetimes.discard(name, key.expires_at_ms)

    def clear(self) -> None:
        """Take all streams out, and forget what was published into many: a repetition of it is news again."""
        archived = {name for name, key in self.keys.items() if key.is_archived}
        for name in sorted(archived | (self.keys.keys() & self.generations.previous.keys())):
            self._note_previous(name, self.keys[name])
        self.producers.clear()
        self.memory.shared.add(-self.memory.shared.bytes)
        self.answers.clear()
        self.garbage.add(self.keys, self.memory.streams.bytes)
        self.memory.streams = Total()
        self.runs.clear()
        self.quotas.clear()
        self.keys = {}
        self.maintained.clear()
        self.lifetimes.clear()
        self.forks.clear()
        for index in self.indexes.values():
            index.clear()
        for times in self.due_times.values():
            times.clear()
        self.round.clear()
        self._names.replace([])
        self.cold.clear()

    def forget_published(self, count: int) -> None:
        """Drop the oldest answers of publications into many streams."""
        self.memory.shared.add(PUBLISHED.forget(self.answers, count))

    def free_some(self) -> bool:
        """Free a part of what was removed; whether there is more that may be freed now. What a snapshot has
        still to read stays.
        """
        return self.before_change is None and self.garbage.free_some()

    def free_all(self) -> None:
        """Free everything, once nothing uses it. Takes long: run it in a thread of its own."""
        self.clear()
        while self.garbage.free_some():
            pass

    @property
    def runs(self) -> Runs:
        """What of all streams is in files."""
        return self._node_cache.runs

    @property
    def names_taken(self) -> int:
        """How many streams there are, and names of removed ones that have forks."""
        return len(self.keys) + len(self.forks.hidden)

    def names(self, *, prefix: str = "", after: str | None = None, limit: int | None = None) -> list[str]:
        """The names that start with `prefix`, above `after`, in order; at most `limit`."""
        return self._names.page(prefix, after, limit)

    def names_around(self, at: float, *, prefix: str = "", limit: int | None = None) -> list[str]:
        """The same, from this part of them on (0 to 1), and at their end from the first."""
        return self._names.around(at, prefix, limit)

    def node_limits(self) -> NodeLimits:
        """When nodes seal, by the settings of now."""
        bytes_max = self.settings["stream-node-max-bytes"] * _NODE_BYTES_FACTOR
        return NodeLimits(self.settings["stream-node-max-entries"], bytes_max)

    def check(self) -> None:
        """Assert everything that must hold, in every stream and group."""
        assert self.names() == sorted(self.keys), "the order of names holds each name once"
        assert all(self.keys[name].expires_at_ms == at_ms for name, at_ms in self.lifetimes.items()), (
            "a lifetime is that of its stream"
        )
        timed = {name for name, key in self.keys.items() if key.expires_at_ms is not None}
        named = [name for name, _ in self.lifetimes.items()]
        assert len(self.lifetimes) == len(named) == len(set(named)), "each lifetime is there once"
        assert timed - set(named) <= self.maintained.keys(), "a stream that outlives its time is looked at"
        for kind, times in self.due_times.items():
            times.check({name: key.due_ms(kind) for name, key in self.keys.items()}, self.keys)
        for part_kind, index in self.indexes.items():
            parts = ((name, part_kind.of(key)) for name, key in self.keys.items())
            index.check({name: part for name, part in parts if part is not None})
        self.producers.check()
        self.forks.check()
        assert self.keys.keys().isdisjoint(self.forks.hidden), "a name is hidden while no stream has it"
        answers_bytes = sum(answer.footprint_bytes for answer in self.answers.values())
        assert self.memory.shared.bytes == self.producers.footprint_bytes + answers_bytes, (
            "the memory of what belongs to no stream is that of its parts"
        )
        streams_bytes = sum(key.footprint_bytes for key in self.keys.values())
        assert self.memory.streams.bytes == streams_bytes, "the memory of all streams is that of their parts"
        self.quotas.check()
        for key in self.keys.values():
            assert key.footprint.bytes == key.footprint_bytes, "a stream's memory is that of its parts"
            key.stream.check()
            for part in key.parts:
                part.check()
            for group in key.groups.values():
                group.check()
