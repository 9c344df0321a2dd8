"""What a capability of a stream is to everything that walks over streams.

Knows: the hooks. Must never know: any capability.

    StreamPart   what one stream has of it: most streams have none; `engine.groups` has that of a group
    PartIndex    what the keyspace keeps of all of them

Keyspace, copying, snapshot, memory, guards and due times loop over parts, and know none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar

from engine.capability import Capability
from engine.errors import EngineError
from engine.garbage import Garbage
from engine.groups import Group
from engine.lifetimes import DueTimes
from engine.memory import Footprint
from engine.record import Record
from engine.stream import Stream

P = TypeVar("P", bound="StreamPart")


class StreamPart(Capability):
    """What one stream has of a capability. Ranks below 30 stand before its lifetime in a snapshot."""

    __slots__ = ()

    # Whether it goes when the stream is closed; and whether entries that it refuses are refused for good.
    ends_with_stream: ClassVar[bool] = False
    is_end: ClassVar[bool] = False
    # Whether it may refuse entries: what many streams have, and never does, is not asked for each.
    may_refuse: ClassVar[bool] = True
    # Its refusals that a server says by their code, with the words of each: over a backend a script refuses.
    refusals: ClassVar[Mapping[str, Callable[..., EngineError]]] = {}

    @classmethod
    def new_index(cls) -> "PartIndex":
        """The index of an empty keyspace."""
        return PartIndex()

    @property
    def lives_on_ms(self) -> int | None:
        """For how long the stream lives on after each use, None where it does not for this."""
        return None

    @property
    def is_archived(self) -> bool:
        """Whether a part of the stream is kept elsewhere."""
        return False

    def copy(self) -> Self | None:
        """What a copy of the stream has of it."""
        return None

    def begin_fork(self) -> Self | None:
        """What a fork of the stream has of it from its first entry on: the record of the fork makes it."""
        return None

    def fork(self, stream: str) -> Sequence[Record]:
        """The records that give a fork what it has only behind its first entries, such as a lock."""
        return ()

    def renamed(self, keyspace: "Streams", name: str) -> None:
        """The stream has another name."""

    def note_deleted(self, key: "Holder", gone: Sequence[int]) -> None:
        """Entries were deleted, in the order of IDs."""

    def keeps(self, key: "Holder") -> bool:
        """Whether it keeps the stream though its time is over."""
        return False

    def regenerate(self, renew: Callable[[str], str]) -> None:
        """All generations are other ones."""

    def before(self, stream: str) -> Sequence[Record]:
        """The records of a snapshot that stand before the nodes of the stream: few."""
        return ()

    def behind(self, stream: str) -> Iterable[Record]:
        """Those behind its keys. They say what is so now, and are made when they are read."""
        return ()

    def may_hold(self, bodies: Sequence[bytes]) -> EngineError | None:
        """Why entries like these are never in the stream. Asked before a repetition is looked for."""
        return None

    def may_append(self, name: str, key: "Holder", now_ms: int) -> EngineError | None:
        """Why the stream takes no entries now. Asked after a repetition was answered."""
        return None

    def may_end(self, name: str, end: str) -> EngineError | None:
        """Why the stream is not closed, or not deleted, as `end` says."""
        return None

    def check(self) -> None:
        """Assert what must hold."""


class PartIndex:
    """What the keyspace keeps of all streams with a part: how many there are."""

    __slots__ = ("streams",)

    def __init__(self) -> None:
        self.streams = 0

    def enter(self, name: str, part: Any) -> None:  # noqa: ANN401 - each has its own
        """A stream has it from here on."""
        self.streams += 1

    def leave(self, name: str, part: Any) -> None:  # noqa: ANN401 - as above
        """The stream is without it: by another record, or by its own end or name. When it was to be looked
        at is known until the stream is gone: the look finds nothing.
        """
        self.streams -= 1

    def lose(self, part: Any) -> None:  # noqa: ANN401 - as above
        """It has gone with the end of its stream; `leave` comes too."""

    def clear(self) -> None:
        """All streams have ended."""
        self.streams = 0

    def check(self, parts: Mapping[str, Any]) -> None:
        """Assert that it is what the streams have."""
        assert self.streams == len(parts), "each stream with the part is counted"


class Holder(Protocol):
    """A stream with all that hangs on it."""

    stream: Stream
    # When it is removed, by the wall clock; None for never.
    expires_at_ms: int | None
    # In the order of their ranks.
    parts: tuple[StreamPart, ...]
    groups: Mapping[str, Group]

    @property
    def generation(self) -> str:
        """Which of the streams that had this name it is."""

    @property
    def footprint(self) -> Footprint:
        """How much memory it takes, kept."""


class Streams(Protocol):
    """The keyspace, as a record of a part sees it."""

    indexes: dict[type[StreamPart], Any]
    # Of parts of streams and groups in which something falls due, when to look at which stream.
    due_times: dict[type[Capability], DueTimes]
    garbage: Garbage
    # Streams that time changes.
    maintained: dict[str, None]

    @property
    def keys(self) -> Mapping[str, Holder]:
        """All streams."""

    def put_part(self, name: str, part: P) -> P:
        """Give a stream what it has of a part in the place of what it had."""

    def drop_part(self, name: str, kind: type[StreamPart]) -> None:
        """Take that away."""

    def expire_at(self, name: str, at_ms: int | None) -> None:
        """Let a stream expire at that time; None for never."""

    def forget_published(self, count: int) -> None:
        """Drop the oldest answers of publications into many streams."""

    def end(self, name: str) -> None:
        """Take away all that goes with the end of a stream."""


class counted:  # noqa: N801 - used as a function is
    """The group, while its memory changes: by how much, is counted."""

    __slots__ = ("_before", "_footprint", "_group")

    def __init__(self, keyspace: Streams, stream: str, group: str) -> None:
        key = keyspace.keys[stream]
        self._footprint, self._group = key.footprint, key.groups[group]
        self._before = self._group.kept_bytes

    def __enter__(self) -> Group:
        return self._group

    def __exit__(self, *_: object) -> None:
        self._footprint.add(self._group.kept_bytes - self._before)
