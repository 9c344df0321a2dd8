"""A caller with many connections has the share of a few: its commands wait for those of others."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from app.auth import Grant, TokenPolicy, tokens
from app.doors.resp.port import AUTH_S_MAX
from app.live.fair_queue import UNDER_WAY_MAX
from tests.app.resp.conftest import TestedPort, until
from tests.engine.clocks import HandClock, settle

# Connections of a caller with more than that which are served in a cycle.
FEW: Final = 2
GREEDY: Final = 3 * FEW


def connections_of(port: TestedPort) -> list[Any]:
    return [session.connection for session in port.server.port.sessions.values()]


async def test_commands_of_one_caller_are_begun_in_turn(open_port: Callable[..., Any]) -> None:
    # A cycle that takes long ends earlier: here none does.
    port: TestedPort = await open_port(clock=HandClock(1_700_000_000_000))
    port.gateway.limits.requests.a_cycle_max = FEW
    wires = [await port.connect() for _ in range(GREEDY)]
    await until(lambda: len(port.server.port.sessions) == GREEDY)
    for connection in connections_of(port):
        connection.data_received(b"PING\r\n" * 2)
    assert port.server.port.commands_run == 2 * FEW
    for wire in wires:
        assert [await wire.line() for _ in range(2)] == [b"+PONG"] * 2


async def test_a_client_that_sends_no_more_gets_its_answer_in_its_turn(port: TestedPort) -> None:
    port.gateway.limits.requests.a_cycle_max = FEW
    wires = [await port.connect() for _ in range(GREEDY)]
    await until(lambda: len(port.server.port.sessions) == GREEDY)
    for connection in connections_of(port):
        connection.data_received(b"PING\r\n")
        connection.eof_received()
    for wire in wires:
        assert await wire.line() == b"+PONG"
        assert await wire.ended()


async def test_a_token_that_waits_for_its_turn_is_in_time(open_port: Callable[..., Any]) -> None:
    """Until then all clients of an address are one caller; one that has sent nothing is closed."""
    made = tokens.create((Grant.parse("read:a"),))
    clock, loop = HandClock(), asyncio.get_running_loop()
    clock.drive(loop)
    port: TestedPort = await open_port(TokenPolicy([made.token], lambda: 0.0), clock=clock)
    wire, silent = await port.connect(), await port.connect()
    await until(lambda: len(port.server.port.sessions) == 2)
    port.gateway.limits.requests.a_cycle_max = 0
    known, _ = connections_of(port)
    flow = port.gateway.limits.requests.flow(known.caller)
    for _ in range(UNDER_WAY_MAX):
        flow.begin_work()
    wire.send("AUTH", made.text)
    await until(lambda: known.input_bytes > 0)
    for _ in range(2):
        clock.pass_ms(round(AUTH_S_MAX * 1000))
        await settle()
    assert (await silent.line()).startswith(b"-NOAUTH ")
    for _ in range(UNDER_WAY_MAX):
        flow.end_work()
    assert await wire.line() == b"+OK"
    clock.let_be(loop)
