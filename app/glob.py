"""Redis's glob patterns, over bytes: `*`, `?`, `[a-c]`, `[^x]`, and a backslash before a literal character.

Knows: that only the last star has to be tried again. So a match costs at most the length of the pattern times
the length of the word; Redis's recursion can take exponential time.
Must never know: what is matched.
"""

from typing import Final

_STAR: Final = None
_ANY: Final = frozenset(range(256))
_BACKSLASH: Final = 0x5C
_BRACKET: Final = 0x5D
_DASH: Final = 0x2D

# One place of a pattern: the bytes that match there, or a star.
_Place = frozenset[int] | None
# Shared, so that a pattern takes eight bytes a place.
_ONE: Final = [frozenset({byte}) for byte in range(256)]


class Glob:
    """One pattern. `prefix` is what every match begins with."""

    __slots__ = ("_places", "prefix")

    def __init__(self, pattern: bytes) -> None:
        self._places = _places(pattern)
        self.prefix = _prefix(self._places)

    def matches(self, word: bytes) -> bool:
        """Whether the whole of `word` fits the pattern."""
        places = self._places
        at, after_star, resume = 0, -1, 0
        here = 0
        while here < len(word):
            place = places[at] if at < len(places) else frozenset[int]()
            if place is _STAR:
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


def _places(pattern: bytes) -> list[_Place]:
    places: list[_Place] = []
    at = 0
    while at < len(pattern):
        match pattern[at : at + 1]:
            case b"*":
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
