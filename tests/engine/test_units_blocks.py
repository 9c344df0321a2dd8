"""The ordered map in blocks behaves as a dict sorted whenever one looks, and its snapshots never change."""

from collections.abc import Callable, Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.block_columns import Packed
from engine.blocks import WRITES_TO_UNPACK, SortedMap
from engine.packed import PackedNumbers
from tests import halves

# Some beside each other in the lower half, some in the upper one.
keys = st.one_of(st.integers(0, 30), st.integers(1 << 64, (1 << 64) + 5), st.integers(5 << 64, (5 << 64) + 5))


def weight(value: int) -> int:
    return value


class BesideADict(RuleBasedStateMachine):
    """Every method, against the same done to a dict."""

    @initialize(
        block_items_max=st.integers(1, 5),
        pack=st.sampled_from([None, PackedNumbers.of]),
        lists_max=st.integers(1, 2),
    )
    def begin(
        self, block_items_max: int, pack: Callable[[list[int]], Packed[int]] | None, lists_max: int
    ) -> None:
        self.map: SortedMap[int] = SortedMap(block_items_max, pack, lists_max)
        self.model: dict[int, int] = {}
        self.snapshots: list[tuple[Sequence[object], list[tuple[int, int]]]] = []

    def _sorted(self) -> list[tuple[int, int]]:
        return sorted(self.model.items())

    @rule(key=keys, value=st.integers(0, 9))
    def set(self, key: int, value: int) -> None:
        self.map.set(key, value)
        self.model[key] = value

    @rule(key=keys, value=st.integers(0, 9))
    def set_often(self, key: int, value: int) -> None:
        """As often as unpacks a block."""
        for _ in range(WRITES_TO_UNPACK):
            self.set(key, value)

    @rule(key=keys)
    def pop(self, key: int) -> None:
        assert self.map.pop(key) == self.model.pop(key, None)

    @rule(at=keys, count=st.integers(1, 6))
    def pop_run(self, at: int, count: int) -> None:
        """All of them, or none where they do not stand in one block."""
        run = [key for key, _ in self._sorted() if key >= at][:count] or [at]
        together = any(
            run == block.keys[place : place + len(run)]
            for block in self.map.snapshot().blocks
            for place in range(len(block.keys))
        )
        values = self.map.pop_run(run)
        assert values == ([self.model.pop(key) for key in run] if together else None)

    @rule(steps=st.lists(st.integers(1, 3), max_size=12))
    def extend(self, steps: list[int]) -> None:
        """Ascending keys beyond the last."""
        last = max(self.model, default=-1)
        new = [last := last + step for step in steps]
        self.map.extend(new, [key % 7 for key in new])
        self.model |= {key: key % 7 for key in new}

    @rule(wanted=st.lists(keys, max_size=12))
    def pop_each(self, wanted: list[int]) -> None:
        """Those that exist, with their values."""
        ordered = sorted(set(wanted))
        held = [key for key in ordered if key in self.model]
        assert self.map.held_of(ordered) == held
        assert (
            self.map.of_each(held) == self.map.snapshot().of_each(held) == [self.model[key] for key in held]
        )
        assert self.map.items_of(ordered) == {key: self.model[key] for key in held}
        assert list(self.map.pop_each(ordered).items()) == [(key, self.model.pop(key)) for key in held]

    @rule(rows=st.dictionaries(keys, st.integers(0, 6), max_size=12))
    def set_each(self, rows: dict[int, int]) -> None:
        """Those that exist are replaced, the others inserted."""
        before = {key: self.model[key] for key in sorted(rows) if key in self.model}
        assert list(self.map.set_each(rows).items()) == list(before.items())
        self.model |= rows

    @rule(low=keys, high=keys)
    def count_between(self, low: int, high: int) -> None:
        assert self.map.count_between(low, high) == sum(low <= key <= high for key in self.model)

    @rule(count=st.integers(0, 8))
    def drop_first(self, count: int) -> None:
        count = min(count, len(self.model))
        self.map.drop_first(count)
        for key, _ in self._sorted()[:count]:
            del self.model[key]

    @rule()
    def snapshot(self) -> None:
        """Look at it now; compare it later."""
        self.snapshots.append((self.map.snapshot().blocks, self._sorted()))

    @rule(key=keys)
    def look(self, key: int) -> None:
        items = self._sorted()
        below = [item for item in items if item[0] <= key]
        above = [item for item in items if item[0] >= key]
        assert (key in self.map) == (key in self.model)
        assert self.map.get(key) == self.model.get(key)
        assert self.map.floor(key) == (below[-1] if below else None)
        assert list(self.map.items(key)) == above
        assert list(self.map.items_down(key)) == below[::-1]
        assert self.map.weight_below(key, weight) == sum(value for each, value in items if each < key)

    @rule(key=keys, count=st.integers(0, 6))
    def page(self, key: int, count: int) -> None:
        assert self.map.page(key, count) == [item for item in self._sorted() if item[0] >= key][:count]

    @invariant()
    def agrees(self) -> None:
        items = self._sorted()
        self.map.check()
        assert len(self.map) == len(items)
        assert list(self.map.items()) == items
        assert list(self.map.values()) == [value for _, value in items]
        assert self.map.first() == (items[0] if items else None)
        assert self.map.last() == (items[-1] if items else None)

    @invariant()
    def snapshots_stay(self) -> None:
        """Also after later writes."""
        for blocks, items in self.snapshots:
            pairs = [pair for block in blocks for pair in zip(block.keys, block.values, strict=True)]  # type: ignore[attr-defined]
            assert pairs == items


BesideADict.TestCase.settings = settings(max_examples=halves.some(120), stateful_step_count=30)
TestBesideADict = BesideADict.TestCase


def test_appending_fills_blocks() -> None:
    """Ascending keys, as IDs are, leave no block half empty behind them."""
    ascending: SortedMap[None] = SortedMap(4)
    for key in range(10):
        ascending.set(key, None)
    assert [len(block.keys) for block in ascending.snapshot().blocks] == [4, 4, 2]


def test_a_block_is_copied_once_for_a_snapshot() -> None:
    """And not at all without writes."""
    ascending: SortedMap[int] = SortedMap(4)
    ascending.extend(range(12), range(12))
    before = ascending.snapshot().blocks
    ascending.set(5, 50)
    ascending.set(6, 60)
    after = ascending.snapshot().blocks
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]
    assert (before[1].values, after[1].values) == ([4, 5, 6, 7], [4, 50, 60, 7])


def packing_map(keys: range, block_items_max: int = 4) -> SortedMap[int]:
    """In blocks of this size, of which the last is in lists."""
    packing: SortedMap[int] = SortedMap(block_items_max, PackedNumbers.of)
    packing.extend(keys, keys)
    return packing


def in_lists(packing: SortedMap[int]) -> list[bool]:
    """Whether each block is. They are copied before the next write."""
    return [isinstance(block.keys, list) for block in packing.snapshot().blocks]


def test_an_older_block_is_in_lists_while_it_is_written_often() -> None:
    """Enough writes unpack it, and its copy for a snapshot; a write to the next block packs it again."""
    packing = packing_map(range(16))
    for value in range(WRITES_TO_UNPACK - 1):
        packing.set(1, value)
    assert in_lists(packing) == [False, False, False, True]
    packing.set(1, 7)
    assert in_lists(packing) == [True, False, False, True]
    packing.set(2, 8)
    assert in_lists(packing) == [True, False, False, True]
    packing.set(5, 9)
    packing.check()
    assert in_lists(packing) == [False, False, False, True]
    assert list(packing.values()) == [0, 7, 8, 3, 4, 9, *range(6, 16)]


def test_an_older_block_that_several_batches_write_is_in_lists() -> None:
    """The fourth batch unpacks it; one that passes over many blocks unpacks none."""
    packing = packing_map(range(64), block_items_max=16)
    for batch in range(4):
        assert in_lists(packing) == [False, False, False, True]
        packing.set_each(dict.fromkeys(range(12), batch))
    assert in_lists(packing) == [True, False, False, True]
    packing.drop_each(range(0, 64, 2))
    packing.check()
    assert in_lists(packing) == [False, False, False, True]
    assert list(packing.values()) == [3] * 6 + list(range(13, 64, 2))


def test_an_older_block_that_another_packs_goes_back_to_lists() -> None:
    """A key between two splits it, and packs what comes before the last block: its upper half."""
    packing = packing_map(range(0, 32, 2))
    for _ in range(WRITES_TO_UNPACK):
        packing.set(16, 0)
    packing.set(17, 0)
    assert in_lists(packing) == [False, False, False, False, True]
    for _ in range(WRITES_TO_UNPACK):
        packing.set(18, 0)
    packing.check()
    assert in_lists(packing) == [False, False, False, True, True]
