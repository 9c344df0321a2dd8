"""Parked reads: per stream, first come first served, deadlines as numbers.

Knows: who waits for which streams, in which order, until when (monotonic seconds), and that reads of one kin
find something or nothing alike: where the first two have nothing none behind them is asked.
Must never know: futures, tasks, sockets, and what a read would find.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Final, Generic, TypeVar

from engine.commands.execution import Blocked

T = TypeVar("T")

# The heap may hold this many entries of cancelled waiters beyond twice the waiters; above that it is rebuilt.
_STALE_ENTRIES_MAX: Final = 1024


class Waiter(Generic[T]):
    """One parked read. `ticket` is the caller's, to answer with; `deadline` stays however often the read is
    run again.
    """

    __slots__ = ("deadline", "gone", "parked", "place", "serial", "ticket")

    def __init__(self, parked: Blocked, ticket: T, deadline: float) -> None:
        self.parked = parked
        self.ticket = ticket
        self.deadline = deadline
        self.gone = False
        # The order of arrival.
        self.place = 0
        # That of its entry among what comes due, 0 before it has one.
        self.serial = 0


class WaiterGroup(Generic[T]):
    """Parked reads of one kin. `retry_at` is when the first of them may find something without any write."""

    __slots__ = ("kin", "retry_at", "serial", "streams", "waiters")

    def __init__(self, kin: Hashable, streams: tuple[str, ...]) -> None:
        self.kin = kin
        self.streams = streams
        self.waiters: OrderedDict[Waiter[T], None] = OrderedDict()
        self.retry_at: float | None = None
        self.serial = 0

    def first(self) -> Waiter[T] | None:
        """Who has waited longest."""
        return next(iter(self.waiters), None)

    def front(self) -> Sequence[Waiter[T]]:
        """The first and the second: what the first may not have, being its own, the second may."""
        return tuple(islice(self.waiters, 2))


class Waiters(Generic[T]):
    """All parked reads."""

    __slots__ = ("_all", "_by_serial", "_due", "_lanes", "_lanes_of", "_place", "_plain", "_serial")

    def __init__(self) -> None:
        self._all: dict[Waiter[T], None] = {}
        # Reads without kin, by stream.
        self._plain: dict[str, dict[Waiter[T], None]] = {}
        self._lanes: dict[Hashable, WaiterGroup[T]] = {}
        self._lanes_of: dict[str, dict[Hashable, WaiterGroup[T]]] = {}
        self._place = 0
        # (when, serial): an entry whose serial is no longer in use is skipped when it comes up, and
        # thrown out when there are too many. It holds no waiter, so none outlives its answer here.
        self._due: list[tuple[float, int]] = []
        self._by_serial: dict[int, Waiter[T] | WaiterGroup[T]] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._all)

    def park(self, waiter: Waiter[T]) -> WaiterGroup[T] | None:
        """Put the waiter at the end of each of its streams' queues, and give its lane if it has kin; one that
        waited loses its places.
        """
        self._all[waiter] = None
        self._place = waiter.place = self._place + 1
        if not waiter.serial:
            self._come_due(waiter, waiter.deadline)
        parked = waiter.parked
        if parked.kin is None:
            for stream in parked.streams:
                queue = self._plain.setdefault(stream, {})
                queue.pop(waiter, None)
                queue[waiter] = None
            return None
        lane = self._lanes.get(parked.kin)
        if lane is None:
            lane = self._lanes[parked.kin] = WaiterGroup(parked.kin, parked.streams)
            for stream in parked.streams:
                self._lanes_of.setdefault(stream, {})[parked.kin] = lane
        lane.waiters.pop(waiter, None)
        lane.waiters[waiter] = None
        return lane

    def remove(self, waiter: Waiter[T]) -> None:
        """Forget the waiter: it was served, it gave up, or its time is over."""
        waiter.gone = True
        self._all.pop(waiter, None)
        self._by_serial.pop(waiter.serial, None)
        parked = waiter.parked
        if parked.kin is None:
            for stream in parked.streams:
                queue = self._plain.get(stream, {})
                queue.pop(waiter, None)
                if not queue:
                    self._plain.pop(stream, None)
            return
        lane = self._lanes.get(parked.kin)
        if lane is not None and lane.waiters.pop(waiter, waiter) is None and not lane.waiters:
            self._remove_lane(lane)

    def _remove_lane(self, lane: WaiterGroup[T]) -> None:
        del self._lanes[lane.kin]
        self._by_serial.pop(lane.serial, None)
        for stream in lane.streams:
            lanes = self._lanes_of.get(stream, {})
            lanes.pop(lane.kin, None)
            if not lanes:
                self._lanes_of.pop(stream, None)

    def plain(self, stream: str) -> Sequence[Waiter[T]]:
        """Those without kin that wait for the stream, in order of arrival."""
        return tuple(self._plain.get(stream, ()))

    def lanes(self, stream: str) -> Sequence[WaiterGroup[T]]:
        """Those of one kin each that wait for the stream."""
        return tuple(self._lanes_of.get(stream, {}).values())

    def in_turn(self, stream: str, is_ready: Callable[[Waiter[T]], bool]) -> Iterator[Waiter[T]]:
        """Those with kin that wait for the stream and are ready, in order of arrival, however many lanes they
        stand in. Before the next is asked for each has to be removed or parked again; who is parked meanwhile
        is not among them.
        """
        upto = self._place
        fronts = [
            (first.place, at, lane) for at, lane in enumerate(self.lanes(stream)) if (first := lane.first())
        ]
        heapify(fronts)
        while fronts:
            place, at, lane = fronts[0]
            first = lane.first()
            if first is not None and place < first.place <= upto:
                heapreplace(fronts, (first.place, at, lane))
                continue
            ready = next((one for one in lane.front() if one.place <= upto and is_ready(one)), None)
            if ready is None:
                heappop(fronts)
                continue
            yield ready
            # Alone in its lane it is the first again, at another place.
            assert ready.gone or ready.place > upto, "it was removed or parked again"

    def everyone(self) -> list[Waiter[T]]:
        """All of them, for the end."""
        return list(self._all)

    # --- what comes due -------------------------------------------------------------------------------------

    def retry(self, lane: WaiterGroup[T], at: float | None) -> None:
        """Let the lane come due at this time, if it does not sooner."""
        if at is not None and lane.waiters and (lane.retry_at is None or at < lane.retry_at):
            lane.retry_at = at
            self._come_due(lane, at)

    def _come_due(self, one: Waiter[T] | WaiterGroup[T], when: float) -> None:
        self._by_serial.pop(one.serial, None)
        self._serial = one.serial = self._serial + 1
        self._by_serial[one.serial] = one
        heappush(self._due, (when, one.serial))
        if len(self._due) > 2 * len(self._by_serial) + _STALE_ENTRIES_MAX:
            self._due = [entry for entry in self._due if entry[1] in self._by_serial]
            heapify(self._due)

    def next_due(self) -> float | None:
        """When the next waiter's deadline or lane's retry comes up."""
        while self._due and self._due[0][1] not in self._by_serial:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def due(self, now: float, waiters_max: int) -> tuple[list[Waiter[T]], list[WaiterGroup[T]]]:
        """Return the waiters whose deadline has come, at most `waiters_max`, and the groups whose retry has;
        each once, earliest first.
        """
        waiters: list[Waiter[T]] = []
        lanes: list[WaiterGroup[T]] = []
        while len(waiters) < waiters_max and (due := self.next_due()) is not None and due <= now:
            one = self._by_serial.pop(heappop(self._due)[1])
            if isinstance(one, WaiterGroup):
                one.retry_at = None
                lanes.append(one)
            else:
                waiters.append(one)
        return waiters, lanes
