"""The log itself: frames staged in order, written in batches, synced, and given up on at the first doubt.

Knows: positions, the chain, the reserve, poison, when a new segment may be named and an old file may go.
Must never know: who waits for a position, how often to sync, or what a payload means.

A position is the number of bytes of all frames ever logged up to a point; it grows over segments and
restarts. `durable_upto <= written_upto <= staged_upto`.

A new segment makes no command wait. Its file is made beforehand and is empty; from one frame to the next the
log goes on there, and only once that is synced does the manifest name it. Recovery goes on by itself in a
segment that continues the last one named, so there is no moment at which a crash would lose it:

    prepare_segment     segment-2 is there, empty and synced with its name
    start_segment       its first frame says where the log goes on; syncs cover segment-1, then segment-2
    name_segments       the manifest: segment-1 as it was sealed, then segment-2
    create_base         what is in memory, as of the position where segment-2 begins
    install_base        the manifest: that base, then segment-2; then segment-1 goes

Threads: nothing here locks. `stage`, `take`, `start_segment` and `ensure_reserve` belong to one thread;
`write` may run in another, one batch at a time, in the order taken; `sync` may run in a third, one at a time,
beside both; what works on files alone (`prepare_segment`, `name_segments`, `create_base`, `install_base`) in
a fourth, one after the other. `close` needs the log to itself.
"""

import errno
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from engine.codec import (
    FILE_FRAME_BYTES,
    HEADER_BYTES,
    MARK_PAYLOAD,
    RESERVE_PAYLOAD,
    Damage,
    Kind,
    encode_file_frame,
    encode_header,
)
from engine.log.errors import LogPoisonedError, LogRefusedError, StorageFullError
from engine.log.files import (
    BaseFile,
    PreparedSegment,
    Salt,
    create_first_segment,
    next_number,
    prepare_segment,
)
from engine.log.manifest import MANIFEST, Base, Manifest, Seal, Segment
from engine.log.recovery import (
    PAYLOAD_KINDS,
    LogTail,
    ProgressCallback,
    Recovery,
    check_empty,
    frames,
    ignore_progress,
    load_manifest,
    recover,
    remove_temporaries,
    settle,
)
from engine.storage import Handle, Storage

RESERVE_BYTES = 8 << 20  # decision 5: enough for what a command may log beyond the room it asked for

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_random_salt: Salt = partial(secrets.randbits, 32)


class FrameBatch(NamedTuple):
    """Frames for one write: at log positions `start` to `upto`, all in one segment."""

    start: int
    upto: int
    buffers: list[bytes]
    segment: Segment
    handle: Handle


class Log:
    """An open log. Use `Log.open`; `recovery` says what was found, `replay` yields it.

    `staged_upto`, `written_upto` and `durable_upto` are positions; `poisoned` is None, or why the log is
    read-only until restart.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        recovery: Recovery,
        tail: LogTail,
        handle: Handle,
        *,
        reserve_bytes: int,
        salt: Salt,
    ) -> None:
        self.recovery = recovery
        self.poisoned: str | None = None
        self._storage = storage
        self._manifest = manifest
        self._reserve_bytes = reserve_bytes
        self._new_salt = salt
        self._recovered = [
            (file, file.seal.length if file.seal else tail.length) for file in manifest.files()
        ]
        self._staged: list[bytes] = []
        self._segment = tail.segment
        self._handle = handle
        # What was staged and not taken when a segment ended.
        self._ended: deque[FrameBatch] = deque()
        # Files for which no frames are staged any more, but which are not wholly synced yet.
        self._outgoing: deque[tuple[Segment, Handle]] = deque()
        self._salt = tail.salt
        self._sequence = tail.sequence
        self._checksum = tail.checksum
        self.staged_upto = self.written_upto = self.durable_upto = tail.segment.position + tail.length
        self._taken_upto = self.staged_upto
        self._reserved_upto = self.staged_upto

    @classmethod
    def open(
        cls,
        storage: Storage,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        salt: Salt = _random_salt,
        on_progress: ProgressCallback = ignore_progress,
    ) -> "Log":
        """Lock the directory and recover its log, or begin one where there is none. `on_progress`
        gets the number of verified bytes and the total, now and then.

        Raises `StorageLockedError` (another process), `StorageRefusedError` (the directory) or
        `LogRefusedError` (the files), and releases the lock then.
        """
        storage.lock()
        try:
            return cls._open(storage, reserve_bytes, salt, on_progress)
        except OSError as error:
            storage.unlock()
            raise LogRefusedError(error.filename or "data directory", error.strerror or str(error)) from error
        except BaseException:
            storage.unlock()
            raise

    @classmethod
    def _open(cls, storage: Storage, reserve_bytes: int, salt: Salt, on_progress: ProgressCallback) -> "Log":
        manifest = load_manifest(storage)
        if manifest is None:
            # A manifest comes before any file, so that files without one can always be refused.
            manifest = Manifest()
            storage.replace(MANIFEST, [manifest.encode()])
        if not manifest.segments:
            check_empty(storage)
            segment = create_first_segment(storage, next_number(storage, manifest), salt())
            manifest = Manifest(None, (segment,))
            storage.replace(MANIFEST, [manifest.encode()])
        recovery, tail, recovered = recover(storage, manifest, on_progress)
        handle = settle(storage, manifest, recovered, tail)
        if recovered != manifest:
            storage.replace(MANIFEST, [recovered.encode()])
        manifest = recovered
        remove_temporaries(storage)
        # What is seen may be the work of a process that was killed just before it synced the names.
        storage.sync_directory()
        return cls(storage, manifest, recovery, tail, handle, reserve_bytes=reserve_bytes, salt=salt)

    def replay(self) -> Iterator[bytes]:
        """Yield the payloads that were recovered, in order: the base's, then the segments'.

        Memory is bounded by one frame. Raises `LogRefusedError` if the disk gives other bytes than at `open`.
        """
        for file, length in self._recovered:
            yield from self._replay(file, length)

    def _replay(self, file: Base | Segment, length: int) -> Iterator[bytes]:
        for frame in frames(self._storage, file, length):
            if isinstance(frame, Damage):
                raise LogRefusedError(file.name, frame.reason, offset=frame.offset, repairable=True)
            if frame.kind in PAYLOAD_KINDS:
                yield frame.payload

    @property
    def manifest(self) -> Manifest:
        """The files of the log."""
        return self._manifest

    @property
    def base_bytes(self) -> int:
        """How long the base is; 0 without one."""
        return self._manifest.base.seal.length if self._manifest.base else 0

    @property
    def total_bytes(self) -> int:
        """How long all files of the log are together."""
        return self.base_bytes + self.staged_upto - self._manifest.segments[0].position

    def stage(self, payload: bytes, kind: Kind = Kind.RECORDS) -> int:
        """Put a frame behind all others; return its end's position, safe once that is written or synced."""
        self._check_poison()
        header, checksum = encode_header(
            kind, self._sequence + 1, self.durable_upto, self._checksum, self._salt, payload
        )
        self._sequence += 1
        self._checksum = checksum
        self._staged.append(header)
        self._staged.append(payload)
        self.staged_upto += HEADER_BYTES + len(payload)
        return self.staged_upto

    def mark(self, *, clean: bool) -> int:
        """Stage a frame that only records what is durable by now; `clean` as the last act."""
        return self.stage(MARK_PAYLOAD.pack(clean), Kind.MARK)

    def reserve_ids(self, upto_ms: int) -> int:
        """Stage the promise that after a crash no ID is given up to this time; sync it before using any."""
        return self.stage(RESERVE_PAYLOAD.pack(upto_ms), Kind.RESERVE)

    def take(self) -> FrameBatch:
        """Return what was staged since the last call, to be given to `write`: all of it, but for frames of
        the next segment.
        """
        return self._ended.popleft() if self._ended else self._take()

    def _take(self) -> FrameBatch:
        batch = FrameBatch(self._taken_upto, self.staged_upto, self._staged, self._segment, self._handle)
        self._staged = []
        self._taken_upto = batch.upto
        return batch

    def write(self, batch: FrameBatch) -> None:
        """Hand a batch to the system with one write. Blocks. An error poisons the log."""
        self._check_poison()
        assert batch.start == self.written_upto, "batches are written in the order they were taken"
        if batch.start == batch.upto:
            return
        try:
            batch.handle.append(b"".join(batch.buffers))
        except (OSError, MemoryError) as error:
            # Best effort: a part that stays is a torn tail to recovery.
            with suppress(OSError):
                self._storage.truncate(batch.segment.name, batch.start - batch.segment.position)
            raise self._poison("write", batch.segment, error) from error
        self._check_poison()  # a sync may have failed meanwhile: then this write promises nothing
        self.written_upto = batch.upto

    def sync(self, upto: int | None = None) -> int:
        """Make everything written durable, or what is `upto` a position, and return that. Blocks. An error
        poisons the log.
        """
        self._check_poison()
        # Read in this order: a segment that begins meanwhile holds nothing below `upto`.
        upto = self.written_upto if upto is None else upto
        handle = self._handle
        outgoing = len(self._outgoing)
        if upto > self.durable_upto:
            try:
                self._sync_files(handle, outgoing, upto)
            except OSError as error:
                raise self._poison("sync", self._segment, error) from error
            self.durable_upto = upto
        return upto

    def _sync_files(self, handle: Handle, outgoing: int, upto: int) -> None:
        """Sync `handle`, and before it the oldest `outgoing` files, until one is not wholly written."""
        for _ in range(outgoing):
            segment, old = self._outgoing[0]
            assert segment.seal is not None, "what takes no frames is sealed"
            old.sync()
            if segment.position + segment.seal.length > upto:
                return
            old.close()
            self._outgoing.popleft()
            with suppress(OSError):  # gives back the reserve behind the end; it costs room, no safety
                self._storage.truncate(segment.name, segment.seal.length)
            if old is handle:
                return
        handle.sync()

    def _check_poison(self) -> None:
        if self.poisoned is not None:
            raise LogPoisonedError(self.poisoned)

    def _poison(self, what: str, segment: Segment, error: BaseException) -> LogPoisonedError:
        """Remember the first failure. Never retry: a second sync may succeed although data was lost."""
        self.poisoned = self.poisoned or f"{what} of {segment.name} failed: {error}"
        return LogPoisonedError(self.poisoned)

    def ensure_reserve(self, bytes_wanted: int = 0) -> None:
        """Raise `StorageFullError` unless the reserve is there behind the end, and `bytes_wanted` before it.

        To be asked before a command runs. Room is taken a whole reserve ahead, so that nearly every call is
        one comparison.
        """
        self._check_poison()
        needed_upto = self.staged_upto + bytes_wanted + self._reserve_bytes
        if needed_upto <= self._reserved_upto:
            return
        try:
            self._preallocate(needed_upto + self._reserve_bytes)
        except OSError:
            self._preallocate_last(needed_upto)

    def _preallocate_last(self, upto: int) -> None:
        """Ask for the bare need, after more than that was refused."""
        try:
            self._preallocate(upto)
        except OSError as error:
            raise StorageFullError(f"no room for {self._segment.name} to grow: {error.strerror}") from error

    def _preallocate(self, upto: int) -> None:
        self._handle.preallocate(upto - self._segment.position)
        self._reserved_upto = upto

    # --- files ----------------------------------------------------------------------------------------------

    def prepare_segment(self) -> PreparedSegment:
        """Make the file in which the log may go on. Blocks; an `OSError` leaves the log as it is."""
        self._check_poison()
        number = next_number(self._storage, self._manifest)
        return prepare_segment(self._storage, number, self._new_salt(), room_bytes=2 * self._reserve_bytes)

    def start_segment(self, prepared: PreparedSegment) -> int:
        """Let all further frames go to the prepared file, and return the position where it begins.

        What is staged by now goes to the one before. The manifest does not change; see `name_segments`.
        """
        self._check_poison()
        if self._staged:
            self._ended.append(self._take())
        position = self.staged_upto
        sealed = replace(
            self._segment, seal=Seal(position - self._segment.position, self._checksum), stop=None
        )
        segment = Segment(prepared.number, position, self._sequence + 1, self._checksum)
        frame, checksum = encode_file_frame(
            prepared.salt, position, segment.sequence, segment.previous, self.durable_upto
        )
        self._manifest = replace(self._manifest, segments=(*self._manifest.segments[:-1], sealed, segment))
        self._outgoing.append((sealed, self._handle))
        self._segment, self._handle, self._salt = segment, prepared.handle, prepared.salt
        self._sequence, self._checksum = segment.sequence, checksum
        self._staged.append(frame)
        self.staged_upto += len(frame)
        self._reserved_upto = position + prepared.room_bytes
        return position

    def name_segments(self) -> None:
        """Let the manifest name all segments, the last one's first frame being synced. Blocks.

        An `OSError` changes nothing for the log: recovery finds the segments by themselves.
        """
        assert self.durable_upto >= self._segment.position + FILE_FRAME_BYTES, "the first frame is synced"
        self._storage.replace(MANIFEST, [self._manifest.encode()])

    def create_base(self, position: int) -> BaseFile:
        """Begin a base that stands for everything before `position`, where a segment begins. Blocks."""
        number = next_number(self._storage, self._manifest)
        return BaseFile(self._storage, number, position, self._new_salt())

    def install_base(self, base: Base) -> None:
        """Let the manifest name the base instead of what is before it, then remove that. Blocks.

        After an `OSError` either manifest may be on disk. Both are good, as long as no file goes
        that either names.
        """
        old = self._manifest
        segments = tuple(segment for segment in old.segments if segment.position >= base.position)
        manifest = Manifest(base, segments)
        self._storage.replace(MANIFEST, [manifest.encode()])
        self._manifest = manifest
        named = {file.name for file in manifest.files()}
        with suppress(OSError):  # what stays goes after the next start
            for file in old.files():
                if file.name not in named:
                    self._storage.unlink(file.name)
            self._storage.sync_directory()

    def close(self, *, clean: bool = True, floor_ms: int | None = None) -> None:
        """Write and sync what is staged, put a clean mark behind it, and unlock. `floor_ms` is the floor for
        IDs that the next start shall have, though there is no crash; 0 is none.

        The manifest then says how long the last file is, so that an end that is missing later is noticed.

        With `clean` false, or poisoned, only let go. On a full disk there is no mark: the next start takes it
        for a crash, which costs nothing but a jump of the IDs.
        """
        try:
            if clean and self.poisoned is None:
                self._finish(floor_ms)
        finally:
            self.abandon()
            self._storage.unlock()

    def abandon(self) -> None:
        """Close the files, as a crash would, but keep the directory locked."""
        for _, handle in self._outgoing:
            handle.close()
        self._handle.close()

    def _finish(self, floor_ms: int | None) -> None:
        while self.written_upto < self.staged_upto:
            self.write(self.take())
        self.sync()
        try:
            self.ensure_reserve()
        except StorageFullError:
            return
        if floor_ms is not None:
            self.reserve_ids(floor_ms)
        self.mark(clean=True)
        self.write(self.take())
        self.sync()
        self._record_stop()

    def _record_stop(self) -> None:
        """A failure here costs no frame: the record that the disk has, if it has one, is true."""
        stop = Seal(self.written_upto - self._segment.position, self._checksum)
        try:
            self._storage.replace(MANIFEST, [self._manifest.stopped(stop).encode()])
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise self._poison("clean stop", self._segment, error) from error
