"""A read that waits: how it ends, and for whom it counts.

Knows: the engine's ways to end a wait. Must never know: sockets, bytes, which command it was.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from app.errors import RefusalError
from app.gateway import Gateway
from app.metrics.counters import entries_in
from app.tenants import Tenant
from engine import EngineError
from engine.commands import BlockingCommand
from engine.replies import Reply

# BLOCK 0 waits as long as the client does.
_FOREVER_MS: Final = 10 * 365 * 24 * 3_600_000


class BlockedRead:
    """One read, from its start to `done`, which gets the reply. Once abandoned, `done` is not called.
    It counts for `caller`; where too many wait already it gets what is there, or `too_many_waiters`.
    """

    def __init__(
        self,
        gateway: Gateway,
        tenant: Tenant,
        command: BlockingCommand,
        caller: str,
        done: Callable[[Reply | EngineError | RefusalError], None],
    ) -> None:
        self._done = done
        self._error: EngineError | None = None
        self._refusal: RefusalError | None = None
        try:
            self._unfollow = gateway.follow(gateway.waits, caller)
        except RefusalError as refusal:
            self._refusal = refusal
            self._unfollow = _uncounted
            command = msgspec.structs.replace(command, block_ms=None)
        self._handle = tenant.engine.read(command, self._answer)

    def end(self, error: EngineError | None = None) -> None:
        """End the wait as its time would, or with an error where nothing was found."""
        self._error = error
        self._handle.end()

    def abandon(self) -> None:
        """The client has left: it takes nothing, from now on."""
        self._unfollow()
        self.take_back()

    def take_back(self) -> None:
        """Undo what was answered, of which nothing was written yet."""
        self._handle.cancel()

    def _answer(self, replies: Sequence[Reply | EngineError]) -> None:
        self._unfollow()
        (reply,) = replies
        refusal = self._error or self._refusal
        found = isinstance(reply, EngineError) or entries_in(reply)
        self._done(reply if refusal is None or found else refusal)


def _uncounted() -> None:
    """A read that does not wait does not count."""


def with_time(command: BlockingCommand) -> BlockingCommand:
    """The command with the time of its BLOCK as the engine has it."""
    if command.block_ms is not None and 0 < command.block_ms < _FOREVER_MS:
        return command
    return msgspec.structs.replace(command, block_ms=_FOREVER_MS)
