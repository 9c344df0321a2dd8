"""Names in order: any number of them, each entered, taken out and found in microseconds.

Knows: names in blocks of bounded length.
Must never know: what is named.
"""

from bisect import bisect_left, bisect_right
from typing import Final

# A block of this many is halved. To move half of one costs less than to find the block.
_BLOCK_NAMES_MAX: Final = 512
# Above all names with a prefix: no name holds the highest code point twice over.
_BEYOND: Final = "\U0010ffff" * 2


class SortedNames:
    """Names, each once, in ascending order."""

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        # The blocks, none empty, and the last name of each.
        self._blocks: list[list[str]] = []
        self._lasts: list[str] = []

    def add(self, name: str) -> None:
        """Enter a name that is not there."""
        if not self._blocks:
            self.replace([name])
            return
        index = min(bisect_left(self._lasts, name), len(self._blocks) - 1)
        block = self._blocks[index]
        block.insert(bisect_left(block, name), name)
        self._lasts[index] = block[-1]
        if len(block) > _BLOCK_NAMES_MAX:
            half = len(block) // 2
            self._blocks[index : index + 1] = [block[:half], block[half:]]
            self._lasts[index : index + 1] = [block[half - 1], block[-1]]

    def remove(self, name: str) -> None:
        """Take out a name that is there."""
        index = bisect_left(self._lasts, name)
        block = self._blocks[index]
        place = bisect_left(block, name)
        assert block[place] == name, "the name is there"
        del block[place]
        if block:
            self._lasts[index] = block[-1]
        else:
            del self._blocks[index], self._lasts[index]

    def replace(self, names: list[str]) -> None:
        """Have these names instead, which ascend."""
        half = _BLOCK_NAMES_MAX // 2
        self._blocks = [names[start : start + half] for start in range(0, len(names), half)]
        self._lasts = [block[-1] for block in self._blocks]

    def page(self, prefix: str = "", after: str | None = None, limit: int | None = None) -> list[str]:
        """At most `limit` of the names that start with `prefix`, above `after`."""
        low = prefix if after is None or after < prefix else after
        bound = prefix + _BEYOND if prefix else None
        names: list[str] = []
        for index in range(bisect_left(self._lasts, low), len(self._blocks)):
            block = self._blocks[index]
            start = (bisect_right if low == after else bisect_left)(block, low)
            stop = len(block) if bound is None or block[-1] < bound else bisect_left(block, bound)
            names += block[start:stop]
            if stop < len(block) or (limit is not None and len(names) >= limit):
                break
        return names if limit is None else names[:limit]

    def around(self, at: float, prefix: str = "", limit: int | None = None) -> list[str]:
        """At most `limit` of the names that start with `prefix`, from this part of them on (0 to 1) and, at
        their end, from the first: any of them may be the first here, each about as likely.
        """
        first = bisect_left(self._lasts, prefix)
        blocks = bisect_left(self._lasts, prefix + _BEYOND) + 1 - first if prefix else len(self._blocks)
        index = first + int(at * blocks)
        if index >= len(self._blocks):
            return self.page(prefix, None, limit)
        block = self._blocks[index]
        start = block[int(at * blocks % 1 * len(block))]
        names = [start] if start.startswith(prefix) else []
        names += self.page(prefix, start, limit)
        if limit is None or len(names) < limit:
            names += self.page(prefix, None, limit)
        return list(dict.fromkeys(names))[:limit]
