"""XREADGROUP: new entries for one consumer of a group each, what it has already, and claims.

Knows: delivering, history, claims, when a read that waits may find something (docs/semantics.md).
Must never know: how waiting is done, wire formats.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final

from engine import errors
from engine.commands import types
from engine.commands.ages import expire_unread, has_expired, look_at_unread
from engine.commands.dead_letters import (
    TURN_LETTERS_MAX,
    Dead,
    move_to_dead_letters,
    reason_to_end,
    why_dead,
)
from engine.commands.reading import Budget, end_of, gap_after, may_end
from engine.commands.registry import Waiting, runs, waits
from engine.commands.turn import TURN_LOOKUPS_MAX, Blocked, Look, Turn
from engine.groups import Group, first_there
from engine.keyspace import Key
from engine.lag import entries_read_after_run
from engine.pending_states import Consumer, PendingState
from engine.records import Own
from engine.replies import (
    Delivered,
    DeliveryMark,
    Gap,
    GroupRead,
    StreamDeliveries,
    StreamEnd,
)
from engine.stream import Stream

DELIVERY_COUNT_MAX: Final = (1 << 63) - 1
# A claiming read with nothing pending to wait for looks again no sooner: others may take and leave entries
# without waking it.
_CLAIM_RETRY_MS_MIN: Final = 100
# No entry can be idle for that long: a read that waits for that takes over what was given back, no more.
CLAIM_NEVER_MS: Final = (1 << 53) - 1
# A claiming read skips up to this many pending entries that were deleted from their stream, as Redis does
# with all of them. If there are more, it settles up to this many in each turn: otherwise each read would walk
# over them again, although they cannot be delivered.
_PASSED_OVER_MAX: Final = 1_000
_SETTLED_MAX: Final = 2_000
# Texts of pending entries are looked up in batches of this size: all of one node cost little more than one.
_LOOKUPS_AT_ONCE: Final = 100
# A claiming read walks over them twice, once before it changes anything: up to 2.5 µs each time. XAUTOCLAIM,
# which has a cursor, comes to those behind them.
_CLAIMS_SCANNED_MAX: Final = 3_000
# Where all of a batch is passed over, the next one is larger: there may be thousands of them.
_PASSED_AT_ONCE: Final = 1_000
# What one consumer holds is looked up in growing batches: most readers want few, and many cost less each.
_HELD_AT_FIRST: Final = 16
_HELD_AT_ONCE: Final = 512
# Streams of one read of many that are given something, each by records of its own. Others come next time.
_STREAMS_GIVEN_MAX: Final = 300
# What one stream of many logs with all names where a read finds something: delivered, active, moved on.
_RECORDS_OF_DELIVERY: Final = 3


@runs(types.XReadGroup)
def xreadgroup(turn: Turn, command: types.XReadGroup) -> GroupRead | Blocked:
    cursors = [(name, _group_cursor(turn, name, command.group, cursor)) for name, cursor in command.streams]
    for name, _ in cursors:
        turn.expect_consumer(name, command.group, command.consumer)
    _look_ahead(turn, command, cursors)
    streams: list[StreamDeliveries] = []
    unfinished: list[str] = []
    claim_min_idle_ms = command.claim_min_idle_ms
    if len(cursors) > 1:
        for name, _ in cursors:
            turn.count_names(1, name, command.group, command.consumer)
    room = Budget(command.bytes_of_all, turn.deliveries_left(), command.count_total)
    for name, cursor in cursors:
        if len(streams) >= _STREAMS_GIVEN_MAX:
            unfinished.append(name)
            continue
        consumer = turn.see_consumer(name, command.group, command.consumer)
        if room.spent:
            # An empty history would mean that there is none.
            unfinished.append(name)
            continue
        if len(cursors) > 1:
            room.ids_left -= turn.count_names(_RECORDS_OF_DELIVERY, name, command.group, command.consumer)
        if isinstance(cursor, int):
            delivered = _history(turn, name, command, consumer, cursor, room)
            # As in Redis, a history read ends the claiming for the streams behind it.
            claim_min_idle_ms = None
        else:
            delivered = _deliver(turn, name, command, claim_min_idle_ms, room)
        if delivered.entries or (delivered.history and not (delivered.more and room.given)):
            streams.append(delivered)
        elif delivered.more:
            unfinished.append(name)
    ends, paused = _group_ends(turn, command), _paused(turn, command)
    ending = may_end(command.until, ends, len(cursors)) or pauses_anew(command, paused)
    if not streams and command.block_ms is not None and not ending:
        return block(command)
    return GroupRead(streams, unfinished, ends, paused)


def _paused(look: Look, command: types.XReadGroup) -> Sequence[str]:
    """The streams of which the group delivers nothing now."""
    keys = [(name, look.keyspace.find(name)) for name, _ in command.streams]
    groups = [(name, None if key is None else key.groups.get(command.group)) for name, key in keys]
    return [name for name, group in groups if group is not None and group.policy.paused] or ()


def pauses_anew(command: types.XReadGroup, paused: Sequence[str]) -> bool:
    """Whether the reader is to hear that the group is paused now, or is not any more."""
    return command.knows_paused is not None and command.knows_paused != bool(paused)


def _look_ahead(
    turn: Turn, command: types.XReadGroup, cursors: Sequence[tuple[str, int | types.Cursor]]
) -> None:
    """Look into the runs that will be read, before anything is changed: after that no turn may wait."""
    if not turn.keyspace.runs.files:
        return
    room = Budget(command.bytes_of_all, turn.deliveries_left(), command.count_total)
    most = TURN_LOOKUPS_MAX if command.count is None else min(command.count + 1, TURN_LOOKUPS_MAX)
    for name, cursor in cursors:
        stream, group = turn.keyspace.keys[name].stream, turn.keyspace.keys[name].groups[command.group]
        if not stream.nodes.runs:
            continue
        consumer = group.consumers.get(command.consumer)
        rows: Iterable[tuple[int, PendingState]] = ()
        if not isinstance(cursor, int):
            unread_from = look_at_unread(turn, turn.keyspace.keys[name], group)
            stream.after(unread_from, room.most(command.count), room.bytes_left, up_to_damage=True)
            if command.claim_min_idle_ms is not None:
                rows = _idle_rows(turn, group, command, command.claim_min_idle_ms)
        elif consumer is not None:
            rows = pending_of(group, consumer, cursor + 1)
        _look_at_held(turn, stream, group, command, rows, most, claims=not isinstance(cursor, int))


def _look_at_held(
    turn: Turn,
    stream: Stream,
    group: Group,
    command: types.XReadGroup,
    rows: Iterable[tuple[int, PendingState]],
    most: int,
    *,
    claims: bool,
) -> None:
    """Look at pending entries until `most` may be delivered: there are others among them."""
    given = dead = 0
    for row in _up_to_damage(with_texts(stream, rows, command.count, passes_over=claims)):
        if row is None:
            return
        entry_id, state, text = row
        if text is not None and reason_to_end(
            turn, group, entry_id, state.delivery_count + 1, at_any_age=not claims
        ):
            dead += 1
        elif text is not None or not claims:
            given += 1
        if given == most or dead > TURN_LETTERS_MAX:
            return


def _group_ends(look: Look, command: types.XReadGroup) -> Sequence[StreamEnd]:
    ends: tuple[StreamEnd, ...] = ()
    for name, _ in command.streams:
        key = look.keyspace.find(name)
        group = None if key is None else key.groups.get(command.group)
        if group is not None and (end := end_of(name, key, group.last_delivered_id, group)) is not None:
            ends = (*ends, end)
    return ends


def _group_cursor(turn: Turn, name: str, group: str, cursor: int | types.Cursor) -> int | types.Cursor:
    key = turn.keyspace.find(name)
    if key is None or group not in key.groups:
        raise errors.no_group_in_read(name, group)
    return cursor


def _history(
    turn: Turn, name: str, command: types.XReadGroup, consumer: Consumer, cursor: int, room: Budget
) -> StreamDeliveries:
    key = turn.keyspace.keys[name]
    group = key.groups[command.group]
    delivered: list[Delivered] = []
    dead: list[Dead] = []
    more = False
    rows = pending_of(group, consumer, cursor + 1)
    for row in _up_to_damage(with_texts(key.stream, rows, command.count)):
        if row is None:
            more = True
            break
        entry_id, pending, text = row
        if (
            len(delivered) == command.count
            or len(dead) == TURN_LETTERS_MAX
            or _looked_enough(turn, delivered)
        ):
            more = True
        elif text is not None and (
            # Its consumer may be working on it, and asks since its connection was lost.
            why := why_dead(
                turn, group, entry_id, pending.delivery_count + 1, (name, command.group), at_any_age=True
            )
        ):
            dead.append(Dead(entry_id, text, pending, why))
            continue
        else:
            more = not room.takes(len(text or b""))
        if more:
            break
        delivered.append(
            Delivered(entry_id, text, _one_more(pending.delivery_count) if text else pending.delivery_count)
        )
    turn.lookups_left -= len(delivered) + len(dead)
    move_to_dead_letters(turn, name, command.group, dead)
    again = [entry for entry in delivered if entry.text is not None]
    if again:
        counts = [entry.delivery_count for entry in again]
        turn.emit(Own(name, command.group, consumer.name, [entry.id for entry in again], turn.now_ms, counts))
        turn.count_ids(len(again))
    return StreamDeliveries(
        name, delivered, history=True, after=cursor, last_delivered_id=group.last_delivered_id, more=more
    )


def _deliver(
    turn: Turn, name: str, command: types.XReadGroup, claim_min_idle_ms: int | None, room: Budget
) -> StreamDeliveries:
    """Claimed entries first, where that was asked for, then new ones; `count` bounds both together."""
    key = turn.keyspace.keys[name]
    group = key.groups[command.group]
    if group.policy.paused:
        last = group.last_delivered_id
        return StreamDeliveries(name, (), history=False, after=last, last_delivered_id=last)
    gap, expiring = _group_gap(key.stream, group), expire_unread(turn, name, key, command.group)
    # Undoing the delivery does not bring back what was too old for it.
    before, entries_read, move = group.last_delivered_id, group.entries_read, group.move
    claimed: list[Delivered] = []
    more = False
    if claim_min_idle_ms is not None and (claim_min_idle_ms < CLAIM_NEVER_MS or group.has_released()):
        claimed, more = _claim_idle(turn, name, key, command, claim_min_idle_ms, room)
    left = None if command.count is None else command.count - len(claimed)
    claims, mark = claim_min_idle_ms is not None, None
    new = []
    if (left is None or left > 0) and not expiring:
        new = _deliver_new(turn, name, key, command, left, room, claims=claims)
    if new:
        order = 0 if command.noack else group.first_order(len(new), turn.now_ms)
        moved = (group.number, move, group.move)
        mark = DeliveryMark(key.generation, *moved, before, entries_read, order, len(claimed))
    return StreamDeliveries(
        name,
        [*claimed, *new],
        history=False,
        after=before,
        last_delivered_id=group.last_delivered_id,
        gap=gap if new else None,
        more=more or key.stream.last_live_id > group.last_delivered_id,
        mark=mark,
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
    turn: Turn,
    name: str,
    key: Key,
    command: types.XReadGroup,
    count: int | None,
    room: Budget,
    *,
    claims: bool,
) -> list[Delivered]:
    group = key.groups[command.group]
    if room.spent:
        return []
    fresh = _new_after(turn, key.stream, group, room.most(count), room.bytes_left)
    size = 0 if room.bytes_left is None else sum(len(text) for _, text in fresh)
    if not fresh or not room.takes(size, len(fresh)):
        return []
    new_ids = [entry_id for entry_id, _ in fresh]
    entries_read = entries_read_after_run(key.stream, group.last_delivered_id, group.entries_read, new_ids)
    if not command.noack:
        turn.emit(Own(name, command.group, command.consumer, new_ids, turn.now_ms, [1] * len(new_ids)))
        turn.count_ids(len(new_ids))
        turn.mark_active(name, command.group, command.consumer)
    turn.count_delivered(len(new_ids))
    turn.move_group(name, command.group, new_ids[-1], entries_read)
    if claims:
        return [Delivered(entry_id, text, 1, 0, 0) for entry_id, text in fresh]
    return [Delivered(entry_id, text, 1) for entry_id, text in fresh]


def _new_after(
    turn: Turn, stream: Stream, group: Group, count: int, bytes_max: int | None
) -> list[tuple[int, bytes]]:
    """New entries, none of a part that the disk does not give: the read is refused where that comes first,
    the next one where this one has changed something already.
    """
    try:
        return stream.after(group.last_delivered_id, count, bytes_max, up_to_damage=True)
    except errors.EngineError as refusal:
        if refusal.code != errors.ENTRIES_DAMAGED or not turn.records:
            raise
        return []


def _claim_idle(
    turn: Turn, name: str, key: Key, command: types.XReadGroup, min_idle_ms: int, room: Budget
) -> tuple[list[Delivered], bool]:
    """Claim what is released or idle for long enough, in order of delivery. Skip deleted entries, or settle
    them if they are many. Return the claimed entries, and whether a limit ended the search.
    """
    claimed: list[Delivered] = []
    dead: list[Dead] = []
    gone: list[int] = []
    more = False
    group = key.groups[command.group]
    rows = _idle_rows(turn, group, command, min_idle_ms)
    for entry_id, pending, text in with_texts(key.stream, rows, command.count, passes_over=True):
        if len(gone) == _SETTLED_MAX or len(dead) == TURN_LETTERS_MAX or _looked_enough(turn, claimed):
            more = True
        elif text is None:
            gone.append(entry_id)
            continue
        elif why := why_dead(turn, group, entry_id, pending.delivery_count + 1, (name, command.group)):
            dead.append(Dead(entry_id, text, pending, why))
            continue
        else:
            more = len(claimed) == command.count or not room.takes(len(text))
        if more:
            break
        count = pending.delivery_count
        idle_ms, released = pending.idle_ms(turn.now_ms), pending.consumer is None
        claimed.append(Delivered(entry_id, text, _one_more(count), idle_ms, count, released))
    turn.lookups_left -= len(claimed) + len(dead)
    move_to_dead_letters(turn, name, command.group, dead)
    if len(gone) > _PASSED_OVER_MAX:
        turn.settle(name, command.group, gone)
        turn.count_ids(len(gone))
    if claimed:
        _take_over(turn, name, command, claimed)
    return claimed, more


def _take_over(turn: Turn, name: str, command: types.XReadGroup, claimed: Sequence[Delivered]) -> None:
    counts = [entry.delivery_count for entry in claimed]
    turn.emit(
        Own(name, command.group, command.consumer, [entry.id for entry in claimed], turn.now_ms, counts)
    )
    turn.mark_active(name, command.group, command.consumer)
    turn.count_ids(len(claimed))


def _idle_rows(
    turn: Turn, group: Group, command: types.XReadGroup, min_idle_ms: int
) -> Iterator[tuple[int, PendingState]]:
    """What is released or idle for long enough, in order of delivery; as much as one turn may walk over."""
    return takewhile(
        lambda row: row[1].consumer is None or row[1].idle_ms(turn.now_ms) >= min_idle_ms,
        islice(_claimable(group, command), _CLAIMS_SCANNED_MAX),
    )


def _claimable(group: Group, command: types.XReadGroup) -> Iterator[tuple[int, PendingState]]:
    """What the command may claim, however idle, in order of delivery."""
    consumer = None if command.claims_own else group.consumers.get(command.consumer)
    return group.in_order_of_delivery() if consumer is None else group.of_others(consumer)


def pending_of(group: Group, consumer: Consumer, start: int) -> Iterator[tuple[int, PendingState]]:
    """The pending entries of one consumer from an ID on. The group must not change meanwhile."""
    held, size = (entry_id for entry_id, _ in consumer.pending.items(start)), _HELD_AT_FIRST
    while some := list(islice(held, size)):
        yield from zip(some, group.pending.of_each(some), strict=True)
        size = min(2 * size, _HELD_AT_ONCE)


def _up_to_damage(
    rows: Iterable[tuple[int, PendingState, bytes | None]],
) -> Iterator[tuple[int, PendingState, bytes | None] | None]:
    """Those before a part that the disk does not give, and None in its place; refused where that is first."""
    is_first = True
    try:
        for row in rows:
            is_first = False
            yield row
    except errors.EngineError as refusal:
        if is_first or refusal.code != errors.ENTRIES_DAMAGED:
            raise
        yield None


def with_texts(
    stream: Stream,
    rows: Iterable[tuple[int, PendingState]],
    count: int | None,
    is_wanted: Callable[[tuple[int, PendingState]], bool] = lambda _: True,
    *,
    passes_over: bool = False,
) -> Iterator[tuple[int, PendingState, bytes | None]]:
    """Pending entries with their texts, None for those that are gone or not wanted. They are looked up some
    at a time, about `count`. Those that the disk does not give are passed over, or refused once those before
    them were given.
    """
    rows, size = iter(rows), min(_LOOKUPS_AT_ONCE, count or _LOOKUPS_AT_ONCE)
    while some := list(islice(rows, size)):
        passed = stream.unreadable([row[0] for row in some if is_wanted(row)])
        refused = None if passes_over else next((row[0] for row in some if row[0] in passed), None)
        if refused is not None:
            some = [row for row in some if row[0] < refused]
        wanted = [row[0] for row in some if is_wanted(row)]
        texts = stream.find_each(entry_id for entry_id in wanted if entry_id not in passed)
        yield from ((each, state, texts.get(each)) for each, state in some if each not in passed)
        if refused is not None:
            raise stream.refusal_of(refused)
        if len(passed) == len(some):
            size = min(2 * size, _PASSED_AT_ONCE)


def _looked_enough(turn: Turn, entries: Sequence[Delivered]) -> bool:
    """Whether the turn may look up no more; one entry it always may."""
    return bool(entries) and len(entries) >= turn.lookups_left


def _one_more(delivery_count: int) -> int:
    return min(delivery_count + 1, DELIVERY_COUNT_MAX)


def block(command: types.XReadGroup) -> Blocked:
    """The read as one that waits."""
    assert command.block_ms is not None, "only a read that waits is blocked"
    streams = tuple(name for name, _ in command.streams)
    wanted = (command.claim_min_idle_ms, command.claims_own, command.until, command.knows_paused)
    wait_key = (streams, command.group, *wanted)
    return Blocked(command, streams, command.block_ms, wait_key)


def retry_at_ms(look: Look, command: types.XReadGroup) -> int | None:
    """When (wall clock) a blocked read may find something without any write, None for never."""
    wait_ms = command.claim_min_idle_ms
    keys = [look.keyspace.find(name) for name, _ in command.streams]
    groups = [(key, key.groups.get(command.group)) for key in keys if key]
    if any(group is not None and has_expired(look, key, group) for key, group in groups):
        # The last turn has acknowledged some of what is too old, and had to end.
        return look.now_ms
    if wait_ms is None:
        return None
    due_ms = [
        _claim_due_ms(look, key, command, wait_ms) for key in keys if key and command.group in key.groups
    ]
    if wait_ms >= CLAIM_NEVER_MS and not any(due_ms):
        return None
    look_again_ms = look.now_ms + max(wait_ms, _CLAIM_RETRY_MS_MIN)
    at_ms = min([look_again_ms if due is None else due for due in due_ms], default=look_again_ms)
    # What the disk does not give is due, and stays so.
    has_damages = (
        any(key is not None and key.stream.nodes.runs for key in keys) and look.keyspace.runs.damaged
    )
    return max(at_ms, look.now_ms + _CLAIM_RETRY_MS_MIN) if has_damages else at_ms


def _claim_due_ms(look: Look, key: Key, command: types.XReadGroup, wait_ms: int) -> int | None:
    """When the entry that is idle longest, of those that still exist, will be idle for long enough; at once
    for a released one. Where many are gone it is when a read would settle them. None where there is none.
    """
    group = key.groups[command.group]
    if group.policy.paused or (wait_ms >= CLAIM_NEVER_MS and not group.has_released()):
        return None
    stream = key.stream
    # What changes when entries come or go, or are read from the disk: as long as none is, readers that wait
    # share one look.
    reads = look.keyspace.runs.reads if stream.nodes.runs else 0
    edition = (stream.entries_added, stream.length, stream.first_id, stream.max_deleted_id, reads)
    is_there = stream.seems_there
    pending = group.idle_longest(edition, is_there, _PASSED_OVER_MAX)
    owner = None if pending is None else pending.consumer
    if owner is not None and owner.name == command.consumer and not command.claims_own:
        pending = first_there(group.of_others(owner), is_there, _PASSED_OVER_MAX)
    if pending is None:
        return None
    return pending.delivery_time_ms + wait_ms if pending.consumer is not None else look.now_ms


def _is_group_ready(look: Look, command: types.XReadGroup, _: str | None) -> bool:
    if any(_group_ready(look, name, command) for name, _ in command.streams):
        return True
    if pauses_anew(command, _paused(look, command)):
        return True
    return command.until is not types.Until.TIMEOUT and may_end(
        command.until, _group_ends(look, command), len(command.streams)
    )


def _group_ready(look: Look, name: str, command: types.XReadGroup) -> bool:
    key = look.keyspace.find(name)
    group = key.groups.get(command.group) if key is not None else None
    if key is None or group is None:
        return True
    if group.policy.paused:
        return False
    if key.stream.last_live_id > group.last_delivered_id:
        return True
    if command.claim_min_idle_ms is None:
        return False
    due_ms = _claim_due_ms(look, key, command, command.claim_min_idle_ms)
    return due_ms is not None and due_ms <= look.now_ms


waits(
    types.XReadGroup,
    Waiting(
        _is_group_ready,
        lambda turn, command: GroupRead((), (), _group_ends(turn, command), _paused(turn, command)),
        retry_at_ms,
    ),
)
