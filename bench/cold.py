"""What entries on disk cost: memory held, a restart, ranges that are cold and warm, publishing beside a scan.

Knows: how to fill an engine's stream until cold entries leave its memory, in a process of its own.
Must never know: the web, how runs are written.

    python -m bench.cold [--entries 10000000] [--soft-mb 150] [--data DIRECTORY]

Each entry has three short fields, as a sensor's reading. The restart is a process of its own, so that what it
holds is what a gateway without readers holds.
"""

import argparse
import asyncio
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from engine import Caps, Engine, Growth, SystemClock, ids
from engine.commands.types import XRange
from engine.commands.weir_commands import AddEach
from engine.protocol import Call, ask_one
from engine.replies import Entries
from engine.runtime.resident import resident_bytes

_BATCH: Final = 5_000
_COLD_RANGES: Final = 400
_RANGE: Final = 1_000
_PUBLISHED: Final = 4_000


def opened(data: Path, soft_bytes: int) -> Engine:
    """The engine over a directory."""
    caps = Caps(memory_bytes_soft=soft_bytes)
    return Engine.open(data, clock=SystemClock(), fsync="no", caps=caps, growth=Growth(100, 64 << 20))


def bodies(start: int) -> list[bytes]:
    """Entries as a sensor sends them."""
    rng = random.Random(start)
    return [
        b'"fields":{"sensor":"s-%d","celsius":"%.2f","at":"%d"}}' % (number % 50, rng.uniform(10, 30), number)
        for number in range(start, start + _BATCH)
    ]


async def fill(engine: Engine, count: int) -> None:
    """Publish, and wait until memory is below its limit, or nothing more can go."""
    for start in range(0, count, _BATCH):
        await ask_one(engine, Call([AddEach(stream="s", bodies=bodies(start))]))
        if not start % (100 * _BATCH):
            # The thread that stores has its turn, as between requests.
            await asyncio.sleep(0.5)
    while engine.memory.used_bytes > (engine._keyspace.caps.memory_bytes_soft or 0) * 0.95:  # noqa: SLF001
        before = engine.memory.used_bytes
        await asyncio.sleep(12)
        if engine.memory.used_bytes >= before:
            break


async def one_range(engine: Engine, start: int) -> float:
    """How many milliseconds a range takes."""
    began = time.perf_counter()
    found = await ask_one(engine, Call([XRange(stream="s", start=start, end=ids.ID_MAX, count=_RANGE)]))
    assert isinstance(found, Entries)
    assert found.count == _RANGE
    return (time.perf_counter() - began) * 1_000


async def measure(engine: Engine) -> None:
    """Print what ranges and publishing cost."""
    stream = engine._keyspace.keys["s"].stream  # noqa: SLF001 - to know where runs are
    runs = [part for part in stream.parts_from() if hasattr(part, "first_live")]
    rng = random.Random(1)
    print(f"{stream.length:,} entries, {len(runs):,} runs", flush=True)
    starts = [rng.choice(runs).first_live for _ in range(_COLD_RANGES)]
    cold = sorted([await one_range(engine, start) for start in starts])
    print(
        f"cold range of {_RANGE}: p50 {statistics.median(cold):.2f} ms, p99 {cold[-len(cold) // 100]:.2f} ms"
    )
    warm = sorted([await one_range(engine, starts[-1]) for _ in range(_COLD_RANGES)])
    print(f"the same run again: p50 {statistics.median(warm):.2f} ms")
    newest = stream.nodes.last()
    assert newest is not None
    tail = sorted([await one_range(engine, stream.last_id - 5 * _RANGE) for _ in range(_COLD_RANGES)])
    print(f"in memory: p50 {statistics.median(tail):.2f} ms")
    alone = await publish(engine)
    scanning = asyncio.ensure_future(scan(engine))
    beside = await publish(engine)
    scanning.cancel()
    print(f"publish p99.9: alone {alone:.2f} ms, beside a full cold scan {beside:.2f} ms")


async def scan(engine: Engine) -> None:
    """Read everything, page by page, again and again."""
    after = 0
    while True:
        found = await ask_one(
            engine, Call([XRange(stream="s", start=after + 1, end=ids.ID_MAX, count=_RANGE)])
        )
        after = found.last if isinstance(found, Entries) and found.more else 0
        await asyncio.sleep(0)


async def publish(engine: Engine) -> float:
    """One entry every millisecond; the p99.9 of their times in ms."""
    took: list[float] = []
    for number in range(_PUBLISHED):
        began = time.perf_counter()
        await ask_one(engine, Call([AddEach(stream="t", bodies=[bodies(number)[0]])]))
        took.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(0.001)
    return sorted(took)[-len(took) // 1_000]


async def main(args: argparse.Namespace) -> None:
    """Fill a directory, or measure a restart over it."""
    data, soft_bytes = Path(args.data), args.soft_mb << 20
    began = time.perf_counter()
    if args.restart:
        engine = opened(data, soft_bytes)
        print(f"restart in {time.perf_counter() - began:.1f} s, {(resident_bytes() or 0) >> 20} MB resident")
        async with engine:
            await measure(engine)
        return
    async with opened(data, soft_bytes) as engine:
        await fill(engine, args.entries)
        log = engine.log_figures()
        print(
            f"filled in {time.perf_counter() - began:.0f} s: {(resident_bytes() or 0) >> 20} MB resident, "
            f"log {log.bytes >> 20} MB, stored {log.stored_bytes >> 20} MB",
            flush=True,
        )
        began = time.perf_counter()
        await engine.rewrite()
        print(f"rewritten in {time.perf_counter() - began:.1f} s to {engine.log_figures().bytes >> 20} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--soft-mb", type=int, default=150)
    parser.add_argument("--data", default="")
    parser.add_argument("--restart", action="store_true")
    given = parser.parse_args()
    directory = given.data or tempfile.mkdtemp(prefix="weir-cold-")
    given.data = directory
    asyncio.run(main(given))
    if not given.restart:
        words = ["--restart", "--data", directory, "--soft-mb", str(given.soft_mb)]
        subprocess.run([sys.executable, "-m", "bench.cold", *words], check=True)
        shutil.rmtree(directory)
