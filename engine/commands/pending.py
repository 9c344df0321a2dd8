"""XACK, XACKDEL, XNACK, XPENDING, XCLAIM, XAUTOCLAIM: what was delivered and is not done.

Knows: acknowledging, releasing, looking at and taking over pending entries (semantics.md 1.11 to 1.15).
Must never know: new entries, wire formats.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from engine.commands import types
from engine.commands.deadletters import Dead, bury, is_dead, too_many
from engine.commands.entries import absent, delete_one
from engine.commands.reading import delivery_count_max
from engine.commands.turn import Turn, checked
from engine.groups import Group, Pending
from engine.keyspace import Key
from engine.records import Own, Release, Settle
from engine.replies import (
    AutoClaimed,
    Claimed,
    Deletions,
    Delivered,
    PendingEntry,
    PendingList,
    PendingSummary,
)

# XAUTOCLAIM looks at so many pending entries for each that it may claim.
_attempts_factor: Final = 10


def xack(turn: Turn, command: types.XAck) -> int:
    key = turn.keyspace.find(command.stream)
    if key is None or command.group not in key.groups:
        return 0
    pending = key.groups[command.group].pending
    settled = list(dict.fromkeys(entry_id for entry_id in checked(command.ids) if entry_id in pending))
    turn.settle(command.stream, command.group, settled)
    return len(settled)


def xackdel(turn: Turn, command: types.XAckDel) -> Deletions:
    key = turn.keyspace.find(command.stream)
    if key is None or command.group not in key.groups:
        return Deletions([absent] * command.numids)
    return Deletions([_acknowledge_one(turn, command, key, entry_id) for entry_id in checked(command.ids)])


def _acknowledge_one(turn: Turn, command: types.XAckDel, key: Key, entry_id: int) -> int:
    if entry_id not in key.groups[command.group].pending:
        return absent
    turn.settle(command.stream, command.group, [entry_id])
    # An entry that was gone already counts as deleted.
    return abs(delete_one(turn, command.stream, key, entry_id, command.refs))


def xnack(turn: Turn, command: types.XNack) -> int:
    key, group = turn.group(command.stream, command.group)
    nack = checked(command.nack)
    released = 0
    for entry_id in nack.ids:
        pending = group.pending.get(entry_id)
        if pending is not None:
            before = pending.delivery_count
        elif nack.force and entry_id in key.stream:
            before = 0
        else:
            continue
        turn.emit(Release(command.stream, command.group, (entry_id,), (_nacked_count(before, nack),)))
        released += 1
    if released:
        turn.signal(command.stream)
    return released


def _nacked_count(before: int, nack: types.Nack) -> int:
    if nack.retry_count is not None:
        return nack.retry_count
    if nack.mode is types.NackMode.FATAL:
        return delivery_count_max
    return max(0, before - 1) if nack.mode is types.NackMode.SILENT else before


def xpending(turn: Turn, command: types.XPending) -> PendingSummary:
    _, group = turn.group(command.stream, command.group)
    first, last = group.pending.first(), group.pending.last()
    consumers = [(name, len(one.pending)) for name, one in sorted(group.consumers.items()) if one.pending]
    return PendingSummary(len(group.pending), first[0] if first else 0, last[0] if last else 0, consumers)


def xpending_range(turn: Turn, command: types.XPendingRange) -> PendingList:
    _, group = turn.group(command.stream, command.group)
    if command.count <= 0:
        return PendingList(())
    rows = (
        (entry_id, one)
        for entry_id, one in _pending_in(group, command)
        if one.consumer is None or one.idle_ms(turn.now_ms) >= command.min_idle_ms
    )
    found = [_pending_entry(turn, entry_id, one) for entry_id, one in islice(rows, command.count + 1)]
    return PendingList(found[: command.count], more=len(found) > command.count)


def _pending_in(group: Group, command: types.XPendingRange) -> Iterator[tuple[int, Pending]]:
    """The pending entries of the range, of one consumer or of all."""
    if command.consumer is None:
        rows = group.pending.items(command.start)
    elif command.consumer in group.consumers:
        rows = _pending_of(group, command.consumer, command.start)
    else:
        return
    for entry_id, one in rows:
        if entry_id > command.end:
            return
        yield entry_id, one


def _pending_of(group: Group, consumer: str, start: int) -> Iterator[tuple[int, Pending]]:
    for entry_id, _ in group.consumers[consumer].pending.items(start):
        one = group.pending.get(entry_id)
        assert one is not None, "what a consumer holds is pending in its group"
        yield entry_id, one


def _pending_entry(turn: Turn, entry_id: int, one: Pending) -> PendingEntry:
    if one.consumer is None:
        return PendingEntry(entry_id, None, -1, one.delivery_count)
    return PendingEntry(entry_id, one.consumer.name, one.idle_ms(turn.now_ms), one.delivery_count)


# --- claiming -----------------------------------------------------------------------------------------------


def xclaim(turn: Turn, command: types.XClaim) -> Claimed:
    key, group = turn.group(command.stream, command.group)
    claim = checked(command.claim)
    time_ms = _claim_time(turn, claim)
    turn.expect_consumer(command.stream, command.group, command.consumer)
    if claim.last_id is not None and claim.last_id > group.last_delivered_id:
        turn.move_group(command.stream, command.group, claim.last_id, group.entries_read)
    turn.seen(command.stream, command.group, command.consumer)
    found = [
        one for entry_id in claim.ids if (one := _claim_one(turn, command, key, claim, entry_id, time_ms))
    ]
    if found:
        turn.active(command.stream, command.group, command.consumer)
    return Claimed(found)


def _claim_time(turn: Turn, claim: types.Claim) -> int:
    """The delivery time that claimed entries get; one before 1970 or in the future is now."""
    time_ms = turn.now_ms
    if claim.idle_ms is not None:
        time_ms = turn.now_ms - claim.idle_ms
    elif claim.time_ms is not None:
        time_ms = claim.time_ms
    return time_ms if 0 <= time_ms <= turn.now_ms else turn.now_ms


def _claim_one(
    turn: Turn, command: types.XClaim, key: Key, claim: types.Claim, entry_id: int, time_ms: int
) -> Delivered | None:
    pending = key.groups[command.group].pending.get(entry_id)
    text = key.stream.get(entry_id)
    if text is None:
        if pending is not None:
            turn.emit(Settle(command.stream, command.group, (entry_id,)))
        return None
    if pending is None and not claim.force:
        return None
    # Entries that FORCE makes pending count as delivered once.
    before = pending.delivery_count if pending is not None else 1
    idle_ms = pending.idle_ms(turn.now_ms) if pending is not None else 0
    if pending is not None and pending.consumer is not None and idle_ms < claim.min_idle_ms:
        return None
    count = _claimed_count(before, claim)
    if pending is not None and count > before and is_dead(turn, key.groups[command.group], count):
        bury(turn, command.stream, command.group, [Dead(entry_id, text, pending)], too_many)
        return None
    turn.emit(Own(command.stream, command.group, command.consumer, (entry_id,), time_ms, (count,)))
    return Delivered(entry_id, None if claim.just_ids else text, count, idle_ms, before)


def _claimed_count(before: int, claim: types.Claim) -> int:
    if claim.retry_count is not None:
        return claim.retry_count
    return before if claim.just_ids else min(before + 1, delivery_count_max)


def xautoclaim(turn: Turn, command: types.XAutoClaim) -> AutoClaimed:
    key, group = turn.group(command.stream, command.group)
    turn.seen(command.stream, command.group, command.consumer)
    found: list[Delivered] = []
    deleted_ids: list[int] = []
    dead: list[Dead] = []
    attempts = command.count * _attempts_factor
    page = group.pending.page(command.start, attempts + 1)
    next_start = page[attempts][0] if len(page) > attempts else 0
    for entry_id, pending in page[:attempts]:
        if len(found) + len(deleted_ids) == command.count:
            next_start = entry_id
            break
        text = key.stream.get(entry_id)
        if text is None:
            deleted_ids.append(entry_id)
        elif pending.consumer is not None and pending.idle_ms(turn.now_ms) < command.min_idle_ms:
            continue
        elif not command.just_ids and is_dead(turn, group, pending.delivery_count + 1):
            dead.append(Dead(entry_id, text, pending))
        else:
            found.append(_autoclaimed(turn, command, entry_id, pending, text))
    bury(turn, command.stream, command.group, dead, too_many)
    turn.settle(command.stream, command.group, deleted_ids)
    if found:
        claimed = [one.id for one in found]
        counts = [one.delivery_count for one in found]
        turn.emit(Own(command.stream, command.group, command.consumer, claimed, turn.now_ms, counts))
        turn.active(command.stream, command.group, command.consumer)
    return AutoClaimed(next_start, found, deleted_ids)


def _autoclaimed(
    turn: Turn, command: types.XAutoClaim, entry_id: int, pending: Pending, text: bytes
) -> Delivered:
    before = pending.delivery_count
    count = before if command.just_ids else min(before + 1, delivery_count_max)
    return Delivered(
        entry_id, None if command.just_ids else text, count, pending.idle_ms(turn.now_ms), before
    )
