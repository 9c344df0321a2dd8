"""Describes the files of a log without changing them: for check, dump, backup and repair.

Knows: reading a file up to its first damage, in which order files follow each other, what a start would say.
Must never know: what payloads mean, how any of it is shown.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final, NamedTuple

from engine.codec import (
    FILE_FRAME_BYTES,
    FILE_PAYLOAD,
    HEADER,
    HEADER_BYTES,
    RESERVE_PAYLOAD,
    Damage,
    Frame,
    Kind,
    Read,
    durable_upto_beyond,
    file_salt,
    first_frame,
    scan,
)
from engine.log.errors import LogRefusedError
from engine.log.log import Log
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
from engine.log.recovery import PAYLOAD_KINDS, Recovery, stop_fault
from engine.log.run_files import RunsFound, run_names, scan_runs
from engine.log.view import LogView
from engine.storage import Storage

File = Base | Segment
Sink = Callable[[bytes], object]  # takes the verified bytes of a file, in order

DIRECTORY: Final = "data directory"
_NO_LOG: Final = "holds no log: neither a manifest nor a file that one would name"


@dataclass
class FrameRun:
    """The verified frames of one file, up to its end or its first damage.

    `length` are their bytes, `size` those of the file. `frames` are all, `payloads` those that a start
    replays. `sequence`, `checksum`, `kind` and `durable_upto` are the last one's.
    """

    file: File
    size: int
    salt: int
    frames: int = 0
    payloads: int = 0
    length: int = 0
    sequence: int = -1
    checksum: int = 0
    kind: int = 0
    durable_upto: int = 0
    reservation_ms: int = 0
    damage: Damage | None = None
    _has_stop: bool = False

    @property
    def end(self) -> int:
        """The position behind the last frame."""
        return self.file.position + self.length

    @property
    def lacks_stop(self) -> bool:
        """Whether less is there than the last clean stop recorded."""
        return self.file.stop is not None and not self._has_stop

    @property
    def fault(self) -> Damage | None:
        """What keeps the file from being what the manifest says; None for one that may go on."""
        if self.lacks_stop and self.file.stop is not None:
            return stop_fault(self.file.stop, self.length, self.damage)
        if self.damage or self.file.seal is None:
            return self.damage
        if self.size != self.file.seal.length:
            reason = f"is {self.size} bytes long, but was sealed with {self.file.seal.length}"
            return Damage(min(self.size, self.file.seal.length), reason)
        if self.checksum != self.file.seal.checksum:
            return Damage(0, "is sound, but not the file that was sealed")
        return None

    @property
    def sealed(self) -> File:
        """The file as it is sealed behind the last sound frame."""
        seal = Seal(self.length, self.checksum)
        if isinstance(self.file, Base):
            return replace(self.file, seal=seal)
        return replace(self.file, seal=seal, stop=None)

    def add(self, frame: Frame) -> None:
        """Count one more frame."""
        self.frames += 1
        self.payloads += frame.kind in PAYLOAD_KINDS
        self.length, self.sequence, self.checksum = frame.end, frame.sequence, frame.checksum
        self.kind, self.durable_upto = frame.kind, frame.durable_upto
        if self.file.stop is not None and frame.end == self.file.stop.length:
            self._has_stop = frame.checksum == self.file.stop.checksum
        if frame.kind == Kind.RESERVE:
            self.reservation_ms = max(self.reservation_ms, RESERVE_PAYLOAD.unpack(frame.payload)[0])


class Inspection(NamedTuple):
    """What a log's directory holds: its files in order, those that the manifest misses, those beside the log.

    Without a manifest that can be read (`has_manifest`) they are in the order of their numbers. Either
    `recovery` is what a start would find, or `refusal` is why it would not start.
    """

    has_manifest: bool
    runs: list[FrameRun]
    missing: list[str]
    beside: list[str]
    recovery: Recovery | None
    refusal: LogRefusedError | None
    # Files of runs; what is damaged in them keeps no start, but reads of it are refused.
    stored: list[RunsFound]


# Says of a view what `Referred` does.
Load = Callable[[LogView], Mapping[str, Sequence[int]]]
# Returns what in a payload is of a newer version, None where nothing is.
FindNewer = Callable[[bytes], str | None]


def know_all(_: bytes) -> None:
    """For payloads that are not looked into."""


def inspect(storage: Storage, load: Load | None = None, find_newer: FindNewer = know_all) -> Inspection:
    """Read and describe all files, also beside a running server. Raises OSError.

    With `load` a damage in a file of runs is one only where a log that would start refers to what is damaged.
    """
    with LogView.of(storage) as view:
        recovery, refusal = None, None
        try:
            check_version(view, find_newer)
            recovery = rehearse(view)
        except LogRefusedError as refused:
            refusal = refused
        there = view.files()
        has_manifest, files = placed(view)
        runs = [read_run(view, file) for file in files if file.name in there]
        named = {file.name for file in files}
        names = run_names(view, _manifest_or_none(view))
        referred = None if load is None or refusal is not None else cache(partial(load, view))
        stored = [
            scan_runs(view, name, grows=name == names[-1], referred=referred)
            for name in names
            if name in there
        ]
        missing = sorted({*named, *names} - set(there))
        beside = [name for name in there if file_number(name) is not None and name not in named]
        return Inspection(has_manifest, runs, missing, beside, recovery, refusal, stored)


def rehearse(view: LogView) -> Recovery:
    """Return what a start would find, or raise the `LogRefusedError` that it would end with."""
    if not any(name == MANIFEST or file_number(name) is not None for name in view.names()):
        raise LogRefusedError(DIRECTORY, _NO_LOG)
    log = Log.open(view.again())
    log.close(clean=False)
    return log.recovery


def check_version(view: LogView, find_newer: FindNewer) -> None:
    """Raise LogRefusedError where a file, or a payload before the first damage of one, is of a newer version:
    nothing else that is said of such a log is sure.
    """
    if MANIFEST in view.names():
        try:
            manifest_of(view)
        except LogRefusedError as refused:
            if refused.newer:
                raise
    for file in placed(view)[1]:
        for frame in frames_of(view, file) if file.name in view.files() else ():
            damage = frame if isinstance(frame, Damage) else _newer_in(frame, find_newer)
            if damage is not None and damage.newer:
                raise LogRefusedError.of(file.name, damage)


def _newer_in(frame: Frame, find_newer: FindNewer) -> Damage | None:
    what = find_newer(frame.payload) if frame.kind in PAYLOAD_KINDS else None
    if what is None:
        return None
    return Damage(frame.offset, f"a frame of a newer version ({what})", newer=True)


def manifest_of(view: LogView) -> Manifest:
    """Return the manifest. Raises LogRefusedError for a missing one too."""
    if MANIFEST not in view.names():
        raise LogRefusedError(MANIFEST, "is missing", repairable=True)
    return decode(view.read(MANIFEST, 0, MANIFEST_BYTES_MAX + 1))


def _manifest_or_none(view: LogView) -> Manifest | None:
    try:
        return manifest_of(view)
    except LogRefusedError:
        return None


def placed(view: LogView) -> tuple[bool, list[File]]:
    """Return whether the manifest can be read, and the files in order: by it, or else by their numbers."""
    try:
        manifest = manifest_of(view)
    except LogRefusedError:
        numbered = [(number, name) for name in view.names() if (number := file_number(name)) is not None]
        by_number = sorted(numbered, key=lambda pair: (pair[1].startswith("segment"), pair[0]))
        return False, [opening(view, name) for _, name in by_number]
    return True, [*manifest.files(), *behind(view, manifest)]


def behind(view: LogView, manifest: Manifest) -> list[Segment]:
    """Return the segments that were begun after the manifest was written, in order."""
    last = manifest.segments[-1].number if manifest.segments else 0
    names = {name: file_number(name) or 0 for name in view.names() if name.startswith("segment-")}
    later = sorted((number, name) for name, number in names.items() if number > last)
    return [segment for _, name in later if isinstance(segment := opening(view, name), Segment)]


def opening(view: Storage, name: str) -> File:
    """Return the file as its first frame describes it, as far as that can be read; it is not verified."""
    number = file_number(name)
    assert number is not None, "only files of the log are opened"
    head = view.read(name, 0, FILE_FRAME_BYTES)
    position, sequence, previous = 0, 0, 0
    if len(head) == FILE_FRAME_BYTES:
        fields = HEADER.unpack_from(head)
        sequence, previous = fields[5], fields[7]
        position = FILE_PAYLOAD.unpack_from(head, HEADER_BYTES)[1]
    if name.startswith("base-"):
        return Base(number, position, Seal(view.size(name), 0))
    return Segment(number, position, sequence, previous)


def begins(view: Storage, name: str) -> bool:
    """Whether a file has a sound first frame."""
    return isinstance(first_frame(partial(view.read, name), view.size(name)), Frame)


def frames_of(view: LogView, file: File) -> Iterator[Frame | Damage]:
    """Yield the verified frames of a file, and last the damage that ends them, if there is one."""
    return _scan(partial(view.read, file.name), view.size(file.name), file)


def _scan(read: Read, size: int, file: File) -> Iterator[Frame | Damage]:
    start = (0, 0) if isinstance(file, Base) else (file.sequence, file.previous)
    for frame in scan(read, size, sequence=start[0], previous=start[1]):
        if isinstance(frame, Frame) and frame.kind == Kind.FILE:
            position = FILE_PAYLOAD.unpack(frame.payload)[1]
            if frame.offset or position != file.position:
                reason = f"is the file for position {position}, not for {file.position}"
                yield Damage(frame.offset, reason)
                return
        yield frame


class _Tee:
    """Gives what was read on to a sink, once it is verified, so that nothing has to be read twice."""

    def __init__(self, read: Read, sink: Sink) -> None:
        self._read = read
        self._sink = sink
        self._start = 0
        self._chunk = b""
        self._given = 0
        self.verified = 0  # bytes from the start of the file

    def read(self, offset: int, length: int) -> bytes:
        self.flush()
        self._start, self._chunk = offset, self._read(offset, length)
        return self._chunk

    def flush(self) -> None:
        """A frame is verified while the part that was read last holds all of it."""
        if self.verified > self._given:
            self._sink(self._chunk[self._given - self._start : self.verified - self._start])
            self._given = self.verified


def _forget(_: bytes) -> None:
    """A sink for callers that only need the summary."""


def read_run(view: Storage, file: File, *, upto: int | None = None, sink: Sink = _forget) -> FrameRun:
    """Verify a file's first `upto` bytes, all of them by default. Memory is bounded by one frame."""
    read = partial(view.read, file.name)
    size = view.size(file.name)
    run = FrameRun(file, size if upto is None else upto, file_salt(read))
    tee = _Tee(read, sink)
    for frame in _scan(tee.read, run.size, file):
        if isinstance(frame, Damage):
            run.damage = frame
            break
        run.add(frame)
        tee.verified = frame.end
    tee.flush()
    return run


def follows(run: FrameRun, segment: Segment) -> bool:
    """Whether a segment goes on exactly where the verified frames of another file end, torn bytes or not."""
    end = (run.end, run.sequence + 1, run.checksum)
    return run.frames > 0 and (segment.position, segment.sequence, segment.previous) == end


def testifies(view: LogView, name: str, end: int) -> bool:
    """Whether frames of a file say that the log was safe beyond a position."""
    read = partial(view.read, name)
    return durable_upto_beyond(read, view.size(name), file_salt(read), 0) > end


def manifest_from(files: Sequence[File]) -> Manifest:
    """Return the manifest of files in their order, a base first if there is one; the last one is unsealed."""
    base = files[0] if isinstance(files[0], Base) else None
    segments = [file for file in files if isinstance(file, Segment)]
    return Manifest(base, (*segments[:-1], replace(segments[-1], seal=None)))


def is_torn(view: LogView, run: FrameRun, *, named: bool) -> bool:
    """Whether the damage is what a crash leaves at the end of the last segment: no frame says it was safe."""
    if run.damage is None or run.damage.newer or not run.frames:
        return False
    read = partial(view.read, run.file.name)
    beyond = durable_upto_beyond(read, run.size, run.salt, run.damage.offset)
    stopped_bytes = run.file.stop.length if run.file.stop else 0
    named_bytes = FILE_FRAME_BYTES if named else 0
    durable_upto = max(run.durable_upto, beyond, run.file.position + max(named_bytes, stopped_bytes))
    return run.file.position + run.damage.offset >= durable_upto
