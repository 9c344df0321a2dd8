"""A command that a client sends again is answered as the first time, after any change between them.

Each test asks two ports at a moment that stands still; one forgets before each command.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pytest

from app.doors.resp.running import Runner
from app.doors.resp.seen_commands import _COMMANDS_MAX
from app.gateway import Phase
from app.redis.runs import Parsed
from tests.app.policies import FixedPolicy, principal_with
from tests.app.resp.sides import Side, Word, side_of
from tests.engine.clocks import HandClock

READ: Final = ("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", "s", ">")
COMMANDS: Final = (
    *(READ, ("XACK", "s", "g", "1-0"), ("XLEN", "s"), ("XPENDING", "s", "g")),
    *(("XRANGE", "s", "-", "+", "COUNT", "3"), ("XREVRANGE", "s", "+", "-")),
)


class Sides(NamedTuple):
    """One that remembers, and one that forgets."""

    fast: Side
    full: Side

    async def both(self, *words: Word) -> object:
        """The reply of both."""
        self.full.seen._seen.clear()  # noqa: SLF001
        fast, full = [await side.said(words) for side in self]
        assert fast == full
        return fast

    async def begin(self) -> None:
        """Give a group entries, and have each command seen."""
        await self.both("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        for number in range(1, 9):
            await self.both("XADD", "s", f"{number}-0", "n", number)
        for words in COMMANDS:
            await self.both(*words)


@pytest.fixture
async def sides(open_port: Any) -> Sides:
    clock = HandClock()
    policies = [FixedPolicy(principal_with("read,write,consume,manage:*")) for _ in range(2)]
    fast, full = [await side_of(await open_port(policy, clock=clock)) for policy in policies]
    return Sides(fast, full)


def _log_in(grant: str) -> Callable[[Side], object]:
    return lambda side: side.connection.log_in(principal_with(grant))


CHANGES: Final[dict[str, Callable[[Side], object]]] = {
    "nothing": lambda _: None,
    "the stamp": lambda side: side.port.gateway.stamp.advance(),
    "it drains": lambda side: side.port.gateway.drain(),
    "its engine fails": lambda side: side.port.gateway.enter(Phase.RESTARTING),
    "its engine is gone": lambda side: side.port.gateway.drop(),
    "its token is gone": lambda side: side.port.gateway.access.sessions.revoke(lambda _: True),
    "its caller may only read": _log_in("read:*"),
    "its caller may not": _log_in("read,consume:other"),
    "its caller may as well": _log_in("read,consume:s"),
    "it was killed": lambda side: side.connection.abort("in a test"),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_holds_for_the_next_command(sides: Sides, name: str) -> None:
    """And for those behind it."""
    await sides.begin()
    for side in sides:
        CHANGES[name](side)
    for words in (*COMMANDS, *COMMANDS):
        await sides.both(*words)


async def test_what_is_remembered_is_not_looked_at_again(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it by another connection of the caller; after a change it is, once."""
    await sides.begin()
    parsed: list[Sequence[bytes]] = []
    parse = Runner.parse

    def noted(runner: Runner, words: Sequence[bytes]) -> Parsed:
        parsed.append(words)
        return parse(runner, words)

    monkeypatch.setattr(Runner, "parse", noted)
    for side in (sides.fast, await side_of(sides.fast.port)):
        for words in COMMANDS:
            await side.wire.call(*words)
    assert parsed == []
    sides.fast.port.gateway.stamp.advance()
    for words in (*COMMANDS, *COMMANDS):
        await sides.fast.wire.call(*words)
    assert len(parsed) == len(COMMANDS)


async def test_pages_are_not_remembered(sides: Sides) -> None:
    """Each has bounds of its own."""
    await sides.begin()
    before = len(sides.fast.seen._seen)  # noqa: SLF001
    for words in (("XRANGE", "s", "2", "+"), ("XRANGE", "s", "-", "(5-0"), ("XREVRANGE", "s", "5-0", "3-0")):
        await sides.both(*words)
    assert len(sides.fast.seen._seen) == before  # noqa: SLF001


async def test_a_remembered_range_is_read_each_time(sides: Sides) -> None:
    """What was added, deleted and removed since shows."""
    await sides.begin()
    for change in (
        ("XADD", "s", "9-0", "n", "9"),
        ("XDEL", "s", "1-0"),
        ("XTRIM", "s", "MAXLEN", "1"),
        ("DEL", "s"),
    ):
        await sides.both(*change)
        for words in COMMANDS[-2:]:
            await sides.both(*words)


@pytest.mark.parametrize(
    "words",
    [
        *(("1-0",), ("2-0", "3-0"), ("2",), ("02-0",), ("x",), ("2-0", "x"), ("18446744073709551616-0",)),
        *((), ("2-0",) * 10_000, ("2-0",) * 10_001, (b"\xff",), ("2-0 ",), ("-",), ("$",), (">",)),
    ],
    ids=lambda words: f"{len(words)} IDs {words[:2]}",
)
async def test_the_ids_of_an_acknowledgement_are_looked_at(sides: Sides, words: Sequence[Word]) -> None:
    """Each time: how they are written, and how many they are."""
    await sides.begin()
    await sides.both(*READ)
    await sides.both("XACK", "s", "g", *words)
    await sides.both("xack", "s", "g", *words)
    await sides.both("XACK", "s", "other", *words)
    await sides.both("XPENDING", "s", "g")


@pytest.mark.parametrize(
    "between",
    [
        ["DEL", "s"],
        ["XGROUP", "DESTROY", "s", "g"],
        ["XGROUP", "SETID", "s", "g", "0"],
        ["XTRIM", "s", "MAXLEN", "0"],
        ["MULTI"],
        ["SUBSCRIBE", "c"],
        ["HELLO", "3"],
        ["RESET"],
        ["XADD", "s", "*", "a", "1"],
    ],
    ids=" ".join,
)
async def test_other_commands_between_change_what_they_change(sides: Sides, between: Sequence[str]) -> None:
    """A command means what it means now."""
    await sides.begin()
    await sides.both(*between)
    for words in (*COMMANDS, *COMMANDS, ("EXEC",)):
        await sides.both(*words)


async def test_little_is_remembered(sides: Sides) -> None:
    """Short commands, of some kinds, and of these some thousands."""
    await sides.begin()
    seen: Any = sides.fast.seen._seen  # noqa: SLF001
    before = len(seen)
    for words in (
        ("XLEN", "n" * 300),
        ("XADD", "s", "9-0", "a", "1"),
        ("XREAD", "STREAMS", "s", "0"),
        ("PING",),
    ):
        await sides.both(*words)
    assert len(seen) == before == len(COMMANDS)
    request = next(iter(seen.values())).request
    for number in range(_COMMANDS_MAX):
        sides.fast.seen.keep([b"XREADGROUP", b"%d" % number], sides.fast.connection.client.principal, request)
        assert len(seen) <= _COMMANDS_MAX
