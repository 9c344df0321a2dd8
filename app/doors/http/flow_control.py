"""Pauses of a connection: of reading, while what came waits, and of writing, while the peer takes nothing.

Knows: a transport. Must never know: what is read or written.
"""

import asyncio
from collections.abc import Callable


class FlowControl:
    """Of one connection. Reading stays paused while `is_behind`."""

    def __init__(self, transport: asyncio.Transport, is_behind: Callable[[], bool]) -> None:
        self._transport = transport
        self._is_behind = is_behind
        self._is_reading = True
        self.is_write_paused = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    def pause_reading(self) -> None:
        """Stop reading from the peer."""
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, unless what came before still waits."""
        if not self._is_reading and not self._is_behind():
            self._is_reading = True
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """Note that the peer does not take what was written."""
        self.is_write_paused = True
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Note that it does, or that it has gone."""
        self.is_write_paused = False
        self._may_write.set()

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was written."""
        await self._may_write.wait()
