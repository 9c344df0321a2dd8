"""Logs to break: small ones in memory, whole directories as bytes, and ways to spoil them.

Knows: how to build a log whose frames are known, and where each begins.
Must never know: what is being tested.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

from engine.codec import Damage, Frame, scan
from engine.log import Log
from engine.log.manifest import MANIFEST, Seal, decode
from engine.storage import Storage
from engine.storage.memory import MemoryStorage

SEGMENT = "segment-1.weir"


def counting_salt(start: int = 0x5EED0001) -> Callable[[], int]:
    """Salts as a test wants them: different for each file, the same in each run."""
    numbers = count(start)
    return lambda: next(numbers)


def open_log(storage: Storage, *, reserve_bytes: int = 4096) -> Log:
    return Log.open(storage, reserve_bytes=reserve_bytes, salt=counting_salt())


def next_segment(log: Log) -> None:
    """Go on in a new segment, synced and named."""
    log.start_segment(log.prepare_segment())
    log.write(log.take_staged())
    log.sync()
    log.name_segments()


def write_base(log: Log, position: int, *payloads: bytes, reservation_ms: int) -> None:
    """Put a base in the place of everything before `position`."""
    base = log.create_base(position)
    base.append(payloads)
    log.install_base(base.finish(reservation_ms=reservation_ms))


def payload(number: int) -> bytes:
    """Payloads that tell themselves apart and have different lengths, an empty one among them."""
    return b"" if number == 3 else b"%d:" % number + b"payload "[: number % 7] * (number % 4)


def append(log: Log, *payloads: bytes, synced: bool) -> None:
    for each in payloads:
        log.stage(each)
    log.write(log.take_staged())
    if synced:
        log.sync()


def begun(*payloads: bytes, synced: bool = True) -> tuple[MemoryStorage, Log]:
    """A disk in memory, and a log on it that begins with these."""
    storage = MemoryStorage()
    log = open_log(storage)
    if payloads:
        append(log, *payloads, synced=synced)
    return storage, log


def synced_then_not(synced: int = 6, unsynced: int = 5) -> MemoryStorage:
    """A log as a kill leaves it: `synced` frames safe, each in a batch of its own, then `unsynced` in one."""
    storage, log = begun()
    for number in range(synced):
        append(log, payload(number), synced=True)
    append(log, *(payload(synced + number) for number in range(unsynced)), synced=False)
    return storage.kill()


def closed(frames: int = 8) -> MemoryStorage:
    """A log that was closed cleanly: all of it synced, and a mark says so."""
    storage, log = begun(*(payload(number) for number in range(frames)))
    log.close()
    return storage.kill()


def files(storage: Storage) -> dict[str, bytes]:
    return {name: storage.read(name, 0, storage.size(name)) for name in storage.names()}


def changed(storage: Storage, name: str, content: bytes) -> MemoryStorage:
    """The same directory with one file's content changed."""
    return MemoryStorage({**files(storage), name: content})


def frames_of(content: bytes, *, sequence: int = 0, previous: int = 0) -> list[Frame]:
    """The frames of a file that has no damage."""
    found = list(scan(reader(content), len(content), sequence=sequence, previous=previous))
    frames = [frame for frame in found if not isinstance(frame, Damage)]
    assert frames == found
    return frames


def reader(content: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: content[offset : offset + length]


def recovered(storage: Storage) -> list[bytes]:
    """Open, read everything, and let go without writing."""
    log = open_log(storage)
    try:
        payloads = list(log.replay())
        assert len(payloads) == log.recovery.frames
        return payloads
    finally:
        log.close(clean=False)


def stop_of(storage: Storage) -> Seal | None:
    """How the last clean stop left the last segment, as the manifest has it."""
    return decode(storage.read(MANIFEST, 0, storage.size(MANIFEST))).segments[-1].stop


def unstopped(manifest: bytes) -> bytes:
    """The same manifest without the record of a clean stop, as a version wrote it that made none."""
    *others, last = decode(manifest).segments
    return replace(decode(manifest), segments=(*others, replace(last, stop=None))).encode()


def torn_files(directory: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in directory.items() if ".torn-" in name}
