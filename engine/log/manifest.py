"""The manifest: which files are the log, in order, and what the finished ones must look like.

Knows: the text of the manifest, and which manifests make sense. Must never know: what is in the files.

::

    weir log 1
    base-3.weir position=9210 length=4711 checksum=0badcafe
    segment-2.weir position=9210 sequence=57 previous=00c0ffee length=1300 checksum=deadbeef
    segment-4.weir position=10510 sequence=71 previous=deadbeef
    run-5.weir
    checksum=89abcdef

A base stands for everything before `position`, and replaces the segments that held it. Segments follow
without a gap: `position`, `sequence` and `previous` are those of a segment's first frame. All but the last
are sealed, that is finished: they have a length, and as checksum that of their last frame, which by the chain
covers the whole file. Files of runs have entries that left memory; the log says where in them. They are named
before anything refers to them, and until nothing does. The last line is the crc32 of everything above. Every
manifest has one text, and any other is refused. First and last line keep their form in every version. A
manifest without any file is that of a log that is just being made.

After a clean stop the last line of a segment ends with how long the file was then::

    segment-4.weir position=10510 sequence=71 previous=deadbeef stopped length=430 checksum=600dcafe

Its first `length` bytes were synced before this was written, and no byte of a log ever changes. So the record
stays true while frames are added behind it, and needs no withdrawal: a start that finds less refuses.
"""

import re
from dataclasses import dataclass, replace
from typing import ClassVar
from zlib import crc32

from engine.log.errors import LogRefusedError

MANIFEST = "manifest"
MANIFEST_BYTES_MAX = 1 << 18  # some two thousand files; a log has a handful

_FIRST = re.compile(r"weir log (\d{1,9})")
_LAST = re.compile(rb"checksum=([0-9a-f]{8})\n\Z")
_BASE = re.compile(r"base-(\d{1,18})\.weir position=(\d{1,20}) length=(\d{1,20}) checksum=([0-9a-f]{8})")
_SEGMENT = re.compile(
    r"segment-(\d{1,18})\.weir position=(\d{1,20}) sequence=(\d{1,20}) previous=([0-9a-f]{8})"
    r"(?:( stopped)? length=(\d{1,20}) checksum=([0-9a-f]{8}))?"
)
_RUNS = re.compile(r"run-(\d{1,18})\.weir")
_FILE_NAME = re.compile(r"(?:base|segment)-(\d{1,18})\.weir")


@dataclass(frozen=True)
class Seal:
    """How a finished file ends: its length in bytes, and the checksum of its last frame."""

    length: int
    checksum: int

    def __str__(self) -> str:
        return f" length={self.length} checksum={self.checksum:08x}"


@dataclass(frozen=True)
class Base:
    """A snapshot that stands for the log before `position`."""

    number: int
    position: int
    seal: Seal
    stop: ClassVar[None] = None  # a base is whole from the moment it is named

    @property
    def name(self) -> str:
        """The file's name."""
        return f"base-{self.number}.weir"

    def __str__(self) -> str:
        return f"{self.name} position={self.position}{self.seal}"


@dataclass(frozen=True)
class Segment:
    """A part of the log; `position`, `sequence` and `previous` are those of its first frame.

    A finished one has a `seal`, which is all of it. The last one may have a `stop`: it begins with these
    bytes, as the last clean stop left them.
    """

    number: int
    position: int
    sequence: int
    previous: int
    seal: Seal | None = None
    stop: Seal | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return f"segment-{self.number}.weir"

    def __str__(self) -> str:
        start = f"position={self.position} sequence={self.sequence} previous={self.previous:08x}"
        return f"{self.name} {start}{self.seal or ''}{f' stopped{self.stop}' if self.stop else ''}"


@dataclass(frozen=True)
class Manifest:
    """The files of the log, in the order in which they are read."""

    base: Base | None = None
    segments: tuple[Segment, ...] = ()
    # The numbers of the files of runs, ascending.
    runs: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return the one text of this manifest."""
        lines = ["weir log 1", *([str(self.base)] if self.base else []), *map(str, self.segments)]
        lines += map(run_name, self.runs)
        text = "".join(f"{line}\n" for line in lines).encode()
        return text + f"checksum={crc32(text):08x}\n".encode()

    def stopped(self, stop: Seal) -> "Manifest":
        """Return the manifest with a record of how the last segment ends at a clean stop."""
        *others, last = self.segments
        return replace(self, segments=(*others, replace(last, stop=stop)))

    def files(self) -> list[Base | Segment]:
        """Return base and segments."""
        return [*([self.base] if self.base else []), *self.segments]


def run_name(number: int) -> str:
    """The name of a file of runs."""
    return f"run-{number}.weir"


def run_number(name: str) -> int | None:
    """Return the number in the name of a file of runs; None for any other name."""
    match = _RUNS.fullmatch(name)
    return int(match[1]) if match else None


def file_number(name: str) -> int | None:
    """Return the number in the name of a base or a segment; None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def decode(text: bytes) -> Manifest:
    """Return the manifest that `text` is, or raise `LogRefusedError`."""
    manifest = _parse(_checked_lines(text))
    fault = _fault(manifest)
    if fault:
        raise LogRefusedError(MANIFEST, fault, repairable=True)
    if manifest.encode() != text:
        raise LogRefusedError(MANIFEST, "not written as this version writes it", repairable=True)
    return manifest


def _checked_lines(text: bytes) -> list[str]:
    """Return the lines between the first and the last, once those two hold."""
    if len(text) > MANIFEST_BYTES_MAX:
        raise LogRefusedError(MANIFEST, f"longer than {MANIFEST_BYTES_MAX} bytes", repairable=True)
    last = _LAST.search(text)
    if last is None:
        raise LogRefusedError(
            MANIFEST, "has no checksum in its last line: empty, cut or damaged", repairable=True
        )
    if int(last[1], 16) != crc32(text[: last.start()]):
        raise LogRefusedError(MANIFEST, "its checksum does not match", repairable=True)
    lines = text[: last.start()].decode("utf-8", "replace").removesuffix("\n").split("\n")
    first = _FIRST.fullmatch(lines[0])
    if first is None:
        raise LogRefusedError(MANIFEST, "does not begin with `weir log` and a version", repairable=True)
    if first[1] != "1":
        raise LogRefusedError(MANIFEST, f"is of a newer version ({first[1]})", newer=True)
    return lines[1:]


def _parse(lines: list[str]) -> Manifest:
    base = None
    segments: list[Segment] = []
    runs: list[int] = []
    for line in lines:
        if match := _BASE.fullmatch(line):
            if base or segments:
                raise LogRefusedError(
                    MANIFEST, "names a second base, or a base behind a segment", repairable=True
                )
            number, position, length, checksum = match.groups()
            base = Base(int(number), int(position), Seal(int(length), int(checksum, 16)))
        elif match := _SEGMENT.fullmatch(line):
            number, position, sequence, previous, stopped, length, checksum = match.groups()
            end = None if length is None else Seal(int(length), int(checksum, 16))
            seal, stop = (None, end) if stopped else (end, None)
            segments.append(Segment(int(number), int(position), int(sequence), int(previous, 16), seal, stop))
        elif match := _RUNS.fullmatch(line):
            runs.append(int(match[1]))
        else:
            raise LogRefusedError(MANIFEST, f"is of a newer version (line {line[:80]!r})", newer=True)
    return Manifest(base, tuple(segments), tuple(runs))


def _fault(manifest: Manifest) -> str | None:
    """Return what makes no sense about the files' order; the chain must be without a gap."""
    position, sequence, previous = 0, -1, 0
    if manifest.base:
        if not manifest.segments:
            return "names a base but no segment"
        # What came before the base is gone: its first segment is taken at its word.
        first = manifest.segments[0]
        position, sequence, previous = manifest.base.position, first.sequence - 1, first.previous
    elif manifest.segments and manifest.segments[0].sequence != 0:
        return f"{manifest.segments[0].name} does not begin the log, and no base stands for what was before"
    numbers = [segment.number for segment in manifest.segments]
    if numbers != sorted(set(numbers)):
        return "its segments are doubled or out of order"
    if list(manifest.runs) != sorted(set(manifest.runs)):
        return "its files of runs are doubled or out of order"
    for segment in manifest.segments:
        if segment.position != position or segment.previous != previous or segment.sequence <= sequence:
            return f"{segment.name} does not follow what is named before it"
        last = segment is manifest.segments[-1]
        if (segment.seal is None) != last:
            return f"{segment.name} is {'' if segment.seal else 'not '}sealed"
        if segment.seal:
            position += segment.seal.length
            sequence, previous = segment.sequence, segment.seal.checksum
    return None
