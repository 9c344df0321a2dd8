"""A whole directory to spoil (base, sealed segments, an open one), every way to spoil it, and the verdict.

Knows: which bytes are whose frames, and what was synced; that a log is refused or gives an exact prefix.
Must never know: how recovery finds out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from engine import Engine, LogRefusedError
from engine.codec import Damage, Frame, scan
from engine.log.ballast import BALLAST
from engine.log.manifest import MANIFEST, decode
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock
from tests.engine.images import image
from tests.engine.running import keyspace_of
from tests.proof.explorer import HOSTILE_WALL_MS
from tests.proof.lives import Living, log_end
from tests.proof.promises import Promises
from tests.proof.rewriting import next_segment, rewrite

Verdict = Literal["same", "prefix", "refused"]
SECTOR: Final = 512
PAGE: Final = 4096


class Directory(NamedTuple):
    """Files as a kill leaves them, and the record of what they say at each position."""

    files: dict[str, bytes]
    promises: Promises
    end: int

    @property
    def last(self) -> str:
        """The segment that is being written."""
        return decode(self.files[MANIFEST]).segments[-1].name

    def with_file(self, name: str, content: bytes) -> dict[str, bytes]:
        return {**self.files, name: content}


def directory(seed: int = 3, steps: int = 12, *, stopped: bool = False) -> Directory:
    """A base, a sealed segment and an open one, whose last frames no mark calls synced; with some seeds, as
    the default one, there are many of these.

    With `stopped` after a clean stop.
    """
    life = Living(seed, "everysec")
    life.rewrites_itself = False
    try:
        life.live_on(steps)
        life.between_runs(rewrite)
        life.live_on(steps)
        life.between_runs(next_segment)
        life.live_on(steps)
        life.pass_ms(2_500)
        life.live_on(steps)
        if stopped:
            life.close()
        # The ballast has no content that could be spoiled.
        names = [name for name in life.storage.names() if name != BALLAST]
        files = {name: life.storage.content(name) for name in names}
        return Directory(files, life.promises, log_end(life.engine))
    finally:
        life.end()


@dataclass
class Tally:
    """How many cases there were of each verdict."""

    same: int = 0
    prefix: int = 0
    refused: int = 0

    @property
    def cases(self) -> int:
        """All of them."""
        return self.same + self.prefix + self.refused

    def add(self, verdict: Verdict) -> None:
        setattr(self, verdict, getattr(self, verdict) + 1)


def verdict(whole: Directory, files: Mapping[str, bytes], spoiled: str | None = None) -> Verdict:
    """Open a spoiled directory. AssertionError where it gives other data than were ever logged, where it
    loses without a word, or where a refusal touches anything, or does not name the file that is `spoiled`.
    """
    storage = MemoryStorage(files)
    try:
        engine = Engine.open(storage, clock=HandClock(HOSTILE_WALL_MS), fsync="always")
    except LogRefusedError as refusal:
        named = refusal.file
        assert spoiled in {None, named}, f"{named} was refused for {spoiled}"
        assert {name: storage.content(name) for name in storage.names()} == dict(files), (
            "refused, yet touched"
        )
        return "refused"
    end = log_end(engine)
    assert end <= whole.end, "nothing is there that was not"
    assert image(keyspace_of(engine)) == whole.promises.image_at(end), f"silently different, at {end}"
    engine.check()
    if end == whole.end:
        return "same"
    assert engine.recovery.torn_bytes or whole.end - end == _missing_bytes(whole, files), "silently shorter"
    return "prefix"


def _missing_bytes(whole: Directory, files: Mapping[str, bytes]) -> int:
    return sum(len(content) - len(files.get(name, b"")) for name, content in whole.files.items())


def frames_of(whole: Directory, name: str) -> list[Frame]:
    """The frames of a file of the log."""
    content = whole.files[name]
    manifest = decode(whole.files[MANIFEST])
    segment = next((one for one in manifest.segments if one.name == name), None)
    chain = {} if segment is None else {"sequence": segment.sequence, "previous": segment.previous}
    found = list(scan(lambda offset, length: content[offset : offset + length], len(content), **chain))
    frames = [one for one in found if not isinstance(one, Damage)]
    assert frames == found
    return frames


# --- ways to spoil a directory ------------------------------------------------------------------------------


def cuts(whole: Directory) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Every file cut at every byte."""
    for name, content in whole.files.items():
        for length in range(len(content)):
            yield name, whole.with_file(name, content[:length])


def flips(whole: Directory, *, every: int = 1) -> Iterator[tuple[str, int, dict[str, bytes]]]:
    """Every bit of every file flipped, or one of `every`; with the byte in which it lies."""
    count = 0
    for name, content in whole.files.items():
        for bit in range(len(content) * 8):
            count += 1
            if count % every == 0:
                flipped = bytearray(content)
                flipped[bit // 8] ^= 1 << bit % 8
                yield name, bit // 8, whole.with_file(name, bytes(flipped))


def holes(whole: Directory, size: int) -> Iterator[tuple[str, int, dict[str, bytes]]]:
    """Zeros of `size` bytes at every boundary of that size, in every file; with the byte where it begins."""
    for name, content in whole.files.items():
        for start in range(0, len(content), size):
            end = min(start + size, len(content))
            yield name, start, whole.with_file(name, content[:start] + bytes(end - start) + content[end:])


def moved_frames(whole: Directory) -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Frames removed, doubled and swapped, in every file of the log; with what was done."""
    for name in whole.files:
        if not name.endswith(".weir"):
            continue
        content = whole.files[name]
        frames = frames_of(whole, name)
        for frame in frames:
            without = content[: frame.offset] + content[frame.end :]
            yield name, f"removed {frame.sequence}", whole.with_file(name, without)
            doubled = content[: frame.end] + content[frame.offset :]
            yield name, f"doubled {frame.sequence}", whole.with_file(name, doubled)
        for one, other in pairwise(frames):
            swapped = content[other.offset : other.end] + content[one.offset : one.end]
            spoiled = content[: one.offset] + swapped + content[other.end :]
            yield name, f"swapped {one.sequence}", whole.with_file(name, spoiled)


def whole_files(whole: Directory) -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Files missing, empty, longer, and in each other's place; with what was done."""
    for name, content in whole.files.items():
        yield name, "missing", {other: each for other, each in whole.files.items() if other != name}
        yield name, "empty", whole.with_file(name, b"")
        yield name, "longer", whole.with_file(name, content + content[-7:])
        yield name, "all zeros", whole.with_file(name, bytes(len(content)))
    for one, other in pairwise(sorted(whole.files)):
        yield one, f"for {other}", {**whole.files, one: whole.files[other], other: whole.files[one]}
