"""A request that waits for its turn is neither lost nor hurried, and takes one turn only.

Knows: a caller none of whose requests may begin for a while. Must never know: how turns are shared out.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pytest

from app.auth import OpenPolicy, Principal
from app.auth.certificates import ClientCertificate
from app.http.client_address import TrustedProxies
from app.live.fair_queue import UNDER_WAY_MAX
from tests.app.test_time_bounds import PUBLISH, UPGRADE, ScriptedConnection, TimedWorld, timed_world

READ: Final = b"GET /v1/streams/s/entries HTTP/1.1\r\nHost: localhost\r\n\r\n"
ODD: Final = READ.removesuffix(b"\r\n") + b"X-Odd: 1\r\n\r\n"
ODD_HEAD: Final = PUBLISH.removesuffix(b"\r\n") + b"X-Odd: 1\r\n\r\n"
BODY: Final = b'{"fields":{"a":"1"}}'
PEER: Final = "127.0.0.1"
OK: Final = b"HTTP/1.1 200 "


@pytest.fixture
async def world() -> AsyncIterator[TimedWorld]:
    """It has seen the head of `READ` already."""
    async with timed_world() as world:
        line = await world.connect()
        await line.send(READ)
        await answered(line)
        world.sockets.pop().close()
        # One connection is already more than are served in a cycle.
        world.app.gateway.limits.requests.a_cycle_max = 0
        yield world


@contextmanager
def no_turns(world: TimedWorld, address: str = PEER) -> Iterator[None]:
    """No request of this caller begins meanwhile."""
    flow = world.app.gateway.limits.requests.flow(f"ip:{address}")
    for _ in range(UNDER_WAY_MAX):
        flow.begin_work()
    yield
    for _ in range(UNDER_WAY_MAX):
        flow.end_work()


async def answered(line: ScriptedConnection, start: bytes = OK) -> None:
    # Frames come behind a handshake.
    end = b"" if start.endswith(b" 101 ") else b"}"
    await line.until(lambda: line.received.startswith(start) and line.received.endswith(end))
    line.received = b""


# ---- the times of a connection


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ([READ], OK),
        ([PUBLISH, BODY], b"HTTP/1.1 201 "),
        ([ODD], OK),
        ([ODD_HEAD, BODY], b"HTTP/1.1 201 "),
        ([UPGRADE], b"HTTP/1.1 101 "),
    ],
    ids=["a head that was seen", "its body later", "the parser", "its body later there", "a handshake"],
)
async def test_a_request_waits_for_longer_than_it_may_take_to_arrive(
    world: TimedWorld, pieces: list[bytes], answer: bytes
) -> None:
    """It is here. The connection's time for being idle has not begun either."""
    line = await world.connect()
    with no_turns(world):
        for piece in pieces:
            await line.send(piece)
        for milliseconds in (2_000, 5_000):
            await world.pass_ms(milliseconds)
            assert await line.stays()
        assert line.received == b""
    await answered(line, answer)


@pytest.mark.parametrize("first", [READ, ODD], ids=["a head that was seen", "the parser"])
@pytest.mark.parametrize("second", [READ, ODD], ids=["then one that was seen", "then the parser"])
async def test_a_request_that_came_in_the_last_millisecond_waits(
    world: TimedWorld, first: bytes, second: bytes
) -> None:
    """The connection was idle for as long as it may be, not longer."""
    line = await world.connect()
    await line.send(first)
    await answered(line)
    await world.pass_ms(4_999)
    with no_turns(world):
        await line.send(second)
        await world.pass_ms(5_000)
        assert await line.stays()
    await answered(line)
    await world.pass_ms(5_000)
    assert await line.ends() == b""


# ---- what takes a turn


async def test_the_rest_of_a_request_takes_no_turn(world: TimedWorld) -> None:
    """An upload would wait again and again otherwise."""
    line = await world.connect()
    await line.send(ODD_HEAD)
    with no_turns(world):
        await line.send(BODY[:9])
        await line.send(BODY[9:])
        await answered(line, b"HTTP/1.1 201 ")


@pytest.mark.parametrize("request_", [READ, ODD], ids=["a head that was seen", "the parser"])
async def test_a_head_in_pieces_begins_in_its_turn(world: TimedWorld, request_: bytes) -> None:
    """Not where its last byte arrives."""
    line = await world.connect()
    await line.send(request_[:9])
    with no_turns(world):
        await line.send(request_[9:])
        assert await line.stays()
        assert line.received == b""
    await answered(line)


async def test_a_client_that_leaves_has_no_turn(world: TimedWorld) -> None:
    """What it asked for is not begun."""
    line = await world.connect()
    (client,) = world.sockets
    with no_turns(world):
        await line.send(ODD_HEAD + BODY)
        client.close()
        await world.pass_ms(1)
        assert not world.state.connections
    await world.pass_ms(1)
    assert world.engine.figures().appended == 0


async def test_a_server_that_stops_answers_what_waits(world: TimedWorld) -> None:
    """And closes the connection behind it."""
    for request in (READ, ODD):
        line = await world.connect()
        with no_turns(world):
            await line.send(request)
            (connection,) = world.state.connections
            connection.shutdown()
        assert (await line.ends()).startswith(OK)


# ---- whose turn it is


async def test_a_browser_behind_a_proxy_does_not_wait_for_the_caller_before_it(world: TimedWorld) -> None:
    """A proxy sends both over one connection; requests of browsers are left to the parser."""
    line = await world.connect()
    (connection,) = world.state.connections
    connection.serving.proxies = TrustedProxies([f"{PEER}/32"])
    forwarded = b"X-Forwarded-For: %b\r\n"
    plain = READ.removesuffix(b"\r\n") + forwarded % b"192.0.2.1" + b"\r\n"
    browser = READ.removesuffix(b"\r\n") + b"Sec-Fetch-Site: same-origin\r\n%b\r\n"
    for _ in range(2):
        await line.send(plain)
        await answered(line)
    with no_turns(world, "192.0.2.1"):
        await line.send(browser % (forwarded % b"192.0.2.2"))
        await answered(line)
        await line.send(plain)
        assert await line.stays()
        assert line.received == b""
    await answered(line)


# ---- faults


class FaultyPolicy(OpenPolicy):
    """It recognises no caller: a bug of the gateway."""

    def recognise(
        self, headers: Mapping[bytes, bytes], certificate: ClientCertificate | None = None
    ) -> Principal | None:
        """Fail."""
        raise RuntimeError("a bug")


async def test_a_connection_that_fails_in_its_turn_is_answered(
    world: TimedWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its client would wait for ever otherwise; the others have their turns. Each fault is reported."""
    bad, good = await world.connect(), await world.connect()
    await bad.send(PUBLISH + BODY)
    await answered(bad, b"HTTP/1.1 201 ")
    with no_turns(world):
        await bad.send(PUBLISH + BODY)
        await good.send(ODD)
        world.app.gateway.access.policy = FaultyPolicy()
        world.app.gateway.stamp.advance()
    await answered(bad, b"HTTP/1.1 500 ")
    await answered(good, b"HTTP/1.1 500 ")
    assert capsys.readouterr().out.count("RuntimeError('a bug')") == 2
