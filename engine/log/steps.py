"""The steps of a repair. Each step describes itself first, and may be stopped anywhere.

Knows: the order of writing, naming and forgetting that a crash may interrupt.
Must never know: why a step is needed, and who confirms it.

Nothing is deleted: what is given up stays beside the log under another name. What keeps everything (a torn
tail, bytes too many, a lost manifest) is done in place. What gives frames up is done beside: the prefix that
is kept is copied to a new segment, then the files that go are given other names, then the manifest changes.
Until that last step a start refuses as before, and the next repair takes the names back and begins anew.
"""

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.codec import encode_file_frame
from engine.log.backup import Ending, ending_of, new_life
from engine.log.files import SET_ASIDE, free_name
from engine.log.inspection import FrameRun, manifest_from
from engine.log.log import Log
from engine.log.manifest import MANIFEST, Manifest, Segment
from engine.log.recovery import read_chunks
from engine.storage import TEMPORARY, Storage

_NEW: Final = ".new"
_ASIDE_NAME: Final = re.compile(rf"(segment-(\d{{1,18}})\.weir){re.escape(SET_ASIDE)}(?:\.\d+)?")


class RepairStep(ABC):
    """One thing to do; after it the log is planned anew."""

    @abstractmethod
    def sentences(self) -> Iterator[str]:
        """What is wrong, what will be done, what that costs."""

    @abstractmethod
    def do(self, storage: Storage, payloads: Sequence[bytes], now_ms: int) -> None:
        """Do it. The directory is locked."""


@dataclass(frozen=True)
class CutTail(RepairStep):
    """A start would do the same."""

    torn_bytes: int
    torn_file: str | None

    def sentences(self) -> Iterator[str]:
        yield f"the last {self.torn_bytes} bytes are torn, as a crash leaves them; nothing in them was safe"
        yield f"they are kept in {self.torn_file}, then cut"

    def do(self, storage: Storage, payloads: Sequence[bytes], now_ms: int) -> None:
        Log.open(storage).close(clean=False)


@dataclass(frozen=True)
class CutExtra(RepairStep):
    """Bytes behind the end of a file that was sealed."""

    name: str
    length: int
    size: int

    def sentences(self) -> Iterator[str]:
        yield f"{self.name} is {self.size} bytes long, but was sealed with {self.length}, all of them sound"
        yield f"the {self.size - self.length} bytes behind them are kept in {self._kept}, then cut"

    @property
    def _kept(self) -> str:
        return f"{self.name}.extra-{self.length}"

    def do(self, storage: Storage, payloads: Sequence[bytes], now_ms: int) -> None:
        storage.replace(
            free_name(storage, self._kept), read_chunks(storage, self.name, self.length, self.size)
        )
        storage.truncate(self.name, self.length)
        handle = storage.open(self.name)
        try:
            handle.sync()
        finally:
            handle.close()


@dataclass(frozen=True)
class TakeBack(RepairStep):
    """Names that an earlier repair gave, before it was interrupted."""

    names: tuple[tuple[str, str], ...]

    def sentences(self) -> Iterator[str]:
        yield "an earlier repair was interrupted; what it had set aside is put back:"
        yield from (f"{aside} becomes {name} again" for aside, name in self.names)

    def do(self, storage: Storage, payloads: Sequence[bytes], now_ms: int) -> None:
        for aside, name in self.names:
            storage.rename(aside, name)
        storage.sync_directory()


@dataclass(frozen=True)
class NewManifest(RepairStep):
    """The manifest that the files themselves prove."""

    why: str
    manifest: Manifest
    end: int
    beyond: tuple[str, ...]  # what does not go on from there
    aside: tuple[str, ...]  # what the next start would remove as needless

    def sentences(self) -> Iterator[str]:
        names = ", ".join(file.name for file in self.manifest.files())
        yield self.why
        yield f"the files prove each other complete up to position {self.end}: {names}"
        if self.beyond:
            yield f"what goes on from there is missing: {', '.join(self.beyond)} will be given up next"
            yield "a backup may have more: stop here to restore it"
        yield f"a manifest that names them is written; one that is there is kept as {MANIFEST}{SET_ASIDE}"
        if self.aside:
            yield f"what is not needed stays, as {_asides(self.aside)}"
        yield "whether a newer segment was lost together with it, no file can tell"

    def do(self, storage: Storage, payloads: Sequence[bytes], now_ms: int) -> None:
        _set_aside(storage, self.aside)
        _replace_manifest(storage, self.manifest)


@dataclass(frozen=True)
class GiveUp(RepairStep):
    """Everything from a damage on: what is behind it may depend on what is lost.

    `kept` are the whole files before it; `cut` is the sound part of the damaged one, None if it has none.
    `aside` are the files that go, first one that the manifest names: while that is missing, no start
    succeeds.
    """

    why: str
    kept: tuple[FrameRun, ...]
    cut: FrameRun | None
    segment: Segment  # the new one
    aside: tuple[str, ...]
    lost_bytes: int
    lost_frames: int
    reserved_ms: int

    def sentences(self) -> Iterator[str]:
        yield self.why
        yield f"everything before position {self.cut.end if self.cut else self.segment.position} is kept"
        frames = "1 frame" if self.lost_frames == 1 else f"{self.lost_frames} frames"
        yield f"given up are {self.lost_bytes} bytes from there on, in which {frames} can be recognised"
        if self.aside:
            yield f"their files stay, as {_asides(self.aside)}"
        yield f"{self.segment.name} takes their place, and every stream gets a new generation"

    def do(self, storage: Storage, payloads: Sequence[bytes], now_ms: int) -> None:
        name = self.segment.name
        ending = new_life(payloads, max(self.reserved_ms, now_ms))
        storage.replace(name + _NEW, self._content(storage, ending))
        _set_aside(storage, self.aside)
        storage.rename(name + _NEW, name)
        storage.sync_directory()
        _replace_manifest(storage, manifest_from([*(run.sealed for run in self.kept), self.segment]))

    def _content(self, storage: Storage, ending: Ending) -> Iterator[bytes]:
        if self.cut is not None:
            yield from read_chunks(storage, self.cut.file.name, 0, self.cut.length)
            yield ending_of(self.cut, ending)[0]
            return
        segment, salt = self.segment, secrets.randbits(32)
        position = segment.position
        frame, checksum = encode_file_frame(salt, position, segment.sequence, segment.previous, position)
        yield frame
        begun = FrameRun(
            segment, len(frame), salt, length=len(frame), sequence=segment.sequence, checksum=checksum
        )
        yield ending_of(begun, ending)[0]


def interrupted(names: Sequence[str], manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Return which names an interrupted repair had changed: what is aside, and what it was called.

    A repair that came to its end leaves a manifest whose last segment has a higher number than all that it
    set aside.
    """
    last = manifest.segments[-1].number if manifest.segments else 0
    named = {file.name for file in manifest.files()}
    aside_names = {}
    for name in names:
        match = _ASIDE_NAME.fullmatch(name)
        if match and match[1] not in names and (match[1] in named or int(match[2]) > last):
            aside_names[match[1]] = name  # of several, the one that was made last
    return tuple((aside, name) for name, aside in aside_names.items())


def _asides(names: Sequence[str]) -> str:
    return ", ".join(f"{name}{SET_ASIDE}" for name in names)


def _set_aside(storage: Storage, names: Sequence[str]) -> None:
    for name in names:
        storage.rename(name, free_name(storage, f"{name}{SET_ASIDE}"))
    storage.sync_directory()


def _replace_manifest(storage: Storage, manifest: Manifest) -> None:
    """Keep the old one, once, however often this is begun."""
    names = storage.names()
    if MANIFEST in names:
        old = storage.read(MANIFEST, 0, storage.size(MANIFEST))
        beside = [name for name in names if name.startswith(f"{MANIFEST}{SET_ASIDE}")]
        kept = [name for name in beside if not name.endswith(TEMPORARY)]
        if not any(storage.read(name, 0, len(old) + 1) == old for name in kept):
            storage.replace(free_name(storage, f"{MANIFEST}{SET_ASIDE}"), [old])
    storage.replace(MANIFEST, [manifest.encode()])
