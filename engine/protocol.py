"""What the gateway uses of an engine: the one door between `app` and the streams.

Knows: how commands are run, when their replies may leave, and what an engine reports of itself.
Must never know: how it is done. `engine.runtime.Engine` keeps the streams in this process; an engine that
sends the same commands to a server implements the same members.

    four ways in, one way to run:   execute      awaits one reply, and may wait for entries
                                    transaction  awaits the replies of several commands, in one turn
                                    submit       the same by callback, without a task
                                    read         a group read by callback, which may wait for entries
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from engine.commands import Command, XReadGroup
from engine.errors import EngineError
from engine.memory import Memory
from engine.replies import Reply
from engine.runtime import Fsync, LogFigures, Rewriter

Done = Callable[[Sequence[Reply | EngineError]], None]


class EngineProtocol(Protocol):
    """Streams, groups and what is pending, run by commands. All members belong to one event loop."""

    # What the log promises, as set at start.
    fsync: Fsync
    # Called after each turn that made dead letters: stream, group, ID and reason of each.
    on_dead_lettered: Callable[[Sequence[tuple[str, str, int, str]]], None] | None
    # Returns the (group, consumer) pairs of a stream that are connected without a blocked read.
    active_readers: Callable[[str], Collection[tuple[str, str]]]

    # --- commands

    async def execute(
        self, command: Command, *, synced: bool = False, until: asyncio.Future[None] | None = None
    ) -> Reply:
        """Run `command` and return its reply as soon as that may leave; with `synced` once it is on disk.

        A read with `block_ms` waits. Cancelled while it waits it takes nothing; `until`, once done, ends the
        wait as its time would. Raises EngineError.
        """

    async def transaction(
        self, commands: Sequence[Command], *, synced: bool = False
    ) -> list[Reply | EngineError]:
        """Run `commands` as one turn, in which nothing waits. A refusal stands in the place of its reply.

        Raises EngineError where the whole is refused, with nothing run.
        """

    def submit(self, commands: Sequence[Command], done: Done, *, synced: bool = False) -> None:
        """Run `commands` now, and call `done` once with the replies as soon as they may leave.

        A refusal of the whole is the only reply then. Raises nothing.
        """

    def read(
        self, command: XReadGroup, done: Done, until: asyncio.Future[None], *, going_on: bool = False
    ) -> None:
        """Run a group read that may wait, and call `done` with its one reply, never before this returns.

        `until`, once done, ends the wait. `going_on`: the reader has just been given something, so a read
        that finds nothing leaves no trace. Raises nothing.
        """

    def end_waits(self) -> None:
        """Answer every read that waits, now and from now on, with `draining`."""

    # --- state

    @property
    def durability(self) -> str:
        """What an answer promises: `fsync`, or `os` (handed to the operating system)."""

    @property
    def memory(self) -> Memory:
        """How much memory is used, and the limit."""

    @property
    def streams(self) -> int:
        """How many streams there are."""

    @property
    def waiting(self) -> int:
        """How many reads wait."""

    @property
    def rewriting(self) -> Rewriter:
        """The rewrite of the log: begin one, and how the last one ended."""

    def log_figures(self) -> LogFigures:
        """Sizes and state of the log."""

    # --- events

    def when_log_fails(self, callback: Callable[[str], None]) -> None:
        """Call `callback` once with the reason when writes have become impossible, at once if they are."""

    def when_full(self, callback: Callable[[str | None], None]) -> None:
        """Call `callback` with the reason when the disk begins to refuse writes, with None when it stops."""

    def when_faulty(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback` once with the error when a turn failed after it had changed something."""
