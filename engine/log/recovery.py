"""Recovery: from the files of a directory to a log that can be read and written, or a refusal.

Knows: how to tell a torn tail, which a crash leaves, from damage to what was safe.
Must never know: what payloads mean.

Everything is verified before anything is changed. A power cut tears only what was not synced, and every frame
says what was synced when it was made. So a damage at or above the highest `durable_upto` found anywhere in
the segment, behind the damage too, is a torn tail: it is kept in a file beside the log and cut. Below, it is
corruption and refused; so is every fault in a sealed file. Each step may be stopped and done again.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from engine.codec import (
    CHUNK_BYTES,
    FILE_FRAME_BYTES,
    FILE_PAYLOAD,
    MARK_PAYLOAD,
    RESERVE_PAYLOAD,
    Damage,
    Frame,
    Kind,
    durable_upto_beyond,
    file_salt,
    first_frame,
    scan,
)
from engine.log.errors import LogRefused
from engine.log.manifest import MANIFEST, MANIFEST_BYTES_MAX, Base, Manifest, Segment, decode, file_number
from engine.storage import TEMPORARY, Handle, Storage

_OWN_TEMPORARY = re.compile(rf"(?:manifest|segment-\d+\.weir\.torn-\d+(?:\.\d+)?){re.escape(TEMPORARY)}")


PAYLOAD_KINDS = (Kind.RECORDS, Kind.BASE)  # what replay gives; all other frames are the log's own


@dataclass(frozen=True)
class Recovery:
    """What opening a log found: `frames` payloads to replay in files of `bytes` altogether.

    `torn_bytes` were cut and are kept in `torn_file`. `clean_stop`: the last frame says that the log was
    closed on purpose. `reservation_ms`: IDs may have been given up to this time; 0 where nothing was
    reserved. `sequence` is the last frame's.
    """

    frames: int
    bytes: int
    torn_bytes: int
    torn_file: str | None
    clean_stop: bool
    reservation_ms: int
    sequence: int


class Tail(NamedTuple):
    """Where writing goes on in the last segment."""

    segment: Segment
    salt: int
    sequence: int  # of the last frame
    checksum: int  # of the last frame
    length: int
    durable_length: int  # what the frames themselves say was synced


class _Survey:
    """What the verified frames of one file amount to."""

    def __init__(self, storage: Storage, file: Base | Segment) -> None:
        self.frames = 0
        self.reservation_ms = 0
        self.last: Frame | None = None
        self.damage: Damage | None = None
        for frame in frames(storage, file):
            if isinstance(frame, Damage):
                self.damage = frame
                break
            if frame.kind in PAYLOAD_KINDS:
                self.frames += 1
            elif frame.kind == Kind.RESERVE:
                self.reservation_ms = max(self.reservation_ms, RESERVE_PAYLOAD.unpack(frame.payload)[0])
            elif frame.kind == Kind.FILE:
                _check_place(file, frame)
            self.last = frame

    @property
    def length(self) -> int:
        """Bytes of sound frames."""
        return self.last.end if self.last else 0

    @property
    def clean_stop(self) -> bool:
        """Whether the log was closed on purpose, and nothing was written since."""
        last = self.last
        return last is not None and last.kind == Kind.MARK and last.payload == MARK_PAYLOAD.pack(1)


def _check_place(file: Base | Segment, frame: Frame) -> None:
    position = FILE_PAYLOAD.unpack(frame.payload)[1]
    if frame.offset or position != file.position:
        reason = f"is the file for position {position}, not for {file.position}"
        raise LogRefused(file.name, reason, offset=frame.offset)


def frames(storage: Storage, file: Base | Segment, size: int | None = None) -> Iterator[Frame | Damage]:
    """Yield what `engine.codec.scan` finds in a file, or in its first `size` bytes."""
    read = partial(storage.read, file.name)
    size = storage.size(file.name) if size is None else size
    if isinstance(file, Base):
        return scan(read, size)
    return scan(read, size, sequence=file.sequence, previous=file.previous)


def load_manifest(storage: Storage) -> Manifest | None:
    """Return the manifest, or None in a directory that holds no log. Files without a manifest are refused."""
    names = storage.names()
    if MANIFEST in names:
        return decode(storage.read(MANIFEST, 0, MANIFEST_BYTES_MAX + 1))
    orphans = [name for name in names if file_number(name) is not None]
    if orphans:
        raise LogRefused(MANIFEST, f"is missing, but {orphans[0]} would belong to it", repairable=True)
    return None


def recover(storage: Storage, manifest: Manifest) -> tuple[Recovery, Tail]:
    """Verify every file that the manifest names, then cut a torn tail.

    Raises `LogRefused` with nothing touched.
    """
    _check_presence(storage, manifest)
    check_age(storage, manifest)
    surveys = [_Survey(storage, file) for file in manifest.files()]
    for file, survey in zip(manifest.files(), surveys, strict=True):
        _check_sealed(file, survey)
    tail = _check_tail(storage, manifest.segments[-1], surveys[-1])
    size = storage.size(tail.segment.name)
    torn_file = _cut(storage, tail, size) if size > tail.length else None
    recovery = Recovery(
        frames=sum(survey.frames for survey in surveys),
        bytes=sum(survey.length for survey in surveys),
        torn_bytes=size - tail.length,
        torn_file=torn_file,
        clean_stop=surveys[-1].clean_stop and torn_file is None,
        reservation_ms=max(survey.reservation_ms for survey in surveys),
        sequence=tail.sequence,
    )
    return recovery, tail


def _check_presence(storage: Storage, manifest: Manifest) -> None:
    names = storage.names()
    for file in manifest.files():
        if file.name not in names:
            raise LogRefused(file.name, "is missing, but the manifest names it")
        size = storage.size(file.name)
        if file.seal and size != file.seal.length:
            reason = f"is {size} bytes long, but was sealed with {file.seal.length}"
            raise LogRefused(file.name, reason, repairable=True)


def check_age(storage: Storage, manifest: Manifest) -> None:
    """Refuse a manifest older than the log: one put back from a copy would forget the newest segments.

    An unnamed segment with nothing in it is what a crash between making and naming it leaves; fragments of
    earlier generations have lower sequences. Both are ignored.
    """
    last = manifest.segments[-1].sequence if manifest.segments else -1
    named = {file.name for file in manifest.files()}
    for name in storage.names():
        if name in named or not name.startswith("segment-") or file_number(name) is None:
            continue
        size = storage.size(name)
        first = first_frame(partial(storage.read, name), size)
        if size > FILE_FRAME_BYTES and isinstance(first, Frame) and first.sequence > last:
            raise LogRefused(MANIFEST, f"is older than {name}, which goes on where it ends", repairable=True)


def _check_sealed(file: Base | Segment, survey: _Survey) -> None:
    if file.seal is None:
        return
    if survey.damage:
        raise LogRefused(file.name, survey.damage.reason, offset=survey.damage.offset, repairable=True)
    if survey.last is None or survey.last.checksum != file.seal.checksum:
        raise LogRefused(file.name, "is sound, but not the file that was sealed", repairable=True)


def _check_tail(storage: Storage, segment: Segment, survey: _Survey) -> Tail:
    """Return where the last segment ends, if what follows is a torn tail."""
    read = partial(storage.read, segment.name)
    salt = file_salt(read)
    damage = survey.damage
    last = survey.last
    if last is None:
        # The first frame was synced before the manifest named the file, so this cannot be a torn tail.
        damage = damage or Damage(0, "the file is empty")
        raise LogRefused(segment.name, damage.reason, offset=damage.offset, repairable=not damage.newer)
    # `durable_upto` never falls from frame to frame, so the last sound one has the highest.
    durable_upto = max(last.durable_upto, segment.position + FILE_FRAME_BYTES)
    if damage:
        if damage.newer:
            raise LogRefused(segment.name, damage.reason, offset=damage.offset)
        beyond = durable_upto_beyond(read, storage.size(segment.name), salt, damage.offset)
        durable_upto = max(durable_upto, beyond)
        if segment.position + damage.offset < durable_upto:
            reason = f"{damage.reason}, in what was synced"
            raise LogRefused(segment.name, reason, offset=damage.offset, repairable=True)
    return Tail(segment, salt, last.sequence, last.checksum, last.end, durable_upto - segment.position)


def _cut(storage: Storage, tail: Tail, size: int) -> str:
    """Keep the torn bytes in a file beside the log, then cut them. `settle` syncs the cut."""
    torn_file = _keep(storage, tail, size)
    storage.truncate(tail.segment.name, tail.length)
    return torn_file


def _keep(storage: Storage, tail: Tail, size: int) -> str:
    """Copy what will be cut, and return the copy's name; a copy that a crash left is found, not doubled."""
    stem = f"{tail.segment.name}.torn-{tail.length}"
    names = storage.names()
    number = 1
    while True:
        name = stem if number == 1 else f"{stem}.{number}"
        if name not in names:
            storage.replace(name, _chunks(storage, tail.segment.name, tail.length, size))
            return name
        if _same(storage, name, tail, size):
            return name
        number += 1


def _same(storage: Storage, name: str, tail: Tail, size: int) -> bool:
    length = storage.size(name)
    kept = _chunks(storage, name, 0, length)
    torn = _chunks(storage, tail.segment.name, tail.length, size)
    return length == size - tail.length and all(a == b for a, b in zip(kept, torn, strict=True))


def _chunks(storage: Storage, name: str, start: int, end: int) -> Iterator[bytes]:
    for offset in range(start, end, CHUNK_BYTES):
        yield storage.read(name, offset, min(CHUNK_BYTES, end - offset))


def settle(storage: Storage, tail: Tail) -> Handle:
    """Open the last segment for writing, with all of it on the disk.

    What no frame says was synced is written once more, in place: after a failed sync such pages can be read,
    yet no later sync would write them (PostgreSQL's fsyncgate), and new frames would stand behind a hole.
    """
    name = tail.segment.name
    offset = tail.durable_length
    for chunk in _chunks(storage, name, offset, tail.length):
        storage.overwrite(name, offset, chunk)
        offset += len(chunk)
    handle = storage.open(name)
    try:
        handle.sync()
    except BaseException:
        handle.close()
        raise
    return handle


def remove_temporaries(storage: Storage) -> None:
    """Remove what an interrupted `replace` of ours left; a name that is not ours is never removed."""
    for name in storage.names():
        if _OWN_TEMPORARY.fullmatch(name):
            storage.unlink(name)
