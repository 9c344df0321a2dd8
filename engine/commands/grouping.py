"""XGROUP: groups and consumers made, moved and removed.

Knows: Redis's order of checks (docs/semantics.md).
Must never know: entries, pending entries beyond their number, wire formats.
"""

from typing import Final

from engine import errors
from engine.commands import types
from engine.commands.registry import runs
from engine.commands.turn import Turn, Unfinished
from engine.groups import Group
from engine.keyspace import Key
from engine.pending_states import Consumer
from engine.records.changes import CreateConsumer, RemoveConsumer, RemoveGroup

# Pending entries that one turn drops: up to 0.7 µs each.
DROPPED_MAX: Final = 10_000


@runs(types.XGroupCreate)
def xgroup_create(turn: Turn, command: types.XGroupCreate) -> bool:
    key = turn.keyspace.find(command.stream)
    if key is None and not command.mkstream:
        raise errors.key_required(command.stream)
    start = start_of(key, command.start)
    if key is not None and command.group in key.groups:
        raise errors.group_exists(command.group)
    if key is None:
        key = turn.create_stream(command.stream)
    turn.create_group(command.stream, command.group, start, clamped(key, command.entries_read))
    return True


@runs(types.XGroupSetId)
def xgroup_setid(turn: Turn, command: types.XGroupSetId) -> bool:
    key, group = existing_group(turn, command.stream, command.group)
    start = start_of(key, command.start)
    forget_passed(turn, command.stream, command.group)
    turn.move_group(command.stream, command.group, start, clamped(key, command.entries_read))
    # Also to where it is: from now on it is there because somebody wants it.
    group.note_move()
    turn.notify("xgroup-setid", command.stream)
    return True


def forget_passed(turn: Turn, stream: str, name: str) -> None:
    """What the group has passed over is not delivered: it is set to another place."""
    passed = turn.keyspace.keys[stream].groups[name].passed_over
    turn.settle(stream, name, [entry_id for entry_id, _ in passed.items()])


def start_of(key: Key | None, start: int | types.Cursor) -> int:
    """The ID behind which a group begins."""
    if isinstance(start, int):
        return start
    assert start is types.Cursor.LATEST, "the only word that a group may start at"
    return key.stream.last_id if key else 0


def clamped(key: Key, entries_read: int | None) -> int | None:
    """No more than there ever were."""
    return None if entries_read is None else min(entries_read, key.stream.entries_added)


@runs(types.XGroupDestroy)
def xgroup_destroy(turn: Turn, command: types.XGroupDestroy) -> int:
    key = turn.keyspace.find(command.stream)
    if key is None:
        raise errors.key_required(command.stream)
    if command.group not in key.groups:
        return 0
    turn.emit(RemoveGroup(command.stream, command.group))
    turn.signal(command.stream)
    return 1


@runs(types.XGroupCreateConsumer)
def xgroup_createconsumer(turn: Turn, command: types.XGroupCreateConsumer) -> int:
    _, group = existing_group(turn, command.stream, command.group)
    if command.consumer in group.consumers:
        return 0
    turn.expect_consumer(command.stream, command.group, command.consumer)
    turn.emit(CreateConsumer(command.stream, command.group, command.consumer, turn.now_ms))
    return 1


@runs(types.XGroupDelConsumer)
def xgroup_delconsumer(turn: Turn, command: types.XGroupDelConsumer) -> int | Unfinished:
    _, group = existing_group(turn, command.stream, command.group)
    consumer = group.consumers.get(command.consumer)
    return (
        (turn.so_far or 0)
        if consumer is None
        else drop_consumer(turn, command.stream, command.group, consumer)
    )


def drop_consumer(turn: Turn, stream: str, group: str, consumer: Consumer) -> int | Unfinished:
    """Remove a consumer and what it holds; how many entries those were.

    All or nothing within `DROPPED_MAX`. A larger one is emptied first, in turns of their own: a crash in
    between leaves the consumer with the rest, and removing it again continues there. A transaction refuses
    it.
    """
    held: int = len(consumer.pending) + (turn.so_far or 0)
    if len(consumer.pending) <= DROPPED_MAX:
        turn.emit(RemoveConsumer(stream, group, consumer.name))
        turn.signal_settled(stream, group)
        return held
    if not turn.may_continue:
        raise errors.too_many_to_remove(consumer.name, len(consumer.pending))
    turn.settle(stream, group, [entry_id for entry_id, _ in consumer.pending.page(0, DROPPED_MAX)])
    return Unfinished(held - len(consumer.pending))


def existing_group(turn: Turn, stream: str, group: str) -> tuple[Key, Group]:
    """A group that is to be there. Raises EngineError with the sentences of XGROUP."""
    key = turn.keyspace.find(stream)
    if key is None:
        raise errors.key_required(stream)
    if group not in key.groups:
        raise errors.no_group_for_key(stream, group)
    return key, key.groups[group]
