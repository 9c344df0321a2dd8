"""New files of the log: a segment, and a base.

Knows: how a file begins, and when it is complete and synced.
Must never know: who names it, or when.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from engine.codec import FILE_FRAME_BYTES, RESERVE_PAYLOAD, Kind, encode_file_frame, encode_header
from engine.log.manifest import Base, Manifest, Seal, Segment, file_number, run_name, run_number
from engine.storage import Handle, Storage

SET_ASIDE: Final = ".set-aside"  # behind the name of what is not served and not deleted

Salt = Callable[[], int]  # gives 32 random bits


class PreparedSegment(NamedTuple):
    """The file of a segment to come: empty, synced with its name, with room for `room_bytes`."""

    number: int
    handle: Handle
    salt: int
    room_bytes: int


def free_name(storage: Storage, stem: str) -> str:
    """Return a name that nothing has yet."""
    names = storage.names()
    number = 1
    while True:
        name = stem if number == 1 else f"{stem}.{number}"
        if name not in names:
            return name
        number += 1


def next_number(storage: Storage, manifest: Manifest) -> int:
    """Return a number above every file's: names are never used twice, not even those of forgotten files."""
    numbers = [(file_number(name), run_number(name)) for name in storage.names()]
    there = [number for pair in numbers for number in pair if number is not None]
    return max([0, *there, *manifest.runs, *(file.number for file in manifest.files())]) + 1


def prepare_segment(storage: Storage, number: int, salt: int, *, room_bytes: int) -> PreparedSegment:
    """Make the file of a segment before it is known where in the log it begins. If that fails, none stays."""
    handle = storage.create(Segment(number, 0, 0, 0).name)
    prepared = PreparedSegment(number, handle, salt, room_bytes)
    try:
        if room_bytes:
            handle.preallocate(room_bytes)
        handle.sync()
        storage.sync_directory()
    except BaseException:
        discard_segment(storage, prepared)
        raise
    return prepared


def discard_segment(storage: Storage, prepared: PreparedSegment) -> None:
    """Remove the file of a segment in which the log does not go on. Best effort: a start removes it too."""
    prepared.handle.close()
    with suppress(OSError):
        storage.unlink(Segment(prepared.number, 0, 0, 0).name)


def create_first_segment(storage: Storage, number: int, salt: int) -> Segment:
    """Make the segment that begins a log, with its first frame, synced."""
    segment = Segment(number, 0, 0, 0)
    prepared = prepare_segment(storage, number, salt, room_bytes=0)
    try:
        prepared.handle.append(encode_file_frame(salt, 0, 0, 0, 0)[0])
        prepared.handle.sync()
    finally:
        prepared.handle.close()
    return segment


class BaseFile:
    """A base being written, which stands for the log before `position`; no manifest names it yet.

    All of it blocks. `append` as often as there is more, then `finish`, or `discard`.
    """

    def __init__(self, storage: Storage, number: int, position: int, salt: int) -> None:
        self._storage = storage
        self._number = number
        self._position = position
        self._salt = salt
        self._sequence = 0
        frame, self._checksum = encode_file_frame(salt, position, 0, 0, position)
        self.length = FILE_FRAME_BYTES
        self._handle = storage.create(self._base().name)
        try:
            self._handle.append(frame)
            # After a power cut, a start recognises the rest of this file by it.
            self._handle.sync()
        except BaseException:
            with suppress(OSError):
                self.discard()
            raise

    def _base(self) -> Base:
        return Base(self._number, self._position, Seal(0, 0))

    def append(self, payloads: Iterable[bytes], kind: Kind = Kind.BASE) -> None:
        """Write each payload as a frame, all of them with one write."""
        buffers: list[bytes] = []
        for payload in payloads:
            self._sequence += 1
            header, self._checksum = encode_header(
                kind, self._sequence, 0, self._checksum, self._salt, payload
            )
            buffers += (header, payload)
            self.length += len(header) + len(payload)
        if buffers:
            self._handle.append(b"".join(buffers))

    def finish(self, *, reservation_ms: int) -> Base:
        """Sync the file and its name.

        It ends with the highest reservation of what it replaces, so that no ID is given twice.
        """
        try:
            self.append([RESERVE_PAYLOAD.pack(reservation_ms)], Kind.RESERVE)
            self._handle.sync()
            self._storage.sync_directory()
        finally:
            self._handle.close()
        return Base(self._number, self._position, Seal(self.length, self._checksum))

    def discard(self) -> None:
        """Remove the file, which must not be named."""
        self._handle.close()
        self._storage.unlink(self._base().name)


class RunsFile:
    """A file of runs that grows, named by the manifest. All of it blocks."""

    def __init__(self, storage: Storage, number: int) -> None:
        self.number = number
        self.length = 0
        self._storage = storage
        self._handle = storage.create(run_name(number))
        try:
            self._handle.sync()
            storage.sync_directory()
        except BaseException:
            self._handle.close()
            raise

    def append(self, content: bytes) -> None:
        """Write and sync. After an error the file is as it was, or not to be written any more."""
        try:
            self._handle.append(content)
            self._handle.sync()
        except OSError:
            self._handle.close()
            with suppress(OSError):
                self._storage.truncate(run_name(self.number), self.length)
            raise
        self.length += len(content)

    def close(self) -> None:
        """Write no more."""
        self._handle.close()
