"""Limits that settings put on entries, reads and Redis commands.

Knows: their names and units. Must never know: who enforces them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

import msgspec

from app.settings import Settings
from engine import SLOW_TURN_S
from engine.commands import types
from engine.commands.base import Command
from engine.commands.schedule_commands import DescribeSchedule, ListSchedules, PauseSchedule
from engine.commands.weir_commands import Plan, StreamInfos
from engine.errors import EngineError
from engine.replies import (
    Archived,
    AutoClaimed,
    Claimed,
    Entries,
    GroupRead,
    Listing,
    Measured,
    MetadataPage,
    PendingList,
    PendingSummary,
    Planned,
    Reply,
    ScheduleInfo,
    SchedulePage,
    ScheduleSet,
    StreamDetail,
    StreamInfo,
    StreamPage,
    StreamsRead,
    by_type,
)

# Maximum words of a command besides fields, streams and IDs.
_OPTIONS_MAX: Final = 64
# A row of a list that has no entries: names of 512 bytes, written with escapes.
_ROW_BYTES_MAX: Final = 4 << 10
# What a row takes beside its names, and an ID with its quotes.
_ROW_BYTES: Final = 200
_ID_BYTES: Final = 44
# A name, and what a command says of the stream.
_NAMED_BYTES: Final = 1 << 10
_NAMES: Final = ("name", "dead_letter_stream")
# Turns that SLOWLOG remembers: as Redis's slowlog-max-len by default.
SLOW_TURNS_MAX: Final = 128


class _Row(NamedTuple):
    """Rows of a reply: the field of its command that bounds their number, and the entries in each."""

    number: str
    entries: int


# A command without the field has one row: a stream with its first and its last entry, or a schedule.
_ROWS: Final[Mapping[type[Command], _Row]] = {
    DescribeSchedule: _Row("", 1),
    ListSchedules: _Row("limit", 1),
    PauseSchedule: _Row("", 1),
    types.ListStreams: _Row("limit", 0),
    StreamInfos: _Row("limit", 2),
    types.XInfoStream: _Row("", 2),
    types.XPendingRange: _Row("count", 0),
}


class EntryLimits(msgspec.Struct, frozen=True):
    """Limits of one body: entries, bytes of a stored entry, fields of an entry, levels of JSON. `nested`:
    whether values that are objects, lists or null are stored, as their JSON text; `later`: whether an
    entry may say when it is appended.
    """

    entries_max: int
    entry_bytes_max: int
    fields_max: int
    depth_max: int
    nested: bool = False
    later: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As set."""
        return cls(
            entries_max=settings.batch_entries_max,
            entry_bytes_max=settings.entry_bytes_max,
            fields_max=settings.entry_fields_max,
            depth_max=settings.json_depth_max,
        )


class ReadLimits(msgspec.Struct, frozen=True):
    """Limits of one response with entries, and of the time that a read may wait for them."""

    count_default: int
    count_max: int
    bytes_max: int
    wait_ms_max: int

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As set."""
        return cls(
            count_default=min(settings.count_default, settings.count_max),
            count_max=settings.count_max,
            bytes_max=settings.answer_bytes_max,
            wait_ms_max=settings.wait_ms_max,
        )


class CommandLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one Redis command and its reply, named like the settings; `rows_max` is `count_max`.

    `config` is what CONFIG GET shows of the gateway: Redis's names and values.
    """

    entry_bytes_max: int
    entry_fields_max: int
    ids_max: int
    lookups_max: int
    request_streams_max: int
    rows_max: int
    answer_bytes_max: int
    config: Sequence[tuple[str, int | str]] = ()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As set."""
        named = {
            name: getattr(settings, name) for name in set(cls.__struct_fields__) - {"config", "rows_max"}
        }
        return cls(config=_redis_config(settings), rows_max=settings.count_max, **named)

    def answer_bound(self, commands: Sequence[Command]) -> int:
        """The most bytes that these commands answer together, but short replies."""
        return sum([self._bound(command) for command in commands if command.has_long_reply()])

    def _bound(self, command: Command) -> int:
        most, row_bytes, rows = self.answer_bytes_max, self.entry_bytes_max, None
        if isinstance(command, types.XInfoStreamFull):
            # Its entries, and as much again for groups, consumers and what is pending.
            return 2 * most
        if isinstance(command, Plan):
            # It knows no limit of bytes.
            return len(command.streams) * (_ROW_BYTES_MAX + command.parts * _ID_BYTES)
        row = by_type(_ROWS, command)
        if row is not None:
            rows, row_bytes = getattr(command, row.number, 1), _ROW_BYTES_MAX + row.entries * row_bytes
        elif isinstance(command, types.XRange | types.BoundedRead | types.XAutoClaim | types.XClaim):
            most = min(most, command.bytes_max or most)
            rows = len(command.named_ids()) if isinstance(command, types.XClaim) else command.count
            if isinstance(command, types.BoundedRead):
                most = self._bound_of_all(command, most)
        if rows is None:
            return most
        return min(most, max(0, rows) * max(1, len(command.named_streams() or ())) * row_bytes)

    def _bound_of_all(self, command: types.BoundedRead, most: int) -> int:
        """The most bytes of all its streams together, as the caller wants them; one entry is always given."""
        if command.count_total is not None:
            most = min(most, command.count_total * self.entry_bytes_max)
        if command.bytes_total is not None:
            most = min(most, max(command.bytes_total, self.entry_bytes_max))
        return most

    @property
    def command_bytes_max(self) -> int:
        """Maximum bytes of all words of a command together: an entry, IDs, and streams with their cursors."""
        return self.entry_bytes_max + self.ids_max * _ID_BYTES + self.request_streams_max * _NAMED_BYTES

    @property
    def words_max(self) -> int:
        """Maximum words of a command, which follows from the other limits."""
        return 2 * max(self.entry_fields_max, self.request_streams_max) + self.ids_max + _OPTIONS_MAX


def _redis_config(settings: Settings) -> list[tuple[str, int | str]]:
    """The settings of Redis that programs ask for, as they are here."""
    return [
        ("appendfsync", settings.fsync),
        ("appendonly", "yes"),
        ("cluster-enabled", "no"),
        ("databases", 1),
        ("latency-monitor-threshold", 0),
        ("maxclients", settings.sockets_max),
        ("maxmemory-policy", "noeviction"),
        # Those of streams, without being asked for.
        ("notify-keyspace-events", "gxtnKE"),
        ("port", settings.resp.port if settings.resp else 0),
        ("proto-max-bulk-len", settings.body_bytes_max),
        ("save", ""),
        ("slowlog-log-slower-than", round(SLOW_TURN_S * 1_000_000)),
        ("slowlog-max-len", SLOW_TURNS_MAX),
        ("timeout", 0),
    ]


def text_bytes(reply: Reply | EngineError) -> int:
    """About how many bytes a reply takes, by the text in it; 0 for those that are always short."""
    size = by_type(TEXT_SIZES, reply)
    return 0 if size is None else size(reply)


def entries_in(reply: Reply) -> int:
    """How many entries a reply brings to a reader; claims of IDs alone bring none."""
    kind: type = type(reply)
    count = _count_of(kind)
    return 0 if count is None else count(reply)


@cache
def _count_of(kind: type) -> Callable[[Any], int] | None:
    """How the entries of such a reply are counted."""
    return next((_COUNTS[one] for one in kind.__mro__ if one in _COUNTS), None)


def _text_in_claim(reply: Any) -> int:  # noqa: ANN401 - one of two types
    return sum(len(entry.text or b"") for entry in reply.entries)


def _count_in_claim(reply: Any) -> int:  # noqa: ANN401 - one of two types
    return len(reply.entries) if reply.entries and reply.entries[0].text is not None else 0


def _pending_bytes(rows: Iterable[Any]) -> int:
    return sum([len(row.consumer or "") + _ROW_BYTES for row in rows])


def _named_bytes(rows: Iterable[Any]) -> int:
    return sum([len(row.name) + _ROW_BYTES for row in rows])


def _list_bytes(rows: Sequence[Any]) -> int:
    """Of groups, consumers, or what was found of a group on each stream."""
    names = [name for row in rows for field in _NAMES if (name := getattr(row, field, None)) is not None]
    return _ROW_BYTES * len(rows) + sum(map(len, names))


def _detail_bytes(detail: Any) -> int:  # noqa: ANN401 - as the table has it
    size: int = detail.stream.entries_bytes + text_bytes(detail.entries)
    for group in detail.groups:
        rows = len(group.pending) + sum([len(consumer.pending) for consumer in group.consumers])
        size += _ROW_BYTES * (1 + rows) + _named_bytes(group.consumers)
    return size


TEXT_SIZES: Final[Mapping[type, Callable[[Any], int]]] = {
    Archived: lambda reply: _ID_BYTES * len(reply.deleted),
    Listing: lambda reply: sum(map(len, reply.names)),
    Measured: lambda reply: (
        _named_bytes(reply.streams) + sum([_named_bytes(stream.groups) for stream in reply.streams])
    ),
    MetadataPage: lambda reply: sum([len(name) + len(value) for name, value in reply.values]),
    PendingList: lambda reply: _pending_bytes(reply.entries),
    PendingSummary: lambda reply: sum([len(name) + _ROW_BYTES for name, _ in reply.consumers]),
    Planned: lambda reply: sum(
        [len(one.stream) + _ROW_BYTES + _ID_BYTES * len(one.cuts) for one in reply.streams]
        + [len(one.stream) + _ROW_BYTES for one in reply.previous]
    ),
    ScheduleInfo: lambda reply: len(reply.body),
    ScheduleSet: lambda reply: len(reply.schedule.body),
    SchedulePage: lambda reply: _named_bytes(reply.schedules) + sum(map(text_bytes, reply.schedules)),
    StreamDetail: _detail_bytes,
    StreamInfo: lambda reply: reply.entries_bytes,
    StreamPage: lambda reply: sum(
        [len(name) + _ROW_BYTES + info.entries_bytes for name, info in reply.streams]
    ),
    list: _list_bytes,
    Entries: lambda reply: sum(map(len, reply.parts)),
    StreamsRead: lambda reply: sum(len(part) for read in reply.streams for part in read.entries.parts),
    GroupRead: lambda reply: sum(
        [len(entry.text or b"") for read in reply.streams for entry in read.entries]
    ),
    Claimed: _text_in_claim,
    AutoClaimed: _text_in_claim,
}
_COUNTS: Final[Mapping[type, Callable[[Any], int]]] = {
    Entries: attrgetter("count"),
    StreamsRead: lambda reply: sum([stream.entries.count for stream in reply.streams]),
    GroupRead: lambda reply: sum([len(stream.entries) for stream in reply.streams]),
    Claimed: _count_in_claim,
    AutoClaimed: _count_in_claim,
}
