"""A house over a backend: what a rule of the engine is asked in is the same over both.

Knows: a gateway's engine over servers, and when it goes through their streams.
Must never know: what is tested.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from engine import EngineError
from engine.commands.base import Command
from engine.commands.execution import Turn
from engine.commands.types import XRange
from engine.ids import ID_MAX, ID_MIN
from engine.replies import Entries, GroupRead, Reply
from tests.cluster.engines import opened
from tests.cluster.servers import Backend
from tests.engine.asking import reply_to, turn_of
from tests.engine.house import House

# The gateway that has it goes through the streams.
LEASE: Final = "weir/maintainer"
WAIT_MS_MAX: Final = 3_000
LATE_MS: Final = 100


class BackendHouse(House):
    """Its clock is the machine's: where time is to pass, it does. Close it at the end."""

    # Beside a limit of time, time goes on.
    margin_ms = 60_000

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        self._loop = asyncio.new_event_loop()
        self._gateway = AsyncExitStack()
        backend.call("FLUSHALL")
        backend.call("SET", LEASE, "another")
        self._open()

    def _open(self) -> None:
        engine = self._loop.run_until_complete(self._gateway.enter_async_context(opened(self._backend)))
        self.engine = engine

    @property
    def now_ms(self) -> int:
        """What the machine's clock says; a later time is waited for."""
        return time.time_ns() // 1_000_000

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        wait_ms = value - self.now_ms
        assert wait_ms <= WAIT_MS_MAX, "a server's clock is not moved by hand"
        if wait_ms > 0:
            self._loop.run_until_complete(asyncio.sleep(wait_ms / 1_000))

    def run(self, command: Command) -> object:
        """The reply of one command, None where it would wait."""
        asked = command.to_nonblocking()
        turn, events = Turn(self.keyspace, 0), self.engine.events
        events.expired, events.dead_lettered = turn.expired.extend, turn.dead_lettered.extend
        events.letters_refused, self.turn = turn.letters_refused.extend, turn
        reply = self._loop.run_until_complete(reply_to(self.engine, asked))
        if asked != command and isinstance(reply, GroupRead):
            return reply if reply.streams or reply.closed or reply.paused else None
        return reply

    def run_transaction(self, commands: Sequence[Command]) -> tuple[Sequence[Reply | EngineError], Turn]:
        """The turn of several."""
        replies = self._loop.run_until_complete(turn_of(self.engine, commands))
        return replies, Turn(self.keyspace, 0)

    def keep_house(self) -> int:
        """Go through the streams once: that is all there is to do."""
        self._backend.call("DEL", LEASE)
        self._loop.run_until_complete(self.engine.maintenance.step())
        self._backend.call("SET", LEASE, "another")
        return 1

    def wait_ms(self, ms: int) -> None:
        """Let time pass, and a moment for the gateway, which then looks at all streams."""
        self.pass_ms(ms + LATE_MS)
        self.keep_house()

    def live(self, stream: str) -> list[str]:
        return [str(entry_id) for entry_id in self.ids(stream)]

    def pairs(self, stream: str) -> list[list[tuple[str, bytes]]]:
        return [
            list(pairs)
            for _, pairs in self.of(Entries, XRange(stream=stream, start=ID_MIN, end=ID_MAX)).pairs()
        ]

    def restart(self) -> None:
        """Go on at another gateway."""
        self._loop.run_until_complete(self._gateway.aclose())
        self._open()

    def rewrite(self) -> None:
        self.restart()

    def check(self) -> None:
        """What is at a server, its own tests look at."""

    def close(self) -> None:
        self._loop.run_until_complete(self._gateway.aclose())
        self._loop.close()
