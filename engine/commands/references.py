"""Which pending lists refer to an entry, and removing entries with regard to them (KEEPREF, DELREF, ACKED).

Knows: what *referenced* means: some group has not read the entry yet, or holds it as pending.
Must never know: how a command was written, and what it answers.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from engine import errors, ids
from engine.commands.retention import needed_from
from engine.commands.turn import TURN_REMOVALS_MAX, TURN_SCANNED_MAX, Turn, cut_of, removal_of
from engine.commands.types import Refs, Trim
from engine.groups import Group
from engine.keyspace import Key
from engine.records.changes import Cut, Remove
from engine.replies import Trimmed
from engine.trim_plans import RemovalLimits, TrimPlan, plan_cut, plan_removal

# Redis's bounds for the entries that one approximate trim without LIMIT may remove.
_LIMIT_ENTRIES_DEFAULT: Final = 10_000
_LIMIT_ENTRIES_MAX: Final = 1_000_000
_LIMIT_NODES: Final = 100


def find_referenced(key: Key, wanted: Sequence[int], settling: str | None = None) -> set[int]:
    """Those of ascending IDs that a group has still to read, or to acknowledge; one is to settle all of
    them.
    """
    return _Referenced(key, settling).of(wanted)


def references_of(key: Key, gone: Sequence[int]) -> int:
    """How many pending entries, over all groups, ascending IDs have."""
    return sum(len(_pending_of(group, gone)) for group in key.groups.values())


def remove_references(turn: Turn, stream: str, gone: Sequence[int]) -> None:
    """Take the entries, in order of their IDs, off every group's pending list."""
    for name, group in sorted(turn.keyspace.keys[stream].groups.items()):
        turn.settle(stream, name, _pending_of(group, gone))


def _pending_of(group: Group, wanted: Sequence[int]) -> list[int]:
    """Those of ascending IDs that the group holds as pending. Costs the fewer of both, not their product."""
    if not wanted:
        return []
    pending = group.pending
    between = pending.count_between(wanted[0], wanted[-1])
    if between > len(wanted):
        return pending.held_of(wanted)
    among = (entry_id for entry_id, _ in pending.page(wanted[0], between))
    return [entry_id for entry_id in among if wanted[bisect_left(wanted, entry_id)] == entry_id]


class _Referenced:
    """Which entries of a stream the groups still need, while no group changes."""

    __slots__ = ("groups", "read_upto")

    def __init__(self, key: Key, settling: str | None = None) -> None:
        self.groups = [
            group
            for name, group in key.groups.items()
            if (group.pending or (group.parts and group.passed_over)) and name != settling
        ]
        # Some group has not read the entries above it.
        self.read_upto = min((group.last_delivered_id for group in key.groups.values()), default=ids.ID_MAX)

    def of(self, wanted: Sequence[int]) -> set[int]:
        """Those of ascending IDs that some group has still to read or to acknowledge."""
        read = bisect_right(wanted, self.read_upto)
        needed = set(wanted[read:])
        for group in self.groups:
            needed.update(_pending_of(group, wanted[:read]))
            needed.update(group.passed_over.held_of(wanted[:read]) if group.parts else ())
            if len(needed) == len(wanted):
                break
        return needed


class Trimming(NamedTuple):
    """What a trim would do: the removal, None for none, and how many pending entries lose theirs."""

    plan: TrimPlan
    record: Cut | Remove | None
    affected: int = 0


def select_trim(
    turn: Turn,
    stream: str,
    asked: Trim,
    *,
    guard: bool = False,
    added: int = 0,
    begun: Trimming | None = None,
) -> Trimming:
    """What the trim of an existing stream would do, as far as one turn goes; with `guard` what a group needs
    is refused. Where `added` entries are to come before it, what it does to what is there; once they are
    there, it goes on from what was `begun`.
    """
    key = turn.keyspace.keys[stream]
    plan = plan_trim(turn, key, asked, TrimPlan(added=added) if begun is None else begun.plan)
    if guard and plan.removed and _highest(key, plan) >= needed_from(key):
        raise errors.trim_guarded(ids.format(needed_from(key)))
    record: Cut | Remove | None = None
    if plan.ids and begun is not None and begun.record is not None:
        # What was appended meanwhile is in no run.
        record = msgspec.structs.replace(begun.record, ids=plan.ids)
    elif plan.ids:
        record = removal_of(stream, key.stream, plan.ids, tombstone=False)
    elif plan.open_at is None and plan.removed:
        record = cut_of(stream, key.stream, plan.cut)
    affected = 0
    if asked.count_pending:
        before = 0 if begun is None or plan.ids else begun.affected
        start = 0 if begun is None else begun.plan.open_at or 0
        affected = before + _pending_affected(key, plan, start)
    return Trimming(plan, record, affected)


def emit_trim(turn: Turn, stream: str, asked: Trim, selected: Trimming | None) -> Trimmed:
    """Trim. What depends on entries that were appended since it was selected is planned now; for None, all
    of it.
    """
    key = turn.keyspace.keys[stream]
    if selected is None or selected.plan.open_at is not None:
        selected = select_trim(turn, stream, asked, begun=selected)
    plan, record, affected = selected
    if record is not None:
        if plan.ids:
            turn.count_ids(_logged(key, plan.ids, asked.refs))
        turn.emit(record)
        if asked.refs is Refs.DELETE:
            remove_references(turn, stream, plan.ids)
    return Trimmed(plan.removed, key.stream.first_id, affected)


def _highest(key: Key, plan: TrimPlan) -> int:
    return plan.ids[-1] if plan.ids else key.stream.live_below(plan.cut)


def first_kept(key: Key, plan: TrimPlan) -> int:
    """The first entry that a planned trim leaves, 0 for none."""
    if not plan.ids:
        return key.stream.live_from(plan.cut)
    gone = set(plan.ids)
    return next((entry_id for entry_id in key.stream.live_ids() if entry_id not in gone), 0)


def plan_trim(turn: Turn, key: Key, asked: Trim, begun: TrimPlan) -> TrimPlan:
    """What the trim would remove."""
    limit, minid = _limit(turn, asked), asked.minid
    if asked.older_than_ms is not None:
        minid = ids.make(max(0, turn.now_ms - asked.older_than_ms), 0)
    if asked.refs is Refs.KEEP:
        return plan_cut(
            key.stream, maxlen=asked.maxlen, minid=minid, approx=asked.approx, limit=limit, begun=begun
        )
    needed = _Referenced(key) if asked.refs is Refs.ACKED else None
    maxlen = asked.maxlen
    if maxlen is not None:
        # No more than fits the log is looked for.
        maxlen = max(maxlen, key.stream.length + begun.added - min(turn.ids_left(), TURN_REMOVALS_MAX))
    # An entry is compared with the pending ones of each group.
    compared = 1 if needed is None else 1 + len(needed.groups)
    upto = ids.ID_MAX if needed is None else needed.read_upto
    plan = plan_removal(
        key.stream,
        maxlen=maxlen,
        minid=minid,
        limits=RemovalLimits(upto, limit, TURN_REMOVALS_MAX, turn.scans_left // compared),
        kept=(lambda _: set()) if needed is None else needed.of,
        begun=begun if turn.so_far is None else begun._replace(open_at=turn.so_far),
    )
    if plan.open_at is None:
        turn.scans_left -= plan.scanned * compared
    return _fitting(turn, key, plan, asked.refs)


def _fitting(turn: Turn, key: Key, plan: TrimPlan, refs: Refs) -> TrimPlan:
    """The plan, or where it is too much for the log as many of the lowest as fit: the next trim goes on."""
    wanted, room = plan.ids, turn.ids_left()
    if _logged(key, wanted, refs) <= room:
        return plan
    fitting = bisect_right(range(1, len(wanted) + 1), room, key=lambda n: _logged(key, wanted[:n], refs))
    wanted = wanted[: max(1, fitting)]
    return TrimPlan(0, wanted, len(wanted), plan.scanned)


def _logged(key: Key, gone: Sequence[int], refs: Refs) -> int:
    """How many IDs the log gets at most when these are removed."""
    if not gone or refs is not Refs.DELETE:
        return len(gone)
    return len(gone) + sum(group.pending.count_between(gone[0], gone[-1]) for group in key.groups.values())


def _limit(turn: Turn, asked: Trim) -> int:
    if not asked.approx:
        return 0
    if asked.limit is not None:
        return asked.limit
    wanted = _LIMIT_NODES * turn.keyspace.settings["stream-node-max-entries"]
    return min(wanted, _LIMIT_ENTRIES_MAX) if wanted > 0 else _LIMIT_ENTRIES_DEFAULT


def _pending_affected(key: Key, plan: TrimPlan, start: int) -> int:
    """How many pending entries from an ID on, over all groups, lose their entry by the plan."""
    if plan.ids:
        return references_of(key, plan.ids)
    if not plan.removed:
        return 0
    first_id, last = max(key.stream.first_id, start), (plan.open_at or plan.cut) - 1
    holes_upto = min(last, key.stream.gone_upto)
    groups = [group for group in key.groups.values() if group.pending]
    without_holes = sum(group.pending.count_between(max(first_id, holes_upto + 1), last) for group in groups)
    return without_holes + (_among_holes(key, groups, first_id, holes_upto) if first_id <= holes_upto else 0)


def _among_holes(key: Key, groups: Sequence[Group], low: int, high: int) -> int:
    """How many pending entries in `[low, high]` still have their entry, where others were deleted. Beyond
    `TURN_SCANNED_MAX` the others are counted with them.
    """
    groups = [group for group in groups if group.pending.count_between(low, high)]
    found = looked_at = 0
    for run_ids in key.stream.live_runs(low, high) if groups else ():
        found += sum(len(_pending_of(group, run_ids)) for group in groups)
        looked_at += len(run_ids) * len(groups)
        if looked_at >= TURN_SCANNED_MAX:
            return found + sum(group.pending.count_between(run_ids[-1] + 1, high) for group in groups)
    return found
