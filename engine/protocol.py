"""What the gateway uses of an engine: the only interface between `app` and the streams.

Knows: how commands are run, when their replies may leave, and what an engine reports of itself.
Must never know: how it is done. `engine.runtime.Engine` keeps the streams in this process; an engine that
sends the same commands to a server implements the same members.

    five ways in, one way to run:   execute      awaits one reply, and may wait for entries
                                    transaction  awaits the replies of several commands, in one turn
                                    submit       the same by callback, without a task
                                    submit_each  each by itself, one write of the log for all
                                    read         a read by callback, which may wait for entries
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from engine.commands import BlockingCommand, Command
from engine.errors import EngineError
from engine.histogram import Histogram
from engine.memory import Memory
from engine.quotas import Quota
from engine.read_handle import Done, ReadHandle
from engine.replies import Reply
from engine.runtime import Fsync, LogFigures, Rewritten


class CommandEngine(Protocol):
    """Runs commands on streams, groups and what is pending. All members belong to one event loop."""

    async def execute(
        self,
        command: Command,
        *,
        synced: bool = False,
        quotas: Sequence[Quota] = (),
        on_run: Done | None = None,
    ) -> Reply:
        """Run `command` and return its reply as soon as that may leave; with `synced` once it is on disk.

        A read with `block_ms` waits, as `read` does; cancelled, it takes nothing. `quotas` are those of the
        caller: `quota_exceeded` leaves everything as it is. Where the reply is known before it may leave,
        `on_run` gets it at once. Raises EngineError.
        """

    async def transaction(
        self, commands: Sequence[Command], *, synced: bool = False, quotas: Sequence[Quota] = ()
    ) -> list[Reply | EngineError]:
        """Run `commands` as one turn, in which nothing waits. A refusal stands in the place of its reply.
        A guard that answers False is the last that runs.

        Raises EngineError where the whole is refused, with nothing run.
        """

    def submit(
        self,
        commands: Sequence[Command],
        done: Done,
        *,
        synced: bool = False,
        quotas: Sequence[Quota] = (),
        on_run: Done | None = None,
    ) -> None:
        """Run `commands` now, and call `done` once with the replies as soon as they may leave.

        A refusal of the whole is the only reply then. Where replies are known before they may leave, `on_run`
        gets them at once. Raises nothing.
        """

    def submit_each(
        self,
        commands: Sequence[Command],
        done: Done,
        quotas: Sequence[Quota] = (),
        on_run: Done | None = None,
    ) -> None:
        """Run commands one after the other, each as if alone, none of them waiting, and call `done` once with
        their replies as soon as all may leave. `on_run` as above. Raises nothing.
        """

    def read(
        self, command: BlockingCommand, done: Done, *, synced: bool = False, going_on: bool = False
    ) -> ReadHandle:
        """Run a read that may wait, and call `done` with its one reply, never before this returns. What is
        returned ends it early, at once. Raises nothing.

        `going_on`: the reader of a group has just been given something, so a read that finds nothing leaves
        no trace.
        """

    @property
    def durability(self) -> str:
        """What an answer promises: `fsync`, or `os` (handed to the operating system); of a backend `memory`,
        `replicated:N` or `fsync:N`.
        """

    @property
    def delivery_durability(self) -> str:
        """The same for the answer to a group's read."""


class Rewriting(Protocol):
    """The rewrite of a log: `begin` one, whether one is under way, and how the last one ended."""

    # Called with why a rewrite has failed, and in how many seconds the next one is tried.
    on_failed: Callable[[str, float], None] | None

    @property
    def running(self) -> bool:
        """Whether a rewrite is under way."""

    @property
    def last(self) -> Rewritten | None:
        """What the last one did, None if it failed or there was none."""

    @property
    def failure(self) -> str | None:
        """Why the last one failed."""

    def begin(self) -> object:
        """Begin one; the one that is under way, if there is one."""


class EngineProtocol(CommandEngine, Protocol):
    """The whole engine: beside running commands, its own state, and what it reports."""

    # What the log promises, as set at start.
    fsync: Fsync
    # Called after each turn that made dead letters: stream, group, ID and reason of each.
    on_dead_lettered: Callable[[Sequence[tuple[str, str, int, str]]], None] | None
    # Called when entries could not become dead letters: stream, group, dead-letter stream and why, of each.
    on_letters_refused: Callable[[Sequence[tuple[str, str, str, str]]], None] | None
    # Called with the commands of a turn that took longer than 10 ms, and its seconds.
    on_slow: Callable[[Sequence[Command], float], None] | None
    # Called with what a turn changed, as soon as that may be seen, in the order of the turns: pairs of event
    # and stream, the events as Redis names them for keyspace notifications. None while no caller subscribes:
    # then nothing is noted, and it costs nothing.
    #   new, xadd, xtrim, xdel, xsetid, xgroup-create, xgroup-setid, xgroup-destroy, xgroup-createconsumer,
    #   xgroup-delconsumer, del, expire, persist, expired, rename_from, rename_to, copy_to, restore
    on_events: Callable[[Sequence[tuple[str, str]]], None] | None
    # Returns the (group, consumer) pairs of a stream that are connected without a blocked read.
    active_readers: Callable[[str], Collection[tuple[str, str]]]

    def end_waits(self) -> None:
        """Answer every read that waits, now and from now on, with `draining`."""

    # --- state

    @property
    def memory(self) -> Memory:
        """How much memory is used, and the limit."""

    @property
    def streams(self) -> int:
        """How many streams there are."""

    @property
    def expiring_streams(self) -> int:
        """How many of them have a lifetime."""

    @property
    def mean_expiry_ms(self) -> int:
        """The mean of the times (wall clock) at which they expire, 0 if none does."""

    @property
    def waiting(self) -> int:
        """How many reads wait."""

    @property
    def appended(self) -> int:
        """How many entries were appended since it was opened."""

    @property
    def sync_seconds(self) -> Histogram:
        """How long syncs of the log have taken, in seconds."""

    @property
    def rewriting(self) -> Rewriting:
        """The rewrite of the log."""

    @property
    def outage(self) -> str | None:
        """Why it has answered nothing for a while, None while it answers."""

    @property
    def backend(self) -> str:
        """What runs the commands, for people: `embedded`, or the server's name and version."""

    @property
    def missing(self) -> Sequence[str]:
        """What clients cannot have of it, a few words each."""

    def log_figures(self) -> LogFigures | None:
        """Sizes and state of the log, None where a server has it."""

    # --- events

    def when_log_fails(self, callback: Callable[[str], None]) -> None:
        """Call `callback` once with the reason when writes have become impossible, at once if they are."""

    def when_full(self, callback: Callable[[str | None], None]) -> None:
        """Call `callback` with the reason when the disk begins to refuse writes, with None when it stops."""

    def when_slow(self, callback: Callable[[float | None], None]) -> None:
        """Call `callback` with the seconds of each sync while they are slow, with None when they are not."""

    def when_faulty(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback` once with the error when a turn failed after it had changed something."""
