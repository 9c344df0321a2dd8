"""The engine at work: runs commands in turns, and lets each answer leave when the log allows it.

Knows: one turn after the other, which reads to wake, and that nothing leaves before the log position it
depends on is safe.
Must never know: what any command means, where commands come from, frames.

    send() → turn: change state, stage one frame, serve blocked reads → wait for the log → the answer
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from engine import errors
from engine.clock import Clock
from engine.commands.base import Command
from engine.commands.execution import Blocked, Missing, Unfinished, block_group_read, is_ready
from engine.commands.planning import durable_queue
from engine.commands.registry import DUE
from engine.commands.types import XReadGroup
from engine.commands.weir_commands import ExpireStreams
from engine.errors import EngineError
from engine.keyspace import CAPS_DEFAULT, Caps, Keyspace
from engine.log import Log, Recovery, StorageFullError
from engine.log.leftovers import remove_leftovers
from engine.log_figures import Fsync, LogFigures, Rewritten
from engine.memory import Memory
from engine.parts.closing import Closed
from engine.parts.schedules import ScheduleIndex, StreamSchedules
from engine.protocol import Call, Events, Figures, How, unexpected
from engine.quotas import Quota
from engine.read_handle import Done, ReadHandle, Refused, Replies
from engine.replies import GroupRead, Reply
from engine.runtime.answers import Answers
from engine.runtime.fetching import Fetcher
from engine.runtime.housekeeping import DueTimer, Housekeeping
from engine.runtime.loading import Progress, no_progress, recover, run_lengths
from engine.runtime.packing import Packer
from engine.runtime.rewriting import GROWTH_DEFAULT, Growth, Rewriter
from engine.runtime.storing import StoreBounds, Storer
from engine.runtime.turns import FurtherTurns, FurtherWork, TurnResult, Turns
from engine.runtime.unsynced import UnsyncedPositions
from engine.runtime.waits import WaitResult, Waits
from engine.runtime.writer import Writer
from engine.storage import Storage
from engine.storage.file import FileStorage

# A run of commands goes on in the next cycle of the loop after this time, behind the command that took the
# last of it.
_RUN_S_MAX: Final = 0.005

# Before the first turn of a command.
_FIRST: Final = Unfinished(None)

# To find a member in its class takes Python 3.11 a third of a microsecond.
_TOGETHER: Final = How.TOGETHER
_EACH: Final = How.EACH


class Engine:
    """Streams in process, on a log. `open`, then on one event loop `start`, `send` …, `close`.

    `async with` starts and closes it.
    """

    # No installation had a reason for others; tests have.
    store_bounds: ClassVar[StoreBounds] = StoreBounds()

    def __init__(
        self,
        storage: Storage,
        log: Log,
        keyspace: Keyspace,
        clock: Clock,
        fsync: Fsync,
        growth: Growth = GROWTH_DEFAULT,
    ) -> None:
        self.events: Final = Events()
        self.fsync: Fsync = fsync
        self.recovery: Recovery = log.recovery
        self._storage = storage
        # Files that only had the name of a file of the log, by the name that they have now.
        self.set_aside: Sequence[str] = ()
        self._keyspace = keyspace
        self._appended_before = keyspace.appended
        self._dropped_before = ScheduleIndex.of(keyspace).dropped
        self._clock = clock
        self._answers = Answers(clock.monotonic)
        self._writer = Writer(log, fsync, self._answers, self.events)
        # Under `no` it is unknown when written bytes are on disk.
        self._unsynced = None if fsync == "no" else UnsyncedPositions()
        if self._unsynced is not None:
            keyspace.unsynced_from = self._unsynced.lowest
            self._writer.on_sync_begins = self._unsynced.begin_sync
            self._writer.on_synced = self._synced
        self._rewriter = Rewriter(keyspace, self._writer, clock, growth, self.events)
        self._packer = Packer(keyspace, clock)
        self._turns = Turns(keyspace, self._writer, clock, self._packer, self._unsynced, self.events)
        keyspace.runs.bytes_max = self.store_bounds.cache_bytes_max
        keyspace.runs.on_damaged = self._note_damage
        self._storer = Storer(keyspace, self._turns, self._rewriter, clock, self.store_bounds, self.events)
        # Between the looks of a second, as much may come as fits into memory.
        self._packer.on_packed = self._storer.begin_if_grown
        self._rewriter.keeper = self._storer
        self._fetcher = Fetcher(keyspace.runs, log.read_run)
        self._turns.on_broken = self._break_down
        self._waits = Waits(keyspace, self._turns, clock, self._fetcher)
        self._further = FurtherTurns()
        self._due_timers = (
            DueTimer(keyspace.lifetimes, clock, lambda: self._run_due(ExpireStreams())),
            *(
                DueTimer(times, clock, partial(self._run_for_a_while, DUE[part]))
                for part, times in keyspace.due_times.items()
            ),
        )
        self._housekeeping = Housekeeping(
            keyspace, self._waits, self._rewriter, self._packer, self._storer, self.events
        )
        self._finishing: asyncio.Task[None] | None = None

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
        holder: int | None = None,
    ) -> "Engine":
        """Recover the log in directory `data` (None: in memory, for tests) and load it. Blocks.

        Calls `on_progress` now and then, in the calling thread. `holder` as in `FileStorage`. Raises what
        `Log.open` raises, and `LogRefusedError` for frames that contradict each other.
        """
        storage, log, keyspace = recover(data, caps, on_progress, holder)
        keyspace.floor_ms = log.recovery.floor_ms
        engine = cls(storage, log, keyspace, clock, fsync, growth)
        # Which files are needless is known once everything was read.
        engine.set_aside = remove_leftovers(storage, log.manifest)
        with suppress(OSError):
            engine.set_aside = [*engine.set_aside, *log.settle_runs(run_lengths(keyspace))]
        # Commands come first: what the disk has beyond their reserve is kept for a rewrite.
        with suppress(StorageFullError):
            log.ensure_bare_reserve()
        log.keep_ballast()
        return engine

    async def start(self) -> None:
        """Begin the periodic work: syncs, deadlines, expiry."""
        self._keyspace.opened_ms = self._clock.wall_ms()
        self._writer.start()
        for timer in self._due_timers:
            timer.start()
        self._housekeeping.start(self._keyspace.opened_ms)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all waits with `draining`, then write, sync and mark the log. After a fault, only release
        it.
        """
        if self._turns.shut is errors.restarting:
            await self.finish_turns()
            (await self.abandon()).unlock()
            return
        self._turns.shut = errors.closing
        self._cancel_timers()
        self.end_waits()
        await self._packer.close()
        # A rewrite waits for what is staged.
        await self._writer.write_all()
        await self._rewriter.close()
        await self._storer.close()
        await self._fetcher.close()
        try:
            await self._writer.close()
        finally:
            if isinstance(self._storage, FileStorage):
                self._storage.close()

    def _cancel_timers(self) -> None:
        self._waits.cancel_timer()
        for timer in self._due_timers:
            timer.cancel()
        self._housekeeping.cancel()

    def end_waits(self) -> None:
        """Answer all reads that wait, and later ones that would, with `draining`.

        Reads that were served already are answered as usual.
        """
        self._waits.end_all()

    async def rewrite(self) -> Rewritten:
        """Rewrite the log to what is in memory, while everything goes on.

        Waits for the end of a rewrite that is in progress. Raises RewriteFailedError, with nothing lost.
        """
        return await asyncio.shield(self._rewriter.begin())

    def begin_rewrite(self) -> object:
        """Begin one, or have the one that is under way followed by another."""
        return self._rewriter.begin()

    @property
    def durability(self) -> str:
        """What an answer promises: `fsync`, or `os` (handed to the operating system)."""
        return "fsync" if self.fsync == "always" else "os"

    @property
    def delivery_durability(self) -> str:
        """The same for the answer to a group's read."""
        return self.durability

    def figures(self) -> Figures:
        """What it counts and says of itself now."""
        keyspace, index = self._keyspace, ScheduleIndex.of(self._keyspace)
        due_ms = keyspace.due_times[StreamSchedules].first_due_ms
        return Figures(
            streams=len(keyspace.keys),
            expiring_streams=len(keyspace.lifetimes),
            mean_expiry_ms=keyspace.lifetimes.mean_ms,
            closed_streams=keyspace.indexes[Closed].streams,
            hidden_streams=len(keyspace.forks.hidden),
            schedules=index.count,
            schedules_late_s=0.0 if due_ms is None else max(0, self._clock.wall_ms() - due_ms) / 1000,
            schedules_dropped=index.dropped - self._dropped_before,
            appended=keyspace.appended - self._appended_before,
            waiting=len(self._waits),
            fsync=self.fsync,
            log=self.log_figures(),
            sync_seconds=self._writer.sync_seconds.copy(),
            rewrites=self._rewriter.figures,
        )

    def log_figures(self) -> LogFigures:
        """The lengths and the state of the log."""
        runs = self._keyspace.runs
        return self._writer.figures()._replace(
            stored_bytes=runs.stored_bytes,
            stored_damaged=len(runs.damaged),
            stored_reads_in_turns=runs.reads_in_turns,
            storing_failure=self._storer.failure,
        )

    @property
    def memory(self) -> Memory:
        """How much memory is used, and whether there is room for more."""
        return self._keyspace.memory

    def check(self) -> None:
        """Assert that all data in memory is consistent."""
        self._keyspace.check()

    # --- commands -------------------------------------------------------------------------------------------

    def send(self, call: Call, done: Done) -> Replies | None:
        """Run the commands of a call now, as `engine.protocol` has it.

        A command alone may take further turns, and is answered later. A group's read also waits behind those
        that are being served.
        """
        if call.waits is not None:
            call.waits.begin(call.commands[0], done, self._take_back)
        if call.how is not _EACH and self._waits.serving.must_wait_behind(call.commands):
            self._waits.serving.wait_behind(partial(self._let_in, call, done))
            return None
        return self._send(call, done)

    def _let_in(self, call: Call, done: Done) -> None:
        replies = self._send(call, done)
        if replies is not None:
            done(replies)

    def _send(self, call: Call, done: Done) -> Replies | None:
        try:
            if call.waits is not None:
                self._read(call, call.waits)
                return None
            if call.how is _EACH:
                return self._each(call, done)
            return self._turn(call, done)
        except EngineError as refusal:
            if self._may_wait(refusal, call.commands):
                self._rewriter.wait(partial(self._let_in, call, done))
                return None
            return Refused(refusal)
        except Exception as error:  # noqa: BLE001 - the caller gets an answer in any case
            return Refused(unexpected(call.origin, error))

    def _may_wait(self, refusal: EngineError, commands: Sequence[Command]) -> bool:
        """Whether commands that found no room on the disk run again behind a rewrite."""
        return refusal.code == "storage_full" and self._rewriter.makes_wait(commands)

    def _take_back(self, command: Command) -> None:
        self.send(Call((command,)), lambda _: None)

    def _turn(self, call: Call, done: Done) -> Replies | None:
        """One command, which may take further turns, or several in one. Raises EngineError if everything is
        refused.
        """
        commands, together = call.commands, call.how is _TOGETHER
        if not together:
            commands = (commands[0].to_nonblocking(),)
        ran = self._run(commands, before=_FIRST, together=together, quotas=call.quotas)
        if ran.replies and isinstance(first := ran.replies[0], Unfinished):
            quotas = call.quotas if together else ()
            further = self._run_further(commands, first, call.caller, together=together, quotas=quotas)
            self._answer_later(further, call, done)
            return None
        return self._leave(ran.replies, ran.position, call, done)

    def _leave(self, replies: Replies, position: int, call: Call, done: Done) -> Replies | None:
        """Return what may leave now; the rest leaves later."""
        if self._writer.is_safe(position, synced=call.synced):
            return replies
        if call.on_run is not None:
            call.on_run(replies)
        self._writer.answer(position, replies, done, synced=call.synced)
        return None

    def _answer_later(self, work: FurtherWork[tuple[Replies, int]], call: Call, done: Done) -> None:
        """Go on with the work, here and as often as it waits; then let the replies leave that it returns with
        their position. The caller gets an answer in any case.
        """
        try:
            wait = next(work)
        except StopIteration as ended:
            replies, position = ended.value
            if self._writer.is_safe(position, synced=call.synced):
                done(replies)
            else:
                self._writer.answer(position, replies, done, synced=call.synced)
        except EngineError as refusal:
            done(Refused(refusal))
        except Exception as error:  # noqa: BLE001 - as said
            done(Refused(unexpected(call.origin, error)))
        else:
            wait(partial(self._answer_later, work, call, done))

    # --- one after the other

    def _each(self, call: Call, done: Done) -> Replies | None:
        def answer(replies: Replies) -> None:
            done(call.refused(replies.error) if isinstance(replies, Refused) else replies)

        replies: list[Any] = []
        position = self._run_each(call, replies)
        if _all_ran(call.commands, replies):
            return self._leave(replies, position, call, answer)
        self._answer_later(self._run_each_to_end(call, replies, position), call, answer)
        return None

    def _run_each(self, call: Call, replies: list[Any], *, let_in: bool = False) -> int:
        """Run commands that have no reply yet, for some milliseconds. Returns the position on which the new
        replies depend.

        It stops at a command that is `Unfinished` or has to wait behind others, unless that one is `let_in`.
        """
        commands, quotas = call.commands, call.quotas
        position, alone = 0, not self._turns.admits(commands[len(replies) :], quotas)
        monotonic = self._clock.monotonic
        ends_at = monotonic() + _RUN_S_MAX

        def has_time() -> bool:
            return monotonic() <= ends_at

        while len(replies) < len(commands) and has_time():
            left = commands[len(replies) :]
            if not let_in and self._waits.serving.must_wait_behind(left):
                break
            let_in = False
            try:
                next_ones = left[:1] if alone else left
                ran = self._turns.run_each(next_ones, self._waits.waits_for, has_time, quotas, admit=alone)
            except EngineError as refusal:
                if self._may_wait(refusal, left[:1]):
                    break
                replies.append(refusal)
                continue
            except Exception as error:  # noqa: BLE001 - the caller gets an answer in any case
                replies.append(unexpected(call.origin, error))
                continue
            replies += ran.replies
            position = max(position, ran.position)
            self._waits.serving.serve(ran.turn.signalled, ran.turn.now_ms)
            if isinstance(replies[-1], Unfinished):
                break
        return position

    def _run_each_to_end(
        self, call: Call, replies: list[Any], position: int
    ) -> FurtherWork[tuple[Replies, int]]:
        """Finish or let in the one that others wait behind, and run these."""
        commands = call.commands
        while not _all_ran(commands, replies):
            let_in = False
            if replies and isinstance(last := replies[-1], Unfinished):
                try:
                    command = commands[len(replies) - 1].to_nonblocking()
                    (replies[-1],), upto = yield from self._run_further((command,), last, call.caller)
                    position = max(position, upto)
                except EngineError as refusal:
                    # The others have run: the refusal is of this one alone.
                    replies[-1] = refusal
            elif self._waits.serving.must_wait_behind(commands[len(replies) :]):
                yield self._waits.serving.wait_behind
                let_in = True
            elif self._rewriter.makes_wait(commands[len(replies) : len(replies) + 1]):
                yield self._rewriter.wait
            else:
                yield self._further.wait
            position = max(position, self._run_each(call, replies, let_in=let_in))
        return replies, position

    # --- a read that may wait

    def _read(self, call: Call, handle: ReadHandle, before: Unfinished = _FIRST) -> None:
        """Answered by `done`, never at once. A reader of a group that reads on was seen when it was given
        something, so there is nothing to log unless something more is there for it.
        """
        if handle.is_cancelled:
            return
        (command,) = call.commands
        reply: Reply | Blocked | Unfinished | EngineError
        position = 0
        try:
            self._turns.admit((command,))
            reply = GroupRead(())
            if call.going_on and isinstance(command, XReadGroup) and command.block_ms is not None:
                reply = block_group_read(command)
            if not isinstance(reply, Blocked) or is_ready(self._keyspace, reply, self._clock.wall_ms()):
                ran = self._run((command,), before=before)
                reply, position = ran.replies[0], ran.position
            if isinstance(reply, Missing):
                self._fetcher.expect_room(reply, call.caller)
                self._fetcher.wait(reply, call.caller, partial(self._read, call, handle, reply))
                return
            if isinstance(reply, Blocked):
                self._waits.block(reply, partial(self._serve, handle, synced=call.synced), handle)
                return
        except EngineError as refusal:
            reply = refusal
        except Exception as error:  # noqa: BLE001 - the reader gets an answer in any case
            reply = unexpected(call.origin, error)
        assert not isinstance(reply, Unfinished), "reads take one turn"
        self._serve(handle, WaitResult(reply, position), synced=call.synced)

    def _serve(self, handle: ReadHandle, served: WaitResult, *, synced: bool) -> None:
        """Answer when the reply may leave, never before this turn has ended: mostly its frame is written by
        then, so that the answers of a cycle are as many as reads were served in the one before.

        What a group's reader gets leaves before the answers of later turns: with the answer to its ack first,
        it would take an entry that it had before for a new one.
        """
        handle.serve(served.reply)
        if isinstance(served.reply, GroupRead) and not self._writer.is_safe(served.position, synced=synced):
            self._writer.answer(served.position, [served.reply], handle.answer, synced=synced)
        else:
            self._answers.put_later(partial(self._answer, handle, served, synced=synced))

    def _answer(self, handle: ReadHandle, served: WaitResult, *, synced: bool) -> None:
        if self._writer.is_safe(served.position, synced=synced):
            handle.answer([served.reply])
        else:
            self._writer.answer(served.position, [served.reply], handle.answer, synced=synced)

    # --- turns

    def _run(
        self,
        commands: Sequence[Command],
        *,
        before: Unfinished | None = None,
        together: bool = False,
        quotas: Sequence[Quota] = (),
    ) -> TurnResult:
        """Run a turn, and serve the reads that it wakes."""
        so_far = None if before is None else before.so_far
        held = before.held if isinstance(before, Missing) else None if before is None else {}
        ran = self._turns.run_commands(commands, so_far=so_far, held=held, together=together, quotas=quotas)
        self._waits.serving.serve(ran.turn.signalled, ran.turn.now_ms)
        return ran

    def _run_further(
        self,
        commands: Sequence[Command],
        reply: Unfinished,
        caller: str,
        *,
        together: bool = False,
        quotas: Sequence[Quota] = (),
    ) -> FurtherWork[tuple[Replies, int]]:
        """Run further turns of a command to its end, or those together once what they look at was read, with
        others' turns between.
        """
        has_begun = False
        while True:
            try:
                if isinstance(reply, Missing) and reply.runs:
                    self._fetcher.expect_room(reply, caller)
                    yield partial(self._fetcher.wait, reply, caller)
                else:
                    has_begun = has_begun or not isinstance(reply, Missing)
                    yield self._further.wait
                ran = self._run(commands, before=reply, together=together, quotas=quotas)
            except EngineError as refusal:
                if self._may_wait(refusal, commands):
                    yield self._rewriter.wait
                    continue
                raise (errors.in_part(refusal) if has_begun else refusal) from None
            further: Reply | Blocked | Unfinished | EngineError = ran.replies[0]
            if not isinstance(further, Unfinished):
                assert not isinstance(further, Blocked), "reads take one turn"
                return ran.replies, ran.position
            reply = further

    def _synced(self, durable_upto: int) -> None:
        """Serve the reads that wait for entries on disk."""
        assert self._unsynced is not None, "syncs are reported only when positions are tracked"
        grown = self._unsynced.note_synced(durable_upto)
        self._waits.serving.serve({durable_queue(stream): None for stream in grown}, self._clock.wall_ms())

    # --- housekeeping ---------------------------------------------------------------------------------------

    def _run_due(self, command: Command) -> bool | None:
        """Do what is due. Returns whether there is more, None if the log has no room."""
        more = self._waits.run_unasked(command)
        return None if more is None else more is True

    def _run_for_a_while(self, make: Callable[[Callable[[], bool]], Command]) -> bool | None:
        """Do what is due of a part, in a turn that ends by the clock."""
        until_s = self._clock.monotonic() + _RUN_S_MAX
        return self._run_due(make(lambda: self._clock.monotonic() < until_s))

    def _note_damage(self, where: str) -> None:
        self.events.damaged(where)

    # --- a fault --------------------------------------------------------------------------------------------

    def _break_down(self, fault: BaseException) -> None:
        """A turn has failed half-way: trust nothing in memory any more."""
        self._waits.serving.stop()
        self._rewriter.stop()
        self._cancel_timers()
        # Behind the turn, which may be one of many that are run again right now.
        self._finishing = asyncio.ensure_future(self._finish_turns())
        self.events.fault = fault
        self.events.faulty(fault)

    async def _finish_turns(self) -> None:
        await self._writer.finish_turns()
        self._waits.refuse_all(errors.restarting)

    async def finish_turns(self) -> None:
        """After a fault: wait until the answers of whole turns have left, as safe as promised, and refuse all
        others.
        """
        assert self._finishing is not None, "there was a fault"
        await self._finishing

    async def abandon(self) -> Storage:
        """Then: wait for all threads, and close the files as a crash would. The directory stays locked, for
        `Engine.open`.
        """
        await self._packer.close()
        await self._rewriter.close()
        await self._storer.close()
        await self._fetcher.close()
        await self._writer.abandon()
        return self._storage

    async def free(self) -> None:
        """Then: free the memory, before the log is read again."""
        await asyncio.to_thread(self._keyspace.free_all)


def _all_ran(commands: Sequence[Command], replies: Sequence[object]) -> bool:
    return len(replies) == len(commands) and not (replies and isinstance(replies[-1], Unfinished))
