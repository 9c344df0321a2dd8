"""Rewrites the log to what is in memory, while everything goes on.

Before that, what is left in files of runs of which most is gone is stored anew; where an operator asks for
the rewrite, in each that holds anything deleted. Files to which nothing refers any more go with the old log.

Knows: the order of the steps, how to take a snapshot in slices between turns, when a rewrite is due.
Must never know: what a record means, what frames look like.

    a file is made → the log goes on there, and in the same turn the snapshot begins
                   → the snapshot is encoded in slices on the event loop, written and synced by a thread
                   → the manifest names it; the old files are removed

The first step is left out where the last file holds nothing yet, as after a rewrite that failed.

Each slice blocks the event loop for a short time. A thread that encoded instead would hold the interpreter
just as long, and every system call of the loop would wait for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from engine.clock import Clock
from engine.commands.base import Command
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.log import BaseFile, LogPoisonedError, PreparedSegment, RunsFile
from engine.log_figures import Rewrites, Rewritten
from engine.protocol import Events
from engine.record import Record
from engine.records.payload import encode
from engine.records.snapshot import Capture
from engine.remedies import explain
from engine.runs import Run
from engine.runtime.writer import Writer

T = TypeVar("T")

SLICE_S: Final = 0.002
# Records of one frame: as many small ones as make it cheap to read, fewer of those with many IDs, each of
# which takes a part of a slice. And bytes of frames of one write.
_FRAME_RECORDS: Final = 64
_IDS_A_RECORD: Final = 32
_WRITE_BYTES: Final = 1 << 20
# After a rewrite that failed the next one is tried later and later.
_RETRY_S_MIN: Final = 60.0
_RETRY_S_MAX: Final = 3600.0
# On a full disk a rewrite begins by itself if the log is this many times as long as the data in memory, which
# is more than the new base will be.
_FREES_MIN: Final = 2
# What makes room waits for so long while a rewrite has the last of it. Clients wait for half a minute; a disk
# that hangs must not keep them for ever.
_WAIT_S_MAX: Final = 30.0
# How often more ballast is asked for, where the disk had not enough for it.
_BALLAST_S: Final = 60.0


class Growth(NamedTuple):
    """When a rewrite begins by itself: the log has at least `bytes_min`, and is `percent` longer than the
    last rewrite left it.

    0 percent means never.
    """

    percent: int = 100
    bytes_min: int = 64 << 20


GROWTH_DEFAULT: Final = Growth()


class RewriteFailedError(Exception):
    """The disk did not accept the new log: nothing is lost or changed. Or it did, and something that was
    deleted is still in files beside the log.
    """


class StoppingError(Exception):
    """The engine is about to close."""


class Repacked(NamedTuple):
    """How many runs were stored anew, and why something that was deleted is still on the disk, None where
    nothing is.
    """

    runs: int
    left: str | None


class RunsKeeper(Protocol):
    """What stores runs, as a rewrite knows it."""

    @property
    def file_number(self) -> int | None:
        """The file that grows, which has to stay."""

    @property
    def wasted_bytes(self) -> int:
        """What a rewrite would give back of the disk in files of runs."""

    async def repack(self, *, everything: bool) -> Repacked:
        """Store anew what is left in files of which most is gone, or with `everything` in each that holds
        anything deleted.
        """


class Rewriter:
    """One rewrite at a time. `last` and `failure` are the result of the latest one."""

    def __init__(
        self, keyspace: Keyspace, writer: Writer, clock: Clock, growth: Growth, events: Events
    ) -> None:
        self.last: Rewritten | None = None
        self.failure: str | None = None
        self._events = events
        self._keyspace = keyspace
        self._writer = writer
        self._log = writer.log
        self._clock = clock
        self._growth = growth
        self._running: asyncio.Task[Rewritten] | None = None
        self._stopping = False
        self._retry_at = 0.0
        self._retry_s = _RETRY_S_MIN
        self._ballast_at = 0.0
        # Whether one was asked for since the last one began.
        self._asked = False
        # Held by what stores runs, and by a rewrite but for the time in which its base grows: in the rest of
        # it no file of runs is made, and none is written to.
        self.files = asyncio.Lock()
        # What goes on once commands have their room again, at the latest then; whether that has come.
        self._waiting: list[Callable[[], None]] = []
        self._wait_ends: asyncio.TimerHandle | None = None
        self._is_wait_over = False
        self.keeper: RunsKeeper | None = None
        # Tasks that wait for the disk, and for which no answer waits.
        self._thread = ThreadPoolExecutor(1, "weir-rewrite")

    @property
    def running(self) -> bool:
        """Whether a rewrite is in progress."""
        return self._running is not None

    @property
    def figures(self) -> Rewrites:
        """How it is, and how the latest one ended."""
        return Rewrites(self.running, self.last, self.failure)

    def begin_if_due(self) -> None:
        """Begin a rewrite if the log has grown enough, unless the last one failed a short while ago."""
        if self.running or self._stopping or self._log.poisoned is not None:
            return
        if self._is_due() and self._clock.monotonic() >= self._retry_at:
            self._begin()
        elif not self._log.is_full and not self._log.is_ballast_whole:
            self._ask_for_ballast()

    def _is_due(self) -> bool:
        growth, log = self._growth, self._log
        if not growth.percent:
            return False
        if log.is_full and log.total_bytes > _FREES_MIN * self._keyspace.memory.estimated_bytes:
            return True
        total = log.total_bytes + (0 if self.keeper is None else self.keeper.wasted_bytes)
        return total >= growth.bytes_min and (total - log.base_bytes) * 100 >= log.base_bytes * growth.percent

    def _ask_for_ballast(self) -> None:
        """Take what the disk did not have at the start, or what the last rewrite has used."""
        if self._clock.monotonic() >= self._ballast_at:
            self._ballast_at = self._clock.monotonic() + _BALLAST_S
            asyncio.get_running_loop().run_in_executor(self._thread, self._log.keep_ballast)

    def begin(self) -> "asyncio.Task[Rewritten]":
        """Begin a rewrite after which nothing that is deleted by now is in any file. Where one is in
        progress, which may have begun before, it is followed by another.
        """
        self._asked = True
        return self._begin()

    def _begin(self) -> "asyncio.Task[Rewritten]":
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
            self._running.add_done_callback(_look_at)
        return self._running

    def create_runs(self) -> RunsFile:
        """Begin a file of runs. Blocks."""
        return self._log.create_runs()

    def read_run(self, run: Run) -> bytes:
        """The bytes of a run. Blocks."""
        return self._log.read_run(run.file, run.offset, run.length)

    def run_sizes(self, files: Sequence[int]) -> dict[int, int]:
        """The lengths of these files of runs. Blocks."""
        return self._log.run_sizes(files)

    def makes_wait(self, commands: Sequence[Command]) -> bool:
        """Whether a rewrite has all room of a full disk, and these commands wait for its end: those that make
        room. Others may find none behind it.
        """
        changing = [command for command in commands if command.changes]
        if not self._log.is_lent or self._is_wait_over:
            return False
        return bool(changing) and all(command.makes_room for command in changing)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call back when that rewrite has ended, however it did, or has taken too long."""
        if self._wait_ends is None:
            loop = asyncio.get_running_loop()
            self._wait_ends = loop.call_later(_WAIT_S_MAX, partial(self._end_waits, is_late=True))
        self._waiting.append(go_on)

    def _end_waits(self, *, is_late: bool) -> None:
        self._is_wait_over = is_late
        if self._wait_ends is not None:
            self._wait_ends.cancel()
            self._wait_ends = None
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            asyncio.get_running_loop().call_soon(go_on)

    def stop(self) -> None:
        """Let no further step begin."""
        self._stopping = True

    async def close(self) -> None:
        """Cancel a rewrite in progress, and wait until no thread uses files any more."""
        self.stop()
        if self._running is not None:
            await asyncio.wait((self._running,))
        self._thread.shutdown(wait=False)

    async def _run(self) -> Rewritten:
        try:
            while True:
                asked, self._asked = self._asked, False
                try:
                    done = await self._run_once(asked=asked)
                except RewriteFailedError:
                    if not self._asked or self._stopping:
                        raise
                else:
                    if not self._asked:
                        return done
        finally:
            self._running = None

    async def _run_once(self, *, asked: bool) -> Rewritten:
        started = self._clock.monotonic()
        bytes_before = self._log.total_bytes
        try:
            left = await self._repack(asked=asked)
            async with self.files:
                await self._rewrite_and_make_ready()
        except StoppingError:
            raise RewriteFailedError("the engine is being closed") from None
        except Exception as error:
            # Any exception: this rewrite may have no waiter, and the next one would fail in the same way.
            reason = self._reason_of(error)
            self._note_failure(reason)
            raise RewriteFailedError(f"the log was not rewritten, and is as it was: {reason}") from error
        if left is None and asked and self._log.leftovers:
            left = self._log.leftovers
        if left is not None:
            failure = f"the log was rewritten, but {left}"
            self._note_failure(failure)
            raise RewriteFailedError(failure)
        self.failure, self._retry_at, self._retry_s = None, 0.0, _RETRY_S_MIN
        duration_ms = round((self._clock.monotonic() - started) * 1000)
        self.last = Rewritten(bytes_before, self._log.total_bytes, duration_ms)
        return self.last

    def _reason_of(self, error: Exception) -> str:
        detail = error.detail if isinstance(error, EngineError) else explain(error)
        return self._log.poisoned or detail

    def _note_failure(self, reason: str) -> None:
        self.failure = reason
        self._events.rewrite_failed(reason, self._retry_s)
        self._retry_at = self._clock.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)

    async def _repack(self, *, asked: bool) -> str | None:
        """Returns what is still there that was deleted. The log is rewritten in any case: on a full disk that
        is what makes room.
        """
        if self.keeper is None or (self._log.is_full and not asked):
            return None
        try:
            repacked = await self.keeper.repack(everything=asked)
        except StoppingError:
            raise
        except Exception as error:  # noqa: BLE001 - of any kind: the log itself can be rewritten
            reason = self._reason_of(error)
            return f"what was deleted may still be in files of cold entries: {reason}"
        return repacked.left if asked else None

    async def _rewrite_and_make_ready(self) -> None:
        """However it ends, commands have their room again first, and the next one on a full disk has some."""
        try:
            await self._rewrite()
        finally:
            self._log.end_rewrite()
            self._end_waits(is_late=False)
            if not self._log.is_ballast_whole:
                await self._in_thread(self._log.keep_ballast)
            self._writer.look_for_room()

    async def _rewrite(self) -> None:
        await self.on_files(self._log.make_way)
        await self._writer.try_again()
        prepared = None
        if self._log.fresh_position is None:
            prepared = await self.on_files(self._log.prepare_segment)
        # One turn: what is before the position is in the snapshot, what is behind it in the new segment.
        try:
            self._check_stopping()
            position = self._position(prepared)
        except (LogPoisonedError, StoppingError):
            if prepared is not None:
                await self._in_thread(partial(self._log.discard_segment, prepared))
            raise
        self._log.begin_rewrite()
        capture = Capture(self._keyspace)
        # What nothing refers to now will never be referred to again. Files that are made from now on stay.
        growing = None if self.keeper is None else self.keeper.file_number
        dead = {*self._log.run_files} - {*self._keyspace.runs.files, growing}
        dead_bytes = self._keyspace.runs.dead_bytes
        reservation_ms = self._writer.reserved_ms
        try:
            await self._writer.safe(self._writer.staged_upto, synced=True)
            await self.on_files(self._log.name_segments)
            base = await self.on_files(lambda: self._log.create_base(position))
            try:
                async with self._others_write():
                    await self._write(base, capture.records())
                finished = await self.on_files(lambda: base.finish(reservation_ms=reservation_ms))
            except BaseException:
                with suppress(OSError):
                    await self._in_thread(base.discard)
                raise
            await self.on_files(lambda: self._log.install_base(finished, dead))
            self._keyspace.runs.dead_bytes -= dead_bytes
        finally:
            capture.close()

    @asynccontextmanager
    async def _others_write(self) -> AsyncIterator[None]:
        """Let runs be stored while the base grows, or memory may fill meanwhile. Not on a full disk, whose
        room is for the base.
        """
        if self._log.is_full:
            yield
            return
        self.files.release()
        try:
            yield
        finally:
            await self.files.acquire()

    def _position(self, prepared: PreparedSegment | None) -> int:
        """Begin the segment that was prepared, if one was. Returns where the last segment begins."""
        if prepared is not None:
            return self._writer.start_segment(prepared)
        position = self._log.fresh_position
        assert position is not None, "no turn was run since it was looked at"
        return position

    async def _write(self, base: BaseFile, records: Iterator[Record]) -> None:
        chunk: list[bytes] = []
        size, slice_end = 0, self._clock.monotonic() + SLICE_S
        while batch := self._frame(records, slice_end):
            chunk.append(encode(batch))
            size += len(chunk[-1])
            if size >= _WRITE_BYTES:
                await self._append(base, chunk)
                chunk, size = [], 0
            elif self._clock.monotonic() >= slice_end:
                await asyncio.sleep(0)
                self._check_stopping()
            else:
                continue
            slice_end = self._clock.monotonic() + SLICE_S
        await self._append(base, chunk)

    def _frame(self, records: Iterator[Record], slice_end: float) -> list[Record]:
        """The records of the next frame; none at the end. The end of a slice ends a frame."""
        batch: list[Record] = []
        left = _FRAME_RECORDS
        for record in records:
            batch.append(record)
            left -= 1 + len(getattr(record, "ids", ())) // _IDS_A_RECORD
            if left <= 0 or self._clock.monotonic() >= slice_end:
                break
        return batch

    async def _append(self, base: BaseFile, payloads: list[bytes]) -> None:
        await self.on_files(lambda: base.append(payloads))

    async def on_files(self, work: Callable[[], T]) -> T:
        """Run what blocks on files in the thread for that. Raises StoppingError at the end."""
        self._check_stopping()
        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _check_stopping(self) -> None:
        if self._stopping:
            raise StoppingError


def _look_at(task: "asyncio.Task[Rewritten]") -> None:
    """Mark the exception as retrieved: `failure` has it, and there may be no waiter."""
    if not task.cancelled():
        task.exception()
