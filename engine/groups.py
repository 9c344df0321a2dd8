"""Group, consumer, pending entry: deliver, acknowledge, claim, release.

Knows: which consumer owns which entry since when, how often it was delivered, in order of IDs and in order of
delivery.
Must never know: parsing, replies, payloads, and what time it is.

    group.pending      ID → Pending    all that is not acknowledged, in order of IDs
    group.by_delivery  order → ID      the same in order of delivery, released entries (the NACK zone) first,
                                       without those that are deferred
    group.deferred     order → ID      those that come back later, in the order in which they do
    consumer.pending   IDs             those of one consumer

`engine.pending_states` says what an order is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count, islice, repeat, takewhile
from operator import lt
from secrets import randbits
from typing import Final, NamedTuple

from engine import block_columns as columns
from engine.blocks import Block, SortedMap
from engine.memory import (
    CONSUMER_BYTES,
    GROUP_BYTES,
    HELD_LIST_BYTES,
    PENDING_BYTES,
    PENDING_LIST_BYTES,
)
from engine.packed import PackedNumbers
from engine.pending_states import OWNED_FROM, SERIAL_BITS, Consumer, PackedPending, PendingState

# A consumer's own entries that one look for what others hold walks over: some milliseconds.
_OWN_PASSED_OVER_MAX: Final = 4_000
# The newest blocks of 512 that stay in lists: what is delivered and acknowledged at once, in batches too, is
# not packed in between.
_LISTS_MAX: Final = 16
# What stands in lists, for the estimate of memory: of a group, and of each consumer about. Older blocks that
# are unpacked while they are written are left out: as many again at most.
_IN_LISTS_MAX: Final = _LISTS_MAX * 512
_CONSUMER_IN_LISTS: Final = 384


# Never written.
_NO_DEFERRED: Final[SortedMap[int]] = SortedMap()

# Numbers of groups and of their moves, each used once: from anywhere, so that they are those of one process.
_numbers = count(randbits(48))


class Policy(NamedTuple):
    """What is delivered, and what happens to entries that are not acknowledged; None is nothing.

    A delivery beyond `max_deliveries` goes to the stream `dead_letter_stream` instead. Entries idle for
    `ack_timeout_ms` are released for the next reader, and so are those of consumers not seen for
    `consumer_timeout_ms`, which are then removed. Entries whose IDs are older than `max_age_ms` are
    acknowledged in place of a delivery. While the group is `paused` it delivers nothing.
    """

    dead_letter_stream: str | None = None
    max_deliveries: int | None = None
    ack_timeout_ms: int | None = None
    consumer_timeout_ms: int | None = None
    max_age_ms: int | None = None
    paused: bool = False


POLICY_DEFAULT: Final = Policy()


class Group:
    """`entries_read` is None where it is unknown. `number` is no other group's of this process, and `move`,
    the number of its last move, no other's.
    """

    __slots__ = (
        "_idle_longest",
        "_own_first",
        "_serial",
        "by_delivery",
        "consumers",
        "deferred",
        "entries_read",
        "last_delivered_id",
        "move",
        "number",
        "pending",
        "policy",
    )

    def __init__(self, last_delivered_id: int, entries_read: int | None) -> None:
        self.last_delivered_id = last_delivered_id
        self.entries_read = entries_read
        self.number = self.move = next(_numbers)
        self.consumers: dict[str, Consumer] = {}
        self.pending: SortedMap[PendingState] = SortedMap(pack=PackedPending.of, lists_max=_LISTS_MAX)
        self.by_delivery: SortedMap[int] = SortedMap(pack=PackedNumbers.of, lists_max=_LISTS_MAX)
        # Few groups have any: one for all of them until it is written.
        self.deferred: SortedMap[int] = _NO_DEFERRED
        self.policy = POLICY_DEFAULT
        self._serial = 0
        # What `idle_longest` found, and in which edition of the stream. None once the pending list changes.
        self._idle_longest: tuple[tuple[int, ...], PendingState | None] | None = None
        # A consumer, and the order below which every owned entry is its own: so what it holds is walked once,
        # however often it asks for what others hold.
        self._own_first: tuple[Consumer, int] | None = None

    def note_move(self) -> None:
        """Its position was set: what was delivered before cannot be undone any more."""
        self.move = next(_numbers)

    def first_order(self, length: int, time_ms: int) -> int:
        """The order of the first entry of the run that was delivered last, at this time."""
        return (time_ms + 1) << SERIAL_BITS | (self._serial - length + 1)

    def own_run(
        self, entry_ids: Sequence[int], consumer: Consumer, time_ms: int, delivery_counts: Sequence[int]
    ) -> None:
        """Make `consumer` the owner of entries; cheap for new ones, which ascend beyond all pending ones."""
        if len(delivery_counts) != len(entry_ids):
            raise ValueError("each entry has a delivery count")
        last, latest = self.pending.last(), self.by_delivery.last()
        order = self._order(time_ms)
        self._serial += len(entry_ids) - 1
        orders = range(order, order + len(entry_ids))
        states = list(map(PendingState, repeat(consumer), orders, delivery_counts))
        if (
            (last is not None and last[0] >= entry_ids[0])
            or (latest is not None and latest[0] >= order)
            or not all(map(lt, entry_ids, islice(entry_ids, 1, None)))
        ):
            self._put_each(entry_ids, states)
            return
        self._idle_longest = None
        self._check_own_first(consumer, order)
        self.pending.extend(entry_ids, states)
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
            serial if owner is None else (time_ms + 1) << SERIAL_BITS | serial
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

    def release_run(self, entry_ids: Sequence[int], delivery_counts: Sequence[int]) -> None:
        """Release entries: they have no owner, and go to the end of the released ones, in this order."""
        first = self._serial + 1
        self._serial += len(entry_ids)
        serials = range(first, first + len(entry_ids))
        self._put_each(entry_ids, list(map(PendingState, repeat(None), serials, delivery_counts)))

    def defer_run(self, entry_ids: Sequence[int], until_ms: int, delivery_counts: Sequence[int]) -> None:
        """Take entries from their owners until that time: they are in no order of delivery, and have to be
        released then.
        """
        if self.deferred is _NO_DEFERRED:
            self.deferred = SortedMap(pack=PackedNumbers.of)
        order = self._order(until_ms)
        self._serial += len(entry_ids) - 1
        orders = range(order, order + len(entry_ids))
        self._put_each(entry_ids, list(map(PendingState, repeat(None), orders, delivery_counts)))

    def deferred_first(self) -> Iterator[tuple[int, PendingState]]:
        """Deferred entries, those that come back first in front. The group must not change meanwhile."""
        for entry_id in self.deferred.values():
            pending = self.pending.get(entry_id)
            assert pending is not None, "both hold the same entries"
            yield entry_id, pending

    @property
    def deferred_until_ms(self) -> int | None:
        """When the first of the deferred entries comes back."""
        first = self.deferred.first()
        return None if first is None else (first[0] >> SERIAL_BITS) - 1

    def _orders(self, pending: PendingState) -> SortedMap[int]:
        """Where an entry in this state has its order."""
        return self.by_delivery if pending.until_ms is None else self.deferred

    def settle(self, entry_id: int) -> PendingState | None:
        """Take the entry off the pending list; what it was, None if it was not there."""
        pending = self.pending.pop(entry_id)
        if pending is not None:
            self._idle_longest = None
            self._orders(pending).pop(pending.order)
            if pending.consumer is not None:
                pending.consumer.pending.pop(entry_id)
        return pending

    def settle_run(self, entry_ids: Sequence[int]) -> None:
        """Take pending entries off the list; cheap where they stand side by side, as those of a batch do."""
        if len(entry_ids) == 1:
            self.settle(entry_ids[0])
            return
        run = self.pending.pop_run(list(entry_ids)) if entry_ids else None
        if run is None:
            self._settle_each(sorted(set(entry_ids)))
            return
        self._idle_longest = None
        if self.deferred:
            self._forget(dict(zip(entry_ids, run, strict=True)), None)
            return
        orders = [state.order for state in run]
        if self.by_delivery.pop_run(orders) is None:
            for order in orders:
                self.by_delivery.pop(order)
        owner = run[0].consumer
        alike = owner is not None and all(state.consumer is owner for state in run)
        if owner is not None and alike and owner.pending.pop_run(list(entry_ids)) is not None:
            return
        for entry_id, state in zip(entry_ids, run, strict=True):
            if state.consumer is not None:
                state.consumer.pending.pop(entry_id)

    def _settle_each(self, entry_ids: Sequence[int]) -> None:
        """Settle ascending IDs at any place."""
        self._idle_longest = None
        self._forget(self.pending.pop_each(entry_ids), None)

    def _forget(self, before: Mapping[int, PendingState], owner: Consumer | None) -> None:
        """Take ascending entries out of the order of delivery, and from those who are not their `owner`."""
        orders = sorted(state.order for state in before.values())
        if self.deferred:
            deferred = {state.order for state in before.values() if state.until_ms is not None}
            self.deferred.drop_each(sorted(deferred))
            orders = [order for order in orders if order not in deferred]
        self.by_delivery.drop_each(orders)
        lost: dict[Consumer, list[int]] = {}
        for entry_id, state in before.items():
            if state.consumer is not None and state.consumer is not owner:
                lost.setdefault(state.consumer, []).append(entry_id)
        for consumer, ids in lost.items():
            consumer.pending.drop_each(ids)

    def remove_consumer(self, name: str) -> None:
        """Remove a consumer, its pending entries too."""
        consumer = self.consumers.pop(name)
        held = [entry_id for entry_id, _ in consumer.pending.items()]
        consumer.pending = Consumer(name, 0).pending
        self._idle_longest = None
        self.by_delivery.drop_each(sorted(state.order for state in self.pending.pop_each(held).values()))

    def in_order_of_delivery(self) -> Iterator[tuple[int, PendingState]]:
        """Pending entries, released first, then those idle longest. The group must not change meanwhile."""
        for entry_id in self.by_delivery.values():
            pending = self.pending.get(entry_id)
            assert pending is not None, "both orders hold the same entries"
            yield entry_id, pending

    def of_others(self, consumer: Consumer) -> Iterator[tuple[int, PendingState]]:
        """The same without what `consumer` owns. It ends behind `_OWN_PASSED_OVER_MAX` of those; where they
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
        return takewhile(lambda row: row[0] < OWNED_FROM, self.by_delivery.items())

    def _owned_from(self, consumer: Consumer) -> int:
        """The order below which `consumer` owns everything."""
        if self._own_first is not None and self._own_first[0] is consumer:
            return self._own_first[1]
        return OWNED_FROM

    def _check_own_first(self, consumer: Consumer | None, order: int) -> None:
        """An entry comes to stand at `order`."""
        known = self._own_first
        if known is not None and consumer is not known[0] and OWNED_FROM <= order < known[1]:
            self._own_first = None

    def idle_longest(
        self, edition: tuple[int, ...], is_there: Callable[[int], bool], passed_over_max: int
    ) -> PendingState | None:
        """The first in order of delivery whose entry is there, or the one behind `passed_over_max` that are
        not; None where there is neither. Looked for once in each `edition` of the stream.
        """
        if self._idle_longest is None or self._idle_longest[0] != edition:
            first = first_there(self.in_order_of_delivery(), is_there, passed_over_max)
            self._idle_longest = edition, first
        return self._idle_longest[1]

    def owned_longest_first(self) -> Iterator[tuple[int, PendingState]]:
        """Owned pending entries, those idle longest first. The group must not change meanwhile."""
        for _, entry_id in self.by_delivery.items(OWNED_FROM):
            pending = self.pending.get(entry_id)
            assert pending is not None, "both orders hold the same entries"
            yield entry_id, pending

    def idle_from(
        self, start: int, min_idle_ms: int, now_ms: int, consumer: Consumer | None
    ) -> Iterator[tuple[int, PendingState | None]]:
        """Pending entries from an ID on, of one consumer or of all, in blocks in which some are released or
        idle for so long; of another block the last ID, without a state. The group must not change meanwhile.

        A block that has not changed since the last look costs 1 us.
        """
        before = max(OWNED_FROM, (now_ms - min_idle_ms + 2) << SERIAL_BITS)
        first = self.by_delivery.first()
        if first is None or first[0] >= before:
            return
        while True:
            held = None if consumer is None else next(consumer.pending.items(start), None)
            block = self.pending.block_from(start if held is None else held[0])
            if block is None or (held is None and consumer is not None):
                return
            last = block.keys[-1]
            if _lowest_order(block) >= before:
                yield last, None
            elif consumer is None:
                place = columns.left(block.keys, start)
                keys, states = columns.since(block.keys, place), columns.since(block.values, place)
                yield from zip(keys, states, strict=True)
            else:
                own = list(
                    takewhile(last.__ge__, (entry_id for entry_id, _ in consumer.pending.items(start)))
                )
                yield from zip(own, self.pending.of_each(own), strict=True)
            start = last + 1

    def needed_from(self) -> int:
        """The lowest ID that the group has still to read or to acknowledge."""
        first = self.pending.first()
        unread = self.last_delivered_id + 1
        return unread if first is None else min(first[0], unread)

    def has_released(self) -> bool:
        """Whether some pending entries have no owner."""
        first = self.by_delivery.first()
        return first is not None and first[0] < OWNED_FROM

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        pending, consumers = len(self.pending), len(self.consumers)
        in_lists = min(_IN_LISTS_MAX, pending)
        held_in_lists = min(consumers * _CONSUMER_IN_LISTS, pending)
        return (
            GROUP_BYTES
            + consumers * CONSUMER_BYTES
            + pending * PENDING_BYTES
            + in_lists * PENDING_LIST_BYTES
            + held_in_lists * HELD_LIST_BYTES
        )

    def released_count(self) -> int:
        """How many pending entries have no owner, and are there for the next reader."""
        owned = sum(len(consumer.pending) for consumer in self.consumers.values())
        return len(self.pending) - len(self.deferred) - owned

    def check(self) -> None:
        """Assert that the three views of the pending list hold the same entries."""
        self.pending.check()
        self.by_delivery.check()
        pending = dict(self.pending.items())
        orders = {entry_id: order for order, entry_id in self.by_delivery.items()}
        assert all(pending[entry_id].until_ms is None for entry_id in orders), (
            "a deferred state is not delivered"
        )
        orders |= {entry_id: order for order, entry_id in self.deferred.items()}
        assert len(orders) == len(self.by_delivery) + len(self.deferred), "each entry has one order"
        assert orders == {entry_id: state.order for entry_id, state in pending.items()}, "both orders agree"
        for name, consumer in self.consumers.items():
            consumer.pending.check()
            mine = [entry_id for entry_id, state in pending.items() if state.consumer is consumer]
            assert consumer.name == name, "a consumer stands under its name"
            assert [entry_id for entry_id, _ in consumer.pending.items()] == mine, (
                "a consumer's entries are its own"
            )
        owners = {id(state.consumer) for state in pending.values() if state.consumer is not None}
        assert owners <= {id(consumer) for consumer in self.consumers.values()}, (
            "no entry belongs to a removed consumer"
        )

    def _order(self, time_ms: int) -> int:
        self._serial += 1
        return (time_ms + 1) << SERIAL_BITS | self._serial

    def _put_each(self, entry_ids: Sequence[int], states: Sequence[PendingState]) -> None:
        """Give entries these states, whose orders ascend and whose owner is the same. Of an ID that is named
        again the last state stays.
        """
        if len(entry_ids) == 1:
            self._put(entry_ids[0], states[0])
            return
        self._idle_longest = None
        owner = states[0].consumer
        self._check_own_first(owner, states[0].order)
        rows = dict(zip(entry_ids, states, strict=True))
        before = self.pending.set_each(rows)
        self._forget(before, owner)
        self._orders(states[0]).update([state.order for state in rows.values()], list(rows))
        if owner is not None:
            kept = {entry_id for entry_id, state in before.items() if state.consumer is owner}
            gained = sorted(rows.keys() - kept)
            owner.pending.update(gained, [None] * len(gained))

    def _put(self, entry_id: int, pending: PendingState) -> None:
        self._idle_longest = None
        self._check_own_first(pending.consumer, pending.order)
        before = self.pending.get(entry_id)
        owner = None if before is None else before.consumer
        if before is not None:
            self._orders(before).pop(before.order)
        self.pending.set(entry_id, pending)
        self._orders(pending).set(pending.order, entry_id)
        if owner is not pending.consumer:
            if owner is not None:
                owner.pending.pop(entry_id)
            if pending.consumer is not None:
                pending.consumer.pending.set(entry_id, None)


def _lowest_order(block: Block[PendingState]) -> int:
    """The order of the entry of a block that was released, or else delivered, before all others; for packed
    ones the first of its millisecond.
    """
    if block.weight is None:
        states = block.values
        if isinstance(states, PackedPending):
            block.weight = states.lowest_order()
        else:
            block.weight = min(state.order for state in states)
    return block.weight


def first_there(
    rows: Iterator[tuple[int, PendingState]], is_there: Callable[[int], bool], passed_over_max: int
) -> PendingState | None:
    """The first whose entry is there, or the one behind `passed_over_max` that are not; None without one."""
    numbered = enumerate(rows)
    candidates = (state for at, (entry_id, state) in numbered if at >= passed_over_max or is_there(entry_id))
    return next(candidates, None)
