"""An ordered map from integers, kept in blocks: the shape of a stream's nodes and of a group's pending list.

Knows: keys in order, in blocks of bounded size, their weights, and copying a block that a snapshot holds.
Must never know: what keys and values mean.

    _tops    [   511,      1023,      1400 ]     the last key of each block, for bisection
    _blocks  [ 0…511 | 512…1023 | 1024…1400 ]    each: keys and values side by side, and when it was made

Appending, finding, inserting and removing cost a bisection over the blocks and one within a block, at
any length. A snapshot is the tuple of blocks: it bumps the epoch, and a write to an older block copies
it first, so that the snapshot can be read bit by bit while the map goes on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from operator import lt
from typing import Final, Generic, TypeVar

V = TypeVar("V")

# Up to this many keys of a block are removed one by one, at 0.4 µs each; for more the block is rebuilt, which
# takes 80 µs.
_FEW_OF_BLOCK: Final = 64


class Block(Generic[V]):
    """A run of keys and their values, which in a snapshot never change. `weight` is the sum of the values'
    weights, None if not asked for since the last write.
    """

    __slots__ = ("epoch", "keys", "values", "weight")

    def __init__(self, keys: list[int], values: list[V], epoch: int) -> None:
        self.keys = keys
        self.values = values
        self.epoch = epoch
        self.weight: int | None = None


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

    def __getitem__(self, key: int) -> V:
        block = self.blocks[bisect_left(self._tops, key)]
        return block.values[bisect_left(block.keys, key)]


class SortedMap(Generic[V]):
    """Integer keys in ascending order with a value each."""

    __slots__ = ("_blocks", "_count", "_epoch", "_prefix", "_tops", "block_items_max")

    def __init__(self, block_items_max: int = 512) -> None:
        self.block_items_max = block_items_max
        self._blocks: list[Block[V]] = []
        self._tops: list[int] = []
        self._count = 0
        self._epoch = 0
        # Weights of all blocks before each, made when asked for; None after a write.
        self._prefix: list[int] | None = None

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: int) -> bool:
        return self._find(key) is not None

    def get(self, key: int) -> V | None:
        """The value of `key`, or None."""
        place = self._find(key)
        return None if place is None else self._blocks[place[0]].values[place[1]]

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
            place = bisect_right(block.keys, key) - 1
            if place >= 0:
                return block.keys[place], block.values[place]
        if index == 0:
            return None
        block = self._blocks[index - 1]
        return block.keys[-1], block.values[-1]

    def items(self, low: int = 0) -> Iterator[tuple[int, V]]:
        """Keys from `low` (inclusive) upwards. The map must not change meanwhile."""
        index = bisect_left(self._tops, low)
        for block in self._blocks[index:]:
            start = bisect_left(block.keys, low)
            yield from zip(block.keys[start:], block.values[start:], strict=True)

    def values(self) -> Iterator[V]:
        """All values in order of their keys. The map must not change meanwhile."""
        for block in self._blocks:
            yield from block.values

    def items_down(self, high: int) -> Iterator[tuple[int, V]]:
        """Keys from `high` (inclusive) downwards. The map must not change meanwhile."""
        index = min(bisect_left(self._tops, high), len(self._blocks) - 1)
        while index >= 0:
            block = self._blocks[index]
            stop = bisect_right(block.keys, high)
            yield from zip(reversed(block.keys[:stop]), reversed(block.values[:stop]), strict=True)
            index -= 1

    def page(self, low: int, count: int) -> list[tuple[int, V]]:
        """At most `count` items from `low` (inclusive) upwards, as a list of its own."""
        found: list[tuple[int, V]] = []
        index = bisect_left(self._tops, low)
        while index < len(self._blocks) and len(found) < count:
            block = self._blocks[index]
            start = bisect_left(block.keys, low)
            stop = start + count - len(found)
            found.extend(zip(block.keys[start:stop], block.values[start:stop], strict=True))
            index += 1
        return found

    def set(self, key: int, value: V) -> None:
        """Insert `key`, or replace its value."""
        if not self._tops or key > self._tops[-1]:
            self.extend((key,), (value,))
            return
        index = bisect_left(self._tops, key)
        block = self._own(index)
        place = bisect_left(block.keys, key)
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
        done = 0
        while done < len(keys):
            if not self._blocks or len(self._blocks[-1].keys) >= self.block_items_max:
                self._blocks.append(Block([], [], self._epoch))
                self._tops.append(keys[done])
            block = self._own(len(self._blocks) - 1)
            stop = done + self.block_items_max - len(block.keys)
            block.keys.extend(keys[done:stop])
            block.values.extend(values[done:stop])
            self._tops[-1] = block.keys[-1]
            done = stop
        self._count += len(keys)

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
        found = self._find(key)
        if found is None:
            return None
        index, place = found
        block = self._own(index)
        value = block.values.pop(place)
        del block.keys[place]
        self._count -= 1
        if not block.keys:
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
        found = self._find_run(keys)
        if found is None:
            return None
        index, place = found
        stop = place + len(keys)
        block = self._own(index)
        values = block.values[place:stop]
        del block.keys[place:stop], block.values[place:stop]
        self._count -= len(keys)
        if not block.keys:
            del self._blocks[index], self._tops[index]
        elif place == len(block.keys):
            self._tops[index] = block.keys[-1]
        return values

    def held_of(self, keys: Sequence[int]) -> list[int]:
        """The values of those ascending `keys` that exist."""
        found: list[int] = []
        start = index = 0
        while start < len(keys):
            index = bisect_left(self._tops, keys[start], index)
            if index == len(self._tops):
                break
            stop = bisect_right(keys, self._tops[index], start)
            held = self._blocks[index].keys
            place = bisect_left(held, keys[start])
            if held[place : place + stop - start] == keys[start:stop]:
                found += keys[start:stop]
            elif stop - start > _FEW_OF_BLOCK:
                found += sorted(set(held).intersection(keys[start:stop]))
            else:
                found += [key for key in keys[start:stop] if held[bisect_left(held, key)] == key]
            start = stop
        return found

    def pop_each(self, keys: Sequence[int]) -> list[tuple[int, V]]:
        """Remove those ascending `keys` that exist; return them with their values. A block of which much goes
        is made anew, so that many cost little each.
        """
        found: list[tuple[int, V]] = []
        first = index = bisect_left(self._tops, keys[0]) if keys else 0
        start = 0
        while start < len(keys):
            index = bisect_left(self._tops, keys[start], index)
            if index == len(self._tops):
                break
            stop = bisect_right(keys, self._tops[index], start)
            found += _pop_from(self._own(index), keys[start:stop])
            start = stop
        self._count -= len(found)
        left = [one for one in self._blocks[first : index + 1] if one.keys]
        self._blocks[first : index + 1] = left
        self._tops[first : index + 1] = [one.keys[-1] for one in left]
        return found

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
        return prefix[index] + sum(map(weigh, block.values[: bisect_left(block.keys, key)]))

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
        before = bisect_left(self._blocks[first].keys, low)
        upto = bisect_right(self._blocks[last].keys, high) if last < len(self._blocks) else 0
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
        assert self._tops == [block.keys[-1] for block in self._blocks], "tops are the last keys"
        assert all(0 < len(block.keys) <= self.block_items_max for block in self._blocks), (
            "no block empty or too long"
        )
        assert all(len(block.keys) == len(block.values) for block in self._blocks), "a value for each key"

    def _find(self, key: int) -> tuple[int, int] | None:
        index = bisect_left(self._tops, key)
        if index == len(self._tops):
            return None
        keys = self._blocks[index].keys
        place = bisect_left(keys, key)
        return (index, place) if keys[place] == key else None

    def _find_run(self, keys: Sequence[int]) -> tuple[int, int] | None:
        found = self._find(keys[0]) if keys else None
        if found is None or self._blocks[found[0]].keys[found[1] : found[1] + len(keys)] != keys:
            return None
        return found

    def _own(self, index: int) -> Block[V]:
        """The block at `index`, fit to be written: a copy of its own if a snapshot holds it."""
        self._prefix = None
        block = self._blocks[index]
        if block.epoch != self._epoch:
            block = Block(block.keys.copy(), block.values.copy(), self._epoch)
            self._blocks[index] = block
        block.weight = None
        return block

    def _split(self, index: int) -> None:
        block = self._blocks[index]
        half = len(block.keys) // 2
        lower = Block(block.keys[:half], block.values[:half], self._epoch)
        del block.keys[:half], block.values[:half]
        self._blocks.insert(index, lower)
        self._tops.insert(index, lower.keys[-1])


def _weight(block: Block[V], weigh: Callable[[V], int]) -> int:
    if block.weight is None:
        block.weight = sum(map(weigh, block.values))
    return block.weight


def _pop_from(block: Block[V], keys: Sequence[int]) -> list[tuple[int, V]]:
    """Remove those of ascending `keys` that the block holds."""
    place = bisect_left(block.keys, keys[0])
    stop = place + len(keys)
    if block.keys[place:stop] == keys:
        # Side by side, as those of a batch are.
        found = list(zip(keys, block.values[place:stop], strict=True))
        del block.keys[place:stop], block.values[place:stop]
        return found
    if len(keys) > _FEW_OF_BLOCK:
        gone = set(keys)
        rows = list(zip(block.keys, block.values, strict=True))
        found = [row for row in rows if row[0] in gone]
        block.values[:] = [value for key, value in rows if key not in gone]
        block.keys[:] = [key for key in block.keys if key not in gone]
        return found
    found = []
    for key in keys:
        place = bisect_left(block.keys, key)
        if place < len(block.keys) and block.keys[place] == key:
            found.append((key, block.values.pop(place)))
            del block.keys[place]
    return found
