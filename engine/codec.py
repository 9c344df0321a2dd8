"""Frames: the log's payloads as checksummed, chained bytes.

Knows: the layout of a frame, how a frame is verified, and where a run of frames ends: cleanly, in damage
(with the offset and the reason), or in a newer format.
Must never know: files, directories, or what a payload means.

A file of the log is a run of frames; the first is of kind FILE and holds the file's salt::

    0      4    5     6      8       12        20             28        32          36        40
    | magic| ver| kind| flags| length| sequence| durable_upto | previous| head_check| checksum| payload
    | 4 B  | u8 | u8  | u16  | u32   | u64     | u64          | u32     | u32       | u32     | length B

    magic         F5 57 72 FA
    ver, flags    1, 0
    sequence      one higher in every frame, over the whole life of the log; a base counts for itself, from 0
    durable_upto  the log position known to be synced when the frame was made; never beyond its own start
    previous      the checksum of the frame before, so that a removed, doubled or swapped frame is found, and
                  a frame behind a damage can still be verified by itself
    head_check    crc32 of bytes 0..32, seeded with the salt
    checksum      crc32 of the payload, seeded with head_check: it covers header and payload and, through
                  `previous`, every frame before. The last one is therefore the checksum of the whole file.

Numbers are little endian. The salt is random for each file: a client, which controls only payloads, cannot
write bytes that pass for a frame. This matters because recovery looks for frames behind a damage. Bytes 0..36
keep their meaning in every version, so that a newer format is not mistaken for a flipped bit.

Payloads that the log reads itself::

    FILE     salt u32, position u64   where in the log the file begins; a base stands for what is before
    MARK     clean u8                 1: the log was closed on purpose
    RESERVE  ms u64                   IDs may have been given up to this time
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

MAGIC = b"\xf5Wr\xfa"  # neither its first nor its last byte occurs in UTF-8
VERSION = 1

HEAD = Struct("<4sBBHIQQI")
CHECKS = Struct("<II")
HEADER = Struct("<4sBBHIQQIII")  # both together, as they are read
HEADER_BYTES = HEADER.size

FILE_PAYLOAD = Struct("<IQ")
MARK_PAYLOAD = Struct("<B")
RESERVE_PAYLOAD = Struct("<Q")
FILE_FRAME_BYTES = HEADER_BYTES + FILE_PAYLOAD.size

FRAME_BYTES_MAX = 1 << 30  # the length field could say 4 GiB; no turn of a command comes near this
CHUNK_BYTES = 1 << 20  # files are read in steps of this, or of one frame where that is longer

_NO_HEADER = "no frame's header is here, or it is damaged"

Read = Callable[[int, int], bytes]  # (offset, length) -> the bytes there, fewer only at the end


class Kind(IntEnum):
    """What a frame is for."""

    FILE = 1
    RECORDS = 2
    BASE = 3
    MARK = 4
    RESERVE = 5


LAST_KIND = max(Kind)


class Frame(NamedTuple):
    """A verified frame; `offset` and `end` are counted from the start of its file."""

    offset: int
    end: int
    kind: int
    sequence: int
    durable_upto: int
    checksum: int
    payload: bytes


class Header(NamedTuple):
    """A frame's header where nothing before it may be sound; `length` is its payload's, not verified."""

    offset: int
    kind: int
    length: int
    durable_upto: int
    head_check: int
    checksum: int


class Damage(NamedTuple):
    """Where a run of frames stops being one; `newer` when the bytes are sound but of a later format."""

    offset: int
    reason: str
    newer: bool = False


class FrameTooLong(ValueError):  # noqa: N818 - named for what is wrong
    """A payload that no frame can hold (`FRAME_BYTES_MAX`)."""


def encode_header(
    kind: int, sequence: int, durable_upto: int, previous: int, salt: int, payload: bytes
) -> tuple[bytes, int]:
    """Return the header that goes before `payload`, and the frame's checksum for the next one."""
    length = len(payload)
    if length > FRAME_BYTES_MAX:
        raise FrameTooLong(f"a frame of {length} bytes is longer than {FRAME_BYTES_MAX}")
    head = HEAD.pack(MAGIC, VERSION, kind, 0, length, sequence, durable_upto, previous)
    head_check = crc32(head, salt)
    checksum = crc32(payload, head_check)
    return head + CHECKS.pack(head_check, checksum), checksum


def encode_file_frame(
    salt: int, position: int, sequence: int, previous: int, durable_upto: int
) -> tuple[bytes, int]:
    """Return the frame that opens a file whose first byte is at `position`, and its checksum."""
    payload = FILE_PAYLOAD.pack(salt, position)
    header, checksum = encode_header(Kind.FILE, sequence, durable_upto, previous, salt, payload)
    return header + payload, checksum


def file_salt(read: Read) -> int:
    """Return the salt that the first frame names; unverified, since the frame is checked with it."""
    opening = read(0, FILE_FRAME_BYTES)
    if len(opening) < FILE_FRAME_BYTES:
        return 0
    salt: int = FILE_PAYLOAD.unpack_from(opening, HEADER_BYTES)[0]
    return salt


def first_frame(read: Read, size: int) -> Frame | Damage:
    """Return the frame that opens a file, verified but for its place in the log."""
    header = read(0, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return Damage(0, "the file ends within its first frame")
    fields = HEADER.unpack(header)
    return next(scan(read, size, sequence=fields[5], previous=fields[7]))


def scan(read: Read, size: int, *, sequence: int = 0, previous: int = 0) -> Iterator[Frame | Damage]:
    """Yield the verified frames of a file of `size` bytes; a `Damage`, if there is one, comes last.

    The first frame must have `sequence` and follow a frame whose checksum was `previous`. A run that ends
    with the file yields no `Damage`. Memory is bounded by one step or one frame, and never above the file.
    """
    salt = file_salt(read)
    # There may be a million frames: what they have in common is looked up once.
    unpack, head_bytes = HEADER.unpack_from, HEAD.size
    # A part of the file, and where the next frame begins: in that part, and in the file.
    chunk, at, offset = b"", 0, 0
    while offset < size:
        if at + HEADER_BYTES > len(chunk):
            chunk, at = read(offset, min(CHUNK_BYTES, size - offset)), 0
            if len(chunk) < HEADER_BYTES:
                yield Damage(offset, _absence(chunk, "the file ends within a frame's header"))
                return
        magic, version, kind, flags, length, number, durable_upto, before, head_check, checksum = unpack(
            chunk, at
        )
        if magic != MAGIC or crc32(chunk[at : at + head_bytes], salt) != head_check:
            yield Damage(offset, _absence(chunk[at : at + HEADER_BYTES], _NO_HEADER))
            return
        if version != VERSION or flags or not 0 < kind <= LAST_KIND:
            yield Damage(offset, f"a frame of a newer version ({version}, kind {kind})", newer=True)
            return
        end = offset + HEADER_BYTES + length
        if length > FRAME_BYTES_MAX or end > size:
            yield Damage(offset, f"a frame of {length} bytes reaches beyond the end of the file")
            return
        if at + HEADER_BYTES + length > len(chunk):
            chunk, at = read(offset, min(max(HEADER_BYTES + length, CHUNK_BYTES), size - offset)), 0
        at += HEADER_BYTES + length
        payload = chunk[at - length : at]
        if crc32(payload, head_check) != checksum:
            yield Damage(offset, "the frame's checksum does not match")
            return
        if number != sequence or before != previous:
            yield Damage(offset, f"frame {number} is here, which does not follow frame {sequence - 1}")
            return
        yield Frame(offset, end, kind, number, durable_upto, checksum, payload)
        offset, sequence, previous = end, sequence + 1, checksum


def _absence(header: bytes, otherwise: str) -> str:
    """Name zeros for what they are: the usual trace of a power cut."""
    return otherwise if any(header) else "zeros where a frame should be"


def durable_upto_beyond(read: Read, size: int, salt: int, offset: int) -> int:
    """Return the highest `durable_upto` in any frame header at or after `offset`, 0 where there is none.

    This is how frames behind a damage still testify.
    """
    return max((header.durable_upto for header in headers_beyond(read, size, salt, offset)), default=0)


def headers_beyond(read: Read, size: int, salt: int, offset: int) -> Iterator[Header]:
    """Yield the frame headers at or after `offset`; a header verifies by itself, wherever it is found."""
    while offset < size:
        # The overlap finds a header that spans two steps.
        chunk = read(offset, min(CHUNK_BYTES + HEADER_BYTES - 1, size - offset))
        at = chunk.find(MAGIC)
        while 0 <= at <= len(chunk) - HEADER_BYTES:
            fields = HEADER.unpack_from(chunk, at)
            if crc32(chunk[at : at + HEAD.size], salt) == fields[8]:
                yield Header(offset + at, fields[2], fields[4], fields[6], fields[8], fields[9])
            at = chunk.find(MAGIC, at + 1)
        offset += CHUNK_BYTES
