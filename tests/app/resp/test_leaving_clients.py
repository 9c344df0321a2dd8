"""A client that leaves while its read waits, and an entry that comes in the same moment: it is for others."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.app.resp.conftest import TestedPort, Wire, until

ROUNDS: Final = 100
HOW: Final = ["closed", "half closed", "closed by another"]


class Plain:
    """A client without a loop: what it does has happened before the port looks at any of it."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))

    def send(self, *words: str | int) -> None:
        """Send a command."""
        raw = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(raw))
        self.socket.sendall(b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in raw]))


def _read(worker: str) -> Sequence[str | int]:
    return ("XREADGROUP", "GROUP", "g", worker, "COUNT", 10, "BLOCK", 0, "STREAMS", "s", ">")


def _leave(client: Plain, adder: Plain, number: int, how: str) -> None:
    if how == "closed":
        client.socket.close()
    elif how == "half closed":
        client.socket.shutdown(socket.SHUT_WR)
    else:
        adder.send("CLIENT", "KILL", "ID", number)


@pytest.mark.parametrize("how", HOW)
async def test_no_entry_goes_to_a_client_that_has_left(port: TestedPort, wire: Wire, how: str) -> None:
    """The publisher's command is read in the same cycle of the loop as the end of the reader's connection."""
    await wire.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    path = port.path
    adder = Plain(path)
    waits = port.gateway.engine
    for number in range(ROUNDS):
        client = Plain(path)
        client.send("CLIENT", "SETNAME", f"reader-{number}")
        client.send(*_read("gone"))
        await until(lambda: waits.figures().waiting == 1)
        listed = await wire.call("CLIENT", "LIST")
        assert isinstance(listed, bytes)
        (own,) = [line for line in listed.decode().splitlines() if f"name=reader-{number} " in line]
        _leave(client, adder, int(own.split()[0].removeprefix("id=")), how)
        adder.send("XADD", "s", f"{number + 1}-0", "n", number)
        await until(lambda: waits.figures().waiting == 0)
        found = await wire.call(*_read("next"))
        assert found == [[b"s", [[f"{number + 1}-0".encode(), [b"n", str(number).encode()]]]]]
        assert await wire.call("XACK", "s", "g", f"{number + 1}-0") == 1
        client.socket.close()
    adder.socket.close()
    assert await wire.call("XPENDING", "s", "g") == [0, None, None, None]
