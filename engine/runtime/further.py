"""Further turns: long work of all callers goes on one piece a cycle of the event loop.

Knows: what waits, and in which order. Must never know: what the work is.

A piece takes some milliseconds. If each of many goes on in each cycle, all others wait for all of them.
"""

import asyncio
from collections import deque


class FurtherTurns:
    """In each cycle one of those that wait goes on: the one that has waited for longest."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for a cycle in which nothing else goes on."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._pass, loop)
        self._waiting.append(turn)
        await turn

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            # A caller that is cancelled leaves its place.
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            loop.call_soon(self._pass, loop)
