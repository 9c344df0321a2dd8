"""The engine at work: the only asyncio below the doors.

Knows: one turn after the other, whom to wake, and that nothing leaves before the log position it depends on
is safe.
Must never know: what any command means, where commands come from, frames.

    execute() → turn: change state, stage one frame, serve blocked reads → wait for the log → the answer
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Self

from engine import errors
from engine.clock import Clock
from engine.commands import Command, Maintain, XReadGroup
from engine.commands.execution import Blocked, Unfinished, block_group_read, is_ready
from engine.commands.planning import durable_queue
from engine.errors import EngineError
from engine.keyspace import CAPS_DEFAULT, Caps, Keyspace
from engine.log import Log, Recovery
from engine.log.leftovers import remove_leftovers
from engine.memory import Memory
from engine.replies import GroupRead, Reply
from engine.runtime.loading import Progress, no_progress, recover
from engine.runtime.packing import Packer
from engine.runtime.resident import resident_bytes
from engine.runtime.rewriting import GROWTH_DEFAULT, Growth, Rewriter, Rewritten
from engine.runtime.turns import TurnResult, Turns
from engine.runtime.unsynced import UnsyncedPositions
from engine.runtime.waits import WaitResult, Waits
from engine.runtime.writer import Fsync, LogFigures, Writer
from engine.storage import Storage
from engine.storage.file import FileStorage

_HOUSEKEEPING_INTERVAL_S: Final = 1.0

Done = Callable[[Sequence[Reply | EngineError]], None]


class Engine:
    """Streams in process, on a log. `open`, then on one event loop `start`, `execute` …, `close`.

    `async with` starts and closes it.
    """

    def __init__(
        self,
        storage: Storage,
        log: Log,
        keyspace: Keyspace,
        clock: Clock,
        fsync: Fsync,
        growth: Growth = GROWTH_DEFAULT,
    ) -> None:
        self.fsync: Fsync = fsync
        self.recovery: Recovery = log.recovery
        self._storage = storage
        # Files that only had the name of a file of the log, by the name that they have now.
        self.set_aside: Sequence[str] = ()
        self._keyspace = keyspace
        self._clock = clock
        self._writer = Writer(log, fsync)
        # Under `no` it is unknown when written bytes are on disk.
        self._unsynced = None if fsync == "no" else UnsyncedPositions()
        if self._unsynced is not None:
            keyspace.unsynced_from = self._unsynced.lowest
            self._writer.on_sync_begins = self._unsynced.begin_sync
            self._writer.on_synced = self._synced
        self._rewriter = Rewriter(keyspace, self._writer, clock, growth)
        self._packer = Packer(keyspace, clock)
        self._turns = Turns(keyspace, self._writer, clock, self._packer, self._unsynced)
        self._turns.on_broken = self._break_down
        self._waits = Waits(keyspace, self._turns, clock)
        # Returns the (group, consumer) pairs of a stream that are connected without a blocked read, so that
        # they are not expired as silent.
        self.active_readers: Callable[[str], Collection[tuple[str, str]]] = lambda _: ()
        self._housekeeping: asyncio.TimerHandle | None = None
        # The error of a turn that had already changed something, and the callback that gets it.
        self._fault: BaseException | None = None
        self._on_fault: Callable[[BaseException], None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._started_ms = 0

    @classmethod
    def open(
        cls,
        data: Path | Storage | None,
        *,
        clock: Clock,
        fsync: Fsync = "everysec",
        caps: Caps = CAPS_DEFAULT,
        growth: Growth = GROWTH_DEFAULT,
        on_progress: Progress = no_progress,
    ) -> "Engine":
        """Recover the log in directory `data` (None: in memory, for tests) and load it. Blocks. Calls
        `on_progress` now and then, in the calling thread.

        Raises what `Log.open` raises, and `LogRefusedError` for frames that make no sense together.
        """
        storage, log, keyspace = recover(data, caps, on_progress)
        keyspace.floor_ms = log.recovery.floor_ms
        engine = cls(storage, log, keyspace, clock, fsync, growth)
        # Until everything was read, nothing in the directory was known to be needless.
        engine.set_aside = remove_leftovers(storage, log.manifest)
        return engine

    async def start(self) -> None:
        """Begin the work that time brings: syncs, deadlines, forgetting."""
        self._started_ms = self._clock.wall_ms()
        self._writer.start()
        self._keep_maintaining()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all waits with `draining`, then write, sync and mark the log; after a fault let go of it."""
        if self._turns.shut is errors.restarting:
            await self.finish_turns()
            (await self.abandon()).unlock()
            return
        self._turns.shut = errors.closing
        self._cancel_timers()
        self.end_waits()
        await self._packer.close()
        await self._rewriter.close()
        try:
            await self._writer.close()
        finally:
            if isinstance(self._storage, FileStorage):
                self._storage.close()

    def _cancel_timers(self) -> None:
        self._waits.cancel_timer()
        if self._housekeeping is not None:
            self._housekeeping.cancel()

    def end_waits(self) -> None:
        """Answer all reads that wait, and those that would from now on, with `draining`. What was served
        already is answered as usual.
        """
        self._waits.end_all()

    async def rewrite(self) -> Rewritten:
        """Make the log as short as what is in memory, while everything goes on. Waits for the end of a
        rewrite that is under way. Raises RewriteFailedError, with nothing lost.
        """
        return await asyncio.shield(self._rewriter.begin())

    @property
    def rewriting(self) -> Rewriter:
        """Whether the log is being rewritten, and how the last time ended."""
        return self._rewriter

    @property
    def durability(self) -> str:
        """What an answer promises: `fsync`, or `os` (handed to the operating system)."""
        return "fsync" if self.fsync == "always" else "os"

    @property
    def waiting(self) -> int:
        """How many reads are blocked."""
        return len(self._waits)

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return len(self._keyspace.keys)

    def log_figures(self) -> LogFigures:
        """How the log is."""
        return self._writer.figures()

    @property
    def on_dead_lettered(self) -> Callable[[Sequence[tuple[str, str, int, str]]], None] | None:
        """Called after a turn that made dead letters: stream, group, ID and reason of each."""
        return self._turns.on_dead_lettered

    @on_dead_lettered.setter
    def on_dead_lettered(self, call: Callable[[Sequence[tuple[str, str, int, str]]], None] | None) -> None:
        self._turns.on_dead_lettered = call

    def when_log_fails(self, callback: Callable[[str], None]) -> None:
        """Tell once that the log has failed, and why: at once where it has. It is read-only then."""
        self._writer.call_when_failed(callback)

    def when_full(self, callback: Callable[[str | None], None]) -> None:
        """Tell why the disk has no room, each time that it begins to refuse writes; and None with the next
        write that it has room for.
        """
        self._writer.on_full = callback

    def when_faulty(self, callback: Callable[[BaseException], None]) -> None:
        """Tell once what went wrong in a turn that had changed something, at once where it has happened: then
        `finish_turns`, `abandon`, `free`, open another.
        """
        self._on_fault = callback
        if self._fault is not None:
            callback(self._fault)

    @property
    def memory(self) -> Memory:
        """How much of it is used, and whether there is room for more."""
        return self._keyspace.memory

    def check(self) -> None:
        """Assert that everything in memory agrees with itself."""
        self._keyspace.check()

    # --- commands -------------------------------------------------------------------------------------------

    async def execute(
        self, command: Command, *, synced: bool = False, until: asyncio.Future[None] | None = None
    ) -> Reply:
        """Run `command` and give its reply once that may leave; with `synced` once it is on disk.

        A read with `block_ms` waits. If it is cancelled while it is blocked, nothing is delivered. If it is
        cancelled later, while it waits for the log, the delivered entries stay pending. A caller that must
        not lose them uses `until`: once done, it ends the wait like a timeout.
        Raises EngineError.
        """
        if self._waits.serving.must_wait_behind((command,)):
            await self._waits.serving.wait_behind()
        ran = self._run((command,))
        reply: Reply | Blocked | Unfinished | EngineError = ran.replies[0]
        position = ran.position
        if isinstance(reply, Unfinished):
            reply, position = await self._further_turns(command, reply)
        if isinstance(reply, Blocked):
            reply, position = await self._waits.wait(reply, until)
        if synced or position > self._writer.safe_upto:
            await self._writer.safe(position, synced=synced)
        if isinstance(reply, EngineError):
            raise reply
        return reply

    async def transaction(
        self, commands: Sequence[Command], *, synced: bool = False
    ) -> list[Reply | EngineError]:
        """Run `commands` as one turn: nothing between them, one reading of the clock, one frame; nothing
        waits.

        A refusal stands in the place of its reply and does not end the transaction.
        """
        if self._waits.serving.must_wait_behind(commands):
            await self._waits.serving.wait_behind()
        ran = self._run(commands, together=True)
        if synced or ran.position > self._writer.safe_upto:
            await self._writer.safe(ran.position, synced=synced)
        return list(ran.replies)

    def submit(self, commands: Sequence[Command], done: Done, *, synced: bool = False) -> None:
        """The same by callback, without a task: the turn runs now, and `done` gets the replies once they may
        leave, at once where that is now. One command alone may take further turns, and is answered later.

        What refuses the whole is the only reply then: `storage_failed`, `storage_full`, `draining`,
        `restarting`, `internal`.
        """
        if self._waits.serving.must_wait_behind(commands):
            self._waits.serving.serve_all_groups()
        together = len(commands) != 1
        if not together:
            commands = (commands[0].to_nonblocking(),)
        # Behind them: one of their turns may have failed.
        try:
            ran = self._run(commands, together=together)
        except EngineError as refusal:
            done([refusal])
            return
        if not together and isinstance(first := ran.replies[0], Unfinished):
            later = asyncio.ensure_future(self._rest(commands[0], first, synced=synced))
            later.add_done_callback(lambda ended: None if ended.cancelled() else done([ended.result()]))
        elif self._writer.is_safe(ran.position, synced=synced):
            done(ran.replies)
        else:
            self._writer.answer(ran.position, ran.replies, done, synced=synced)

    def read(
        self, command: XReadGroup, done: Done, until: asyncio.Future[None], *, going_on: bool = False
    ) -> None:
        """The same for a read that may wait: `done` gets its one reply, later in any case. `until`, once
        done, ends the wait as its time would.

        `going_on` is for a reader that reads on when it has been given something: it was seen then, so there
        is nothing to log unless something more is there for it.
        """
        if self._waits.serving.must_wait_behind((command,)):
            let_in = asyncio.ensure_future(self._waits.serving.wait_behind())
            let_in.add_done_callback(lambda _: self._read(command, done, until, going_on=False))
        else:
            self._read(command, done, until, going_on=going_on)

    def _read(self, command: XReadGroup, done: Done, until: asyncio.Future[None], *, going_on: bool) -> None:
        reply: Reply | Blocked | Unfinished | EngineError
        position = 0
        try:
            self._turns.admit((command,))
            going_on = going_on and command.block_ms is not None
            reply = block_group_read(command) if going_on else GroupRead(())
            if not isinstance(reply, Blocked) or is_ready(self._keyspace, reply, self._clock.wall_ms()):
                ran = self._run((command,))
                reply, position = ran.replies[0], ran.position
            if isinstance(reply, Blocked):
                self._waits.call_when_served(reply, lambda served: self._answer(served, done), until)
                return
        except EngineError as refusal:
            reply = refusal
        except Exception as error:  # noqa: BLE001 - the reader gets an answer in any case
            reply = _unexpected("a read failed", error)
        assert not isinstance(reply, Unfinished), "reads take one turn"
        self._answer(WaitResult(reply, position), done)

    def _answer(self, served: WaitResult, done: Done) -> None:
        """Call back when the reply may leave, never before this turn is over."""
        if self._writer.is_safe(served.position):
            asyncio.get_running_loop().call_soon(done, [served.reply])
        else:
            self._writer.answer(served.position, [served.reply], done)

    def _run(
        self, commands: Sequence[Command], *, before: Unfinished | None = None, together: bool = False
    ) -> TurnResult:
        """Run a turn, and serve the reads that it wakes."""
        ran = self._turns.run(commands, so_far=None if before is None else before.so_far, together=together)
        self._waits.serving.serve(ran.turn.signalled, ran.turn.now_ms)
        return ran

    async def _further_turns(self, command: Command, reply: Unfinished) -> WaitResult:
        """Run what one turn was not enough for to its end, with others' turns between."""
        while True:
            await asyncio.sleep(0)
            ran = self._run((command,), before=reply)
            further: Reply | Blocked | Unfinished | EngineError = ran.replies[0]
            if not isinstance(further, Unfinished):
                assert not isinstance(further, Blocked), "reads take one turn"
                return WaitResult(further, ran.position)
            reply = further

    async def _rest(self, command: Command, reply: Unfinished, *, synced: bool) -> Reply | EngineError:
        """The same for a command by callback: its reply, once that may leave."""
        try:
            found, position = await self._further_turns(command, reply)
            await self._writer.safe(position, synced=synced)
            return found
        except EngineError as refusal:
            return refusal
        except Exception as error:  # noqa: BLE001 - the caller gets an answer in any case
            return _unexpected("a command in several turns failed", error)

    def _synced(self, durable_upto: int) -> None:
        """Serve the reads that wait for entries on disk."""
        assert self._unsynced is not None, "syncs are reported only when positions are tracked"
        grown = self._unsynced.note_synced(durable_upto)
        self._waits.serving.serve({durable_queue(stream): None for stream in grown}, self._clock.wall_ms())

    # --- housekeeping ---------------------------------------------------------------------------------------

    def _keep_maintaining(self) -> None:
        delay = _HOUSEKEEPING_INTERVAL_S
        self.memory.observe(resident_bytes())
        try:
            if (self._keyspace.maintained or self._keyspace.answers) and self._maintain():
                # A bounded turn each, with others' turns between.
                delay = 0.0
            elif self._keyspace.free_some():
                delay = 0.0
        finally:
            if self._turns.shut is None:
                self._housekeeping = asyncio.get_running_loop().call_later(delay, self._keep_maintaining)
        self._rewriter.begin_if_due()
        self._packer.begin()

    def _maintain(self) -> bool:
        """Do what time has brought; whether there is more of it."""
        command = Maintain(waiting=self._readers, since_ms=self._started_ms)
        return self._waits.run_unasked(command) is True

    def _readers(self, stream: str) -> Collection[tuple[str, str]]:
        """Which (group, consumer) wait for entries of the stream, or for room for them."""
        return {*self._waits.readers(stream), *self.active_readers(stream)}

    # --- a fault --------------------------------------------------------------------------------------------

    def _break_down(self, fault: BaseException) -> None:
        """A turn has failed half-way: look at nothing any more."""
        self._waits.serving.stop()
        self._rewriter.stop()
        self._cancel_timers()
        # Behind the turn, which may be one of many that are run again right now.
        self._finishing = asyncio.ensure_future(self._finish_turns())
        self._fault = fault
        if self._on_fault is not None:
            self._on_fault(fault)

    async def _finish_turns(self) -> None:
        await self._writer.finish_turns()
        self._waits.refuse_all(errors.restarting)

    async def finish_turns(self) -> None:
        """After a fault: wait until the answers of whole turns have left, as safe as they have to be, and all
        others that were waited for are refused.
        """
        assert self._finishing is not None, "there was a fault"
        await self._finishing

    async def abandon(self) -> Storage:
        """Then: wait for all threads, and let go of the files as a crash would. The directory stays locked,
        for `Engine.open`.
        """
        await self._packer.close()
        await self._rewriter.close()
        await self._writer.abandon()
        return self._storage

    async def free(self) -> None:
        """Then: free what is in memory, before as much is read again."""
        await asyncio.to_thread(self._keyspace.free_all)


def _unexpected(message: str, error: Exception) -> EngineError:
    """Report the exception; return the refusal that the caller gets."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
    return errors.internal()
