"""When entries come back that groups gave back for later through this gateway, so that they do so on time.

Knows: of each stream when the first of them is due. Must never know: groups, how they are released.

What was given back through a gateway that has died, the round of `maintenance` releases, and each read of the
group that claims.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from engine.errors import EngineError

# The server could not be reached.
_AGAIN_MS: Final = 1_000

# Releases what is due of a stream, and calls back with after how many ms the next one is, negative for none.
Release = Callable[[str, Callable[[int | EngineError], None]], None]


class Deferrals:
    """The timers of this process. Belongs to one event loop."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def note(self, stream: str, delay_ms: int) -> None:
        """Something of the stream comes back after that time."""
        due_s = self._loop.time() + delay_ms / 1_000
        timer = self._timers.get(stream)
        if timer is not None:
            if timer.when() <= due_s:
                return
            timer.cancel()
        self._timers[stream] = self._loop.call_at(due_s, self._begin, stream)

    def close(self) -> None:
        """Release nothing any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _begin(self, stream: str) -> None:
        del self._timers[stream]

        def go_on(next_ms: int | EngineError) -> None:
            if isinstance(next_ms, EngineError):
                self.note(stream, _AGAIN_MS)
            elif next_ms >= 0:
                self.note(stream, next_ms)

        self._release(stream, go_on)
