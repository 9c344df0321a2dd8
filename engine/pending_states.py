"""Consumers, and what they hold: the states of pending entries, in lists or packed.

Knows: whose an entry is since when, how often it was delivered, and how that becomes one number to sort by.
Must never know: groups, parsing, replies, and what time it is.

`order` is `delivery time + 1 << 64 | serial` of an owned entry and the bare serial of a released one, so that
one number sorts the released first, in the order of their release, then the owned by time and by order of
delivery. A deferred entry has no owner, and the time at which it is released in place of that of a delivery.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, overload

import msgspec

from engine.blocks import Snapshot, SortedMap
from engine.packed import PackedColumn, PackedNones, PackedNumbers

SERIAL_BITS: Final = 64
# The order of the first owned entry there could be: those below are released.
OWNED_FROM: Final = 1 << SERIAL_BITS
# IDs of a block of what one consumer holds, and the newest blocks that stay in lists: less than of a group,
# for there may be many consumers.
_CONSUMER_BLOCK_IDS_MAX: Final = 256
_CONSUMER_LISTS_MAX: Final = 2
# Pending entries in one record of a snapshot.
_ROWS_MAX: Final = 512


class PendingState(msgspec.Struct, frozen=True, gc=False):
    """A delivered and not acknowledged entry. Never changed in place: a snapshot may hold it.

    The collector passes it over: nothing that it holds leads back to it, and there may be millions.
    """

    consumer: "Consumer | None"
    order: int
    delivery_count: int

    @property
    def until_ms(self) -> int | None:
        """When it is released, if it is deferred."""
        if self.consumer is not None or self.order < OWNED_FROM:
            return None
        return (self.order >> SERIAL_BITS) - 1

    @property
    def delivery_time_ms(self) -> int:
        """When it was delivered last; 0 if it has no owner."""
        return (self.order >> SERIAL_BITS) - 1 if self.consumer is not None else 0

    @property
    def is_released(self) -> bool:
        """Whether the next reader gets it."""
        return self.consumer is None and self.until_ms is None

    def is_held_by(self, name: str) -> bool:
        """Whether it is this consumer's."""
        return self.consumer is not None and self.consumer.name == name

    def is_held_by_another(self, name: str) -> bool:
        """Whether another consumer than this one holds it; nobody holds what was given back."""
        return self.consumer is not None and self.consumer.name != name

    def idle_ms(self, now_ms: int) -> int:
        """How long ago that was, never negative."""
        if self.consumer is None:
            return max(0, now_ms)
        idle_ms = now_ms + 1 - (self.order >> SERIAL_BITS)
        return max(0, idle_ms)


def not_held_by(pending: Mapping[int, PendingState], consumer: str | None) -> dict[int, PendingState]:
    """Those that the consumer of this name does not hold: others do, or they were given back. For None, which
    stands for any consumer, there are none.
    """
    if consumer is None:
        return {}
    return {entry_id: state for entry_id, state in pending.items() if not state.is_held_by(consumer)}


def held_by_others(pending: Mapping[int, PendingState], consumer: str | None) -> Collection[int]:
    """Those that other consumers than this one hold. For None, which stands for any, there are none."""
    if consumer is None:
        return ()
    return {entry_id for entry_id, state in pending.items() if state.is_held_by_another(consumer)}


def rows_in_order(
    pending: Snapshot[PendingState], in_order: Snapshot[int]
) -> Iterator[tuple[list[int], list[PendingState]]]:
    """Entries in this order with their states, as many at a time as one record of a snapshot has."""
    rest = in_order.values()
    while entry_ids := list(islice(rest, _ROWS_MAX)):
        ascending = sorted(entry_ids)
        states = dict(zip(ascending, pending.of_each(ascending), strict=True))
        yield entry_ids, [states[entry_id] for entry_id in entry_ids]


class Consumer:
    """`active_time_ms` is -1 before the first delivery."""

    __slots__ = ("active_time_ms", "name", "pending", "seen_time_ms")

    def __init__(self, name: str, seen_time_ms: int) -> None:
        self.name = name
        self.seen_time_ms = seen_time_ms
        self.active_time_ms = -1
        self.pending: SortedMap[None] = SortedMap(
            _CONSUMER_BLOCK_IDS_MAX, PackedNones.of, _CONSUMER_LISTS_MAX
        )

    def garbage(self) -> list[object]:
        """What is large in it, once it was removed."""
        return [self.pending] if self.pending else []


class PackedPending(msgspec.Struct, gc=False):
    """Pending entries of a block, packed. Each look makes a `PendingState` anew."""

    # Those of this block's entries, in any order; some may have none here any more.
    owners: list[Consumer | None]
    owner_places: PackedColumn
    orders: PackedNumbers
    delivery_counts: PackedColumn

    @classmethod
    def of(cls, states: Sequence[PendingState]) -> "PackedPending":
        """These entries, in their order."""
        owners = list({state.consumer for state in states})
        places = {owner: place for place, owner in enumerate(owners)}
        return cls(
            owners,
            PackedColumn.of(
                [0] * len(states) if len(owners) == 1 else [places[state.consumer] for state in states]
            ),
            PackedNumbers.of([state.order for state in states]),
            PackedColumn.of([state.delivery_count for state in states]),
        )

    def __len__(self) -> int:
        return len(self.orders)

    def __iter__(self) -> Iterator[PendingState]:
        return self.since(0)

    @overload
    def __getitem__(self, place: int, /) -> PendingState: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[PendingState]: ...
    def __getitem__(self, place: int | slice, /) -> PendingState | list[PendingState]:
        if isinstance(place, slice):
            owners = map(self.owners.__getitem__, self.owner_places[place])
            return list(map(PendingState, owners, self.orders[place], self.delivery_counts[place]))
        return PendingState(
            self.owners[self.owner_places[place]], self.orders[place], self.delivery_counts[place]
        )

    def __setitem__(self, place: int, state: PendingState, /) -> None:
        self.owner_places[place] = self._place_of(state.consumer)
        self.orders[place], self.delivery_counts[place] = state.order, state.delivery_count

    def __delitem__(self, place: int | slice, /) -> None:
        del self.owner_places[place], self.orders[place], self.delivery_counts[place]

    def insert(self, place: int, state: PendingState, /) -> None:
        """Put one before the one at `place`."""
        owner_place = self._place_of(state.consumer)
        self.owner_places.insert(place, owner_place)
        self.orders.insert(place, state.order)
        self.delivery_counts.insert(place, state.delivery_count)

    def copy(self) -> "PackedPending":
        """A copy that changes by itself."""
        return PackedPending(
            self.owners.copy(), self.owner_places.copy(), self.orders.copy(), self.delivery_counts.copy()
        )

    def at(self, places: Sequence[int]) -> list[PendingState]:
        """Those at these places."""
        owners = map(self.owners.__getitem__, self.owner_places.at(places))
        return list(map(PendingState, owners, self.orders.at(places), self.delivery_counts.at(places)))

    def put(self, places: Sequence[int], states: Sequence[PendingState]) -> None:
        """Replace those at these places."""
        if len({state.consumer for state in states}) == 1:
            owner_place = self._place_of(states[0].consumer)
            self.owner_places.put(places, [owner_place] * len(states))
        else:
            for place, state in zip(places, states, strict=True):
                self.owner_places[place] = self._place_of(state.consumer)
        self.orders.put(places, [state.order for state in states])
        self.delivery_counts.put(places, [state.delivery_count for state in states])

    def drop(self, places: Sequence[int]) -> None:
        """Drop ascending places."""
        for column in (self.owner_places, self.orders, self.delivery_counts):
            column.drop(places)

    def since(self, place: int) -> Iterator[PendingState]:
        """Those from a place on, as they are now."""
        owners = map(self.owners.__getitem__, self.owner_places[place:])
        return map(PendingState, owners, self.orders.since(place), self.delivery_counts[place:])

    def lowest_order(self) -> int:
        """No order is below this one, and one is of the same millisecond."""
        return min(self.orders.high.view()) << SERIAL_BITS

    def _place_of(self, owner: Consumer | None) -> int:
        """The owner's place among the owners, a new one where it has none."""
        if owner not in self.owners:
            if len(self.owners) > 2 * len(self):
                self._forget_owners()
            self.owners.append(owner)
        return self.owners.index(owner)

    def _forget_owners(self) -> None:
        """Forget the owners that own nothing here any more."""
        used = sorted(set(self.owner_places[:]))
        places = {place: new for new, place in enumerate(used)}
        self.owners = [self.owners[place] for place in used]
        self.owner_places = PackedColumn.of([places[place] for place in self.owner_places[:]])
