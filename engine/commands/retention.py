"""Retention: how much of a stream is kept, and what a trim may not pass.

Knows: limits by length, age and bytes, and what groups and archives still need.
Must never know: how a limit was asked for.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final

from engine import errors, ids
from engine.commands.base import Command
from engine.commands.turn import Turn, cut_of
from engine.errors import EngineError
from engine.keyspace import Key, Keyspace
from engine.parts.keeping import Retention, kept_of
from engine.records.changes import Cut
from engine.runs import Run
from engine.trim_plans import TrimPlan, plan_bytes, plan_cut

# What one turn removes at most: a stream that turns old all at once goes in several.
TURN_ENTRIES_MAX: Final = 10_000


def needed_from(key: Key) -> int:
    """The lowest ID that some group has still to read or to acknowledge, beyond all IDs if there is none."""
    return min((group.needed_from() for group in key.groups.values()), default=ids.ID_MAX + 1)


def is_kept_whole(key: Key) -> bool:
    """Whether it keeps all, but for `max_bytes`, until there is a first group to acknowledge it."""
    return kept_of(key).retention.keep_unacknowledged and not key.had_group


def _oldest(kept: Retention, now_ms: int) -> int:
    """The first ID that is not too old, 0 where none is."""
    return 0 if kept.max_age_ms is None else ids.make(max(0, now_ms - kept.max_age_ms), 0)


def holder(key: Key, now_ms: int) -> tuple[str, int]:
    """The group that keeps all entries in spite of a limit, and the first ID that it needs. NO_GROUP and 0 of
    a stream that waits for its first group; "" and 0 where nothing holds it.
    """
    stream, kept = key.stream, kept_of(key).retention
    if not kept.keep_unacknowledged or not key.had_group:
        return (errors.NO_GROUP if kept.keep_unacknowledged else ""), 0
    is_over = stream.length and (
        (kept.max_len is not None and stream.length > kept.max_len)
        or stream.first_id < _oldest(kept, now_ms)
        or (kept.max_bytes is not None and stream.held_bytes() > kept.max_bytes)
    )
    if not is_over or not key.groups:
        return "", 0
    needed, name = min((group.needed_from(), name) for name, group in key.groups.items())
    # What is pending may have been deleted. What is unread is the first entry that there is.
    held = needed if needed in key.groups[name].pending else stream.first_id
    return (name, held) if needed <= stream.first_id else ("", 0)


def name_kept_whole(refusal: EngineError, keyspace: Keyspace, commands: Sequence[Command]) -> EngineError:
    """The refusal; of what finds no room, with a stream of these commands that keeps all of it."""
    if refusal.code not in errors.OF_ROOM:
        return refusal
    for stream in chain.from_iterable(command.named_streams() or () for command in commands):
        key = keyspace.find(stream)
        if key is not None and is_kept_whole(key):
            return errors.with_held(refusal, stream)
    return refusal


def select_retention(turn: Turn, stream: str, *, exact: bool, limit: int = TURN_ENTRIES_MAX) -> Cut | None:
    """The cut of what the stream's retention no longer keeps, `limit` entries at most. Not `exact` takes
    whole nodes only, and looks into no run.
    """
    key = turn.keyspace.keys[stream]
    kept_from = _kept_from(key)
    if not key.stream.length or kept_from <= key.stream.first_id:
        return None
    plans = _plans(turn, key, exact=exact, limit=limit)
    cut = min(max((plan.cut for plan in plans), default=0), kept_from)
    part = key.stream.part_of(cut - 1) if cut and key.stream.nodes.runs else None
    if isinstance(part, Run) and part.first_live < cut <= part.last_live:
        if exact:
            with suppress(EngineError):
                return cut_of(stream, key.stream, cut)
        cut = part.first
    return cut_of(stream, key.stream, cut) if cut > key.stream.first_id else None


def _plans(turn: Turn, key: Key, *, exact: bool, limit: int) -> list[TrimPlan]:
    """What each limit asks for. A run that the disk does not give back stays until all of it may go."""
    if exact and key.stream.nodes.runs:
        with suppress(EngineError):
            return _plans_as(turn, key, exact=True, limit=limit)
        exact = False
    return _plans_as(turn, key, exact=exact, limit=limit)


def _plans_as(turn: Turn, key: Key, *, exact: bool, limit: int) -> list[TrimPlan]:
    stream, kept = key.stream, kept_of(key).retention
    if is_kept_whole(key):
        kept = Retention(max_bytes=kept.max_bytes)
    plans: list[TrimPlan] = []
    cut_by = partial(plan_cut, stream, approx=not exact, limit=limit, whole_runs=not exact)
    if kept.max_len is not None:
        plans.append(cut_by(maxlen=kept.max_len, minid=None))
    oldest = _oldest(kept, turn.now_ms)
    # Looking into the first node may unpack it: not each second for nothing.
    if stream.first_id < oldest:
        plans.append(cut_by(maxlen=None, minid=oldest))
    if kept.max_bytes is not None:
        plans.append(plan_bytes(stream, kept.max_bytes, approx=not exact, limit=limit))
    return plans


def _kept_from(key: Key) -> int:
    kept, kept_from = kept_of(key), ids.ID_MAX + 1
    if kept.retention.keep_unacknowledged and not is_kept_whole(key):
        kept_from = min(kept_from, needed_from(key))
    if kept.retention.keep_unarchived:
        kept_from = min(kept_from, kept.archived_up_to + 1)
    return kept_from
