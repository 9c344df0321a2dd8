"""When something of a stream is due, so that it is done on time.

Knows: of each stream when the first of it is due. Must never know: what it is, how it is done.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from engine.cluster.wire import report
from engine.errors import EngineError

# The server could not be reached, or has no room.
_AGAIN_MS: Final = 1_000

# Does what is due of a stream. Returns after how many ms the next one is, negative for none.
# Raises EngineError.
DoDue = Callable[[str], Awaitable[int]]


class Deferrals:
    """The timers of this process. Belongs to one event loop."""

    def __init__(self, do_due: DoDue) -> None:
        self._do_due = do_due
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, stream: str, delay_ms: int) -> None:
        """Something of the stream is due after that time."""
        due_s = self._loop.time() + delay_ms / 1_000
        timer = self._timers.get(stream)
        if timer is not None:
            if timer.when() <= due_s:
                return
            timer.cancel()
        self._timers[stream] = self._loop.call_at(due_s, self._begin, stream)

    def close(self) -> None:
        """Nothing is due any more."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._timers.clear()

    def _begin(self, stream: str) -> None:
        del self._timers[stream]
        task = self._loop.create_task(self._go_on(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self, stream: str) -> None:
        next_ms = _AGAIN_MS
        try:
            next_ms = await self._do_due(stream)
        except EngineError:
            pass
        except Exception as error:  # noqa: BLE001 - it is tried again
            report("what was due could not be done", error)
        if next_ms >= 0:
            self.note(stream, next_ms)
