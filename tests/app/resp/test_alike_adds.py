"""Plain XADDs put into a run at once: as if one by one, or not at all."""

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.gateway import Gateway
from app.limits import CommandLimits
from app.redis.queue import Adds, CommandRun
from app.settings import Settings
from engine import Engine, SystemClock
from tests.app.resp.conftest import TestedPort
from tests.engine.clocks import HandClock

LIMITS = Gateway(Settings(log_requests="none"), SystemClock(), None).limits.commands
Words = list[bytes]

KEYS = st.sampled_from([b"s", b"s", b"s", b"t", b"a/b", b"\xff"])
NAMES = st.sampled_from([b"a", b"b", b"%d", b"%", b"\xc3\xbc", b'"', b"\\", b"\xff", b"\xc3", b"", b"\x7f"])
VALUES = st.one_of(
    NAMES, st.binary(max_size=3), st.sampled_from([b"\xbc", b"a b", b"\n", b"</", b"\xe2\x80\xa8"])
)


def xadd(key: bytes, *words: bytes) -> Words:
    return [b"XADD", key, b"*", *words]


@st.composite
def pipelines(draw: st.DrawFn) -> list[Words]:
    """Mostly alike: one key and the same names; some with another key, name, option or word."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3))
    others = st.sampled_from(
        [
            xadd(b"s", b"a"),
            [b"xadd", b"s", b"*", b"a", b"1"],
            xadd(b"s", b"a", b"1", b"b", b"2"),
            [b"XADD", b"s", b"1-1", b"a", b"1"],
            [b"XLEN", b"s"],
        ]
    )
    commands = []
    for _ in range(draw(st.integers(1, 5))):
        pairs = [word for name in names for word in (name, draw(VALUES))]
        commands.append(xadd(draw(KEYS), *pairs))
    return commands if draw(st.booleans()) else [*commands, draw(others)]


def stored(run: CommandRun) -> tuple[list[tuple[str, list[bytes]]], int, int]:
    """The entries of each stream in order, and what the run counts."""
    adds = [(item.stream, item.bodies) for item in run.items if isinstance(item, Adds)]
    assert len(adds) == len(run.items)
    return adds, run.count, run.entry_bytes


@given(pipelines())
@example([xadd(b"s", b"a", b"1")] * 3)
@example([xadd(b"s", b"a", b"1", b"a", b"2")] * 2)
@example([xadd(b"s", b"a", b"\xc3"), xadd(b"s", b"a", b"\xbc")])
@example([xadd(b"s", b"%d", b"%b"), xadd(b"s", b"%d", b"%")])
def test_many_at_once_are_what_they_are_one_by_one(commands: list[Words]) -> None:
    """Behind an entry of the same stream too."""
    for before in ([], [xadd(b"s", b"before", b"1")], [xadd(b"t", b"before", b"1")]):
        at_once, one_by_one = CommandRun(LIMITS), CommandRun(LIMITS)
        for words in before:
            assert at_once.add_plain(words)
            assert one_by_one.add_plain(words)
        unchanged = stored(at_once)
        if at_once.add_alike(commands):
            assert all(map(one_by_one.add_plain, commands))
            assert stored(at_once) == stored(one_by_one)
        else:
            assert stored(at_once) == unchanged


def test_plain_pipelines_are_added_at_once() -> None:
    """Values of any length, names with a percent sign, text of other scripts."""
    run = CommandRun(LIMITS)
    assert run.add_alike([xadd(b"s", b"50%", b"x" * size, b"n", "ü".encode()) for size in range(3)])
    assert (run.count, len(run.items)) == (3, 1)
    assert run.add_alike([xadd(b"t", b"a", b"1")])
    assert run.add_alike([xadd(b"t", b"b", b"1")])
    assert [stream for stream, _ in stored(run)[0]] == ["s", "t"]


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (replace(LIMITS, entry_bytes_max=len(b',"fields":{"a":"1","b":"2"}}')), True),
        (replace(LIMITS, entry_bytes_max=len(b',"fields":{"a":"1","b":"2"}}') - 1), False),
        (replace(LIMITS, entry_fields_max=2), True),
        (replace(LIMITS, entry_fields_max=1), False),
    ],
)
def test_limits_hold_for_each(limits: CommandLimits, fits: bool) -> None:  # noqa: FBT001 - a parameter of cases
    """At the limit, and one beyond it."""
    assert CommandRun(limits).add_alike([xadd(b"s", b"a", b"1", b"b", b"2")] * 3) is fits


def test_a_run_is_not_overfull() -> None:
    """A thousand commands, a MiB of entries."""
    run, one = CommandRun(LIMITS), xadd(b"s", b"a", b"1")
    assert run.add_plain(one)
    assert not run.add_alike([one] * 1_000)
    assert run.add_alike([one] * 999)
    overhead = len(b',"fields":{"a":""}}')
    full = xadd(b"s", b"a", b"x" * ((1 << 18) - overhead))
    assert CommandRun(LIMITS).add_alike([full] * 4)
    assert not CommandRun(LIMITS).add_alike([full, full, full, xadd(b"s", b"a", full[-1] + b"x")])


def test_what_is_refused_is_not_added() -> None:
    """It is parsed one by one, where each gets its refusal."""
    run = CommandRun(LIMITS, lambda _: None)
    assert not run.add_alike([xadd(b"s", b"a", b"1")] * 3)
    assert run.count == 0


@pytest.mark.parametrize(("ticking_s", "fewest", "most"), [(0, 1, 1), (0.003, 2, 4)])
async def test_a_run_ends_by_the_clock(
    ticking_s: float, fewest: int, most: int, open_port: Callable[..., Awaitable[TestedPort]]
) -> None:
    """What one read has of them is one turn where there is time for it, a few turns where there is less."""
    clock = HandClock()
    clock.ticking_s = ticking_s
    port = await open_port(clock=clock)
    engine, turns = port.gateway.engine, list[object]()
    assert isinstance(engine, Engine)
    engine.events.changed = turns.append
    wire = await port.connect()
    wire.writer.write(b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\na\r\n$1\r\n1\r\n" * 600)
    ids = [await wire.reply() for _ in range(600)]
    assert len({*ids}) == await wire.call("XLEN", "s") == 600
    assert fewest <= len(turns) <= most
