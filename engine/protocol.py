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
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from engine import errors
from engine.commands.base import Command
from engine.errors import EngineError
from engine.histogram import Histogram
from engine.log_figures import Fsync, LogFigures, Rewrites
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


class CommandEngine(Protocol):
    """Runs commands on streams, groups and what is pending. All members belong to one event loop."""

    @property
    def durability(self) -> str:
        """What an answer promises: `fsync`, or `os` (handed to the operating system); of a backend `memory`,
        `replicated:N` or `fsync:N`.
        """

    @property
    def delivery_durability(self) -> str:
        """As above, for the answer to a read of a group."""

    def send(self, call: Call, done: Done) -> Replies | None:
        """Run the commands now. Returns the replies if they may leave now; otherwise None, and `done` gets
        them later, never before this returns.

        A refusal of the whole is `Refused`; under EACH it stands in each place. Raises nothing: what was not
        expected is `internal`, and logged with the call's origin. A call with a handle is never answered at
        once; cancelled, it takes nothing.
        """


async def ask(engine: CommandEngine, call: Call) -> Replies:
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


async def ask_one(engine: CommandEngine, call: Call) -> Reply:
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


def _ignore(*_: object) -> None:
    """Do nothing: no caller wants to hear of it."""


class Events(msgspec.Struct, kw_only=True, eq=False):
    """What an engine calls when something has happened, on its event loop; each is to be set."""

    # After a turn that made dead letters: stream, group, ID and reason of each.
    dead_lettered: Callable[[Sequence[tuple[str, str, int, str]]], object] = _ignore
    # After one in which entries could not become dead letters: stream, group, dead-letter stream and why, of
    # each.
    letters_refused: Callable[[Sequence[tuple[str, str, str, str]]], object] = _ignore
    # After one in which entries were too old to be delivered: stream, group and how many.
    expired: Callable[[Sequence[tuple[str, str, int]]], object] = _ignore
    # The commands of a turn that took longer than 10 ms, and its seconds.
    slow_turn: Callable[[Sequence[Command], float], object] = _ignore
    # What a turn changed, as soon as that may be seen, in the order of the turns: pairs of event and stream,
    # the events as Redis names them for keyspace notifications. None while no caller subscribes: then nothing
    # is noted, and it costs nothing.
    #   new, xadd, xtrim, xdel, xsetid, xgroup-create, xgroup-setid, xgroup-destroy, xgroup-createconsumer,
    #   xgroup-delconsumer, del, expire, persist, expired, rename_from, rename_to, copy_to, restore
    changed: Callable[[Sequence[tuple[str, str]]], object] | None = None
    # Once with the reason, when writes have become impossible: the log's figures have it from then on.
    log_failed: Callable[[str], object] = _ignore
    # The reason when the disk begins to refuse writes, None when the whole reserve has room again.
    disk_full: Callable[[str | None], object] = _ignore
    # The seconds of each sync while they are slow, None when they are not any more.
    disk_slow: Callable[[float | None], object] = _ignore
    # File, offset and reason when a part of a stream cannot be read from the disk.
    damaged: Callable[[str], object] = _ignore
    # The reason when cold entries could not be stored on the disk: they stay in memory.
    storing_failed: Callable[[str], object] = _ignore
    # Why a rewrite has failed, and in how many seconds the next one is tried.
    rewrite_failed: Callable[[str, float], object] = _ignore
    # Once with the error of a turn that failed after it had changed something; `fault` has it from then on.
    faulty: Callable[[BaseException], object] = _ignore
    fault: BaseException | None = None
    # It asks for the (group, consumer) pairs of a stream that are connected without a blocked read, so that
    # they are not expired as silent.
    active_readers: Callable[[str], Collection[tuple[str, str]]] = lambda _: ()


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine counts of itself and says of its state, at one moment."""

    streams: int
    # How many of them have a lifetime, and the mean of the times (wall clock) at which they expire, or 0.
    expiring_streams: int
    mean_expiry_ms: int
    # How many of them have ended, and how many names removed streams keep, because they have forks.
    closed_streams: int | None = None
    hidden_streams: int | None = None
    # Entries that are scheduled, and for how many seconds the first one has been due that is not appended.
    schedules: int
    schedules_late_s: float
    # Schedules that have gone with streams that ended, and entries appended, since it was opened.
    schedules_dropped: int
    appended: int
    # Reads that wait.
    waiting: int
    # Of its log: the policy of syncs, sizes and state, how long syncs have taken, rewrites. None, and without
    # any, where a server has it.
    fsync: Fsync | None = None
    log: LogFigures | None = None
    sync_seconds: Histogram = msgspec.field(default_factory=partial(Histogram, ()))
    rewrites: Rewrites = Rewrites()
    # Why it has answered nothing for a while, None while it answers.
    outage: str | None = None
    # What runs the commands, for people: `embedded`, or the server's name and version; and what clients
    # cannot have of it, a few words each.
    backend: str = "embedded"
    missing: Sequence[str] = ()


class EngineProtocol(CommandEngine, Protocol):
    """The whole engine: beside running commands, its own state, and what it reports."""

    @property
    def events(self) -> Events:
        """What it calls when something has happened."""

    @property
    def memory(self) -> Memory:
        """How much memory is used, and the limit."""

    def figures(self) -> Figures:
        """What it counts and says of itself now."""

    def begin_rewrite(self) -> object:
        """Begin to rewrite the log; one that is under way is followed by another. Raises EngineError."""

    def end_waits(self) -> None:
        """Answer every read that waits, now and from now on, with `draining`."""
