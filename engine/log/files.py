"""New files of the log: an empty segment, and a base.

Knows: that a file is complete and synced before anything may name it.
Must never know: who names it, or when.
"""

from collections.abc import Callable, Iterable

from engine.codec import FILE_FRAME_BYTES, RESERVE_PAYLOAD, Kind, encode_file_frame, encode_header
from engine.log.manifest import Base, Manifest, Seal, Segment, file_number
from engine.storage import Handle, Storage

Salt = Callable[[], int]  # gives 32 random bits


def next_number(storage: Storage, manifest: Manifest) -> int:
    """Return a number above every file's: names are never used twice, not even those of forgotten files."""
    there = [number for name in storage.names() if (number := file_number(name)) is not None]
    return max([0, *there, *(file.number for file in manifest.files())]) + 1


def create_segment(storage: Storage, segment: Segment, salt: int) -> tuple[Handle, int]:
    """Make the file of an empty segment, synced with its name; return it with its frame's checksum.

    A segment that a manifest names therefore always has its first frame, and an empty one is damage.
    """
    frame, checksum = encode_file_frame(salt, segment.position, segment.sequence, segment.previous)
    handle = storage.create(segment.name)
    try:
        handle.append(frame)
        handle.sync()
        storage.sync_directory()
    except BaseException:
        handle.close()
        raise
    return handle, checksum


def create_base(
    storage: Storage, number: int, position: int, payloads: Iterable[bytes], *, reservation_ms: int, salt: int
) -> Base:
    """Write and sync a base that stands for the log before `position`; the manifest does not name it yet.

    It ends with the highest reservation of what it replaces, so that no ID is given twice.
    """
    frame, checksum = encode_file_frame(salt, position, 0, 0)
    length = FILE_FRAME_BYTES
    base = Base(number, position, Seal(length, checksum))
    handle = storage.create(base.name)
    try:
        handle.append(frame)
        sequence = 1
        for kind, payload in _base_frames(payloads, reservation_ms):
            header, checksum = encode_header(kind, sequence, 0, checksum, salt, payload)
            handle.append(header + payload)
            length += len(header) + len(payload)
            sequence += 1
        handle.sync()
        storage.sync_directory()
    finally:
        handle.close()
    return Base(number, position, Seal(length, checksum))


def _base_frames(payloads: Iterable[bytes], reservation_ms: int) -> Iterable[tuple[Kind, bytes]]:
    for payload in payloads:
        yield Kind.BASE, payload
    yield Kind.RESERVE, RESERVE_PAYLOAD.pack(reservation_ms)
