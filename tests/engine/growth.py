"""Fills an engine with data of one shape, in a process of its own, and prints by how much it has grown.

Knows: shapes of data, how much the operating system counts for this process.
Must never know: what the engine makes of it.

    python -m tests.engine.growth entries DIRECTORY  →  estimated_bytes resident_bytes
"""

import asyncio
import gc
import secrets
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from engine import Engine, SystemClock, entries
from engine.commands.schedule_commands import AddScheduled, NewSchedule
from engine.commands.scheduling import LATER_MAX
from engine.commands.types import Cursor, XAdd, XGroupCreate, XRead, XReadGroup
from engine.recurrence import Rule
from engine.runtime.resident import resident_bytes
from tests.engine.asking import reply_to

BATCH: Final = 10_000
SCHEDULES: Final = 100_000


def bodies(count: int) -> list[bytes]:
    return [entries.body([("v", secrets.token_hex(16))]) for _ in range(count)]


async def fill(engine: Engine, stream: str, batches: int) -> None:
    for _ in range(batches):
        await reply_to(engine, XAdd(stream=stream, bodies=bodies(BATCH)))
        await asyncio.sleep(0)


async def many_entries(engine: Engine) -> None:
    """A million tiny entries in one stream."""
    await fill(engine, "s", 100)


async def many_streams(engine: Engine) -> None:
    """20,000 streams of three entries, each with a group."""
    for number in range(20_000):
        await reply_to(engine, XAdd(stream=f"stream-{number}", bodies=bodies(3)))
        await reply_to(engine, XGroupCreate(stream=f"stream-{number}", group="workers", start=0))


async def many_sessions(engine: Engine) -> None:
    """50,000 streams of one entry."""
    for number in range(50_000):
        await reply_to(engine, XAdd(stream=f"session:{number:08}", bodies=bodies(1)))


async def much_pending(engine: Engine) -> None:
    """200,000 entries pending in two groups, of 2,000 consumers."""
    await fill(engine, "s", 20)
    for group in ("a", "b"):
        await reply_to(engine, XGroupCreate(stream="s", group=group, start=0))
        for number in range(2_000):
            read = XReadGroup(
                group=group, consumer=f"worker-{number}", count=100, streams=[("s", Cursor.NEW)]
            )
            await reply_to(engine, read)


async def many_schedules(engine: Engine) -> None:
    """100,000 entries for later, of names of 15 bytes, at times of their own in any order."""
    for first in range(0, SCHEDULES, LATER_MAX):
        each = [
            NewSchedule(f"sch_{first + number:011}", body, Rule(in_ms=3_600_000 + secrets.randbelow(1 << 30)))
            for number, body in enumerate(bodies(LATER_MAX))
        ]
        await reply_to(engine, AddScheduled(stream="s", later=each))


SHAPES: Final[dict[str, Callable[[Engine], Awaitable[None]]]] = {
    "entries": many_entries,
    "streams": many_streams,
    "sessions": many_sessions,
    "pending": much_pending,
    "schedules": many_schedules,
}


async def grow(shape: str, directory: Path) -> tuple[int, int]:
    """By how many bytes the data grows: as estimated, and as the process does."""
    engine = Engine.open(directory, clock=SystemClock(), fsync="no")
    await engine.start()
    # What the first entries cost once: libraries, threads, buffers as long as a batch.
    await fill(engine, "warm", 10)
    await reply_to(engine, XRead(streams=[("warm", 0)]))
    await reply_to(engine, XGroupCreate(stream="warm", group="g", start=0))
    await reply_to(engine, XReadGroup(group="g", consumer="c", streams=[("warm", Cursor.NEW)]))
    gc.collect()
    before = engine.memory.estimated_bytes, settled()
    await SHAPES[shape](engine)
    await asyncio.sleep(0.2)
    gc.collect()
    after = engine.memory.estimated_bytes, settled()
    await engine.close()
    return after[0] - before[0], after[1] - before[1]


def settled() -> int:
    found = resident_bytes()
    assert found is not None, "this is Linux"
    return found


if __name__ == "__main__":
    print(*asyncio.run(grow(sys.argv[1], Path(sys.argv[2]))))  # noqa: T201 - the answer of this program
