"""Group, consumer, pending entry: deliver, acknowledge, claim, release.

Knows: which consumer owns which entry since when, how often it was delivered, in order of IDs and in order of
delivery.
Must never know: parsing, replies, payloads, and what time it is.

    group.pending      ID → Pending    all that is not acknowledged, in order of IDs
    group.by_delivery  order → ID      the same in order of delivery, released entries (the NACK zone) first
    consumer.pending   IDs             those of one consumer

`order` is `delivery time + 1 << 64 | serial` of an owned entry and the bare serial of a released one, so that
one number sorts the released first, in the order of their release, then the owned by time and by order of
delivery.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, takewhile
from operator import lt
from typing import Final, NamedTuple

import msgspec

from engine.blocks import SortedMap
from engine.memory import CONSUMER_BYTES, GROUP_BYTES, PENDING_BYTES

_SERIAL_BITS = 64
# The order of the first owned entry there could be: those below are released.
_OWNED_FROM: Final = 1 << _SERIAL_BITS
# A consumer's own entries that one look for what others hold walks over: some milliseconds.
_OWN_PASSED_OVER_MAX: Final = 4_000


class PendingState(msgspec.Struct, frozen=True, gc=False):
    """A delivered and not acknowledged entry. Never changed in place: a snapshot may hold it.

    The collector passes it over: nothing that it holds leads back to it, and there may be millions.
    """

    consumer: "Consumer | None"
    order: int
    delivery_count: int

    @property
    def delivery_time_ms(self) -> int:
        """When it was delivered last; 0 if it has no owner."""
        return (self.order >> _SERIAL_BITS) - 1 if self.consumer is not None else 0

    def idle_ms(self, now_ms: int) -> int:
        """How long ago that was, never negative."""
        return max(0, now_ms - self.delivery_time_ms)


class Policy(NamedTuple):
    """What happens to entries that are not acknowledged; None is nothing.

    A delivery beyond `max_deliveries` goes to the stream `dead_letter_stream` instead. Entries idle for
    `ack_timeout_ms` are released for the next reader, and so are those of consumers not seen for
    `consumer_timeout_ms`, which are then removed.
    """

    dead_letter_stream: str | None = None
    max_deliveries: int | None = None
    ack_timeout_ms: int | None = None
    consumer_timeout_ms: int | None = None


class Consumer:
    """`active_time_ms` is -1 before the first delivery."""

    __slots__ = ("active_time_ms", "name", "pending", "seen_time_ms")

    def __init__(self, name: str, seen_time_ms: int) -> None:
        self.name = name
        self.seen_time_ms = seen_time_ms
        self.active_time_ms = -1
        self.pending: SortedMap[None] = SortedMap()


class Group:
    """`entries_read` is None where it is unknown."""

    __slots__ = (
        "_idle_longest",
        "_own_first",
        "_serial",
        "by_delivery",
        "consumers",
        "entries_read",
        "last_delivered_id",
        "pending",
        "policy",
    )

    def __init__(self, last_delivered_id: int, entries_read: int | None) -> None:
        self.last_delivered_id = last_delivered_id
        self.entries_read = entries_read
        self.consumers: dict[str, Consumer] = {}
        self.pending: SortedMap[PendingState] = SortedMap()
        self.by_delivery: SortedMap[int] = SortedMap()
        self.policy = Policy()
        self._serial = 0
        # What `idle_longest` found, and in which edition of the stream. None once the pending list changes.
        self._idle_longest: tuple[tuple[int, ...], PendingState | None] | None = None
        # A consumer, and the order below which every owned entry is its own: so what it holds is walked once,
        # however often it asks for what others hold.
        self._own_first: tuple[Consumer, int] | None = None

    def own(self, entry_id: int, consumer: Consumer, time_ms: int, delivery_count: int) -> None:
        """Make `consumer` the owner of the entry."""
        self._put(entry_id, PendingState(consumer, self._order(time_ms), delivery_count))

    def own_run(
        self, entry_ids: Sequence[int], consumer: Consumer, time_ms: int, delivery_counts: Sequence[int]
    ) -> None:
        """The same for many; cheap where they ascend beyond all that is pending, as new entries do."""
        last, latest, mine = self.pending.last(), self.by_delivery.last(), consumer.pending.last()
        order = self._order(time_ms)
        if (
            (last is not None and last[0] >= entry_ids[0])
            or (latest is not None and latest[0] >= order)
            or (mine is not None and mine[0] >= entry_ids[0])
            or not all(map(lt, entry_ids, islice(entry_ids, 1, None)))
        ):
            for entry_id, delivery_count in zip(entry_ids, delivery_counts, strict=True):
                self.own(entry_id, consumer, time_ms, delivery_count)
            return
        self._idle_longest = None
        self._check_own_first(consumer, order)
        orders = range(order, order + len(entry_ids))
        self._serial += len(entry_ids) - 1
        rows = zip(orders, delivery_counts, strict=True)
        self.pending.extend(
            entry_ids, [PendingState(consumer, at, delivery_count) for at, delivery_count in rows]
        )
        self.by_delivery.extend(orders, entry_ids)
        consumer.pending.extend(entry_ids, [None] * len(entry_ids))

    def restore(
        self,
        entry_ids: Sequence[int],
        owners: Sequence[Consumer | None],
        times_ms: Sequence[int],
        delivery_counts: Sequence[int],
    ) -> None:
        """Take pending entries of a snapshot, in order of delivery; the group has none of them yet."""
        self._idle_longest = self._own_first = None
        first = self._serial + 1
        self._serial += len(entry_ids)
        serials = range(first, first + len(entry_ids))
        orders = [
            serial if owner is None else (time_ms + 1) << _SERIAL_BITS | serial
            for serial, owner, time_ms in zip(serials, owners, times_ms, strict=True)
        ]
        rows = map(PendingState, owners, orders, delivery_counts)
        self.by_delivery.extend(orders, entry_ids)
        self.pending.update(entry_ids, list(rows))
        mine: dict[Consumer, list[int]] = {}
        for entry_id, owner in zip(entry_ids, owners, strict=True):
            if owner is not None:
                mine.setdefault(owner, []).append(entry_id)
        for consumer, ids in mine.items():
            consumer.pending.update(ids, [None] * len(ids))

    def release(self, entry_id: int, delivery_count: int) -> None:
        """Release the entry: it has no owner, and goes to the end of the released ones."""
        self._serial += 1
        self._put(entry_id, PendingState(None, self._serial, delivery_count))

    def settle(self, entry_id: int) -> PendingState | None:
        """Take the entry off the pending list; what it was, None if it was not there."""
        pending = self.pending.pop(entry_id)
        if pending is not None:
            self._idle_longest = None
            self.by_delivery.pop(pending.order)
            if pending.consumer is not None:
                pending.consumer.pending.pop(entry_id)
        return pending

    def settle_run(self, entry_ids: Sequence[int]) -> None:
        """Take pending entries off the list; cheap where they stand side by side, as those of a batch do."""
        run = self.pending.pop_run(list(entry_ids)) if entry_ids else None
        if run is None:
            self._settle_each(sorted(entry_ids))
            return
        self._idle_longest = None
        orders = [one.order for one in run]
        if self.by_delivery.pop_run(orders) is None:
            for order in orders:
                self.by_delivery.pop(order)
        owner = run[0].consumer
        alike = owner is not None and all(one.consumer is owner for one in run)
        if owner is not None and alike and owner.pending.pop_run(list(entry_ids)) is not None:
            return
        for entry_id, one in zip(entry_ids, run, strict=True):
            if one.consumer is not None:
                one.consumer.pending.pop(entry_id)

    def _settle_each(self, entry_ids: Sequence[int]) -> None:
        """The same for ascending IDs wherever they stand."""
        self._idle_longest = None
        taken = self.pending.pop_each(entry_ids)
        self.by_delivery.pop_each(sorted(one.order for _, one in taken))
        mine: dict[Consumer, list[int]] = {}
        for entry_id, one in taken:
            if one.consumer is not None:
                mine.setdefault(one.consumer, []).append(entry_id)
        for consumer, ids in mine.items():
            consumer.pending.pop_each(ids)

    def remove_consumer(self, name: str) -> None:
        """Remove a consumer, its pending entries too."""
        consumer = self.consumers.pop(name)
        held = [entry_id for entry_id, _ in consumer.pending.items()]
        consumer.pending = SortedMap()
        self._idle_longest = None
        self.by_delivery.pop_each(sorted(one.order for _, one in self.pending.pop_each(held)))

    def in_order_of_delivery(self) -> Iterator[tuple[int, PendingState]]:
        """Pending entries, released first, then those idle longest. The group must not change meanwhile."""
        for entry_id in self.by_delivery.values():
            pending = self.pending.get(entry_id)
            assert pending is not None, "both orders hold the same entries"
            yield entry_id, pending

    def of_others(self, consumer: Consumer) -> Iterator[tuple[int, PendingState]]:
        """The same without what `consumer` owns. It ends behind `_own_passed_over_max` of those; where they
        come first the next call goes on there. The group must not change meanwhile.
        """
        passed_over, leading = 0, True
        for order, entry_id in chain(self._released(), self.by_delivery.items(self._owned_from(consumer))):
            pending = self.pending.get(entry_id)
            assert pending is not None, "both orders hold the same entries"
            if pending.consumer is not consumer:
                leading = leading and pending.consumer is None
                yield entry_id, pending
                continue
            passed_over += 1
            if leading:
                self._own_first = consumer, order + 1
            if passed_over == _OWN_PASSED_OVER_MAX:
                return

    def _released(self) -> Iterator[tuple[int, int]]:
        return takewhile(lambda row: row[0] < _OWNED_FROM, self.by_delivery.items())

    def _owned_from(self, consumer: Consumer) -> int:
        """The order below which `consumer` owns everything."""
        if self._own_first is not None and self._own_first[0] is consumer:
            return self._own_first[1]
        return _OWNED_FROM

    def _check_own_first(self, consumer: Consumer | None, order: int) -> None:
        """An entry comes to stand at `order`."""
        known = self._own_first
        if known is not None and consumer is not known[0] and _OWNED_FROM <= order < known[1]:
            self._own_first = None

    def idle_longest(
        self, edition: tuple[int, ...], is_there: Callable[[int], bool], passed_over_max: int
    ) -> PendingState | None:
        """The first in order of delivery whose entry is there, or the one behind `passed_over_max` that are
        not; None where there is neither. Looked for once in each `edition` of the stream.
        """
        if self._idle_longest is None or self._idle_longest[0] != edition:
            found = first_there(self.in_order_of_delivery(), is_there, passed_over_max)
            self._idle_longest = edition, found
        return self._idle_longest[1]

    def owned_longest_first(self) -> Iterator[tuple[int, PendingState]]:
        """Owned pending entries, those idle longest first. The group must not change meanwhile."""
        for _, entry_id in self.by_delivery.items(_OWNED_FROM):
            pending = self.pending.get(entry_id)
            assert pending is not None, "both orders hold the same entries"
            yield entry_id, pending

    def needed_from(self) -> int:
        """The lowest ID that the group has still to read or to acknowledge."""
        first = self.pending.first()
        unread = self.last_delivered_id + 1
        return unread if first is None else min(first[0], unread)

    def has_released(self) -> bool:
        """Whether some pending entries have no owner."""
        first = self.by_delivery.first()
        return first is not None and first[0] < _OWNED_FROM

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return GROUP_BYTES + len(self.consumers) * CONSUMER_BYTES + len(self.pending) * PENDING_BYTES

    def released_count(self) -> int:
        """How many pending entries have no owner."""
        return len(self.pending) - sum(len(consumer.pending) for consumer in self.consumers.values())

    def check(self) -> None:
        """Assert that the three views of the pending list hold the same entries."""
        self.pending.check()
        self.by_delivery.check()
        pending = dict(self.pending.items())
        orders = {entry_id: order for order, entry_id in self.by_delivery.items()}
        assert orders == {entry_id: one.order for entry_id, one in pending.items()}, "both orders agree"
        for name, consumer in self.consumers.items():
            consumer.pending.check()
            mine = [entry_id for entry_id, one in pending.items() if one.consumer is consumer]
            assert consumer.name == name, "a consumer stands under its name"
            assert [entry_id for entry_id, _ in consumer.pending.items()] == mine, (
                "a consumer's entries are its own"
            )
        owners = {id(one.consumer) for one in pending.values() if one.consumer is not None}
        assert owners <= {id(consumer) for consumer in self.consumers.values()}, (
            "no entry belongs to a removed consumer"
        )

    def _order(self, time_ms: int) -> int:
        self._serial += 1
        return (time_ms + 1) << _SERIAL_BITS | self._serial

    def _put(self, entry_id: int, pending: PendingState) -> None:
        self._idle_longest = None
        self._check_own_first(pending.consumer, pending.order)
        before = self.pending.get(entry_id)
        owner = None if before is None else before.consumer
        if before is not None:
            self.by_delivery.pop(before.order)
        self.pending.set(entry_id, pending)
        self.by_delivery.set(pending.order, entry_id)
        if owner is not pending.consumer:
            if owner is not None:
                owner.pending.pop(entry_id)
            if pending.consumer is not None:
                pending.consumer.pending.set(entry_id, None)


def first_there(
    rows: Iterator[tuple[int, PendingState]], is_there: Callable[[int], bool], passed_over_max: int
) -> PendingState | None:
    """The first whose entry is there, or the one behind `passed_over_max` that are not; None without one."""
    numbered = enumerate(rows)
    found = (one for at, (entry_id, one) in numbered if at >= passed_over_max or is_there(entry_id))
    return next(found, None)
