"""Removes streams when they expire.

Knows: when the next stream expires, and that the wall clock may be set.
Must never know: what removing a stream means.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from engine.clock import Clock
from engine.lifetimes import Lifetimes

# The wall clock may jump, so it is read this often; and a log that has refused is tried again.
LOOK_S_MAX: Final = 1.0


class ExpiryTimer:
    """Calls `expire` when a stream expires.

    While that returns True, there are more: it is called again, with others' turns between. None means that
    the log refused.
    """

    def __init__(self, lifetimes: Lifetimes, clock: Clock, expire: Callable[[], bool | None]) -> None:
        self._lifetimes = lifetimes
        self._clock = clock
        self._expire = expire
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin. Streams that expired before are due at once."""
        self._lifetimes.on_earlier = self._set
        self._set()

    def cancel(self) -> None:
        """Stop."""
        self._lifetimes.on_earlier = None
        if self._handle is not None:
            self._handle.cancel()

    def _set(self) -> None:
        next_ms = self._lifetimes.next_ms
        if next_ms is not None:
            self._call_in(min(LOOK_S_MAX, max(0, next_ms - self._clock.wall_ms()) / 1000))

    def _call_in(self, delay_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._pass)

    def _pass(self) -> None:
        self._handle = None
        if self._lifetimes.is_due(self._clock.wall_ms()) and self._expire() is None:
            self._call_in(LOOK_S_MAX)
        else:
            self._set()
