"""Turns: long work of one caller in pieces, one piece in each cycle of the event loop.

Knows: who waits for a turn, in which order, how long a cycle has lasted. Must never know: what the work is.

Without it, the pieces of all requests of a caller run in the same cycle, and all other callers wait for them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

# Of one cycle, since the first look: more than a piece of work takes, and too short to be noticed.
_CYCLE_S_MAX: Final = 0.005
# One piece of longer work, as of a run of commands whose replies are written.
_SLICE_S_MAX: Final = 0.005


def slice_of(monotonic: Callable[[], float], s_max: float = _SLICE_S_MAX) -> Callable[[], bool]:
    """Begin a slice of work; tells whether it may go on in this cycle."""
    ends_s = monotonic() + s_max
    return lambda: monotonic() <= ends_s


class CycleBudget:
    """The time in which one cycle of the loop begins what may also wait for the next: the further requests
    and frames of a caller. Its first one is served in every cycle.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ends_s: float | None = None
        # Of the cycle, since its first look.
        self.number = 0

    def has_time(self) -> bool:
        """Whether more may begin in this cycle."""
        now_s = self._monotonic()
        if self._ends_s is None:
            self._ends_s = now_s + _CYCLE_S_MAX
            asyncio.get_running_loop().call_soon(self._end)
        return now_s < self._ends_s

    def _end(self) -> None:
        self._ends_s = None
        self.number += 1


class CallerTurns:
    """In each cycle of the loop, one waiting piece of every caller goes on."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def wait(self, caller: str) -> None:
        """Wait for the caller's turn: at least until the next cycle."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._pass, loop)
        self._waiting.setdefault(caller, deque()).append(turn)
        await turn

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        for caller, turns in list(self._waiting.items()):
            while turns and turns[0].done():
                # Its request was cancelled.
                turns.popleft()
            if turns:
                turns.popleft().set_result(None)
            if not turns:
                del self._waiting[caller]
        if self._waiting:
            loop.call_soon(self._pass, loop)
