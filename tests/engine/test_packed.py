"""Packed columns against lists: the same is done to both, and both show the same."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.block_columns import Packed
from engine.packed import PackedColumn, PackedNones, PackedNumbers
from engine.pending_states import Consumer, PackedPending, PendingState
from tests import halves

# At each width and one beside it, in either half.
EDGES: Final = tuple(
    (number + beside) << shift
    for number in (1 << 8, 1 << 16, 1 << 32)
    for beside in (-1, 0)
    for shift in (0, 64)
)
numbers = st.one_of(st.sampled_from(EDGES), st.integers(0, (1 << 128) - 1))
owners = st.sampled_from([None, *(Consumer(name, 0) for name in "abc")])
states = st.builds(PendingState, owners, numbers, st.integers(0, (1 << 63) - 1))
KINDS: Final[list[tuple[Callable[[list[Any]], Packed[Any]], st.SearchStrategy[object]]]] = [
    (PackedNumbers.of, numbers),
    (PackedPending.of, states),
    (PackedNones.of, st.none()),
]


class BesideAList(RuleBasedStateMachine):
    """A packed column and a list have the same operations applied."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Of one of the kinds."""
        pack, self.values = data.draw(st.sampled_from(KINDS))
        self.list: list[object] = data.draw(st.lists(self.values, max_size=9))
        self.packed: Packed[object] = pack(self.list)
        self.copies: list[tuple[Packed[object], list[object]]] = []

    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        place, value = data.draw(st.integers(0, len(self.list))), data.draw(self.values)
        self.list.insert(place, value)
        self.packed.insert(place, value)

    @rule(data=st.data())
    def put(self, data: st.DataObject) -> None:
        if self.list:
            place, value = data.draw(st.integers(0, len(self.list) - 1)), data.draw(self.values)
            self.list[place] = self.packed[place] = value

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """One, and a run of them."""
        if self.list:
            place = data.draw(st.integers(0, len(self.list) - 1))
            del self.list[place], self.packed[place]
        run = slice(*sorted(data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))))
        del self.list[run], self.packed[run]

    @rule(data=st.data())
    def take_and_put(self, data: st.DataObject) -> None:
        """At several places, or side by side."""
        places = self.some_places(data)
        assert list(self.packed.at(places)) == [self.list[place] for place in places]
        values = [data.draw(self.values) for _ in places]
        for place, value in zip(places, values, strict=True):
            self.list[place] = value
        self.packed.put(places, values)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        places = self.some_places(data)
        self.list = [value for place, value in enumerate(self.list) if place not in places]
        self.packed.drop(places)

    def some_places(self, data: st.DataObject) -> Sequence[int]:
        """Ascending ones; a range stands for neighbours."""
        chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(self.list)))))) if self.list else []
        together = data.draw(st.booleans())
        if together and chosen:
            return range(chosen[0], chosen[-1] + 1)
        return chosen

    @rule()
    def copy(self) -> None:
        """Compared later, after more has changed."""
        self.copies.append((self.packed.copy(), self.list.copy()))

    @invariant()
    def agrees(self) -> None:
        for packed, values in [(self.packed, self.list), *self.copies]:
            assert list(packed) == values
            assert [packed[place] for place in range(len(packed))] == values
            assert (packed[1:4], list(packed.since(2)) if values[2:] else []) == (values[1:4], values[2:])


BesideAList.TestCase.settings = settings(max_examples=halves.some(100), stateful_step_count=15)
TestBesideAList = BesideAList.TestCase


@pytest.mark.parametrize("highest", [0, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1])
def test_a_column_is_as_narrow_as_its_numbers_allow(highest: int) -> None:
    width = next(width for width in (1, 2, 4, 8) if highest < 1 << 8 * width)
    for column in (PackedColumn.of([0, highest]), PackedColumn.of([highest] * 3), inserted([0], highest)):
        assert column.width == width
        assert len(column.data) == width * len(column)


def inserted(numbers: Sequence[int], one: int) -> PackedColumn:
    column = PackedColumn.of(numbers)
    column.insert(1, one)
    return column


def test_owners_that_own_nothing_are_forgotten() -> None:
    """A block that passes from hand to hand keeps no consumer of long ago."""
    packed = PackedPending.of([PendingState(None, 1, 1), PendingState(None, 2, 1)])
    for number in range(99):
        packed[0] = PendingState(Consumer(str(number), 0), 1, 1)
    packed.insert(1, PendingState(Consumer("99", 0), 1, 1))
    assert len(packed.owners) <= 7
    assert [state.consumer and state.consumer.name for state in packed] == ["98", "99", None]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), unique=True, min_size=1))
def test_finds_what_stands_side_by_side_and_what_does_not(halves: list[tuple[int, int]]) -> None:
    ascending = [upper << 64 | lower for upper, lower in sorted(halves)]
    packed = PackedNumbers.of(ascending)
    places = {number: place for place, number in enumerate(ascending)}
    wanted = [upper << 64 | lower for upper in range(5) for lower in range(11)]
    assert [packed.find(number) for number in wanted] == [places.get(number) for number in wanted]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), unique=True, min_size=1),
    st.sets(st.tuples(st.integers(0, 4), st.integers(0, 10))),
)
def test_finds_several_in_one_pass(held: list[tuple[int, int]], looked_for: set[tuple[int, int]]) -> None:
    ascending = [upper << 64 | lower for upper, lower in sorted(held)]
    wanted = [upper << 64 | lower for upper, lower in sorted(looked_for)]
    places = {number: place for place, number in enumerate(ascending)}
    assert PackedNumbers.of(ascending).places(wanted) == [places[each] for each in wanted if each in places]
