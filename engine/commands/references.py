"""Which pending lists refer to an entry, and removing entries with regard to them (KEEPREF, DELREF, ACKED).

Knows: what *referenced* means: some group has not read the entry yet, or holds it as pending.
Must never know: how a command was written, and what it answers.
"""

from collections.abc import Sequence
from itertools import takewhile

from engine import errors, ids
from engine.commands.retention import needed_from
from engine.commands.turn import Turn
from engine.commands.types import Refs, Trim
from engine.groups import Group
from engine.keyspace import Key
from engine.records import Cut, Remove
from engine.replies import Trimmed
from engine.stream import TrimPlan

# Redis's bounds for the entries that one approximate trim without LIMIT may remove.
_limit_entries_default = 10_000
_limit_entries_max = 1_000_000
_limit_nodes = 100


def is_referenced(key: Key, entry_id: int) -> bool:
    """Whether a group has still to read the entry, or to acknowledge it."""
    groups = key.groups.values()
    if not groups:
        return False
    if entry_id > min(group.last_delivered_id for group in groups):
        return True
    return any(entry_id in group.pending for group in groups)


def remove_references(turn: Turn, stream: str, gone: Sequence[int]) -> None:
    """Take the entries off every group's pending list."""
    for name, group in sorted(turn.keyspace.keys[stream].groups.items()):
        turn.settle(stream, name, [entry_id for entry_id in gone if entry_id in group.pending])


def trim(turn: Turn, stream: str, asked: Trim, *, dry_run: bool = False, guard: bool = False) -> Trimmed:
    """Trim an existing stream."""
    key = turn.keyspace.keys[stream]
    plan = plan_trim(turn, key, asked)
    if guard and plan.removed and _highest(key, plan) >= needed_from(key):
        raise errors.trim_guarded(ids.text(needed_from(key)))
    affected = pending_affected(key, plan)
    if dry_run:
        return Trimmed(plan.removed, _first_kept(key, plan), affected)
    if plan.ids:
        turn.emit(Remove(stream, plan.ids, tombstone=False))
        if asked.refs is Refs.DELETE:
            remove_references(turn, stream, plan.ids)
    elif plan.removed:
        turn.emit(Cut(stream, plan.cut))
    return Trimmed(plan.removed, key.stream.first_id, affected)


def _highest(key: Key, plan: TrimPlan) -> int:
    return plan.ids[-1] if plan.ids else key.stream.live_below(plan.cut)


def _first_kept(key: Key, plan: TrimPlan) -> int:
    if not plan.ids:
        return key.stream.live_from(plan.cut)
    gone = set(plan.ids)
    return next((entry_id for entry_id in key.stream.live_ids() if entry_id not in gone), 0)


def plan_trim(turn: Turn, key: Key, asked: Trim) -> TrimPlan:
    """What the trim would remove."""
    limit, minid = _limit(turn, asked), asked.minid
    if asked.older_than_ms is not None:
        minid = ids.make(max(0, turn.now_ms - asked.older_than_ms), 0)
    if asked.refs is Refs.KEEP:
        return key.stream.plan_cut(maxlen=asked.maxlen, minid=minid, approx=asked.approx, limit=limit)
    return key.stream.plan_removal(
        maxlen=asked.maxlen,
        minid=minid,
        limit=limit,
        keep=lambda entry_id: asked.refs is Refs.ACKED and is_referenced(key, entry_id),
    )


def _limit(turn: Turn, asked: Trim) -> int:
    if not asked.approx:
        return 0
    if asked.limit is not None:
        return asked.limit
    wanted = _limit_nodes * turn.keyspace.settings["stream-node-max-entries"]
    return min(wanted, _limit_entries_max) if wanted > 0 else _limit_entries_default


def pending_affected(key: Key, plan: TrimPlan) -> int:
    """How many pending entries, over all groups, lose their entry by the plan."""
    if plan.ids:
        return sum(entry_id in group.pending for group in key.groups.values() for entry_id in plan.ids)
    return sum(_pending_below(key, group, plan.cut) for group in key.groups.values()) if plan.removed else 0


def _pending_below(key: Key, group: Group, cut: int) -> int:
    """How many pending entries below `cut` still have their entry."""
    first_id, pending = key.stream.first_id, group.pending
    if key.stream.max_deleted_id < first_id:
        return pending.weight_below(cut, _one) - pending.weight_below(first_id, _one)
    below = takewhile(lambda row: row[0] < cut, pending.items(first_id))
    return sum(entry_id in key.stream for entry_id, _ in below)


def _one(_: object) -> int:
    return 1
