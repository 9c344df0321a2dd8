"""What says why a group delivers nothing.

Knows: where each fact is. Must never know: what follows from it. Changes nothing.
"""

from collections.abc import Iterator
from itertools import islice

from engine.commands import weir_commands
from engine.commands.group_reading import pending_of
from engine.commands.introspection import group_info
from engine.commands.registry import runs
from engine.commands.retention import holder
from engine.commands.turn import Turn
from engine.groups import Group
from engine.parts.ordering import ORDERED_WAITING_MAX, Ordering
from engine.pending_states import PendingState
from engine.replies import GroupFacts, PendingEntry
from engine.why import PENDING_LOOKED_AT


@runs(weir_commands.ExamineGroup)
def examine_group(turn: Turn, command: weir_commands.ExamineGroup) -> GroupFacts:
    stream, keyspace = command.stream, turn.keyspace
    key = keyspace.find(stream)
    if key is None:
        return GroupFacts(now_ms=turn.now_ms)
    group = key.groups.get(command.group)
    if group is None:
        return GroupFacts(now_ms=turn.now_ms, stream_exists=True)
    consumer = None if command.consumer is None else group.consumers.get(command.consumer)
    rows: Iterator[tuple[int, PendingState]] = group.pending.items(0)
    if command.consumer is not None:
        rows = iter(()) if consumer is None else pending_of(group, consumer, 0)
    pending = [
        PendingEntry(
            entry_id,
            state.consumer.name if state.consumer else None,
            state.idle_ms(turn.now_ms) if state.consumer else -1,
            state.delivery_count,
            state.until_ms,
        )
        for entry_id, state in islice(rows, PENDING_LOOKED_AT)
    ]
    busy_key, busy_count, busy_id, busy_all = _busiest(group)
    held_by, held_id = holder(key, turn.now_ms)
    return GroupFacts(
        now_ms=turn.now_ms,
        stream_exists=True,
        holds_id=held_id if held_by == command.group else 0,
        busy_key=busy_key,
        busy_count=busy_count,
        busy_id=busy_id,
        busy_all=busy_all,
        group=group_info(turn, stream, command.group, group),
        length=key.stream.length,
        first_id=key.stream.first_id,
        last_live_id=key.stream.last_live_id,
        removed_upto=key.stream.removed_upto,
        pending=pending,
        consumer_is_known=consumer is not None,
        has_delivered=group.active_ms >= 0,
        memory_full=keyspace.memory.is_full,
    )


def _busiest(group: Group) -> tuple[str, int, int, bool]:
    """The key that most entries wait for, how many do, who has it, and whether no more may wait."""
    ordering = Ordering.of(group)
    found = None if ordering is None else ordering.busiest()
    if ordering is None or found is None:
        return "", 0, 0, False
    oldest = islice(ordering.in_flight.items(), ORDERED_WAITING_MAX)
    held = next((entry_id for entry_id, key in oldest if key == found[0]), 0)
    return found[0].decode(errors="replace"), found[1], held, not ordering.has_room
