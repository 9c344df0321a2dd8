"""A frame is verified whole, or it is not a frame."""

import struct
from collections.abc import Callable
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.codec import (
    CHUNK_BYTES,
    FILE_FRAME_BYTES,
    FRAME_BYTES_MAX,
    HEAD,
    HEADER_BYTES,
    MAGIC,
    Damage,
    Frame,
    FrameTooLong,
    Kind,
    durable_upto_beyond,
    encode_file_frame,
    encode_header,
    file_salt,
    first_frame,
    scan,
)
from tests.engine.log_cases import frames_of, reader

SALT = 0x5EED0001


def a_file(*payloads: bytes, position: int = 0, sequence: int = 0, previous: int = 0) -> bytes:
    """A file of RECORDS frames, in which each frame knows everything before it to be durable."""
    content, checksum = encode_file_frame(SALT, position, sequence, previous, position)
    for number, payload in enumerate(payloads, sequence + 1):
        durable_upto = position + len(content)
        header, checksum = encode_header(Kind.RECORDS, number, durable_upto, checksum, SALT, payload)
        content += header + payload
    return content


def damage_in(content: bytes) -> Damage:
    found = list(scan(reader(content), len(content)))[-1]
    assert isinstance(found, Damage)
    return found


def test_the_layout_is_the_one_that_is_drawn() -> None:
    """Every field stands at the offset that the module's head draws, little endian."""
    header, checksum = encode_header(Kind.MARK, 7, 11, 13, SALT, b"\x01")
    assert len(header) == HEADER_BYTES == 40
    assert header[:4] == b"\xf5Wr\xfa"
    assert header[4:8] == bytes([1, Kind.MARK, 0, 0])
    assert struct.unpack_from("<I", header, 8) == (1,)
    assert struct.unpack_from("<QQ", header, 12) == (7, 11)
    assert struct.unpack_from("<I", header, 28) == (13,)
    head_check = crc32(header[:32], SALT)
    assert struct.unpack_from("<II", header, 32) == (head_check, crc32(b"\x01", head_check))
    assert checksum == crc32(b"\x01", head_check)


@given(
    st.lists(st.binary(max_size=300), max_size=20),
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.integers(0, 2**32 - 1),
)
def test_what_goes_in_comes_out(payloads: list[bytes], position: int, sequence: int, previous: int) -> None:
    """Any run of payloads is read back: in order, with its sequence, its places and its chain."""
    content = a_file(*payloads, position=position, sequence=sequence, previous=previous)
    opening, *frames = frames_of(content, sequence=sequence, previous=previous)
    assert opening.kind == Kind.FILE
    assert opening.end == FILE_FRAME_BYTES
    assert file_salt(reader(content)) == SALT
    assert [frame.payload for frame in frames] == payloads
    assert [frame.sequence for frame in frames] == list(range(sequence + 1, sequence + 1 + len(payloads)))
    assert [frame.durable_upto for frame in frames] == [position + frame.offset for frame in frames]
    assert [frame.offset for frame in frames[1:]] == [frame.end for frame in frames[:-1]]
    assert (frames or [opening])[-1].end == len(content)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.data())
def test_a_changed_byte_ends_the_run_at_its_frame(payloads: list[bytes], data: st.DataObject) -> None:
    """With any byte changed to any other, the frames before it stand, its own and all behind do not."""
    content = bytearray(a_file(*payloads))
    frames = frames_of(bytes(content))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    found = list(scan(reader(bytes(content)), len(content)))
    sound = [frame for frame in frames if frame.end <= place]
    assert found[:-1] == sound
    assert isinstance(found[-1], Damage)
    assert found[-1].offset == (sound[-1].end if sound else 0)
    assert not found[-1].newer


@given(st.binary(max_size=400))
def test_noise_is_no_frame(noise: bytes) -> None:
    """Arbitrary bytes give damage at their start, and no exception."""
    assert damage_in(a_file(b"x") + noise + b"\0").offset == FILE_FRAME_BYTES + HEADER_BYTES + 1


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda frames: frames[0] + frames[2], "does not follow frame 0"),
        (lambda frames: frames[0] + frames[1] + frames[1], "does not follow frame 1"),
        (lambda frames: frames[0] + frames[2] + frames[1], "does not follow frame 0"),
        (lambda frames: b"".join(frames) + bytes(100), "zeros"),
        (lambda frames: b"".join(frames) + bytes(1), "zeros"),
        (lambda frames: b"".join(frames) + b"\xf5", "within a frame's header"),
        (lambda frames: b"".join(frames)[:-1], "beyond the end"),
        (lambda frames: b"".join(frames) + b"#" * 40, "no frame's header"),
    ],
    ids=["removed", "doubled", "swapped", "zeros", "a zero", "half a header", "cut", "garbage"],
)
def test_damage_is_told_by_its_reason(spoil: Callable[[list[bytes]], bytes], reason: str) -> None:
    """A reader of the message knows what kind of damage it is."""
    content = a_file(b"one", b"two", b"three")
    parts = [content[frame.offset : frame.end] for frame in frames_of(content)]
    assert reason in damage_in(spoil(parts)).reason


def test_a_frame_of_the_right_number_behind_another_past_is_no_follower() -> None:
    """The sequence alone can be right in a file restored from elsewhere; the chain is not."""
    ours, theirs = a_file(b"one", b"two"), a_file(b"ONE", b"two")
    cut = frames_of(ours)[2].offset
    assert damage_in(ours[:cut] + theirs[cut:]) == Damage(
        cut, "frame 2 is here, which does not follow frame 1"
    )


def test_a_frame_that_jumps_in_its_numbers_is_no_follower() -> None:
    """The chain alone can be right, in what a faulty writer wrote; the sequence is not."""
    content = a_file(b"one")
    header, _ = encode_header(Kind.RECORDS, 3, 0, frames_of(content)[-1].checksum, SALT, b"three")
    reason = "frame 3 is here, which does not follow frame 1"
    assert damage_in(content + header + b"three") == Damage(len(content), reason)


def with_head(version: int, kind: int, flags: int, length: int) -> bytes:
    """A frame whose header verifies, with any content."""
    before = a_file()
    checksum = frames_of(before)[-1].checksum
    head = HEAD.pack(MAGIC, version, kind, flags, length, 1, 0, checksum)
    head_check = crc32(head, SALT)
    return before + head + struct.pack("<II", head_check, crc32(b"12345", head_check)) + b"12345"


@pytest.mark.parametrize(("version", "kind", "flags"), [(2, 2, 0), (1, 6, 0), (1, 2, 1)])
def test_a_newer_format_is_not_taken_for_damage(version: int, kind: int, flags: int) -> None:
    """A header that verifies, and says what we do not know, was written by a newer version."""
    found = damage_in(with_head(version, kind, flags, 5))
    assert found.newer
    assert "newer version" in found.reason


@pytest.mark.parametrize("length", [6, 2**31 - 1, 2**31, 2**32 - 1])
def test_an_absurd_length_allocates_nothing(length: int) -> None:
    """However long a frame says it is, no more is asked for than the file has."""
    content = with_head(1, 2, 0, length)

    def read(offset: int, wanted: int) -> bytes:
        assert offset + wanted <= max(len(content), FILE_FRAME_BYTES)
        return content[offset : offset + wanted]

    found = list(scan(read, len(content)))[-1]
    assert isinstance(found, Damage)
    assert "beyond the end of the file" in found.reason


def test_a_payload_too_long_for_a_frame_is_refused_before_it_is_staged() -> None:
    """The bound holds when writing too; the zeros are never touched, so this costs no memory."""
    with pytest.raises(FrameTooLong):
        encode_header(Kind.RECORDS, 1, 0, 0, SALT, bytes(FRAME_BYTES_MAX + 1))


def test_frames_longer_than_a_step_and_across_steps_are_whole() -> None:
    """A file is read in steps; neither a long frame nor one across an edge notices, nor does a header."""
    edge = CHUNK_BYTES - FILE_FRAME_BYTES - 2 * HEADER_BYTES
    for before in range(edge - 3, edge + HEADER_BYTES + 3, 7):
        payloads = [b"a" * before, b"across the edge", b"b" * (CHUNK_BYTES + 77), b"", b"c" * 50]
        assert [frame.payload for frame in frames_of(a_file(*payloads))[1:]] == payloads


def test_frames_behind_a_damage_testify_what_was_durable() -> None:
    """A header is found and verified by itself, wherever it lies, across the edges of steps too."""
    header, _ = encode_header(Kind.RECORDS, 9, 4711, 0, SALT, b"lost payload")
    for before in (
        0,
        1,
        39,
        CHUNK_BYTES - 41,
        *range(CHUNK_BYTES - 40, CHUNK_BYTES + 1, 13),
        CHUNK_BYTES + 5,
    ):
        content = MAGIC[:2] * (before // 2) + b"?" * (before % 2) + header
        assert durable_upto_beyond(reader(content), len(content), SALT, 0) == 4711


def test_bytes_that_only_look_like_a_frame_testify_nothing() -> None:
    """Who does not know the salt cannot forge a header that recovery would believe."""
    forged, _ = encode_header(Kind.RECORDS, 9, 2**60, 0, SALT + 1, b"")
    content = a_file(forged) + forged + MAGIC
    assert durable_upto_beyond(reader(content), len(content), SALT, 0) == FILE_FRAME_BYTES


def test_the_first_frame_is_found_whatever_its_place_in_the_log() -> None:
    """A file holds its own sequence, so that files without a manifest can be put in order."""
    content = a_file(position=1000, sequence=77, previous=5)
    first = first_frame(reader(content), len(content))
    assert isinstance(first, Frame)
    assert (first.sequence, first.durable_upto) == (77, 1000)
    assert isinstance(first_frame(reader(content[:39]), 39), Damage)
    assert isinstance(first_frame(reader(content[:51]), 51), Damage)
