"""Messages of RFC 6455: whole ones in plain frames, and those that come in parts.

Knows: how a frame is laid out, where one ends, what is text. Must never know: sockets, what a message means.

    0x81, 0x80 | length, [length in 2 bytes], mask in 4 bytes, text      most of what arrives: read here

Everything else is the library's. It does not say whether it waits for a message to begin, so that its frames'
ends are followed here.
"""

import codecs
from typing import Final

from websockets.frames import Frame, Opcode

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without its part in C
    from websockets.utils import apply_mask

# First byte of a text in one frame; its length takes a byte, or two behind 126.
_WHOLE_TEXT: Final = 0x81
_MASKED: Final = 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_HEAD_BYTES_MAX: Final = 14
_decoder: Final = codecs.getincrementaldecoder("utf-8")


def plain_text(data: bytes | bytearray, at: int, bytes_max: int) -> tuple[bytes, int] | None:
    """The text of the frame that begins at `at`, and its end; None where it is not whole, or no plain one:
    masked, without extensions, of at most 64 KiB.
    """
    size = len(data)
    if size - at < 6 or data[at] != _WHOLE_TEXT or not _MASKED <= data[at + 1] <= _MASKED | _TWO_BYTES:
        return None
    length, mask_at = data[at + 1] & 0x7F, at + 2
    if length == _TWO_BYTES:
        mask_at += 2
        length = data[at + 2] << 8 | data[at + 3]
    end = mask_at + 4 + length
    if end > size or length > bytes_max:
        return None
    return apply_mask(data[mask_at + 4 : end], data[mask_at : mask_at + 4]), end


class FrameEnds:
    """Where frames end in bytes that come in pieces."""

    __slots__ = ("_head", "left_bytes")

    def __init__(self) -> None:
        # The beginning of a frame's head, and what is missing of one whose head was there.
        self._head = b""
        self.left_bytes = 0

    @property
    def is_between(self) -> bool:
        """Whether the next byte begins a frame."""
        return not self.left_bytes and not self._head

    def follow(self, piece: bytes) -> None:
        """Go on to the end of this piece."""
        at = self.left_bytes
        if self._head:
            piece = self._head + piece
            self._head = b""
        size = len(piece)
        while at < size:
            length = piece[at + 1] & 0x7F if size - at > 1 else 0
            head_bytes = 6 if length < _TWO_BYTES else 8 if length == _TWO_BYTES else _HEAD_BYTES_MAX
            if size - at < head_bytes:
                self._head = piece[at:]
                break
            if length >= _TWO_BYTES:
                length = int.from_bytes(piece[at + 2 : at + head_bytes - 4])
            at += head_bytes + length
        self.left_bytes = max(0, at - size)


class MessageParts:
    """The message that arrives, in one frame or several."""

    __slots__ = ("_decoder", "_parts", "is_begun", "is_text")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._decoder: codecs.IncrementalDecoder | None = None
        self.is_text = False
        # Whether more of it follows.
        self.is_begun = False

    def add(self, frame: Frame) -> bytes | None:
        """Add a part. Returns the message once it is whole. Raises UnicodeDecodeError as soon as it cannot
        become text.
        """
        data = bytes(frame.data)
        if frame.opcode is not Opcode.CONT:
            self._parts.clear()
            self.is_text = frame.opcode is Opcode.TEXT
            self._decoder = None if not self.is_text or (frame.fin and data.isascii()) else _decoder()
        if self._decoder is not None:
            self._decoder.decode(data, final=frame.fin)
        self._parts.append(data)
        self.is_begun = not frame.fin
        if not frame.fin:
            return None
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole
