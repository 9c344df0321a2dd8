"""Parked reads: per stream, first come first served, deadlines as numbers.

Knows: who waits for which streams, in which order, and until when (monotonic seconds).
Must never know: futures, tasks, sockets, and what a read would find.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from engine.commands import Parked

T = TypeVar("T")

# So many entries of waiters that are gone, or were moved, may lie in the heap beside as many as there are
# waiters.
_stale_entries_max: Final = 1024


class Waiter(Generic[T]):
    """One parked read. `ticket` is the caller's, to answer with; `deadline` stays however often the read is
    run again.
    """

    __slots__ = ("deadline", "gone", "parked", "retry_at", "serial", "ticket")

    def __init__(self, parked: Parked, ticket: T, deadline: float, retry_at: float | None) -> None:
        self.parked = parked
        self.ticket = ticket
        self.deadline = deadline
        self.retry_at = retry_at
        self.gone = False
        # That of its entry among those that come due: an older entry is of a time that no longer counts.
        self.serial = 0


class Waiters(Generic[T]):
    """All parked reads."""

    __slots__ = ("_all", "_by_serial", "_by_stream", "_due", "_serial")

    def __init__(self) -> None:
        self._all: dict[Waiter[T], None] = {}
        self._by_stream: dict[str, dict[Waiter[T], None]] = {}
        # (when, serial): an entry whose serial no waiter has any more is passed over when it comes up, and
        # thrown out when there are too many. It holds no waiter, so none outlives its answer here.
        self._due: list[tuple[float, int]] = []
        self._by_serial: dict[int, Waiter[T]] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._all)

    def park(self, waiter: Waiter[T]) -> None:
        """Put the waiter at the end of each of its streams' queues; one that waited loses its places."""
        self._all[waiter] = None
        for stream in waiter.parked.streams:
            queue = self._by_stream.setdefault(stream, {})
            queue.pop(waiter, None)
            queue[waiter] = None
        due = waiter.deadline if waiter.retry_at is None else min(waiter.deadline, waiter.retry_at)
        self._by_serial.pop(waiter.serial, None)
        self._serial = waiter.serial = self._serial + 1
        self._by_serial[waiter.serial] = waiter
        heappush(self._due, (due, waiter.serial))
        if len(self._due) > 2 * len(self._all) + _stale_entries_max:
            self._due = [entry for entry in self._due if entry[1] in self._by_serial]
            heapify(self._due)

    def remove(self, waiter: Waiter[T]) -> None:
        """Forget the waiter: it was served, it gave up, or its time is over."""
        waiter.gone = True
        self._all.pop(waiter, None)
        self._by_serial.pop(waiter.serial, None)
        for stream in waiter.parked.streams:
            queue = self._by_stream.get(stream)
            if queue is not None:
                queue.pop(waiter, None)
                if not queue:
                    del self._by_stream[stream]

    def of(self, streams: Iterable[str]) -> list[Waiter[T]]:
        """Those that wait for one of `streams`, stream by stream, in order of arrival; each once."""
        return list(dict.fromkeys(waiter for stream in streams for waiter in self._by_stream.get(stream, ())))

    def everyone(self) -> list[Waiter[T]]:
        """All of them, for the end."""
        return list(self._all)

    def next_due(self) -> float | None:
        """When the next waiter's deadline or retry comes up."""
        while self._due and self._due[0][1] not in self._by_serial:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def due(self, now: float) -> list[Waiter[T]]:
        """Those whose deadline or retry has come, earliest first; each is given once."""
        found: list[Waiter[T]] = []
        while (due := self.next_due()) is not None and due <= now:
            found.append(self._by_serial.pop(heappop(self._due)[1]))
        return found
