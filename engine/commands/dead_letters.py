"""Dead letters: entries delivered too often are moved to a stream of their own, in the same turn.

Knows: what a dead letter holds beside the entry's fields.
Must never know: their readers.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from engine import entries, errors, ids, rows
from engine.commands.turn import Turn
from engine.errors import EngineError
from engine.groups import Group, PendingState
from engine.records import Append

TOO_MANY: Final = "max_deliveries"
# What one turn buries at most: frames stay within the log's reserve, and others get their turns. The entries
# beyond stay pending and are not delivered.
TURN_LETTERS_MAX: Final = 1_000
TURN_LETTERS_BYTES_MAX: Final = 4 << 20
# What a dead letter has behind the entry's own fields, in this order.
LETTER_FIELDS: Final = (
    "weir-source",
    "weir-id",
    "weir-group",
    "weir-consumer",
    "weir-deliveries",
    "weir-reason",
)
# What a dead letter has beside its entry and the names, about.
_TOLD_BYTES: Final = 200


class Dead(NamedTuple):
    """A pending entry on its way out."""

    id: int
    text: bytes
    pending: PendingState


def is_dead(turn: Turn, group: Group, delivery_count: int, names: tuple[str, str]) -> bool:
    """Whether one more delivery, which would be number `delivery_count`, is one too many. Where the
    dead-letter stream takes none, entries go on being delivered; `names` are the group's stream and its own,
    to say so.
    """
    policy = group.policy
    target = policy.dead_letter_stream
    if target is None or policy.max_deliveries is None or delivery_count <= policy.max_deliveries:
        return False
    if (refusal := refuse_letters(turn, target)) is None:
        return True
    turn.letters_refused.append((*names, target, refusal.detail))
    return False


def refuse_letters(turn: Turn, target: str) -> EngineError | None:
    """Why the stream takes no dead letters: there is no memory, it cannot be made, has no IDs
    left, or is closed.
    """
    keyspace, memory = turn.keyspace, turn.keyspace.memory
    if memory.is_over:
        assert memory.bytes_max is not None, "only a limit is reached"
        return errors.memory_full(memory.used_bytes, memory.bytes_max)
    key = keyspace.find(target)
    if key is None:
        streams_max = keyspace.caps.streams_max
        return errors.too_many_streams(streams_max) if len(keyspace.keys) >= streams_max else None
    if ids.ms_of(key.stream.last_id) >= ids.MS_MAX:
        return errors.stream_exhausted()
    return turn.refuse_entries(target, key)


def move_to_dead_letters(
    turn: Turn, stream: str, group_name: str, dead: Sequence[Dead], reason: str
) -> list[int]:
    """Append entries to the group's dead-letter stream and settle them; which of them, as far as the turn has
    room.
    """
    if not dead:
        return []
    target = turn.keyspace.keys[stream].groups[group_name].policy.dead_letter_stream
    assert target is not None, "only a group with a dead-letter stream buries"
    turn.expire(target)
    if (refusal := refuse_letters(turn, target)) is not None:
        turn.letters_refused += [(stream, group_name, target, refusal.detail)] * len(dead)
        return []
    dead = _fitting(turn, dead, len(stream.encode()) + len(group_name.encode()) + _TOLD_BYTES)
    if not dead:
        return []
    key = turn.keyspace.find(target) or turn.create_stream(target)
    now_ms = max(turn.now_ms, turn.keyspace.floor_ms + 1)
    first = max(ids.make(now_ms, 0), key.stream.last_id + 1)
    bodies = [_body(stream, group_name, letter, reason) for letter in dead]
    new_ids = range(first, first + len(bodies))
    turn.emit(Append(target, rows.stored(first, bodies), new_ids))
    turn.auto_ms = max(turn.auto_ms, ids.ms_of(new_ids[-1]))
    turn.signal(target)
    dead_lettered = [letter.id for letter in dead]
    turn.settle(stream, group_name, dead_lettered)
    turn.dead_lettered += [(stream, group_name, entry_id, reason) for entry_id in dead_lettered]
    return dead_lettered


def _fitting(turn: Turn, dead: Sequence[Dead], told_bytes: int) -> Sequence[Dead]:
    """The first of them, as many as the turn still has room for; one always has."""
    for place, letter in enumerate(dead):
        owner = letter.pending.consumer
        turn.letters_bytes += len(letter.text) + told_bytes + (len(owner.name.encode()) if owner else 0)
        if turn.letters_bytes > TURN_LETTERS_BYTES_MAX and (place or turn.dead_lettered):
            return dead[:place]
    return dead


def _body(stream: str, group: str, letter: Dead, reason: str) -> bytes:
    owner = letter.pending.consumer
    origin = (stream, ids.format(letter.id), group, owner.name if owner else "")
    return letter_of(letter.text, origin, letter.pending.delivery_count, reason)


def letter_of(text: bytes, origin: tuple[str, str, str, str], deliveries: int, reason: str) -> bytes:
    """The body of the dead letter of a stored entry; `origin` are its stream, ID, group and last consumer."""
    values = (*origin, str(deliveries), reason)
    body = entries.body([*entries.pairs_of(text), *zip(LETTER_FIELDS, values, strict=True)])
    return entries.with_meta(body, entries.meta_of(text))
