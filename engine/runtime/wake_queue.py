"""Parked reads that were woken: whose turn it is to be run again, and how many in one turn of the loop.

Knows: plain reads that were put off, streams whose groups' readers are not all served, who comes behind them.
Must never know: how a read is run, what it finds, when its answer may leave.

    signalled streams ─► plain reads: some now, the others a few at a time, with what there is by then
                      └► reads of groups: in order of arrival, a few at a time ─► who came meanwhile
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final, Generic, TypeVar

from engine.clock import Clock
from engine.commands.base import Command
from engine.commands.execution import is_ready
from engine.keyspace import Keyspace
from engine.waiters import Waiter, WaiterGroup, Waiters

T = TypeVar("T")

# Plain reads answered at a time. What 10 000 make of their answers, all in one cycle of the loop, would hold
# everybody else up for most of a second.
ANSWERED_AT_ONCE_MAX: Final = 200
# Reads of groups served at a time: each changes the group, and has its frame.
_SERVED_AT_ONCE_MAX: Final = 100


class WakeQueue(Generic[T]):
    """Runs parked reads again, by `run_again(waiter, now_ms)`, which answers the streams that it signals in
    turn, and leaves no waiter where it was. `served` hears of each lane that may have something at another
    time now, and of None when that was all.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        waiters: Waiters[T],
        clock: Clock,
        run_again: Callable[[Waiter[T], int], Mapping[str, None]],
        served: Callable[[WaiterGroup[T] | None], None],
    ) -> None:
        self._keyspace = keyspace
        self._waiters = waiters
        self._clock = clock
        self._run_again = run_again
        self._told = served
        # Plain reads that a turn has woken and that are not run again yet, in order of arrival.
        self._late: OrderedDict[Waiter[T], None] = OrderedDict()
        # Streams whose groups' readers are not all served yet, and who came to read from a group meanwhile.
        self._unserved: dict[str, None] = {}
        self._behind: deque[asyncio.Future[None]] = deque()
        self._going_on = False
        self._stopped = False

    def stop(self) -> None:
        """Look at nothing any more, and run nothing: the keyspace cannot be trusted. Who comes behind is let
        in.
        """
        self._stopped = True
        self._unserved.clear()
        self._late.clear()

    def serve(self, signalled: Mapping[str, None], now_ms: int) -> None:
        """Run the parked reads of the signalled streams again, in order of arrival, those that may find
        something; then those of the streams to which that brought dead letters.

        Many of them are served a few at a time. Plain reads take nothing from each other; whoever comes to
        read from a group meanwhile comes behind those that waited.
        """
        if signalled and self._waiters and not self._stopped:
            self._wake(signalled, now_ms)
            if self._unserved and not self._going_on:
                self._serve_groups(now_ms)

    def must_come_behind(self, commands: Sequence[Command]) -> bool:
        """Whether one of them reads from a group while others, who waited for that, are being served."""
        return self._going_on and any(command.queues for command in commands)

    async def come_behind(self) -> None:
        """Wait until they are served, and those who came before."""
        let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._behind.append(let_in)
        await let_in

    def serve_all_groups(self) -> None:
        """Serve all who wait for groups, for one that cannot wait until they are."""
        while self._unserved:
            self._serve_groups(self._clock.wall_ms())

    def answer_all_plain(self) -> None:
        """Run all again that were put off: they have no other time."""
        self._serve_late(inf)

    def _wake(self, signalled: Mapping[str, None], now_ms: int) -> None:
        room = 0 if self._late else ANSWERED_AT_ONCE_MAX
        for stream in signalled:
            for waiter in self._waiters.plain(stream):
                if self._stopped:
                    return
                room -= waiter.parked.command.wake_cost()
                if room < 0:
                    self._put_off(waiter)
                elif is_ready(self._keyspace, waiter.parked, now_ms, stream):
                    self._run(waiter, now_ms)
            if self._waiters.lanes(stream):
                self._unserved[stream] = None

    def _serve_groups(self, now_ms: int) -> None:
        room = _SERVED_AT_ONCE_MAX

        def ready(waiter: Waiter[T]) -> bool:
            return is_ready(self._keyspace, waiter.parked, now_ms)

        while self._unserved and room > 0:
            stream = next(iter(self._unserved))
            del self._unserved[stream]
            for waiter in self._waiters.in_turn(stream, ready):
                self._wake(self._run(waiter, now_ms), now_ms)
                if self._stopped:
                    return
                room -= 1
                if not room:
                    self._unserved[stream] = None
                    break
            for lane in self._waiters.lanes(stream):
                self._told(lane)
        self._told(None)
        if self._unserved and not self._going_on:
            self._going_on = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Serve some more; then let in those that came meanwhile, in their order and a few at a time too."""
        try:
            if self._unserved:
                self._serve_groups(self._clock.wall_ms())
            else:
                for _ in range(min(len(self._behind), _SERVED_AT_ONCE_MAX)):
                    let_in = self._behind.popleft()
                    if not let_in.done():
                        let_in.set_result(None)
        finally:
            self._going_on = bool(self._unserved or self._behind)
            if self._going_on:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _put_off(self, waiter: Waiter[T]) -> None:
        if not self._late:
            asyncio.get_running_loop().call_soon(self._serve_late)
        self._late[waiter] = None

    def _serve_late(self, room: float = ANSWERED_AT_ONCE_MAX) -> None:
        """Run some of those again that were put off: with what there is by now, which is all they waited for
        and more, unless it was removed meanwhile.
        """
        now_ms = self._clock.wall_ms()
        while self._late and room > 0:
            waiter, _ = self._late.popitem(last=False)
            room -= waiter.parked.command.wake_cost()
            if not waiter.gone and is_ready(self._keyspace, waiter.parked, now_ms):
                self._run(waiter, now_ms)
        if self._late:
            asyncio.get_running_loop().call_soon(self._serve_late)

    def _run(self, waiter: Waiter[T], now_ms: int) -> Mapping[str, None]:
        """Run a read again. One that fails must not hold up those behind it: it goes behind them, until its
        time is over.
        """
        try:
            return self._run_again(waiter, now_ms)
        except Exception as error:  # noqa: BLE001 - the other reads are served in any case
            told = {"message": "a read that waited failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
            if not waiter.gone:
                self._waiters.park(waiter)
            return {}
