"""A read that waits: how it ends, and what happens to entries for a client that has left.

Knows: the engine's ways to end a wait. Must never know: sockets, bytes, which command it was.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from app.errors import RefusalError
from app.gateway import Gateway
from app.metrics.counters import entries_in
from app.tenants import Tenant
from engine import EngineError, errors
from engine.commands import BlockingCommand, XReadGroup
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
        self._gateway = gateway
        self._prefix = tenant.prefix
        self._command = command
        self._done = done
        self._abandoned = False
        self._error: EngineError | None = None
        self._refusal: RefusalError | None = None
        try:
            self._unfollow = gateway.follow(gateway.waits, caller)
        except RefusalError as refusal:
            self._refusal = refusal
            self._unfollow = _uncounted
            command = msgspec.structs.replace(command, block_ms=None)
        self._until: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(tenant.engine.execute(command, until=self._until))
        self._task.add_done_callback(self._answer)

    def end(self, error: EngineError | None = None) -> None:
        """End the wait as its time would, or with an error."""
        self._error = error
        if not self._until.done():
            self._until.set_result(None)

    def abandon(self) -> None:
        """The client has left: what it would have got is given back."""
        self._abandoned = True
        self.end()

    def _answer(self, task: asyncio.Task[Reply]) -> None:
        self._unfollow()
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, EngineError):
            context = {"message": "a read that waited failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            error = errors.internal()
        reply: Reply | EngineError = task.result() if error is None else error
        if self._abandoned:
            if isinstance(self._command, XReadGroup):
                self._gateway.give_back(self._prefix, self._command, reply)
        elif self._refusal is not None and not isinstance(reply, EngineError) and not entries_in(reply):
            self._done(self._refusal)
        else:
            self._done(reply if self._error is None else self._error)


def _uncounted() -> None:
    """A read that does not wait does not count."""


def with_time(command: BlockingCommand) -> BlockingCommand:
    """The command with the time of its BLOCK as the engine has it."""
    if command.block_ms is not None and 0 < command.block_ms < _FOREVER_MS:
        return command
    return msgspec.structs.replace(command, block_ms=_FOREVER_MS)
