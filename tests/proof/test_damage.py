"""A directory with any damage gives what it held, a whole prefix of it, or is refused."""

from dataclasses import replace

import pytest

from engine import LogRefusedError, StorageLockedError
from engine.codec import FILE_FRAME_BYTES, HEAD, HEADER, MAGIC, Kind, encode_file_frame
from engine.log import Log
from engine.log.manifest import MANIFEST, Manifest, decode
from engine.storage.memory import MemoryStorage
from tests.proof.damage import (
    PAGE,
    SECTOR,
    Directory,
    cuts,
    directory,
    flips,
    frames_of,
    holes,
    moved_frames,
    verdict,
    whole_files,
)
from tests.proof.disks import common_bytes
from tests.proof.run_damages import RunDamages, damage_runs

# Coverage would make it three times as long, and other tests cover the same lines.
pytestmark = pytest.mark.no_cover

FLIPS_EVERY = 41  # `make soak` takes all of them
RUN_DAMAGES = 200


@pytest.fixture(scope="module")
def whole() -> Directory:
    """A base, a sealed segment, an open one with a tail that may be torn."""
    return directory()


@pytest.fixture(scope="module")
def stopped() -> Directory:
    """The same after a clean stop."""
    return directory(steps=4, stopped=True)


def synced_bytes(whole: Directory, without: range = range(0)) -> int:
    """How much of the open segment its frames say was synced; those that touch the bytes `without` say
    nothing any more.
    """
    position = decode(whole.files[MANIFEST]).segments[-1].position
    frames = frames_of(whole, whole.last)
    left = [one for one in frames if one.end <= without.start or one.offset >= without.stop]
    return max((frame.durable_upto for frame in left), default=0) - position


def stopped_bytes(whole: Directory) -> int:
    """How much of the open segment was there at the last clean stop."""
    stop = decode(whole.files[MANIFEST]).segments[-1].stop
    return stop.length if stop else 0


def test_the_directory_has_everything_to_spoil(whole: Directory) -> None:
    """Or the tests below would prove less than they say."""
    kinds = sorted(name.partition("-")[0] for name in whole.files)
    assert kinds == ["base", "manifest", "segment", "segment"]
    assert verdict(whole, whole.files) == "same"
    assert 100 < synced_bytes(whole) < len(whole.files[whole.last]) - 100
    assert FILE_FRAME_BYTES < stopped_bytes(whole) < synced_bytes(whole)


def test_a_file_cut_at_any_byte(whole: Directory) -> None:
    """F5: the open segment gives every whole frame; a sealed one is refused, shorter by a byte, and so
    is what was there at the last clean stop.
    """
    for name, files in cuts(whole):
        torn = name == whole.last and len(files[name]) >= stopped_bytes(whole)
        assert verdict(whole, files, name) == ("prefix" if torn else "refused"), (name, len(files[name]))


def test_a_file_cut_at_any_byte_after_a_clean_stop(stopped: Directory) -> None:
    """Refused, at the border of two frames too: nothing can have been torn."""
    assert stopped_bytes(stopped) == len(stopped.files[stopped.last])
    assert verdict(stopped, stopped.files) == "same"
    for name, files in cuts(stopped):
        assert verdict(stopped, files, name) == "refused", (name, len(files[name]))


def test_any_damage_after_a_clean_stop(stopped: Directory) -> None:
    """Refused, in the last frame too, before which nothing else says that it was synced."""
    for name, at, files in flips(stopped, every=FLIPS_EVERY):
        assert verdict(stopped, files, name) == "refused", (name, at)
    last = frames_of(stopped, stopped.last)[-1]
    content = stopped.files[stopped.last]
    for at in range(last.offset, last.end):
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        assert verdict(stopped, stopped.with_file(stopped.last, flipped)) == "refused", at
    for name, what, files in moved_frames(stopped):
        added = name == stopped.last and files[name].startswith(content)
        assert verdict(stopped, files) == ("same" if added else "refused"), (name, what)


def check_flips(whole: Directory, every: int) -> int:
    """A flipped bit anywhere in what was synced is refused, beyond it is a torn tail; how many there were."""
    synced, count = synced_bytes(whole), 0
    for name, at, files in flips(whole, every=every):
        expected = "prefix" if name == whole.last and at >= synced else "refused"
        assert verdict(whole, files, name) == expected, (name, at)
        count += 1
    return count


def test_a_flipped_bit(whole: Directory) -> None:
    """F8, F9: not one start with other data than were written."""
    assert check_flips(whole, FLIPS_EVERY) > 500


@pytest.mark.parametrize("size", [SECTOR, PAGE])
def test_zeros_in_the_place_of_a_part(whole: Directory, size: int) -> None:
    """F7, F33: in what was synced refused, in the torn part cut at the frame where they begin.

    What was synced is known from the frames that are left: without any behind it, a hole is like a torn tail.
    """
    for name, start, files in holes(whole, size):
        synced = max(synced_bytes(whole, range(start, start + size)), stopped_bytes(whole))
        torn = name == whole.last and start >= synced
        assert verdict(whole, files, name) == ("prefix" if torn else "refused"), (name, start)


@pytest.mark.parametrize("zeros", [1, 511, 512, 4096])
def test_zeros_behind_a_file(whole: Directory, zeros: int) -> None:
    """F6: behind the open segment a torn tail, behind a finished file a refusal."""
    for name, content in whole.files.items():
        expected = "same" if name == whole.last else "refused"
        assert verdict(whole, whole.with_file(name, content + bytes(zeros))) == expected


def test_frames_that_moved(whole: Directory) -> None:
    """F32: removed, doubled or swapped, in any file: never served as if nothing had happened."""
    synced = synced_bytes(whole)
    for name, what, files in moved_frames(whole):
        found = verdict(whole, files, name)
        first = common_bytes(files[name], whole.files[name])
        if name != whole.last or first < synced:
            assert found == "refused", (name, what)


def test_files_that_are_not_as_they_were(whole: Directory) -> None:
    """F10: missing, empty, longer, zeros, exchanged: refused; bytes behind the last segment are a tail."""
    for name, what, files in whole_files(whole):
        expected = "same" if (name, what) == (whole.last, "longer") else "refused"
        assert verdict(whole, files, None if what.startswith("for") else name) == expected, (name, what)


def test_an_older_base_beside_newer_segments(whole: Directory) -> None:
    """F31: from a copy of last week it is not the file that the manifest names."""
    base = next(name for name in whole.files if name.startswith("base-"))
    older = directory(steps=9).files[base]
    assert verdict(whole, whole.with_file(base, older)) == "refused"


def test_a_manifest_of_before_the_last_segment_is_complete(whole: Directory) -> None:
    """The chain proves which segment goes on where it ends; so nothing is lost, and nothing refused."""
    manifest = decode(whole.files[MANIFEST])
    *_, open_before, _ = manifest.segments
    older = Manifest(manifest.base, (*manifest.segments[:-2], replace(open_before, seal=None)))
    assert verdict(whole, whole.with_file(MANIFEST, older.encode())) == "same"


def test_a_segment_of_another_time_is_not_adopted(whole: Directory) -> None:
    """A sound file with the next number, but an older one, or of another chain: it is left alone."""
    *_, sealed, last = decode(whole.files[MANIFEST]).segments
    sequence = frames_of(whole, last.name)[-1].sequence
    foreign, _ = encode_file_frame(1, whole.end + 50, sequence + 5, 77, 0)
    for content in (whole.files[sealed.name], whole.files[last.name], foreign, b"", bytes(700)):
        assert verdict(whole, {**whole.files, "segment-99.weir": content}) == "same"


@pytest.mark.parametrize("length", [2**31, 2**32 - 1])
def test_an_absurd_length(whole: Directory, length: int) -> None:
    """F30: refused in what was synced, a torn tail behind it; nothing allocates what a header says."""
    content = whole.files[whole.last]
    frame = frames_of(whole, whole.last)[1]
    lying = bytearray(content)
    lying[frame.offset + 8 : frame.offset + 12] = length.to_bytes(4, "little")
    assert verdict(whole, whole.with_file(whole.last, bytes(lying))) == "refused"
    head = HEAD.pack(MAGIC, 1, Kind.RECORDS, 0, length, 99, 0, 0)
    tail = head + bytes(HEADER.size - len(head))
    assert verdict(whole, whole.with_file(whole.last, content + tail)) == "same"


def test_unknown_files_are_left_alone(whole: Directory) -> None:
    """F11: nothing is served from them, and nothing whose name is not the log's own is removed."""
    extra = {"notes.txt": b"mine", "dump.rdb": b"REDIS", "segment-4.weir.bak": b"copy", "other.tmp": b"x"}
    storage = MemoryStorage({**whole.files, **extra})
    assert verdict(whole, {**whole.files, **extra}) == "same"
    Log.open(storage).close(clean=False)
    assert {name: storage.content(name) for name in extra} == extra


def test_a_second_one_is_refused(whole: Directory) -> None:
    """F25: while the first holds the directory, and the first is unharmed."""
    storage = MemoryStorage(whole.files)
    log = Log.open(storage)
    before = list(storage.operations)
    with pytest.raises(StorageLockedError):
        Log.open(storage.rival())
    assert storage.operations == before
    log.close()


async def test_no_damage_of_files_of_runs_is_served() -> None:
    """Each range is as it was, or refused alone, also where a sound run is in another's place."""
    tally = await damage_runs(1, RUN_DAMAGES, RunDamages())
    assert tally.refused > RUN_DAMAGES // 2, "most damages are in what is referred to"


def test_a_refusal_tells_what_to_do(whole: Directory) -> None:
    """File, offset, reason, and where to go from here."""
    base = next(name for name in whole.files if name.startswith("base-"))
    spoiled = bytearray(whole.files[base])
    spoiled[200] ^= 1
    with pytest.raises(LogRefusedError, match=rf"{base}, offset \d+: .*; run `weir log repair`"):
        Log.open(MemoryStorage(whole.with_file(base, bytes(spoiled))))
