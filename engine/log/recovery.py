"""Recovery: from the files of a directory to a log that can be read and written, or a refusal.

Knows: how a torn tail, which a crash leaves, differs from damage to synced data.
Must never know: what payloads mean.

Everything is verified before anything is changed. A power cut tears only what was not synced, and every frame
says what was synced when it was made. So a damage at or above the highest `durable_upto` found anywhere in
the segment, behind the damage too, is a torn tail: it is kept in a file beside the log and cut. Below, it is
corruption and refused; so is every fault in a sealed file, and an end before that of the last clean stop.
Each step may be stopped and done again.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
from engine.log.errors import LogRefusedError
from engine.log.manifest import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    Base,
    Manifest,
    Seal,
    Segment,
    decode,
    file_number,
)
from engine.storage import TEMPORARY, Handle, Storage

_OWN_TEMPORARY = re.compile(rf"(?:manifest|segment-\d+\.weir\.torn-\d+(?:\.\d+)?){re.escape(TEMPORARY)}")


ProgressCallback = Callable[[int, int], None]  # (bytes done, bytes in all)
_FRAMES_PER_REPORT = 4096


def ignore_progress(_done_bytes: int, _total_bytes: int) -> None:
    """Report no progress."""


PAYLOAD_KINDS = (Kind.RECORDS, Kind.BASE)  # what replay gives; all other frames are the log's own


@dataclass(frozen=True)
class Recovery:
    """What opening a log found: `frames` payloads to replay in files of `bytes` altogether.

    `torn_bytes` were cut and are kept in `torn_file`. `clean_stop`: the last frame says that the log was
    closed on purpose. `reservation_ms`: IDs may have been given up to this time; 0 where nothing was
    reserved. `floor_ms`: up to this time none may be given any more. `sequence` is the last frame's.
    """

    frames: int
    bytes: int
    torn_bytes: int
    torn_file: str | None
    clean_stop: bool
    reservation_ms: int
    floor_ms: int
    sequence: int


class LogTail(NamedTuple):
    """Where writing goes on in the last segment."""

    segment: Segment
    salt: int
    sequence: int  # of the last frame
    checksum: int  # of the last frame
    length: int
    durable_upto: int  # the position up to which the frames themselves say that the log was synced


class _Survey:
    """The sum of the verified frames of one file. Calls `on_progress` now and then. Raises LogRefusedError
    for a file of a newer version.
    """

    def __init__(
        self, storage: Storage, file: Base | Segment, on_progress: Callable[[int], object] = bool
    ) -> None:
        self.frames = 0
        self.reservation_ms = 0
        self.last: Frame | None = None
        self._before_last: Frame | None = None
        self.damage: Damage | None = None
        # Whether all that a clean stop left is there.
        self.has_stop = file.stop is None
        for frame in frames(storage, file):
            if isinstance(frame, Damage):
                if frame.newer:
                    raise LogRefusedError.of(file.name, frame)
                self.damage = frame
                break
            if frame.kind in PAYLOAD_KINDS:
                self.frames += 1
            elif frame.kind == Kind.RESERVE:
                self.reservation_ms = max(self.reservation_ms, RESERVE_PAYLOAD.unpack(frame.payload)[0])
            elif frame.kind == Kind.FILE:
                _check_place(file, frame)
            if file.stop is not None and frame.end == file.stop.length:
                self.has_stop = frame.checksum == file.stop.checksum
            self._before_last, self.last = self.last, frame
            if not frame.sequence % _FRAMES_PER_REPORT:
                on_progress(frame.end)

    @property
    def length(self) -> int:
        """Bytes of sound frames."""
        return self.last.end if self.last else 0

    @property
    def clean_stop(self) -> bool:
        """Whether the log was closed on purpose, and nothing was written since."""
        last = self.last
        return last is not None and last.kind == Kind.MARK and last.payload == MARK_PAYLOAD.pack(1)

    @property
    def kept_floor_ms(self) -> int:
        """The floor for IDs that a clean stop hands on: the reservation just before its mark."""
        before = self._before_last
        if before is None or before.kind != Kind.RESERVE:
            return 0
        floor_ms: int = RESERVE_PAYLOAD.unpack(before.payload)[0]
        return floor_ms


def _check_place(file: Base | Segment, frame: Frame) -> None:
    position = FILE_PAYLOAD.unpack(frame.payload)[1]
    if frame.offset or position != file.position:
        reason = f"is the file for position {position}, not for {file.position}"
        raise LogRefusedError(file.name, reason, offset=frame.offset)


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
        raise LogRefusedError(MANIFEST, f"is missing, but {orphans[0]} would belong to it", repairable=True)
    return None


def recover(
    storage: Storage, manifest: Manifest, on_progress: ProgressCallback = ignore_progress
) -> tuple[Recovery, LogTail, Manifest]:
    """Verify every file of the log, then cut a torn tail. Return the manifest of what was found, too: it
    names the segments that go on where the given one ends.

    Raises `LogRefusedError` with nothing touched.
    """
    _check_presence(storage, manifest)
    surveys: dict[str, _Survey] = {}
    total = sum(storage.size(file.name) for file in manifest.files())
    for file in manifest.files():
        done = sum(survey.length for survey in surveys.values())
        surveys[file.name] = _Survey(storage, file, partial(_report_more, on_progress, done, total))
        _check_sealed(file, surveys[file.name])
        _check_stopped(file, surveys[file.name])
    adopted = _with_followers(storage, manifest, surveys)
    last = adopted.segments[-1]
    tail = _check_tail(storage, last, surveys[last.name], named=last == manifest.segments[-1])
    torn = [
        (name, length, storage.size(name))
        for name, length in [*_adopted_lengths(manifest, adopted), (last.name, tail.length)]
        if storage.size(name) > length
    ]
    torn_files = [_cut(storage, *cut) for cut in torn]
    clean_stop = surveys[last.name].clean_stop and not torn_files
    reservation_ms = max(survey.reservation_ms for survey in surveys.values())
    recovery = Recovery(
        frames=sum(survey.frames for survey in surveys.values()),
        bytes=sum(survey.length for survey in surveys.values()),
        torn_bytes=sum(size - length for _, length, size in torn),
        torn_file=torn_files[0] if torn_files else None,
        clean_stop=clean_stop,
        reservation_ms=reservation_ms,
        floor_ms=surveys[last.name].kept_floor_ms if clean_stop else reservation_ms,
        sequence=tail.sequence,
    )
    return recovery, tail, adopted


def _report_more(on_progress: ProgressCallback, done: int, total: int, more: int) -> None:
    on_progress(done + more, total)


def _adopted_lengths(manifest: Manifest, adopted: Manifest) -> list[tuple[str, int]]:
    """The segments that were not sealed before they were found to be followed, and where they end."""
    sealed = set(manifest.segments[:-1])
    return [
        (segment.name, segment.seal.length)
        for segment in adopted.segments
        if segment.seal and segment not in sealed
    ]


def _with_followers(storage: Storage, manifest: Manifest, surveys: dict[str, _Survey]) -> Manifest:
    """The manifest with the segments that go on where it ends: a crash came before it named them.

    A file continues the log if its first frame does, by position, sequence and chain. What does not is left
    alone: a torn beginning, a fragment of an earlier generation, or frames beyond a torn tail.
    """
    segments = list(manifest.segments)
    for number, name in _unnamed_segments(storage, above=segments[-1].number):
        last, survey = segments[-1], surveys[segments[-1].name]
        opening = _opening(storage, name)
        if opening is None or survey.last is None or opening.sequence <= survey.last.sequence:
            continue
        segment = Segment(
            number, last.position + survey.length, survey.last.sequence + 1, survey.last.checksum
        )
        if _goes_on(storage, segment):
            segments[-1] = replace(last, seal=Seal(survey.length, survey.last.checksum), stop=None)
            segments.append(segment)
            surveys[name] = _Survey(storage, segment)
        else:
            _check_testimony(storage, name, segment.position, last, survey)
    return replace(manifest, segments=tuple(segments))


def _unnamed_segments(storage: Storage, above: int) -> list[tuple[int, str]]:
    names = [name for name in storage.names() if name.startswith("segment-")]
    numbers = [(number, name) for name in names if (number := file_number(name)) is not None]
    return sorted((number, name) for number, name in numbers if number > above)


def _opening(storage: Storage, name: str) -> Frame | None:
    """The first frame of a segment that no manifest names; None where it was never wholly written."""
    size = storage.size(name)
    first = first_frame(partial(storage.read, name), size)
    if isinstance(first, Frame):
        return first
    if first.newer or (size >= FILE_FRAME_BYTES and any(storage.read(name, 0, FILE_FRAME_BYTES))):
        raise LogRefusedError.of(name, first)
    return None


def _goes_on(storage: Storage, segment: Segment) -> bool:
    """Whether the file named as `segment` begins as that would."""
    first = next(frames(storage, segment, FILE_FRAME_BYTES))
    return isinstance(first, Frame) and FILE_PAYLOAD.unpack(first.payload)[1] == segment.position


def _check_testimony(storage: Storage, name: str, end: int, last: Segment, survey: _Survey) -> None:
    """Refuse if frames of a file beyond the sound end of `last` say that more of it had been synced."""
    read = partial(storage.read, name)
    if durable_upto_beyond(read, storage.size(name), file_salt(read), 0) > end:
        reason = survey.damage.reason if survey.damage else "the segment ends here"
        reason = f"{reason}, yet {name} says that it was synced beyond"
        raise LogRefusedError(last.name, reason, offset=survey.length, repairable=True)


def _check_presence(storage: Storage, manifest: Manifest) -> None:
    names = storage.names()
    for file in manifest.files():
        if file.name not in names:
            raise LogRefusedError(file.name, "is missing, but the manifest names it", repairable=True)
        size = storage.size(file.name)
        if file.seal and size != file.seal.length:
            reason = f"is {size} bytes long, but was sealed with {file.seal.length}"
            raise LogRefusedError(file.name, reason, repairable=True)


def check_empty(storage: Storage) -> None:
    """Refuse a manifest without any file beside a segment with frames: it would forget all of them.

    A segment with nothing behind its first frame is what a crash between making and naming it leaves.
    """
    for name in storage.names():
        if not name.startswith("segment-") or file_number(name) is None:
            continue
        size = storage.size(name)
        first = first_frame(partial(storage.read, name), size)
        if size > FILE_FRAME_BYTES and isinstance(first, Frame):
            raise LogRefusedError(MANIFEST, f"names no file, but {name} has frames", repairable=True)


def _check_sealed(file: Base | Segment, survey: _Survey) -> None:
    if file.seal is None:
        return
    if survey.damage:
        raise LogRefusedError.of(file.name, survey.damage)
    if survey.last is None or survey.last.checksum != file.seal.checksum:
        raise LogRefusedError(file.name, "is sound, but not the file that was sealed", repairable=True)


def _check_stopped(file: Base | Segment, survey: _Survey) -> None:
    """Refuse a file of which less is left than the last clean stop recorded."""
    if file.stop is None or survey.has_stop:
        return
    fault = stop_fault(file.stop, survey.length, survey.damage)
    raise LogRefusedError(file.name, fault.reason, offset=fault.offset, repairable=True)


def stop_fault(stop: Seal, length: int, damage: Damage | None) -> Damage:
    """Return what is wrong with a file of `length` sound bytes that lacks what a clean stop left."""
    if length >= stop.length:
        return Damage(0, "is sound, but not the file that was there at the last clean stop")
    if damage:
        return Damage(damage.offset, f"{damage.reason}, in what was synced")
    return Damage(length, f"the file ends here, yet the last clean stop left {stop.length} bytes")


def _check_tail(storage: Storage, segment: Segment, survey: _Survey, *, named: bool) -> LogTail:
    """Return where the last segment ends, if what follows is a torn tail."""
    read = partial(storage.read, segment.name)
    salt = file_salt(read)
    damage = survey.damage
    last = survey.last
    if last is None:
        # The first frame was synced before the manifest named the file, so this cannot be a torn tail.
        damage = damage or Damage(0, "the file is empty")
        raise LogRefusedError.of(segment.name, damage)
    # `durable_upto` never falls from frame to frame, so the last sound one has the highest. A segment is
    # named once its first frame is synced.
    durable_upto = max(last.durable_upto, segment.position + FILE_FRAME_BYTES if named else 0)
    if segment.stop:
        durable_upto = max(durable_upto, segment.position + segment.stop.length)
    if damage:
        beyond = durable_upto_beyond(read, storage.size(segment.name), salt, damage.offset)
        durable_upto = max(durable_upto, beyond)
        if segment.position + damage.offset < durable_upto:
            reason = f"{damage.reason}, in what was synced"
            raise LogRefusedError(segment.name, reason, offset=damage.offset, repairable=True)
    return LogTail(segment, salt, last.sequence, last.checksum, last.end, durable_upto)


def _cut(storage: Storage, name: str, length: int, size: int) -> str:
    """Keep the torn bytes in a file beside the log, then cut them. `settle` syncs the cut."""
    torn_file = _keep(storage, name, length, size)
    storage.truncate(name, length)
    return torn_file


def _keep(storage: Storage, name: str, length: int, size: int) -> str:
    """Copy what will be cut, and return the copy's name; a copy that a crash left is found, not doubled."""
    stem = f"{name}.torn-{length}"
    names = storage.names()
    number = 1
    while True:
        copy = stem if number == 1 else f"{stem}.{number}"
        if copy not in names:
            storage.replace(copy, read_chunks(storage, name, length, size))
            return copy
        if storage.size(copy) == size - length and _same(storage, copy, name, length, size):
            return copy
        number += 1


def _same(storage: Storage, copy: str, name: str, length: int, size: int) -> bool:
    kept = read_chunks(storage, copy, 0, size - length)
    torn = read_chunks(storage, name, length, size)
    return all(a == b for a, b in zip(kept, torn, strict=True))


def read_chunks(storage: Storage, name: str, start: int, end: int) -> Iterator[bytes]:
    """The bytes of a file from `start` to `end`, piece by piece."""
    for offset in range(start, end, CHUNK_BYTES):
        yield storage.read(name, offset, min(CHUNK_BYTES, end - offset))


def settle(storage: Storage, manifest: Manifest, adopted: Manifest, tail: LogTail) -> Handle:
    """Open the last segment for writing, with all of the log on the disk.

    What no frame says was synced is written once more, in place: after a failed sync such pages can be read,
    yet no later sync would write them (PostgreSQL's fsyncgate), and new frames would stand behind a hole.
    """
    for segment in adopted.segments[len(manifest.segments) - 1 : -1]:
        assert segment.seal is not None, "only the last segment is open"
        _settle(storage, segment, segment.seal.length, tail.durable_upto).close()
    return _settle(storage, tail.segment, tail.length, tail.durable_upto)


def _settle(storage: Storage, segment: Segment, length: int, durable_upto: int) -> Handle:
    offset = min(max(0, durable_upto - segment.position), length)
    for chunk in read_chunks(storage, segment.name, offset, length):
        storage.overwrite(segment.name, offset, chunk)
        offset += len(chunk)
    handle = storage.open(segment.name)
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
