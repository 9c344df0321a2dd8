"""Who should write the log, the event loop itself or a thread.

Runs the real engine under two loads, 32 publishers as fast as they can and one of 10 000 entries a second,
once with writes inline and once with a writer thread (one wake-up a batch); syncs are in a thread both times.

    python -m bench.threads [--seconds 5] [--data DIR]
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvloop

from engine import Call, Engine, Fsync, SystemClock, ask_one, entries
from engine.commands.types import XAdd
from engine.log import FrameBatch, LogPoisonedError
from engine.runtime.writer import Writer

PUBLISHERS = 32
PACED_PER_S = 10_000
body = entries.body([("sensor-id", "1234"), ("temperature", "19.8")])


class ThreadWriter(Writer):
    """The other way: a thread takes each batch, and wakes the loop once when it is written."""

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not hasattr(self, "_writes"):
            self._writes = ThreadPoolExecutor(1, "weir-write")
        loop = asyncio.get_running_loop()
        self._writes.submit(self._write, self.log.take_staged(), loop)

    def _write(self, batch: FrameBatch, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self.log.write(batch)
            if self._fsync == "always":
                self.log.sync()
        except LogPoisonedError:
            loop.call_soon_threadsafe(self._fail_all)
            return
        loop.call_soon_threadsafe(self._written)

    def _written(self) -> None:
        self._release()
        self._begin_sync()


async def flood(engine: Engine, seconds: float) -> list[float]:
    """Publishers that each wait for their answer before the next entry."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def publish(number: int) -> None:
        command = XAdd(stream=f"s{number % 4}", bodies=(body,))
        while (start := time.perf_counter()) < end:
            await ask_one(engine, Call((command,)))
            latencies.append(time.perf_counter() - start)
            # What an API costs beside the engine: the loop gets round to other things.
            await asyncio.sleep(0)

    await asyncio.gather(*(publish(number) for number in range(PUBLISHERS)))
    return latencies


async def pace(engine: Engine, seconds: float) -> list[float]:
    """Entries at a fixed rate, in bunches of a millisecond."""
    latencies: list[float] = []
    tasks: set[asyncio.Task[None]] = set()

    async def publish() -> None:
        start = time.perf_counter()
        await ask_one(engine, Call((XAdd(stream="s", bodies=(body,)),)))
        latencies.append(time.perf_counter() - start)

    start = time.perf_counter()
    sent = 0
    while (now := time.perf_counter() - start) < seconds:
        for _ in range(int(now * PACED_PER_S) - sent):
            task = asyncio.create_task(publish())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    return latencies


def measure(
    load: Callable[[Engine, float], object], fsync: Fsync, *, thread: bool, data: Path, seconds: float
) -> tuple[float, list[float]]:
    """Entries a second, and latencies in milliseconds at p50, p99, p99.9 and the worst."""

    async def run() -> list[float]:
        engine = Engine.open(data, clock=SystemClock(), fsync=fsync)
        if thread:
            engine._writer.__class__ = ThreadWriter  # noqa: SLF001 - the point of the comparison
        await engine.start()
        latencies = await (flood if load is flood else pace)(engine, seconds)
        await engine.close()
        return latencies

    shutil.rmtree(data, ignore_errors=True)
    latencies = sorted(uvloop.run(run()))
    marks = [latencies[int(len(latencies) * share)] * 1000 for share in (0.5, 0.99, 0.999)]
    return len(latencies) / seconds, [*marks, latencies[-1] * 1000]


def main() -> None:
    """Alternate the two ways, print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "weir-bench-threads")
    options = parser.parse_args()
    print(
        f"{'load':7}{'fsync':10}{'writes':8}{'entries/s':>12}{'p50 ms':>9}{'p99':>9}{'p99.9':>9}{'worst':>9}"
    )
    for load in (flood, pace):
        for fsync in ("everysec", "always"):
            rounds: dict[bool, list[tuple[float, list[float]]]] = {False: [], True: []}
            for _ in range(options.rounds):
                for thread in (False, True):
                    measured = measure(load, fsync, thread=thread, data=options.data, seconds=options.seconds)
                    rounds[thread].append(measured)
            for thread, results in rounds.items():
                rate = statistics.median(result[0] for result in results)
                marks = [statistics.median(result[1][place] for result in results) for place in range(4)]
                columns = "".join(f"{mark:9.2f}" for mark in marks)
                print(
                    f"{load.__name__:7}{fsync:10}{'thread' if thread else 'inline':8}{rate:12,.0f}{columns}"
                )
    shutil.rmtree(options.data, ignore_errors=True)


if __name__ == "__main__":
    main()
