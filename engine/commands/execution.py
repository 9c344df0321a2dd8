"""The commands: one function each, one way to run them.

Knows: the order of checks that all commands share. What they differ in, their classes say (`base`).
Must never know: asyncio, disk, wire formats.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from engine import errors
from engine.commands import (
    entries,
    grouping,
    housekeeping,
    introspection,
    keys,
    managing,
    pending,
    planning,
    reading,
    redriving,
    types,
)
from engine.commands.base import BlockingCommand, Command, MemoryNeed
from engine.commands.registry import RUN, WAIT
from engine.commands.turn import Blocked, DirtyTurnError, Turn, Unfinished
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.replies import Reply

__all__ = [
    "READ_STREAMS_MAX",
    "Blocked",
    "DirtyTurnError",
    "Execution",
    "Turn",
    "Unfinished",
    "block_group_read",
    "check_memory",
    "execute",
    "execute_all",
    "give_up",
    "is_ready",
    "retry_at_ms",
]

# Each of them enters its functions in the registry.
_MODULES: Final = (
    entries,
    grouping,
    housekeeping,
    introspection,
    keys,
    managing,
    pending,
    planning,
    reading,
    redriving,
)

# The streams of one read.
READ_STREAMS_MAX: Final = 1_000


class Execution(msgspec.Struct, frozen=True):
    """What a turn leaves: the answer, or the refusal that stands for it, and the turn with its records and
    signals.
    """

    reply: Reply | Blocked | Unfinished | EngineError
    turn: Turn


def execute(
    keyspace: Keyspace,
    command: Command,
    now_ms: int,
    so_far: Any = None,  # noqa: ANN401 - each command has its own
) -> Execution:
    """Run one command as a turn of its own. A refusal has changed nothing, nor has an exception, unless it is
    DirtyTurnError.

    Where the reply is `Unfinished` the command runs again, with its `so_far`.
    """
    turn = Turn(keyspace, now_ms, so_far, may_continue=True)
    return Execution(_run(turn, command), turn)


def execute_all(
    keyspace: Keyspace, commands: Sequence[Command], now_ms: int
) -> tuple[list[Reply | EngineError], Turn]:
    """Run a transaction: one turn, one reading of the clock, nothing between; a refusal does not end it,
    nothing waits.
    """
    turn = Turn(keyspace, now_ms)
    replies: list[Reply | EngineError] = []
    for command in commands:
        reply = _run(turn, command.to_nonblocking())
        assert not isinstance(reply, Blocked | Unfinished), (
            "a transaction is one turn, in which nothing waits"
        )
        replies.append(reply)
    return replies, turn


def _run(turn: Turn, command: Command) -> Reply | Blocked | Unfinished | EngineError:
    try:
        if type(command) in _BOUNDED:
            _check_bounds(turn, command)
        return RUN[type(command)](turn, command)
    except EngineError as refusal:
        return refusal
    except Exception as error:
        if turn.records:
            raise DirtyTurnError from error
        raise


_BOUNDED: Final = frozenset(
    kind for kind in RUN if issubclass(kind, BlockingCommand) or kind.named_ids is not Command.named_ids
)


def _check_bounds(turn: Turn, command: Command) -> None:
    """Refuse what names more than one turn can log, or read, in bounded time."""
    if isinstance(command, BlockingCommand) and len(command.streams) > READ_STREAMS_MAX:
        raise errors.invalid(f"ERR a command reads at most {READ_STREAMS_MAX} streams")
    named = len(command.named_ids())
    if command.looks_up:
        turn.ask_lookups(named)
    turn.ask_room(named)


def check_memory(keyspace: Keyspace, commands: Sequence[Command]) -> None:
    """Refuse all of them, before anything is changed, if one needs memory that there is not."""
    memory = keyspace.memory
    if not memory.is_full:
        return
    refused = {MemoryNeed.ADDS, MemoryNeed.DELIVERS} if memory.is_over else {MemoryNeed.ADDS}
    if any(command.memory_need(keyspace) in refused for command in commands):
        assert memory.bytes_max is not None, "only a limit is reached"
        raise errors.memory_full(memory.used_bytes, memory.bytes_max)


# --- reads that wait ----------------------------------------------------------------------------------------


def is_ready(keyspace: Keyspace, blocked: Blocked, now_ms: int, queue: str | None = None) -> bool:
    """Whether a blocked read may find something by now: in the queue that was signalled, None for any."""
    return WAIT[type(blocked.command)].is_ready(Turn(keyspace, now_ms), blocked.command, queue)


def give_up(keyspace: Keyspace, blocked: Blocked, now_ms: int) -> Reply:
    """The reply of a blocked read whose time is over: what it found, which is nothing."""
    return WAIT[type(blocked.command)].end(Turn(keyspace, now_ms), blocked.command)


def block_group_read(command: types.XReadGroup) -> Blocked:
    """A read of a group as one that waits."""
    return reading.block(command)


def retry_at_ms(keyspace: Keyspace, blocked: Blocked, now_ms: int) -> int | None:
    """When (wall clock) a blocked read may find something without any write, None for never."""
    return WAIT[type(blocked.command)].retry_at_ms(Turn(keyspace, now_ms), blocked.command)
