"""Answers that may leave: in each cycle of the event loop some of them, in their order.

Knows: how many, and for how long. Must never know: what is answered, and when it may leave.

What follows an answer takes up to 2 ms, and one sync, or one entry, may release an answer for every reader.
Those to reads and those that waited for the log share what a cycle has room for.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

# Answers of the log that leave in one cycle, and the time in which answers of any kind begin to.
ANSWERS_AT_ONCE_MAX: Final = 50
ANSWERS_S_MAX: Final = 0.005
# Reads that were woken are answered with less behind them.
_READS_AT_ONCE_MAX: Final = 200
_LOG_COST: Final = _READS_AT_ONCE_MAX // ANSWERS_AT_ONCE_MAX

_Answer = tuple[Callable[[], None], int]


class Answers:
    """All answers of one engine, on one event loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._queue: deque[_Answer] = deque()
        # Those that leave in the next cycle at the earliest.
        self._later: list[_Answer] = []
        self._is_scheduled = False
        # Of this cycle.
        self._spent = 0
        self._ends_s: float | None = None

    def __len__(self) -> int:
        """How many wait to leave."""
        return len(self._queue) + len(self._later)

    def put(self, answer: Callable[[], None]) -> None:
        """Let an answer that waited for the log leave, with the next `leave`."""
        self._queue.append((answer, _LOG_COST))

    def put_later(self, answer: Callable[[], None]) -> None:
        """Let the answer to a read leave, in the next cycle at the earliest."""
        self._later.append((answer, 1))
        self._schedule()

    def leave(self) -> None:
        """Call as many as this cycle has room for: one at least."""
        if not self._queue:
            return
        if self._ends_s is None:
            self._ends_s = self._monotonic() + ANSWERS_S_MAX
        while self._queue and self._has_room(self._ends_s):
            answer, cost = self._queue.popleft()
            self._spent += cost
            _call(answer)
        # Behind what follows these, as everybody else's next turn.
        self._schedule()

    def leave_all(self) -> None:
        """Call all that wait for nothing but their cycle."""
        for _ in range(len(self._queue)):
            _call(self._queue.popleft()[0])

    def _has_room(self, ends_s: float) -> bool:
        if not self._spent:
            return True
        return self._spent < _READS_AT_ONCE_MAX and self._monotonic() < ends_s

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_cycle)

    def _begin_cycle(self) -> None:
        self._is_scheduled = False
        self._spent, self._ends_s = 0, None
        self._queue.extend(self._later)
        self._later.clear()
        self.leave()


def _call(answer: Callable[[], None]) -> None:
    try:
        answer()
    except Exception as error:  # noqa: BLE001 - the other answers must leave in any case
        context = {"message": "an answer's callback failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
