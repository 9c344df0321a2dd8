"""A log mended as far as its files prove it: for `weir log repair`.

Knows: what to do about each way in which a start refuses, and when there is nothing to be done.
Must never know: what payloads mean, and who confirms a step.

`plan` looks and gives the next step, `carry_out` does it; so on until there is none. The prefix of the log
that is kept is always one that the chain proves: a start from it is a start from an earlier moment.
"""

from collections.abc import Sequence
from functools import partial
from zlib import crc32

from engine.codec import (
    FILE_FRAME_BYTES,
    HEADER_BYTES,
    RESERVE_PAYLOAD,
    Damage,
    Kind,
    file_salt,
    headers_beyond,
)
from engine.log.errors import LogRefusedError
from engine.log.files import next_number
from engine.log.inspection import (
    DIRECTORY,
    FindNewer,
    FrameRun,
    begins,
    check_version,
    follows,
    is_torn,
    know_all,
    manifest_from,
    manifest_of,
    opening,
    read_run,
    rehearse,
    testifies,
)
from engine.log.manifest import Base, Manifest, Segment, file_number
from engine.log.steps import CutExtra, CutTail, GiveUp, NewManifest, RepairStep, TakeBack, interrupted
from engine.log.view import LogView
from engine.storage import Storage


class IrreparableError(Exception):
    """Nothing that the files prove would start; the text says what is missing, or why it is left alone."""


def plan(storage: Storage, find_newer: FindNewer = know_all) -> RepairStep | None:
    """Return the next step, None for a log that would start as it is. Raises IrreparableError, OSError."""
    with LogView.of(storage) as view:
        try:
            check_version(view, find_newer)
            recovery = rehearse(view)
        except LogRefusedError as refused:
            return _plan(view, refused)
        return CutTail(recovery.torn_bytes, recovery.torn_file) if recovery.torn_bytes else None


def carry_out(
    storage: Storage,
    step: RepairStep,
    payloads: Sequence[bytes],
    now_ms: int,
    find_newer: FindNewer = know_all,
) -> None:
    """Do a step that was planned. `payloads` (see `new_life`) inform readers that the log has lost entries.

    Raises StorageLockedError, LogRefusedError where the directory has changed since it was planned, OSError.
    """
    if isinstance(step, CutTail):
        step.do(storage, payloads, now_ms)  # a start locks by itself
        return
    storage.lock()
    try:
        if plan(storage, find_newer) != step:
            raise LogRefusedError(DIRECTORY, "has changed meanwhile: run it again")
        step.do(storage, payloads, now_ms)
    finally:
        storage.unlock()


def _plan(view: LogView, refused: LogRefusedError) -> RepairStep:
    if refused.newer:
        raise IrreparableError(f"{refused}; nothing is wrong with it")
    if refused.file == DIRECTORY:
        raise IrreparableError(str(refused))
    try:
        manifest = manifest_of(view)
    except LogRefusedError as unreadable:
        return _new_manifest(view, f"{unreadable.file}: {unreadable.reason}")
    back = interrupted(view.names(), manifest)
    if back:
        return TakeBack(back)
    kept: list[FrameRun] = []
    if manifest.base is not None:
        base = _base(view, manifest.base)
        if not isinstance(base, FrameRun):
            return base
        kept.append(base)
    return _Walk(view, manifest, kept).step() or _leave(refused)


def _leave(refused: LogRefusedError) -> RepairStep:
    raise IrreparableError(f"{refused.file}: {refused.reason}; no repair is known for that")


def _base(view: LogView, base: Base) -> FrameRun | RepairStep:
    """Return the base if it is whole: a part of it would be a part of every stream."""
    if base.name not in view.names():
        return _instead_of(view, base, "is missing")
    run = read_run(view, base)
    extra = _extra(view, run)
    if extra is not None:
        return extra
    return (
        run
        if run.fault is None
        else _instead_of(view, base, f"offset {run.fault.offset}: {run.fault.reason}")
    )


def _instead_of(view: LogView, base: Base, fault: str) -> RepairStep:
    """Without its base a log is lost, unless the files from before the base are still there."""
    try:
        return _new_manifest(view, f"{base.name}, {fault}")
    except IrreparableError:
        gone = f"what was before position {base.position} is in no other file"
        raise IrreparableError(f"{base.name}, {fault}; {gone}: restore a backup") from None


def _extra(view: LogView, run: FrameRun) -> RepairStep | None:
    """Bytes behind a sealed file that is whole otherwise."""
    seal = run.file.seal
    if seal is None or run.size <= seal.length or read_run(view, run.file, upto=seal.length).fault:
        return None
    return CutExtra(run.file.name, seal.length, run.size)


class _Walk:
    """From file to file, up to the first that does not go on."""

    def __init__(self, view: LogView, manifest: Manifest, kept: list[FrameRun]) -> None:
        self._view = view
        self._manifest = manifest
        self._kept = kept
        named = {segment.name for segment in manifest.segments}
        last = manifest.segments[-1].number
        numbers = {name: file_number(name) or 0 for name in view.names() if name.startswith("segment-")}
        self._later = sorted((name for name in numbers if numbers[name] > last), key=numbers.__getitem__)
        self._there = named & set(view.names())

    def step(self) -> RepairStep | None:
        """Return what to do about the first fault; None where there is none that this knows."""
        for segment in self._manifest.segments:
            if segment.name not in self._there:
                return self._give_up(f"{segment.name} is missing, but the manifest names it", segment, None)
            step = self._take(segment)
            if step is not None:
                return step
        for name in self._later:
            later = opening(self._view, name)
            assert isinstance(later, Segment), "only segments are listed"
            step = self._go_on(later)
            if step is not None:
                return step
        return None

    def _take(self, segment: Segment) -> RepairStep | None:
        run = read_run(self._view, segment)
        fault = run.fault if run.frames else run.damage or Damage(0, "the file is empty")
        if fault is None:
            self._kept.append(run)
            return None
        extra = _extra(self._view, run)
        if extra is not None:
            return extra
        if segment.seal is None and is_torn(self._view, run, named=segment in self._manifest.segments):
            self._kept.append(run)
            return None
        return self._damaged(run, fault)

    def _go_on(self, segment: Segment) -> RepairStep | None:
        """Behind the last file that is named; what was never begun is passed over, as by a start."""
        last = self._kept[-1]
        if not begins(self._view, segment.name):
            head = self._view.read(segment.name, 0, FILE_FRAME_BYTES)
            if len(head) < FILE_FRAME_BYTES or not any(head):
                return None
            return self._end_at(last, segment, f"{segment.name}, offset 0: its first frame is damaged")
        if segment.sequence <= last.sequence:
            return None
        if follows(last, segment):
            return self._take(segment)
        if not testifies(self._view, segment.name, last.end):
            return None
        why = (
            f"{last.file.name} ends at offset {last.length}, yet {segment.name} says that it was safe beyond"
        )
        return self._end_at(last, segment, why)

    def _end_at(self, last: FrameRun, segment: Segment, why: str) -> RepairStep:
        """Give up from `segment` on, and what is damaged at the end of the file before it. That one goes too,
        with its sound part in the new segment: no manifest names the others, and a start would go on without
        them if this were interrupted.
        """
        self._kept.pop()
        return self._give_up(why, segment, last)

    def _damaged(self, run: FrameRun, fault: Damage) -> RepairStep:
        assert isinstance(run.file, Segment), "bases are looked at elsewhere"
        is_another = run.damage is None and run.size == (run.file.seal and run.file.seal.length)
        why = f"{run.file.name}, offset {fault.offset}: {fault.reason}"
        return self._give_up(why, run.file, None if is_another or not run.frames else run)

    def _give_up(self, why: str, first: Segment, cut: FrameRun | None) -> RepairStep:
        """Plan to keep what was walked over, and of the next file what is sound."""
        number = next_number(self._view, self._manifest)
        if cut is not None:
            assert isinstance(cut.file, Segment), "a base is kept whole or not at all"
            segment = Segment(number, cut.file.position, cut.file.sequence, cut.file.previous)
        elif self._kept and isinstance(self._kept[-1].file, Segment):
            last = self._kept[-1]
            segment = Segment(number, last.end, last.sequence + 1, last.checksum)
        elif self._kept:
            segment = Segment(number, first.position, first.sequence, first.previous)
        else:
            raise IrreparableError(f"{why}; nothing stands before it that could be kept: restore a backup")
        kept_names = {run.file.name for run in self._kept}
        every = [*(named.name for named in self._manifest.segments), *self._later]
        aside = [name for name in every if name in self._view.names() and name not in kept_names]
        kept_bytes = 0 if cut is None else cut.length
        lost = _Lost(self._view)
        for name in aside:
            lost.add(name, kept_bytes if cut is not None and name == cut.file.name else 0)
        return GiveUp(
            why=why,
            kept=tuple(self._kept),
            cut=cut,
            segment=segment,
            aside=tuple(aside),
            lost_bytes=lost.bytes,
            lost_frames=lost.frames,
            reserved_ms=max([lost.reserved_ms, *(run.reservation_ms for run in self._kept)]),
        )


class _Lost:
    """What is in the files that are given up."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self.bytes = self.frames = self.reserved_ms = 0

    def add(self, name: str, offset: int) -> None:
        """Count what is behind `offset`: all bytes, and the frames whose headers can be recognised."""
        read, size = partial(self._view.read, name), self._view.size(name)
        self.bytes += size - offset
        for header in headers_beyond(read, size, file_salt(read), offset):
            self.frames += 1
            if header.kind == Kind.RESERVE and header.length == RESERVE_PAYLOAD.size:
                payload = read(header.offset + HEADER_BYTES, header.length)
                if crc32(payload, header.head_check) == header.checksum:
                    self.reserved_ms = max(self.reserved_ms, RESERVE_PAYLOAD.unpack(payload)[0])


# --- a manifest from the files themselves ------------------------------------------------------------------


def _new_manifest(view: LogView, why: str) -> RepairStep:
    """Plan the manifest of the longest chain of files; the next step gives up what it leaves out. Raises
    IrreparableError where no chain begins at the beginning.
    """
    names = [name for name in view.names() if file_number(name) is not None and begins(view, name)]
    runs = sorted((read_run(view, opening(view, name)) for name in names), key=lambda run: run.file.number)
    segments = [run for run in runs if isinstance(run.file, Segment)]
    bases = [run for run in runs if isinstance(run.file, Base) and _is_complete(run)]
    chains = [chain for base in [None, *bases] if (chain := _longest(base, segments))]
    if not chains:
        raise IrreparableError(f"{why}; {_what_is_missing(runs)}")
    chain = max(chains, key=lambda chain: (chain[-1].end, chain[0].file.position))
    end = chain[-1].end
    beyond = tuple(run.file.name for run in segments if run.end > end)
    manifest = manifest_from([run.sealed for run in chain])
    return NewManifest(why, manifest, end, beyond, _needless(view, manifest))


def _needless(view: LogView, manifest: Manifest) -> tuple[str, ...]:
    """The files that a start removes, once it has loaded what the manifest names."""
    named = {file.name for file in manifest.files()}
    first = manifest.segments[0].number
    numbers = {name: number for name in view.names() if (number := file_number(name)) is not None}
    return tuple(
        name
        for name, number in numbers.items()
        if name not in named and (name.startswith("base-") or number < first)
    )


def _is_complete(base: FrameRun) -> bool:
    """A base ends with a reservation: only what was cut or not finished does not."""
    return base.damage is None and base.kind == Kind.RESERVE and base.length == base.size


def _longest(base: FrameRun | None, segments: Sequence[FrameRun]) -> list[FrameRun]:
    """Return the longest chain that begins with this base, or with nothing; empty where there is none."""
    before = [] if base is None else [base]
    firsts = [run for run in segments if run.file.position == (base.file.position if base else 0)]
    if base is None:
        firsts = [run for run in firsts if isinstance(run.file, Segment) and run.file.sequence == 0]
    chains = [[*before, *_chain(first, segments)] for first in firsts]
    return max(chains, key=lambda chain: chain[-1].end, default=[])


def _chain(first: FrameRun, segments: Sequence[FrameRun]) -> list[FrameRun]:
    """Return `first` and what goes on behind it; of two that would, the one with the higher number."""
    chain = [first]
    for run in segments:
        if (
            isinstance(run.file, Segment)
            and run.file.number > chain[-1].file.number
            and follows(chain[-1], run.file)
        ):
            chain.append(run)
    return chain


def _what_is_missing(runs: Sequence[FrameRun]) -> str:
    segments = [run for run in runs if isinstance(run.file, Segment)]
    if not segments:
        return "no segment is left that could be read: restore a backup"
    first = min(segments, key=lambda run: run.file.position)
    begun = f"the first segment left, {first.file.name}, begins at position {first.file.position}"
    return (
        f"{begun}, and neither a whole base for that place is there nor the segments before: restore a backup"
    )
