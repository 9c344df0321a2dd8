"""A client that leaves while its read waits, and an entry that comes in the same moment: it is for others."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from app.gateway import Gateway
from app.settings import Settings
from engine import Engine, SystemClock
from tests.app.resp.conftest import TestedPort, Wire, until
from tests.app.slow_disk import SlowDisk

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


_ONE: Final = ("XREADGROUP", "GROUP", "g", "gone", "COUNT", 1, "STREAMS", "s", ">")
_UNSENT: Final[dict[str, list[Sequence[str | int]]]] = {
    "alone": [_ONE],
    "pipeline": [_ONE, _ONE],
    "transaction": [("MULTI",), _ONE, ("XADD", "other", "*", "n", 1), _ONE, ("EXEC",)],
}


@pytest.mark.parametrize("name", _UNSENT)
async def test_what_waits_for_the_disk_when_its_client_leaves_is_undone(name: str, tmp_path: Path) -> None:
    """Others get it as if it had not been read; what else a transaction did stays done."""
    path, disk = tmp_path / "socket", SlowDisk()
    gateway = Gateway(Settings(log_requests="none", resp_listen=(f"unix:{path}",)), SystemClock())
    engine = Engine.open(disk, clock=SystemClock(), fsync="always")
    await engine.start()
    gateway.open(engine)
    port = TestedPort(gateway, path)
    await port.server.start()
    wire = await port.connect()
    await wire.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for number in (1, 2):
        await wire.call("XADD", "s", f"{number}-0", "n", number)
    disk.gate.clear()
    client = Plain(path)
    for words in _UNSENT[name]:
        client.send(*words)
    group = engine._keyspace.keys["s"].groups["g"]  # noqa: SLF001 - every command would wait for the disk
    await until(lambda: bool(len(group.pending)))
    *_, number = port.server.port.sessions
    assert await wire.call("CLIENT", "KILL", "ID", number) == 1
    await until(lambda: len(port.server.port.sessions) == 1)
    disk.gate.set()
    await until(lambda: not len(group.pending))
    found = await wire.call("XREADGROUP", "GROUP", "g", "next", "STREAMS", "s", ">")
    assert found == [[b"s", [[b"1-0", [b"n", b"1"]], [b"2-0", [b"n", b"2"]]]]]
    assert await wire.call("XLEN", "other") == (name == "transaction")
    client.socket.close()
    port.close()
    await port.server.close()
    engine.check()
    await engine.close()
