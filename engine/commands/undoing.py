"""Undoing a delivery whose reply never left: the entries are as if they had never been read.

Knows: when that may be done, and where the entries are after a refusal.
Must never know: why the reply did not leave.
"""

from typing import Final

from engine.commands import weir_commands
from engine.commands.registry import runs
from engine.commands.turn import TURN_LOOKUPS_MAX, Turn, Unfinished
from engine.groups import Group
from engine.records import Own
from engine.replies import DeliveryMark

# Deliveries that one turn makes less by one.
_LESSENED_MAX: Final = TURN_LOOKUPS_MAX


@runs(weir_commands.Undo)
def undo(turn: Turn, command: weir_commands.Undo) -> bool | Unfinished:
    """`so_far` is at which ID it goes on, where the delivery stays."""
    key = turn.keyspace.find(command.stream)
    group = None if key is None else key.groups.get(command.group)
    mark = command.mark
    if key is None or group is None or not isinstance(mark, DeliveryMark):
        return False
    if group.number != mark.group:
        return False
    start = turn.so_far or 0
    is_unmoved = (key.generation, group.move) == (mark.generation, mark.move)
    if not start and is_unmoved and len(_as_left(group, command, mark, 0)) == len(command.ids):
        turn.settle(command.stream, command.group, list(command.ids))
        turn.move_group(command.stream, command.group, mark.last_delivered_id, mark.entries_read)
        # What it was: a delivery right before this one can be undone next.
        group.move = mark.move_before
        turn.signal(command.stream)
        return True
    stop = start + _LESSENED_MAX if turn.may_continue else len(command.ids)
    left = _as_left(group, command, mark, start, stop)
    if left:
        entry_ids, times_ms, counts = zip(*left, strict=True)
        less = [max(0, count - 1) for count in counts]
        turn.emit(Own(command.stream, command.group, command.consumer, entry_ids, times_ms[0], less))
    return False if stop >= len(command.ids) else Unfinished(stop)


def _as_left(
    group: Group, command: weir_commands.Undo, mark: DeliveryMark, start: int, stop: int | None = None
) -> list[tuple[int, int, int]]:
    """Those of the IDs that are as the delivery left them, with time and delivery count: none was settled,
    taken or read them again.
    """
    named = command.ids[start:stop]
    held = group.pending.items_of(named)
    return [
        (entry_id, one.delivery_time_ms, one.delivery_count)
        for order, entry_id in enumerate(named, mark.order + start)
        if (one := held.get(entry_id)) is not None
        and one.order == order
        and one.consumer is not None
        and one.consumer.name == command.consumer
    ]
