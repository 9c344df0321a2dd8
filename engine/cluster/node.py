"""The connections to one server.

Knows: which connection a request takes, how several commands become one turn, what ASKING is for.
Must never know: which streams the server has, what a reply means.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from engine.cluster.figures import BackendFigures
from engine.cluster.replication import BackendDurability, Confirmed, GroupCommit
from engine.cluster.routing import Lane
from engine.cluster.wire import Address, Done, ServerAccess, ServerConnection, ServerError, Words

MEMORY: Final = BackendDurability()
# Before the reason for which EXEC runs nothing, where its commands were taken.
_DISCARDED: Final = "EXECABORT Transaction discarded because of: "
# The part of the time for a reply after which WAIT ends: the writes behind it need the rest.
_WAIT_SHARE: Final = 0.5


class Node:
    """One server: a connection for each lane. `on_lost` is called when one of them is lost or not made."""

    def __init__(
        self,
        address: Address,
        access: ServerAccess,
        timeout_s: float,
        durability: BackendDurability = MEMORY,
        on_lost: Callable[[], None] = lambda: None,
        figures: BackendFigures | None = None,
    ) -> None:
        self.address: Final = address
        # When something was sent last, by the clock of the loop.
        self.used_s = 0.0
        self._access, self._timeout_s, self._on_lost = access, timeout_s, on_lost
        self._figures = figures or BackendFigures()
        self._loop = asyncio.get_running_loop()
        writes = self._connection(self._lose_writes)
        wait_ms = int(timeout_s * _WAIT_SHARE * 1000)
        self._commits = GroupCommit(writes.send, durability, wait_ms, self._figures.wait_seconds)
        self._lanes: dict[Lane, ServerConnection] = {
            Lane.WRITE: writes,
            Lane.GROUP: self._connection(self._lose),
            Lane.READ: self._connection(self._lose),
        }

    def _connection(self, on_down: Callable[[str], None]) -> ServerConnection:
        return ServerConnection(
            self.address, self._access, self._timeout_s, on_down=on_down, figures=self._figures
        )

    def _lose_writes(self, reason: str) -> None:
        self._commits.lose(reason)
        self._on_lost()

    def _lose(self, _: str) -> None:
        self._on_lost()

    def start(self) -> None:
        """Begin to connect."""
        self.used_s = self._loop.time()
        for connection in self._lanes.values():
            connection.start()

    async def close(self) -> None:
        """End all of them."""
        for connection in self._lanes.values():
            await connection.close()

    def listen(self, on_up: Callable[[], None], on_push: Callable[[list[object]], None]) -> ServerConnection:
        """Another connection, for its notifications."""
        connection = ServerConnection(
            self.address, self._access, self._timeout_s, on_up=on_up, on_push=on_push, figures=self._figures
        )
        connection.start()
        return connection

    @property
    def failure(self) -> str | None:
        """Why it cannot be used; None while it can."""
        return next((lane.failure for lane in self._lanes.values() if lane.failure is not None), None)

    def send(self, commands: Sequence[Words], lane: Lane, done: Done, *, asking: bool = False) -> None:
        """Send commands, several of them as a transaction, and call `done` with the list of results.

        `asking`: another server has sent them here, though it still has the slot (ASK).
        """
        self.used_s = self._loop.time()
        connection = self._lanes[lane]
        if len(commands) == 1 and not asking:
            connection.send(commands[0], lambda result: done([result]))
            return
        together = list(commands) if len(commands) == 1 else [("MULTI",), *commands, ("EXEC",)]
        # It counts for the next command, and in a transaction for all of it.
        before: list[Words] = [("ASKING",)] if asking else []
        is_turn = len(commands) > 1

        def take(results: Sequence[object]) -> None:
            results = _of_exec(results[len(before) :]) if is_turn else results[len(before) :]
            if lane is Lane.READ and is_turn and not asking and _has_no_memory(results):
                # Redis 7.0 queues nothing then. Sent together, reads are one turn but for rare cases.
                connection.send_together(commands, done)
            else:
                done(results)

        connection.send_together([*before, *together], take)

    def confirm(self, done: Confirmed) -> None:
        """Call back once the writes whose results have come are as durable as promised: see `GroupCommit`."""
        self._commits.confirm(done)


def _has_no_memory(results: Sequence[object]) -> bool:
    return any(isinstance(result, ServerError) and result.code == "OOM" for result in results)


def _of_exec(results: Sequence[object]) -> Sequence[object]:
    """The results of the commands within: those of EXEC, or why it did not run."""
    executed = results[-1]
    if isinstance(executed, list):
        return executed
    if isinstance(executed, ServerError) and executed.text.startswith(_DISCARDED):
        return [ServerError(executed.text.removeprefix(_DISCARDED).removeprefix("-"))]
    # What was refused when it was queued says more than EXECABORT.
    return [result for result in results if isinstance(result, Exception)] or [executed]
