"""Engines over a backend, as its tests open them.

Knows: how one is opened and asked. Must never know: what is tested.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from engine import EngineError, EngineProtocol, SystemClock, entries
from engine.cluster import ClusterEngine, parse_durability
from engine.commands.base import Command
from tests.cluster.servers import Backend
from tests.engine.asking import reply_to

TIMEOUT_S: Final = 5.0
BODY: Final = entries.body([("a", "1")])


class AdjustedClock(SystemClock):
    """Its monotonic time is moved by hand."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@asynccontextmanager
async def opened(
    server: Backend,
    timeout_s: float = TIMEOUT_S,
    clock: SystemClock | None = None,
    durability: str = "memory",
    poll_s: float = 5.0,
) -> AsyncIterator[ClusterEngine]:
    """An engine over a server or a cluster, which is closed at the end."""
    topology = server.topology(timeout_s, parse_durability(durability))
    engine = ClusterEngine(topology, clock or SystemClock(), poll_s)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def refused(engine: EngineProtocol, command: Command) -> EngineError:
    """The refusal of a command. Fails if it is done."""
    with pytest.raises(EngineError) as refusal:
        await reply_to(engine, command)
    return refusal.value


async def attempt(engine: EngineProtocol, command: Command) -> object:
    """The reply of a command, or its refusal."""
    try:
        return await reply_to(engine, command)
    except EngineError as refusal:
        return refusal
