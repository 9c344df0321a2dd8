"""Dead letters: entries that are not delivered any more, since that was too often or they are too old, are
moved to a stream of their own, in the same turn.

Knows: why an entry is not delivered any more; what a dead letter holds beside the entry's fields.
Must never know: their readers.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from engine import entries, errors, ids, rows
from engine.commands.turn import Turn
from engine.errors import EngineError
from engine.groups import Group
from engine.parts.ages import delivers_from
from engine.parts.redelivery import redelivery_of
from engine.pending_states import PendingState
from engine.records.changes import Append

TOO_MANY: Final = "max_deliveries"
EXPIRED: Final = "expired"
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
    """A pending entry on its way out, and why."""

    id: int
    text: bytes
    pending: PendingState
    reason: str


def why_dead(
    turn: Turn,
    group: Group,
    entry_id: int,
    delivery_count: int,
    names: tuple[str, str],
    *,
    at_any_age: bool = False,
) -> str | None:
    """Why an entry is not delivered once more: it is too old, or that delivery, number `delivery_count`,
    would be one too many. None where it is delivered; also where the dead-letter stream takes none: `names`
    are the group's stream and its own, to say so.
    """
    if not group.parts:
        return None
    redelivery = redelivery_of(group)
    target, most, reason = redelivery.dead_letter_stream, redelivery.max_deliveries, None
    if not at_any_age and entry_id < delivers_from(group, turn.now_ms):
        reason = EXPIRED
    elif target is not None and most is not None and delivery_count > most:
        reason = TOO_MANY
    if reason is None or target is None or (refusal := refuse_letters(turn, target)) is None:
        return reason
    turn.letters_refused.append((*names, target, refusal.detail))
    return None


def refuse_letters(turn: Turn, target: str) -> EngineError | None:
    """Why the stream takes no dead letters: there is no memory, it cannot be made, has no IDs
    left, or is closed. One whose time is over is made anew.
    """
    keyspace, memory = turn.keyspace, turn.keyspace.memory
    if memory.is_over:
        assert memory.bytes_max is not None, "only a limit is reached"
        return errors.memory_full(memory.used_bytes, memory.bytes_max)
    key = keyspace.find(target)
    if key is None:
        streams_max, taken = (
            keyspace.caps.streams_max,
            keyspace.names_taken + len(turn.letters_made - {target}),
        )
        return errors.too_many_streams(streams_max) if taken >= streams_max else None
    if keyspace.has_expired(key, turn.now_ms):
        return None
    if ids.ms_of(key.stream.last_id) >= ids.MS_MAX:
        return errors.stream_exhausted()
    return turn.refuse_entries(target, key)


def fit_letters(turn: Turn, stream: str, group_name: str, dead: Sequence[Dead]) -> Sequence[Dead]:
    """The first of these entries, as many as the turn has room for; one always has. Without a dead-letter
    stream there is room for all.
    """
    target = redelivery_of(turn.keyspace.keys[stream].groups[group_name]).dead_letter_stream
    if target is not None and dead:
        if turn.keyspace.find(target) is None:
            turn.letters_made.add(target)
        before = turn.letters_bytes
        told_bytes = len(stream.encode()) + len(group_name.encode()) + _TOLD_BYTES
        for place, letter in enumerate(dead):
            owner = letter.pending.consumer
            turn.letters_bytes += len(letter.text) + told_bytes + (len(owner.name.encode()) if owner else 0)
            if turn.letters_bytes > TURN_LETTERS_BYTES_MAX and (place or before):
                dead = dead[:place]
                break
    turn.expired_count += sum(letter.reason is EXPIRED for letter in dead)
    return dead


def move_to_dead_letters(turn: Turn, stream: str, group_name: str, dead: Sequence[Dead]) -> list[int]:
    """Append entries that were selected to the group's dead-letter stream, if it has one, and settle them."""
    moved = append_letters(turn, stream, group_name, dead)
    turn.settle(stream, group_name, moved)
    return moved


def append_letters(turn: Turn, stream: str, group_name: str, dead: Sequence[Dead]) -> list[int]:
    """The same, but nothing is settled."""
    if not dead:
        return []
    group = turn.keyspace.keys[stream].groups[group_name]
    target = redelivery_of(group).dead_letter_stream
    if target is not None:
        group.note_failed(turn.now_ms)
    if target is None:
        turn.expired.append((stream, group_name, len(dead)))
        return [letter.id for letter in dead]
    turn.expire(target)
    key = turn.keyspace.find(target) or turn.create_stream(target)
    now_ms = max(turn.now_ms, turn.keyspace.floor_ms + 1)
    first = max(ids.make(now_ms, 0), key.stream.last_id + 1)
    bodies = [_body(stream, group_name, letter) for letter in dead]
    new_ids = range(first, first + len(bodies))
    turn.emit(Append(target, rows.stored(first, bodies), new_ids))
    turn.auto_ms = max(turn.auto_ms, ids.ms_of(new_ids[-1]))
    turn.signal(target)
    turn.dead_lettered += [(stream, group_name, letter.id, letter.reason) for letter in dead]
    expired = sum(letter.reason is EXPIRED for letter in dead)
    if expired:
        turn.expired.append((stream, group_name, expired))
    return [letter.id for letter in dead]


def _body(stream: str, group: str, letter: Dead) -> bytes:
    owner = letter.pending.consumer
    origin = (stream, ids.format(letter.id), group, owner.name if owner else "")
    return letter_of(letter.text, origin, letter.pending.delivery_count, letter.reason)


def letter_of(text: bytes, origin: tuple[str, str, str, str], deliveries: int, reason: str) -> bytes:
    """The body of the dead letter of a stored entry; `origin` are its stream, ID, group and last consumer."""
    values = (*origin, str(deliveries), reason)
    body = entries.body([*entries.pairs_of(text), *zip(LETTER_FIELDS, values, strict=True)])
    return entries.with_meta(body, entries.meta_of(text))
