"""XREAD and XREADGROUP: reads that go on where the last one stopped, and may wait.

Knows: cursors and their special words, delivering new entries, history and claims (semantics.md 1.8 to 1.10).
Must never know: how waiting is done, wire formats.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from engine import errors
from engine.commands import types
from engine.commands.deadletters import Dead, bury, is_dead, too_many, turn_letters_max
from engine.commands.turn import Parked, Turn, checked_cursor
from engine.groups import Consumer, Group
from engine.keyspace import Key
from engine.lag import entries_read_after
from engine.records import Own
from engine.replies import Delivered, Gap, GroupRead, StreamDeliveries, StreamEntries, StreamsRead
from engine.stream import Stream

delivery_count_max: Final = (1 << 63) - 1
# A claiming read with nothing pending to wait for looks again no sooner: others may take and leave entries
# without waking it.
_claim_retry_ms_min: Final = 100


def gap_after(stream: Stream, cursor: int) -> bool:
    """Whether entries above `cursor` were removed from the front."""
    return 0 < cursor < stream.removed_upto


# --- XREAD --------------------------------------------------------------------------------------------------


def xread(turn: Turn, command: types.XRead) -> StreamsRead | Parked:
    cursors = [(name, _resolve(turn, name, checked_cursor(cursor))) for name, cursor in command.streams]
    found = [one for name, cursor in cursors if (one := _entries_after(turn, name, cursor, command))]
    if not found and command.block_ms is not None:
        return Parked(
            msgspec.structs.replace(command, streams=cursors),
            tuple(name for name, _ in cursors),
            command.block_ms,
        )
    return StreamsRead(found, cursors)


def _resolve(turn: Turn, name: str, cursor: int | types.Cursor) -> int:
    if isinstance(cursor, int):
        return cursor
    key = turn.keyspace.find(name)
    if key is None:
        return 0
    if cursor is types.Cursor.LATEST:
        return key.stream.last_id
    return max(0, key.stream.top_id - 1)


def _entries_after(turn: Turn, name: str, cursor: int, command: types.XRead) -> StreamEntries | None:
    key = turn.keyspace.find(name)
    if key is None or not key.stream.length or key.stream.top_id <= cursor:
        return None
    stream = key.stream
    entries = stream.range(cursor + 1, stream.top_id, count=command.count, bytes_max=command.bytes_max)
    gap = Gap(cursor, stream.first_id, None) if gap_after(stream, cursor) else None
    return StreamEntries(name, entries, cursor, gap)


# --- XREADGROUP ---------------------------------------------------------------------------------------------


def xreadgroup(turn: Turn, command: types.XReadGroup) -> GroupRead | Parked:
    cursors = [(name, _group_cursor(turn, name, command.group, cursor)) for name, cursor in command.streams]
    for name, _ in cursors:
        turn.expect_consumer(name, command.group, command.consumer)
    found: list[StreamDeliveries] = []
    claim_min_idle_ms = command.claim_min_idle_ms
    for name, cursor in cursors:
        consumer = turn.seen(name, command.group, command.consumer)
        if isinstance(cursor, int):
            found.append(_history(turn, name, command, consumer, cursor))
            # As in Redis, a history read ends the claiming for the streams behind it.
            claim_min_idle_ms = None
        else:
            delivered = _deliver(turn, name, command, claim_min_idle_ms)
            if delivered.entries:
                found.append(delivered)
    if not found and command.block_ms is not None:
        return _parked(turn, command)
    return GroupRead(found)


def _group_cursor(
    turn: Turn, name: str, group: str, cursor: int | types.Cursor | errors.EngineError
) -> int | types.Cursor:
    key = turn.keyspace.find(name)
    if key is None or group not in key.groups:
        raise errors.no_group_in_read(name, group)
    return checked_cursor(cursor)


def _history(
    turn: Turn, name: str, command: types.XReadGroup, consumer: Consumer, cursor: int
) -> StreamDeliveries:
    key = turn.keyspace.keys[name]
    group = key.groups[command.group]
    found: list[Delivered] = []
    dead: list[Dead] = []
    size = 0
    for entry_id, _ in consumer.pending.items(cursor + 1):
        if len(found) == command.count or len(dead) == turn_letters_max:
            break
        text = key.stream.get(entry_id)
        pending = group.pending.get(entry_id)
        assert pending is not None, "what a consumer holds is pending in its group"
        if text is not None and is_dead(turn, group, pending.delivery_count + 1):
            dead.append(Dead(entry_id, text, pending))
            continue
        size += len(text or b"")
        if command.bytes_max is not None and size > command.bytes_max and found:
            break
        found.append(
            Delivered(entry_id, text, _one_more(pending.delivery_count) if text else pending.delivery_count)
        )
    bury(turn, name, command.group, dead, too_many)
    again = [one for one in found if one.text is not None]
    if again:
        counts = [one.delivery_count for one in again]
        turn.emit(Own(name, command.group, consumer.name, [one.id for one in again], turn.now_ms, counts))
    return StreamDeliveries(
        name, found, history=True, after=cursor, last_delivered_id=group.last_delivered_id
    )


def _deliver(
    turn: Turn, name: str, command: types.XReadGroup, claim_min_idle_ms: int | None
) -> StreamDeliveries:
    """Claimed entries first, where that was asked for, then new ones; `count` bounds both together."""
    key = turn.keyspace.keys[name]
    group = key.groups[command.group]
    before, gap = group.last_delivered_id, _group_gap(key.stream, group)
    claimed: list[Delivered] = []
    if claim_min_idle_ms is not None:
        claimed = _claim_idle(turn, name, key, command, claim_min_idle_ms)
    left = None if command.count is None else command.count - len(claimed)
    new = _deliver_new(turn, name, key, command, left) if left is None or left > 0 else []
    if claim_min_idle_ms is not None:
        new = [one._replace(idle_ms=0, deliveries=0) for one in new]
    return StreamDeliveries(
        name,
        [*claimed, *new],
        history=False,
        after=before,
        last_delivered_id=group.last_delivered_id,
        gap=gap if new else None,
    )


def _group_gap(stream: Stream, group: Group) -> Gap | None:
    """What the group can no longer read: the entries removed behind its position."""
    if not gap_after(stream, group.last_delivered_id):
        return None
    lost = None
    if group.entries_read is not None and stream.max_deleted_id < stream.first_id:
        lost = max(0, stream.entries_added - stream.length - group.entries_read)
    return Gap(group.last_delivered_id, stream.first_id, lost)


def _deliver_new(
    turn: Turn, name: str, key: Key, command: types.XReadGroup, count: int | None
) -> list[Delivered]:
    group = key.groups[command.group]
    fresh = key.stream.after(group.last_delivered_id, count, command.bytes_max)
    if not fresh:
        return []
    new_ids = [entry_id for entry_id, _ in fresh]
    entries_read = _entries_read(key.stream, group, new_ids)
    if not command.noack:
        turn.emit(Own(name, command.group, command.consumer, new_ids, turn.now_ms, [1] * len(new_ids)))
        turn.active(name, command.group, command.consumer)
    turn.move_group(name, command.group, new_ids[-1], entries_read)
    return [Delivered(entry_id, text, 1) for entry_id, text in fresh]


def _entries_read(stream: Stream, group: Group, new_ids: Sequence[int]) -> int | None:
    """The group's `entries_read` after these were delivered, one after the other."""
    entries_read, last = group.entries_read, group.last_delivered_id
    for place, entry_id in enumerate(new_ids):
        if entries_read is not None and last >= stream.first_id and not stream.has_tombstone_from(last):
            return entries_read + len(new_ids) - place
        entries_read = entries_read_after(stream, last, entries_read, entry_id)
        last = entry_id
    return entries_read


def _claim_idle(
    turn: Turn, name: str, key: Key, command: types.XReadGroup, min_idle_ms: int
) -> list[Delivered]:
    """Take over what is released or idle for long enough, in order of delivery; deleted entries are passed
    over.
    """
    found: list[Delivered] = []
    dead: list[Dead] = []
    group = key.groups[command.group]
    for entry_id, pending in group.in_order_of_delivery():
        idle_ms = pending.idle_ms(turn.now_ms)
        if pending.consumer is not None and idle_ms < min_idle_ms:
            break
        text = key.stream.get(entry_id)
        if text is None:
            continue
        count = pending.delivery_count
        if is_dead(turn, group, count + 1):
            dead.append(Dead(entry_id, text, pending))
            if len(dead) == turn_letters_max:
                break
            continue
        found.append(Delivered(entry_id, text, _one_more(count), idle_ms, count))
        if len(found) == command.count:
            break
    bury(turn, name, command.group, dead, too_many)
    if found:
        counts = [one.delivery_count for one in found]
        turn.emit(Own(name, command.group, command.consumer, [one.id for one in found], turn.now_ms, counts))
        turn.active(name, command.group, command.consumer)
    return found


def _one_more(delivery_count: int) -> int:
    return min(delivery_count + 1, delivery_count_max)


def _parked(turn: Turn, command: types.XReadGroup) -> Parked:
    assert command.block_ms is not None, "only a read that waits is parked"
    streams = tuple(name for name, _ in command.streams)
    retry_at_ms = None
    if command.claim_min_idle_ms is not None:
        retry_at_ms = min(_next_claim_ms(turn, name, command) for name in streams)
    return Parked(command, streams, command.block_ms, retry_at_ms)


def _next_claim_ms(turn: Turn, name: str, command: types.XReadGroup) -> int:
    """When the entry that is idle longest, of those that still exist, will be idle for long enough."""
    key = turn.keyspace.keys[name]
    wait_ms = command.claim_min_idle_ms or 0
    for entry_id, pending in key.groups[command.group].in_order_of_delivery():
        if entry_id in key.stream:
            return pending.delivery_time_ms + wait_ms
    return turn.now_ms + max(wait_ms, _claim_retry_ms_min)


def is_ready(turn: Turn, command: types.XRead | types.XReadGroup) -> bool:
    """Whether running a parked read again may give something: cheap, changes nothing."""
    if isinstance(command, types.XReadGroup):
        return any(_group_ready(turn, name, command) for name, _ in command.streams)
    return any(
        isinstance(cursor, int)
        and (key := turn.keyspace.find(name)) is not None
        and key.stream.top_id > cursor
        for name, cursor in command.streams
    )


def _group_ready(turn: Turn, name: str, command: types.XReadGroup) -> bool:
    key = turn.keyspace.find(name)
    group = key.groups.get(command.group) if key is not None else None
    if key is None or group is None or command.claim_min_idle_ms is not None:
        return True
    return key.stream.top_id > group.last_delivered_id
