"""Group, consumer, pending entry: deliver, acknowledge, claim, release. And what a capability of groups is.

Knows: which consumer owns which entry since when, how often it was delivered, in order of IDs and in order of
delivery; the hooks of parts, and no part.
Must never know: parsing, replies, payloads, and what time it is.

    group.pending      ID → Pending    all that is not acknowledged, in order of IDs
    group.by_delivery  order → ID      the same in order of delivery, released entries (the NACK zone) first,
                                       without what a part has taken aside
    consumer.pending   IDs             those of one consumer
    group.parts        GroupPart       what the group has of each capability: most groups have none

`engine.pending_states` says what an order is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice, repeat, takewhile
from operator import attrgetter, lt
from secrets import randbits
from types import MappingProxyType
from typing import Any, ClassVar, Final

from engine import block_columns as columns
from engine.blocks import Block, Snapshot, SortedMap
from engine.capability import Capability
from engine.memory import (
    CONSUMER_BYTES,
    GROUP_BYTES,
    HELD_LIST_BYTES,
    PENDING_BYTES,
    PENDING_LIST_BYTES,
)
from engine.packed import PackedNumbers
from engine.pending_states import OWNED_FROM, SERIAL_BITS, Consumer, PackedPending, PendingState
from engine.record import Record
from engine.states import FAILED_DELIVERIES_MIN

# A consumer's own entries that one look for what others hold walks over: some milliseconds.
_OWN_PASSED_OVER_MAX: Final = 4_000
# The newest blocks of 512 that stay in lists: what is delivered and acknowledged at once, in batches too, is
# not packed in between.
_LISTS_MAX: Final = 16
# What stands in lists, for the estimate of memory: of a group, and of each consumer about. Older blocks that
# are unpacked while they are written are left out: as many again at most.
_IN_LISTS_MAX: Final = _LISTS_MAX * 512
_CONSUMER_IN_LISTS: Final = 384

# What most groups have passed over. It is never written.
_NOTHING_PASSED: Final[SortedMap[Any]] = SortedMap()

# Numbers of groups and of their moves, each used once: from anywhere, so that they are those of one process.
_numbers = count(randbits(48))


class Group:
    """`entries_read` is None where it is unknown. `number` is no other group's of this process, and `move`,
    the number of its last move, no other's.
    """

    __slots__ = (
        "_aside",
        "_followers",
        "_idle_longest",
        "_own_first",
        "_parts_bytes",
        "_serial",
        "active_ms",
        "by_delivery",
        "consumers",
        "entries_read",
        "failed_ms",
        "is_paused",
        "last_delivered_id",
        "move",
        "number",
        "parts",
        "pending",
        "seen_ms",
    )

    def __init__(self, last_delivered_id: int, entries_read: int | None) -> None:
        self.last_delivered_id = last_delivered_id
        self.entries_read = entries_read
        self.number = self.move = next(_numbers)
        self.consumers: dict[str, Consumer] = {}
        self.pending: SortedMap[PendingState] = SortedMap(pack=PackedPending.of, lists_max=_LISTS_MAX)
        self.by_delivery: SortedMap[int] = SortedMap(pack=PackedNumbers.of, lists_max=_LISTS_MAX)
        # In the order of their ranks; whether one of them has it deliver nothing, which ones follow what is
        # pending, and how much memory they take.
        self.parts: tuple[GroupPart, ...] = ()
        self.is_paused = False
        self._followers: tuple[GroupPart, ...] = ()
        self._aside: tuple[GroupPart, ...] = ()
        self._parts_bytes = 0
        self._serial = 0
        # When a consumer last asked, last was given something, and an entry last failed (-1: never). They
        # follow from what the log has, but for dead letters: of these nothing is known after a restart.
        self.seen_ms = self.active_ms = self.failed_ms = -1
        # What `idle_longest` found, and in which edition of the stream. None once the pending list changes.
        self._idle_longest: tuple[tuple[int, ...], PendingState | None] | None = None
        # A consumer, and the order below which every owned entry is its own: so what it holds is walked once,
        # however often it asks for what others hold.
        self._own_first: tuple[Consumer, int] | None = None

    def note_seen(self, seen_ms: int, active_ms: int) -> None:
        """A consumer has asked, and last was given something."""
        self.seen_ms, self.active_ms = max(self.seen_ms, seen_ms), max(self.active_ms, active_ms)

    def note_failed(self, at_ms: int) -> None:
        """An entry has become a dead letter, or was delivered for the third time."""
        self.failed_ms = max(self.failed_ms, at_ms)

    def note_move(self) -> None:
        """Its position was set: what was delivered before cannot be undone any more."""
        self.move = next(_numbers)

    def put_part(self, part: "GroupPart") -> None:
        """Give it what it has of a part in the place of what it had; nothing, where the part says nothing. A
        part that has changed is put again.
        """
        others = [one for one in self.parts if type(one) is not type(part)]
        self.parts = tuple(sorted(others if part.is_over else [*others, part], key=attrgetter("rank")))
        self.is_paused = any(one.pauses for one in self.parts)
        self._followers = tuple(one for one in self.parts if one.follows_pending)
        self._aside = tuple(one for one in self.parts if one.takes_aside)
        self._parts_bytes = sum(one.kept_bytes for one in self.parts)

    def first_order(self, length: int, time_ms: int) -> int:
        """The order of the first entry of the run that was delivered last, at this time."""
        return (time_ms + 1) << SERIAL_BITS | (self._serial - length + 1)

    def own_run(
        self, entry_ids: Sequence[int], consumer: Consumer, time_ms: int, delivery_counts: Sequence[int]
    ) -> None:
        """Make `consumer` the owner of entries; cheap for new ones, which ascend beyond all pending ones."""
        if len(delivery_counts) != len(entry_ids):
            raise ValueError("each entry has a delivery count")
        if delivery_counts and max(delivery_counts) >= FAILED_DELIVERIES_MIN:
            self.note_failed(time_ms)
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
        if self._followers:
            self._note_pending(entry_ids)

    def restore(
        self,
        entry_ids: Sequence[int],
        owners: Sequence[Consumer | None],
        times_ms: Sequence[int],
        delivery_counts: Sequence[int],
    ) -> None:
        """Take pending entries of a snapshot, in order of delivery; the group has none of them yet."""
        self._idle_longest = self._own_first = None
        for time_ms, deliveries in zip(times_ms, delivery_counts, strict=True):
            if deliveries >= FAILED_DELIVERIES_MIN:
                self.note_failed(time_ms)
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

    def take_aside(
        self, entry_ids: Sequence[int], until_ms: int, delivery_counts: Sequence[int]
    ) -> dict[int, PendingState]:
        """Take entries from their owners until that time: they are in no order of delivery, and a part has to
        know them, which gets their states.
        """
        order = self._order(until_ms)
        self._serial += len(entry_ids) - 1
        orders = range(order, order + len(entry_ids))
        states = list(map(PendingState, repeat(None), orders, delivery_counts))
        self._put_each(entry_ids, states)
        return dict(zip(entry_ids, states, strict=True))

    def settle(self, entry_id: int) -> PendingState | None:
        """Take the entry off the pending list; what it was, None if it was not there. It is not passed over
        any more either.
        """
        pending = self.pending.pop(entry_id)
        if pending is not None:
            self._idle_longest = None
            self._leave_order(entry_id, pending)
            if pending.consumer is not None:
                pending.consumer.pending.pop(entry_id)
        if self._followers:
            self._note_settled((entry_id,))
        return pending

    def settle_run(self, entry_ids: Sequence[int]) -> None:
        """The same of several; cheap where they stand side by side, as those of a batch do."""
        if len(entry_ids) == 1:
            self.settle(entry_ids[0])
            return
        if self._followers:
            self._note_settled(entry_ids)
        run = self.pending.pop_run(list(entry_ids)) if entry_ids else None
        if run is None:
            self._settle_each(sorted(set(entry_ids)))
            return
        self._idle_longest = None
        if self._aside:
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
        aside = self._note_left(before) if self._aside else set()
        self.by_delivery.drop_each([order for order in orders if order not in aside] if aside else orders)
        lost: dict[Consumer, list[int]] = {}
        for entry_id, state in before.items():
            if state.consumer is not None and state.consumer is not owner:
                lost.setdefault(state.consumer, []).append(entry_id)
        for consumer, ids in lost.items():
            consumer.pending.drop_each(ids)

    def _leave_order(self, entry_id: int, before: PendingState) -> None:
        """Take an entry that was in this state out of the order in which it stands."""
        if not self._aside or before.order not in self._note_left({entry_id: before}):
            self.by_delivery.pop(before.order)

    def _note_pending(self, entry_ids: Sequence[int]) -> None:
        for part in self._followers:
            part.note_pending(entry_ids)
            self.put_part(part)

    def _note_settled(self, entry_ids: Sequence[int]) -> None:
        for part in self._followers:
            part.note_settled(entry_ids)
            self.put_part(part)

    def _note_left(self, before: Mapping[int, PendingState]) -> set[int]:
        """Entries are in these states no more; return the orders of those that a part had taken aside."""
        aside = set[int]()
        for part in self._aside:
            aside |= part.note_left(before)
            self.put_part(part)
        return aside

    def remove_consumer(self, name: str) -> None:
        """Remove a consumer, its pending entries too."""
        consumer = self.consumers.pop(name)
        held = [entry_id for entry_id, _ in consumer.pending.items()]
        consumer.pending = Consumer(name, 0).pending
        self._idle_longest = None
        if self._followers:
            self._note_settled(held)
        self._forget(self.pending.pop_each(held), consumer)

    def in_order_of_delivery(self) -> Iterator[tuple[int, PendingState]]:
        """Pending entries, released first, then those idle longest. The group must not change meanwhile."""
        return self.with_states(self.by_delivery.values())

    def with_states(self, entry_ids: Iterable[int]) -> Iterator[tuple[int, PendingState]]:
        """Entries, which are pending, with their states. The same."""
        for entry_id in entry_ids:
            pending = self.pending.get(entry_id)
            assert pending is not None, "an order holds what is pending"
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
        return self.with_states(self.by_delivery.values_from(OWNED_FROM))

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
        first, unread = self.pending.first(), self.last_delivered_id + 1
        needed = unread if first is None else min(first[0], unread)
        passed = self.passed_over.first() if self.parts else None
        return needed if passed is None else min(passed[0], needed)

    @property
    def passed_over(self) -> SortedMap[Any]:
        """Entries that were read and not delivered yet, as a part keeps them."""
        return next((part.passed_over for part in self.parts if part.passed_over), _NOTHING_PASSED)

    def drop_passed(self, gone: Sequence[int]) -> None:
        """Ascending entries are no longer in the stream: those that were passed over are dropped."""
        passed = self.passed_over.held_of(gone)
        if passed:
            self._note_settled(passed)

    def has_released(self) -> bool:
        """Whether some pending entries have no owner."""
        first = self.by_delivery.first()
        return first is not None and first[0] < OWNED_FROM

    @property
    def kept_bytes(self) -> int:
        """How much memory it takes, about, as it is kept."""
        pending, consumers = len(self.pending), len(self.consumers)
        in_lists = min(_IN_LISTS_MAX, pending)
        held_in_lists = min(consumers * _CONSUMER_IN_LISTS, pending)
        return (
            GROUP_BYTES
            + consumers * CONSUMER_BYTES
            + pending * PENDING_BYTES
            + in_lists * PENDING_LIST_BYTES
            + held_in_lists * HELD_LIST_BYTES
            + self._parts_bytes
        )

    @property
    def footprint_bytes(self) -> int:
        """The same, counted anew."""
        return self.kept_bytes - self._parts_bytes + sum(part.footprint_bytes for part in self.parts)

    def garbage(self) -> list[object]:
        """What is large in it, once it was removed."""
        own = [self.consumers, self.pending, self.by_delivery]
        return [*own, *(one for part in self.parts for one in part.garbage())]

    def released_count(self) -> int:
        """How many pending entries have no owner, and are there for the next reader."""
        return len(self.by_delivery) - sum(len(consumer.pending) for consumer in self.consumers.values())

    def check(self) -> None:
        """Assert that the three views of the pending list hold the same entries, and what parts say of it."""
        self.pending.check()
        self.by_delivery.check()
        pending = dict(self.pending.items())
        orders = {entry_id: order for order, entry_id in self.by_delivery.items()}
        aside = {entry_id: state.order for entry_id, state in pending.items() if state.until_ms is not None}
        assert len(orders) == len(self.by_delivery), "each entry has one order"
        assert orders | aside == {entry_id: state.order for entry_id, state in pending.items()}, (
            "both orders agree"
        )
        assert orders.keys().isdisjoint(aside), "what is aside is not delivered"
        assert not aside or any(part.takes_aside for part in self.parts), "a part knows what is aside"
        assert [part.rank for part in self.parts] == sorted({part.rank for part in self.parts}), (
            "each part is there once, in its place"
        )
        for part in self.parts:
            assert not part.is_over, "a part says something"
            part.check(self)
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
        if states[0].until_ms is None:
            self.by_delivery.update([state.order for state in rows.values()], list(rows))
        if owner is not None:
            kept = {entry_id for entry_id, state in before.items() if state.consumer is owner}
            gained = sorted(rows.keys() - kept)
            owner.pending.update(gained, [None] * len(gained))
        if self._followers:
            self._note_pending(list(rows))

    def _put(self, entry_id: int, pending: PendingState) -> None:
        self._idle_longest = None
        self._check_own_first(pending.consumer, pending.order)
        before = self.pending.get(entry_id)
        owner = None if before is None else before.consumer
        if before is not None:
            self._leave_order(entry_id, before)
        self.pending.set(entry_id, pending)
        if pending.until_ms is None:
            self.by_delivery.set(pending.order, entry_id)
        if owner is not pending.consumer:
            if owner is not None:
                owner.pending.pop(entry_id)
            if pending.consumer is not None:
                pending.consumer.pending.set(entry_id, None)
        if self._followers:
            self._note_pending((entry_id,))


class GroupPart(Capability):
    """What one group has of a capability."""

    __slots__ = ()

    # Its members of the group's policy, as they are where a group has none of it.
    settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Whether the group delivers nothing meanwhile.
    pauses: ClassVar[bool] = False
    # Whether it takes pending entries out of the order of delivery; and whether it hears of all that becomes
    # pending and is settled. Settling is not slower for parts that do not.
    takes_aside: ClassVar[bool] = False
    follows_pending: ClassVar[bool] = False

    @property
    def passed_over(self) -> SortedMap[Any]:
        """The entries that the group has read, and that it keeps from being delivered."""
        return _NOTHING_PASSED

    @classmethod
    def change(cls, stream: str, group: str, values: Mapping[str, Any]) -> Record:
        """The record that gives a group these settings."""
        raise AssertionError(f"{cls.__name__} has no settings, {group!r} of {stream!r} gets none: {values}")

    @property
    def values(self) -> dict[str, Any]:
        """Its settings."""
        return {name: getattr(self, name) for name in self.settings}

    @property
    def is_over(self) -> bool:
        """Whether the group is as one without it."""
        return self.values == self.settings

    def note_left(self, before: Mapping[int, PendingState]) -> set[int]:
        """Entries, which ascend, are in these states no more: they have others, or are settled. Returns the
        orders of those that it had taken aside.
        """
        raise AssertionError(f"{type(self).__name__} does not ask for it: {before}")

    def note_pending(self, entry_ids: Sequence[int]) -> None:
        """Entries are pending, some of them from now on."""

    def note_settled(self, entry_ids: Sequence[int]) -> None:
        """Entries are not pending any more, nor will they be delivered."""

    def copy_to(self, copy: Group, group: Group) -> None:
        """Give it to a copy of its group."""
        copy.put_part(self)

    def before(self, stream: str, group: str) -> Sequence[Record]:
        """The records of a snapshot that stand before the consumers of the group: few."""
        return [self.change(stream, group, self.values)] if self.settings else ()

    def behind(self, stream: str, group: str, pending: Snapshot[PendingState]) -> Iterable[Record]:
        """Those behind the pending list. They say what is so now, and are made when they are read."""
        return ()

    def check(self, group: Group) -> None:
        """Assert what must hold."""


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
