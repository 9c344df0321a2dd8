"""Redis's glob patterns, over bytes: `*`, `?`, `[a-c]`, `[^x]`, and a backslash before a literal character.

Knows: that only the last star has to be tried again. So a match costs at most the length of the pattern times
the length of the word; Redis's recursion can take exponential time.
Must never know: what is matched.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

_STAR: Final = None
# Positions that are looked at to compare two patterns: some milliseconds.
_COVER_STEPS_MAX: Final = 20_000
_ANY: Final = frozenset(range(256))
_BACKSLASH: Final = 0x5C
_BRACKET: Final = 0x5D
_DASH: Final = 0x2D

# One place of a pattern: the bytes that match there, or a star.
_Place = frozenset[int] | None
# Shared, so that a pattern takes eight bytes a place.
_ONE: Final = [frozenset({byte}) for byte in range(256)]


_SPECIAL: Final = re.compile(r"[\\*?\[\]]")


def literal(text: str) -> str:
    """The pattern that fits this text alone."""
    return _SPECIAL.sub(r"\\\g<0>", text)


class Glob:
    """One pattern. `prefix` is what every match begins with."""

    __slots__ = ("_is_prefix", "_places", "prefix")

    def __init__(self, pattern: bytes) -> None:
        self._places = _places(pattern)
        self.prefix = _prefix(self._places)
        # Most patterns: to compare the beginning takes a tenth of the time.
        self._is_prefix = self._places[len(self.prefix) :] == [_STAR]

    def matches(self, word: bytes) -> bool:
        """Whether the whole of `word` fits the pattern."""
        if self._is_prefix:
            return word.startswith(self.prefix)
        places = self._places
        at, after_star, resume = 0, -1, 0
        here = 0
        while here < len(word):
            place = places[at] if at < len(places) else frozenset[int]()
            if place is _STAR:
                if at + 1 == len(places):
                    # For any rest: to walk over the rest of a long name takes 100 times as long.
                    return True
                at, after_star, resume = at + 1, at + 1, here
            elif word[here] in place:
                at, here = at + 1, here + 1
            elif after_star < 0:
                return False
            else:
                # The last star takes one more byte; earlier stars have taken as little as possible.
                resume += 1
                at, here = after_star, resume
        return all(place is _STAR for place in places[at:])

    def covers(self, other: "Glob") -> bool:
        """Whether every word that fits `other` fits this one. False where that takes too long to find out."""
        if not other.prefix.startswith(self.prefix):
            return False
        return _includes(self._places, other._places)  # noqa: SLF001 - another of its class


def _includes(ours: list[_Place], theirs: list[_Place]) -> bool:
    """The same, by looking at all ways through both at once."""
    letters = _letters(ours, theirs)
    left = _COVER_STEPS_MAX
    # Where the other is, and where ours may be at the same time.
    begin = 0, _reach(ours, (0,))
    seen, open_pairs = {begin}, [begin]
    while open_pairs:
        at, own = open_pairs.pop()
        if at == len(theirs):
            if len(ours) not in own:
                return False
            continue
        place = theirs[at]
        steps = [(at + 1, own)] if place is _STAR else []
        for letter in letters:
            if place is _STAR or letter in place:
                stepped = _reach(ours, _step(ours, own, letter))
                left -= 1 + len(own)
                steps.append((at + (place is not _STAR), stepped))
        if left < 0:
            return False
        new = [step for step in steps if step not in seen]
        seen.update(new)
        open_pairs += new
    return True


def _letters(*patterns: list[_Place]) -> list[int]:
    """One byte for each kind of byte that the patterns tell apart."""
    sets = {place for places in patterns for place in places if place is not _STAR}
    kinds = {tuple(byte in accepted for accepted in sets): byte for byte in range(256)}
    return list(kinds.values())


def _reach(places: list[_Place], positions: Iterable[int]) -> frozenset[int]:
    """The positions, and those behind stars, which may match nothing."""
    reached = set()
    for position in positions:
        reached.add(position)
        at = position
        while at < len(places) and places[at] is _STAR:
            at += 1
            reached.add(at)
    return frozenset(reached)


def _step(places: list[_Place], positions: Iterable[int], byte: int) -> Iterator[int]:
    """The positions after one more byte."""
    for at in positions:
        if at < len(places):
            place = places[at]
            if place is _STAR:
                yield at
            elif byte in place:
                yield at + 1


def _places(pattern: bytes) -> list[_Place]:
    places: list[_Place] = []
    at = 0
    while at < len(pattern):
        match pattern[at : at + 1]:
            case b"*":
                # Several in a row are one.
                if places[-1:] != [_STAR]:
                    places.append(_STAR)
                at += 1
            case b"?":
                places.append(_ANY)
                at += 1
            case b"[":
                allowed, at = _class(pattern, at + 1)
                places.append(allowed)
            case b"\\" if at + 1 < len(pattern):
                places.append(_ONE[pattern[at + 1]])
                at += 2
            case _:
                places.append(_ONE[pattern[at]])
                at += 1
    return places


def _class(pattern: bytes, at: int) -> tuple[frozenset[int], int]:
    """The bytes of the class whose bracket was opened before `at`, and the position after it.

    A class that is never closed ends with the pattern.
    """
    negated = pattern[at : at + 1] == b"^"
    at += negated
    allowed: set[int] = set()
    while at < len(pattern) and pattern[at] != _BRACKET:
        left = len(pattern) - at
        if pattern[at] == _BACKSLASH and left >= 2:
            allowed.add(pattern[at + 1])
            at += 2
        elif left >= 3 and pattern[at + 1] == _DASH:
            low, high = sorted((pattern[at], pattern[at + 2]))
            allowed.update(range(low, high + 1))
            at += 3
        else:
            allowed.add(pattern[at])
            at += 1
    return (_ANY - allowed if negated else frozenset(allowed)), at + 1


def _prefix(places: list[_Place]) -> bytes:
    prefix = bytearray()
    for place in places:
        if place is _STAR or len(place) != 1:
            break
        prefix.extend(place)
    return bytes(prefix)
