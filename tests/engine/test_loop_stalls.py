"""No turn of the loop is longer than 20 ms, with the log on a real disk and the engine at work on it.

Knows: how long the loop's own thread works from one of its turns to the next.
Must never know: how the log is written.

`test_stalls.py` measures commands alone; this is what clients of the loop see.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from engine import Engine, Fsync, SystemClock, entries
from engine.commands import XAdd
from tests.turns import longest_turn_s, turn_s_max_here

pytestmark = pytest.mark.alone

ENTRY_BYTES: Final = 8 << 20
ROUNDS: Final = 3


@pytest.fixture(scope="module")
def turn_s_max() -> float:
    """The limit on this machine, never below the one that is promised."""
    return turn_s_max_here()


@asynccontextmanager
async def opened(data: Path, fsync: Fsync) -> AsyncIterator[Engine]:
    opening = partial(Engine.open, data, clock=SystemClock(), fsync=fsync)
    async with await asyncio.to_thread(opening) as engine:
        yield engine


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
async def test_a_frame_of_eight_megabytes(fsync: Fsync, tmp_path: Path, turn_s_max: float) -> None:
    """Alone, and several while the first is being written."""
    body = entries.body([("a", "1" * ENTRY_BYTES)])
    async with opened(tmp_path / "data", fsync) as engine:
        for together in (1, 3):

            async def publish(together: int = together) -> None:
                adding: list[asyncio.Future[object]] = []
                for _ in range(together):
                    adding.append(asyncio.ensure_future(engine.execute(XAdd(stream="s", bodies=[body]))))
                    # Each in a turn of its own, as from connections: the limit is that of one.
                    await asyncio.sleep(0)
                await asyncio.gather(*adding)

            longest = [await longest_turn_s(publish()) for _ in range(ROUNDS)]
            assert min(longest) <= turn_s_max, (together, longest)
