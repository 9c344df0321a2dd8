"""Bytes that are no commands: what Redis's own tests of its protocol send, without other types."""

import pytest

from tests.app.resp.conftest import TestedPort, Wire

PING = b"*1\r\n$4\r\nPING\r\n"
QUOTES = "unbalanced quotes in request"


@pytest.mark.parametrize("before", [b"\r\n", b"*-10\r\n", b"*0\r\n"])
async def test_what_is_no_command_is_passed_over(wire: Wire, before: bytes) -> None:
    """An empty line, and a command of no words."""
    wire.writer.write(before + PING)
    assert await wire.reply() == "PONG"


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"*3000000000\r\n", "invalid multibulk length"),
        (b"*3x\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*3\r\n$3\r\nDEL\r\n$1\r\nx\r\nfooz\r\n", "expected '$', got 'f'"),
        (b"*1\r\nfoo\r\n", "expected '$', got 'f'"),
        (b"*3\r\n$3\r\nDEL\r\n$1\r\nx\r\n$-10\r\n", "invalid bulk length"),
        (b"*3\r\n$3\r\nDEL\r\n$1\r\nx\r\n$2000000000\r\n", "invalid bulk length"),
        (b"*3\r\n$3\r\nDEL\r\n$1\r\nx\r\n$blabla\r\n", "invalid bulk length"),
        (b"del foo 'b'a'r\r\n", QUOTES),
        (b'del foo "b"a"r\r\n', QUOTES),
        (b"\0" + b"A" * 65_536, "too big inline request"),
        (b"$\0" + b"A" * 65_536, "too big inline request"),
        (b"*\0" + b"A" * 65_536, "too big mbulk count string"),
        (b"*1\r\n$\0" + b"A" * 65_536, "too big bulk count string"),
    ],
)
async def test_a_broken_command_ends_the_connection(port: TestedPort, sent: bytes, why: str) -> None:
    """With the reason; it is a refusal of the gateway, and other clients go on."""
    wire, other = await port.connect(), await port.connect()
    wire.writer.write(sent)
    assert await wire.reply() == f"-ERR Protocol error: {why}"
    assert await wire.ended()
    assert port.gateway.reports.counters.rejected["malformed_request"] == 1
    assert await other.call("PING") == "PONG"


async def test_a_wrong_number_of_words_does_not(wire: Wire) -> None:
    """It is a command."""
    assert await wire.call("PING", "x", "y", "z") == "-ERR wrong number of arguments for 'ping' command"
    assert await wire.call("PING") == "PONG"
