"""No turn of the loop is longer than 20 ms, with the log on a real disk and the engine at work on it.

Knows: how long the loop's own thread works from one of its turns to the next.
Must never know: how the log is written.

`test_stalls.py` measures commands alone; this is what clients of the loop see.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import pytest

from engine import Clock, Engine, Fsync, SystemClock, entries
from engine.commands.types import Cursor, XAdd, XGroupCreate, XReadGroup
from engine.replies import GroupRead
from engine.runtime.answers import ANSWERS_AT_ONCE_MAX, ANSWERS_S_MAX
from tests.engine.asking import reply_to, submit
from tests.engine.clocks import HandClock
from tests.turns import TURN_S_MAX, assert_within_async, longest_turn_s

pytestmark = pytest.mark.paired

ENTRY_BYTES: Final = 8 << 20
ANSWERS_MS_MAX: Final = round(ANSWERS_S_MAX * 1000)


@asynccontextmanager
async def opened(data: Path, fsync: Fsync, clock: Clock | None = None) -> AsyncIterator[Engine]:
    opening = partial(Engine.open, data, clock=clock or SystemClock(), fsync=fsync)
    async with await asyncio.to_thread(opening) as engine:
        yield engine


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
async def test_a_frame_of_eight_megabytes(fsync: Fsync, tmp_path: Path) -> None:
    """Alone, and several while the first is being written."""
    body = entries.body([("a", "1" * ENTRY_BYTES)])
    async with opened(tmp_path / "data", fsync) as engine:
        for together in (1, 3):

            async def publish(together: int = together) -> None:
                adding: list[asyncio.Future[object]] = []
                for _ in range(together):
                    adding.append(asyncio.ensure_future(reply_to(engine, XAdd(stream="s", bodies=[body]))))
                    # Each in a turn of its own, as from connections: the limit is that of one.
                    await asyncio.sleep(0)
                await asyncio.gather(*adding)

            await assert_within_async(TURN_S_MAX, lambda publish=publish: longest_turn_s(publish()))  # type: ignore[misc]


@pytest.mark.parametrize("fsync", ["always", "everysec"])
@pytest.mark.parametrize(("groups", "published"), [(1_000, 1), (1_000, 200), (20, 10_000)])
async def test_a_publish_for_which_as_many_groups_wait_as_a_stream_may_have(
    groups: int, published: int, fsync: Fsync, tmp_path: Path
) -> None:
    """Each reads all of it. The publisher waits for a few of them at most."""
    command = XAdd(stream="s", bodies=[entries.body([("a", "1")])] * published)
    async with opened(tmp_path / "data", fsync) as engine:
        for number in range(groups):
            await reply_to(engine, XGroupCreate(stream="s", group=f"g{number}", start=0, mkstream=True))
        served_before = []

        async def measured() -> float:
            reading = [
                asyncio.ensure_future(
                    reply_to(
                        engine,
                        XReadGroup(
                            group=f"g{number}",
                            consumer="c",
                            streams=[("s", Cursor.NEW)],
                            count=published,
                            block_ms=60_000,
                        ),
                    )
                )
                for number in range(groups)
            ]
            await asyncio.sleep(0)
            assert engine.figures().waiting == groups

            async def publish() -> None:
                await reply_to(engine, command)
                served_before.append(sum(one.done() for one in reading))
                await asyncio.gather(*reading)

            longest = await longest_turn_s(publish())
            for one in reading:
                (found,) = cast("GroupRead", one.result()).streams
                assert len(found.entries) == published
            return longest

        await assert_within_async(TURN_S_MAX, measured)
        if fsync == "everysec":
            assert min(served_before) <= groups // 5, served_before


@pytest.mark.parametrize(
    ("answer_ms", "a_cycle"), [(0, ANSWERS_AT_ONCE_MAX), (1, 5), (ANSWERS_MS_MAX, 1), (ANSWERS_MS_MAX - 1, 2)]
)
async def test_answers_that_wait_for_one_sync_leave_in_several_cycles(
    tmp_path: Path, answer_ms: int, a_cycle: int
) -> None:
    """In the order of their frames, for a while at most; none is forgotten."""
    body, clock = entries.body([("a", "1")]), HandClock()
    async with opened(tmp_path / "data", "always", clock) as engine:
        left: list[int] = []

        def leave(number: int, _: object) -> None:
            left.append(number)
            clock.pass_ms(0, answer_ms)

        for number in range(4 * ANSWERS_AT_ONCE_MAX + 1):
            submit(engine, [XAdd(stream="s", bodies=[body])], partial(leave, number))
        assert not left
        each_cycle = [0]
        while len(left) <= 4 * ANSWERS_AT_ONCE_MAX:
            await asyncio.sleep(0)
            each_cycle.append(len(left))
        assert max(after - before for before, after in pairwise(each_cycle)) == a_cycle
        assert left == list(range(4 * ANSWERS_AT_ONCE_MAX + 1))
