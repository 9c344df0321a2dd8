"""Damaged WebSocket frames: cut, flipped, of wrong kinds and lengths, in pieces, without a socket, and what a
gateway makes of them.

Knows: how frames are laid out and damaged, which bytes are never the same twice.
Must never know: what is right.

To compare two versions byte for byte, run this in each of them and compare the files:

    python -m tests.app.damaged_frames --first 0 --count 10000 FILE
"""

import argparse
import asyncio
import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.app.damaged import outcomes_of
from tests.app.http_requests import request

UPGRADE: Final = request(
    "GET /v1/ws",
    None,
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: weir.v1"),
    *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
)
_MASK: Final = b"\x01\x02\x03\x04"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x81, 0x82, 0x88, 0x89, 0x8A
_SAID: Final = b'{"op":"ping","ref":"x"}'
# Texts of the gateway, whose numbers were made alike: they are not as long as they say.
_JSON: Final = re.compile(rb"\x81[^{]{1,9}\{.*?\}(?=[\x81\x88\x8a]|\Z)", re.DOTALL)
_NAMES: Final = {1: "text", 8: "close", 9: "ping", 10: "pong"}


def frame(first: int, data: bytes = b"", *, length: bytes = b"", mask: bytes = _MASK) -> bytes:
    """A frame that begins with this byte; `length` other than its shortest form, no `mask` for none."""
    size = len(data)
    shortest = bytes([size]) if size < 126 else b"\x7e" + struct.pack("!H", size)
    said = bytearray(length or shortest)
    said[0] |= 0x80 if mask else 0
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)) if mask else data
    return bytes([first]) + said + mask + masked


WHOLE: Final = [
    *[frame(_TEXT, _SAID)] * 4,
    *[frame(0x01, _SAID[:9]) + frame(0x80, _SAID[9:])] * 3,
    frame(0x01, _SAID[:9]) + frame(_PING, b"between") + frame(0x00) + frame(0x80, _SAID[9:]),
    frame(_TEXT, b'{"op":"ping","ref":"%b"}' % (b"x" * 300)),
    frame(_TEXT, _SAID, length=b"\x7e" + struct.pack("!H", len(_SAID))),
    frame(_TEXT, _SAID, length=b"\x7f" + struct.pack("!Q", len(_SAID))),
    frame(_TEXT, _SAID, mask=b""),
    frame(_TEXT, b'{"op":"ping","ref":"\xc3\xa9"}'),
    frame(0x01, b'{"op":"ping","ref":"\xc3') + frame(0x80, b'\xa9"}'),
    frame(_TEXT, b"\xff\xfe"),
    frame(0x01, b"{\xf4\x90"),
    frame(_TEXT, b""),
    frame(_TEXT, b"{"),
    frame(_BINARY, b"\x00"),
    *[frame(_PING, b"p")] * 2,
    frame(_PING, b"x" * 126),
    frame(0x09, b"p"),
    frame(_PONG, b"p"),
    frame(_CLOSE, b"\x03\xe8"),
    frame(_CLOSE, b"\x03\xe9going"),
    *(frame(_CLOSE, data) for data in (b"", b"\x03", b"\x03\xed", b"\x03\xe8\xff", b"\x0f\xa0")),
    frame(0x80, b"nothing was begun"),
    *(frame(first, b"?") for first in (0x83, 0x87, 0x8B, 0x8F, 0xC1, 0xA1, 0x91)),
    frame(_TEXT, length=b"\x7f" + struct.pack("!Q", 1 << 21)),
    frame(_TEXT, length=b"\x7f" + struct.pack("!Q", 1 << 63)),
]


def damaged(number: int) -> list[bytes]:
    """The pieces that this case sends."""
    dice = random.Random(number)
    sent = b"".join(_damaged(dice, dice.choice(WHOLE)) for _ in range(dice.choice((1, 2, 3, 5, 8))))
    cuts = sorted(dice.randrange(len(sent) + 1) for _ in range(dice.choice((0, 0, 1, 2, 5))))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    return [UPGRADE, *filter(None, pieces)]


def _damaged(dice: random.Random, sent: bytes) -> bytes:
    at = dice.randrange(len(sent))
    match dice.choice(("whole", "whole", "whole", "flip", "cut", "drop", "insert")):
        case "flip":
            return sent[:at] + bytes([sent[at] ^ 1 << dice.randrange(8)]) + sent[at + 1 :]
        case "cut":
            return sent[:at]
        case "drop":
            return sent[:at] + sent[at + 1 :]
        case "insert":
            return sent[:at] + bytes([dice.randrange(256)]) + sent[at:]
    return sent


def _frames(written: bytes) -> Iterator[str]:
    """The names of a server's frames; of a close its code, too."""
    at, plain = 0, _JSON.sub(b"\x81\x00", written)
    while at + 1 < len(plain):
        kind, length = _NAMES.get(plain[at] & 15, "?"), plain[at + 1]
        data = plain[at + 2 : at + 2 + length]
        yield f"close:{int.from_bytes(data[:2])}" if kind == "close" else kind
        at += 2 + length


def summary(outcome: bytes) -> str:
    """What was answered, frame by frame, and how the connection was at both times."""
    # The answers, and a state, twice.
    said = re.split(rb"\n(<\w+>)\n", outcome.partition(b"\r\n\r\n")[2])
    return " ".join([*_frames(said[0]), said[1].decode(), *_frames(said[2]), said[3].decode()])


def main() -> None:
    """Write what comes of the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--summaries", action="store_true")
    parser.add_argument("file", type=Path)
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.count)
    found = asyncio.run(outcomes_of([damaged(number) for number in numbers]))
    lines = [
        f"{number} {summary(one) if asked.summaries else ascii(one)}"
        for number, one in zip(numbers, found, strict=True)
    ]
    asked.file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
