"""XREADGROUP: new entries for one consumer of a group each, what it has already, and claims.

Knows: delivering, history, claims, when a read that waits may find something (docs/semantics.md).
Must never know: how waiting is done, wire formats.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final

import msgspec

from engine import errors
from engine.commands import types
from engine.commands.ages import expire, has_expired, select_expired
from engine.commands.dead_letters import (
    TURN_LETTERS_MAX,
    Dead,
    fit_letters,
    move_to_dead_letters,
    why_dead,
)
from engine.commands.ordering import (
    InOrder,
    expect_acknowledging,
    may_deliver,
    retry_order_ms,
    select_in_order,
)
from engine.commands.reading import Budget, end_of, gap_after, may_end
from engine.commands.registry import Steps, Waiting, runs, waits
from engine.commands.turn import Blocked, Look, Turn
from engine.groups import Group, first_there
from engine.keyspace import Key
from engine.lag import entries_read_after_run
from engine.parts.ordering import NoteKeys
from engine.parts.redelivery import redelivery_of
from engine.pending_states import Consumer, PendingState
from engine.records.changes import Own
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


class _Selected(msgspec.Struct):
    """What a read does with one stream. `again` is what the consumer has, or takes over; `upto` the group's
    position behind what is too old for it, None where the consumer's history is read.
    """

    after: int
    upto: int | None = None
    again: Sequence[Delivered] = ()
    fresh: Sequence[tuple[int, bytes]] = ()
    old: Sequence[Dead] = ()
    dead: Sequence[Dead] = ()
    gone: Sequence[int] = ()
    # What is given of a group with an order.
    in_order: InOrder | None = None
    gap: Gap | None = None
    more: bool = False
    # A history that is shown although it is empty; new entries that are shown as claimed ones, and those that
    # are selected behind dead letters which come to the stream itself.
    shows: bool = False
    claims: bool = False
    fresh_behind: bool = False

    @property
    def changes(self) -> bool:
        """Whether it does anything."""
        passes = self.in_order is not None and self.in_order.passes
        return bool(self.old or self.dead or self.gone or self.again or self.fresh or passes)


class _Selection(msgspec.Struct):
    """What a read does with its streams, in their order; True for one that gets nothing since the read gives
    enough, False where its consumer is not even seen. And what is left for those behind them.
    """

    command: types.XReadGroup
    room: Budget
    claim_min_idle_ms: int | None
    # How many streams are given something.
    given: int = 0
    streams: list[_Selected | bool] = msgspec.field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether it does anything by now."""
        return any(not isinstance(one, bool) and one.changes for one in self.streams)


def _select_on(turn: Turn, selection: _Selection) -> None:
    """Select of the next streams, up to one whose dead letters change what is behind."""
    command, room = selection.command, selection.room
    for name, cursor in command.streams[len(selection.streams) :]:
        if selection.given >= _STREAMS_GIVEN_MAX or room.spent:
            selection.streams.append(selection.given < _STREAMS_GIVEN_MAX)
            continue
        if len(command.streams) > 1:
            room.ids_left -= turn.count_names(_RECORDS_OF_DELIVERY, name, command.group, command.consumer)
        try:
            if isinstance(cursor, int):
                # As in Redis, a history read ends the claiming for the streams behind it.
                selection.claim_min_idle_ms = None
                one = _select_history(turn, name, command, cursor, room)
            else:
                one = _select_new(turn, name, command, selection.claim_min_idle_ms, room)
        except errors.EngineError:
            # What the disk does not give is refused where it comes first, else by the next read.
            if not selection.changes:
                raise
            one = _Selected(0, 0, more=True)
        selection.streams.append(one)
        selection.given += bool(one.again or one.fresh or one.shows)
        letters = one.old or one.dead or (one.in_order and one.in_order.expired)
        if letters and _changes_read(turn, name, command):
            return


def _changes_read(turn: Turn, name: str, command: types.XReadGroup) -> bool:
    """Whether dead letters of a stream come to one that is read: what is behind is selected once they are
    there.
    """
    target = redelivery_of(turn.keyspace.keys[name].groups[command.group]).dead_letter_stream
    return any(target == other for other, _ in command.streams)


@runs(types.XReadGroup)
def xreadgroup(turn: Turn, command: types.XReadGroup) -> Steps[GroupRead | Blocked]:
    for name, _ in command.streams:
        key = turn.keyspace.find(name)
        if key is None or command.group not in key.groups:
            raise errors.no_group_in_read(name, command.group)
    expect_acknowledging(turn, command)
    for name, _ in command.streams:
        turn.expect_consumer(name, command.group, command.consumer)
    for name, _ in command.streams if len(command.streams) > 1 else ():
        turn.count_names(1, name, command.group, command.consumer)
    room = Budget(command.bytes_of_all, turn.deliveries_left(), command.count_total)
    selection = _Selection(command, room, command.claim_min_idle_ms)
    _select_on(turn, selection)
    yield
    streams: list[StreamDeliveries] = []
    unfinished: list[str] = []
    for place, (name, _) in enumerate(command.streams):
        if place == len(selection.streams):
            turn.look(partial(_select_on, turn, selection), has_begun=True)
        one = selection.streams[place]
        if one is not False:
            turn.see_consumer(name, command.group, command.consumer)
        if isinstance(one, bool):
            # An empty history would mean that there is none.
            unfinished.append(name)
            continue
        delivered = _emit(turn, name, selection, one)
        if delivered.entries or one.shows:
            streams.append(delivered)
        elif delivered.more:
            unfinished.append(name)
    ends, paused = _group_ends(turn, command), _paused(turn, command)
    ending = may_end(command.until, ends, len(command.streams)) or pauses_anew(command, paused)
    if not streams and command.block_ms is not None and not ending:
        return block(command)
    return GroupRead(streams, unfinished, ends, paused)


def _paused(look: Look, command: types.XReadGroup) -> Sequence[str]:
    """The streams of which the group delivers nothing now."""
    keys = [(name, look.keyspace.find(name)) for name, _ in command.streams]
    groups = [(name, None if key is None else key.groups.get(command.group)) for name, key in keys]
    return [name for name, group in groups if group is not None and group.is_paused] or ()


def pauses_anew(command: types.XReadGroup, paused: Sequence[str]) -> bool:
    """Whether the reader is to hear that the group is paused now, or is not any more."""
    return command.knows_paused is not None and command.knows_paused != bool(paused)


def _group_ends(look: Look, command: types.XReadGroup) -> Sequence[StreamEnd]:
    ends: tuple[StreamEnd, ...] = ()
    for name, _ in command.streams:
        key = look.keyspace.find(name)
        group = None if key is None else key.groups.get(command.group)
        if group is not None and (end := end_of(name, key, group.last_delivered_id, group)) is not None:
            ends = (*ends, end)
    return ends


def _select_history(turn: Turn, name: str, command: types.XReadGroup, cursor: int, room: Budget) -> _Selected:
    key = turn.keyspace.keys[name]
    group = key.groups[command.group]
    delivered: list[Delivered] = []
    dead: list[Dead] = []
    more = False
    consumer = group.consumers.get(command.consumer)
    rows = () if consumer is None else pending_of(group, consumer, cursor + 1)
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
            Delivered(entry_id, text, one_more(pending.delivery_count) if text else pending.delivery_count)
        )
    turn.lookups_left -= len(delivered) + len(dead)
    dead_ones = fit_letters(turn, name, command.group, dead)
    shows = bool(delivered) or not (more and room.given)
    return _Selected(cursor, again=delivered, dead=dead_ones, more=more, shows=shows)


def _select_new(
    turn: Turn, name: str, command: types.XReadGroup, claim_min_idle_ms: int | None, room: Budget
) -> _Selected:
    """Claimed entries first, where that was asked for, then new ones; `count` bounds both together."""
    key = turn.keyspace.keys[name]
    group = key.groups[command.group]
    last, claims = group.last_delivered_id, claim_min_idle_ms is not None
    if group.is_paused:
        return _Selected(last, last)
    old, upto, expiring = select_expired(turn, name, key, command.group)
    # Undoing the delivery does not bring back what was too old for it.
    one = _Selected(upto, upto, old=old, gap=_group_gap(key.stream, group), claims=claims)
    if claim_min_idle_ms is not None and (claim_min_idle_ms < CLAIM_NEVER_MS or group.has_released()):
        _select_idle(turn, name, command, claim_min_idle_ms, room, one)
    if expiring:
        one.more = True
    elif (one.old or one.dead) and redelivery_of(group).dead_letter_stream == name:
        one.fresh_behind = True
    else:
        _select_fresh(turn, name, command, room, one)
    return one


def _select_fresh(turn: Turn, name: str, command: types.XReadGroup, room: Budget, one: _Selected) -> None:
    """New entries, none of a part that the disk does not give."""
    assert one.upto is not None, "it is no history"
    key, count = turn.keyspace.keys[name], command.count
    left, fresh = None if count is None else count - len(one.again), list[tuple[int, bytes]]()
    if key.groups[command.group].parts:
        most = 0 if left is not None and left <= 0 else room.most(left)
        one.in_order = select_in_order(turn, (name, command.group), one.upto, most, room)
        if one.in_order is not None:
            one.fresh, one.more = one.in_order.fresh, one.more or one.in_order.more
            return
    stream = key.stream
    if (left is None or left > 0) and not room.spent:
        try:
            fresh = stream.after(one.upto, room.most(left), room.bytes_left, up_to_damage=True)
        except errors.EngineError:
            if not one.changes:
                raise
    size = 0 if room.bytes_left is None else sum(len(text) for _, text in fresh)
    if fresh and room.takes(size, len(fresh)):
        one.fresh = fresh
        turn.count_delivered(len(fresh))
    one.more = one.more or stream.last_live_id > (one.fresh[-1][0] if one.fresh else one.upto)


def _select_idle(
    turn: Turn, name: str, command: types.XReadGroup, min_idle_ms: int, room: Budget, one: _Selected
) -> None:
    """What is released or idle for long enough, in order of delivery. Skip deleted entries, or settle them if
    they are many.
    """
    claimed: list[Delivered] = []
    dead: list[Dead] = []
    gone: list[int] = []
    key = turn.keyspace.keys[name]
    group = key.groups[command.group]
    rows = _idle_rows(turn, group, command, min_idle_ms)
    for entry_id, pending, text in with_texts(key.stream, rows, command.count, passes_over=True):
        if len(gone) == _SETTLED_MAX or len(dead) == TURN_LETTERS_MAX or _looked_enough(turn, claimed):
            one.more = True
        elif text is None:
            gone.append(entry_id)
            continue
        elif why := why_dead(turn, group, entry_id, pending.delivery_count + 1, (name, command.group)):
            dead.append(Dead(entry_id, text, pending, why))
            continue
        else:
            one.more = len(claimed) == command.count or not room.takes(len(text))
        if one.more:
            break
        count = pending.delivery_count
        idle_ms, released = pending.idle_ms(turn.now_ms), pending.consumer is None
        claimed.append(Delivered(entry_id, text, one_more(count), idle_ms, count, released))
    turn.lookups_left -= len(claimed) + len(dead)
    one.again, one.dead = claimed, fit_letters(turn, name, command.group, dead)
    one.gone = gone if len(gone) > _PASSED_OVER_MAX else ()


def _emit(turn: Turn, name: str, selection: _Selection, one: _Selected) -> StreamDeliveries:
    """Do what was selected."""
    command, key = selection.command, turn.keyspace.keys[name]
    group = key.groups[command.group]
    if one.old:
        expire(turn, name, key, command.group, one.old)
    before, entries_read, move = group.last_delivered_id, group.entries_read, group.move
    move_to_dead_letters(turn, name, command.group, one.dead)
    if one.gone:
        turn.settle(name, command.group, list(one.gone))
        turn.count_ids(len(one.gone))
    is_history = one.upto is None
    again = [entry for entry in one.again if entry.text is not None] if is_history else one.again
    if again:
        counts = [entry.delivery_count for entry in again]
        own_ids = [entry.id for entry in again]
        turn.emit(Own(name, command.group, command.consumer, own_ids, turn.now_ms, counts))
        turn.count_ids(len(again))
        if not is_history:
            turn.mark_active(name, command.group, command.consumer)
    if is_history:
        last = group.last_delivered_id
        return StreamDeliveries(
            name, one.again, history=True, after=one.after, last_delivered_id=last, more=one.more
        )
    if one.fresh_behind:
        turn.look(partial(_select_fresh, turn, name, command, selection.room, one), has_begun=True)
        selection.given += bool(one.fresh and not one.again)
    mark = None
    new = _deliver_new(turn, name, key, command, one) if one.fresh or one.in_order else []
    if new:
        order = 0 if command.noack else group.first_order(len(new), turn.now_ms)
        moved = (group.number, move, group.move)
        mark = DeliveryMark(key.generation, *moved, before, entries_read, order, len(one.again))
    return StreamDeliveries(
        name,
        [*one.again, *new],
        history=False,
        after=before,
        last_delivered_id=group.last_delivered_id,
        gap=one.gap if new else None,
        more=one.more,
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
    turn: Turn, name: str, key: Key, command: types.XReadGroup, one: _Selected
) -> list[Delivered]:
    group = key.groups[command.group]
    in_order, new_ids = one.in_order, [entry_id for entry_id, _ in one.fresh]
    read = new_ids if in_order is None else in_order.read
    entries_read = entries_read_after_run(key.stream, group.last_delivered_id, group.entries_read, read)
    if in_order is not None:
        move_to_dead_letters(turn, name, command.group, in_order.expired)
        turn.settle(name, command.group, in_order.gone)
    if new_ids and not command.noack:
        turn.emit(Own(name, command.group, command.consumer, new_ids, turn.now_ms, [1] * len(new_ids)))
        turn.count_ids(len(new_ids))
        turn.mark_active(name, command.group, command.consumer)
    if in_order is not None and in_order.keyed:
        keyed_ids, keys = zip(*in_order.keyed, strict=True)
        turn.emit(NoteKeys(name, command.group, keyed_ids, keys))
        turn.count_ids(len(keyed_ids))
    if read:
        turn.move_group(name, command.group, read[-1], entries_read)
    if one.claims:
        return [Delivered(entry_id, text, 1, 0, 0) for entry_id, text in one.fresh]
    return [Delivered(entry_id, text, 1) for entry_id, text in one.fresh]


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


def one_more(delivery_count: int) -> int:
    """As many as the next delivery makes."""
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
    keys = [look.keyspace.find(name) for name, _ in command.streams]
    groups = [(key, key.groups.get(command.group)) for key in keys if key]
    if any(group is not None and has_expired(look, key, group) for key, group in groups):
        # The last turn has acknowledged some of what is too old, and had to end.
        return look.now_ms
    in_order_ms = [retry_order_ms(look, key, group) for key, group in groups if group is not None]
    at_ms = _claim_retry_ms(look, command, keys)
    return min((one for one in (*in_order_ms, at_ms) if one is not None), default=None)


def _claim_retry_ms(look: Look, command: types.XReadGroup, keys: Sequence[Key | None]) -> int | None:
    """The same of a claim of what others hold."""
    wait_ms = command.claim_min_idle_ms
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
    if group.is_paused or (wait_ms >= CLAIM_NEVER_MS and not group.has_released()):
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
    if group.is_paused:
        return False
    if may_deliver(key, group):
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
