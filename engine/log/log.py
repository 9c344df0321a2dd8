"""The log itself: frames staged in order, written in batches, synced, and given up on at the first doubt.

Knows: positions, the chain, the reserve, poison, when a new segment may be named.
Must never know: who waits for a position, how often to sync, or what a payload means.

A position is the number of bytes of all frames ever logged up to a point; it grows over segments and
restarts. `durable_upto <= written_upto <= staged_upto`.

Threads: nothing here locks. `stage`, `take` and `ensure_reserve` belong to one thread; `write` may run in
another, one batch at a time, in the order taken; `sync` may run in a third, one at a time, beside both.
`seal_and_start_segment` and `close` need the log to themselves.
"""

import secrets
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
    encode_header,
)
from engine.log.errors import LogPoisoned, LogRefused, StorageFull
from engine.log.files import Salt, create_segment, next_number
from engine.log.manifest import MANIFEST, Base, Manifest, Seal, Segment
from engine.log.recovery import (
    PAYLOAD_KINDS,
    Recovery,
    Tail,
    check_age,
    frames,
    load_manifest,
    recover,
    remove_temporaries,
    settle,
)
from engine.storage import Handle, Storage

RESERVE_BYTES = 8 << 20  # decision 5: enough for what a command may log beyond the room it asked for

_random_salt: Salt = partial(secrets.randbits, 32)


class Batch(NamedTuple):
    """Frames for one write: they lie at positions `start` to `upto`."""

    start: int
    upto: int
    buffers: list[bytes]


class Log:
    """An open log. Use `Log.open`; `recovery` tells what was found, `replay` gives it.

    `staged_upto`, `written_upto` and `durable_upto` are positions; `poisoned` is None, or why the log is
    read-only until restart.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        recovery: Recovery,
        tail: Tail,
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
        self._continue(tail, handle)

    def _continue(self, tail: Tail, handle: Handle) -> None:
        """Go on behind `tail`, all of which is synced."""
        self._segment = tail.segment
        self._handle = handle
        self._salt = tail.salt
        self._sequence = tail.sequence
        self._checksum = tail.checksum
        self.staged_upto = self.written_upto = self.durable_upto = tail.segment.position + tail.length
        self._taken_upto = self.staged_upto
        self._reserved_upto = self.staged_upto

    @classmethod
    def open(
        cls, storage: Storage, *, reserve_bytes: int = RESERVE_BYTES, salt: Salt = _random_salt
    ) -> "Log":
        """Lock the directory and recover its log, or begin one where there is none.

        Raises `StorageLocked` (another process), `StorageRefused` (the directory) or `LogRefused` (the
        files), and lets go of the lock then.
        """
        storage.lock()
        try:
            return cls._open(storage, reserve_bytes, salt)
        except OSError as error:
            storage.unlock()
            raise LogRefused(error.filename or "data directory", error.strerror or str(error)) from error
        except BaseException:
            storage.unlock()
            raise

    @classmethod
    def _open(cls, storage: Storage, reserve_bytes: int, salt: Salt) -> "Log":
        manifest = load_manifest(storage)
        if manifest is None:
            # A manifest comes before any file, so that files without one can always be refused.
            manifest = Manifest()
            storage.replace(MANIFEST, [manifest.encode()])
        if not manifest.segments:
            check_age(storage, manifest)
            segment = Segment(next_number(storage, manifest), 0, 0, 0)
            create_segment(storage, segment, salt())[0].close()
            manifest = Manifest(None, (segment,))
            storage.replace(MANIFEST, [manifest.encode()])
        recovery, tail = recover(storage, manifest)
        handle = settle(storage, tail)
        remove_temporaries(storage)
        return cls(storage, manifest, recovery, tail, handle, reserve_bytes=reserve_bytes, salt=salt)

    def replay(self) -> Iterator[bytes]:
        """Yield the payloads that were recovered, in order: the base's, then the segments'.

        Memory is bounded by one frame. Raises `LogRefused` if the disk gives other bytes than at `open`.
        """
        for file, length in self._recovered:
            yield from self._replay(file, length)

    def _replay(self, file: Base | Segment, length: int) -> Iterator[bytes]:
        for frame in frames(self._storage, file, length):
            if isinstance(frame, Damage):
                raise LogRefused(file.name, frame.reason, offset=frame.offset, repairable=True)
            if frame.kind in PAYLOAD_KINDS:
                yield frame.payload

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
        """Stage a frame that only tells recovery what is durable by now; `clean` as the last act."""
        return self.stage(MARK_PAYLOAD.pack(clean), Kind.MARK)

    def reserve_ids(self, upto_ms: int) -> int:
        """Stage the promise that after a crash no ID is given up to this time; sync it before using any."""
        return self.stage(RESERVE_PAYLOAD.pack(upto_ms), Kind.RESERVE)

    def take(self) -> Batch:
        """Return everything staged since the last call, to be given to `write`."""
        batch = Batch(self._taken_upto, self.staged_upto, self._staged)
        self._staged = []
        self._taken_upto = batch.upto
        return batch

    def write(self, batch: Batch) -> None:
        """Hand a batch to the system with one write. Blocks. An error poisons the log."""
        self._check_poison()
        assert batch.start == self.written_upto, "batches are written in the order they were taken"
        if batch.start == batch.upto:
            return
        try:
            self._handle.append(b"".join(batch.buffers))
        except (OSError, MemoryError) as error:
            # Best effort: a part that stays is a torn tail to recovery.
            with suppress(OSError):
                self._storage.truncate(self._segment.name, batch.start - self._segment.position)
            raise self._poison("write", error) from error
        self._check_poison()  # a sync may have failed meanwhile: then this write promises nothing
        self.written_upto = batch.upto

    def sync(self) -> int:
        """Make everything written durable, and return its position. Blocks. An error poisons the log."""
        self._check_poison()
        upto = self.written_upto
        if upto > self.durable_upto:
            try:
                self._handle.sync()
            except OSError as error:
                raise self._poison("sync", error) from error
            self.durable_upto = upto
        return upto

    def _check_poison(self) -> None:
        if self.poisoned is not None:
            raise LogPoisoned(self.poisoned)

    def _poison(self, what: str, error: BaseException) -> LogPoisoned:
        """Remember the first failure. Nothing is tried again: a second sync may succeed and lie."""
        self.poisoned = self.poisoned or f"{what} of {self._segment.name} failed: {error}"
        return LogPoisoned(self.poisoned)

    def distrust(self, error: Exception) -> None:
        """Poison the log from outside: memory has changed in a way that it cannot hold."""
        self._poison("framing", error)

    def ensure_reserve(self, bytes_wanted: int = 0) -> None:
        """Raise `StorageFull` unless the reserve is there behind the end, and `bytes_wanted` before it.

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
            raise StorageFull(f"no room for {self._segment.name} to grow: {error.strerror}") from error

    def _preallocate(self, upto: int) -> None:
        self._handle.preallocate(upto - self._segment.position)
        self._reserved_upto = upto

    def seal_and_start_segment(self) -> None:
        """Finish the segment and go on in a new one; everything staged must be written.

        The order is that of faults.md 1.5: the new file synced with its name, then the manifest, then memory.
        An `OSError` leaves the log going on as it was. If the directory has the new manifest already, but not
        surely the disk, the log is poisoned: neither of the two may be written past.
        """
        assert self.written_upto == self.staged_upto, "what is staged belongs to the segment that ends here"
        length = self.sync() - self._segment.position
        number = next_number(self._storage, self._manifest)
        segment = Segment(number, self.durable_upto, self._sequence + 1, self._checksum)
        salt = self._new_salt()
        handle, checksum = create_segment(self._storage, segment, salt)
        sealed = replace(self._segment, seal=Seal(length, self._checksum))
        manifest = replace(self._manifest, segments=(*self._manifest.segments[:-1], sealed, segment))
        try:
            self._storage.replace(MANIFEST, [manifest.encode()])
        except OSError as error:
            handle.close()
            self._poison_if_named(error)
            raise
        self._handle.close()
        with suppress(OSError):  # gives back the reserve behind the end; it costs room, no safety
            self._storage.truncate(sealed.name, length)
        self._manifest = manifest
        tail = Tail(segment, salt, segment.sequence, checksum, FILE_FRAME_BYTES, FILE_FRAME_BYTES)
        self._continue(tail, handle)

    def _poison_if_named(self, error: OSError) -> None:
        """Poison unless the old manifest is certainly still the one in force."""
        old = self._manifest.encode()
        with suppress(OSError):
            if self._storage.read(MANIFEST, 0, len(old) + 1) == old:
                return
        raise self._poison("replacing the manifest", error) from error

    def close(self, *, clean: bool = True) -> None:
        """Write and sync what is staged, put a clean mark behind it, and unlock.

        With `clean` false, or poisoned, only let go. On a full disk there is no mark: the next start takes it
        for a crash, which costs nothing but a jump of the IDs.
        """
        try:
            if clean and self.poisoned is None:
                self._finish()
        finally:
            self._handle.close()
            self._storage.unlock()

    def _finish(self) -> None:
        self.write(self.take())
        self.sync()
        try:
            self.ensure_reserve()
        except StorageFull:
            return
        self.mark(clean=True)
        self.write(self.take())
        self.sync()
