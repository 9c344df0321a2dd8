"""Reads of streams that wait: each looks again when one of its streams may have changed.

Knows: what wakes a read, what ends its wait. Must never know: how a read is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from engine import errors
from engine.cluster.wakeups import Wakeups
from engine.commands.base import BlockingCommand
from engine.commands.reading import may_end
from engine.commands.types import XRead, XReadGroup
from engine.replies import GroupRead, Planned, Reply, StreamsRead

# Runs a read that does not wait. Raises EngineError.
Run = Callable[[BlockingCommand], Awaitable[Reply]]


class StreamWaits:
    """All such reads of this process. Belongs to one event loop."""

    def __init__(self, wakeups: Wakeups, run: Run) -> None:
        self._wakeups = wakeups
        self._run = run
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = 0

    def __len__(self) -> int:
        """How many reads wait."""
        return self._waiting

    def end(self) -> None:
        """Refuse every read that waits, now and from now on, with `draining`."""
        if not self._ending.done():
            self._ending.set_result(None)

    async def read(self, command: BlockingCommand, ended: asyncio.Future[None]) -> Reply:
        """Run a read each time it is woken, until it finds something, its time is over, or it is `ended`.
        Raises EngineError.
        """
        if command.block_ms is None:
            return await self._run(command)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + command.block_ms / 1000
        woken = asyncio.Event()
        watches = [self._wakeups.watch(name, woken.set) for name in dict.fromkeys(command.named_streams())]
        waits = 0
        try:
            while True:
                woken.clear()
                reply = await self._run(command.to_nonblocking())
                left_s = ends_at - loop.time()
                if _has_found(reply) or _has_ended(command, reply) or left_s <= 0 or ended.done():
                    return reply
                if self._ending.done():
                    raise errors.closing()
                if isinstance(reply, StreamsRead):
                    known = reply.generations or None
                    command = msgspec.structs.replace(command, streams=reply.cursors, known=known)
                self._waiting += 1 - waits
                waits = 1
                waking = loop.create_task(woken.wait())
                ends: set[asyncio.Future[Any]] = {waking, self._ending, ended}
                try:
                    await asyncio.wait(ends, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waking.cancel()
        finally:
            self._waiting -= waits
            for watch in watches:
                watch.close()


def _has_ended(command: BlockingCommand, reply: Reply) -> bool:
    """Whether all its streams are closed, and it waits for no more than that."""
    if not isinstance(command, XRead | XReadGroup) or not isinstance(reply, StreamsRead | GroupRead):
        return False
    return may_end(command.until, reply.closed, len(command.streams))


def _has_found(reply: Reply) -> bool:
    if isinstance(reply, StreamsRead | GroupRead):
        return bool(reply.streams)
    if isinstance(reply, Planned):
        return any(stream.count for stream in reply.streams)
    return True
