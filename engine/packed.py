"""Numbers packed side by side: what a block of the pending list is kept in once newer ones follow it.

Knows: how integers stand in bytes, each column as narrow as its values allow, in order or not.
Must never know: what the numbers mean, blocks.

    high  [ 1700000000000, 1700000000000, 1700000000001 ]    the upper 64 bits of each
    low   [             0,             1,             0 ]    the lower 64 bits

An ID takes nine bytes where its sequence number is below 256. In a list each is an object of 48 bytes, and a
slot that the collector looks at; it passes over all of this.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress, repeat
from struct import Struct
from typing import Final, overload

import msgspec

_HALF_BITS: Final = 64
_LOW: Final = (1 << _HALF_BITS) - 1
# How `array` calls unsigned integers, narrow ones first.
_KINDS: Final = tuple((1 << 8 * array(kind).itemsize, kind) for kind in "BHIQ")
# A third of the time of a view, for one number.
_READ: Final = {kind: Struct(kind).unpack_from for _, kind in _KINDS}
_WRITE: Final = {kind: Struct(kind).pack_into for _, kind in _KINDS}
# Up to this many places of a column are dropped one by one, at 0.2 µs each; for more it is made anew.
_FEW: Final = 64


class PackedColumn(msgspec.Struct, gc=False):
    """A sequence of integers below 2^64. Slices are arrays. No place counts from the end."""

    data: bytearray
    kind: str
    width: int

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "PackedColumn":
        """The numbers, as narrow as the highest of them allows."""
        if numbers and numbers.count(numbers[0]) == len(numbers):
            # Times, owners and counts of a batch are the same: a tenth of the time.
            return cls._from(array(_kind_for(numbers[0]), numbers[:1]) * len(numbers))
        return cls._from(array(_kind_for(max(numbers, default=0)), numbers))

    @classmethod
    def _from(cls, numbers: "array[int]") -> "PackedColumn":
        return cls(bytearray(numbers), numbers.typecode, numbers.itemsize)

    def __len__(self) -> int:
        return len(self.data) // self.width

    @overload
    def __getitem__(self, place: int, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> "array[int]": ...
    def __getitem__(self, place: int | slice, /) -> "int | array[int]":
        if isinstance(place, slice):
            return array(self.kind, self.data[self._bytes_of(place)])
        return _READ[self.kind](self.data, place * self.width)[0]  # type: ignore[no-any-return]

    def __setitem__(self, place: int, number: int, /) -> None:
        if number >> 8 * self.width:
            self._widen(number)
        _WRITE[self.kind](self.data, place * self.width, number)

    def __delitem__(self, place: int | slice, /) -> None:
        if isinstance(place, slice):
            del self.data[self._bytes_of(place)]
        else:
            start = place * self.width
            del self.data[start : start + self.width]

    def insert(self, place: int, number: int, /) -> None:
        """Put a number before the one at `place`."""
        if number >> 8 * self.width:
            self._widen(number)
        start = place * self.width
        self.data[start:start] = number.to_bytes(self.width, sys.byteorder)

    def copy(self) -> "PackedColumn":
        """A copy that changes by itself."""
        return PackedColumn(self.data[:], self.kind, self.width)

    def at(self, places: Sequence[int]) -> Sequence[int]:
        """The numbers at these places."""
        if isinstance(places, range):
            return self[places.start : places.stop]
        view = self.view()
        return [view[place] for place in places]

    def put(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Replace the numbers at these places."""
        highest = max(numbers, default=0)
        if highest >> 8 * self.width:
            self._widen(highest)
        view = self.view()
        for place, number in zip(places, numbers, strict=True):
            view[place] = number

    def drop(self, places: Sequence[int]) -> None:
        """Drop ascending places."""
        if isinstance(places, range):
            del self[places.start : places.stop]
        elif len(places) > _FEW:
            kept = kept_places(len(self), places)
            self.data = bytearray(array(self.kind, compress(self[:], kept)))
        else:
            for place in reversed(places):
                del self.data[place * self.width : (place + 1) * self.width]

    def view(self) -> "memoryview[int]":
        """The numbers where they are. To be let go before the column changes."""
        return memoryview(self.data).cast(self.kind)  # type: ignore[call-overload, no-any-return]

    def _widen(self, number: int) -> None:
        """Make room for a number of this size: 1 µs for 512, an eighth of what a new array takes."""
        kind = _kind_for(number)
        width = array(kind).itemsize
        wider = bytearray(len(self) * width)
        # The other bytes of each number are zeros: those behind it, or before it where the highest is first.
        first = 0 if sys.byteorder == "little" else width - self.width
        for place in range(self.width):
            wider[first + place :: width] = self.data[place :: self.width]
        self.data, self.kind, self.width = wider, kind, width

    def _bytes_of(self, places: slice) -> slice:
        stop = None if places.stop is None else places.stop * self.width
        return slice((places.start or 0) * self.width, stop)


class PackedNumbers(msgspec.Struct, gc=False):
    """A sequence of integers below 2^128. Slices are lists."""

    high: PackedColumn
    low: PackedColumn

    @classmethod
    def of(cls, numbers: Sequence[int]) -> "PackedNumbers":
        """The numbers, in their order."""
        high, low = [number >> _HALF_BITS for number in numbers], [number & _LOW for number in numbers]
        return cls(PackedColumn.of(high), PackedColumn.of(low))

    def __len__(self) -> int:
        return len(self.high)

    def __iter__(self) -> Iterator[int]:
        return self.since(0)

    @overload
    def __getitem__(self, place: int, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[int]: ...
    def __getitem__(self, place: int | slice, /) -> int | list[int]:
        if isinstance(place, slice):
            high, low = self.high[place], self.low[place]
            if high and high.count(high[0]) == len(high):
                base = high[0] << _HALF_BITS
                return [base | each for each in low]
            return list(map(_join, high, low))
        high_column, low_column = self.high, self.low
        (upper,) = _READ[high_column.kind](high_column.data, place * high_column.width)
        (lower,) = _READ[low_column.kind](low_column.data, place * low_column.width)
        return upper << _HALF_BITS | lower  # type: ignore[no-any-return]

    def __setitem__(self, place: int, number: int, /) -> None:
        self.high[place], self.low[place] = number >> _HALF_BITS, number & _LOW

    def __delitem__(self, place: int | slice, /) -> None:
        del self.high[place], self.low[place]

    def insert(self, place: int, number: int, /) -> None:
        """Put a number before the one at `place`."""
        self.high.insert(place, number >> _HALF_BITS)
        self.low.insert(place, number & _LOW)

    def copy(self) -> "PackedNumbers":
        """A copy that changes by itself."""
        return PackedNumbers(self.high.copy(), self.low.copy())

    def at(self, places: Sequence[int]) -> list[int]:
        """The numbers at these places."""
        return list(map(_join, self.high.at(places), self.low.at(places)))

    def put(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Replace the numbers at these places."""
        self.high.put(places, [number >> _HALF_BITS for number in numbers])
        self.low.put(places, [number & _LOW for number in numbers])

    def drop(self, places: Sequence[int]) -> None:
        """Drop ascending places."""
        self.high.drop(places)
        self.low.drop(places)

    def since(self, place: int) -> Iterator[int]:
        """The numbers from a place on, as they are now."""
        return map(_join, self.high[place:], self.low[place:])

    def left(self, number: int) -> int:
        """The place of the first that is not below `number`, where they ascend."""
        wanted, high = number >> _HALF_BITS, self.high.view()
        place = bisect_left(high, wanted)
        if place == len(high) or high[place] != wanted:
            return place
        wanted_low, low = number & _LOW, self.low.view()
        if low[place] >= wanted_low:
            return place
        return bisect_left(low, wanted_low, place, bisect_right(high, wanted, place))

    def find(self, number: int) -> int | None:
        """The place of `number`, where they ascend; None if it is not there."""
        wanted, high = number >> _HALF_BITS, self.high.view()
        place = bisect_left(high, wanted)
        if place == len(high) or high[place] != wanted:
            return None
        wanted_low, low = number & _LOW, self.low.view()
        if low[place] < wanted_low:
            stop = bisect_right(high, wanted, place)
            place = bisect_left(low, wanted_low, place, stop)
            if place == stop:
                return None
        return place if low[place] == wanted_low else None

    def places(self, numbers: Sequence[int]) -> list[int]:
        """The places of those ascending `numbers` that exist, in one pass: these ascend too."""
        high, low = self.high.view(), self.low.view()
        found: list[int] = []
        place, count = 0, len(high)
        for number in numbers:
            wanted, wanted_low = number >> _HALF_BITS, number & _LOW
            if place < count and high[place] < wanted:
                place = bisect_left(high, wanted, place + 1)
            if place < count and low[place] < wanted_low and high[place] == wanted:
                # Up to the last one where all are of one time, as what was delivered together is.
                stop = count if high[-1] == wanted else bisect_right(high, wanted, place)
                place = bisect_left(low, wanted_low, place + 1, stop)
            if place == count:
                break
            if low[place] == wanted_low and high[place] == wanted:
                found.append(place)
        return found


class PackedNones(msgspec.Struct, gc=False):
    """None, a number of times: the values of keys that need none."""

    count: int

    @classmethod
    def of(cls, values: Sequence[None]) -> "PackedNones":
        """As many as these."""
        return cls(len(values))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[None]:
        return self.since(0)

    @overload
    def __getitem__(self, place: int, /) -> None: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[None]: ...
    def __getitem__(self, place: int | slice, /) -> list[None] | None:
        return [None] * len(range(self.count)[place]) if isinstance(place, slice) else None

    def __setitem__(self, place: int, value: None, /) -> None:
        pass

    def __delitem__(self, place: int | slice, /) -> None:
        self.count -= len(range(self.count)[place]) if isinstance(place, slice) else 1

    def insert(self, _: int, __: None, /) -> None:
        """One more."""
        self.count += 1

    def copy(self) -> "PackedNones":
        """A copy that changes by itself."""
        return PackedNones(self.count)

    def at(self, places: Sequence[int]) -> list[None]:
        """As many as there are places."""
        return [None] * len(places)

    def put(self, _: Sequence[int], __: Sequence[None]) -> None:
        """Each is as it was."""

    def drop(self, places: Sequence[int]) -> None:
        """As many fewer."""
        self.count -= len(places)

    def since(self, place: int) -> Iterator[None]:
        """As many as come from a place on."""
        return repeat(None, self.count - place)


def kept_places(count: int, dropped: Sequence[int]) -> bytearray:
    """Of `count` places, 0 for each dropped one and 1 for the others."""
    kept = bytearray(b"\1") * count
    for place in dropped:
        kept[place] = 0
    return kept


def _join(high: int, low: int) -> int:
    return high << _HALF_BITS | low


def _kind_for(number: int) -> str:
    return next(kind for bound, kind in _KINDS if number < bound)
