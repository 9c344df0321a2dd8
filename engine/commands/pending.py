"""XACK, XACKDEL, XNACK, XPENDING, XCLAIM, XAUTOCLAIM: what was delivered and is not done; and undoing a
delivery whose reply never left, so that its entries are as if they had never been read.

Knows: acknowledging, releasing, looking at and taking over pending entries (docs/semantics.md); when a
delivery may be undone, and where the entries are after a refusal.
Must never know: new entries, wire formats, why a reply did not leave.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

from engine import errors
from engine.commands import types, weir_commands
from engine.commands.dead_letters import TURN_LETTERS_MAX, Dead, fit_letters, move_to_dead_letters, why_dead
from engine.commands.entries import absent, delete_each
from engine.commands.group_reading import DELIVERY_COUNT_MAX, one_more, pending_of, with_texts
from engine.commands.ordering import note_forced, take_back
from engine.commands.reading import Budget
from engine.commands.registry import Steps, runs
from engine.commands.turn import TURN_LOOKUPS_MAX, TURN_SCANNED_MAX, Turn, Unfinished
from engine.groups import Group
from engine.parts.deferrals import Defer
from engine.parts.ordering import Ordering
from engine.pending_states import PendingState, held_by_others, not_held_by
from engine.records.changes import Own, Release
from engine.replies import (
    NOT_HELD,
    AcknowledgedIds,
    AutoClaimed,
    Claimed,
    Deletions,
    Delivered,
    DeliveryMark,
    Outcomes,
    PendingEntry,
    PendingList,
    PendingSummary,
)
from engine.stream import Stream

# A block of pending entries none of which is idle for long enough, in entries: 8 us at the first look.
_BLOCK_SCANS: Final = 10
# Rows of XPENDING that one turn makes: each costs up to 1.3 µs.
TURN_ROWS_MAX: Final = 2_500
# Deliveries that one turn makes less by one.
_LESSENED_MAX: Final = TURN_LOOKUPS_MAX


@runs(types.XAck)
def xack(turn: Turn, command: types.XAck) -> int:
    return len(_acknowledge(turn, command.stream, command.group, command.ids))


@runs(weir_commands.Acknowledge)
def acknowledge(turn: Turn, command: weir_commands.Acknowledge) -> AcknowledgedIds:
    if not command.holders:
        return AcknowledgedIds(_acknowledge(turn, command.stream, command.group, command.ids))
    key = turn.keyspace.find(command.stream)
    if key is None or command.group not in key.groups:
        return AcknowledgedIds(())
    pending = key.groups[command.group].pending.items_of(sorted(set(command.ids)))
    settled, not_held = dict[int, None](), list[int]()
    for entry_id, holder in zip(command.ids, command.holders, strict=True):
        # An ID that was acknowledged is not pending where it is named again.
        if entry_id not in pending or entry_id in settled:
            continue
        if holder and pending[entry_id].is_held_by_another(holder):
            not_held.append(entry_id)
        else:
            settled[entry_id] = None
    turn.settle(command.stream, command.group, sorted(settled))
    return AcknowledgedIds(list(settled), not_held)


def _acknowledge(turn: Turn, stream: str, group: str, wanted: types.Ids) -> list[int]:
    """Settle those of the IDs that are pending; return them, each once."""
    key = turn.keyspace.find(stream)
    if key is None or group not in key.groups:
        return []
    pending, wanted = key.groups[group].pending, list(wanted)
    # The IDs of a batch are consecutive: all exist, and none is named twice.
    settled = wanted if pending.has_run(wanted) else pending.held_of(sorted(set(wanted)))
    turn.settle(stream, group, settled)
    return settled


@runs(types.XAckDel)
def xackdel(turn: Turn, command: types.XAckDel) -> Steps[Deletions]:
    key = turn.keyspace.find(command.stream)
    if key is None or command.group not in key.groups:
        return Deletions([absent] * len(command.ids))
    wanted = command.ids
    held = key.groups[command.group].pending.items_of(sorted(set(wanted)))
    others = held_by_others(held, command.consumer)
    settled = list(dict.fromkeys(each for each in wanted if each in held and each not in others))
    outcomes = yield from delete_each(turn, command, key, settled, command.group)
    # An entry that was gone already counts as deleted.
    by_id = dict(zip(settled, map(abs, outcomes), strict=True))
    # An ID that is named again was acknowledged by its first mention.
    return Deletions([NOT_HELD if entry_id in others else by_id.pop(entry_id, absent) for entry_id in wanted])


@runs(types.XNack)
def xnack(turn: Turn, command: types.XNack) -> Steps[Outcomes]:
    key, group = turn.group(command.stream, command.group)
    nack = command.nack
    released: list[int] = []
    counts: list[int] = []
    # An ID that is named again is released again.
    latest: dict[int, int] = {}
    held = group.pending.items_of(sorted(set(nack.ids)))
    not_held, forced = not_held_by(held, command.consumer), dict[int, bytes]()
    if nack.force and group.parts and Ordering.of(group) is not None:
        absent_ids = [entry_id for entry_id in nack.ids if entry_id not in held]
        turn.ask_lookups(len(absent_ids))
        forced = key.stream.find_each(absent_ids)
    for entry_id in nack.ids:
        if entry_id in not_held:
            continue
        before = latest.get(entry_id)
        if before is None:
            pending = held.get(entry_id)
            if pending is not None:
                before = pending.delivery_count
            elif nack.force and entry_id in key.stream:
                before = 0
            else:
                continue
        latest[entry_id] = _nacked_count(before, nack)
        released.append(entry_id)
        counts.append(latest[entry_id])
    yield
    if released and nack.delay_ms:
        turn.emit(Defer(command.stream, command.group, released, turn.now_ms + nack.delay_ms, counts))
    elif released:
        turn.emit(Release(command.stream, command.group, released, counts))
        turn.signal(command.stream)
    note_forced(turn, (command.stream, command.group), forced)
    return Outcomes(released, list(not_held))


@runs(weir_commands.GiveBack)
def give_back(turn: Turn, command: weir_commands.GiveBack) -> int | Unfinished:
    """`so_far` is how many IDs earlier turns looked at, and how many of those they released."""
    key = turn.keyspace.find(command.stream)
    group = key.groups.get(command.group) if key is not None else None
    start, released = turn.so_far or (0, 0)
    if group is None:
        return released
    stop = start + TURN_LOOKUPS_MAX
    if not turn.may_continue:
        turn.ask_lookups(len(command.ids))
    named = command.ids[start:stop]
    pending = group.pending.items_of(sorted(set(named)))
    held = {
        entry_id: state.delivery_count
        for entry_id in named
        if (state := pending.get(entry_id)) is not None and state.is_held_by(command.consumer)
    }
    if held:
        counts = [max(0, count - 1) for count in held.values()]
        turn.emit(Release(command.stream, command.group, list(held), counts))
        turn.signal(command.stream)
    released += len(held)
    return released if stop >= len(command.ids) else Unfinished((stop, released))


def _nacked_count(before: int, nack: types.Nack) -> int:
    if nack.retry_count is not None:
        return nack.retry_count
    if nack.mode is types.NackMode.FATAL:
        return DELIVERY_COUNT_MAX
    return max(0, before - 1) if nack.mode is types.NackMode.SILENT else before


@runs(types.XPending)
def xpending(turn: Turn, command: types.XPending) -> PendingSummary:
    _, group = turn.group(command.stream, command.group)
    first, last = group.pending.first(), group.pending.last()
    consumers = [
        (name, len(consumer.pending))
        for name, consumer in sorted(group.consumers.items())
        if consumer.pending
    ]
    return PendingSummary(len(group.pending), first[0] if first else 0, last[0] if last else 0, consumers)


@runs(types.XPendingRange)
def xpending_range(turn: Turn, command: types.XPendingRange) -> PendingList | Unfinished:
    """Many rows take several turns, and so does a look for idle entries where there are many others: `so_far`
    is the next ID, and what was found below it.
    """
    _, group = turn.group(command.stream, command.group)
    if command.count <= 0:
        return PendingList(())
    start, listed = turn.so_far or (command.start, list[PendingEntry]())
    now_ms, count, min_idle_ms = turn.now_ms, command.count, command.min_idle_ms
    rows_max = len(listed) + TURN_ROWS_MAX if turn.may_continue else count
    for entry_id, state in _pending_in(turn, group, command, start):
        turn.scans_left -= 1 if state is not None else _BLOCK_SCANS
        if turn.scans_left < 0 and not turn.may_continue:
            raise errors.invalid(
                f"ERR too many pending entries: a transaction looks at {TURN_SCANNED_MAX}; look outside of "
                "one, or at a smaller range"
            )
        owner = None if state is None else state.consumer
        idle_ms = -1 if state is None or owner is None else state.idle_ms(now_ms)
        if state is not None and (min_idle_ms == 0 or _is_free(turn, state, min_idle_ms)):
            if len(listed) == count:
                return PendingList(listed, more=True)
            if len(listed) == rows_max:
                return Unfinished((entry_id, listed))
            name = None if owner is None else owner.name
            listed.append(PendingEntry(entry_id, name, idle_ms, state.delivery_count, state.until_ms))
        elif turn.scans_left < 0:
            return Unfinished((entry_id, listed))
    return PendingList(listed)


def _pending_in(
    turn: Turn, group: Group, command: types.XPendingRange, start: int
) -> Iterator[tuple[int, PendingState | None]]:
    """The pending entries of the range from `start` on, of one consumer or of all; those that are known not
    to be idle for long enough together, as the last of them without a state.
    """
    rows: Iterator[tuple[int, PendingState | None]]
    if command.min_idle_ms > 0:
        consumer = None if command.consumer is None else group.consumers.get(command.consumer)
        if consumer is None and command.consumer is not None:
            return
        rows = group.idle_from(start, command.min_idle_ms, turn.now_ms, consumer)
    elif command.consumer is None:
        rows = group.pending.items(start)
    elif command.consumer in group.consumers:
        rows = pending_of(group, group.consumers[command.consumer], start)
    else:
        return
    for entry_id, state in rows:
        if entry_id > command.end:
            return
        yield entry_id, state


# --- claiming -----------------------------------------------------------------------------------------------


@runs(types.XClaim)
def xclaim(turn: Turn, command: types.XClaim) -> Steps[Claimed]:
    key, group = turn.group(command.stream, command.group)
    claim = command.claim
    time_ms = _claim_time(turn, claim)
    turn.expect_consumer(command.stream, command.group, command.consumer)
    passed = key.stream.unreadable(claim.ids)
    readable = [entry_id for entry_id in claim.ids if entry_id not in passed]
    texts = key.stream.find_each(readable)
    claiming = _Claiming(turn, group, command, time_ms)
    held = group.pending.items_of(sorted(set(claim.ids)))
    for entry_id in readable:
        claiming.take_entry(entry_id, texts.get(entry_id), held.get(entry_id))
    dead = fit_letters(turn, command.stream, command.group, list(claiming.dead.values()))
    yield
    if claim.last_id is not None and claim.last_id > group.last_delivered_id:
        turn.move_group(command.stream, command.group, claim.last_id, group.entries_read)
    turn.see_consumer(command.stream, command.group, command.consumer)
    turn.settle(command.stream, command.group, list(claiming.gone))
    move_to_dead_letters(turn, command.stream, command.group, dead)
    claimed = claiming.found
    if claimed:
        _own(turn, command, claimed, time_ms)
        note_forced(turn, (command.stream, command.group), claiming.forced)
    return Claimed(claimed, claiming.more)


def _own(turn: Turn, command: types.XClaim | types.XAutoClaim, taken: list[Delivered], time_ms: int) -> None:
    claimed, counts = [entry.id for entry in taken], [entry.delivery_count for entry in taken]
    turn.emit(Own(command.stream, command.group, command.consumer, claimed, time_ms, counts))
    turn.mark_active(command.stream, command.group, command.consumer)


def _claim_time(turn: Turn, claim: types.Claim) -> int:
    """The delivery time that claimed entries get; one before 1970 or in the future is now."""
    time_ms = turn.now_ms
    if claim.idle_ms is not None:
        time_ms = turn.now_ms - claim.idle_ms
    elif claim.time_ms is not None:
        time_ms = claim.time_ms
    return time_ms if 0 <= time_ms <= turn.now_ms else turn.now_ms


class _Claiming:
    """XCLAIM, ID after ID: what is claimed, gone, and to be dead-lettered."""

    __slots__ = (
        "_claim",
        "_claimed",
        "_group",
        "_names",
        "_room",
        "_time_ms",
        "_turn",
        "dead",
        "forced",
        "found",
        "gone",
        "more",
    )

    def __init__(self, turn: Turn, group: Group, command: types.XClaim, time_ms: int) -> None:
        claim = command.claim
        self._turn, self._group, self._claim, self._time_ms = turn, group, claim, time_ms
        self._names = (command.stream, command.group)
        self._room = Budget(None if claim.just_ids else command.bytes_max, len(claim.ids))
        self._claimed: dict[int, int] = {}
        self.found: list[Delivered] = []
        # Whether the budget left one out.
        self.more = False
        self.gone: dict[int, None] = {}
        self.dead: dict[int, Dead] = {}
        # The entries that it makes pending.
        self.forced: dict[int, bytes] = {}

    def take_entry(self, entry_id: int, text: bytes | None, pending: PendingState | None) -> None:
        """Find out what happens to one ID; `text` is its entry, None if that is gone. One that is named again
        was claimed before by this command.
        """
        if text is None:
            if pending is not None:
                self.gone[entry_id] = None
            return
        again = self._claimed.get(entry_id)
        if again is not None:
            before, idle_ms, owned = again, self._turn.now_ms - self._time_ms, True
        elif pending is not None:
            before, idle_ms = pending.delivery_count, pending.idle_ms(self._turn.now_ms)
            owned = pending.consumer is not None
        elif self._claim.force:
            # Entries that FORCE makes pending count as delivered once.
            before, idle_ms, owned = 1, 0, False
        else:
            return
        if entry_id in self.dead or (owned and idle_ms < self._claim.min_idle_ms):
            return
        count = _claimed_count(before, self._claim)
        if (
            pending is not None
            and again is None
            and (count > before or (before == DELIVERY_COUNT_MAX == count and not self._claim.just_ids))
            and (why := why_dead(self._turn, self._group, entry_id, count, self._names))
        ):
            if len(self.dead) < TURN_LETTERS_MAX:
                self.dead[entry_id] = Dead(entry_id, text, pending, why)
            else:
                self.more = True
        elif self._room.takes(len(text)):
            self._claimed[entry_id] = count
            if pending is None:
                self.forced[entry_id] = text
            shown = None if self._claim.just_ids else text
            released = again is None and pending is not None and pending.consumer is None
            self.found.append(Delivered(entry_id, shown, count, idle_ms, before, released))
        else:
            self.more = True


def _claimed_count(before: int, claim: types.Claim) -> int:
    if claim.retry_count is not None:
        return claim.retry_count
    return before if claim.just_ids else one_more(before)


@runs(weir_commands.Extend)
def extend(turn: Turn, command: weir_commands.Extend) -> Outcomes:
    _, group = turn.group(command.stream, command.group)
    pending = group.pending.items_of(sorted(set(command.ids)))
    # What was released is worked on all the same.
    not_held = {
        entry_id: state
        for entry_id, state in not_held_by(pending, command.consumer).items()
        if not state.is_released
    }
    held = {entry_id: state for entry_id, state in pending.items() if entry_id not in not_held}
    if held or command.consumer in group.consumers:
        turn.see_consumer(command.stream, command.group, command.consumer)
    if held:
        counts = [state.delivery_count for state in held.values()]
        turn.emit(Own(command.stream, command.group, command.consumer, list(held), turn.now_ms, counts))
        turn.mark_active(command.stream, command.group, command.consumer)
    return Outcomes(list(held), list(not_held))


@runs(types.XAutoClaim)
def xautoclaim(turn: Turn, command: types.XAutoClaim) -> Steps[AutoClaimed]:
    key, group = turn.group(command.stream, command.group)
    turn.expect_consumer(command.stream, command.group, command.consumer)
    if group.is_paused:
        yield
        turn.see_consumer(command.stream, command.group, command.consumer)
        return AutoClaimed(0, (), ())
    taken: list[Delivered] = []
    deleted_ids: list[int] = []
    dead: list[Dead] = []
    count = min(command.count, max(1, turn.lookups_left))
    room = Budget(None if command.just_ids else command.bytes_max, turn.ids_left())
    rows = group.pending.items(command.start)
    may_take = partial(_may_take, turn, key.stream, command.min_idle_ms)
    names = (command.stream, command.group)
    some = islice(rows, command.attempts)
    for entry_id, pending, text in with_texts(key.stream, some, count, may_take, passes_over=True):
        if len(taken) + len(deleted_ids) == count:
            next_start = entry_id
            break
        if not may_take((entry_id, pending)):
            continue
        if text is None:
            deleted_ids.append(entry_id)
        elif not _is_free(turn, pending, command.min_idle_ms):
            continue
        elif not command.just_ids and (
            why := why_dead(turn, group, entry_id, pending.delivery_count + 1, names)
        ):
            if len(dead) == TURN_LETTERS_MAX:
                next_start = entry_id
                break
            dead.append(Dead(entry_id, text, pending, why))
        elif not room.takes(len(text)):
            next_start = entry_id
            break
        else:
            taken.append(_autoclaimed(turn, command, entry_id, pending, text))
    else:
        next_start, _ = next(rows, (0, None))
    turn.lookups_left -= len(taken) + len(deleted_ids) + len(dead)
    turn.count_ids(len(deleted_ids) + len(taken))
    letters = fit_letters(turn, command.stream, command.group, dead)
    yield
    turn.see_consumer(command.stream, command.group, command.consumer)
    move_to_dead_letters(turn, command.stream, command.group, letters)
    turn.settle(command.stream, command.group, deleted_ids)
    if taken:
        _own(turn, command, taken, turn.now_ms)
    return AutoClaimed(next_start, taken, deleted_ids)


def _is_free(turn: Turn, one: PendingState, min_idle_ms: int) -> bool:
    """Whether a pending entry is released, or idle for so long. A deferred one waits for its time."""
    if one.consumer is None:
        return one.until_ms is None
    return one.idle_ms(turn.now_ms) >= min_idle_ms


def _may_take(turn: Turn, stream: Stream, min_idle_ms: int, row: tuple[int, PendingState]) -> bool:
    """Whether a pending entry is to be looked up: it is idle for long enough, or may be gone."""
    entry_id, state = row
    if _is_free(turn, state, min_idle_ms):
        return True
    # After XSETID has lowered the last ID, live entries may be below what was trimmed.
    return not stream.first_id <= entry_id <= stream.last_live_id or entry_id <= stream.gone_upto


def _autoclaimed(
    turn: Turn, command: types.XAutoClaim, entry_id: int, pending: PendingState, text: bytes
) -> Delivered:
    before = pending.delivery_count
    count = before if command.just_ids else one_more(before)
    idle_ms, released = pending.idle_ms(turn.now_ms), pending.consumer is None
    return Delivered(entry_id, None if command.just_ids else text, count, idle_ms, before, released)


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
    names = command.stream, command.group
    is_whole = not start and len(_as_left(group, command, mark, 0)) == len(command.ids)
    if is_whole and command.ids and take_back(turn, names, command.ids):
        return True
    if is_whole and is_unmoved:
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
        (entry_id, state.delivery_time_ms, state.delivery_count)
        for order, entry_id in enumerate(named, mark.order + start)
        if (state := held.get(entry_id)) is not None
        and state.order == order
        and state.is_held_by(command.consumer)
    ]
