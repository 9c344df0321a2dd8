"""Woken reads: in which order they run again, and how many in one cycle of the event loop.

Knows: the plain reads still to run, the streams whose group readers are not all served, and the later reads
that wait for those.
Must never know: how a read is run, what it finds, when its answer may leave.

    signalled streams ─► plain reads: some now, the others in later cycles
                      └► group reads: in order of arrival, some in each cycle ─► reads that came meanwhile

A cycle is limited twice: by a number, since each answer costs others something later, and by time.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from engine.clock import Clock
from engine.commands.base import Command
from engine.commands.execution import is_ready
from engine.keyspace import Keyspace
from engine.waiters import Waiter, WaiterGroup, Waiters

T = TypeVar("T")

# Plain reads answered in one cycle. Answers to 10 000 in one cycle would block the loop for most of a second.
ANSWERED_AT_ONCE_MAX: Final = 200
# A group read, in plain ones: it changes the group and writes a frame.
_GROUP_READ_COST: Final = 2
# After this time no further read runs in a cycle: the last one may take 10 ms itself, with 10,000 entries or
# 500 claims.
_SERVED_S_MAX: Final = 0.004


class _Cycle:
    """One cycle of the loop: how many more reads may run in it, and for how long. At least one runs."""

    __slots__ = ("_clock", "_ends_at", "_spent")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spent = 0
        self._ends_at = clock.monotonic() + _SERVED_S_MAX

    def spend(self, cost: int) -> None:
        """Count a read, by its cost in plain ones."""
        self._spent += cost

    @property
    def is_over(self) -> bool:
        """Whether the other reads wait for a later cycle."""
        if self._spent >= ANSWERED_AT_ONCE_MAX:
            return True
        return self._spent > 0 and self._clock.monotonic() >= self._ends_at


class WakeQueue(Generic[T]):
    """Runs blocked reads again.

    `run_again(waiter, now_ms)` removes the waiter or adds it again, and returns the streams that it signals.
    `on_served(group)` is called for each group whose retry time may have changed, and with None at the end.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        waiters: Waiters[T],
        clock: Clock,
        run_again: Callable[[Waiter[T], int], Mapping[str, object]],
        on_served: Callable[[WaiterGroup[T] | None], None],
    ) -> None:
        self._keyspace = keyspace
        self._waiters = waiters
        self._clock = clock
        self._run_again = run_again
        self._on_served = on_served
        # Woken plain reads that have not run again yet, in order of arrival.
        self._late: OrderedDict[Waiter[T], None] = OrderedDict()
        # Streams whose group readers are not all served yet, and the group reads that came meanwhile.
        self._unserved: dict[str, None] = {}
        self._behind: deque[Callable[[], None]] = deque()
        self._going_on = False
        self._stopped = False

    def stop(self) -> None:
        """Run nothing any more, since the keyspace cannot be trusted. Reads that wait behind others are let
        in.
        """
        self._stopped = True
        self._unserved.clear()
        self._late.clear()

    def serve(self, signalled: Mapping[str, object], now_ms: int) -> None:
        """Run again, in order of arrival, the blocked reads of the signalled streams that may find something;
        then those of streams that got dead letters by that.

        Serves some in one cycle of the loop. A group read that comes meanwhile has to wait behind those that
        waited before it.
        """
        if signalled and self._waiters and not self._stopped:
            cycle = _Cycle(self._clock)
            self._wake(signalled, now_ms, cycle)
            if self._unserved and not self._going_on:
                self._serve_groups(now_ms, cycle)

    def must_wait_behind(self, commands: Sequence[Command]) -> bool:
        """Whether one of the commands reads from a group while earlier group reads are still being served."""
        return self._going_on and any(command.queues for command in commands)

    def wait_behind(self, let_in: Callable[[], None]) -> None:
        """Call back once all earlier group reads are served."""
        self._behind.append(let_in)

    def answer_all_plain(self) -> None:
        """Run all remaining plain reads at once, at shutdown."""
        while self._late:
            self._run_late()

    def _wake(self, signalled: Mapping[str, object], now_ms: int, cycle: _Cycle) -> None:
        for stream in self._waiters.awaited(signalled):
            for waiter in self._waiters.plain(stream):
                if self._stopped:
                    return
                if self._late or cycle.is_over:
                    self._put_off(waiter)
                    continue
                cycle.spend(waiter.blocked.command.wake_cost())
                if is_ready(self._keyspace, waiter.blocked, now_ms, stream):
                    self._run(waiter, now_ms)
            if self._waiters.waiter_groups(stream):
                self._unserved[stream] = None

    def _serve_groups(self, now_ms: int, cycle: _Cycle) -> None:
        while self._unserved and not cycle.is_over:
            stream = next(iter(self._unserved))
            del self._unserved[stream]
            all_served = self._serve_groups_of(stream, now_ms, cycle)
            if self._stopped:
                return
            if not all_served:
                self._unserved[stream] = None
        self._on_served(None)
        if self._unserved and not self._going_on:
            self._going_on = True
            self._go_on_later()

    def _serve_groups_of(self, stream: str, now_ms: int, cycle: _Cycle) -> bool:
        """Serve group reads of one stream. Returns whether all are served."""

        def ready(waiter: Waiter[T]) -> bool:
            return is_ready(self._keyspace, waiter.blocked, now_ms)

        for waiter in self._waiters.in_turn(stream, ready):
            self._wake(self._run(waiter, now_ms), now_ms, cycle)
            cycle.spend(_GROUP_READ_COST)
            if self._stopped or cycle.is_over:
                return False
        for waiter_group in self._waiters.waiter_groups(stream):
            self._on_served(waiter_group)
        return True

    def _go_on(self) -> None:
        """Serve some more reads. Once all are served, let in those that came meanwhile, some in each
        cycle.
        """
        try:
            if self._unserved:
                self._serve_groups(self._clock.wall_ms(), _Cycle(self._clock))
            else:
                cycle = _Cycle(self._clock)
                while self._behind and not cycle.is_over:
                    cycle.spend(_GROUP_READ_COST)
                    self._behind.popleft()()
        finally:
            self._going_on = bool(self._unserved or self._behind)
            if self._going_on:
                self._go_on_later()

    def _go_on_later(self) -> None:
        """Continue in the cycle after the next: the next one is for the answers to the reads just served."""
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._go_on)

    def _put_off(self, waiter: Waiter[T]) -> None:
        if not self._late:
            asyncio.get_running_loop().call_soon(self._serve_late)
        self._late[waiter] = None

    def _serve_late(self) -> None:
        self._run_late()
        if self._late:
            asyncio.get_running_loop().call_soon(self._serve_late)

    def _run_late(self) -> None:
        """Run some of the remaining plain reads. They find all that they waited for, and later entries too,
        except what was removed meanwhile.
        """
        now_ms, cycle = self._clock.wall_ms(), _Cycle(self._clock)
        while self._late and not cycle.is_over:
            waiter, _ = self._late.popitem(last=False)
            cycle.spend(waiter.blocked.command.wake_cost())
            if not waiter.gone and is_ready(self._keyspace, waiter.blocked, now_ms):
                self._run(waiter, now_ms)

    def _run(self, waiter: Waiter[T], now_ms: int) -> Mapping[str, object]:
        """Run a read again. If it fails, it goes to the end of its queues, so that the others are served."""
        try:
            return self._run_again(waiter, now_ms)
        except Exception as error:  # noqa: BLE001 - the other reads are served in any case
            context = {"message": "a read that waited failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            if not waiter.gone:
                self._waiters.add(waiter)
            return {}
