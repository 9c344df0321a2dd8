"""RFC 6455 on the bare wire, below all that a conversation means: the ground of Autobahn's cases 1 to 7.

Autobahn itself runs too where it can be had; it wants Python 2.7.
"""

import json
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.app.echo import echoing
from tests.app.sockets import Raw, masked
from tests.proof.machine import needs

TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA
END: Final = -1


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with echoing() as port:
        yield port


@pytest.fixture
def raw(port: int) -> Iterator[Raw]:
    with Raw(port) as raw:
        assert raw.handshake()[0] == 101
        yield raw


def closing(code: int, reason: bytes = b"") -> bytes:
    return masked(CLOSE, struct.pack(">H", code) + reason)


def parts(data: bytes, sizes: Sequence[int], opcode: int = TEXT) -> list[bytes]:
    """A message in frames of these sizes; a last one has the rest."""
    frames: list[bytes] = []
    for size in sizes:
        frames.append(masked(0 if frames else opcode, data[:size], fin=False))
        data = data[size:]
    return [*frames, masked(0 if frames else opcode, data)]


def rest(raw: Raw) -> list[tuple[int, bytes]]:
    """All frames up to the end of the connection."""
    frames = [raw.read()]
    while frames[-1][0] != END:
        frames.append(raw.read())
    return frames[:-1]


# ---- messages


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 65_535, 65_536, 300_000])
def test_a_message_of_any_length_arrives(raw: Raw, opcode: int, size: int) -> None:
    """With lengths of seven, sixteen and sixty-four bits."""
    data = bytes(97 + at % 26 for at in range(size))
    raw.write(opcode, data)
    assert raw.read() == (opcode, data)


@pytest.mark.parametrize("piece_bytes", [1, 2, 7])
def test_a_message_arrives_however_its_bytes_are_cut(raw: Raw, piece_bytes: int) -> None:
    """In packets of one byte too."""
    sent = masked(TEXT, b"x" * 130) + b"".join(parts(b"hello world", [5])) + masked(PING, b"p")
    for at in range(0, len(sent), piece_bytes):
        raw.socket.sendall(sent[at : at + piece_bytes])
    assert [raw.read() for _ in range(3)] == [(TEXT, b"x" * 130), (TEXT, b"hello world"), (PONG, b"p")]


def test_bytes_are_unmasked(raw: Raw) -> None:
    """With the key of the frame, for any key."""
    key, data = b"\x12\x34\xab\xff", b"hello \xf0\x9f\x8c\x8a"
    hidden = bytes(byte ^ key[at % 4] for at, byte in enumerate(data))
    raw.socket.sendall(bytes([0x80 | TEXT, 0x80 | len(data)]) + key + hidden)
    assert raw.read() == (TEXT, data)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [3], [1, 1, 1, 1], [11], [0, 11, 0]])
def test_a_message_in_frames_is_one_message(raw: Raw, sizes: list[int]) -> None:
    """Empty ones too, with pings in between, which are answered first, and unrequested pongs."""
    for at, frame in enumerate(parts(b"hello world", sizes)):
        if at:
            raw.write(PING, b"%d" % at)
            raw.write(PONG, b"unasked")
        raw.socket.sendall(frame)
    assert [raw.read() for _ in sizes] == [(PONG, b"%d" % (at + 1)) for at in range(len(sizes))]
    assert raw.read() == (TEXT, b"hello world")


def test_a_large_message_in_many_frames_is_one_message(raw: Raw) -> None:
    """65,536 bytes in frames of 1,300."""
    data = bytes(97 + at % 26 for at in range(65_536))
    raw.socket.sendall(b"".join(parts(data, [1_300] * 50)))
    assert raw.read() == (TEXT, data)


@pytest.mark.parametrize("data", [b"", b"p", bytes(range(125))])
def test_a_ping_is_answered_with_what_it_holds(raw: Raw, data: bytes) -> None:
    """Many at once in their order; a pong is not answered."""
    raw.write(PONG, b"x")
    for _ in range(10):
        raw.write(PING, data)
    assert [raw.read() for _ in range(10)] == [(PONG, data)] * 10


# ---- text


@pytest.mark.parametrize(
    "text",
    [
        "κόσμε",
        "\0",
        "\x7f\x80",
        "\u07ff\u0800",
        "\ud7ff\ue000",
        "\ufffd\uffff",
        "\U00010000",
        "\U0010ffff",
        "\ufeff",
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_text_is_all_of_unicode(raw: Raw, text: str, *, cut: bool) -> None:
    """Cut within characters too."""
    data = text.encode()
    for frame in parts(data, [1] * (len(data) - 1) if cut else []):
        raw.socket.sendall(frame)
    assert raw.read() == (TEXT, data)


@pytest.mark.parametrize(
    "data",
    [b"\x80", b"\xc3", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80",
     b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff", b"\xce\xba\xed\xa0\x80edited"],
)  # fmt: skip
@pytest.mark.parametrize("cut", [False, True])
def test_what_is_no_text_is_1007(raw: Raw, data: bytes, *, cut: bool) -> None:
    """Surrogates, overlong forms, what is beyond Unicode, what ends too early."""
    for frame in parts(data, [1] * (len(data) - 1) if cut else []):
        raw.socket.sendall(frame)
    assert raw.close_code() == 1007


def test_a_message_that_cannot_become_text_is_not_waited_for(raw: Raw) -> None:
    """Its first frame says enough."""
    raw.write(TEXT, b"fine, \xc0", fin=False)
    assert raw.close_code() == 1007


def test_bytes_need_not_be_text(raw: Raw) -> None:
    """Not behind a text either that was given up."""
    raw.write(BINARY, b"\xff\xfe", fin=False)
    raw.write(0x0, b"\x80")
    assert raw.read() == (BINARY, b"\xff\xfe\x80")


# ---- what is no WebSocket


def bare(first: int, data: bytes = b"") -> bytes:
    """A frame with this first byte."""
    return bytes([first]) + masked(0, data)[1:]


@pytest.mark.parametrize(
    "wrong",
    [
        *[bare(0x80 | bit | TEXT, b"x") for bit in (0x40, 0x20, 0x10, 0x70)],
        *[bare(0x80 | bit | PING) for bit in (0x40, 0x20, 0x10)],
        *[bare(0x80 | opcode, b"x") for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)],
        masked(PING, b"x" * 126),
        masked(CLOSE, b"\x03\xe8" + b"x" * 124),
        masked(PING, b"x", fin=False),
        masked(0x0, b"continues nothing"),
        masked(0x0, b"continues nothing", fin=False),
        b"".join(parts(b"one", [1])[:1]) + masked(TEXT, b"begins within another"),
        b"\x81\x05hello",
    ],
)
def test_what_breaks_the_protocol_is_1002(raw: Raw, wrong: bytes) -> None:
    """Reserved bits and opcodes, long or cut control frames, frames out of order, and no mask. What was said
    before that is answered, what comes behind it is not read, and the connection ends behind the close frame
    though the peer goes on.
    """
    raw.socket.sendall(masked(TEXT, b"before") + masked(PING, b"p") + wrong + masked(TEXT, b"behind"))
    frames = rest(raw)
    assert (TEXT, b"before") in frames
    assert frames[-1][0] == CLOSE
    assert frames[-1][1][:2] == struct.pack(">H", 1002)
    assert (TEXT, b"behind") not in frames


@pytest.mark.parametrize("length", [1_100_000, 1 << 40, 1 << 63])
def test_a_length_beyond_the_limit_is_1009_before_anything_of_it_is_there(raw: Raw, length: int) -> None:
    """Nothing is kept for it."""
    raw.socket.sendall(bytes([0x80 | TEXT, 0xFF]) + struct.pack(">Q", length) + bytes(4))
    assert raw.close_code() == 1009


def test_frames_that_add_up_beyond_the_limit_are_1009(raw: Raw) -> None:
    """However small each of them is."""
    raw.write(TEXT, b"x" * 600_000, fin=False)
    raw.write(0x0, b"x" * 600_000, fin=False)
    assert raw.close_code() == 1009


# ---- the end


@pytest.mark.parametrize(
    "code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999]
)
def test_a_close_is_answered_with_its_code(raw: Raw, code: int) -> None:
    """And the connection ends; what comes behind the close is not answered."""
    raw.socket.sendall(closing(code, "bye ł".encode()) + masked(TEXT, b"behind") + masked(PING))
    ((opcode, data),) = rest(raw)
    assert (opcode, data[:2]) == (CLOSE, struct.pack(">H", code))


def test_a_close_without_a_code_is_answered(raw: Raw) -> None:
    """With none."""
    raw.write(CLOSE)
    assert rest(raw) == [(CLOSE, b"")]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        *[(closing(code), 1002) for code in (0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65_535)],
        (masked(CLOSE, b"\x03"), 1002),
        (closing(1000, b"\xce\xba\xed\xa0\x80"), 1007),
    ],
)
def test_a_close_that_is_none_is_an_error(raw: Raw, sent: bytes, code: int) -> None:
    """Codes that no endpoint may send, half a code, a reason that is no text."""
    raw.socket.sendall(sent)
    assert raw.close_code() == code


# ---- Autobahn

CASES: Final = ["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*"]
# As the library's notes on conformance have it: one frame of a text is looked at when it is there, and who
# closes within a message gets the code for an error.
INTENDED: Final = {"6.4.3": "NON-STRICT", "6.4.4": "NON-STRICT", "7.1.5": "FAILED"}


def no_autobahn() -> str | None:
    return None if shutil.which("wstest") else "needs wstest (autobahntestsuite, for Python 2.7)"


@needs(no_autobahn)
def test_autobahn_finds_nothing_but_what_is_intended(port: int, tmp_path: Path) -> None:
    """Its fuzzing client, all of these cases, and how each connection was closed."""
    server = {"agent": "weir", "url": f"ws://127.0.0.1:{port}/v1/ws"}
    options = {"outdir": str(tmp_path / "reports"), "servers": [server], "cases": CASES, "exclude-cases": []}
    (tmp_path / "spec.json").write_text(json.dumps({**options, "exclude-agent-cases": {}}))
    command = ["wstest", "--mode", "fuzzingclient", "--spec", str(tmp_path / "spec.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=600, cwd=tmp_path)
    found = json.loads((tmp_path / "reports" / "index.json").read_text())["weir"]
    assert len(found) > 240
    fine = {"OK", "INFORMATIONAL"}
    assert {case: row["behavior"] for case, row in found.items() if row["behavior"] not in fine} == INTENDED
    unclean = {case for case, row in found.items() if row["behaviorClose"] not in fine}
    assert unclean == {"7.1.5"}
