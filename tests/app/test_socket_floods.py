"""Clients of a socket that send slowly, send without end, or never read: each meets a limit."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from app.settings import Settings
from tests.app.echo import HELD_S, HOLD, echoing
from tests.app.pushing import PushPeer, PushWorld, world_of
from tests.app.sockets import Raw, masked

TEXT: Final = 0x1
PING: Final = 0x9
CONTINUED: Final = 0x0
MESSAGE_S_MAX: Final = 0.6
# More than all buffers of both systems between two sockets have room for.
UNREAD_BYTES_MAX: Final = 32 << 20
AUTH_FRAMES: Final = 10_000


@pytest.fixture
def raw() -> Iterator[Raw]:
    with echoing(MESSAGE_S_MAX) as port, Raw(port) as raw:
        assert raw.handshake()[0] == 101
        yield raw


@pytest.mark.holding
def test_a_client_that_never_reads_is_not_read_on(raw: Raw) -> None:
    """Its answers fill its socket, and then nothing more of it is taken in."""
    frames, sent_bytes = masked(TEXT, b"x" * 100) * 1_000, 0
    raw.socket.settimeout(1)
    with suppress(TimeoutError):
        while sent_bytes < UNREAD_BYTES_MAX:
            sent_bytes += raw.socket.send(frames)
    assert sent_bytes < UNREAD_BYTES_MAX


@pytest.mark.parametrize(
    "begun",
    [masked(TEXT, b"x" * 10)[:9], masked(TEXT, b"x", fin=False), masked(TEXT, b"x", fin=False) + b"\x80"],
    ids=["half a frame", "a fragment", "a fragment and half a head"],
)
def test_a_message_that_does_not_end_is_4005(raw: Raw, begun: bytes) -> None:
    """A whole message before it gives it no more time."""
    began = time.monotonic()
    raw.socket.sendall(masked(TEXT, b"before") + begun)
    assert raw.read() == (TEXT, b"before")
    assert raw.close_code() == 4005
    assert MESSAGE_S_MAX <= time.monotonic() - began < 10 * MESSAGE_S_MAX


def test_the_time_of_a_message_begins_anew_when_it_is_read_on(raw: Raw) -> None:
    """It arrived in one piece with what held the socket: meanwhile its client could send nothing."""
    began = time.monotonic()
    holding = masked(TEXT, HOLD[:2], fin=False) + masked(CONTINUED, HOLD[2:])
    raw.socket.sendall(holding + masked(TEXT, b"x" * 10)[:9])
    assert raw.read() == (TEXT, HOLD)
    assert raw.close_code() == 4005
    assert time.monotonic() - began >= HELD_S + MESSAGE_S_MAX


def test_whole_messages_wait_while_the_socket_is_held(raw: Raw) -> None:
    """Also those that came in one piece with what held it."""
    began = time.monotonic()
    raw.socket.sendall(masked(TEXT, HOLD) * 3 + masked(TEXT, b"last"))
    assert [raw.read()[1] for _ in range(4)] == [HOLD, HOLD, HOLD, b"last"]
    assert time.monotonic() - began >= 3 * HELD_S


def test_a_message_that_comes_byte_by_byte_is_4005(raw: Raw) -> None:
    with suppress(OSError):
        for byte in masked(TEXT, b"x" * 100):
            raw.socket.sendall(bytes([byte]))
            time.sleep(MESSAGE_S_MAX / 50)
    assert raw.close_code() in (4005, -1)


def test_each_message_has_the_time_of_one(raw: Raw) -> None:
    """A client that always has begun the next one may go on."""
    frame = masked(TEXT, b"x" * 10)
    raw.socket.sendall(frame[:3])
    began = time.monotonic()
    while time.monotonic() - began < 3 * MESSAGE_S_MAX:
        raw.socket.sendall(frame[3:] + frame[:3])
        assert raw.read() == (TEXT, b"x" * 10)
        time.sleep(MESSAGE_S_MAX / 10)
    raw.socket.sendall(frame[3:])
    assert raw.read() == (TEXT, b"x" * 10)
    time.sleep(2 * MESSAGE_S_MAX)
    raw.write(PING, b"idle")
    assert raw.read()[1] == b"idle"


house = world_of(Settings(log_requests="none"))


@pytest.mark.no_cover
@pytest.mark.parametrize("sockets", [1, 100])
def test_ten_thousand_auth_frames_keep_others_waiting_for_none(house: PushWorld, sockets: int) -> None:
    """Each socket checks one token at a time; all of them are answered, in the share of one caller."""
    flooders = [house.connect() for _ in range(sockets)]
    other = house.connect(address="192.0.2.2")

    def flood() -> None:
        for number in range(AUTH_FRAMES):
            flooders[number % sockets].say("auth", token="t", ref=number)

    def answered(peer: PushPeer) -> list[object]:
        return [frame["ref"] for frame in peer.frames if frame["op"] in ("ok", "pong")]

    house.do(flood)
    for number in range(8):
        house.do(other.say, "ping", ref=number)
        assert answered(other) == list(range(number + 1))
    house.until(lambda: sum(len(answered(peer)) for peer in flooders) == AUTH_FRAMES)
    assert answered(flooders[0]) == list(range(0, AUTH_FRAMES, sockets))
