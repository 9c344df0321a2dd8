"""What was removed and is not freed yet: freeing a million objects takes longer than one turn may.

Knows: how a removed stream, group or dict of streams is taken apart, a block at a time.
Must never know: why something was removed, when there is time.

    removing    one reference moves here: as quick for a million pending entries as for one
    free_some   takes the last thing apart: its parts take its place, a block of entries is freed at once

What is not freed is in memory: it counts until the last part of it is gone.
"""

from typing import Any, Final

from engine.blocks import SortedMap
from engine.memory import Total

# Steps of one turn: each frees a block of at most 512 entries, or an object with its small parts; some 5 ms.
_STEPS_MAX: Final = 200


class Garbage:
    """Things to be freed. What is in here is used by nothing else."""

    __slots__ = ("_footprint", "_things")

    def __init__(self, footprint: Total) -> None:
        # Below each thing the bytes that are free when it is.
        self._things: list[Any] = []
        self._footprint = footprint

    def __len__(self) -> int:
        return len(self._things)

    def add(self, thing: object, size: int) -> None:
        """Take a removed thing of `size` bytes: a dict, a list, or what has `garbage()`."""
        self._things += (size, thing)
        self._footprint.add(size)

    def free_some(self) -> bool:
        """Free as much as one turn may; whether there is more."""
        things = self._things
        for _ in range(_STEPS_MAX):
            if not things:
                break
            last = things[-1]
            if isinstance(last, int):
                self._footprint.add(-things.pop())
            elif isinstance(last, dict | list):
                if last:
                    part = last.popitem()[1] if isinstance(last, dict) else last.pop()
                    things += _parts(part)
                else:
                    things.pop()
            else:
                things.pop()
                things += _parts(last)
        return bool(things)


def _parts(thing: Any) -> list[Any]:  # noqa: ANN401 - any removed object
    """What is large in it; the rest is freed with it."""
    if isinstance(thing, dict | list):
        return [thing]
    if isinstance(thing, SortedMap):
        return [thing.dismantle()]
    return thing.garbage() if hasattr(thing, "garbage") else []
