"""Entries that are too old for their group before they were ever delivered (`max_age_ms`).

Knows: how old entries are by their IDs, and how many of them are for one turn.
Must never know: readers, what is pending.

`engine.parts.ages` says how old an entry is.
"""

from collections.abc import Sequence
from typing import Final

from engine.commands.dead_letters import (
    EXPIRED,
    TURN_LETTERS_BYTES_MAX,
    TURN_LETTERS_MAX,
    Dead,
    append_letters,
    fit_letters,
    refuse_letters,
)
from engine.commands.turn import Look, Turn
from engine.groups import Group
from engine.keyspace import Key
from engine.lag import entries_read_after_run
from engine.parts.ages import delivers_from
from engine.parts.redelivery import redelivery_of
from engine.pending_states import PendingState

# The state of an entry that was not delivered yet.
_UNREAD: Final = PendingState(None, 0, 0)


def select_expired(turn: Turn, name: str, key: Key, group_name: str) -> tuple[Sequence[Dead], int, bool]:
    """New entries that are too old, some in one turn; the ID behind which the group is without them; and
    whether there are more of them. Where the dead-letter stream takes none they are delivered.
    """
    group = key.groups[group_name]
    last = group.last_delivered_id
    if not has_expired(turn, key, group):
        return (), last, False
    oldest, target = delivers_from(group, turn.now_ms), redelivery_of(group).dead_letter_stream
    if target is not None and (refusal := refuse_letters(turn, target)) is not None:
        turn.letters_refused.append((name, group_name, target, refusal.detail))
        return (), last, False
    most = TURN_LETTERS_MAX - turn.expired_count
    if most <= 0:
        return (), last, True
    stream = key.stream
    rows = stream.after(last, most, TURN_LETTERS_BYTES_MAX, up_to_damage=True)
    dead = [Dead(entry_id, text, _UNREAD, EXPIRED) for entry_id, text in rows if entry_id < oldest]
    old = fit_letters(turn, name, group_name, dead)
    upto = old[-1].id if old else last
    return old, upto, stream.last_live_id > upto and stream.live_from(upto + 1) < oldest


def expire(turn: Turn, name: str, key: Key, group_name: str, old: Sequence[Dead]) -> None:
    """Acknowledge these new entries."""
    group = key.groups[group_name]
    gone = append_letters(turn, name, group_name, old)
    if gone:
        read = entries_read_after_run(key.stream, group.last_delivered_id, group.entries_read, gone)
        turn.move_group(name, group_name, gone[-1], read)


def has_expired(look: Look, key: Key, group: Group) -> bool:
    """Whether the next new entry of the group is too old."""
    oldest = delivers_from(group, look.now_ms)
    if not oldest or group.is_paused or key.stream.last_live_id <= group.last_delivered_id:
        return False
    return key.stream.live_from(group.last_delivered_id + 1) < oldest
