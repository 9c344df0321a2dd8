"""Group commit: one write for all frames of a loop cycle, one sync for all answers that wait for one.

Knows: which log positions are safe by the policy, the callbacks that wait for them, when to sync, and up to
which time IDs are reserved.
Must never know: commands, records, streams.

    stage → (end of the loop cycle) write, inline → `os` answers leave
                                      └ the kernel, or a thread: fdatasync → `fsync` answers leave

Inline, because a thread costs more than a short write does (`bench/threads.py`). A long write is done by a
thread; frames that are staged meanwhile are written after it. The kernel syncs by itself where it can; a
thread does it elsewhere, and where an earlier file has to be synced first.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from statistics import median
from typing import Final

from engine import errors
from engine.errors import EngineError
from engine.histogram import Histogram
from engine.log import Log, LogPoisonedError, OpenFile, PreparedSegment, StorageFullError
from engine.log_figures import Fsync, LogFigures
from engine.protocol import Events
from engine.read_handle import Done, Refused, Replies
from engine.runtime.answers import Answers
from engine.runtime.kernel_syncs import KernelSyncs

# One sync that takes longer, or the median of the last ones: then each write under `always` waits so long.
SLOW_S: Final = 2.0
MEDIAN_SLOW_S: Final = 0.5
# It is slow until all of the last ones took less.
FAST_S: Final = 0.1
_SYNCS: Final = 10
SYNC_INTERVAL_S: Final = 1.0
# Longer writes are done by a thread: the system takes 2 ms for a MiB, and more while it syncs.
INLINE_WRITE_BYTES_MAX: Final = 1 << 20
# With `everysec`, no answer leaves while a frame has waited longer for a sync (docs/durability.md: 2 s).
RISK_S_MAX: Final = 1.9
# IDs made by the clock may be this far ahead of it, and are skipped after a crash: see `Writer.reserve`.
RESERVATION_MS: Final = 5_000
# With less than this left the next reservation is made: the sync of the next second covers it.
_RESERVATION_LOW_MS: Final = 2_500

# Buckets: from a disk with a cache of its own to one that hangs.
SYNC_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# A position that no log reaches.
NEVER_SAFE: Final = 1 << 127

_Wait = tuple[int, int, Callable[[], None]]


class SlowSyncs:
    """`is_slow` after each observation."""

    def __init__(self) -> None:
        self.is_slow = False
        self._last: deque[float] = deque(maxlen=_SYNCS)

    def observe(self, seconds: float) -> None:
        """A sync has ended."""
        self._last.append(seconds)
        has_all = len(self._last) == _SYNCS
        if seconds > SLOW_S or (has_all and median(self._last) > MEDIAN_SLOW_S):
            self.is_slow = True
        elif has_all and max(self._last) < FAST_S:
            self.is_slow = False

    def observe_unfinished(self, seconds: float) -> None:
        """A sync has not ended after this time."""
        self.is_slow = self.is_slow or seconds > SLOW_S


class Writer:
    """The log's only user on the event loop. Positions are those of `engine.log`."""

    # Called when a sync begins: it covers nothing that is staged later.
    on_sync_begins: Callable[[], None] | None = None
    # Called with the position up to which everything is on disk.
    on_synced: Callable[[int], None] | None = None

    def __init__(self, log: Log, fsync: Fsync, answers: Answers, events: Events) -> None:
        self.log = log
        self._events = events
        self._answers = answers
        self._fsync = fsync
        self._waiting: list[_Wait] = []
        self._waiting_for_sync: list[_Wait] = []
        self._serial = 0
        self._flush_scheduled = False
        # The write that a thread does.
        self._writing: asyncio.Future[None] | None = None
        self._syncing: asyncio.Future[int] | asyncio.Future[OSError | None] | None = None
        # A look whether the log's file is still in its place.
        self._looking: asyncio.Future[bool] | None = None
        self._kernel_syncs: KernelSyncs | None = None
        self._sync_scheduled = False
        self._sync_upto = 0
        # Up to which time IDs are promised to be skipped after a crash: asked for, and on disk; and what has
        # been asked for with the position that makes it good.
        self._asked_ms = -1
        self._promised_ms = -1
        self._promises: deque[tuple[int, int]] = deque()
        # From the first position on nothing leaves until the second one is synced: it shows IDs not promised
        # yet.
        self._barrier: tuple[int, int] | None = None
        self._marked_upto = log.staged_upto
        # When the oldest frame that is not synced was written, at the earliest.
        self._unsynced_since: float | None = None
        self._closed = False
        # Whether the engine has failed: positions that are not safe by then never will be.
        self._abandoned = False
        self._has_failed = False
        self._is_full = False
        # Whether the disk had no room for a write: the second's work tries it again.
        self._is_stalled = False
        self._told_upto = log.durable_upto
        # How long syncs have taken, failed ones included.
        self.sync_seconds = Histogram(SYNC_BOUNDS_S)
        self._slow_syncs = SlowSyncs()
        self._sync_began = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, "weir-sync")
        self._write_thread = ThreadPoolExecutor(1, "weir-write")

    # --- before a turn --------------------------------------------------------------------------------------

    def ensure_room(self, bytes_wanted: int, *, makes_room: bool = False) -> None:
        """Refuse a command before anything changes: the disk has no room, or the log has failed."""
        try:
            self.log.ensure_reserve(bytes_wanted, makes_room=makes_room)
        except StorageFullError as full:
            self._note_full(str(full))
            raise errors.storage_full(stalled=self.log.stalled is not None) from None
        except LogPoisonedError:
            raise errors.storage_failed() from None
        self._note_room()

    def look_for_room(self) -> None:
        """The disk is full until the reserve is whole again: a small command may find room long before."""
        self.log.restore_reserve()
        self._note_room()

    def _note_room(self) -> None:
        if self._is_full and not self.log.is_full:
            self._note_full(None)

    def _note_full(self, reason: str | None) -> None:
        was_full, self._is_full = self._is_full, reason is not None
        if self._is_full != was_full:
            self._events.disk_full(reason)

    # --- after a turn ---------------------------------------------------------------------------------------

    def stage(self, payload: bytes) -> int:
        """Add a frame to the write of this loop cycle. Returns its position, which never becomes safe if the
        log has failed.
        """
        try:
            position = self.log.stage(payload)
        except LogPoisonedError:
            # A sync failed while the turn ran: what it changed is in memory alone, and no reader may see it.
            return NEVER_SAFE
        self._flush_soon()
        return position

    def reserve(self, shown_ms: int, now_ms: int, start: int) -> None:
        """Reserve IDs up to `shown_ms`, which are about to be shown in a frame that begins at `start`.

        After a crash none of them may be given again, so a reservation must be on disk before they leave.
        Under `always`, the frame itself is. IDs far ahead of the clock (after an explicit one in the future)
        wait for their own frame, since a reservation so far ahead would move every stream there.
        """
        if self._fsync == "always" or self.log.poisoned is not None:
            return
        if shown_ms > now_ms + RESERVATION_MS:
            self._hold(start, self.log.staged_upto)
            return
        if shown_ms > self._asked_ms - _RESERVATION_LOW_MS:
            self._asked_ms = now_ms + RESERVATION_MS
            self._promises.append((self.log.reserve_ids(self._asked_ms), self._asked_ms))
            self._want_sync(self._promises[-1][0])
        if shown_ms > self._promised_ms:
            self._hold(start, self._promises[-1][0])

    def _hold(self, start: int, position: int) -> None:
        first = start if self._barrier is None else self._barrier[0]
        self._barrier = (first, position)
        self._want_sync(position)

    @property
    def staged_upto(self) -> int:
        """The position of everything staged so far."""
        return self.log.staged_upto

    def figures(self) -> LogFigures:
        """The state of the log."""
        log = self.log
        waiting = len(self._waiting) + len(self._waiting_for_sync) + len(self._answers)
        return LogFigures(
            log.total_bytes,
            log.base_bytes,
            log.staged_upto - log.durable_upto,
            waiting,
            log.poisoned,
            "thread" if self._kernel_syncs is None else "kernel",
        )

    @property
    def safe_upto(self) -> int:
        """The position up to which answers may leave: all frames before it have reached the policy."""
        if self._fsync == "always":
            return self.log.durable_upto
        written = self.log.written_upto
        if self._barrier is None:
            return written
        # What is on disk needs no reservation: after a crash its IDs are known.
        return max(self.log.durable_upto, min(written, self._barrier[0]))

    async def safe(self, position: int, *, synced: bool = False) -> None:
        """Wait until `position` has reached the policy, or (`synced`) the disk. Refuses once the log has
        failed or is abandoned.
        """
        while not self.is_safe(position, synced=synced):
            if (refusal := self._refusal()) is not None:
                raise refusal
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.call_when_safe(position, partial(_resolve, future), synced=synced)
            await future

    def is_safe(self, position: int, *, synced: bool = False) -> bool:
        """Whether `position` has reached the policy, or (`synced`) the disk."""
        return position <= (self.log.durable_upto if synced else self.safe_upto)

    def call_when_safe(self, position: int, callback: Callable[[], None], *, synced: bool = False) -> None:
        """Call back once `position` is safe or can no longer become so: ask `is_safe` then."""
        if self.log.poisoned is not None or self._abandoned:
            # No further write or sync would call back.
            asyncio.get_running_loop().call_soon(callback)
            return
        self._serial += 1
        heappush(self._waiting_for_sync if synced else self._waiting, (position, self._serial, callback))
        if synced or self._fsync == "always":
            self._want_sync(position)

    def answer(self, position: int, replies: Replies, done: Done, *, synced: bool = False) -> None:
        """Call back with the replies once `position` is safe; with a refusal alone if it cannot become so."""
        self.call_when_safe(
            position, partial(self._answer, position, replies, done, synced=synced), synced=synced
        )

    def _answer(self, position: int, replies: Replies, done: Done, *, synced: bool) -> None:
        if self.is_safe(position, synced=synced):
            done(replies)
        else:
            # Rarely: the log has failed, or IDs have to be promised first.
            refusal = self._refusal()
            if refusal is None:
                self.answer(position, replies, done, synced=synced)
            else:
                done(Refused(refusal))

    def _refusal(self) -> EngineError | None:
        """What there is in the place of replies that cannot become safe; None as long as they can."""
        if self.log.poisoned is not None:
            return errors.storage_failed(is_unknown=True)
        return errors.restarting(is_unknown=True) if self._abandoned else None

    # --- a new segment --------------------------------------------------------------------------------------

    def start_segment(self, prepared: PreparedSegment) -> int:
        """Begin a new file, between two turns. Returns the position where it begins. Raises
        LogPoisonedError.
        """
        position = self.log.start_segment(prepared)
        self._flush_soon()
        return position

    @property
    def reserved_ms(self) -> int:
        """The time up to which IDs may have been given, according to the log."""
        return max(self._asked_ms, self.log.recovery.reservation_ms)

    # --- writing and syncing --------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Write what is staged, or begin to; while a thread writes, that follows it."""
        self._flush_scheduled = False
        if self._closed or self._writing is not None or self._is_stalled:
            return
        loop = asyncio.get_running_loop()
        batch, began = self.log.take_staged(), loop.time()
        if batch.upto - batch.start > INLINE_WRITE_BYTES_MAX:
            self._writing = loop.run_in_executor(self._write_thread, self.log.write, batch)
            self._writing.add_done_callback(partial(self._end_long_write, began))
            return
        with suppress(LogPoisonedError, StorageFullError):
            self.log.write(batch)
        self._end_write(began)

    def _end_write(self, began: float) -> None:
        """Let answers leave that waited for this write."""
        if self.log.poisoned is not None:
            self._fail_all()
            return
        if self._unsynced_since is None and self.log.written_upto > self.log.durable_upto:
            self._unsynced_since = began
        if self.log.stalled is not None:
            self._is_stalled = True
            self._note_full(self.log.stalled)
        elif self.log.written_upto < self.log.staged_upto:
            self._flush_soon()
        self._release()
        self._begin_sync()

    def _end_long_write(self, began: float, ended: asyncio.Future[None]) -> None:
        self._writing = None
        with suppress(LogPoisonedError, StorageFullError):
            ended.result()
        self._end_write(began)

    async def try_again(self) -> None:
        """Write what the disk had no room for, if it has by now. Raises `StorageFullError` if it has not."""
        if self._is_stalled:
            self._write_again()
            if self._writing is not None:
                await asyncio.wait((self._writing,))
        if self.log.stalled is not None:
            raise StorageFullError(self.log.stalled)

    def _write_again(self) -> None:
        self._is_stalled = False
        self._flush()

    async def write_all(self) -> None:
        """Write everything that is staged, unless the log has failed. No turn may run any more: what the disk
        has no room for now is given up, with the answers that wait for it.
        """
        self._is_stalled = False
        while self.log.written_upto < self.log.staged_upto and not self._is_stalled:
            if self.log.poisoned is not None:
                return
            if self._writing is not None:
                await asyncio.wait((self._writing,))
            self._flush()
        if self._is_stalled:
            self._abandoned = True
            self._fail_all()

    def _want_sync(self, position: int) -> None:
        """Have a sync begin behind the write of this cycle, or behind the sync that is under way."""
        self._sync_upto = max(self._sync_upto, position)
        if self._is_sync_due and not self._sync_scheduled:
            self._sync_scheduled = True
            asyncio.get_running_loop().call_soon(self._write_and_sync)

    def _write_and_sync(self) -> None:
        self._sync_scheduled = False
        # The end of a write begins the sync, but a thread may be writing.
        self._flush()
        if not self._closed:
            self._begin_sync()

    @property
    def _is_sync_due(self) -> bool:
        wanted = min(self._sync_upto, self.log.written_upto)
        return self._syncing is None and self.log.poisoned is None and wanted > self.log.durable_upto

    def _begin_sync(self) -> None:
        """Sync all that is written, if some of it has to be. What is written meanwhile is not covered."""
        if not self._is_sync_due:
            return
        if self.on_sync_begins is not None:
            self.on_sync_begins()
        loop, upto = asyncio.get_running_loop(), self.log.written_upto
        self._sync_began = loop.time()
        if not self._begin_kernel_sync(upto):
            in_thread = self._syncing = loop.run_in_executor(self._thread, self.log.sync, upto)
            in_thread.add_done_callback(lambda ended: self._end_sync(ended.result))

    def _begin_kernel_sync(self, upto: int) -> bool:
        """Let the kernel sync, if it can."""
        descriptor = self.log.descriptor
        if self._kernel_syncs is None or descriptor is None:
            return False
        try:
            in_kernel = self._syncing = self._kernel_syncs.sync(descriptor)
        except OSError:
            # Nothing has begun, as with Linux before 4.18. The thread does it, and all that follow.
            self._end_kernel_syncs()
            return False
        in_kernel.add_done_callback(
            lambda ended: self._end_sync(partial(self.log.end_sync, upto, ended.result()))
        )
        return True

    def _end_sync(self, outcome: Callable[[], int]) -> None:
        began, self._syncing = self._sync_began, None
        took_s = asyncio.get_running_loop().time() - began
        self.sync_seconds.observe(took_s)
        was_slow = self._slow_syncs.is_slow
        self._slow_syncs.observe(took_s)
        self._note_slow(took_s, was_slow=was_slow)
        try:
            outcome()
        except LogPoisonedError:
            self._fail_all()
            return
        self._unsynced_since = began if self.log.written_upto > self.log.durable_upto else None
        while self._promises and self._promises[0][0] <= self.log.durable_upto:
            self._promised_ms = self._promises.popleft()[1]
        if self._barrier is not None and self.log.durable_upto >= self._barrier[1]:
            self._barrier = None
        self._release()
        self._begin_sync()

    def _note_slow(self, seconds: float, *, was_slow: bool) -> None:
        if was_slow or self._slow_syncs.is_slow:
            self._events.disk_slow(seconds if self._slow_syncs.is_slow else None)

    def _look_at_sync(self) -> None:
        """A disk that hangs is slow before its sync ends."""
        if self._syncing is not None:
            seconds = asyncio.get_running_loop().time() - self._sync_began
            self._slow_syncs.observe_unfinished(seconds)
            if seconds > SLOW_S:
                self._note_slow(seconds, was_slow=True)

    def _release(self) -> None:
        """Let answers leave that may, in the order of their frames."""
        self._put_upto(self._waiting, self.safe_upto)
        self._put_upto(self._waiting_for_sync, self.log.durable_upto)
        self._answers.leave()
        if self.on_synced is not None and self.log.durable_upto > self._told_upto:
            self._told_upto = self.log.durable_upto
            self.on_synced(self._told_upto)

    def _put_upto(self, waiting: list[_Wait], upto: int) -> None:
        while waiting and waiting[0][0] <= upto:
            self._answers.put(heappop(waiting)[2])

    def _fail_all(self) -> None:
        """Nothing that waits can become safe any more: let all waiters check."""
        if self.log.poisoned is not None and not self._has_failed:
            self._has_failed = True
            self._events.log_failed(self.log.poisoned)
        for waiting in (self._waiting, self._waiting_for_sync):
            self._put_upto(waiting, NEVER_SAFE)
        self._answers.leave_all()

    # --- the second's work ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to sync once a second, and to mark the log after a second of idling."""
        if self.log.descriptor is not None:
            with suppress(OSError):
                self._kernel_syncs = KernelSyncs()
        self._tick_later()

    def _tick_later(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(SYNC_INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._tick_later()
        self._look_at_sync()
        if self._is_stalled:
            self._write_again()
        if self._is_full:
            self.look_for_room()
        if self.log.poisoned is not None:
            return
        self._look_for_file()
        if self._fsync == "no":
            return
        staged = self.log.staged_upto
        if staged > self.log.durable_upto:
            self._want_sync(staged)
        elif staged > self._marked_upto:
            self._mark()
        since = self._unsynced_since
        if since is not None and self._fsync == "everysec":
            asyncio.get_running_loop().call_at(since + RISK_S_MAX, self._hold_if_late, since)

    def _look_for_file(self) -> None:
        """Have the thread of the syncs look whether the file is still where a start looks for it."""
        if self._looking is None:
            file = self.log.open_file
            self._looking = asyncio.get_running_loop().run_in_executor(
                self._thread, self.log.is_in_place, file
            )
            self._looking.add_done_callback(partial(self._end_look, file))

    def _end_look(self, file: OpenFile, ended: asyncio.Future[bool]) -> None:
        self._looking = None
        # A path that cannot be looked at now says nothing of the file.
        if self._closed or ended.cancelled() or ended.exception() is not None:
            return
        try:
            self.log.end_look(file, is_in_place=ended.result())
        except LogPoisonedError:
            self._fail_all()

    def _hold_if_late(self, since: float) -> None:
        """If a sync takes too long, let answers wait for the disk, rather than risk more of what was
        answered.
        """
        if since == self._unsynced_since and self.log.poisoned is None and not self._closed:
            self._hold(self.log.staged_upto, self.log.staged_upto)

    def _mark(self) -> None:
        """Record that everything before is on disk: recovery treats damage there as damage, not as a torn
        tail.
        """
        try:
            self.log.ensure_reserve()
            self._marked_upto = self.log.mark(clean=False)
        except (StorageFullError, LogPoisonedError):
            return
        self._flush()
        self._want_sync(self._marked_upto)

    async def finish_turns(self) -> None:
        """After a fault: write what whole turns have staged, and sync it if an answer waits for that."""
        await self.write_all()
        if self._waiting or self._waiting_for_sync:
            self._sync_upto = self.log.staged_upto
            self._begin_sync()
        await self._end_syncs()
        if self._ticker is not None:
            self._ticker.cancel()
        self._abandoned = self._closed = True
        self._release()
        self._fail_all()

    async def abandon(self) -> None:
        """Then: close the log's files as a crash would. The directory stays locked."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.log.abandon)
        self._end_threads()

    async def close(self) -> None:
        """Write and sync what is staged, with a clean mark after it, and release the directory."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self.write_all()
        # From here on the log is the thread's alone.
        self._closed = True
        await self._end_syncs()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close_log)
        finally:
            self._end_threads()
            self._release()
            self._fail_all()

    async def _end_syncs(self) -> None:
        while self._syncing is not None:
            await asyncio.wait((self._syncing,))

    def _end_kernel_syncs(self) -> None:
        if self._kernel_syncs is not None:
            self._kernel_syncs.close(self._thread)
            self._kernel_syncs = None

    def _end_threads(self) -> None:
        self._end_kernel_syncs()
        self._thread.shutdown(wait=False)
        self._write_thread.shutdown(wait=False)

    def _close_log(self) -> None:
        # A floor once in force stays so: what it stands for may have been shown and lost with a stream that
        # has had no publish since.
        self.log.close(floor_ms=self.log.recovery.floor_ms)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
