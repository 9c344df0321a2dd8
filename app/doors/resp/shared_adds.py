"""Plain XADDs that many clients send within one cycle of the loop: one command of the engine for each stream.

Knows: which entries are stored together, and whose the IDs are that they get.
Must never know: bytes, connections, callers.

    client 1: XADD s ─┐                       ┌─► 5-0
    client 2: XADD s ─┼─► AddEach s, 3 bodies ┼─► 5-1
    client 3: XADD s ─┘   one turn, one frame └─► 5-2

A turn and its frame cost as much as five entries. No client has an answer yet, so any order is right; each
has only one run under way, so its own commands keep theirs.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from app.redis.runs import RUN_COMMANDS_MAX, RUN_ENTRY_BYTES_MAX
from engine import CommandEngine, EngineError, errors
from engine.commands import AddEach
from engine.replies import Added, Reply

# What follows from an answer takes up to 2 ms: others have their turns in between.
_ANSWERS_AT_ONCE_MAX: Final = 50
# Refusals before anything has changed, for which all together may be too many.
_TOO_MANY_TOGETHER: Final = frozenset({"memory_full", "storage_full"})

Replies = Sequence[Reply | EngineError]


# One client's entries, and what gets the reply to them.
_Share = tuple[Sequence[bytes], Callable[[Replies], None]]


class SharedAdds:
    """Entries that were added since the last turn, by engine and stream."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._shares: dict[tuple[CommandEngine, str], list[_Share]] = {}
        self._entries = self._bytes = 0

    def add(
        self, engine: CommandEngine, stream: str, bodies: Sequence[bytes], done: Callable[[Replies], None]
    ) -> None:
        """Store entries at the end of this cycle; `done` gets the one reply to an AddEach of them."""
        size = sum(map(len, bodies))
        if self._entries + len(bodies) > RUN_COMMANDS_MAX or self._bytes + size > RUN_ENTRY_BYTES_MAX:
            self._submit()
        if not self._shares:
            self._loop.call_soon(self._submit)
        self._shares.setdefault((engine, stream), []).append((bodies, done))
        self._entries += len(bodies)
        self._bytes += size
        if self._entries >= RUN_COMMANDS_MAX or self._bytes >= RUN_ENTRY_BYTES_MAX:
            self._submit()

    def _submit(self) -> None:
        shares, self._shares = self._shares, {}
        self._entries = self._bytes = 0
        for (engine, stream), given in shares.items():
            _submit_into(engine, stream, given)


def _submit_into(engine: CommandEngine, stream: str, shares: Sequence[_Share]) -> None:
    command = AddEach(stream=stream, bodies=[body for bodies, _ in shares for body in bodies])
    try:
        engine.submit_each([command], partial(_answer, engine, stream, shares))
    except Exception as error:  # noqa: BLE001 - the other streams' clients must have their answers
        _report(error)
        _reply_to([(share, errors.internal()) for share in shares])


def _answer(engine: CommandEngine, stream: str, shares: Sequence[_Share], replies: Replies) -> None:
    (reply,) = replies
    if isinstance(reply, EngineError) and reply.code in _TOO_MANY_TOGETHER and len(shares) > 1:
        for share in shares:
            _submit_into(engine, stream, [share])
        return
    at, answers = 0, list[tuple[_Share, Reply | EngineError]]()
    for share in shares:
        # The IDs of the stream may not suffice for all.
        upto = at + len(share[0])
        answers.append((share, Added(reply.ids[at:upto]) if isinstance(reply, Added) else reply))
        at = upto
    _reply_to(answers)


def _reply_to(answers: Sequence[tuple[_Share, Reply | EngineError]]) -> None:
    for (_, done), reply in answers[:_ANSWERS_AT_ONCE_MAX]:
        try:
            done([reply])
        except Exception as error:  # noqa: BLE001 - the other clients must have their answers
            _report(error)
    if len(answers) > _ANSWERS_AT_ONCE_MAX:
        asyncio.get_running_loop().call_soon(_reply_to, answers[_ANSWERS_AT_ONCE_MAX:])


def _report(error: Exception) -> None:
    context = {"message": "a command of several clients failed", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
