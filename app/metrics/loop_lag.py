"""How late the event loop is: what every client feels that waits for its turn.

Knows: a timer, and how late it ran. Must never know: what held the loop.
"""

import asyncio
from typing import Final

from engine import Histogram

# A loop that is held for longer than this is always seen; shorter holds in proportion.
_INTERVAL_S: Final = 0.25


class LoopLag:
    """Measures the lag of the running loop, from `start` to `stop`."""

    def __init__(self, found: Histogram) -> None:
        self._found = found
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_INTERVAL_S, self._measure, loop.time() + _INTERVAL_S)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _measure(self, due_s: float) -> None:
        self._found.observe(max(0.0, asyncio.get_running_loop().time() - due_s))
        self.start()
