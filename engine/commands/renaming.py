"""RENAME, RENAMENX and COPY: a stream under another name.

Knows: Redis's order of checks, and how much one turn copies.
Must never know: what is in a stream, wire formats.

A stream that comes to a name is a new generation there, as after a deletion: readers of both names are woken.
"""

from typing import Final

from engine import errors
from engine.commands import types
from engine.commands.registry import runs
from engine.commands.turn import Turn
from engine.copying import copy_cost
from engine.records import CopyStream, RemoveStream, RenameStream

# What one turn copies, in nodes of 100 entries: up to 10 µs each.
COPY_COST_MAX: Final = 1_500


@runs(types.Rename)
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
