"""The commands: one function each, one way to run them.

Knows: the order of checks that all commands share. What they differ in, their classes say (`base`).
Must never know: asyncio, disk, wire formats.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, overload

import msgspec

from engine import errors
from engine.commands import (  # noqa: F401 - each enters its functions in the registry
    closing,
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
from engine.commands.turn import (
    TURN_WORK_US_MAX,
    Blocked,
    DirtyTurnError,
    Look,
    Rehearsal,
    Turn,
    Unfinished,
    Unread,
    WouldChangeError,
)
from engine.errors import EngineError
from engine.keyspace import Keyspace
from engine.quotas import Quota
from engine.replies import Reply
from engine.runs import HeldRuns, LoadedRun, NotInMemoryError, Place, Run

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

T = TypeVar("T")

# The streams of one read.
READ_STREAMS_MAX: Final = 1_000
# Rehearsals of a transaction: others may change what it looks into as often as it is read.
_REHEARSALS_MAX: Final = 24


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
    keyspace: Keyspace,
    commands: Sequence[Command],
    now_ms: int,
    held: HeldRuns | None,
    rehearsals: int = 0,
) -> tuple[Sequence[Reply | Unread | EngineError], Turn]: ...


def execute_all(
    keyspace: Keyspace,
    commands: Sequence[Command],
    now_ms: int,
    held: HeldRuns | None = None,
    rehearsals: int = 0,
) -> tuple[Sequence[Reply | Unread | EngineError], Turn]:
    """Run a transaction: one turn, one reading of the clock, nothing between; a refusal does not end it,
    nothing waits. A guard that answers False does. Raises EngineError, with nothing run, if all together
    would take too long.

    Where runs that it `held` before are given, the only reply may be `Unread`: it runs again from its
    beginning, with as many `rehearsals` as its `so_far` says. What a command looks at because of what one
    before it has changed is read then.
    """
    took_us = check_work(keyspace, commands)
    turn = Turn(keyspace, now_ms)
    if held is not None and len(commands) > 1 and keyspace.runs.files and rehearsals < _REHEARSALS_MAX:
        unread = _rehearse(Rehearsal(keyspace, now_ms), commands, held, rehearsals, took_us)
        if unread is not None:
            return [unread], turn
    replies: list[Reply | EngineError] = []
    for command in commands:
        reply = _run(turn, command.to_nonblocking(), held=held, goes_on=True)
        if isinstance(reply, Unread):
            return [Unread(rehearsals, reply.runs, reply.held)], turn
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


def _rehearse(
    turn: Rehearsal, commands: Sequence[Command], held: HeldRuns, rehearsals: int, took_us: int
) -> Unread | None:
    """What the commands behind the first one that may change something look into, and is not in memory: once
    something has changed, none of them can wait for the disk. Each is run as if the others had done nothing,
    which mostly leads to the same runs, or to the ones behind these.

    After a long rehearsal the others have a turn, too, before it runs.
    """
    keyspace, runs = turn.keyspace, turn.keyspace.runs
    first = next((place for place, command in enumerate(commands) if command.changes), len(commands))
    behind = [each for each in commands[first + 1 :] if each.may_look() and _has_runs(keyspace, each)]
    missing: dict[Place, Run] = {}
    for command in behind:
        runs.begin_turn(held, lambda: True)
        try:
            _run_command(turn, command.to_nonblocking(), 0)
        except NotInMemoryError as unread:
            missing |= {run.place: run for run in unread.runs}
        except WouldChangeError:
            pass
        finally:
            runs.end_turn()
    if behind and not missing:
        names = {name for command in commands for name in command.depends_on() or ()}
        missing = {run.place: run for name in names for run in _next_runs(keyspace, name, held)}
    if missing:
        return Unread(rehearsals + 1, list(missing.values()), held)
    if behind and (turn.was_long or took_us * 2 > TURN_WORK_US_MAX):
        return Unread(_REHEARSALS_MAX, (), held)
    return None


def _has_runs(keyspace: Keyspace, command: Command) -> bool:
    """Whether a stream that it names has runs."""
    streams = map(keyspace.find, command.depends_on() or ())
    return any(key is not None and key.stream.nodes.runs for key in streams)


def _next_runs(keyspace: Keyspace, name: str, held: HeldRuns) -> list[Run]:
    """The runs of a stream behind those that are held, as far as they are not in memory."""
    key = keyspace.find(name)
    if key is None or not key.stream.nodes.runs:
        return []
    firsts = [loaded.first for loaded in held.values() if isinstance(loaded, LoadedRun)]
    there = [part for part in map(key.stream.nodes.get, firsts) if isinstance(part, Run)]
    following = [next(key.stream.parts_from(run.last + 1), None) for run in there if run.place in held]
    return [part for part in following if isinstance(part, Run) and not keyspace.runs.has(part)]


def _run(
    turn: Turn,
    command: Command,
    records_before: int = 0,
    held: HeldRuns | None = None,
    *,
    goes_on: bool = False,
) -> Reply | Blocked | Unfinished | EngineError:
    """With `goes_on` it may not wait for the disk if a command before it has changed something."""
    runs = turn.keyspace.runs
    if not runs.files:
        return _run_command(turn, command, records_before)
    if not goes_on:
        turn.own_from = len(turn.records)
    runs.begin_turn({} if held is None else held, lambda: held is not None and not turn.has_changed)
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


def check_work(keyspace: Keyspace, commands: Sequence[Command]) -> int:
    """Refuse a transaction that would take too long: nothing can cut it. One command alone has bounds of its
    own. Returns about how many microseconds it takes.
    """
    if len(commands) == 1:
        return 0
    took_us = sum([command.work_us(keyspace) for command in commands])
    if took_us > TURN_WORK_US_MAX:
        raise errors.too_much_work(took_us, TURN_WORK_US_MAX)
    return took_us


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
        return _look_without_disk(keyspace, look)
    except (EngineError, NotInMemoryError):
        # The read itself is refused for that, or waits for the disk.
        return True


def give_up(
    keyspace: Keyspace, blocked: Blocked, now_ms: int, held: HeldRuns
) -> Reply | Unread | EngineError:
    """The reply of a blocked read whose time is over: what it found, which is nothing."""
    turn = Turn(keyspace, now_ms)
    keyspace.runs.begin_turn(held, lambda: True)
    try:
        return WAIT[type(blocked.command)].end(turn, blocked.command)
    except EngineError as refusal:
        return refusal
    except NotInMemoryError as missing:
        return Unread(None, missing.runs, held)
    finally:
        keyspace.runs.end_turn()


def _look_without_disk(keyspace: Keyspace, look: Callable[[], T]) -> T:
    """Raises NotInMemoryError where the look is into a run that is not in memory."""
    if not keyspace.runs.files:
        return look()
    keyspace.runs.begin_turn({}, lambda: True)
    try:
        return look()
    finally:
        keyspace.runs.end_turn()


def block_group_read(command: types.XReadGroup) -> Blocked:
    """A read of a group as one that waits."""
    return group_reading.block(command)


def retry_at_ms(keyspace: Keyspace, blocked: Blocked, now_ms: int) -> int | None:
    """When (wall clock) a blocked read may find something without any write, None for never."""
    look = partial(WAIT[type(blocked.command)].retry_at_ms, Look(keyspace, now_ms), blocked.command)
    try:
        return _look_without_disk(keyspace, look)
    except (EngineError, NotInMemoryError):
        return now_ms
