"""The manifest names exactly the files of the log, or the log is not opened."""

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.codec import HEAD, HEADER, encode_file_frame, file_salt
from engine.log import LogRefusedError
from engine.log.files import next_number
from engine.log.manifest import MANIFEST_BYTES_MAX, Base, Manifest, Seal, Segment, decode, file_number
from engine.storage.memory import MemoryStorage
from tests.engine.log_cases import (
    SEGMENT,
    append,
    begun,
    changed,
    closed,
    files,
    frames_of,
    next_segment,
    open_log,
    reader,
    recovered,
    write_base,
)

WHOLE = Manifest(
    Base(3, 900, Seal(500, 0x0BADCAFE)),
    (
        Segment(2, 900, 57, 0x00C0FFEE, Seal(130, 0xDEADBEEF)),
        Segment(4, 1030, 71, 0xDEADBEEF, Seal(70, 0x12345678)),
        Segment(5, 1100, 80, 0x12345678),
    ),
)
NAMED = (
    "base-3.weir position=900 length=500 checksum=0badcafe",
    "segment-2.weir position=900 sequence=57 previous=00c0ffee length=130 checksum=deadbeef",
    "segment-4.weir position=1030 sequence=71 previous=deadbeef length=70 checksum=12345678",
    "segment-5.weir position=1100 sequence=80 previous=12345678",
)


def sealed_text(*lines: str, first: str = "weir log 1", ending: str = "\n") -> bytes:
    """A manifest of these lines whose checksum is right."""
    text = "".join(line + ending for line in (first, *lines)).encode()
    return text + f"checksum={crc32(text):08x}{ending}".encode()


def without(line: int) -> tuple[str, ...]:
    return NAMED[:line] + NAMED[line + 1 :]


def swapped(one: int, other: int) -> tuple[str, ...]:
    lines = list(NAMED)
    lines[one], lines[other] = lines[other], lines[one]
    return tuple(lines)


def edited(line: int, old: str, new: str) -> tuple[str, ...]:
    assert old in NAMED[line]
    return (*NAMED[:line], NAMED[line].replace(old, new), *NAMED[line + 1 :])


def test_the_text_is_the_one_that_is_drawn() -> None:
    """What the module's head shows is what is written and read."""
    assert WHOLE.encode() == sealed_text(*NAMED)
    assert decode(WHOLE.encode()) == WHOLE
    assert decode(Manifest().encode()) == Manifest()
    assert [file.name for file in WHOLE.files()] == [line.split()[0] for line in NAMED]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no checksum in its last line"),
        (b"\n", "no checksum in its last line"),
        (WHOLE.encode()[:-1], "no checksum in its last line"),
        (WHOLE.encode()[:-20], "no checksum in its last line"),
        (WHOLE.encode() + b"\n", "no checksum in its last line"),
        (WHOLE.encode().replace(b"5", b"6", 1), "checksum does not match"),
        (WHOLE.encode() + WHOLE.encode(), "checksum does not match"),
        (sealed_text(*NAMED, ending="\r\n"), "no checksum in its last line"),
        (sealed_text(*NAMED, first="weir log 1\r"), "does not begin with"),
        (sealed_text(*NAMED, first="redis log 1"), "does not begin with"),
        (sealed_text(*NAMED, first="weir log"), "does not begin with"),
        (sealed_text(*NAMED, first="weir log 2"), r"newer version \(2\)"),
        (sealed_text(*NAMED, first="weir log 01"), "newer version"),
        (sealed_text(*NAMED, "shard-7.weir position=3"), "newer version"),
        (sealed_text(*edited(3, "previous", "salt=1 previous")), "newer version"),
        (sealed_text(*edited(3, " previous=12345678", "")), "newer version"),
        (sealed_text(*edited(3, "segment-5", "../segment-5")), "newer version"),
        (sealed_text(*edited(3, "position=1100", "position=-1100")), "newer version"),
        (sealed_text(*edited(3, "position=1100", "position=" + "1" * 300)), "newer version"),
        (sealed_text(*NAMED, ""), "newer version"),
        (sealed_text(*edited(3, "position=1100", "position=01100")), "not written as this version"),
        (sealed_text(NAMED[0], *NAMED), "second base"),
        (sealed_text(NAMED[0], NAMED[0].replace("base-3", "base-4"), *NAMED[1:]), "second base"),
        (sealed_text(*swapped(0, 1)), "behind a segment"),
        (sealed_text(*swapped(1, 2)), "doubled or out of order"),
        (sealed_text(*swapped(2, 3)), "doubled or out of order"),
        (sealed_text(*NAMED[:2], *NAMED[1:]), "doubled or out of order"),
        (sealed_text(*without(0)), "no base stands for what was before"),
        (sealed_text(*without(1)), "segment-4.weir does not follow"),
        (sealed_text(*without(2)), "segment-5.weir does not follow"),
        (sealed_text(*without(3)), "segment-4.weir is sealed"),
        (sealed_text(*edited(1, " length=130 checksum=deadbeef", "")), "segment-2.weir is not sealed"),
        (sealed_text(*edited(3, "previous=12345678", "previous=12345679")), "segment-5.weir does not follow"),
        (sealed_text(*edited(3, "position=1100", "position=1101")), "segment-5.weir does not follow"),
        (sealed_text(*edited(3, "sequence=80", "sequence=71")), "segment-5.weir does not follow"),
        (sealed_text(*edited(0, "position=900", "position=901")), "segment-2.weir does not follow"),
        (sealed_text(NAMED[0]), "names a base but no segment"),
        (sealed_text("segment-1.weir position=7 sequence=0 previous=00000000"), "does not follow"),
        (sealed_text("segment-1.weir position=0 sequence=1 previous=00000000"), "does not begin the log"),
        (sealed_text(*NAMED, "#" * MANIFEST_BYTES_MAX), "longer than"),
    ],
)
def test_any_other_manifest_is_refused_with_its_reason(text: bytes, reason: str) -> None:
    """Also one whose checksum is right, but that was not written by this program for this log."""
    with pytest.raises(LogRefusedError, match=reason) as refused:
        decode(text)
    assert refused.value.file == "manifest"


def test_every_flipped_bit_of_a_manifest_is_refused() -> None:
    """Never an empty log, never another set of files."""
    text = WHOLE.encode()
    for bit in range(len(text) * 8):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LogRefusedError):
            decode(bytes(flipped))


@given(st.binary(max_size=200))
def test_noise_is_no_manifest(noise: bytes) -> None:
    """Arbitrary bytes are refused, never an exception of another kind."""
    for text in (noise, sealed_text(noise.decode("latin-1"))):
        with pytest.raises(LogRefusedError):
            decode(text)


def test_numbers_of_files_are_never_used_again() -> None:
    """Not even those of files that no manifest names: nothing unknown is ever written over."""
    storage = MemoryStorage({"segment-7.weir": b"", "base-9.weir": b"", "segment-12.weir.torn-5": b""})
    assert next_number(storage, Manifest()) == 10
    assert next_number(MemoryStorage(), WHOLE) == 6
    assert next_number(MemoryStorage(), Manifest()) == 1
    assert file_number("base-9.weir.tmp") is None


def with_base() -> MemoryStorage:
    """A directory as a rewrite leaves it: base and two segments; the segment they replace is gone."""
    storage, log = begun(b"old one", b"old two")
    next_segment(log)
    append(log, b"three", b"four", synced=True)
    next_segment(log)
    append(log, b"five", synced=True)
    second = decode(storage.content("manifest")).segments[1]
    write_base(log, second.position, b"one and two", b"!", reservation_ms=77)
    log.close()
    return storage.crash()


def test_a_base_is_replayed_first_and_stands_for_what_was_before() -> None:
    """What the rewrite will leave can be read today, with the reservation it took over."""
    storage = with_base()
    log = open_log(storage)
    assert list(log.replay()) == [b"one and two", b"!", b"three", b"four", b"five"]
    assert log.recovery.reservation_ms == 77
    assert log.recovery.clean_stop
    assert log.recovery.bytes == sum(
        len(content) for name, content in files(storage).items() if name.endswith(".weir")
    )
    append(log, b"six", synced=True)
    log.close()
    assert recovered(storage.crash())[-2:] == [b"five", b"six"]


def test_a_sound_segment_of_another_log_is_refused() -> None:
    """Same frames, same places, other chain or place in the log."""
    ours, theirs = with_base(), closed()
    with pytest.raises(LogRefusedError, match=r"segment-3.weir, offset 0"):
        recovered(changed(ours, "segment-3.weir", theirs.content(SEGMENT)))


def test_a_segment_of_another_position_is_refused() -> None:
    """Positions say what was synced: a first frame with another one would shift them all."""
    storage = MemoryStorage()
    open_log(storage).close(clean=False)
    frame, _ = encode_file_frame(1, 1000, 0, 0, 0)
    with pytest.raises(LogRefusedError, match="is the file for position 1000, not for 0"):
        recovered(changed(storage, SEGMENT, frame))


def test_files_without_a_manifest_are_refused_and_left_alone() -> None:
    """A lost manifest is never an empty start, nor are files of a log deleted as unknown."""
    for make in (closed, with_base):
        directory = files(make())
        del directory["manifest"]
        storage = MemoryStorage(directory)
        with pytest.raises(LogRefusedError, match="manifest: is missing"):
            open_log(storage)
        assert files(storage) == directory


def followed() -> tuple[MemoryStorage, bytes]:
    """Three segments, all synced, and the manifest as it was when there was one."""
    storage, log = begun(b"one")
    before = storage.content("manifest")
    next_segment(log)
    append(log, b"two", synced=True)
    next_segment(log)
    append(log, b"three", synced=True)
    log.close()
    return storage.crash(), before


def test_a_manifest_that_names_nothing_beside_a_log_is_refused() -> None:
    """Nothing says where such a log began."""
    storage, _ = followed()
    with pytest.raises(LogRefusedError, match=r"names no file, but segment-1.weir has frames"):
        recovered(changed(storage, "manifest", Manifest().encode()))


def test_a_segment_that_is_not_named_is_taken_only_if_it_goes_on_exactly() -> None:
    """A flipped bit in what it follows, or in its first frame, is damage: it was synced."""
    storage, before = followed()
    older = changed(storage, "manifest", before)
    for name in ("segment-1.weir", "segment-2.weir"):
        content = storage.content(name)
        for bit in range(len(content) * 8):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(LogRefusedError) as refused:
                recovered(changed(older, name, bytes(flipped)))
            assert refused.value.file == name


def test_a_segment_cut_below_what_its_follower_saw_synced_is_refused() -> None:
    """Frames beyond a hole testify that the hole was no torn tail."""
    storage, before = followed()
    older = changed(storage, "manifest", before)
    content = storage.content("segment-1.weir")
    for length in range(52, len(content)):
        with pytest.raises(LogRefusedError, match=r"segment-1.weir, offset 52.*synced beyond"):
            recovered(changed(older, "segment-1.weir", content[:length]))


def test_a_segment_beyond_a_torn_tail_is_torn_with_it() -> None:
    """Nothing in either was synced: what the power cut left of the second is of no use without the first."""
    storage, log = begun(b"one")
    append(log, b"two", synced=False)
    log.start_segment(log.prepare_segment())
    append(log, b"three", synced=False)
    whole = files(storage.kill())
    torn = {**whole, SEGMENT: whole[SEGMENT][:-1]}
    image = MemoryStorage(torn)
    assert recovered(image) == [b"one"]
    again = open_log(image)
    append(again, b"four", synced=True)
    next_segment(again)
    append(again, b"five", synced=True)
    assert recovered(image.crash()) == [b"one", b"four", b"five"]


def test_a_segment_without_a_whole_first_frame_is_none() -> None:
    """It was made beforehand, and the crash came before its first frame was there."""
    storage, log = begun(b"one")
    log.start_segment(log.prepare_segment())
    append(log, b"two", synced=False)
    whole = files(storage.kill())
    for length in range(53):
        beginnings = [whole["segment-2.weir"][:length], bytes(length)] if length < 52 else [bytes(length)]
        for beginning in beginnings:
            image = MemoryStorage({**whole, "segment-2.weir": beginning})
            assert recovered(image) == [b"one"]
            assert image.content("segment-2.weir") == beginning


def test_leftovers_of_ours_go_only_after_a_successful_load() -> None:
    """As long as the log is refused, everything in the directory may be needed to repair it."""
    storage = closed()
    leftovers = {"manifest.tmp": b"half", f"{SEGMENT}.torn-70.tmp": b"half", f"{SEGMENT}.torn-70.2.tmp": b""}
    beside = MemoryStorage({**files(storage), **leftovers})
    recovered(beside)
    assert files(beside) == files(storage)
    refused = MemoryStorage({**files(storage), **leftovers, SEGMENT: b""})
    directory = files(refused)
    with pytest.raises(LogRefusedError):
        open_log(refused)
    assert files(refused) == directory


def with_newer_frame(content: bytes) -> bytes:
    """The last frame with its version raised, and sound otherwise."""
    last = frames_of(content)[-1]
    fields = list(HEADER.unpack_from(content, last.offset))
    head = HEAD.pack(fields[0], 2, *fields[2:8])
    head_check = crc32(head, file_salt(reader(content)))
    checks = struct.pack("<II", head_check, crc32(last.payload, head_check))
    return content[: last.offset] + head + checks + last.payload


def test_a_newer_format_is_refused_untouched() -> None:
    """An older program must not cut what it cannot read, even where a torn tail could be."""
    storage = closed()
    newer = changed(storage, SEGMENT, with_newer_frame(storage.content(SEGMENT)))
    directory = files(newer)
    with pytest.raises(LogRefusedError, match="newer version"):
        open_log(newer)
    assert files(newer) == directory
