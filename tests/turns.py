"""How long one turn of the event loop takes, on a machine that is compared with the one of the limits.

Knows: the limit, a plain loop's time on the machine where it was set, the processor time of this thread.
Must never know: what a turn does.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable
from typing import Final

# No turn holds the loop for longer, whatever is asked within the limits.
TURN_S_MAX: Final = 0.020
# What `floor_s` gives on the machine where the limits were set.
FLOOR_S: Final = 0.0045


def floor_s() -> float:
    """The processor time of a loop like those of the engine: the best of several."""

    def once() -> float:
        began = time.thread_time()
        found: dict[int, int] = {}
        for number in range(100_000):
            found[number & 0xFFF] = number
        return time.thread_time() - began

    return min(once() for _ in range(7))


def turn_s_max_here() -> float:
    """The limit on this machine, never below the one that is promised."""
    return TURN_S_MAX * max(1.0, floor_s() / FLOOR_S)


async def longest_turn_s(work: Awaitable[object]) -> float:
    """The longest turn of the loop until `work` is done: processor time, the system's for us included.

    The collector runs before that.
    """
    longest, working = 0.0, asyncio.ensure_future(work)
    gc.collect()
    gc.disable()
    try:
        while not working.done():
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)
    finally:
        gc.enable()
    await working
    return longest
