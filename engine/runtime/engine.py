"""The engine at work: the only asyncio below the doors.

Knows: one turn after the other, whom to wake, and that nothing leaves before the log position it depends on
is safe.
Must never know: what any command means, where commands come from, frames.

    execute() → turn: change state, stage one frame, serve parked reads → wait for the log → the answer
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self

from engine import errors
from engine.clock import Clock
from engine.commands.base import BlockingCommand, Command
from engine.commands.execution import (
    DirtyTurnError,
    Parked,
    Turn,
    Unfinished,
    check_memory,
    execute,
    execute_all,
    give_up,
    is_ready,
    parked_read,
    retry_at_ms,
)
from engine.commands.own import EndWait, KeepHouse
from engine.commands.planning import durable_queue
from engine.commands.types import XReadGroup
from engine.errors import EngineError
from engine.keyspace import Caps, Keyspace, caps_default
from engine.log import Log, Recovery
from engine.log.leftovers import remove_leftovers
from engine.memory import Memory
from engine.records import encode
from engine.replies import GroupRead, Reply
from engine.runtime.loading import Tell, pack_texts_min, recovered, untold
from engine.runtime.packing import Packer
from engine.runtime.resident import resident_bytes
from engine.runtime.rewriting import Growth, Rewriter, Rewritten, growth_default
from engine.runtime.serving import Serving, answered_at_once_max
from engine.runtime.touched import Touched
from engine.runtime.volatile import Volatile
from engine.runtime.writer import Fsync, LogFigures, Writer
from engine.storage import Storage
from engine.storage.file import FileStorage
from engine.waiters import Lane, Waiter, Waiters

waiters_max: Final = 20_000
housekeeping_interval_s: Final = 1.0
# A frame's bytes beyond those of its entries; commands that log more (a claim of thousands) draw on the
# reserve.
_frame_overhead_bytes: Final = 64 << 10


class _Served(NamedTuple):
    """What a read found, and the log position on which that depends."""

    reply: Reply | EngineError
    position: int


_Ticket = Callable[[_Served], None]
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
        growth: Growth = growth_default,
    ) -> None:
        self.fsync: Fsync = fsync
        self.recovery: Recovery = log.recovery
        self._storage = storage
        # Files that only had the name of a file of the log, by the name that they have now.
        self.set_aside: Sequence[str] = ()
        self._keyspace = keyspace
        self._clock = clock
        self._writer = Writer(log, fsync)
        # Under `no` nobody tells when what was written is on disk.
        self._volatile = None if fsync == "no" else Volatile()
        if self._volatile is not None:
            keyspace.volatile_from = self._volatile.lowest
            self._writer.on_sync_begins = self._volatile.sync_begins
            self._writer.on_synced = self._synced
        self._rewriter = Rewriter(keyspace, self._writer, clock, growth)
        self._waiters: Waiters[_Ticket] = Waiters()
        self._serving = Serving(keyspace, self._waiters, clock, self._run_again, self._served)
        self._touched = Touched()
        # Told of each turn's dead letters: stream, group, ID and reason.
        self.on_buried: Callable[[Sequence[tuple[str, str, int, str]]], None] | None = None
        # Tells which (group, consumer) of a stream somebody reads as who has no read parked: none of them is
        # silent.
        self.attended: Callable[[str], Collection[tuple[str, str]]] = lambda _: ()
        self._deadline: asyncio.TimerHandle | None = None
        self._deadline_at: float | None = None
        self._housekeeping: asyncio.TimerHandle | None = None
        self._packer = Packer(keyspace, clock)
        # The refusal of all commands, once there is one.
        self._shut: Callable[[], EngineError] | None = None
        # What went wrong in a turn that had changed something, and who is told.
        self._fault: BaseException | None = None
        self._tell_fault: Callable[[BaseException], None] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._ending = False
        self._started_ms = 0
        # Whether a call of `_free` is scheduled.
        self._freeing = False

    @classmethod
    def open(
        cls,
        data: Path | Storage | None,
        *,
        clock: Clock,
        fsync: Fsync = "everysec",
        caps: Caps = caps_default,
        growth: Growth = growth_default,
        tell: Tell = untold,
    ) -> "Engine":
        """Recover the log in directory `data` (None: in memory, for tests) and load it. Blocks. `tell` hears
        now and then, in the calling thread, how far it is.

        Raises what `Log.open` raises, and `LogRefused` for frames that make no sense together.
        """
        storage, log, keyspace = recovered(data, caps, tell)
        keyspace.floor_ms = log.recovery.floor_ms
        engine = cls(storage, log, keyspace, clock, fsync, growth)
        # Until everything was read, nothing in the directory was known to be needless.
        engine.set_aside = remove_leftovers(storage, log.manifest)
        return engine

    async def start(self) -> None:
        """Begin the work that time brings: syncs, deadlines, forgetting."""
        self._started_ms = self._clock.wall_ms()
        self._writer.start()
        self._keep_house()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all waits with `draining`, then write, sync and mark the log; after a fault let go of it."""
        if self._shut is errors.restarting:
            await self.finish_turns()
            (await self.abandon()).unlock()
            return
        self._shut = errors.closing
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
        for timer in filter(None, (self._deadline, self._housekeeping)):
            timer.cancel()

    def end_waits(self) -> None:
        """Answer all reads that wait, and those that would from now on, with `draining`. What was served
        already is answered as usual.
        """
        self._serving.answer_all_plain()
        self._ending = True
        for waiter in self._waiters.everyone():
            self._answer(waiter, errors.closing(), 0)
            self._end_wait(waiter.parked.command)

    async def rewrite(self) -> Rewritten:
        """Make the log as short as what is in memory, while everything goes on. Raises RewriteFailed, with
        nothing lost. If a rewrite is under way its end is waited for.
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
        """How many reads are parked."""
        return len(self._waiters)

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return len(self._keyspace.keys)

    def log_figures(self) -> LogFigures:
        """How the log is."""
        return self._writer.figures()

    def when_log_fails(self, tell: Callable[[str], None]) -> None:
        """Tell once that the log has failed, and why: at once where it has. It is read-only then."""
        self._writer.tell_failure(tell)

    def when_full(self, tell: Callable[[str | None], None]) -> None:
        """Tell why the disk has no room, each time that it begins to refuse writes; and None with the next
        write that it has room for.
        """
        self._writer.on_full = tell

    def when_faulty(self, tell: Callable[[BaseException], None]) -> None:
        """Tell once what went wrong in a turn that had changed something, at once where it has happened: then
        `finish_turns`, `abandon`, `free`, open another.
        """
        self._tell_fault = tell
        if self._fault is not None:
            tell(self._fault)

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

        A read with `block_ms` waits. Cancelled while it is parked it receives nothing, and nothing is
        delivered to it; once it was served, and only waits for the log, what it was given stays pending.
        `until`, once done, ends a wait as its time would: who cannot afford to miss what was given uses that.
        Raises EngineError.
        """
        if self._serving.must_come_behind((command,)):
            await self._serving.come_behind()
        reply, position = self._turn(command)
        if isinstance(reply, Unfinished):
            reply, position = await self._further_turns(command, reply)
        if isinstance(reply, Parked):
            reply, position = await self._wait(reply, until)
        if synced or position > self._writer.safe_upto:
            await self._writer.safe(position, synced=synced)
        if isinstance(reply, EngineError):
            raise reply
        return reply

    def _turn(
        self, command: Command, before: Unfinished | None = None
    ) -> tuple[Reply | Parked | Unfinished | EngineError, int]:
        """Run a command in a turn of its own; the log position on which the reply depends."""
        now_ms = self._clock.wall_ms()
        self._admit((command,))
        start = self._writer.staged_upto
        try:
            outcome = execute(self._keyspace, command, now_ms, None if before is None else before.so_far)
            # A frame of its own is the last that touched its streams: the answer depends on nothing later.
            return outcome.reply, self._commit(outcome.turn, start) or self._depends_on(command)
        except DirtyTurnError as error:
            raise self._break_down(error) from None

    async def _further_turns(self, command: Command, reply: Unfinished) -> tuple[Reply | EngineError, int]:
        """Run what one turn was not enough for to its end, with others' turns between."""
        while True:
            await asyncio.sleep(0)
            further, position = self._turn(command, reply)
            if not isinstance(further, Unfinished):
                assert not isinstance(further, Parked), "reads take one turn"
                return further, position
            reply = further

    async def _rest(self, command: Command, reply: Unfinished, *, synced: bool) -> Reply | EngineError:
        """The same for a command by callback: its reply, once that may leave."""
        try:
            found, position = await self._further_turns(command, reply)
            await self._writer.safe(position, synced=synced)
            return found
        except EngineError as refusal:
            return refusal
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asked is answered
            return _unexpected("a command in several turns failed", error)

    async def transaction(
        self, commands: Sequence[Command], *, synced: bool = False
    ) -> list[Reply | EngineError]:
        """Run `commands` as one turn: nothing between them, one reading of the clock, one frame; nothing
        waits.

        A refusal stands in the place of its reply and does not end the transaction.
        """
        if self._serving.must_come_behind(commands):
            await self._serving.come_behind()
        replies, position = self._turn_of_all(commands)
        if synced or position > self._writer.safe_upto:
            await self._writer.safe(position, synced=synced)
        return replies

    def _turn_of_all(self, commands: Sequence[Command]) -> tuple[list[Reply | EngineError], int]:
        """Run commands in one turn; the log position on which the replies depend."""
        self._admit(commands)
        start = self._writer.staged_upto
        try:
            replies, turn = execute_all(self._keyspace, commands, self._clock.wall_ms())
            return replies, self._commit(turn, start) or max(map(self._depends_on, commands), default=0)
        except DirtyTurnError as error:
            raise self._break_down(error) from None

    def submit(self, commands: Sequence[Command], done: Done, *, synced: bool = False) -> None:
        """The same by callback, without a task: the turn runs now, and `done` gets the replies once they may
        leave, at once where that is now. One command alone may take further turns, and is answered later.

        What refuses the whole is the only reply then: `storage_failed`, `storage_full`, `draining`,
        `restarting`, `internal`.
        """
        if self._serving.must_come_behind(commands):
            self._serving.serve_all_groups()
        # Behind them: one of their turns may have failed.
        try:
            if len(commands) == 1:
                reply, position = self._turn(commands[0].unblocked())
                if isinstance(reply, Unfinished):
                    later = asyncio.ensure_future(self._rest(commands[0], reply, synced=synced))
                    later.add_done_callback(
                        lambda ended: None if ended.cancelled() else done([ended.result()])
                    )
                    return
                assert not isinstance(reply, Parked), "it does not wait"
                replies = [reply]
            else:
                replies, position = self._turn_of_all(commands)
        except EngineError as refusal:
            done([refusal])
            return
        if self._writer.is_safe(position, synced=synced):
            done(replies)
        else:
            self._writer.tell(position, replies, done, synced=synced)

    def read(
        self, command: XReadGroup, done: Done, until: asyncio.Future[None], *, going_on: bool = False
    ) -> None:
        """The same for a read that may wait: `done` gets its one reply, later in any case. `until`, once
        done, ends the wait as its time would.

        `going_on` is for a reader that reads on when it has been given something: it was seen then, so there
        is nothing to log unless something more is there for it.
        """
        if self._serving.must_come_behind((command,)):
            let_in = asyncio.ensure_future(self._serving.come_behind())
            let_in.add_done_callback(lambda _: self._read(command, done, until, going_on=False))
        else:
            self._read(command, done, until, going_on=going_on)

    def _read(self, command: XReadGroup, done: Done, until: asyncio.Future[None], *, going_on: bool) -> None:
        now_ms, position = self._clock.wall_ms(), 0
        reply: Reply | Parked | EngineError
        try:
            self._admit((command,))
            going_on = going_on and command.block_ms is not None
            reply = parked_read(command) if going_on else GroupRead(())
            if not isinstance(reply, Parked) or is_ready(self._keyspace, reply, now_ms):
                start = self._writer.staged_upto
                outcome = execute(self._keyspace, command, now_ms)
                position = self._commit(outcome.turn, start) or self._depends_on(command)
                assert not isinstance(outcome.reply, Unfinished), "reads take one turn"
                reply = outcome.reply
            if isinstance(reply, Parked):
                self._check_may_wait()
                self._wait_for(reply, done, until)
                return
        except EngineError as refusal:
            reply = refusal
        except DirtyTurnError as error:
            reply = self._break_down(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever reads is answered
            reply = _unexpected("a read failed", error)
        self._tell(_Served(reply, position), done)

    def _wait_for(self, reply: Parked, done: Done, until: asyncio.Future[None]) -> None:
        def ticket(served: _Served) -> None:
            until.remove_done_callback(end)
            self._tell(served, done)

        waiter: Waiter[_Ticket] = Waiter(reply, ticket, self._clock.monotonic() + reply.block_ms / 1000)
        end = partial(self._end_early, waiter)
        self._park(waiter)
        self._set_deadline()
        until.add_done_callback(end)

    def _tell(self, served: _Served, done: Done) -> None:
        """Call back when the reply may leave, never before this turn is over."""
        if self._writer.is_safe(served.position):
            asyncio.get_running_loop().call_soon(done, [served.reply])
        else:
            self._writer.tell(served.position, [served.reply], done)

    def _admit(self, commands: Sequence[Command]) -> None:
        """Refuse what has no room in the log, or comes too late, before anything changes."""
        if self._shut is not None:
            raise self._shut()
        check_memory(self._keyspace, commands)
        wanted = [command.entry_bytes() for command in commands if command.changes]
        if wanted:
            self._writer.ensure_room(2 * sum(wanted) + _frame_overhead_bytes)

    def _commit(self, turn: Turn, start: int) -> int:
        """Stage the turn's frame and serve the readers it woke; the frame's position, 0 without one."""
        position = self._stage(turn, start)
        self._serving.serve(turn.signalled, turn.now_ms)
        return position

    def _stage(self, turn: Turn, start: int) -> int:
        if not turn.records:
            return 0
        try:
            position = self._writer.stage(encode(turn.records))
        except Exception as error:
            raise DirtyTurnError from error
        if self._volatile is not None:
            self._volatile.staged(turn.records, position)
        if turn.buried and self.on_buried is not None:
            self.on_buried(turn.buried)
        self._touched.note(turn.records, position)
        if turn.auto_ms >= 0:
            self._writer.reserve(turn.auto_ms, turn.now_ms, start)
        if self._touched.are_many:
            self._touched.forget(self._writer.safe_upto)
        self._packer.begin(texts_min=pack_texts_min)
        if self._keyspace.garbage and not self._freeing:
            self._freeing = True
            asyncio.get_running_loop().call_soon(self._free)
        return position

    def _free(self) -> None:
        """Free what was removed, a part in each turn of the loop: only then is there room for more."""
        self._freeing = self._shut is None and self._keyspace.free_some()
        if self._freeing:
            asyncio.get_running_loop().call_soon(self._free)

    def _synced(self, durable_upto: int) -> None:
        """Serve those who wait for what is on disk."""
        assert self._volatile is not None, "it is told of syncs where it counts on them"
        grown = self._volatile.synced(durable_upto)
        self._serving.serve({durable_queue(stream): None for stream in grown}, self._clock.wall_ms())

    def _depends_on(self, command: Command) -> int:
        """The position of the last frame that the command's answer may show."""
        return self._touched.upto(command.depends_on())

    # --- parked reads ---------------------------------------------------------------------------------------

    async def _wait(self, parked: Parked, until: asyncio.Future[None] | None) -> _Served:
        self._check_may_wait()
        served: asyncio.Future[_Served] = asyncio.get_running_loop().create_future()
        deadline = self._clock.monotonic() + parked.block_ms / 1000
        waiter: Waiter[_Ticket] = Waiter(
            parked, lambda found: None if served.done() else served.set_result(found), deadline
        )
        self._park(waiter)
        self._set_deadline()
        end = partial(self._end_early, waiter)
        if until is not None:
            until.add_done_callback(end)
        try:
            return await served
        finally:
            if until is not None:
                until.remove_done_callback(end)
            if not waiter.gone:
                self._waiters.remove(waiter)
                self._end_wait(parked.command)

    def _check_may_wait(self) -> None:
        if self._ending:
            raise errors.closing()
        if len(self._waiters) >= waiters_max:
            raise errors.too_many_waiters()

    def _end_early(self, waiter: Waiter[_Ticket], _: asyncio.Future[None]) -> None:
        if not waiter.gone:
            self._give_up(waiter, self._clock.wall_ms())

    def _give_up(self, waiter: Waiter[_Ticket], now_ms: int) -> None:
        """Its time is over. The end of another wait may have been the turn that failed."""
        command = waiter.parked.command
        if self._shut is not None:
            self._answer(waiter, self._shut(), 0)
            return
        self._answer(waiter, give_up(self._keyspace, waiter.parked, now_ms), self._depends_on(command))
        self._end_wait(command)

    def _park(self, waiter: Waiter[_Ticket]) -> None:
        lane = self._waiters.park(waiter)
        if lane is not None:
            self._look_again(lane)

    def _look_again(self, lane: Lane[_Ticket]) -> None:
        """Have the lane's reads come due when time alone may bring them something."""
        now_ms = self._clock.wall_ms()
        due_ms = [retry_at_ms(self._keyspace, one.parked, now_ms) for one in lane.front()]
        at_ms = min((at_ms for at_ms in due_ms if at_ms is not None), default=None)
        if at_ms is not None:
            self._waiters.retry(lane, self._clock.monotonic() + max(0, at_ms - now_ms) / 1000)

    def _served(self, lane: Lane[_Ticket] | None) -> None:
        if lane is None:
            self._set_deadline()
        else:
            self._look_again(lane)

    def _run_again(self, waiter: Waiter[_Ticket], now_ms: int) -> dict[str, None]:
        """Run a parked read again, and answer it or leave it parked; the streams that it signals."""
        command = waiter.parked.command
        try:
            self._admit((command,))
        except EngineError as refusal:
            self._answer(waiter, refusal, 0)
            return {}
        start = self._writer.staged_upto
        try:
            outcome = execute(self._keyspace, command, now_ms)
            position = max(self._stage(outcome.turn, start), self._depends_on(command))
        except DirtyTurnError as error:
            self._answer(waiter, self._break_down(error), 0)
            return {}
        assert not isinstance(outcome.reply, Unfinished), "reads take one turn"
        if isinstance(outcome.reply, Parked):
            waiter.parked = outcome.reply
            self._park(waiter)
            self._set_deadline()
        else:
            self._answer(waiter, outcome.reply, position)
        return outcome.turn.signalled

    def _end_wait(self, command: BlockingCommand) -> None:
        """Where silence is counted it counts from the end of the wait."""
        reader = command.reader()
        if reader is not None:
            group, consumer = reader
            self._run_own(EndWait(streams=command.named_streams(), group=group, consumer=consumer))

    def _answer(self, waiter: Waiter[_Ticket], reply: Reply | EngineError, position: int) -> None:
        self._waiters.remove(waiter)
        waiter.ticket(_Served(reply, position))

    def _set_deadline(self) -> None:
        due = self._waiters.next_due()
        if due == self._deadline_at and due is not None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._deadline_at = due
        if due is not None:
            delay = max(0.0, due - self._clock.monotonic())
            self._deadline = asyncio.get_running_loop().call_later(delay, self._pass_deadlines)

    def _pass_deadlines(self) -> None:
        self._deadline = self._deadline_at = None
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        waiters, lanes = self._waiters.due(now, answered_at_once_max)
        for waiter in waiters:
            self._give_up(waiter, now_ms)
        self._serving.serve({stream: None for lane in lanes for stream in lane.streams}, now_ms)
        for lane in lanes:
            self._look_again(lane)
        self._set_deadline()

    # --- housekeeping ---------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        delay = housekeeping_interval_s
        self.memory.observe(resident_bytes())
        try:
            if (self._keyspace.tended or self._keyspace.answers) and self._tend():
                # A bounded turn each, with others' turns between.
                delay = 0.0
            elif self._keyspace.free_some():
                delay = 0.0
        finally:
            if self._shut is None:
                self._housekeeping = asyncio.get_running_loop().call_later(delay, self._keep_house)
        self._rewriter.begin_if_due()
        self._packer.begin()

    def _tend(self) -> bool:
        """Do what time has brought; whether there is more of it."""
        return self._run_own(KeepHouse(waiting=self._waiting_for, since_ms=self._started_ms)) is True

    def _waiting_for(self, stream: str) -> set[tuple[str, str]]:
        """Which (group, consumer) wait for entries of the stream, or for room for them."""
        waiters = (waiter for lane in self._waiters.lanes(stream) for waiter in lane.waiters)
        readers = {waiter.parked.command.reader() for waiter in waiters}
        return {reader for reader in readers if reader is not None}.union(self.attended(stream))

    def _run_own(self, command: Command) -> object:
        """Run what nobody asked for; its reply, None if the log takes no writes at present."""
        try:
            self._admit((command,))
        except EngineError:
            return None
        start = self._writer.staged_upto
        try:
            outcome = execute(self._keyspace, command, self._clock.wall_ms())
            self._commit(outcome.turn, start)
        except DirtyTurnError as error:
            self._break_down(error)
            return None
        return outcome.reply

    # --- a fault --------------------------------------------------------------------------------------------

    def _break_down(self, error: DirtyTurnError) -> EngineError:
        """Memory is ahead of the log: run nothing any more, look at nothing. The faulty turn's answer."""
        if self._shut is None:
            self._shut = errors.restarting
            self._serving.stop()
            self._rewriter.stop()
            self._cancel_timers()
            # Behind the turn, which may be one of many that are run again right now.
            self._finishing = asyncio.ensure_future(self._finish_turns())
            self._fault = error.__cause__ or error
            if self._tell_fault is not None:
                self._tell_fault(self._fault)
        return errors.internal()

    async def _finish_turns(self) -> None:
        await self._writer.finish_turns()
        for waiter in self._waiters.everyone():
            self._answer(waiter, errors.restarting(), 0)

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
    """Report what went wrong; the answer of whoever asked."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
    return errors.internal()
