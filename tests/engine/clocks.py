"""Time that a test lets pass, for the engine and for the event loop under it.

Knows: both clocks of the engine, and that asyncio's timers are asked what time it is through `loop.time`.
Must never know: what anybody waits for.
"""

import asyncio
import time
from typing import Final

# What asyncio and a deadline added up in floating point may disagree about.
_ROUNDING_S: Final = 1e-6
# Long enough for a thread to get hold of the interpreter, which a loop that only spins hardly lets go.
_PAUSE_S: Final = 0.000_2
# Turns of the loop in which everything that is due has run, and what that has woken.
_SETTLING_TURNS: Final = 12


class HandClock:
    """The engine's two clocks. They stand still until `pass_ms`."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic = 1_000.0
        # How much time passes with each reading.
        self.ticking_s = 0.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        self._monotonic += self.ticking_s
        return self._monotonic

    def pass_ms(self, wall: int, monotonic: int | None = None) -> None:
        """Let time pass, on both clocks alike by default; the wall clock may go back."""
        self._wall_ms += wall
        self._monotonic += (wall if monotonic is None else monotonic) / 1000 + _ROUNDING_S

    def drive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the loop's timers go by this clock."""
        vars(loop)["time"] = self.monotonic

    @staticmethod
    def let_be(loop: asyncio.AbstractEventLoop) -> None:
        """Give the loop its own time back."""
        del vars(loop)["time"]


async def settle() -> None:
    """Let everything run that can run now."""
    for _ in range(_SETTLING_TURNS):
        await asyncio.sleep(0)


async def let_threads_run() -> None:
    """One turn of the loop, and time for other threads: that of the loop stands still, so it cannot sleep."""
    time.sleep(_PAUSE_S)  # noqa: ASYNC251 - nothing else on this loop has anything to do
    await asyncio.sleep(0)
