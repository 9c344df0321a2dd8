"""An ordered map from integers, kept in blocks: the shape of a stream's nodes and of a group's pending list.

Knows: keys in order, in blocks of bounded size, their weights, and copying a block that a snapshot holds.
Must never know: what keys and values mean, and how values are packed.

    _tops    [   511,      1023,      1400 ]     the last key of each block, for bisection
    _blocks  [ 0…511 | 512…1023 | 1024…1400 ]    each: keys and values side by side, and when it was made

Appending, finding, inserting and removing cost a bisection over the blocks and one within a block, at
any length. A snapshot is the tuple of blocks: it bumps the epoch, and a write to an older block copies
it first, so that the snapshot can be read bit by bit while the map goes on.

A map that packs keeps its newest blocks, where most of the work is, in lists; those before them in packed
arrays, which take a quarter of the memory and are worked on as they are. A packed block that is written
again and again, as by one acknowledgement after the other, goes back to lists until others are.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from operator import lt
from typing import Any, Final, Generic, TypeVar

import msgspec

from engine import block_columns as columns
from engine.packed import PackedNumbers

V = TypeVar("V")

# A packed block goes back to lists with this many writes: unpacking and packing it costs what about as many
# save. So a command whose IDs are spread over many blocks pays at most twice, wherever they are.
WRITES_TO_UNPACK: Final = 48
# A batch counts as its keys, but never as more than this: a block is unpacked with the fourth batch, and not
# with one that passes over it.
_BATCH_WRITES_MAX: Final = 12
# What all empty maps share; neither is ever written.
_NO_BLOCKS: Final[Any] = ()
_NO_WRITES: Final[dict[Any, int]] = {}


class Block(msgspec.Struct, Generic[V], gc=False, eq=False):
    """A run of keys and their values, which in a snapshot never change. `weight` is what was found out of all
    values together, as the sum of their weights; None if not asked for since the last write.

    The collector passes it over: no value leads back to the map that holds it.
    """

    keys: columns.Keys
    values: columns.Column[V]
    epoch: int
    weight: int | None = None


class Snapshot(Generic[V]):
    """The items of a map as they were; the map may go on."""

    __slots__ = ("_tops", "blocks")

    def __init__(self, blocks: Sequence[Block[V]]) -> None:
        self.blocks = blocks
        self._tops = [block.keys[-1] for block in blocks]

    def values(self) -> Iterator[V]:
        """All values in order of their keys."""
        for block in self.blocks:
            yield from block.values

    def items(self) -> Iterator[tuple[int, V]]:
        """The same with their keys."""
        for block in self.blocks:
            yield from zip(block.keys, block.values, strict=True)

    def of_each(self, keys: Sequence[int]) -> list[V]:
        """The values of ascending keys, all of which exist."""
        return _of_each(self.blocks, self._tops, keys)


class SortedMap(Generic[V]):
    """Integer keys in ascending order with a value each."""

    __slots__ = (
        "_blocks",
        "_count",
        "_epoch",
        "_pack",
        "_prefix",
        "_recent",
        "_tops",
        "block_items_max",
        "lists_max",
    )

    def __init__(
        self,
        block_items_max: int = 512,
        pack: Callable[[list[V]], columns.Packed[V]] | None = None,
        lists_max: int = 1,
    ) -> None:
        """`pack` makes the values of a packed block, when `lists_max` newer ones follow; without it no block
        is packed. Up to `lists_max` older blocks go back to lists while they are written.
        """
        self.block_items_max = block_items_max
        self.lists_max = lists_max
        self._pack = pack
        # Most maps are empty, and stay so: what they hold is made when there is something.
        self._blocks: list[Block[V]] = _NO_BLOCKS
        self._tops: list[int] = _NO_BLOCKS
        self._count = 0
        self._epoch = 0
        # Weights of all blocks before each, made when asked for; None after a write.
        self._prefix: list[int] | None = None
        # The older blocks that were written last, in this order, and how often.
        self._recent: dict[Block[V], int] = _NO_WRITES

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        return self._find(key) is not None

    def get(self, key: int) -> V | None:
        """The value of `key`, or None."""
        place = self._find(key)
        return None if place is None else self._blocks[place[0]].values[place[1]]

    def of_each(self, keys: Sequence[int]) -> list[V]:
        """The values of ascending keys, all of which exist."""
        return _of_each(self._blocks, self._tops, keys)

    def first(self) -> tuple[int, V] | None:
        """The lowest key and its value."""
        if not self._blocks:
            return None
        block = self._blocks[0]
        return block.keys[0], block.values[0]

    def last(self) -> tuple[int, V] | None:
        """The highest key and its value."""
        if not self._blocks:
            return None
        block = self._blocks[-1]
        return block.keys[-1], block.values[-1]

    def floor(self, key: int) -> tuple[int, V] | None:
        """The highest key not above `key`, and its value."""
        index = bisect_left(self._tops, key)
        if index < len(self._blocks):
            block = self._blocks[index]
            place = columns.left(block.keys, key + 1) - 1
            if place >= 0:
                return block.keys[place], block.values[place]
        if index == 0:
            return None
        block = self._blocks[index - 1]
        return block.keys[-1], block.values[-1]

    def items(self, low: int = 0) -> Iterator[tuple[int, V]]:
        """Keys from `low` (inclusive) upwards. The map must not change meanwhile."""
        # By index: `islice` walks over all blocks before the first.
        for index in range(bisect_left(self._tops, low), len(self._blocks)):
            block = self._blocks[index]
            start = columns.left(block.keys, low)
            yield from zip(columns.since(block.keys, start), columns.since(block.values, start), strict=True)

    def values_from(self, low: int) -> Iterator[V]:
        """The values of keys from `low` (inclusive) upwards, without a step in Python for each. The same."""
        return chain.from_iterable(self._columns_from(low))

    def _columns_from(self, low: int) -> Iterator[Iterable[V]]:
        for index in range(bisect_left(self._tops, low), len(self._blocks)):
            block = self._blocks[index]
            yield columns.since(block.values, columns.left(block.keys, low))

    def block_from(self, low: int) -> Block[V] | None:
        """The block with the first key from `low` (inclusive) upwards. To be looked at only."""
        index = bisect_left(self._tops, low)
        return self._blocks[index] if index < len(self._blocks) else None

    def values(self) -> Iterator[V]:
        """All values in order of their keys. The map must not change meanwhile."""
        for block in self._blocks:
            yield from block.values

    def items_down(self, high: int) -> Iterator[tuple[int, V]]:
        """Keys from `high` (inclusive) downwards. The map must not change meanwhile."""
        index = min(bisect_left(self._tops, high), len(self._blocks) - 1)
        while index >= 0:
            block = self._blocks[index]
            stop = columns.left(block.keys, high + 1)
            yield from zip(reversed(block.keys[:stop]), reversed(block.values[:stop]), strict=True)
            index -= 1

    def page(self, low: int, count: int) -> list[tuple[int, V]]:
        """At most `count` items from `low` (inclusive) upwards, as a list of its own."""
        items: list[tuple[int, V]] = []
        index = bisect_left(self._tops, low)
        while index < len(self._blocks) and len(items) < count:
            block = self._blocks[index]
            start = columns.left(block.keys, low)
            stop = start + count - len(items)
            items.extend(zip(block.keys[start:stop], block.values[start:stop], strict=True))
            index += 1
        return items

    def set(self, key: int, value: V) -> None:
        """Insert `key`, or replace its value."""
        if not self._tops or key > self._tops[-1]:
            self.extend((key,), (value,))
            return
        index = bisect_left(self._tops, key)
        block = self._own(index)
        place = columns.left(block.keys, key)
        if block.keys[place] == key:
            block.values[place] = value
            return
        block.keys.insert(place, key)
        block.values.insert(place, value)
        self._count += 1
        if len(block.keys) > self.block_items_max:
            self._split(index)

    def extend(self, keys: Sequence[int], values: Sequence[V]) -> None:
        """Append ascending `keys`, all above the last one. Blocks are filled, not halved."""
        done, count = 0, len(keys)
        if not self._blocks:
            self._blocks, self._tops = [], []
        while done < count:
            held = self._blocks[-1].keys if self._blocks else ()
            if not isinstance(held, list) or len(held) >= self.block_items_max:
                self._blocks.append(Block([], [], self._epoch))
                self._tops.append(keys[done])
                self._pack_older()
            block = self._own(len(self._blocks) - 1)
            stop = done + self.block_items_max - len(block.keys)
            # The last block is in lists.
            block.keys += keys[done:stop]  # type: ignore[operator]
            block.values += values[done:stop]  # type: ignore[operator]
            done = stop
            self._tops[-1] = keys[min(done, count) - 1]
        self._count += count

    def update(self, keys: Sequence[int], values: Sequence[V]) -> None:
        """Set each key; as cheap as `extend` where they ascend beyond the last one."""
        ascending = all(map(lt, keys, islice(keys, 1, None)))
        if ascending and keys and (not self._tops or self._tops[-1] < keys[0]):
            self.extend(keys, values)
            return
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def pop(self, key: int) -> V | None:
        """Remove `key`; its value, or None if it was not there."""
        spot = self._find(key)
        if spot is None:
            return None
        index, place = spot
        block = self._own(index)
        value = block.values[place]
        del block.keys[place], block.values[place]
        self._count -= 1
        if not block.keys:
            self._forget([block])
            del self._blocks[index], self._tops[index]
        elif place == len(block.keys):
            self._tops[index] = block.keys[-1]
        return value

    def has_run(self, keys: Sequence[int]) -> bool:
        """Whether `keys` ascend and stand side by side in one block."""
        return self._find_run(keys) is not None

    def pop_run(self, keys: Sequence[int]) -> list[V] | None:
        """Remove ascending `keys` that stand side by side in one block; their values. None, with nothing
        done, where they do not.
        """
        spot = self._find_run(keys)
        if spot is None:
            return None
        index, place = spot
        stop = place + len(keys)
        block = self._own(index)
        values = block.values[place:stop]
        del block.keys[place:stop], block.values[place:stop]
        self._count -= len(keys)
        if not block.keys:
            self._forget([block])
            del self._blocks[index], self._tops[index]
        elif place == len(block.keys):
            self._tops[index] = block.keys[-1]
        return values

    def held_of(self, keys: Sequence[int]) -> list[int]:
        """Those of the ascending keys that exist."""
        there: list[int] = []
        for index, wanted in _by_block(self._tops, keys):
            held = self._blocks[index].keys
            there += columns.held(held, wanted, columns.places_of(held, wanted))
        return there

    def items_of(self, keys: Sequence[int]) -> dict[int, V]:
        """Those of the ascending keys that exist, with their values."""
        values: dict[int, V] = {}
        for index, wanted in _by_block(self._tops, keys):
            block = self._blocks[index]
            places = columns.places_of(block.keys, wanted)
            values.update(
                zip(columns.held(block.keys, wanted, places), columns.take(block.values, places), strict=True)
            )
        return values

    def set_each(self, rows: Mapping[int, V]) -> dict[int, V]:
        """Set each key; those that existed, ascending, with the values that they had."""
        before: dict[int, V] = {}
        ordered = sorted(rows)
        for index, wanted in _by_block(self._tops, ordered):
            places = columns.places_of(self._blocks[index].keys, wanted)
            if places:
                block = self._own(index, len(places))
                held = columns.held(block.keys, wanted, places)
                before.update(zip(held, columns.take(block.values, places), strict=True))
                columns.put(block.values, places, [rows[key] for key in held])
        if len(before) < len(rows):
            for key in ordered:
                if key not in before:
                    self.set(key, rows[key])
        return before

    def pop_each(self, keys: Sequence[int]) -> dict[int, V]:
        """Remove those ascending `keys` that exist; return them with their values. A block of which much goes
        is made anew, so that many cost little each.
        """
        values: dict[int, V] = {}
        dropped: list[tuple[int, Sequence[int]]] = []
        for index, wanted in _by_block(self._tops, keys):
            block = self._blocks[index]
            places = columns.places_of(block.keys, wanted)
            if places:
                values.update(
                    zip(
                        columns.held(block.keys, wanted, places),
                        columns.take(block.values, places),
                        strict=True,
                    )
                )
                dropped.append((index, places))
        self._drop(dropped)
        return values

    def drop_each(self, keys: Sequence[int]) -> None:
        """Remove ascending `keys`, all of which exist."""
        self._drop(
            [
                (index, columns.places_of(self._blocks[index].keys, wanted, all_exist=True))
                for index, wanted in _by_block(self._tops, keys)
            ]
        )

    def _drop(self, dropped: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Drop places of blocks, which are named by their indexes."""
        emptied = False
        for index, places in dropped:
            block = self._own(index, len(places))
            before = len(block.keys)
            columns.drop(block.keys, places)
            columns.drop(block.values, places)
            self._count -= len(places)
            if len(places) == before:
                emptied = True
            elif places[-1] == before - 1:
                self._tops[index] = block.keys[-1]
        if emptied:
            first, stop = dropped[0][0], dropped[-1][0] + 1
            self._forget(block for block in self._blocks[first:stop] if not block.keys)
            left = [place for place in range(first, stop) if self._blocks[place].keys]
            self._tops[first:stop] = [self._tops[place] for place in left]
            self._blocks[first:stop] = [self._blocks[place] for place in left]

    def dismantle(self) -> list[Block[V]]:
        """The blocks of a map that is used no more."""
        return self._blocks

    def drop_first(self, count: int) -> None:
        """Remove the lowest `count` keys."""
        whole = 0
        while whole < len(self._blocks) and len(self._blocks[whole].keys) <= count:
            count -= len(self._blocks[whole].keys)
            self._count -= len(self._blocks[whole].keys)
            whole += 1
        if whole:
            self._forget(self._blocks[:whole])
            del self._blocks[:whole], self._tops[:whole]
            self._prefix = None
        if count:
            block = self._own(0)
            del block.keys[:count], block.values[:count]
            self._count -= count

    def weight_below(self, key: int, weigh: Callable[[V], int]) -> int:
        """The sum of `weigh` over all keys below `key`: a bisection, once the blocks are weighed.

        `weigh` must be the same function each time, and a value's weight must not change in place.
        """
        prefix = self._sums(weigh)
        index = bisect_left(self._tops, key)
        if index == len(self._blocks):
            return prefix[-1]
        block = self._blocks[index]
        return prefix[index] + sum(map(weigh, block.values[: columns.left(block.keys, key)]))

    def seek(
        self, weigh: Callable[[V], int], part: Callable[[int], int], target: int
    ) -> tuple[int, V] | None:
        """The first value with which `part` of the sum of weights comes above `target`, and the sum before
        it; None where all together stay at or below. The same cost, and the same conditions.
        """
        prefix = self._sums(weigh)
        index = bisect_right(prefix, target, key=part) - 1
        if index == len(self._blocks):
            return None
        values = self._blocks[index].values
        sums = list(accumulate(map(weigh, values), initial=prefix[index]))
        place = bisect_right(sums, target, key=part) - 1
        return sums[place], values[place]

    def _sums(self, weigh: Callable[[V], int]) -> list[int]:
        """The weights of all blocks before each, and of all."""
        if self._prefix is None:
            weights = [_weight(block, weigh) for block in self._blocks]
            self._prefix = list(accumulate(weights, initial=0))
        return self._prefix

    def count_between(self, low: int, high: int) -> int:
        """How many keys are in `[low, high]`: a bisection each, and a sum over the blocks between them."""
        first, last = bisect_left(self._tops, low), bisect_left(self._tops, high)
        if low > high or first == len(self._blocks):
            return 0
        before = columns.left(self._blocks[first].keys, low)
        upto = columns.left(self._blocks[last].keys, high + 1) if last < len(self._blocks) else 0
        return sum(len(block.keys) for block in self._blocks[first:last]) + upto - before

    def snapshot(self) -> Snapshot[V]:
        """The items as they are now; from here on blocks are copied before they are written."""
        self._epoch += 1
        return Snapshot(tuple(self._blocks))

    def check(self) -> None:
        """Assert that order, counts, block sizes and tops agree."""
        keys = [key for block in self._blocks for key in block.keys]
        assert keys == sorted(set(keys)), "keys ascend"
        assert len(keys) == self._count, "the count is that of the keys"
        assert list(self._tops) == [block.keys[-1] for block in self._blocks], "tops are the last keys"
        assert all(0 < len(block.keys) <= self.block_items_max for block in self._blocks), (
            "no block empty or too long"
        )
        assert all(len(block.keys) == len(block.values) for block in self._blocks), "a value for each key"
        older = () if self._pack is None else self._blocks[: -self.lists_max]
        in_lists = [block for block in older if isinstance(block.keys, list)]
        assert all(block in self._recent for block in in_lists), "older blocks are packed unless written now"
        assert len(self._recent) <= self.lists_max, "few older blocks are in lists"
        assert set(self._recent) <= set(self._blocks), "what is gone has no place among them"

    def _find(self, key: int) -> tuple[int, int] | None:
        index = bisect_left(self._tops, key)
        if index == len(self._tops):
            return None
        keys = self._blocks[index].keys
        if isinstance(keys, list):
            place = bisect_left(keys, key)
            return (index, place) if keys[place] == key else None
        at = keys.find(key)
        return None if at is None else (index, at)

    def _find_run(self, keys: Sequence[int]) -> tuple[int, int] | None:
        spot = self._find(keys[0]) if keys else None
        if spot is None or self._blocks[spot[0]].keys[spot[1] : spot[1] + len(keys)] != keys:
            return None
        return spot

    def _own(self, index: int, writes: int = 1) -> Block[V]:
        """The block at `index`, fit for these writes: a copy of its own if a snapshot holds it."""
        self._prefix = None
        block = self._blocks[index]
        if block.epoch != self._epoch:
            earlier = self._recent.pop(block, 0)
            block = Block(block.keys.copy(), block.values.copy(), self._epoch)
            self._blocks[index] = block
            if earlier:
                self._recent[block] = earlier
        block.weight = None
        if self._pack is not None and index + self.lists_max < len(self._blocks):
            self._note_writes(block, writes)
        return block

    def _forget(self, gone: Iterable[Block[V]]) -> None:
        """Blocks that go leave their places among those written of late."""
        for block in gone:
            self._recent.pop(block, None)

    def _note_writes(self, block: Block[V], writes: int) -> None:
        """Unpack an older block that is written often; pack the one whose last write is longest ago."""
        earlier = self._recent.pop(block, 0)
        self._recent = self._recent or {}
        self._recent[block] = earlier + min(writes, _BATCH_WRITES_MAX)
        if earlier < WRITES_TO_UNPACK <= self._recent[block]:
            block.keys, block.values = block.keys[:], block.values[:]
        if len(self._recent) > self.lists_max:
            self._pack_block(next(iter(self._recent)))

    def _split(self, index: int) -> None:
        block = self._blocks[index]
        half = len(block.keys) // 2
        lower = Block(block.keys[:half], block.values[:half], self._epoch)
        del block.keys[:half], block.values[:half]
        self._blocks.insert(index, lower)
        self._tops.insert(index, lower.keys[-1])
        if self._pack is not None and index + self.lists_max < len(self._blocks):
            self._pack_block(lower)
        self._pack_older()

    def _pack_older(self) -> None:
        """A block has been added: pack the one that is too many in lists."""
        if self._pack is not None and len(self._blocks) > self.lists_max:
            self._pack_block(self._blocks[-1 - self.lists_max])

    def _pack_block(self, block: Block[V]) -> None:
        """Pack the block, if it is in lists. Its writes are counted anew."""
        self._recent.pop(block, None)
        keys, values = block.keys, block.values
        if self._pack is not None and isinstance(keys, list) and isinstance(values, list):
            block.keys, block.values = PackedNumbers.of(keys), self._pack(values)


def _by_block(tops: Sequence[int], keys: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """The index of each block that may hold some of the ascending keys, and those keys."""
    start = index = 0
    while start < len(keys):
        index = bisect_left(tops, keys[start], index)
        if index == len(tops):
            return
        stop = bisect_right(keys, tops[index], start)
        yield index, keys[start:stop]
        start = stop


def _of_each(blocks: Sequence[Block[V]], tops: Sequence[int], keys: Sequence[int]) -> list[V]:
    values: list[V] = []
    for index, wanted in _by_block(tops, keys):
        values += columns.take(
            blocks[index].values, columns.places_of(blocks[index].keys, wanted, all_exist=True)
        )
    return values


def _weight(block: Block[V], weigh: Callable[[V], int]) -> int:
    if block.weight is None:
        block.weight = sum(map(weigh, block.values))
    return block.weight
