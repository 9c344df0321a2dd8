"""Several Redis clients that add and acknowledge at the same time: one command, answered one by one.

What goes together, and how the reply is each one's, is in tests/app/test_joiner.py.
"""

from typing import Any, Final

import pytest

from engine import Call, ids
from engine.commands.base import Command
from engine.commands.durable_commands import CreateDurable
from engine.commands.types import XAck, XAdd, XLen
from engine.commands.weir_commands import Acknowledge, AddEach
from tests.app.holding import holds
from tests.app.resp.conftest import TestedPort, Wire, until
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock

ADD: Final = ("XADD", "s", "*", "a", "1")
PACKED: Final = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\n1\r\n"
JSON: Final = CreateDurable(stream="s", media="application/json")
EXHAUSTED: Final = "-ERR The stream has exhausted the last possible ID, unable to add more items"


@pytest.fixture
async def port(open_port: Any) -> TestedPort:
    """At a moment that stands still: a cycle that takes long ends a run earlier."""
    made = await open_port(clock=HandClock(1_700_000_000_000))
    assert isinstance(made, TestedPort)
    return made


async def connected(port: TestedPort, number: int) -> list[tuple[Wire, Any]]:
    """Clients, and the port's side of each."""
    found = []
    for _ in range(number):
        wire = await port.connect()
        client: Any = await wire.call("CLIENT", "ID")
        found.append((wire, port.server.port.sessions[client].connection))
    return found


def sent(port: TestedPort, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """The commands that the engine gets from now on."""
    found: list[Command] = []
    engine: Any = port.gateway.engine
    send = type(engine).send

    def note(self: Any, call: Call, done: Any) -> Any:
        found.extend(call.commands)
        return send(self, call, done)

    monkeypatch.setattr(type(engine), "send", note)
    return found


def packed(*words: str) -> bytes:
    """A command as it is sent."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one.encode()) for one in words)


async def test_adds_of_several_clients_are_one_command(
    port: TestedPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pipelines too; each has the IDs of its own, in the order of their coming."""
    clients = await connected(port, 3)
    commands = sent(port, monkeypatch)
    for (_, connection), data in zip(clients, (PACKED, PACKED * 5, PACKED), strict=True):
        connection.data_received(data)
    numbers = (1, 5, 1)
    added: list[Any] = [
        await wire.reply() for (wire, _), number in zip(clients, numbers, strict=True) for _ in range(number)
    ]
    (command,) = commands
    assert isinstance(command, XAdd)
    parsed = [ids.parse(text.decode()) or 0 for text in added]
    assert parsed == [*range(parsed[0], parsed[0] + 7)]


async def test_a_client_by_itself_asks_by_itself(port: TestedPort, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and as its own command."""
    ((wire, connection),) = await connected(port, 1)
    commands = sent(port, monkeypatch)
    connection.data_received(PACKED)
    (command,) = commands
    assert isinstance(command, AddEach)
    assert command.apart
    assert isinstance(await wire.reply(), bytes)


async def test_acknowledgements_of_several_clients_are_one_command(
    port: TestedPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the number of its own; an ID that two name counts for the first."""
    clients = await connected(port, 3)
    wire = clients[0][0]
    await wire.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for number in range(1, 6):
        await wire.call("XADD", "s", f"{number}-0", "a", "1")
    await wire.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    commands = sent(port, monkeypatch)
    for (_, connection), named in zip(clients, (["1-0"], ["1-0", "2-0"], ["9-0", "3-0"]), strict=True):
        connection.data_received(packed("XACK", "s", "g", *named))
    assert [await one.reply() for one, _ in clients] == [1, 1, 1]
    assert sum(isinstance(command, Acknowledge | XAck) for command in commands) == 1
    assert await wire.call("XACK", "s", "g", "4-0", "5-0") == 2


async def test_a_pipeline_goes_on_behind_what_its_stream_does_not_take(port: TestedPort) -> None:
    """By itself, among others and in a transaction."""
    await reply_to(port.gateway.engine, JSON)
    wire = await port.connect()
    adds = [("XADD", "s", "*", "data", text) for text in ("1", "{", "2", "x y", "3")]
    for before in ([], [("PING",)]):
        for command in (*before, *adds, ("XLEN", "s")):
            wire.send(*command)
        found = [await wire.reply() for _ in (*before, *adds, ("XLEN", "s"))][len(before) :]
        assert [isinstance(one, bytes) for one in found[:5]] == [True, False, True, False, True]
        assert all("has one field, data" in str(one) for one in (found[1], found[3]))
        assert found[5] == 3 + 3 * len(before)
    await wire.call("MULTI")
    for command in adds:
        await wire.call(*command)
    done = await wire.call("EXEC")
    assert isinstance(done, list)
    assert [isinstance(one, bytes) for one in done] == [True, False, True, False, True]
    assert await wire.call("XLEN", "s") == 9


async def test_an_entry_of_a_client_that_leaves_is_stored(port: TestedPort) -> None:
    """One that has said all and still reads gets its reply; one that is gone takes nothing of others."""
    (first, _), (left, leaving), (half, halved) = await connected(port, 3)
    leaving.data_received(PACKED)
    halved.data_received(PACKED)
    half.writer.write_eof()
    left.writer.transport.abort()
    assert isinstance(await first.call(*ADD), bytes)
    assert isinstance(await half.reply(), bytes)
    assert await half.ended()
    await until(lambda: leaving.is_gone)
    assert await reply_to(port.gateway.engine, XLen(stream="s")) == 3


async def test_a_port_that_drains_answers_first(port: TestedPort) -> None:
    """The connection ends behind the reply of what waits for others."""
    (wire, connection), _ = await connected(port, 2)
    connection.data_received(PACKED)
    port.server.drain()
    assert isinstance(await wire.reply(), bytes)
    assert await wire.ended()


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("number", [1, 3])
async def test_a_client_that_waits_holds_nothing_of_its_last_entry(
    port: TestedPort, number: int, *, refused: bool
) -> None:
    """Nor of those that came with it: there may be thousands of clients."""
    clients = await connected(port, number)
    if refused:
        await clients[0][0].call("XADD", "s", f"{ids.MS_MAX}-{ids.SEQUENCE_MAX}", "a", "1")
    text = "x" * 10_000
    for _, connection in clients:
        connection.data_received(packed("XADD", "s", "*", "a", text))
    for wire, connection in clients:
        assert (await wire.reply() == EXHAUSTED) == refused
        for part in (connection, connection.session.queue):
            assert not any(holds(one, text[:100].encode(), 2) for one in vars(part).values())
