"""A slice of work ends by the clock, at each way in that takes several commands: others have their turn."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.app.ten_doors import DOORS, Bench, opened
from tests.engine.clocks import HandClock

COMMANDS: Final = 200
# Of each look at the clock: five make a slice.
TICK_S: Final = 0.001
# What takes several commands at once.
TOGETHER: Final = [door for door in DOORS if door.name in ("pipeline", "multi-exec", "RESP", "RESP MULTI")]
# Nothing is run, there is one refusal; and commands that are alike are one of the engine, a thousand in 4 ms.
WHOLE: Final = (
    *(("multi-exec", "invalid"), ("RESP MULTI", "invalid")),
    *(("RESP", "XADD"), ("pipeline", "XADD")),
)
KINDS: Final[dict[str, tuple[object, ...]]] = {
    "XLEN": ("XLEN", "orders"),
    "XADD": ("XADD", "orders", "*", "f", "v"),
    "XADD MAXLEN": ("XADD", "orders", "MAXLEN", "5", "*", "f", "v"),
    "invalid": ("XADD", "orders"),
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as bench:
        yield bench


async def cycles_of(bench: Bench, door: Any, words: tuple[object, ...]) -> int:
    """How many cycles of the loop it takes."""
    sent = asyncio.ensure_future(door.send(bench, *[words] * COMMANDS))
    cycles = 0
    while not sent.done():
        cycles += 1
        await asyncio.sleep(0)
    await sent
    return cycles


CELLS: Final = [
    pytest.param(door, kind, id=f"{door.name}-{kind}")
    for door in TOGETHER
    for kind in KINDS
    if (door.name, kind) not in WHOLE
]


@pytest.mark.parametrize(("door", "kind"), CELLS)
async def test_others_have_their_turns_between_replies(bench: Bench, door: Any, kind: str) -> None:
    """Where the clock runs, a slice has a few commands; where it stands still, it has all of them."""
    clock = bench.gateway.clock
    assert isinstance(clock, HandClock)
    await cycles_of(bench, door, KINDS[kind])
    at_once = await cycles_of(bench, door, KINDS[kind])
    clock.ticking_s = TICK_S
    in_slices = await cycles_of(bench, door, KINDS[kind])
    clock.ticking_s = 0.0
    assert in_slices - at_once >= COMMANDS / 20, (at_once, in_slices)
