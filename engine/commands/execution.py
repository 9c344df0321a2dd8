"""The commands: one function each, one way to run them.

    due streams expire → bounds → select │ looks into nodes, may say that they are not in memory
                                  emit   │ looks into none, and cannot fail

Knows: the order of checks that all commands share. What they differ in, their classes say (`base`).
Must never know: asyncio, disk, wire formats.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from engine import errors
from engine.commands import (  # noqa: F401 - each enters its functions in the registry
    closing,
    deferring,
    durable,
    entries,
    examining,
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
from engine.commands.registry import RUN, STEPS, WAIT
from engine.commands.turn import (
    TURN_WORK_US_MAX,
    Blocked,
    DirtyTurnError,
    Look,
    Missing,
    Turn,
    Unfinished,
)
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.quotas import Quota
from engine.replies import Reply
from engine.runs import HeldRuns, NotInMemoryError, Place, Run

__all__ = [
    "READ_STREAMS_MAX",
    "RUN",
    "Blocked",
    "DirtyTurnError",
    "Execution",
    "Missing",
    "Turn",
    "Unfinished",
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

T = TypeVar("T")

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

    Where the reply is `Unfinished` the command runs again, with its `so_far`. It may be `Missing` where
    `held` is given; else runs are read as they are looked at.
    """
    turn = Turn(keyspace, now_ms, so_far, may_continue=True)
    if held is not None:
        turn.held, turn.waits = held, True
    return Execution(_run(turn, command), turn)


def execute_all(
    keyspace: Keyspace,
    commands: Sequence[Command],
    now_ms: int,
    held: HeldRuns | None = None,
    *,
    looked: bool = False,
) -> tuple[Sequence[Any], Turn]:
    """Run a transaction: one turn, one reading of the clock, nothing between; a refusal does not end it,
    nothing waits. A guard that answers False does. Raises EngineError, with nothing run, if all together
    would take too long.

    Where runs that it `held` before are given, the only reply may be `Missing`: it runs again from its
    beginning, having `looked` if its `so_far` says so. What a command looks at because of what one before it
    has changed is read then.
    """
    check_work(keyspace, commands)
    turn, replies = Turn(keyspace, now_ms), list[Any]()
    if held is not None:
        turn.held, turn.waits = held, len(commands) == 1 or not any(command.changes for command in commands)
        looking = [each for each in commands if _may_look(keyspace, each)]
        if looking and not looked and not turn.waits:
            return [_look_at_all(Turn(keyspace, now_ms), looking, held)], turn
    for command in commands:
        reply = _run(turn, command.to_nonblocking())
        if isinstance(reply, Missing):
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
        turn.held, turn.waits = {}, True
        try:
            reply = _run(turn, command.to_nonblocking(), len(turn.records))
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


def _look_at_all(turn: Turn, commands: Sequence[Command], held: HeldRuns) -> Missing:
    """What the commands look into, and is not in memory: once something has changed, none of them can wait
    for the disk. Each selects as if the others did nothing, which mostly leads to the same runs. The turn is
    for the cost of it: others have theirs before the commands run.
    """
    turn.held, turn.waits = held, True
    missing: dict[Place, Run] = {}
    for command in commands:
        run = partial(RUN[type(command)], turn, command.to_nonblocking())
        try:
            if type(command) in _BOUNDED:
                _check_bounds(turn, command)
            turn.look(run().__next__ if type(command) in STEPS else run)
        except NotInMemoryError as unread:
            missing |= {run.place: run for run in unread.runs}
        except (EngineError, StopIteration):
            pass
    return Missing(so_far=not missing, runs=list(missing.values()), held=held)


def _may_look(keyspace: Keyspace, command: Command) -> bool:
    """Whether it may look into runs."""
    if not keyspace.runs.files or (command.changes and type(command) not in STEPS):
        return False
    streams = map(keyspace.find, command.depends_on() or ())
    return any(key is not None and key.stream.nodes.runs for key in streams)


def _run(turn: Turn, command: Command, records_before: int = 0) -> Reply | Blocked | Unfinished | EngineError:
    kind = type(command)
    reply: Any
    try:
        if turn.keyspace.lifetimes.is_due(turn.now_ms):
            # It would be so without the command, which may still wait.
            for stream in command.depends_on() or ():
                turn.expire(stream)
        if kind in _BOUNDED:
            _check_bounds(turn, command)
        if kind in STEPS:
            reply = turn.run(RUN[kind](turn, command))
        elif command.changes:
            reply = RUN[kind](turn, command)
        else:
            reply = turn.look(partial(RUN[kind], turn, command))
        if command.touches:
            turn.touch(command.named_streams() or ())
    except EngineError as refusal:
        reply = refusal
    except NotInMemoryError as missing:
        reply = Missing(turn.so_far, missing.runs, turn.held)
    except Exception as error:
        if len(turn.records) > records_before:
            raise DirtyTurnError from error
        raise
    return reply  # type: ignore[no-any-return]


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
    if len(commands) > 1:
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
    look = partial(WAIT[type(blocked.command)].is_ready, Look(keyspace, now_ms), blocked.command, queue)
    try:
        return _look(keyspace, look, {})
    except (EngineError, NotInMemoryError):
        # The read itself is refused for that, or waits for the disk.
        return True


def give_up(
    keyspace: Keyspace, blocked: Blocked, now_ms: int, held: HeldRuns
) -> Reply | Missing | EngineError:
    """The reply of a blocked read whose time is over: what it found, which is nothing."""
    end = partial(WAIT[type(blocked.command)].end, Turn(keyspace, now_ms), blocked.command)
    try:
        return _look(keyspace, end, held)
    except EngineError as refusal:
        return refusal
    except NotInMemoryError as missing:
        return Missing(None, missing.runs, held)


def _look(keyspace: Keyspace, look: Callable[[], T], held: HeldRuns) -> T:
    """Raises NotInMemoryError where the look is into a run that is not in memory."""
    return keyspace.runs.look(held, look, waits=True) if keyspace.runs.files else look()


def block_group_read(command: types.XReadGroup) -> Blocked:
    """A read of a group as one that waits."""
    return group_reading.block(command)


def retry_at_ms(keyspace: Keyspace, blocked: Blocked, now_ms: int) -> int | None:
    """When (wall clock) a blocked read may find something without any write, None for never."""
    look = partial(WAIT[type(blocked.command)].retry_at_ms, Look(keyspace, now_ms), blocked.command)
    try:
        return _look(keyspace, look, {})
    except (EngineError, NotInMemoryError):
        return now_ms
