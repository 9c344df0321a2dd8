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

On a full disk this is the way out: after deletes the base is small, and the old files go with it. So it needs
little room to begin, and finds some: the ballast (`engine.log.ballast`) is given back first, the new segment
begins without a reserve, and the old one gives back its own as soon as it is synced. Until `end_rewrite` no
command takes of that room what the base needs.

Threads: nothing here locks. `stage`, `take`, `start_segment`, `begin_rewrite`, `end_rewrite`, `end_look`,
`ensure_reserve`, `ensure_bare_reserve` and `restore_reserve` belong to one thread; `write` may run in
another, one batch at a time, in the order taken; `sync` may run in a third, one at a time, beside both; what
works on files alone (`make_way`, `prepare_segment`, `discard_segment`, `name_segments`, `create_base`,
`install_base`, `create_runs`, `keep_ballast`) in a fourth, one after the other. `close` needs the log to
itself.
"""

import errno
import secrets
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple, NoReturn

from engine.codec import (
    FILE_FRAME_BYTES,
    HEADER_BYTES,
    MARK_PAYLOAD,
    RESERVE_PAYLOAD,
    Damage,
    Frame,
    Kind,
    encode_file_frame,
    encode_header,
)
from engine.log.ballast import give_ballast_back, take_ballast
from engine.log.errors import LogPoisonedError, LogRefusedError, StorageFullError
from engine.log.files import (
    SET_ASIDE,
    BaseFile,
    PreparedSegment,
    RunsFile,
    Salt,
    create_first_segment,
    discard_segment,
    free_name,
    next_number,
    prepare_segment,
)
from engine.log.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    Base,
    Manifest,
    Seal,
    Segment,
    run_name,
    run_number,
)
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
from engine.remedies import explain
from engine.storage import Handle, Storage

RESERVE_BYTES = 8 << 20  # Enough for what a command may log beyond the room it asked for
# A segment that begins on a full disk: its first frame, and what is staged without being asked for.
_LEAST_ROOM_BYTES = 64 << 10

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_random_salt: Salt = partial(secrets.randbits, 32)


_GONE = (
    "is not in the data directory any more: it was deleted or moved, or something was mounted over it; put "
    "the directory back in its place, or export first what is still served: a restart finds none of it"
)


class OpenFile(NamedTuple):
    """A segment and its open file."""

    segment: Segment
    handle: Handle


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
    read-only until restart; `stalled` is None, or why a batch was not written and has to be tried again.
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
        self.stalled: str | None = None
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
        # Whether the last segment has no payload: a base can stand for everything before it as it is.
        self._is_fresh = False
        # Whether commands must leave the disk's last room to a rewrite, until that ends.
        self.is_lent = False
        # Whether the disk refused room, and the reserve has not been whole since.
        self.is_full = False
        self.ballast_bytes = 0
        # Files that go; a disk may refuse even that, and why it did.
        self._obsolete: list[str] = []
        self._kept_because = ""

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
            try:
                return cls._open(storage, reserve_bytes, salt, on_progress)
            except OSError as error:
                # A torn tail is copied, a manifest replaced: that must be possible on a full disk too. Each
                # step of it may be done again.
                if error.errno not in _NO_ROOM or not give_ballast_back(storage):
                    raise
                return cls._open(storage, reserve_bytes, salt, on_progress)
        except OSError as error:
            storage.unlock()
            raise LogRefusedError(error.filename or "data directory", explain(error)) from error
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
            for frame in self._replay(file, length):
                yield frame.payload

    def _replay(self, file: Base | Segment, length: int) -> Iterator[Frame]:
        for frame in frames(self._storage, file, length):
            if isinstance(frame, Damage):
                raise LogRefusedError.of(file.name, frame)
            if frame.kind in PAYLOAD_KINDS:
                yield frame

    def place_of(self, number: int) -> tuple[str, int]:
        """The file and offset of a payload that `replay` has yielded, counted from 1. Reads them again."""
        places = (
            (file.name, frame.offset)
            for file, length in self._recovered
            for frame in self._replay(file, length)
        )
        return next(islice(places, number - 1, None))

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
        self._is_fresh = self._is_fresh and kind not in PAYLOAD_KINDS
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

    def take_staged(self) -> FrameBatch:
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
        """Hand a batch to the system with one write. Blocks. An error poisons the log.

        Raises `StorageFullError` where the disk has no room, though it was asked for some: then nothing of
        the batch is in the file, and the next `take` returns it again.
        """
        self._check_poison()
        assert batch.start == self.written_upto, "batches are written in the order they were taken"
        if batch.start == batch.upto:
            return
        try:
            batch.handle.append(b"".join(batch.buffers))
        except (OSError, MemoryError) as error:
            self._take_back(batch, error)
        self.stalled = None
        self._check_poison()  # a sync may have failed meanwhile: then this write promises nothing
        self.written_upto = batch.upto

    def _take_back(self, batch: FrameBatch, error: OSError | MemoryError) -> NoReturn:
        """Cut off what was written of a batch. A part that stays is a torn tail to recovery."""
        is_cut = False
        with suppress(OSError):
            self._storage.truncate(batch.segment.name, batch.start - batch.segment.position)
            is_cut = True
        if is_cut and isinstance(error, OSError) and error.errno in _NO_ROOM:
            self._ended.appendleft(batch)
            # The cut has given back what was kept behind the end.
            self._reserved_upto = batch.start
            self.is_full, self.stalled = True, _no_room(batch.segment, error)
            raise StorageFullError(self.stalled) from error
        raise self._poison("write", batch.segment, error) from error

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

    @property
    def open_file(self) -> OpenFile:
        """What the log grows in now."""
        return OpenFile(self._segment, self._handle)

    def is_in_place(self, file: OpenFile) -> bool:
        """Whether the next start would find this file. Blocks; for any thread. Raises OSError."""
        return self._storage.is_in_place(file.segment.name, file.handle)

    def end_look(self, file: OpenFile, *, is_in_place: bool) -> None:
        """End the look at a file; one in which the log still grows and that was not there poisons it: what is
        written is lost with the process.
        """
        self._check_poison()
        # A file in which the log does not grow any more may have gone with a rewrite.
        if file.segment is self._segment and not is_in_place:
            self.poisoned = f"{file.segment.name} {_GONE}"
            self._check_poison()

    @property
    def descriptor(self) -> int | None:
        """What may be synced in the place of `sync`, followed by `end_sync`; None where `sync` does more."""
        return None if self._outgoing else self._handle.descriptor

    def end_sync(self, upto: int, error: OSError | None) -> int:
        """End the sync of `descriptor` that began when `upto` was written. Returns and raises as `sync`."""
        if error is not None:
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
        self.poisoned = self.poisoned or f"{what} of {segment.name} failed: {explain(error)}"
        return LogPoisonedError(self.poisoned)

    def ensure_reserve(self, bytes_wanted: int = 0, *, makes_room: bool = False) -> None:
        """Raise `StorageFullError` unless the reserve is there behind the end, and `bytes_wanted` before it.

        To be asked before a command runs. Room is taken a whole reserve ahead, so that nearly every call is
        one comparison. A command that `makes_room` may use the first half of the reserve: else a full disk
        could never be made less full.
        """
        self._check_poison()
        reserve_bytes = self._reserve_bytes // 2 if makes_room else self._reserve_bytes
        needed_upto = self.staged_upto + bytes_wanted + reserve_bytes
        if self.is_lent:
            raise StorageFullError("what room there is on the disk is needed to rewrite the log")
        if self.stalled is not None:
            raise StorageFullError(self.stalled)
        if needed_upto <= self._reserved_upto:
            return
        try:
            self._preallocate(needed_upto + self._reserve_bytes)
        except OSError:
            self._preallocate_last(needed_upto)
        else:
            self.is_full = False

    def ensure_bare_reserve(self) -> None:
        """Take the reserve alone, and leave all other room to the ballast. Raises `StorageFullError`."""
        if self.staged_upto + self._reserve_bytes > self._reserved_upto:
            self._preallocate_last(self.staged_upto + self._reserve_bytes)

    def restore_reserve(self) -> None:
        """After the disk was full: try to have the reserve again, and as much ahead of it."""
        if self.is_full and not self.is_lent and self.stalled is None and self.poisoned is None:
            with suppress(OSError):
                self._preallocate(self.staged_upto + 2 * self._reserve_bytes)
                self.is_full = False

    def _preallocate_last(self, upto: int) -> None:
        """Ask for the bare need, after more than that was refused."""
        try:
            self._preallocate(upto)
        except OSError as error:
            self.is_full = True
            raise StorageFullError(_no_room(self._segment, error)) from error

    def _preallocate(self, upto: int) -> None:
        self._handle.preallocate(upto - self._segment.position)
        self._reserved_upto = max(self._reserved_upto, upto)

    # --- files ----------------------------------------------------------------------------------------------

    @property
    def is_ballast_whole(self) -> bool:
        """Whether `keep_ballast` has nothing to do."""
        return self.ballast_bytes >= 2 * self._reserve_bytes

    def keep_ballast(self) -> None:
        """Keep room for a rewrite on a full disk: as much as the reserve may have. Blocks; best effort."""
        self.ballast_bytes = take_ballast(self._storage, 2 * self._reserve_bytes)

    @property
    def fresh_position(self) -> int | None:
        """Where the last segment begins, if it holds no payload: then a rewrite needs no other one."""
        return self._segment.position if self._is_fresh else None

    def make_way(self) -> None:
        """Let a rewrite have the ballast's room, and that of files that had to stay. Blocks; an `OSError`
        leaves the log as it is.
        """
        self._check_poison()
        self._remove_obsolete()
        give_ballast_back(self._storage)
        self.ballast_bytes = 0

    def prepare_segment(self) -> PreparedSegment:
        """Make the file in which the log may go on; on a full disk, with little room. Blocks; an `OSError`
        leaves the log as it is.
        """
        self._check_poison()
        if not self.is_full:
            try:
                return self._prepare_segment(2 * self._reserve_bytes)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
        return self._prepare_segment(min(_LEAST_ROOM_BYTES, self._reserve_bytes))

    def _prepare_segment(self, room_bytes: int) -> PreparedSegment:
        number = next_number(self._storage, self._manifest)
        return prepare_segment(self._storage, number, self._new_salt(), room_bytes=room_bytes)

    def discard_segment(self, prepared: PreparedSegment) -> None:
        """Remove a file in which the log does not go on. Blocks."""
        discard_segment(self._storage, prepared)

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
        self._is_fresh = True
        self.is_full = self.is_full or prepared.room_bytes < 2 * self._reserve_bytes
        return position

    def begin_rewrite(self) -> None:
        """On a full disk let no command take of the room that the base needs, until `end_rewrite`."""
        self.is_lent = self.is_full

    def end_rewrite(self) -> None:
        """Let commands have the reserve again, if there is room for it."""
        self.is_lent = False
        if self.poisoned is None:
            with suppress(StorageFullError):
                self.ensure_bare_reserve()

    def name_segments(self) -> None:
        """Let the manifest name all segments, the last one's first frame being synced. Blocks.

        An `OSError` changes nothing for the log: recovery finds the segments by themselves.
        """
        assert self.durable_upto >= self._segment.position + FILE_FRAME_BYTES, "the first frame is synced"
        self._storage.replace(MANIFEST, [self._manifest.encode()])

    def create_runs(self) -> RunsFile:
        """Begin a file of runs, and let the manifest name it. Blocks; an `OSError` leaves all as it is."""
        self._check_poison()
        file = RunsFile(self._storage, next_number(self._storage, self._manifest))
        self._manifest = replace(self._manifest, runs=(*self._manifest.runs, file.number))
        try:
            self._storage.replace(MANIFEST, [self._manifest.encode()])
        except OSError:
            # The file goes with the next base; a start finds nothing that refers to it.
            file.close()
            raise
        return file

    @property
    def run_files(self) -> Sequence[int]:
        """The files of runs that the manifest names."""
        return self._manifest.runs

    def read_run(self, file: int, offset: int, length: int) -> bytes:
        """Bytes of a file of runs. Blocks; for any thread."""
        return self._storage.read(run_name(file), offset, length)

    def run_sizes(self, files: Sequence[int]) -> dict[int, int]:
        """The lengths of these files of runs, without those that are missing. Blocks."""
        there = set(self._storage.names())
        return {file: self._storage.size(run_name(file)) for file in files if run_name(file) in there}

    def settle_runs(self, lengths: Mapping[int, int]) -> list[str]:
        """At a start: cut files of runs to the length that something refers to; remove those to which nothing
        does, and set aside what no manifest named. Returns the new names of the latter. Blocks.
        """
        named, aside = self._manifest.runs, list[str]()
        manifest = replace(self._manifest, runs=tuple(sorted(lengths)))
        if manifest != self._manifest:
            self._storage.replace(MANIFEST, [manifest.encode()])
            self._manifest = manifest
        for name in self._storage.names():
            number = run_number(name)
            if number is None:
                continue
            size = self._storage.size(name)
            if number in lengths:
                if size > lengths[number]:
                    self._storage.truncate(name, lengths[number])
            elif number in named or not size:
                self._storage.unlink(name)
            else:
                aside.append(free_name(self._storage, f"{name}{SET_ASIDE}"))
                self._storage.rename(name, aside[-1])
        return aside

    def create_base(self, position: int) -> BaseFile:
        """Begin a base that stands for everything before `position`, where a segment begins. Blocks."""
        number = next_number(self._storage, self._manifest)
        return BaseFile(self._storage, number, position, self._new_salt())

    def install_base(self, base: Base, dead_runs: Collection[int] = ()) -> None:
        """Let the manifest name the base instead of what is before it, then remove that, and these files of
        runs. Blocks.

        After an `OSError` either manifest may be on disk. Both are good, as long as no file goes
        that either names.
        """
        old = self._manifest
        segments = tuple(segment for segment in old.segments if segment.position >= base.position)
        manifest = Manifest(base, segments, tuple(run for run in old.runs if run not in dead_runs))
        try:
            self._storage.replace(MANIFEST, [manifest.encode()])
        except OSError:
            self._discard_unnamed(base)
            raise
        self._manifest = manifest
        named = {file.name for file in manifest.files()}
        self._obsolete += [file.name for file in old.files() if file.name not in named]
        self._obsolete += [run_name(run) for run in old.runs if run not in manifest.runs]
        self._remove_obsolete()

    @property
    def leftovers(self) -> str:
        """Which files belong to the log no more and could not be removed, and why; else empty."""
        if not self._obsolete:
            return ""
        return f"{', '.join(self._obsolete)} could not be removed: {self._kept_because}"

    def _discard_unnamed(self, base: Base) -> None:
        """Remove the base, if its manifest did not even get its name: no power cut can bring it there."""
        with suppress(OSError):
            self._storage.sync_directory()
            if self._storage.read(MANIFEST, 0, MANIFEST_BYTES_MAX) == self._manifest.encode():
                self._storage.unlink(base.name)

    def _remove_obsolete(self) -> None:
        """Remove what no manifest names any more. What stays is tried again, at the latest by a start."""
        if not self._obsolete:
            return
        try:
            while self._obsolete:  # the oldest first: a start knows the others by the newest of them
                self._storage.unlink(self._obsolete[0])
                del self._obsolete[0]
            self._storage.sync_directory()
        except OSError as error:
            self._kept_because = explain(error)

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
        with suppress(StorageFullError):
            self._write_staged()
        self.sync()
        try:
            self.ensure_reserve()
            if floor_ms is not None:
                self.reserve_ids(floor_ms)
            self.mark(clean=True)
            self._write_staged()
        except StorageFullError:
            return
        self.sync()
        self._record_stop()

    def _write_staged(self) -> None:
        while self.written_upto < self.staged_upto:
            self.write(self.take_staged())

    def _record_stop(self) -> None:
        """A failure here costs no frame: the record that the disk has, if it has one, is true."""
        stop = Seal(self.written_upto - self._segment.position, self._checksum)
        try:
            self._storage.replace(MANIFEST, [self._manifest.stopped(stop).encode()])
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise self._poison("clean stop", self._segment, error) from error


def _no_room(segment: Segment, error: OSError) -> str:
    return f"no room for {segment.name} to grow: {explain(error)}"
