"""DEL, EXISTS, TYPE, RENAME, COPY, listing, FLUSHALL and CONFIG: the keyspace as a whole.

Knows: names, Redis's order of checks, how much one turn copies, and the settings with their bounds.
Must never know: what is in a stream, wire formats.

A stream that comes to a name is a new generation there, as after a deletion: readers of both names are woken.
"""

import re
from typing import Final

from engine import errors
from engine.commands import types
from engine.commands.introspection import expect
from engine.commands.registry import Steps, count_dropped, dropped_of, ends_streams, runs
from engine.commands.turn import Turn
from engine.copying import copy_cost
from engine.names import SortedNames
from engine.parts.schedules import ScheduleIndex
from engine.records.changes import Configure, CopyStream, RemoveAll, RemoveStream, RenameStream
from engine.replies import Dropped, Listing, NamedValues, Presence

_BOUNDS: Final = {
    "stream-idmp-duration": (1, 86_400),
    "stream-idmp-maxsize": (1, 10_000),
    "stream-node-max-bytes": (0, 1 << 30),
    "stream-node-max-entries": (0, (1 << 63) - 1),
}


_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
# What one turn copies, in nodes of 100 entries: up to 10 µs each.
COPY_COST_MAX: Final = 1_500


@runs(types.Delete)
def delete(turn: Turn, command: types.Delete) -> Steps[int | Dropped]:
    names = [name for name in dict.fromkeys(command.streams) if name in turn.keyspace.keys]
    for name in names:
        expect(turn, name, command.expected)
        if not command.drops_schedules:
            turn.expect_may_end(name, "delete")
    yield
    before = dropped_of(turn)
    for name in names:
        turn.remove_stream(name, "del")
    return count_dropped(turn, before, len(names))


@runs(types.FlushAll)
@ends_streams
def flush_all(turn: Turn, _: types.FlushAll) -> bool:
    # There may be hundreds of thousands: a copy is the fastest list of them.
    streams: dict[str, object] = {**turn.keyspace.keys}
    if streams or turn.keyspace.answers or turn.keyspace.producers.producers:
        turn.emit(RemoveAll())
    turn.signal_all(streams)
    return True


@runs(types.Exists)
def exists(turn: Turn, command: types.Exists) -> int:
    return sum(name in turn.keyspace.keys for name in command.streams)


@runs(types.FindGroup)
def find_group(turn: Turn, command: types.FindGroup) -> list[Presence]:
    keys = map(turn.keyspace.find, command.streams)
    return [
        Presence.NO_STREAM
        if key is None
        else (Presence.FOUND if command.group in key.groups else Presence.NO_GROUP)
        for key in keys
    ]


@runs(types.Type)
def type_of(turn: Turn, command: types.Type) -> str:
    return "stream" if command.stream in turn.keyspace.keys else "none"


@runs(types.ListStreams)
def list_streams(turn: Turn, command: types.ListStreams) -> Listing:
    if command.at is not None:
        return Listing(_unexpired_around(turn, command.at, command.prefix, command.limit))
    most = None if command.limit is None else command.limit + 1
    known = ScheduleIndex.of(turn.keyspace).names if command.scheduled else None
    names = unexpired_names(turn, command.prefix, command.after, most, known)
    if command.limit is None or len(names) <= command.limit:
        return Listing(names)
    page = names[: command.limit]
    return Listing(page, page[-1])


def _unexpired_around(turn: Turn, at: float, prefix: str, limit: int | None) -> list[str]:
    keys, now_ms = turn.keyspace.keys, turn.now_ms
    names = turn.keyspace.names_around(at, prefix=prefix, limit=limit)
    alive = [name for name in names if not turn.keyspace.has_expired(keys[name], now_ms)]
    # Where just these have expired, there may be others.
    return alive or unexpired_names(turn, prefix, None, limit)


def unexpired_names(
    turn: Turn, prefix: str, after: str | None, limit: int | None, known: SortedNames | None = None
) -> list[str]:
    """At most `limit` names that no expired stream has, of all that there are or of those `known`: one that
    has expired may not be removed yet.
    """
    keyspace, now_ms = turn.keyspace, turn.now_ms
    page_of = keyspace.names if known is None else known.page
    names = page_of(prefix=prefix, after=after, limit=limit)
    if not keyspace.lifetimes.is_due(now_ms):
        return names
    page: list[str] = []
    while names:
        page += [name for name in names if not keyspace.has_expired(keyspace.keys[name], now_ms)]
        if limit is None or len(page) >= limit:
            break
        names = page_of(prefix=prefix, after=names[-1], limit=limit)
    return page[:limit]


@runs(types.DbSize)
def db_size(turn: Turn, _: types.DbSize) -> int:
    return len(turn.keyspace.keys)


@runs(types.ConfigGet)
def config_get(turn: Turn, _: types.ConfigGet) -> NamedValues:
    maxmemory = ("maxmemory", turn.keyspace.memory.bytes_max or 0)
    return NamedValues(sorted([*turn.keyspace.settings.items(), maxmemory]))


@runs(types.ConfigSet)
def config_set(turn: Turn, command: types.ConfigSet) -> bool:
    values = [(name, _setting(name, words)) for name, words in command.values]
    for name, value in values:
        turn.emit(Configure(name, value))
    return True


def _setting(name: str, words: str) -> int:
    bounds = _BOUNDS.get(name)
    if bounds is None:
        raise errors.invalid(f"ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
    failed = f"ERR CONFIG SET failed (possibly related to argument '{name}') - argument"
    if _INTEGER.fullmatch(words) is None:
        raise errors.invalid(f"{failed} couldn't be parsed into an integer")
    value = int(words)
    if not bounds[0] <= value <= bounds[1]:
        raise errors.invalid(f"{failed} must be between {bounds[0]} and {bounds[1]} inclusive")
    return value


@runs(types.Rename)
@ends_streams
def rename(turn: Turn, command: types.Rename) -> bool:
    stream, target = command.stream, command.target
    turn.key(stream)
    if stream == target or (turn.keyspace.find(target) is not None and not command.replace):
        return False
    clear(turn, target)
    turn.emit(RenameStream(stream, target, turn.keyspace.new_generation()))
    turn.signal(stream)
    turn.signal(target)
    turn.notify("new", target)
    turn.notify("rename_from", stream)
    turn.notify("rename_to", target)
    return True


@runs(types.Copy)
@ends_streams
def copy(turn: Turn, command: types.Copy) -> bool:
    stream, target = command.stream, command.target
    if stream == target:
        raise errors.same_stream()
    key = turn.keyspace.find(stream)
    if key is None or (turn.keyspace.find(target) is not None and not command.replace):
        return False
    if copy_cost(key) > COPY_COST_MAX:
        raise errors.too_large_to_copy()
    turn.expect_room(target not in turn.keyspace.keys)
    clear(turn, target)
    turn.emit(CopyStream(target, stream, turn.keyspace.new_generation()))
    turn.signal(target)
    turn.notify("new", target)
    turn.notify("copy_to", target)
    return True


def clear(turn: Turn, target: str) -> None:
    """Remove the stream of that name, if there is one, for another that takes its place."""
    before = turn.keyspace.find(target)
    if before is not None:
        turn.keyspace.generations.note_end(before.generation, "replaced")
        turn.emit(RemoveStream(target))
