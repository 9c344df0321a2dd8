"""`python -m tests.proof.storm DIRECTORY COUNT`: publish under a storm of signals; prints how many
entries and signals there were.

Knows: that a signal with a handler interrupts system calls.
Must never know: which of them.
"""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from engine import Engine, SystemClock, entries
from engine.commands.types import XAdd, XLen
from tests.engine.asking import reply_to

SIGNAL_EVERY_S = 0.001


async def publish(engine: Engine, count: int) -> object:
    """Publish `count` entries, each answered; return how many there are."""
    await engine.start()
    try:
        for _ in range(count):
            await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1" * 500)])]))
        return await reply_to(engine, XLen(stream="s"))
    finally:
        await engine.close()


def main(data: Path, count: int) -> None:
    """Storm, publish, and look once more after a restart."""
    hits: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: hits.append(number))
    over = threading.Event()

    def storm() -> None:
        while not over.wait(SIGNAL_EVERY_S):
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        asyncio.run(publish(Engine.open(data, clock=SystemClock(), fsync="always"), count))
    finally:
        over.set()
        thread.join()
    there = asyncio.run(publish(Engine.open(data, clock=SystemClock()), 0))
    sys.stdout.write(f"{there} {len(hits)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
