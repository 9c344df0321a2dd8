"""A run: the slices of stored text that a range gathers.

Knows: entries and whole nodes, and up to how many entries and bytes they are taken.
Must never know: which nodes there are, and what was asked.
"""

from collections.abc import Callable, Sequence

from engine.nodes import SealedNode, Text
from engine.replies import Entries


class RangeBuilder:
    """Slices gathered for an answer, up to a number of entries and of bytes."""

    __slots__ = ("_bytes_left", "_left", "_parts", "count", "first", "full", "last")

    def __init__(self, count_max: int, bytes_max: int | None) -> None:
        self._left = count_max
        self._bytes_left = bytes_max
        self._parts: list[bytes] = []
        self.count = 0
        self.first = 0
        self.last = 0
        self.full = count_max <= 0

    def add_node(self, node: SealedNode, plain: Callable[[Text], bytes]) -> bool:
        """Take a whole node without looking into it; False if it does not fit or has deletions or was
        repacked.
        """
        if node.deleted or node.held != node.count or node.held > self._left:
            return False
        if self._bytes_left is not None and node.text.size > self._bytes_left:
            return False
        self._take(node.first, node.last, node.held, plain(node.text))
        return True

    def add(self, run_ids: Sequence[int], texts: Sequence[bytes]) -> None:
        """Take entries as far as the limits allow."""
        stop = min(len(texts), self._left)
        if self._bytes_left is not None:
            stop = self._fitting(texts, stop)
        if stop < len(texts):
            self.full = True
        if stop:
            self._take(run_ids[0], run_ids[stop - 1], stop, b",".join(texts[:stop]))

    def _fitting(self, texts: Sequence[bytes], stop: int) -> int:
        left = self._bytes_left or 0
        for place in range(stop):
            left -= len(texts[place])
            if left < 0 and (place or self.count):
                return place
        return stop

    def _take(self, first: int, last: int, count: int, part: bytes) -> None:
        self._parts.append(part)
        if not self.count:
            self.first = first
        self.last = last
        self.count += count
        self._left -= count
        self.full = self.full or not self._left
        if self._bytes_left is not None:
            self._bytes_left = max(0, self._bytes_left - len(part))

    def entries(self, *, more: bool) -> Entries:
        return Entries(parts=self._parts, count=self.count, first=self.first, last=self.last, more=more)
