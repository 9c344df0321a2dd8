"""A lane of a Redis client answers as a command by itself does, after any change since the one before.

Each test asks two ports at a moment that stands still; at one, the lane is closed before each command.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from app.auth import Principal
from app.gateway import Phase
from engine import ids
from engine.commands import XLen
from tests import halves
from tests.app.holding import holds
from tests.app.policies import FixedPolicy, principal_with
from tests.app.resp.conftest import until
from tests.app.resp.sides import Side, Word, side_of
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock

ADD: Final = ("XADD", "s", "*", "a", "1")
EXHAUSTED: Final = "-ERR The stream has exhausted the last possible ID, unable to add more items"


class Sides(NamedTuple):
    """One whose commands take the lane, one whose commands do not, and the time of both."""

    fast: Side
    full: Side
    clock: HandClock

    async def both(self, *words: Word) -> object:
        """The reply of both."""
        fast = await self.fast.said(words)
        self.full.connection._lane = None  # noqa: SLF001
        full = await self.full.said(words)
        assert fast == full
        return fast

    async def open_lane(self) -> None:
        """Have the next command take the lane."""
        await self.both(*ADD)
        assert self.fast.has_lane


@pytest.fixture
async def open_sides(open_port: Any) -> Any:
    async def open_two(**given: Any) -> Sides:
        clock = HandClock()
        policies = given.pop("policies", (None, None))
        ports = [await open_port(policy, clock=clock, **given) for policy in policies]
        fast, full = [await side_of(port) for port in ports]
        return Sides(fast, full, clock)

    return open_two


@pytest.fixture
async def sides(open_sides: Any) -> Sides:
    made = await open_sides()
    assert isinstance(made, Sides)
    return made


# ---- what has changed between two commands


def _revoke(side: Side) -> None:
    side.port.gateway.access.sessions.revoke(lambda _: True)


CHANGES: Final[dict[str, Callable[[Side], object]]] = {
    "nothing": lambda _: None,
    "it drains": lambda side: side.port.gateway.drain(),
    "the port drains": lambda side: side.port.server.port.drain(),
    "its engine fails": lambda side: side.port.gateway.enter(Phase.RESTARTING),
    "its engine is gone": lambda side: side.port.gateway.drop(),
    "its token is gone": _revoke,
    "it was killed": lambda side: side.connection.abort("in a test"),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_holds_for_the_next_command(open_sides: Any, name: str) -> None:
    """And for those behind it."""
    policies = [FixedPolicy(Principal("tester", principal_with("read,write:*").grants)) for _ in range(2)]
    sides: Sides = await open_sides(policies=policies)
    for side in (sides.fast, sides.full):
        side.connection.log_in(policies[0].principal)
    await sides.open_lane()
    before = await sides.both(*ADD)
    for side in (sides.fast, sides.full):
        CHANGES[name](side)
    replies = [await sides.both(*ADD) for _ in range(2)]
    assert (replies[0] != before and isinstance(replies[0], bytes)) == (name == "nothing"), replies


@pytest.mark.parametrize(
    "between",
    [
        ["PING"],
        ["MULTI"],
        ["WATCH", "s"],
        ["SUBSCRIBE", "c"],
        ["HELLO", "3"],
        ["RESET"],
        ["CLIENT", "SETNAME", "me"],
        ["XADD", "s", "9999999999999-1", "a", "1"],
        ["XADD", "t", "*", "a", "1"],
        ["XADD", "s", "*", "a"],
        ["XREAD", "BLOCK", "1", "STREAMS", "s", "0"],
        ["DEL", "s"],
        ["SET", "s", "1"],
    ],
    ids=" ".join,
)
async def test_other_commands_between_change_nothing(sides: Sides, between: Sequence[str]) -> None:
    """What comes behind them is answered as ever."""
    await sides.open_lane()
    await sides.both(*between)
    for _ in range(3):
        await sides.both(*ADD)
    await sides.both("XRANGE", "s", "-", "+")
    await sides.both("EXEC")


@pytest.mark.parametrize(
    "words",
    [
        *(("a", "2"), ("b", ""), ("", "1"), ("a", "\r\n"), ("a", "1\r\n$1\r\n1"), ("a", "é"), ("a", b"\xff")),
        *((b"\xff", "1"), ("a", "x" * 1_023), ("a", "x" * 1_024), ("a", "x" * 100_000), ("a", '"\\\0')),
        *(("a", "1", "b", "2"), ("a", "1", "a", "2"), ("a",), ()),
    ],
    ids=lambda words: f"{len(words)} words, {sum(map(len, words))} long",
)
async def test_any_other_words_are_stored_alike(sides: Sides, words: Sequence[Word]) -> None:
    """By the lane of an entry with as many words, or not by it."""
    for opening in (ADD, (*ADD, "b", "2")):
        await sides.both(*opening)
        assert sides.fast.has_lane
        await sides.both("XADD", "s", "*", *words)
    await sides.both("XRANGE", "s", "-", "+")


@pytest.mark.parametrize("seed", range(halves.some(8)))
async def test_commands_in_any_order_are_answered_alike(sides: Sides, seed: int) -> None:
    """Those that take the lane, those that close it, and a stamp that advances between them."""
    random = Random(seed)
    likely = [("XADD", "s", "*", "a", value) for value in ("1", "2", "", "x" * 30, "x" * 2_000)]
    others = [
        *(("PING",), ("MULTI",), ("EXEC",), ("DISCARD",), ("WATCH", "s"), ("XLEN", "s"), ("DEL", "s")),
        *(("XADD", "t", "*", "a", "1"), ("xadd", "s", "*", "a", "1"), ("XADD", "s", "*", "a", "1", "b", "2")),
        *(("XADD", "s", "1-1", "a", "1"), ("XADD", "s", "*", "a"), ("RESET",), ("NONE",)),
    ]
    for _ in range(120):
        if random.random() < 0.1:
            sides.fast.port.gateway.stamp.advance()
        await sides.both(*random.choice([*likely, random.choice(others)]))
    await sides.both("XRANGE", "s", "-", "+")


async def test_a_command_in_pieces_is_answered(sides: Sides) -> None:
    """As is the next one, which takes the lane again."""
    await sides.open_lane()
    whole = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\n1\r\n"
    for cut in range(1, len(whole)):
        for piece in (whole[:cut], whole[cut:]):
            sides.fast.wire.writer.write(piece)
            await asyncio.sleep(0)
        assert isinstance(await sides.fast.wire.reply(), bytes)
        assert isinstance(await sides.fast.wire.call(*ADD), bytes)
        assert sides.fast.has_lane


async def test_replies_come_in_the_order_of_their_commands(sides: Sides) -> None:
    """One waits in the lane, and those behind it come the usual way: with it, or later."""
    await sides.open_lane()
    for pause in (0, 1, 2):
        for words in (ADD, ("PING", "1"), ADD, ADD, ("PING", "2")):
            sides.fast.wire.send(*words)
            for _ in range(pause):
                await asyncio.sleep(0)
        replies = [await sides.fast.wire.reply() for _ in range(5)]
        assert [reply for reply in replies if reply in {b"1", b"2"}] == [b"1", b"2"]
        assert replies[1] == b"1"
        assert replies[4] == b"2"


# ---- what is kept of it


async def test_commands_are_counted(sides: Sides) -> None:
    """In metrics, in INFO, and in what CLIENT LIST shows."""
    await sides.open_lane()
    gateway, before = sides.fast.port.gateway, sides.fast.port.server.port.commands_run
    sides.clock.pass_ms(5_000)
    for _ in range(3):
        await sides.fast.wire.call(*ADD)
    assert gateway.reports.counters.requests["redis xadd"] == {200: 4}
    assert sides.fast.port.server.port.commands_run == before + 3
    other = await sides.fast.port.connect()
    sides.clock.pass_ms(2_000)
    shown = str(await other.call("CLIENT", "LIST"))
    assert "idle=2 " in shown
    assert "cmd=xadd " in shown


async def test_each_command_takes_one_from_the_rate(open_sides: Any) -> None:
    """And the bytes of its entry and of its reply; beyond it is refused, until there is room."""
    sides: Sides = await open_sides(rate_requests="1/s burst 10", rate_bytes="100000/s")
    limiters = [side.port.gateway.limits.rates for side in (sides.fast, sides.full)]
    await sides.open_lane()
    for side in (sides.fast, sides.full):
        side.connection.account.take_commands(0, 0)
    sides.clock.pass_ms(60_000)
    replies = [await sides.fast.wire.call(*ADD) for _ in range(12)]
    assert [isinstance(reply, bytes) for reply in replies] == [True] * 10 + [False] * 2
    assert "the limit of requests is reached" in str(replies[-1])
    full = [await sides.full.wire.call(*ADD) for _ in range(12)]
    assert replies == full
    left = [limiter and limiter.bytes.full_after_s("ip:", sides.clock.monotonic()) for limiter in limiters]
    assert left[0] == left[1]


# ---- what happens while an entry waits


async def test_an_entry_of_a_client_that_leaves_is_stored(sides: Sides) -> None:
    """One that has said all and still reads gets its reply; one that is gone takes nothing of others."""
    await sides.open_lane()
    leaving, half = await side_of(sides.fast.port), await side_of(sides.fast.port)
    for side in (leaving, half):
        await side.wire.call(*ADD)
        assert side.has_lane
        side.wire.send(*ADD)
    half.wire.writer.write_eof()
    leaving.wire.writer.transport.abort()
    assert isinstance(await sides.fast.wire.call(*ADD), bytes)
    assert isinstance(await half.wire.reply(), bytes)
    assert await half.wire.ended()
    await until(lambda: leaving.connection.is_gone)
    engine: Any = sides.fast.port.gateway.engine
    assert await reply_to(engine, XLen(stream="s")) == 1 + 2 + 2 + 1


async def test_a_port_that_drains_answers_first(sides: Sides) -> None:
    """The connection ends behind the reply."""
    await sides.open_lane()
    data = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\n1\r\n"
    sides.fast.connection.data_received(data)
    sides.fast.port.server.port.drain()
    assert isinstance(await sides.fast.wire.reply(), bytes)
    assert await sides.fast.wire.ended()


async def test_what_cannot_be_stored_is_refused_as_ever(sides: Sides) -> None:
    """Without memory, and without an ID."""
    await sides.open_lane()
    for full_at, refused in ((0, "OOM"), (float("inf"), None)):
        for side in (sides.fast, sides.full):
            engine: Any = side.port.gateway.engine
            engine.memory.bytes_max, engine.memory._full_at = 1, full_at  # noqa: SLF001
        reply = await sides.both(*ADD)
        assert isinstance(reply, bytes) if refused is None else refused in str(reply)
    await sides.both("XADD", "s", f"{ids.MS_MAX}-{ids.SEQUENCE_MAX - 1}", "a", "1")
    assert [await sides.both(*ADD) for _ in range(3)][1:] == [EXHAUSTED] * 2


async def test_a_client_that_waits_holds_nothing_of_its_last_entry(sides: Sides) -> None:
    """Which may have a megabyte; nor of one that was refused."""
    value = b"x" * 200_000
    await sides.open_lane()
    assert isinstance(await sides.fast.wire.call("XADD", "s", "*", "a", value), bytes)
    assert sides.fast.has_lane
    assert not holds(sides.fast.connection._lane, value[:100])  # noqa: SLF001
    await sides.both("XADD", "s", f"{ids.MS_MAX}-{ids.SEQUENCE_MAX}", "a", "1")
    assert await sides.fast.wire.call("XADD", "s", "*", "a", value) == EXHAUSTED
    assert not holds(sides.fast.connection._work._lane, value[:100])  # noqa: SLF001
