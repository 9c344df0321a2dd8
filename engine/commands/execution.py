"""The commands: one function each, one table, one way to run them.

Knows: which function runs which command, and what changes state.
Must never know: asyncio, disk, wire formats.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from engine.commands import (
    entries,
    grouping,
    housekeeping,
    introspection,
    keys,
    managing,
    own,
    pending,
    planning,
    reading,
    redriving,
    types,
)
from engine.commands.room import check_memory
from engine.commands.turn import DirtyTurnError, Parked, Turn, Unfinished
from engine.commands.types import Command
from engine.errors import EngineError, invalid
from engine.keyspace import Keyspace
from engine.replies import GroupRead, Reply, StreamsRead

__all__ = [
    "READS",
    "DirtyTurnError",
    "Outcome",
    "Parked",
    "Turn",
    "Unfinished",
    "bytes_logged",
    "check_memory",
    "execute",
    "execute_all",
    "give_up",
    "is_ready",
    "parked_read",
    "read_streams_max",
    "retry_at_ms",
    "streams_of",
    "unblocked",
]

_Run = Callable[[Turn, Any], Reply | Parked | Unfinished]

_TABLE: Final[dict[type[Command], _Run]] = {
    types.XAdd: entries.xadd,
    types.XLen: entries.xlen,
    types.XRange: entries.xrange,
    types.XDel: entries.xdel,
    types.XDelEx: entries.xdelex,
    types.XTrim: entries.xtrim,
    types.XSetId: entries.xsetid,
    types.XCfgSet: entries.xcfgset,
    types.XIdmpRecord: entries.xidmprecord,
    types.XRead: reading.xread,
    types.XReadGroup: reading.xreadgroup,
    types.XAck: pending.xack,
    types.XAckDel: pending.xackdel,
    types.XNack: pending.xnack,
    types.XPending: pending.xpending,
    types.XPendingRange: pending.xpending_range,
    types.XClaim: pending.xclaim,
    types.XAutoClaim: pending.xautoclaim,
    types.XGroupCreate: grouping.xgroup_create,
    types.XGroupSetId: grouping.xgroup_setid,
    types.XGroupDestroy: grouping.xgroup_destroy,
    types.XGroupCreateConsumer: grouping.xgroup_createconsumer,
    types.XGroupDelConsumer: grouping.xgroup_delconsumer,
    types.XInfoStream: introspection.xinfo_stream,
    types.XInfoStreamFull: introspection.xinfo_stream_full,
    types.XInfoGroups: introspection.xinfo_groups,
    types.XInfoConsumers: introspection.xinfo_consumers,
    types.Delete: keys.delete,
    types.Exists: keys.exists,
    types.FindGroup: keys.find_group,
    types.Type: keys.type_of,
    types.ListStreams: keys.list_streams,
    types.DbSize: keys.db_size,
    types.FlushAll: keys.flush_all,
    types.ConfigGet: keys.config_get,
    types.ConfigSet: keys.config_set,
    own.EnsureStream: managing.ensure_stream,
    own.UpdateStream: managing.update_stream,
    own.StreamInfos: managing.stream_infos,
    own.EnsureGroup: managing.ensure_group,
    own.UpdateGroup: managing.update_group,
    own.DescribeEdges: introspection.describe_edges,
    own.DescribeGroup: managing.describe_group,
    own.RemoveGroup: managing.remove_group,
    own.RemoveConsumer: managing.remove_consumer,
    own.BuryEntries: managing.bury_entries,
    own.FindDeadLetters: redriving.find_dead_letters,
    own.Redrive: redriving.redrive,
    own.Publish: managing.publish,
    own.Plan: planning.plan,
    own.KeepHouse: housekeeping.keep_house,
    own.EndWait: housekeeping.end_wait,
    own.GiveBack: pending.give_back,
}

# The commands that never change anything; all others need room in the log before they run.
READS: Final = frozenset(
    {
        types.XLen,
        types.XRange,
        types.XRead,
        types.XPending,
        types.XPendingRange,
        types.XInfoStream,
        types.XInfoStreamFull,
        types.XInfoGroups,
        types.XInfoConsumers,
        types.Exists,
        types.FindGroup,
        types.Type,
        types.ListStreams,
        types.DbSize,
        types.ConfigGet,
        own.StreamInfos,
        own.Plan,
        own.DescribeEdges,
        own.DescribeGroup,
        own.FindDeadLetters,
    }
)

# The streams of one read.
read_streams_max: Final = 1_000


class Outcome(msgspec.Struct, frozen=True):
    """What a turn leaves: the answer, or the refusal that stands for it, and the turn with its records and
    signals.
    """

    reply: Reply | Parked | Unfinished | EngineError
    turn: Turn


def execute(
    keyspace: Keyspace,
    command: Command,
    now_ms: int,
    so_far: Any = None,  # noqa: ANN401 - each command has its own
) -> Outcome:
    """Run one command as a turn of its own. A refusal has changed nothing, nor has an exception, unless it is
    DirtyTurnError.

    Where the reply is `Unfinished` the command runs again, with its `so_far`.
    """
    turn = Turn(keyspace, now_ms, so_far, may_continue=True)
    return Outcome(_run(turn, command), turn)


def execute_all(
    keyspace: Keyspace, commands: Sequence[Command], now_ms: int
) -> tuple[list[Reply | EngineError], Turn]:
    """Run a transaction: one turn, one reading of the clock, nothing between; a refusal does not end it,
    nothing waits.
    """
    turn = Turn(keyspace, now_ms)
    replies: list[Reply | EngineError] = []
    for command in commands:
        reply = _run(turn, unblocked(command))
        assert not isinstance(reply, Parked | Unfinished), "a transaction is one turn, in which nothing waits"
        replies.append(reply)
    return replies, turn


def _run(turn: Turn, command: Command) -> Reply | Parked | Unfinished | EngineError:
    try:
        if type(command) in _BOUNDED:
            _within_bounds(turn, command)
        return _TABLE[type(command)](turn, command)
    except EngineError as refusal:
        return refusal
    except Exception as error:
        if turn.records:
            raise DirtyTurnError from error
        raise


_BOUNDED: Final = frozenset(
    {
        types.XRead,
        types.XReadGroup,
        own.Plan,
        types.XDel,
        types.XDelEx,
        types.XAck,
        types.XAckDel,
        types.XNack,
        types.XClaim,
    }
)


def _within_bounds(turn: Turn, command: Command) -> None:
    """Refuse what names more than one turn can log, or read, in bounded time."""
    if isinstance(command, types.XRead | types.XReadGroup | own.Plan):
        if len(command.streams) > read_streams_max:
            raise invalid(f"ERR a command reads at most {read_streams_max} streams")
        return
    named = len(_ids_of(command))
    if not isinstance(command, types.XAck):
        turn.ask_lookups(named)
    turn.ask_room(named)


def _ids_of(command: Command) -> types.Ids:
    """The IDs that a command names."""
    if isinstance(command, types.XNack):
        return command.nack.ids
    if isinstance(command, types.XClaim):
        return command.claim.ids
    assert isinstance(command, types.XDel | types.XDelEx | types.XAck | types.XAckDel), "the table says so"
    return command.ids


def unblocked(command: Command) -> Command:
    """The command, as one that does not wait."""
    if isinstance(command, types.XRead | types.XReadGroup | own.Plan) and command.block_ms is not None:
        return msgspec.structs.replace(command, block_ms=None)
    return command


def is_ready(keyspace: Keyspace, parked: Parked, now_ms: int, queue: str | None = None) -> bool:
    """Whether a parked read may find something by now: in the queue that was signalled, None for any."""
    turn, command = Turn(keyspace, now_ms), parked.command
    if isinstance(command, own.Plan):
        return planning.is_ready(turn, command, queue)
    assert isinstance(command, types.XRead | types.XReadGroup), "only reads are parked"
    return reading.is_ready(turn, command)


def give_up(keyspace: Keyspace, parked: Parked, now_ms: int) -> Reply | EngineError:
    """The reply of a parked read whose time is over: what it found, which is nothing."""
    command = parked.command
    if isinstance(command, types.XRead):
        return StreamsRead(
            (), [(name, cursor) for name, cursor in command.streams if isinstance(cursor, int)]
        )
    if isinstance(command, types.XReadGroup):
        return GroupRead(())
    reply = execute(keyspace, unblocked(command), now_ms).reply
    assert not isinstance(reply, Parked | Unfinished), "it does not wait any more, and reads take one turn"
    return reply


def parked_read(command: types.XReadGroup) -> Parked:
    """A read of a group as one that waits."""
    return reading.parked(command)


def retry_at_ms(keyspace: Keyspace, parked: Parked, now_ms: int) -> int | None:
    """When (wall clock) a parked read may find something without any write, None for never."""
    if isinstance(parked.command, types.XReadGroup):
        return reading.retry_at_ms(Turn(keyspace, now_ms), parked.command)
    return None


def bytes_logged(command: Command) -> int:
    """The bytes of entries that a command brings into the log."""
    if type(command) is types.XAdd:
        return sum(map(len, command.bodies))
    return sum(map(bytes_logged, command.parts)) if isinstance(command, own.Publish) else 0


def streams_of(command: Command) -> tuple[str, ...] | None:
    """The streams that a command's answer depends on; None for all of them."""
    if isinstance(command, types.XRead | types.XReadGroup | own.Plan):
        return tuple(name for name, _ in command.streams)
    if isinstance(command, types.Delete | types.Exists | types.FindGroup):
        return tuple(command.streams)
    if isinstance(command, own.FindDeadLetters | own.Redrive):
        return (command.stream, command.letters)
    if isinstance(command, types.ConfigGet):
        # Records that name no stream.
        return ("",)
    if isinstance(command, own.Publish):
        # What a key was used for hangs on no stream, as the records that name none.
        keyed = ("",) if command.idempotency is not None or command.chunk is not None else ()
        return (*(part.stream for part in command.parts), *keyed)
    stream = getattr(command, "stream", None)
    return None if stream is None else (stream,)
