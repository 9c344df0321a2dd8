"""The commands: one function each, one way to run them.

Knows: the order of checks that all commands share. What they differ in, their classes say (`base`).
Must never know: asyncio, disk, wire formats.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, overload

import msgspec

from engine import errors
from engine.commands import (
    closing,
    dumping,
    durable,
    entries,
    expiring,
    group_reading,
    grouping,
    housekeeping,
    introspection,
    keys,
    managing,
    pending,
    planning,
    reading,
    redriving,
    scheduling,
    storing,
    types,
)
from engine.commands.base import BlockingCommand, Command, MemoryNeed
from engine.commands.registry import RUN, WAIT
from engine.commands.turn import TURN_WORK_US_MAX, Blocked, DirtyTurnError, Look, Turn, Unfinished, Unread
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.quotas import Quota
from engine.replies import Reply
from engine.runs import HeldRuns, NotInMemoryError

__all__ = [
    "READ_STREAMS_MAX",
    "Blocked",
    "DirtyTurnError",
    "Execution",
    "Turn",
    "Unfinished",
    "Unread",
    "block_group_read",
    "check_memory",
    "check_quotas",
    "execute",
    "execute_all",
    "execute_each",
    "give_up",
    "is_ready",
    "retry_at_ms",
]

# Each of them enters its functions in the registry.
_MODULES: Final = (
    closing,
    dumping,
    durable,
    entries,
    expiring,
    group_reading,
    grouping,
    housekeeping,
    introspection,
    keys,
    managing,
    pending,
    planning,
    reading,
    redriving,
    scheduling,
    storing,
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
    held: HeldRuns | None = None,
) -> Execution:
    """Run one command as a turn of its own. A refusal has changed nothing, nor has an exception, unless it is
    DirtyTurnError.

    Where the reply is `Unfinished` the command runs again, with its `so_far`. It may be `Unread` where `held`
    is given; else runs are read as they are looked at.
    """
    turn = Turn(keyspace, now_ms, so_far, may_continue=True)
    return Execution(_run(turn, command, held=held), turn)


@overload
def execute_all(
    keyspace: Keyspace, commands: Sequence[Command], now_ms: int
) -> tuple[Sequence[Reply | EngineError], Turn]: ...


@overload
def execute_all(
    keyspace: Keyspace, commands: Sequence[Command], now_ms: int, held: HeldRuns | None
) -> tuple[Sequence[Reply | Unread | EngineError], Turn]: ...


def execute_all(
    keyspace: Keyspace, commands: Sequence[Command], now_ms: int, held: HeldRuns | None = None
) -> tuple[Sequence[Reply | Unread | EngineError], Turn]:
    """Run a transaction: one turn, one reading of the clock, nothing between; a refusal does not end it,
    nothing waits. A guard that answers False does. Raises EngineError, with nothing run, if all together
    would take too long.

    Where runs that it `held` before are given, the only reply may be `Unread`: it runs again from its
    beginning. What it looks at after it has changed something is read then.
    """
    check_work(keyspace, commands)
    turn = Turn(keyspace, now_ms)
    replies: list[Reply | EngineError] = []
    for command in commands:
        reply = _run(turn, command.to_nonblocking(), held=held, may_wait=not turn.records)
        if isinstance(reply, Unread):
            return [reply], turn
        assert not isinstance(reply, Blocked | Unfinished), (
            "a transaction is one turn, in which nothing waits"
        )
        replies.append(reply)
        if command.guards and reply is False:
            break
    return replies, turn


def execute_each(
    keyspace: Keyspace,
    commands: Sequence[Command],
    now_ms: int,
    wakes: Callable[[Mapping[str, object]], bool],
    has_time: Callable[[], bool],
) -> tuple[list[Reply | Unfinished | EngineError], Turn]:
    """Run the first of these commands one after the other, in one turn as long as that makes no difference.

    It ends behind a command that signals streams that `wakes` readers, which come before the next command;
    behind one that used up some of what a turn may cost; behind one that is `Unfinished`; and behind the one
    that took the last of the time.
    """
    turn = Turn(keyspace, now_ms, may_continue=True)
    replies: list[Reply | Unfinished | EngineError] = []
    for command in commands:
        try:
            reply = _run(turn, command.to_nonblocking(), len(turn.records), {})
        except DirtyTurnError:
            raise
        except Exception:
            if not replies:
                raise
            # It has changed nothing. What ran before it counts; it fails again as the first of the next turn.
            break
        assert not isinstance(reply, Blocked), "it does not wait"
        replies.append(reply)
        if isinstance(reply, Unfinished) or (turn.signalled and wakes(turn.signalled)) or not turn.renew():
            break
        if not has_time():
            break
    return replies, turn


def _run(
    turn: Turn,
    command: Command,
    records_before: int = 0,
    held: HeldRuns | None = None,
    *,
    may_wait: bool = True,
) -> Reply | Blocked | Unfinished | EngineError:
    runs = turn.keyspace.runs
    if not runs.files:
        return _run_command(turn, command, records_before)
    began_at = len(turn.records) if held is not None and may_wait else -1
    runs.begin_turn({} if held is None else held, lambda: len(turn.records) == began_at)
    try:
        return _run_command(turn, command, records_before)
    except NotInMemoryError as missing:
        assert held is not None, "only what may wait does"
        return Unread(turn.so_far, missing.runs, held)
    finally:
        runs.end_turn()


def _run_command(
    turn: Turn, command: Command, records_before: int
) -> Reply | Blocked | Unfinished | EngineError:
    try:
        if turn.keyspace.lifetimes.is_due(turn.now_ms):
            for stream in command.depends_on() or ():
                turn.expire(stream)
        if type(command) in _BOUNDED:
            _check_bounds(turn, command)
        reply = RUN[type(command)](turn, command)
        if command.touches:
            turn.touch(command.named_streams() or ())
        return reply
    except EngineError as refusal:
        return refusal
    except NotInMemoryError:
        raise
    except Exception as error:
        if len(turn.records) > records_before:
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
    if named:
        turn.ask_named(named)


def check_memory(keyspace: Keyspace, commands: Sequence[Command]) -> None:
    """Refuse all of them, before anything is changed, if there is no memory for one."""
    memory = keyspace.memory
    if not memory.is_full:
        return
    refused = {MemoryNeed.ADDS, MemoryNeed.DELIVERS} if memory.is_over else {MemoryNeed.ADDS}
    if any(command.memory_need(keyspace) in refused for command in commands):
        assert memory.bytes_max is not None, "only a limit is reached"
        raise errors.memory_full(memory.used_bytes, memory.bytes_max)


def check_work(keyspace: Keyspace, commands: Sequence[Command]) -> None:
    """Refuse a transaction that would take too long: nothing can cut it. One command alone has bounds of its
    own.
    """
    if len(commands) == 1:
        return
    took_us = sum([command.work_us(keyspace) for command in commands])
    if took_us > TURN_WORK_US_MAX:
        raise errors.too_much_work(took_us, TURN_WORK_US_MAX)


def check_quotas(keyspace: Keyspace, commands: Sequence[Command], quotas: Sequence[Quota]) -> None:
    """Refuse all of them, before anything is changed, if they need more than one of these quotas has left."""
    for quota in quotas:
        grown = {name for command in commands for name in command.grown_streams(keyspace, quota)}
        if not grown:
            continue
        used = keyspace.quotas.of(quota)
        new = sum(name not in keyspace.keys for name in grown)
        if quota.streams_max is not None and new and used.parts + new > quota.streams_max:
            raise errors.quota_exceeded(quota.pattern, "streams_max", used.parts, quota.streams_max)
        if quota.bytes_max is not None and used.bytes >= quota.bytes_max:
            raise errors.quota_exceeded(quota.pattern, "bytes_max", used.bytes, quota.bytes_max)


# --- reads that wait ----------------------------------------------------------------------------------------


def is_ready(keyspace: Keyspace, blocked: Blocked, now_ms: int, queue: str | None = None) -> bool:
    """Whether a blocked read may find something by now: in the queue that was signalled, None for any."""
    try:
        return WAIT[type(blocked.command)].is_ready(Look(keyspace, now_ms), blocked.command, queue)
    except EngineError:
        # The disk does not give what would tell: the read itself is refused for that.
        return True


def give_up(keyspace: Keyspace, blocked: Blocked, now_ms: int) -> Reply:
    """The reply of a blocked read whose time is over: what it found, which is nothing."""
    return WAIT[type(blocked.command)].end(Turn(keyspace, now_ms), blocked.command)


def block_group_read(command: types.XReadGroup) -> Blocked:
    """A read of a group as one that waits."""
    return group_reading.block(command)


def retry_at_ms(keyspace: Keyspace, blocked: Blocked, now_ms: int) -> int | None:
    """When (wall clock) a blocked read may find something without any write, None for never."""
    try:
        return WAIT[type(blocked.command)].retry_at_ms(Look(keyspace, now_ms), blocked.command)
    except EngineError:
        return now_ms
