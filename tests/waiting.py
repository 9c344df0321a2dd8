"""Waiting for what another process or thread does.

Knows: a clock. Must never know: what is waited for.
"""

import asyncio
import inspect
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

# Long enough for a machine that does other things as well.
PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.01

T = TypeVar("T")


def until(
    holds: Callable[..., T | None], what: object = "it never came to hold", s_max: float = PATIENCE_S
) -> T:
    """Wait until it holds; what it gives then. Raises AssertionError with `what`, or what that gives, after
    `s_max` seconds.
    """
    ends_s = time.monotonic() + s_max
    while not (found := holds()):
        assert time.monotonic() < ends_s, what() if callable(what) else what
        time.sleep(_LOOK_S)
    return found


async def until_async(holds: Callable[..., Awaitable[Any] | object], s_max: float = PATIENCE_S) -> None:
    """The same beside what goes on in this loop; it may have to be awaited. Raises TimeoutError."""
    async with asyncio.timeout(s_max):
        while not (await found if inspect.isawaitable(found := holds()) else found):  # noqa: ASYNC110 - of a process
            await asyncio.sleep(_LOOK_S)


def completed(words: Sequence[str | Path], **how: Any) -> subprocess.CompletedProcess[str]:
    """What a program has come to; `how` are arguments of `subprocess.run`."""
    return subprocess.run(words, capture_output=True, text=True, check=False, **how)
