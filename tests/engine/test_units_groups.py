"""Groups, idempotency tables and waiters: each against the plainest thing that does the same."""

import weakref
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.blocks import SortedMap
from engine.commands.execution import Blocked
from engine.commands.types import Cursor, XRead, XReadGroup
from engine.groups import Group
from engine.parts.deferrals import Deferrals, defer
from engine.parts.idempotence import Idempotence
from engine.pending_states import Consumer
from engine.waiters import Waiter, Waiters
from tests import halves

# Neighbours by sequence number, by millisecond, and far ones.
IDS: Final = (*range(1, 12), 255, 256, 1 << 32, 1 << 64, (1 << 64) + 1, (5 << 64) + 300, (1 << 128) - 1)
entry_ids = st.sampled_from(IDS)
id_runs = st.lists(entry_ids, min_size=1, max_size=5, unique=True).map(sorted)
times = st.sampled_from([*range(9), 1 << 40])
counts = st.sampled_from([1, 2, 3, 255, 256, (1 << 63) - 1])
names = st.sampled_from("ab")


@dataclass
class Held:
    """A pending entry; `serial` counts everything that was ever delivered, released or deferred."""

    owner: str | None
    time: int
    count: int
    serial: int
    until: int | None = None


def small_blocks(held: SortedMap[Any], block_items_max: int) -> None:
    held.block_items_max, held.lists_max = block_items_max, 1


class BesideALedger(RuleBasedStateMachine):
    """A group against a dict of who holds what since when."""

    @initialize(block_items_max=st.sampled_from([1, 2, 3, 512]))
    def begin(self, block_items_max: int) -> None:
        """With small blocks most of them are packed."""
        self.group = Group(0, None)
        self.block_items_max = block_items_max
        small_blocks(self.group.pending, block_items_max)
        small_blocks(self.group.by_delivery, block_items_max)
        self.held: dict[int, Held] = {}
        self.serial = 0

    def _consumer(self, name: str) -> Consumer:
        if name not in self.group.consumers:
            consumer = self.group.consumers[name] = Consumer(name, 0)
            small_blocks(consumer.pending, self.block_items_max)
        return self.group.consumers[name]

    def _note(
        self, entry_id: int, owner: str | None, time: int, count: int, until: int | None = None
    ) -> None:
        self.serial += 1
        self.held[entry_id] = Held(owner, time, count, self.serial, until)

    @rule(run=id_runs, name=names, time=times, count=counts)
    def own(self, run: list[int], name: str, time: int, count: int) -> None:
        """New ones, or those that anybody holds."""
        self.group.own_run(run, self._consumer(name), time, [count] * len(run))
        for entry_id in run:
            self._note(entry_id, name, time, count)

    @rule(run=id_runs)
    def settle_run(self, run: list[int]) -> None:
        """With any owner, and without."""
        self.group.settle_run(run)
        for entry_id in run:
            self.held.pop(entry_id, None)

    @rule(entry_id=entry_ids, count=st.integers(0, 3))
    def release(self, entry_id: int, count: int) -> None:
        self.group.release_run([entry_id], [count])
        self._note(entry_id, None, 0, count)

    @rule(run=id_runs, until=times, count=counts)
    def defer(self, run: list[int], until: int, count: int) -> None:
        """Whoever holds them, and again what was deferred before."""
        defer(self.group, run, until, [count] * len(run))
        for entry_id in run:
            self._note(entry_id, None, 0, count, until)

    @rule(entry_id=entry_ids)
    def settle(self, entry_id: int) -> None:
        settled, held = self.group.settle(entry_id), self.held.pop(entry_id, None)
        assert (settled is None) == (held is None)

    @precondition(lambda self: self.group.consumers)
    @rule(data=st.data())
    def remove_consumer(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.group.consumers)))
        self.group.remove_consumer(name)
        self.held = {entry_id: one for entry_id, one in self.held.items() if one.owner != name}

    @invariant()
    def agrees(self) -> None:
        group = self.group
        group.check()
        rows = [
            (entry_id, one.consumer and one.consumer.name, one.delivery_time_ms, one.delivery_count)
            for entry_id, one in group.pending.items()
        ]
        assert rows == [
            (entry_id, one.owner, one.time, one.count) for entry_id, one in sorted(self.held.items())
        ]
        deferred = sorted(
            (one.until, one.serial, each) for each, one in self.held.items() if one.until is not None
        )
        part = Deferrals.of(group)
        later = () if part is None else part.rows(group)
        assert [entry_id for entry_id, _ in later] == [entry_id for _, _, entry_id in deferred]
        assert (part is None) == (not deferred), "the last one takes it along"
        in_order = sorted(
            [row for row in self.held.items() if row[1].until is None],
            key=lambda row: (row[1].owner is not None, row[1].time, row[1].serial),
        )
        assert [entry_id for entry_id, _ in group.in_order_of_delivery()] == [
            entry_id for entry_id, _ in in_order
        ]
        for consumer in group.consumers.values():
            others = [entry_id for entry_id, one in in_order if one.owner != consumer.name]
            assert [entry_id for entry_id, _ in group.of_others(consumer)] == others
        assert group.released_count() == sum(one.owner is None for _, one in in_order)
        for name, consumer in group.consumers.items():
            mine = [entry_id for entry_id, one in sorted(self.held.items()) if one.owner == name]
            assert [entry_id for entry_id, _ in consumer.pending.items()] == mine


BesideALedger.TestCase.settings = settings(max_examples=halves.some(150), stateful_step_count=30)
TestBesideALedger = BesideALedger.TestCase


def test_new_entries_are_owned_in_bulk() -> None:
    """A thousand deliveries fill blocks; the order of delivery is that of their IDs."""
    group, consumer = Group(0, None), Consumer("a", 0)
    group.consumers["a"] = consumer
    for start in (1, 1001):
        group.own_run(range(start, start + 1000), consumer, 5, [1] * 1000)
    group.check()
    assert [entry_id for entry_id, _ in group.in_order_of_delivery()] == list(range(1, 2001))
    assert [len(block.keys) for block in group.pending.snapshot().blocks] == [512, 512, 512, 464]


def test_what_a_consumer_holds_itself_is_walked_over_once() -> None:
    """A look for what others hold ends behind thousands of its own, and the next one goes on there."""
    group, mine, other = Group(0, None), Consumer("a", 0), Consumer("b", 0)
    group.consumers |= {"a": mine, "b": other}
    group.own_run(range(1, 10_001), mine, 5, [1] * 10_000)
    group.own_run([10_001], other, 5, [1])
    looks = [[entry_id for entry_id, _ in group.of_others(mine)] for _ in range(4)]
    assert looks == [[], [], [10_001], [10_001]]
    assert next(group.of_others(other))[0] == 1
    group.own_run([10_002], other, 4, [1])
    assert next(group.of_others(mine), None) is not None


def test_what_others_hold_before_its_own_is_found_each_time() -> None:
    """Only entries of its own in front of all others are skipped by the next look."""
    group, mine, other = Group(0, None), Consumer("a", 0), Consumer("b", 0)
    group.consumers |= {"a": mine, "b": other}
    group.own_run([1], other, 5, [1])
    group.own_run([2, 3], mine, 5, [1, 1])
    looks = [[entry_id for entry_id, _ in group.of_others(mine)] for _ in range(2)]
    assert looks == [[1], [1]]


def test_a_group_needs_what_it_has_still_to_read_or_to_acknowledge() -> None:
    """After it was set back, what is pending stands above what it reads again."""
    group, consumer = Group(5, None), Consumer("a", 0)
    group.consumers["a"] = consumer
    assert group.needed_from() == 6
    group.own_run([4, 5], consumer, 5, [1, 1])
    assert group.needed_from() == 4
    group.last_delivered_id = 2
    assert group.needed_from() == 3


class TestProductions:
    def test_the_oldest_of_a_producer_goes(self) -> None:
        """Others are not touched."""
        kept = Idempotence(100, 2)
        for place, key in enumerate([b"a", b"b", b"c"]):
            kept.record(b"p", key, place)
        kept.record(b"q", b"a", 9)
        assert [kept.find(b"p", key, 0) for key in (b"a", b"b", b"c")] == [None, 1, 2]
        assert (kept.find(b"q", b"a", 0), kept.keys_tracked, kept.added) == (9, 3, 4)

    def test_expiry_takes_the_oldest_up_to_the_first_that_is_not(self) -> None:
        """Keys are in order of their making; one with an ID from the future keeps those behind it."""
        kept = Idempotence(10, 100)
        for ms, key in ((1_000, b"a"), (2_000, b"b"), (90_000, b"c"), (3_000, b"d")):
            kept.record(b"p", key, ms << 64)
        assert list(kept.find_expired(10_999)) == []
        assert list(kept.find_expired(11_000)) == [(b"p", 1)]
        assert list(kept.find_expired(20_000)) == [(b"p", 2)]
        kept.forget(b"p", 2)
        assert [kept.find(b"p", key, 0) for key in (b"a", b"b")] == [None, None]
        kept.forget(b"p", 2)
        assert kept.producers == {}

    def test_only_another_setting_forgets(self) -> None:
        """The counters stay."""
        kept = Idempotence(10, 100)
        kept.record(b"p", b"a", 1)
        kept.configure(10, 100)
        assert kept.find(b"p", b"a", 0) == 1
        kept.configure(10, 99)
        assert (kept.find(b"p", b"a", 0), kept.added) == (None, 1)


class Ticket:
    """Something to answer with, whose end can be seen."""


def blocked(*streams: str) -> Blocked:
    return Blocked(XRead(streams=[(name, 0) for name in streams]), streams, 1000)


def blocked_in(group: str, *streams: str) -> Blocked:
    reading = XReadGroup(group=group, consumer="c", streams=[(name, Cursor.NEW) for name in streams])
    return Blocked(reading, streams, 1000, (streams, group))


class TestWaiters:
    @pytest.mark.parametrize("reading", [blocked("s"), blocked_in("g", "s")], ids=["plain", "of a group"])
    def test_of_many_streams_those_with_readers_are_found(self, reading: Blocked) -> None:
        """All streams may be signalled at once, and there may be far more of them than readers."""
        waiters: Waiters[str] = Waiters()
        waiters.add(Waiter(reading, "first", 10.0))
        many = dict.fromkeys([f"other {number}" for number in range(9)] + ["s"])
        assert list(waiters.awaited(many)) == ["s"]
        assert waiters.waits_for(many)
        del many["s"]
        assert list(waiters.awaited(many)) == []
        assert not waiters.waits_for(many)
        assert list(waiters.awaited({"s": None})) == ["s"]

    def test_first_come_first_served_stream_by_stream(self) -> None:
        """One that waits for several stands in each queue; who is blocked again stands at the end."""
        waiters: Waiters[str] = Waiters()
        first, second, third = (
            Waiter(blocked(*streams), name, 10.0)
            for name, streams in (("first", "xy"), ("second", "y"), ("third", "x"))
        )
        for waiter in (first, second, third):
            assert waiters.add(waiter) is None
        assert [waiter.ticket for waiter in waiters.plain("y")] == ["first", "second"]
        assert [waiter.ticket for waiter in waiters.plain("x")] == ["first", "third"]
        waiters.add(first)
        assert [waiter.ticket for waiter in waiters.plain("x")] == ["third", "first"]
        assert len(waiters) == 3

    def test_waiter_groups_are_served_in_order_of_arrival_over_all_of_them(self) -> None:
        """Each is asked until its first is not ready; who is blocked meanwhile waits for the next time."""
        waiters: Waiters[str] = Waiters()
        rows = [
            ("a", "g", "x"),
            ("b", "h", "x"),
            ("c", "g", "x"),
            ("d", "g", "xy"),
            ("e", "h", "x"),
            ("f", "g", "y"),
        ]
        for name, group, streams in rows:
            waiters.add(Waiter(blocked_in(group, *streams), name, 10.0))
        ready = {"a", "b", "c", "d"}
        asked: list[str] = []

        def is_ready(waiter: Waiter[str]) -> bool:
            asked.append(waiter.ticket)
            return waiter.ticket in ready

        served: list[str] = []
        for waiter in waiters.in_turn("x", is_ready):
            served.append(waiter.ticket)
            if waiter.ticket == "a":
                waiters.add(waiter)
            else:
                waiters.remove(waiter)
        assert served == ["a", "b", "c", "d"]
        assert asked == ["a", "b", "c", "d", "e"]
        assert {
            waiter_group.wait_key: [one.ticket for one in waiter_group.waiters]
            for waiter_group in waiters.waiter_groups("x")
        } == {(("x",), "g"): ["a"], (("x",), "h"): ["e"]}
        assert [one.ticket for one in waiters.in_turn("y", lambda _: False)] == []
        assert len(waiters) == 3

    def test_one_that_is_gone_is_nowhere(self) -> None:
        """Neither in a queue nor among those that come due; its group of waiters goes with it."""
        waiters: Waiters[str] = Waiters()
        for one in (blocked("x", "y"), blocked_in("g", "x", "y")):
            waiter = Waiter(one, "only", 10.0)
            waiter_group = waiters.add(waiter)
            if waiter_group is not None:
                waiters.retry(waiter_group, 5.0)
            waiters.remove(waiter)
            assert (waiters.plain("x"), waiters.waiter_groups("y"), len(waiters)) == ((), (), 0)
            assert (waiters.next_due(), waiters.due(99.0, 9)) == (None, ([], []))
        assert waiters.all_waiters() == []

    def test_deadlines_and_retries_come_due_in_order(self) -> None:
        """A limited number of waiters at a time; a group of them once, at its earliest time."""
        waiters: Waiters[str] = Waiters()
        for name, deadline in (("late", 30.0), ("soon", 10.0), ("next", 11.0)):
            waiters.add(Waiter(blocked("x"), name, deadline))
        waiter_group = waiters.add(Waiter(blocked_in("g", "x"), "claims", 40.0))
        assert waiter_group is not None
        for at in (9.0, 5.0, 7.0, None):
            waiters.retry(waiter_group, at)
        assert waiters.next_due() == 5.0
        assert waiters.due(4.9, 9) == ([], [])
        found, waiter_groups = waiters.due(20.0, 1)
        assert ([waiter.ticket for waiter in found], waiter_groups) == (["soon"], [waiter_group])
        assert [waiter.ticket for waiter in waiters.due(20.0, 9)[0]] == ["next"]
        waiters.retry(waiter_group, 25.0)
        assert waiters.due(26.0, 9) == ([], [waiter_group])
        assert waiters.next_due() == 30.0

    def test_those_that_are_gone_are_forgotten_long_before_their_time(self) -> None:
        """Readers are served many times a second, and each would have waited for a minute."""
        waiters: Waiters[Ticket] = Waiters()
        tickets: list[weakref.ref[Ticket]] = []
        for number in range(5_000):
            ticket = Ticket()
            waiter = Waiter(blocked("x"), ticket, 60.0 + number)
            waiters.add(waiter)
            waiters.remove(waiter)
            tickets.append(weakref.ref(ticket))
        assert sum(each() is not None for each in tickets) < 2_000
