"""Waiting for what another process or thread does.

Knows: a clock. Must never know: what is waited for.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

# Long enough for a machine that does other things as well.
PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.01


def until(holds: Callable[..., Any], what: str = "it never came to hold", s_max: float = PATIENCE_S) -> None:
    """Wait until it holds. Raises AssertionError with `what` after `s_max` seconds."""
    ends_s = time.monotonic() + s_max
    while not holds():
        assert time.monotonic() < ends_s, what
        time.sleep(_LOOK_S)


async def until_async(holds: Callable[..., Any], s_max: float = PATIENCE_S) -> None:
    """The same beside what goes on in this loop. Raises TimeoutError."""
    async with asyncio.timeout(s_max):
        while not holds():  # noqa: ASYNC110 - the other side is a process
            await asyncio.sleep(_LOOK_S)
