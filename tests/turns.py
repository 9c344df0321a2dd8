"""How long one turn of the event loop takes, on a machine that is compared with the one of the limits.

Knows: the limit, a plain loop's time on the machine where it was set, the processor time of this thread.
Must never know: what a turn does.
"""

import asyncio
import gc
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

# No turn holds the loop for longer, for any request within the limits.
TURN_S_MAX: Final = 0.020
# What `floor_s` gives on the machine where the limits were set.
FLOOR_S: Final = 0.0045
# A floor that is higher has met another process, and says nothing of the machine.
_SLOWNESS_MAX: Final = 3.0
# A measurement may have met another process at work. It is repeated, but not more often than this.
_TRIES: Final = 5


def floor_s() -> float:
    """The processor time of a loop like those of the engine: the best of several."""

    def once() -> float:
        began = time.thread_time()
        found: dict[int, int] = {}
        for number in range(100_000):
            found[number & 0xFFF] = number
        return time.thread_time() - began

    return min(once() for _ in range(7))


def slowness() -> float:
    """How much slower this machine is now than the one of the limits: at least 1, and at most 3."""
    return min(max(1.0, floor_s() / FLOOR_S), _SLOWNESS_MAX)


def assert_within(s_max: float, measure: Callable[[], float]) -> None:
    """Fail unless one of a few measurements gives at most `s_max` seconds of the machine of the limits."""
    took: list[float] = []
    while len(took) < _TRIES and min(took, default=math.inf) > s_max:
        # A busy machine is slow for a while: as slow as it is just before or just after.
        before, measured = slowness(), measure()
        took.append(measured / max(before, slowness()))
    assert min(took) <= s_max, took


async def assert_within_async(s_max: float, measure: Callable[[], Awaitable[float]]) -> None:
    """The same, where measuring takes turns of the loop."""
    took: list[float] = []
    while len(took) < _TRIES and min(took, default=math.inf) > s_max:
        before, measured = slowness(), await measure()
        took.append(measured / max(before, slowness()))
    assert min(took) <= s_max, took


async def longest_turn_s(work: Awaitable[object]) -> float:
    """The longest turn of the loop until `work` is done: processor time, the system's for us included.

    The collector does not run meanwhile.
    """
    longest, working = 0.0, asyncio.ensure_future(work)
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
