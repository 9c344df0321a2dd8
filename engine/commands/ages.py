"""Entries that are too old for their group before they were ever delivered (`max_age_ms`).

Knows: how old entries are by their IDs, and how many of them are for one turn.
Must never know: readers, what is pending.

An entry's age is the time since the milliseconds of its ID: one with an explicit ID is as old as that says.
"""

from typing import Final

from engine.commands.dead_letters import (
    EXPIRED,
    TURN_LETTERS_BYTES_MAX,
    TURN_LETTERS_MAX,
    Dead,
    append_letters,
    oldest_delivered,
    refuse_letters,
)
from engine.commands.turn import Look, Turn
from engine.groups import Group
from engine.keyspace import Key
from engine.lag import entries_read_after_run
from engine.pending_states import PendingState

# The state of an entry that was not delivered yet.
_UNREAD: Final = PendingState(None, 0, 0)


def expire_unread(turn: Turn, name: str, key: Key, group_name: str) -> bool:
    """Acknowledge new entries that are too old, some in one turn; whether there are more of them. Where the
    dead-letter stream takes none they are delivered.
    """
    group = key.groups[group_name]
    if not has_expired(turn, key, group):
        return False
    target = group.policy.dead_letter_stream
    if target is not None and (refusal := refuse_letters(turn, target)) is not None:
        turn.letters_refused.append((name, group_name, target, refusal.detail))
        return False
    most = TURN_LETTERS_MAX - sum(count for _, _, count in turn.expired)
    if most > 0:
        stream, last = key.stream, group.last_delivered_id
        old = [Dead(entry_id, text, _UNREAD, EXPIRED) for entry_id, text in _old(turn, key, group, most)]
        gone = append_letters(turn, name, group_name, old)
        if gone:
            turn.move_group(
                name, group_name, gone[-1], entries_read_after_run(stream, last, group.entries_read, gone)
            )
    return has_expired(turn, key, group)


def look_at_unread(turn: Turn, key: Key, group: Group) -> int:
    """Look into the runs in which unread entries are too old; the ID behind which those are that may be
    delivered.
    """
    target = group.policy.dead_letter_stream
    refused = target is not None and refuse_letters(turn, target) is not None
    if refused or not has_expired(turn, key, group):
        return group.last_delivered_id
    old = _old(turn, key, group, TURN_LETTERS_MAX)
    return old[-1][0] if old else group.last_delivered_id


def _old(look: Look, key: Key, group: Group, most: int) -> list[tuple[int, bytes]]:
    """Unread entries that are too old, some."""
    oldest = oldest_delivered(look.now_ms, group)
    rows = key.stream.after(group.last_delivered_id, most, TURN_LETTERS_BYTES_MAX, up_to_damage=True)
    return [row for row in rows if row[0] < oldest]


def has_expired(look: Look, key: Key, group: Group) -> bool:
    """Whether the next new entry of the group is too old."""
    oldest = oldest_delivered(look.now_ms, group)
    if not oldest or group.policy.paused or key.stream.last_live_id <= group.last_delivered_id:
        return False
    return key.stream.live_from(group.last_delivered_id + 1) < oldest
