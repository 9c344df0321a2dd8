"""The entries of a group that come back later.

Knows: which they are, in the order in which they come back.
Must never know: who defers them, what time it is, what happens when they come back.

    order → ID    an ordered map; `engine.pending_states` says what an order is

They are pending as all others, but no reader gets one before its time: they are in no order of delivery.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from engine.blocks import Snapshot, SortedMap
from engine.groups import Group, GroupPart
from engine.packed import PackedNumbers
from engine.parts.part import Streams, counted
from engine.pending_states import SERIAL_BITS, PendingState, rows_in_order
from engine.record import IdList, Record

# Without the entries: these count as all pending ones do.
_DEFERRALS_BYTES: Final = 300


class Deferrals(GroupPart):
    """The deferred entries of one group."""

    __slots__ = ("times",)
    rank = 40
    falls_due = True
    takes_aside = True

    def __init__(self) -> None:
        self.times: SortedMap[int] = SortedMap(pack=PackedNumbers.of)

    @property
    def is_over(self) -> bool:
        """Once the last one is back."""
        return not self.times

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return _DEFERRALS_BYTES

    @property
    def due_ms(self) -> int | None:
        """When the first one comes back."""
        first = self.times.first()
        return None if first is None else (first[0] >> SERIAL_BITS) - 1

    def rows(self, group: Group) -> Iterator[tuple[int, PendingState]]:
        """The entries, those that come back first in front. The group must not change meanwhile."""
        return group.with_states(self.times.values())

    def note_left(self, before: Mapping[int, PendingState]) -> set[int]:
        """Those do not come back any more."""
        orders = {state.order for state in before.values() if state.until_ms is not None}
        self.times.drop_each(sorted(orders))
        return orders

    def garbage(self) -> list[object]:
        """All of it."""
        return [self.times]

    def copy_to(self, copy: Group, group: Group) -> None:
        """They come back there too."""
        for entry_id, state in self.rows(group):
            defer(copy, [entry_id], state.until_ms or 0, [state.delivery_count])

    def behind(self, stream: str, group: str, pending: Snapshot[PendingState]) -> Iterable[Record]:
        """In the order in which they come back."""
        return self._records(stream, group, rows_in_order(pending, self.times.snapshot()))

    @staticmethod
    def _records(
        stream: str, group: str, pages: Iterable[tuple[list[int], list[PendingState]]]
    ) -> Iterator[Record]:
        for entry_ids, rows in pages:
            times_ms = [one.until_ms or 0 for one in rows]
            yield RestoreDeferred(stream, group, entry_ids, times_ms, [one.delivery_count for one in rows])

    def check(self, group: Group) -> None:
        """Assert that they are those that are aside."""
        self.times.check()
        aside = {row[1].order: row[0] for row in group.pending.items() if row[1].until_ms is not None}
        assert dict(self.times.items()) == aside, "each deferred entry comes back once, at its time"


def defer(group: Group, entry_ids: Sequence[int], until_ms: int, delivery_counts: Sequence[int]) -> None:
    """Take entries of a group from their owners until that time."""
    states = group.take_aside(entry_ids, until_ms, delivery_counts)
    deferrals = Deferrals.of(group) or Deferrals()
    deferrals.times.update([state.order for state in states.values()], list(states))
    group.put_part(deferrals)


class Defer(Record, frozen=True):
    """Entries taken from their owners, to be released at a time of the wall clock by a record of its own."""

    number = 39
    is_of_consumers = True
    stream: str
    group: str
    ids: IdList
    until_ms: int
    delivery_counts: Sequence[int]

    def apply(self, keyspace: Streams) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            defer(group, self.ids, self.until_ms, self.delivery_counts)
        keyspace.due_times[Deferrals].hasten(self.stream, self.until_ms)


class RestoreDeferred(Record, frozen=True):
    """Of a snapshot: deferred entries, those that come back first in front."""

    number = 73
    stream: str
    group: str
    ids: IdList
    times_ms: Sequence[int]
    delivery_counts: Sequence[int]

    def apply(self, keyspace: Streams) -> None:
        with counted(keyspace, self.stream, self.group) as group:
            for entry_id, until_ms, count in zip(self.ids, self.times_ms, self.delivery_counts, strict=True):
                defer(group, [entry_id], until_ms, [count])
        keyspace.due_times[Deferrals].hasten(self.stream, self.times_ms[0])
