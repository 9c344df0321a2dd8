"""What the gateway uses of an engine: the only interface between `app` and the streams.

Knows: what a call says, when its replies may leave, and what an engine reports of itself.
Must never know: how it is done. `engine.runtime.Engine` keeps the streams in this process; an engine that
sends the same commands to a server implements the same members.

One way in. The replies are returned if they may leave now; otherwise `done` gets them later:

    replies = engine.send(Call(commands, How.EACH, origin=request_id), done)
    if replies is not None:
        done(replies)

In a coroutine `reply = await ask_one(engine, Call([command]))`, or `replies = await ask(engine, call)`.

A read that may wait comes with the handle that ends it early, and is always answered by `done`:

    handle = ReadHandle()
    engine.send(Call([read], waits=handle), done)
    handle.cancel()
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import msgspec

from engine import errors
from engine.commands.base import Command
from engine.errors import EngineError
from engine.histogram import Histogram
from engine.log_figures import Fsync, LogFigures, Rewritten
from engine.memory import Memory
from engine.quotas import Quota
from engine.read_handle import Done, ReadHandle, Refused, Replies
from engine.replies import Reply


class How(IntEnum):
    """How the commands of a call run."""

    # One command, which may take several turns; it does not wait, unless the call has a handle.
    ALONE = 0
    # In one turn, in which nothing waits, refused where it is too large. A refusal stands in the place of its
    # reply; a guard that answers False is the last that runs. One command so is not the same as alone.
    TOGETHER = 1
    # One after the other, each as if alone, none of them waiting: one write of the log for all.
    EACH = 2


class Reader(NamedTuple):
    """Whose read may go on where the stream has no entries any more, in its archive. One that `follows` waits
    for its turn there; others are refused.
    """

    caller: str
    follows: bool = False


class Call(msgspec.Struct, frozen=True):
    """What is asked of an engine."""

    commands: Sequence[Command]
    how: How = How.ALONE
    # Of one command that reads: it waits for `block_ms`, and this ends the wait.
    waits: ReadHandle | None = None
    # Whether the replies leave once they are on disk, under every policy.
    synced: bool = False
    # Those of the caller: `quota_exceeded` leaves everything as it is.
    quotas: Sequence[Quota] = ()
    # The reader of a group has just been given something, so a read that finds nothing leaves no trace.
    going_on: bool = False
    # Whose it is, in the log of a fault: mostly the ID of a request.
    origin: str = ""
    # Where replies are known before they may leave, this gets them at once.
    on_run: Done | None = None
    # None: what the stream does not have is not looked for elsewhere.
    reader: Reader | None = None
    # Whose it is, for what each caller may have a part of; empty: none's.
    caller: str = ""

    def refused(self, error: EngineError) -> Replies:
        """A refusal of the whole, as its replies."""
        return [error] * len(self.commands) if self.how is How.EACH else Refused(error)


class Sends(Protocol):
    """What runs calls."""

    def send(self, call: Call, done: Done) -> Replies | None:
        """Run the commands now. Returns the replies if they may leave now; otherwise None, and `done` gets
        them later, never before this returns.

        A refusal of the whole is `Refused`; under EACH it stands in each place. Raises nothing: what was not
        expected is `internal`, and logged with the call's origin. A call with a handle is never answered at
        once; cancelled, it takes nothing.
        """


async def ask(engine: Sends, call: Call) -> Replies:
    """The replies of a call. Cancelled, a read that waits takes nothing. Raises EngineError: a refusal of the
    whole.
    """
    later: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
    replies = engine.send(call, lambda found: None if later.done() else later.set_result(found))
    if replies is None:
        try:
            replies = await later
        except asyncio.CancelledError:
            if call.waits is not None:
                call.waits.cancel()
            raise
    if isinstance(replies, Refused):
        raise replies.error
    return replies


async def ask_one(engine: Sends, call: Call) -> Reply:
    """The reply of a call of one command. Raises EngineError."""
    (reply,) = await ask(engine, call)
    if isinstance(reply, EngineError):
        raise reply
    return reply


def unexpected(origin: str, error: Exception) -> EngineError:
    """Report the exception that a call met; return the refusal that its caller gets."""
    context = {"message": "a call failed", "exception": error, "origin": origin}
    asyncio.get_running_loop().call_exception_handler(context)
    return errors.internal()


class CommandEngine(Sends, Protocol):
    """Runs commands on streams, groups and what is pending. All members belong to one event loop."""

    @property
    def durability(self) -> str:
        """What an answer promises: `fsync`, or `os` (handed to the operating system); of a backend `memory`,
        `replicated:N` or `fsync:N`.
        """

    @property
    def delivery_durability(self) -> str:
        """The same for the answer to a group's read."""


class EngineProxy:
    """Stands in front of an engine, and promises what that does."""

    def __init__(self, engine: CommandEngine) -> None:
        self._engine = engine

    @property
    def durability(self) -> str:
        """What an answer promises."""
        return self._engine.durability

    @property
    def delivery_durability(self) -> str:
        """The same for the answer to a group's read."""
        return self._engine.delivery_durability


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
    # Called after a turn in which entries were too old to be delivered: stream, group and how many.
    on_expired: Callable[[Sequence[tuple[str, str, int]]], None] | None
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
    def closed_streams(self) -> int | None:
        """How many of them have ended; None where a server has them."""

    @property
    def hidden_streams(self) -> int | None:
        """How many names removed streams keep, because they have forks; None where a server has them."""

    @property
    def mean_expiry_ms(self) -> int:
        """The mean of the times (wall clock) at which they expire, 0 if none does."""

    @property
    def schedules(self) -> int:
        """How many entries are scheduled."""

    @property
    def schedules_late_s(self) -> float:
        """For how many seconds the first entry has been due that is not appended yet; 0 if there is none."""

    @property
    def schedules_dropped(self) -> int:
        """How many schedules have gone with streams that ended, since it was opened."""

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

    def when_damaged(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with file, offset and reason when a part of a stream cannot be read from the
        disk.
        """

    def when_storing_fails(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the reason when cold entries could not be stored on the disk."""

    def when_faulty(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback` once with the error when a turn failed after it had changed something."""
