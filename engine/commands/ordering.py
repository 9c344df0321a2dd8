"""Groups that are ordered by key: what a read gives of them, what it passes over, and what may be set.

Knows: which entries are free, in which order they are looked for, and how many of them in one turn.
Must never know: who waits, wire formats.

A read gives what was passed over and is free by now, then it reads on in the stream. `engine.parts.ordering`
finds the former by their keys, so that nothing is looked for among those that wait.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from engine import errors
from engine.commands.dead_letters import Dead, fit_letters, why_dead
from engine.commands.reading import Budget
from engine.commands.turn import Look, Turn
from engine.commands.types import XReadGroup
from engine.commands.weir_commands import IN_FLIGHT_PER_KEY_MAX, ORDERED_BY_BYTES_MAX
from engine.groups import Group
from engine.keyspace import Key
from engine.parts.ordering import (
    ORDERED_WAITING_MAX,
    NoteKeys,
    Ordering,
    key_reader,
)
from engine.pending_states import PendingState

# Texts of entries that are free again are looked up in batches of this size; unread ones in growing ones.
_LOOKUPS_AT_ONCE: Final = 100
_READ_AT_ONCE_MIN: Final = 16
_READ_AT_ONCE_MAX: Final = 1_000
_READ_BYTES_AT_ONCE: Final = 1 << 20
# What reading the key of an entry counts as, in entries that a turn walks over, and its bytes in bytes read.
_KEY_COST: Final = 4
_BYTES_COST: Final = 4
# A read that waits behind a full list looks again after this time: a deletion wakes no reader.
_RETRY_MS: Final = 1_000
# The state of an entry that was not delivered yet.
_UNREAD: Final = PendingState(None, 0, 0)


class InOrder(msgspec.Struct):
    """What a read gives of such a group. `read` is how far it has come in the stream, `keyed` what of that
    has which key, `expired` what was passed over and is too old by now, `gone` what was taken back and is in
    the stream no more; `more` says that a limit ended it.
    """

    fresh: list[tuple[int, bytes]] = msgspec.field(default_factory=list)
    read: list[int] = msgspec.field(default_factory=list)
    keyed: list[tuple[int, bytes]] = msgspec.field(default_factory=list)
    expired: Sequence[Dead] = ()
    gone: list[int] = msgspec.field(default_factory=list)
    more: bool = False

    @property
    def passes(self) -> bool:
        """Whether the group changes even where no entry is given."""
        return bool(self.read or self.expired or self.gone)


def check_order(group: Group | None, before: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises EngineError where a group cannot be given this order; None is a group that is to be made."""
    wanted = {name: {**before, **given}[name] for name in Ordering.settings}
    field, most = wanted["ordered_by"], wanted["in_flight_per_key"]
    if field is not None and not 0 < len(field.encode()) <= ORDERED_BY_BYTES_MAX:
        raise errors.invalid(f"ERR ordered_by is the name of a field, 1 to {ORDERED_BY_BYTES_MAX} bytes")
    if not 1 <= most <= IN_FLIGHT_PER_KEY_MAX:
        raise errors.invalid(f"ERR in_flight_per_key is a number from 1 to {IN_FLIGHT_PER_KEY_MAX}")
    if field is None and given.get("in_flight_per_key", 1) != 1:
        raise errors.invalid("ERR in_flight_per_key needs ordered_by: name the field that holds the key")
    changes = any(value != before[name] for name, value in wanted.items())
    if group is not None and changes and (group.pending or group.passed_over):
        raise errors.order_of_pending(len(group.pending), len(group.passed_over))


def expect_acknowledging(look: Look, command: XReadGroup) -> None:
    """Refuse NOACK for a group with an order: nothing would say when a key is free."""
    held = [look.keyspace.keys[name].groups[command.group] for name, _ in command.streams]
    if command.noack and any(Ordering.of(group) is not None for group in held):
        sentence = (
            f"the group {command.group!r} is ordered by key: an entry holds its key until it is acknowledged"
        )
        raise errors.invalid(f"ERR NOACK: {sentence}", f"{sentence}; read without NOACK")


def may_deliver(key: Key, group: Group) -> bool:
    """Whether a read may find something new, or comes further."""
    unread = key.stream.last_live_id > group.last_delivered_id
    ordering = Ordering.of(group) if group.parts else None
    return unread if ordering is None else bool(ordering.ready) or (unread and ordering.has_room)


def retry_order_ms(look: Look, key: Key, group: Group) -> int | None:
    """When a read that waits may go on without any write, None for never."""
    if group.is_paused or not group.parts or Ordering.of(group) is None:
        return None
    if may_deliver(key, group):
        return look.now_ms
    return look.now_ms + _RETRY_MS if key.stream.last_live_id > group.last_delivered_id else None


def select_in_order(turn: Turn, names: tuple[str, str], upto: int, most: int, room: Budget) -> InOrder | None:
    """What a read gives that wants at most this many entries, of a group that has read so far; None where it
    has no order.
    """
    key = turn.keyspace.keys[names[0]]
    ordering = Ordering.of(key.groups[names[1]])
    if ordering is None:
        return None
    found = InOrder()
    if most > 0 and not room.spent:
        _select_passed(turn, names, ordering, found, room, most)
    if most > len(found.fresh) and not room.spent and not found.more:
        try:
            _select_unread(turn, key, ordering, found, room, most, upto)
        except errors.EngineError:
            # What the disk does not give is refused where it comes first, else by the next read.
            if not (found.fresh or found.passes):
                raise
    unread = key.stream.last_live_id > (found.read[-1] if found.read else upto)
    found.more = found.more or bool(found.expired or found.gone) or (unread and most <= len(found.fresh))
    turn.count_delivered(len(found.fresh))
    return found


def _select_passed(
    turn: Turn, names: tuple[str, str], ordering: Ordering, found: InOrder, room: Budget, most: int
) -> None:
    """What waits and is free by now, the lowest IDs first."""
    key = turn.keyspace.keys[names[0]]
    group, stream, dead = key.groups[names[1]], key.stream, list[Dead]()
    most = min(most, max(1, turn.lookups_left))
    heads = ordering.heads(most + 1)
    found.more, heads = len(heads) > most, heads[:most]
    for start in range(0, len(heads), _LOOKUPS_AT_ONCE):
        some = heads[start : start + _LOOKUPS_AT_ONCE]
        passed = stream.unreadable(some)
        if passed and not found.fresh and len(passed) == len(some):
            raise stream.refusal_of(some[0])
        texts = stream.find_each(each for each in some if each not in passed)
        found.gone += [each for each in some if each not in passed and each not in texts]
        for entry_id, text in texts.items():
            if why := why_dead(turn, group, entry_id, 1, names):
                dead.append(Dead(entry_id, text, _UNREAD, why))
            elif room.takes(len(text)):
                found.fresh.append((entry_id, text))
            else:
                found.more = True
                break
        else:
            continue
        break
    turn.lookups_left -= len(found.fresh) + len(found.gone) + len(dead)
    found.expired = fit_letters(turn, *names, dead)


def _select_unread(
    turn: Turn, key: Key, ordering: Ordering, found: InOrder, room: Budget, most: int, upto: int
) -> None:
    """Read on: give what is free, and pass over the rest, up to `ORDERED_WAITING_MAX`."""
    assert ordering.ordered_by is not None, "it has an order"
    stream, choose = key.stream, _Choice(ordering, found, room, most)
    read_key, at_once = key_reader(ordering.ordered_by), choose.left
    while stream.last_live_id > upto and not choose.is_full:
        if turn.scans_left <= 0 or turn.read_bytes_left <= 0:
            found.more = True
            break
        at_once = min(max(at_once, _READ_AT_ONCE_MIN), _READ_AT_ONCE_MAX, turn.scans_left)
        rows = stream.after(upto, at_once, _READ_BYTES_AT_ONCE, up_to_damage=True)
        choose.take([(entry_id, text, read_key(text)) for entry_id, text in rows])
        upto, at_once = rows[-1][0], 2 * at_once
        turn.scans_left -= _KEY_COST * len(rows)
        turn.read_bytes_left -= _BYTES_COST * sum(len(text) for _, text in rows)
    turn.frame_bytes_left -= sum(len(own) for _, own in found.keyed)
    choose.end()


class _Choice:
    """What of unread entries is given, one after the other."""

    __slots__ = (
        "_bytes_left",
        "_found",
        "_given",
        "_may_wait",
        "_ordering",
        "_room",
        "_taken",
        "is_full",
        "left",
    )

    def __init__(self, ordering: Ordering, found: InOrder, room: Budget, most: int) -> None:
        self._ordering, self._found, self._room = ordering, found, room
        self._given, self.left = len(found.fresh), room.most(most - len(found.fresh))
        # The first entry of all always fits.
        self._bytes_left = sys.maxsize if room.bytes_left is None else room.bytes_left
        self._may_wait = ORDERED_WAITING_MAX - len(ordering.passed_over) + len(found.fresh)
        self.is_full = False
        # How many of each key this read gives.
        self._taken: dict[bytes, int] = {}
        for entry_id, _ in found.fresh:
            if (own := ordering.key_of(entry_id)) is not None:
                self._taken[own] = self._taken.get(own, 0) + 1

    def take(self, rows: Sequence[tuple[int, bytes, bytes | None]]) -> None:
        """Entries with their keys, up to what there is no room for."""
        ordering, found, taken = self._ordering, self._found, self._taken
        fresh, read, keyed = found.fresh, found.read, found.keyed
        queues, busy, most = ordering.queues, ordering.busy, ordering.in_flight_per_key
        left, bytes_left, is_full = self.left, self._bytes_left, False
        for entry_id, text, own in rows:
            in_flight = 0 if own is None else busy.get(own, 0) + taken.get(own, 0)
            if in_flight < most and own not in queues:
                size = len(text)
                if not left or (bytes_left < size and (fresh or self._room.given)):
                    is_full = found.more = True
                    break
                left -= 1
                bytes_left -= size
                fresh.append((entry_id, text))
                if own is not None:
                    taken[own] = taken.get(own, 0) + 1
            elif self._may_wait <= 0:
                is_full = True
                break
            else:
                self._may_wait -= 1
                # What it stands behind may be given by this read: the next one gives it.
                found.more |= in_flight < most
            read.append(entry_id)
            if own is not None:
                keyed.append((entry_id, own))
        self.left, self._bytes_left, self.is_full = left, bytes_left, is_full or not left

    def end(self) -> None:
        """Count what is given."""
        given = self._found.fresh[self._given :]
        if given:
            self._room.takes(sum(len(text) for _, text in given), len(given))


def note_forced(turn: Turn, names: tuple[str, str], texts: Mapping[int, bytes]) -> None:
    """Entries are pending that no read has given: their keys are busy."""
    ordering = Ordering.of(turn.keyspace.keys[names[0]].groups[names[1]])
    if ordering is None or ordering.ordered_by is None or not texts:
        return
    read_key = key_reader(ordering.ordered_by)
    keys = {entry_id: key for entry_id, text in texts.items() if (key := read_key(text)) is not None}
    if keys:
        turn.emit(NoteKeys(*names, list(keys), list(keys.values())))


def take_back(turn: Turn, names: tuple[str, str], entry_ids: Sequence[int]) -> bool:
    """Have pending entries wait for their keys again, as if they had not been given; False where the group
    has no order.
    """
    ordering = Ordering.of(turn.keyspace.keys[names[0]].groups[names[1]])
    if ordering is None:
        return False
    keys = [ordering.key_of(entry_id) for entry_id in entry_ids]
    turn.settle(*names, list(entry_ids))
    turn.emit(NoteKeys(*names, entry_ids, keys))
    turn.signal(names[0])
    return True
