"""The memory of the service: what pages under way, reads of row groups and what is kept take together.

Knows: sizes, and who waits. Must never know: what they are the sizes of.

What is kept yields first. Then who comes waits for who came before: the first page under way waits for nobody
but clients that take their pages, so there is one that ends, and all are together over the bound by what one
page needs at most.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import NamedTuple, Self


class Share:
    """What one page, or one read of a row group, takes: `key` says of a read which one it is."""

    def __init__(self, budget: "Budget", key: Hashable = None) -> None:
        self._budget = budget
        self.key = key
        self.size = 0
        # Of a page: what it works with, and what it waits for.
        self.pinned: set[Hashable] = set()
        self.wanted: Hashable = None

    async def take(self, size: int) -> None:
        """Wait until there is room for `size` more bytes, and take it."""
        await self._budget.wait(self, size)

    def grow(self, size: int) -> None:
        """Count at least `size` bytes, which are in use already."""
        self._budget.add(self, max(0, size - self.size))

    def pin(self, key: Hashable) -> None:
        """Have what is kept under a key count until the end of this."""
        if key not in self.pinned:
            self.pinned.add(key)
            self._budget.pins[key] += 1

    def want(self, key: Hashable) -> None:
        """Wait for a read of another from now on."""
        self.wanted = key
        self._budget.settle()

    def send(self) -> None:
        """From now on it is the client that it waits for."""
        self._budget.send(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.close(self)


class _Waiter(NamedTuple):
    share: Share
    size: int
    granted: asyncio.Future[None]


class Budget:
    """Up to `bytes_max`; `shrink` gives up what is kept down to a number of bytes, where it can, and returns
    how many it keeps.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self.pins: Counter[Hashable] = Counter()
        self.shrink: Callable[[int], int] = lambda _: 0
        self._working: dict[Share, None] = {}
        self._sending: set[Share] = set()
        self._waiting: list[_Waiter] = []

    def page(self) -> Share:
        """The share of a page, which counts from its first byte on."""
        return Share(self)

    def read(self, key: Hashable) -> Share:
        """The share of a read."""
        return Share(self, key)

    def fits(self, size: int) -> bool:
        """Whether there is room for `size` bytes; what is kept is given up for it."""
        return self.taken + size + self.shrink(max(0, self.bytes_max - self.taken - size)) <= self.bytes_max

    async def wait(self, share: Share, size: int) -> None:
        """See `Share.take`."""
        waiter = _Waiter(share, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self.settle()
        try:
            await waiter.granted
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self.settle()

    def add(self, share: Share, size: int) -> None:
        """Count bytes of a share."""
        share.size += size
        self.taken += size
        self.shrink(max(0, self.bytes_max - self.taken))

    def send(self, share: Share) -> None:
        """See `Share.send`."""
        del self._working[share]
        self._sending.add(share)
        self._unpin(share)
        self.settle()

    def close(self, share: Share) -> None:
        """Nothing of it is in use any more."""
        self.taken -= share.size
        share.size = 0
        self._working.pop(share, None)
        self._sending.discard(share)
        self._unpin(share)
        self.settle()

    def _unpin(self, share: Share) -> None:
        self.pins -= Counter(share.pinned)
        share.pinned.clear()

    def settle(self) -> None:
        """Give room to those who wait, in their order: none overtakes another."""
        is_blocked = False
        for waiter in [*self._waiting]:
            if waiter.granted.cancelled():
                continue
            if not self._goes_first(waiter.share):
                is_blocked = is_blocked or not (self.fits(waiter.size) or not self.taken)
                if is_blocked:
                    continue
            self._waiting.remove(waiter)
            if waiter.share.key is None:
                self._working.setdefault(waiter.share)
            self.add(waiter.share, waiter.size)
            waiter.granted.set_result(None)

    def _goes_first(self, share: Share) -> bool:
        """Whether it is the first page, or what that waits for."""
        first = next(iter(self._working), None)
        if first is None or self._sending:
            return False
        return share is first or (share.key is not None and share.key == first.wanted)
