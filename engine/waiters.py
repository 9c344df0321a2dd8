"""Blocked reads: queues per stream, served in order of arrival, with deadlines.

Knows: which read waits for which streams, in which order and until when (monotonic seconds). Reads
with the same wait key find something or nothing alike: if the first two find nothing, the others are not run.
Must never know: futures, tasks, sockets, and what a read would find.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Final, Generic, TypeVar

from engine.commands.execution import Blocked

T = TypeVar("T")

# The heap may hold this many entries of cancelled waiters beyond twice the waiters; above that it is rebuilt.
_STALE_ENTRIES_MAX: Final = 1024


class Waiter(Generic[T]):
    """One blocked read. The caller answers through `ticket`. `deadline` stays the same when the read is run
    again.
    """

    __slots__ = ("blocked", "deadline", "gone", "place", "serial", "ticket")

    def __init__(self, blocked: Blocked, ticket: T, deadline: float) -> None:
        self.blocked = blocked
        self.ticket = ticket
        self.deadline = deadline
        self.gone = False
        # The order of arrival.
        self.place = 0
        # The number of its current entry in the heap of deadlines, 0 before it has one.
        self.serial = 0


class WaiterGroup(Generic[T]):
    """Blocked reads with the same wait key. At `retry_at` the first may find something without any write."""

    __slots__ = ("retry_at", "serial", "streams", "wait_key", "waiters")

    def __init__(self, wait_key: Hashable, streams: tuple[str, ...]) -> None:
        self.wait_key = wait_key
        self.streams = streams
        self.waiters: OrderedDict[Waiter[T], None] = OrderedDict()
        self.retry_at: float | None = None
        self.serial = 0

    def first(self) -> Waiter[T] | None:
        """The waiter that arrived first."""
        return next(iter(self.waiters), None)

    def front(self) -> Sequence[Waiter[T]]:
        """The first two: a consumer cannot claim its own pending entries, but the next consumer can."""
        return tuple(islice(self.waiters, 2))


class Waiters(Generic[T]):
    """All blocked reads."""

    __slots__ = (
        "_all",
        "_by_serial",
        "_due",
        "_place",
        "_plain",
        "_serial",
        "_waiter_groups",
        "_waiter_groups_of",
    )

    def __init__(self) -> None:
        self._all: dict[Waiter[T], None] = {}
        # Reads without a wait key, by stream.
        self._plain: dict[str, dict[Waiter[T], None]] = {}
        self._waiter_groups: dict[Hashable, WaiterGroup[T]] = {}
        self._waiter_groups_of: dict[str, dict[Hashable, WaiterGroup[T]]] = {}
        self._place = 0
        # A heap of (when, serial). An entry whose serial is no longer in use is skipped; too many of them are
        # removed. Entries refer to waiters by number, so that an answered waiter is freed at once.
        self._due: list[tuple[float, int]] = []
        self._by_serial: dict[int, Waiter[T] | WaiterGroup[T]] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, waiter: Waiter[T]) -> WaiterGroup[T] | None:
        """Put the waiter at the end of each of its streams' queues, also if it waited there already. Return
        its group if it has a wait key.
        """
        self._all[waiter] = None
        self._place = waiter.place = self._place + 1
        if not waiter.serial:
            self._come_due(waiter, waiter.deadline)
        blocked = waiter.blocked
        if blocked.wait_key is None:
            for stream in blocked.streams:
                queue = self._plain.setdefault(stream, {})
                queue.pop(waiter, None)
                queue[waiter] = None
            return None
        waiter_group = self._waiter_groups.get(blocked.wait_key)
        if waiter_group is None:
            waiter_group = self._waiter_groups[blocked.wait_key] = WaiterGroup(
                blocked.wait_key, blocked.streams
            )
            for stream in blocked.streams:
                self._waiter_groups_of.setdefault(stream, {})[blocked.wait_key] = waiter_group
        waiter_group.waiters.pop(waiter, None)
        waiter_group.waiters[waiter] = None
        return waiter_group

    def remove(self, waiter: Waiter[T]) -> None:
        """Remove a waiter that was served, gave up or timed out."""
        waiter.gone = True
        self._all.pop(waiter, None)
        self._by_serial.pop(waiter.serial, None)
        blocked = waiter.blocked
        if blocked.wait_key is None:
            for stream in blocked.streams:
                queue = self._plain.get(stream, {})
                queue.pop(waiter, None)
                if not queue:
                    self._plain.pop(stream, None)
            return
        waiter_group = self._waiter_groups.get(blocked.wait_key)
        if (
            waiter_group is not None
            and waiter_group.waiters.pop(waiter, waiter) is None
            and not waiter_group.waiters
        ):
            self._remove_waiter_group(waiter_group)

    def _remove_waiter_group(self, waiter_group: WaiterGroup[T]) -> None:
        del self._waiter_groups[waiter_group.wait_key]
        self._by_serial.pop(waiter_group.serial, None)
        for stream in waiter_group.streams:
            waiter_groups = self._waiter_groups_of.get(stream, {})
            waiter_groups.pop(waiter_group.wait_key, None)
            if not waiter_groups:
                self._waiter_groups_of.pop(stream, None)

    def waits_for(self, streams: Mapping[str, object]) -> bool:
        """Whether a read waits for one of the streams."""
        return any(
            stream in self._plain or stream in self._waiter_groups_of for stream in self.awaited(streams)
        )

    def awaited(self, streams: Mapping[str, object]) -> Iterable[str]:
        """Those of the streams for which a read waits, and maybe others: of all streams there may be far more
        than reads.
        """
        if len(streams) <= len(self._plain) + len(self._waiter_groups_of):
            return streams
        return [
            stream for stream in dict.fromkeys((*self._plain, *self._waiter_groups_of)) if stream in streams
        ]

    def plain(self, stream: str) -> Sequence[Waiter[T]]:
        """The waiters of the stream without a wait key, in order of arrival."""
        return tuple(self._plain.get(stream, ()))

    def waiter_groups(self, stream: str) -> Sequence[WaiterGroup[T]]:
        """The groups of waiters with the same wait key that wait for the stream."""
        return tuple(self._waiter_groups_of.get(stream, {}).values())

    def in_turn(self, stream: str, is_ready: Callable[[Waiter[T]], bool]) -> Iterator[Waiter[T]]:
        """Yield the ready waiters of the stream that have a wait key, in order of arrival over all groups.

        The caller removes each one, or adds it again, before it asks for the next. Does not yield waiters
        that are added meanwhile.
        """
        upto = self._place
        fronts = [
            (first.place, at, waiter_group)
            for at, waiter_group in enumerate(self.waiter_groups(stream))
            if (first := waiter_group.first())
        ]
        heapify(fronts)
        while fronts:
            place, at, waiter_group = fronts[0]
            first = waiter_group.first()
            if first is not None and place < first.place <= upto:
                heapreplace(fronts, (first.place, at, waiter_group))
                continue
            ready = next(
                (waiter for waiter in waiter_group.front() if waiter.place <= upto and is_ready(waiter)), None
            )
            if ready is None:
                heappop(fronts)
                continue
            yield ready
            # Alone in its group it is the first again, at another place.
            assert ready.gone or ready.place > upto, "it was removed or added again"

    def all_waiters(self) -> list[Waiter[T]]:
        """Every waiter, to be ended at shutdown."""
        return list(self._all)

    # --- what comes due -------------------------------------------------------------------------------------

    def retry(self, waiter_group: WaiterGroup[T], at: float | None) -> None:
        """Have the group come due at this time, unless it does so earlier."""
        if (
            at is not None
            and waiter_group.waiters
            and (waiter_group.retry_at is None or at < waiter_group.retry_at)
        ):
            waiter_group.retry_at = at
            self._come_due(waiter_group, at)

    def _come_due(self, waiting: Waiter[T] | WaiterGroup[T], when: float) -> None:
        self._by_serial.pop(waiting.serial, None)
        self._serial = waiting.serial = self._serial + 1
        self._by_serial[waiting.serial] = waiting
        heappush(self._due, (when, waiting.serial))
        if len(self._due) > 2 * len(self._by_serial) + _STALE_ENTRIES_MAX:
            self._due = [entry for entry in self._due if entry[1] in self._by_serial]
            heapify(self._due)

    def next_due(self) -> float | None:
        """When the next deadline of a waiter or retry of a group is."""
        while self._due and self._due[0][1] not in self._by_serial:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def due(self, now: float, waiters_max: int) -> tuple[list[Waiter[T]], list[WaiterGroup[T]]]:
        """Return the waiters whose deadline has come, at most `waiters_max`, and the groups whose retry has;
        each once, earliest first.
        """
        waiters: list[Waiter[T]] = []
        waiter_groups: list[WaiterGroup[T]] = []
        while len(waiters) < waiters_max and (due := self.next_due()) is not None and due <= now:
            waiting = self._by_serial.pop(heappop(self._due)[1])
            if isinstance(waiting, WaiterGroup):
                waiting.retry_at = None
                waiter_groups.append(waiting)
            else:
                waiters.append(waiting)
        return waiters, waiter_groups
