"""XGROUP: groups and consumers made, moved and removed.

Knows: Redis's order of checks (docs/semantics.md).
Must never know: entries, pending entries beyond their number, wire formats.
"""

from engine import errors
from engine.commands import types
from engine.commands.parting import check_held
from engine.commands.turn import Turn, checked_cursor
from engine.groups import Group
from engine.keyspace import Key
from engine.records import CreateConsumer, RemoveConsumer, RemoveGroup


def xgroup_create(turn: Turn, command: types.XGroupCreate) -> bool:
    key = turn.keyspace.find(command.stream)
    if key is None and not command.mkstream:
        raise errors.key_required(command.stream)
    start = _start(key, checked_cursor(command.start))
    if key is not None and command.group in key.groups:
        raise errors.group_exists(command.group)
    if key is None:
        key = turn.created(command.stream)
    turn.create_group(command.stream, command.group, start, _clamped(key, command.entries_read))
    return True


def xgroup_setid(turn: Turn, command: types.XGroupSetId) -> bool:
    key, _ = _group(turn, command.stream, command.group)
    start = _start(key, checked_cursor(command.start))
    turn.move_group(command.stream, command.group, start, _clamped(key, command.entries_read))
    return True


def _start(key: Key | None, start: int | types.Cursor) -> int:
    if isinstance(start, int):
        return start
    assert start is types.Cursor.LATEST, "the only word that a group may start at"
    return key.stream.last_id if key else 0


def _clamped(key: Key, entries_read: int | None) -> int | None:
    return None if entries_read is None else min(entries_read, key.stream.entries_added)


def xgroup_destroy(turn: Turn, command: types.XGroupDestroy) -> int:
    key = turn.keyspace.find(command.stream)
    if key is None:
        raise errors.key_required(command.stream)
    if command.group not in key.groups:
        return 0
    turn.emit(RemoveGroup(command.stream, command.group))
    turn.signal(command.stream)
    return 1


def xgroup_createconsumer(turn: Turn, command: types.XGroupCreateConsumer) -> int:
    _, group = _group(turn, command.stream, command.group)
    if command.consumer in group.consumers:
        return 0
    turn.expect_consumer(command.stream, command.group, command.consumer)
    turn.emit(CreateConsumer(command.stream, command.group, command.consumer, turn.now_ms))
    return 1


def xgroup_delconsumer(turn: Turn, command: types.XGroupDelConsumer) -> int:
    _, group = _group(turn, command.stream, command.group)
    if command.consumer not in group.consumers:
        return 0
    check_held(group.consumers[command.consumer], transferred=False)
    pending = len(group.consumers[command.consumer].pending)
    turn.emit(RemoveConsumer(command.stream, command.group, command.consumer))
    return pending


def _group(turn: Turn, stream: str, group: str) -> tuple[Key, Group]:
    key = turn.keyspace.find(stream)
    if key is None:
        raise errors.key_required(stream)
    if group not in key.groups:
        raise errors.no_group_for_key(stream, group)
    return key, key.groups[group]
