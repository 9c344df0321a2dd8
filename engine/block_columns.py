"""The keys and the values of one block: in lists, or packed.

Knows: how places in either are found, read, written and removed, and when one by one is cheaper than at once.
Must never know: other blocks, and what keys and values mean.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Final, Protocol, TypeVar, overload

from engine.packed import PackedNumbers, kept_places

V = TypeVar("V")

# Up to this many keys of a block are removed one by one, at 0.4 µs each; for more the block is rebuilt, which
# takes 80 µs.
_FEW_OF_BLOCK: Final = 64
# Up to this many of a block are read and written one by one. A packed column does that at 0.8 µs each; a
# call for several places costs up to 6 µs before the first of them.
_SINGLE_MAX: Final = 6


class Packed(Protocol[V]):
    """The values of a packed block. Slices are lists."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[V]: ...
    @overload
    def __getitem__(self, place: int, /) -> V: ...
    @overload
    def __getitem__(self, place: slice, /) -> list[V]: ...
    def __setitem__(self, place: int, value: V, /) -> None: ...
    def __delitem__(self, place: int | slice, /) -> None: ...
    def insert(self, place: int, value: V, /) -> None: ...
    def copy(self) -> "Packed[V]": ...
    def at(self, places: Sequence[int]) -> list[V]:
        """The values at these places; a range of places stands for neighbours, here and below."""

    def put(self, places: Sequence[int], values: Sequence[V]) -> None:
        """Replace the values at these places."""

    def drop(self, places: Sequence[int]) -> None:
        """Drop ascending places."""

    def since(self, place: int) -> Iterator[V]:
        """The values from a place on."""


Keys = list[int] | PackedNumbers
Column = list[V] | Packed[V]


def left(keys: Keys, key: int) -> int:
    """The place of the first that is not below `key`."""
    return bisect_left(keys, key) if isinstance(keys, list) else keys.left(key)


def place_of(keys: Keys, key: int) -> int | None:
    """The place of `key`, None if it is not there."""
    if not isinstance(keys, list):
        return keys.find(key)
    place = bisect_left(keys, key)
    return place if place < len(keys) and keys[place] == key else None


def places_of(keys: Keys, wanted: Sequence[int], *, all_exist: bool = False) -> Sequence[int]:
    """The places of those of the ascending `wanted` that exist; a range where all do, side by side."""
    if len(wanted) > _SINGLE_MAX:
        first = left(keys, wanted[0])
        behind = first + len(wanted)
        # If the ends do not match, it is no run. If they do and all keys exist, it is one.
        if (
            behind <= len(keys)
            and keys[behind - 1] == wanted[-1]
            and (all_exist or keys[first:behind] == wanted)
        ):
            return range(first, behind)
    if len(wanted) > _FEW_OF_BLOCK:
        among = set(wanted)
        return [place for place, key in enumerate(keys) if key in among]
    if isinstance(keys, list):
        return [place for key in wanted if (place := place_of(keys, key)) is not None]
    return keys.places(wanted)


def held(keys: Keys, wanted: Sequence[int], places: Sequence[int]) -> Sequence[int]:
    """The keys at the places that `places_of` has found."""
    return wanted if len(places) == len(wanted) else take(keys, places)


def since(column: Column[V], start: int) -> Iterable[V]:
    """The column from a place on, not unpacked before it is asked for."""
    return column[start:] if isinstance(column, list) else column.since(start)


def take(column: Column[V], places: Sequence[int]) -> list[V]:
    """The values at these places; a range of places stands for neighbours, here and below."""
    if len(places) > _SINGLE_MAX and not isinstance(column, list):
        return column.at(places)
    if isinstance(places, range):
        return column[places.start : places.stop]
    return [column[place] for place in places]


def put(column: Column[V], places: Sequence[int], values: Sequence[V]) -> None:
    """Replace the values at these places."""
    if len(places) > _SINGLE_MAX and not isinstance(column, list):
        column.put(places, values)
        return
    for place, value in zip(places, values, strict=True):
        column[place] = value


def drop(column: Column[V], places: Sequence[int]) -> None:
    """Remove ascending places."""
    if not isinstance(column, list):
        column.drop(places)
    elif isinstance(places, range):
        del column[places.start : places.stop]
    elif len(places) > _FEW_OF_BLOCK:
        column[:] = compress(column, kept_places(len(column), places))
    else:
        for place in reversed(places):
            del column[place]
