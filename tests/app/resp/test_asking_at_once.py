"""Several Redis clients that add and acknowledge at the same time: one command, answered one by one.

What goes together, and how the reply is each one's, is in tests/app/test_joiner.py.
"""

import asyncio
from typing import Any, Final

import pytest

from engine import Call, ids
from engine.commands.base import Command
from engine.commands.durable_commands import CreateDurable
from engine.commands.types import XAck, XAdd, XLen
from engine.commands.weir_commands import Acknowledge, AddEach, Close
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


@pytest.mark.parametrize("closed", [False, True])
async def test_what_one_may_not_add_is_refused_to_that_one(port: TestedPort, *, closed: bool) -> None:
    """And of its own pipeline to those entries alone, as Redis refuses a command."""
    await reply_to(port.gateway.engine, JSON)
    if closed:
        await reply_to(port.gateway.engine, Close(stream="s"))
    clients = await connected(port, 4)
    texts = (["1"], ["{"], ["1", "{", "{", "2"], ["3"])
    for (_, connection), each in zip(clients, texts, strict=True):
        connection.data_received(b"".join(packed("XADD", "s", "*", "data", text) for text in each))
    replies = [[await wire.reply() for _ in each] for (wire, _), each in zip(clients, texts, strict=True)]
    taken = [[isinstance(one, bytes) for one in each] for each in replies]
    assert taken == [[text != "{" and not closed for text in each] for each in texts]
    assert "has one field, data" in str(replies[1])
    assert ("closed" in str(replies[0])) == closed
    assert await reply_to(port.gateway.engine, XLen(stream="s")) == (0 if closed else 4)


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


async def test_clients_at_the_same_time_have_their_own_ids(port: TestedPort) -> None:
    """Also one that has sent more, one that adds to another stream, and one that leaves at once."""
    wires = [await port.connect() for _ in range(4)]
    await asyncio.gather(*[wire.call("PING") for wire in wires])
    first, second, third, leaving = wires
    first.send("XADD", "s", "*", "from", "1")
    second.send("XADD", "s", "*", "from", "2")
    second.send("XADD", "t", "*", "from", "2")
    second.send("XLEN", "t")
    third.send("XADD", "s", "*", "from", "3")
    leaving.send("XADD", "s", "*", "from", "4")
    leaving.close()
    added = [await wire.reply() for wire in (first, second, third)]
    assert len({*added}) == 3
    assert isinstance(await second.reply(), bytes)
    assert await second.reply() == 1
    rows = await first.call("XRANGE", "s", "-", "+")
    assert isinstance(rows, list)
    of = {row[1][1]: row[0] for row in rows}
    assert [of[b"1"], of[b"2"], of[b"3"]] == added


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
    port.server.port.drain()
    assert isinstance(await wire.reply(), bytes)
    assert await wire.ended()


async def test_replies_come_in_the_order_of_their_commands(port: TestedPort) -> None:
    """One waits for others, and those behind it come with it, or later."""
    (wire, _), _ = await connected(port, 2)
    for pause in (0, 1, 2):
        for words in (ADD, ("PING", "1"), ADD, ADD, ("PING", "2")):
            wire.send(*words)
            for _ in range(pause):
                await asyncio.sleep(0)
        replies = [await wire.reply() for _ in range(5)]
        assert [replies[1], replies[4]] == [b"1", b"2"]
        assert all(isinstance(replies[place], bytes) for place in (0, 2, 3))


async def test_what_cannot_be_stored_is_refused_to_each(port: TestedPort) -> None:
    """Without memory, and without an ID: who comes first has the last one."""
    clients = await connected(port, 3)

    async def all_add() -> list[object]:
        for _, connection in clients:
            connection.data_received(PACKED)
        return [await wire.reply() for wire, _ in clients]

    engine: Any = port.gateway.engine
    before = engine.memory.bytes_max, engine.memory._full_at  # noqa: SLF001
    engine.memory.bytes_max, engine.memory._full_at = 1, 0  # noqa: SLF001
    assert all("OOM" in str(reply) for reply in await all_add())
    engine.memory.bytes_max, engine.memory._full_at = before  # noqa: SLF001
    await clients[0][0].call("XADD", "s", f"{ids.MS_MAX}-{ids.SEQUENCE_MAX - 1}", "a", "1")
    first, *others = await all_add()
    assert isinstance(first, bytes)
    assert others == [EXHAUSTED] * 2


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
