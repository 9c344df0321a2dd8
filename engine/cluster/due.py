"""What has its time: entries that groups gave back for later, and schedules.

This gateway does on time what it has taken itself; what another one left that died, the round of
`maintenance` finds.

Knows: which replies put something off, when the first of each stream is due, what is done then.
Must never know: connections.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from engine.clock import Clock
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.schedule_words import fire_due
from engine.cluster.scripts import release_due
from engine.cluster.wire import report
from engine.cluster.words import by_script
from engine.commands.base import Command
from engine.commands.schedule_commands import AddScheduled, PauseSchedule, SetSchedule
from engine.commands.types import Rename, XNack
from engine.errors import EngineError
from engine.replies import AddedScheduled, Reply, ScheduleSet

Run = Callable[[BackendRequest], Awaitable[Any]]

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


class DueWork:
    """What this process has put off. `run` raises EngineError; `note_added` gets how many entries came."""

    def __init__(self, run: Run, clock: Clock, note_added: Callable[[int], None]) -> None:
        self._run = run
        self._clock = clock
        self._note_added = note_added
        self._given_back = Deferrals(self._release)
        self._schedules = Deferrals(self._fire)

    def note_run(self, command: Command, reply: Reply | EngineError) -> None:
        """A command has run."""
        if isinstance(reply, EngineError):
            return
        if isinstance(command, XNack) and command.nack.delay_ms:
            self._given_back.note(command.stream, command.nack.delay_ms)
        elif isinstance(command, PauseSchedule | SetSchedule) and isinstance(reply, ScheduleSet):
            self._note_time(command.stream, reply.schedule.at_ms)
        elif isinstance(command, AddScheduled) and isinstance(reply, AddedScheduled) and reply.scheduled:
            self._note_time(command.stream, min(at_ms for _, at_ms in reply.scheduled))
        elif isinstance(command, Rename):
            self._given_back.note(command.target, 0)
            self._schedules.note(command.target, 0)

    def note_schedule(self, stream: str, delay_ms: int) -> None:
        """The first schedule of the stream is due after that time."""
        self._schedules.note(stream, delay_ms)

    def close(self) -> None:
        """Nothing is due any more."""
        self._given_back.close()
        self._schedules.close()

    def _note_time(self, stream: str, at_ms: int) -> None:
        self._schedules.note(stream, max(0, at_ms - self._clock.wall_ms()))

    async def _release(self, stream: str) -> int:
        next_ms: int = await self._run(by_script(stream, release_due(stream), Lane.GROUP))
        return next_ms

    async def _fire(self, stream: str) -> int:
        fired, next_ms = await fire_due(self._run, stream, self._clock)
        self._note_added(fired)
        return next_ms
