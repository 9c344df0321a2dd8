"""The stamp of what may go on as before: one integer, which changes with all that may change a verdict.

Knows: when the first of the tokens ends that a verdict stands on.
Must never know: what is remembered under it.

A request like the one before on its connection need not be looked at again: what remembers a verdict keeps
the stamp beside it, and asks anew once the stamp is another one. A drain, a restart of the engine, other
tokens, a revocation, and the end of a token that a verdict stands on advance it.
"""

import asyncio
from math import inf
from typing import Final

from engine import Clock

# The wall clock may be set while a timer runs: it is looked at this often.
_TIMER_S_MAX: Final = 10.0


class Stamp:
    """That of one process."""

    def __init__(self, clock: Clock) -> None:
        self.value = 0
        self._clock = clock
        # The earliest end of a token that a remembered verdict stands on.
        self._until_s = inf
        self._timer: asyncio.TimerHandle | None = None

    def advance(self) -> None:
        """Nothing that was remembered holds any more."""
        self.value += 1
        self._until_s = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end_with(self, expires_s: float | None) -> None:
        """A verdict stands on a token that expires then, in Unix time; with None on one that never does."""
        if expires_s is not None and expires_s < self._until_s:
            self._until_s = expires_s
            self._look()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left_s = self._until_s - self._clock.wall_ms() / 1000
        if left_s <= 0:
            self.advance()
        else:
            self._timer = asyncio.get_running_loop().call_later(min(left_s, _TIMER_S_MAX), self._look)
