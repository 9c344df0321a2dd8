"""A connection that the gateway closes has had an error, or the log says why.

One that its client closes has no line: clients say "Connection closed by server" of their own ends too.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.auth import ANONYMOUS, Action, OpenPolicy, Principal, Resource, TokenPolicy
from app.auth.certificates import ClientCertificate
from app.auth.policy import Headers
from app.doors.resp import connection as connections
from app.doors.resp.listening import KEEPALIVE_S
from tests.app.resp.conftest import LATE_S, TestedPort, Wire, until
from tests.app.resp.test_attacks import clients
from tests.engine.clocks import HandClock
from tests.server import free_port

DISCONNECTED = "a Redis client was disconnected"
FAILED = "-ERR something went wrong in the gateway"


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """What the log has said."""
    with capture_logs() as found:
        yield found


def reasons(lines: list[Any]) -> list[str]:
    return [line["reason"] for line in lines if line["event"] == DISCONNECTED]


async def blocked(port: TestedPort, wire: Wire) -> None:
    """The client waits for an entry."""
    wire.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    await until(lambda: port.gateway.engine.figures().waiting == 1)


async def test_what_a_client_closes_has_no_line(port: TestedPort, lines: list[Any]) -> None:
    """Idle, with QUIT, while it waits, and half of the connection alone."""
    idle, quitting, waiting, half = [await port.connect() for _ in range(4)]
    assert await idle.call("PING") == "PONG"
    assert await quitting.call("QUIT") == "OK"
    half.writer.write_eof()
    assert await half.ended()
    await blocked(port, waiting)
    waiting.close()
    idle.close()
    await until(lambda: not port.server.port.sessions)
    assert lines == []


async def test_a_client_that_another_one_ends_is_named(port: TestedPort, lines: list[Any]) -> None:
    """With the other's number."""
    one, other = await port.connect(), await port.connect()
    number = await one.call("CLIENT", "ID")
    assert isinstance(number, int)
    assert await other.call("CLIENT", "KILL", "ID", number) == 1
    assert await one.ended()
    assert reasons(lines) == [f"CLIENT KILL by client {number + 1}"]
    assert [line["client"] for line in lines] == [number]
    assert lines[0]["log_level"] == "info"


async def test_the_end_of_a_token_is_the_reason(open_port: Any, lines: list[Any]) -> None:
    port, (wire,) = await clients(open_port, "*:*")
    policy = port.gateway.access.policy
    assert isinstance(policy, TokenPolicy)
    policy.replace_tokens([])
    assert port.gateway.access.sessions.revoke(policy.is_revoked) == 1
    assert await wire.ended()
    assert reasons(lines) == ["the token was revoked"]


async def test_a_client_that_takes_nothing_is_named(open_port: Any, lines: list[Any]) -> None:
    """It asks for far more than it reads: what waits for it stays small, and then it is closed."""
    port = await open_port(stall_s_max=0.2)
    wire = await port.connect()
    await wire.call("XADD", "s", "1-1", "a", "x" * 100_000)
    for _ in range(2_000):
        wire.send("XRANGE", "s", "-", "+")
    async with asyncio.timeout(LATE_S):
        while port.server.port.sessions:
            await asyncio.sleep(0.05)
            for session in port.server.port.sessions.values():
                assert session.connection.unsent_bytes < 64 << 20
    assert reasons(lines) == ["it took no replies for 0.2 s"]


async def test_a_subscriber_that_takes_nothing_is_named(
    port: TestedPort, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are more than are kept for it."""
    monkeypatch.setattr(connections, "_MESSAGES_BYTES_MAX", 1 << 16)
    wire, other = await port.connect(), await port.connect()
    await wire.call("PSUBSCRIBE", "*")
    wire.reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001 - a client that stops
    name = "s" * 500
    while not reasons(lines):
        for _ in range(100):
            other.send("XADD", name, "1-1", "a", "b")
            other.send("DEL", name)
        for _ in range(200):
            await other.reply()
    assert reasons(lines) == ["it left more than 65536 bytes of messages"]


async def test_a_browser_is_named(open_port: Callable[..., Any], lines: list[Any]) -> None:
    """What it goes on with is not run. One that comes again and again is named once a minute."""
    clock = HandClock()
    port: TestedPort = await open_port(clock=clock)
    for after_ms, named in ((0, 1), (59_999, 1), (1, 2)):
        clock.pass_ms(after_ms)
        wire = await port.connect()
        wire.writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nFLUSHALL\r\n")
        assert await wire.ended()
        assert reasons(lines) == ["it speaks HTTP"] * named
    assert port.server.port.commands_run == 3


async def test_a_stop_says_how_many_clients_it_ends(port: TestedPort, lines: list[Any]) -> None:
    """One line for all whose work is done; one that is not ended in time has its own."""
    for _ in range(3):
        assert await (await port.connect()).call("PING") == "PONG"
    await port.server.close()
    assert [(line["event"], line.get("clients")) for line in lines] == [
        ("the gateway stops: Redis clients are disconnected behind their replies", 3)
    ]


class FaultyCaller(Principal):
    """A caller whose rights to one stream cannot be looked up: a bug of the gateway."""

    def may(self, action: Action, resource: Resource) -> bool:
        """Whether it may do this."""
        if resource.stream == "bad" and action is self.fails_at:
            raise RuntimeError("a bug")
        return super().may(action, resource)

    def may_see(self, stream: str) -> bool:
        """Whether a list may show it."""
        return self.may(Action.READ, Resource(stream))

    fails_at = Action.WRITE


class FaultyPolicy(OpenPolicy):
    """All callers are such ones."""

    def __init__(self) -> None:
        self.caller = FaultyCaller("anonymous", ANONYMOUS.grants)

    def recognise(self, headers: Headers, certificate: ClientCertificate | None = None) -> Principal:
        """The caller."""
        return self.caller


async def test_a_fault_is_answered_and_ends_the_connection(open_port: Any) -> None:
    """Before a command runs. When a reply is written, it is answered in its place, and the others go on."""
    policy = FaultyPolicy()
    port = await open_port(policy)
    one, two, three = [await port.connect() for _ in range(3)]
    assert await one.call("XADD", "bad", "*", "a", "b") == FAILED
    assert await one.ended()
    policy.caller.fails_at = Action.READ
    assert await two.call("XADD", "bad", "1-1", "a", "b") == b"1-1"
    assert str(await two.call("KEYS", "*")).startswith("-ERR internal error")
    assert [await one.call("PING") for one in (two, three)] == ["PONG", "PONG"]
    assert port.gateway.reports.faults.counts["resp"] == 1
    assert port.gateway.reports.counters.rejected["internal"] == 2


async def test_a_client_that_vanishes_is_noticed(open_port: Any) -> None:
    """Otherwise its connection would count for ever: it sends nothing, and nothing is sent to it."""
    number = free_port()
    port = await open_port(resp_listen=(f"127.0.0.1:{number}",))
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    assert await Wire(reader, writer).call("PING") == "PONG"
    (session,) = port.server.port.sessions.values()
    with socket.socket(fileno=os.dup(session.connection.descriptor)) as accepted:
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_S
    writer.close()
