"""EXPIRE, PERSIST, TTL and their kind, and removing the streams whose time is over.

Knows: Redis's conditions and order of checks (docs/semantics.md), and how many streams one turn removes.
Must never know: when turns come, how a time was written.
"""

from typing import Final

from engine import errors
from engine.commands import types, weir_commands
from engine.commands.registry import ends_streams, runs
from engine.commands.turn import Turn
from engine.records.changes import SetLifetime

# Times are signed 64-bit integers in Redis and in the log.
TIME_MS_MAX: Final = (1 << 63) - 1
# Streams that one turn removes, each with a look at its groups where a rewrite has still to read it.
TURN_EXPIRED_MAX: Final = 200
NO_LIFETIME: Final = -1
NO_STREAM: Final = -2


@runs(types.Expire)
@ends_streams
def expire(turn: Turn, command: types.Expire) -> bool:
    at_ms = expiry_of(turn, command.ms, relative=command.relative, command=command.named)
    key = turn.keyspace.find(command.stream)
    if key is None or not _is_allowed(command.condition, key.expires_at_ms, at_ms):
        return False
    if at_ms <= turn.now_ms:
        turn.remove_stream(command.stream, "del")
    else:
        turn.emit(SetLifetime(command.stream, at_ms))
    return True


def expiry_of(turn: Turn, ms: int, *, relative: bool, command: str) -> int:
    """The time that is meant; `command` is Redis's name of the command, for the refusal."""
    at_ms = turn.now_ms + ms if relative else ms
    if at_ms > TIME_MS_MAX:
        raise errors.invalid_expire_time(command)
    return at_ms


def _is_allowed(asked: types.ExpireCondition, at_ms: int | None, wanted_ms: int) -> bool:
    """Whether the lifetime may change from `at_ms` to `wanted_ms`."""
    if at_ms is None:
        return not asked & (types.ExpireCondition.XX | types.ExpireCondition.GT)
    return not (
        types.ExpireCondition.NX in asked
        or (types.ExpireCondition.GT in asked and wanted_ms <= at_ms)
        or (types.ExpireCondition.LT in asked and wanted_ms >= at_ms)
    )


@runs(types.Persist)
def persist(turn: Turn, command: types.Persist) -> bool:
    key = turn.keyspace.find(command.stream)
    if key is None or key.expires_at_ms is None:
        return False
    turn.emit(SetLifetime(command.stream, None))
    return True


@runs(types.TimeToLive)
def time_to_live(turn: Turn, command: types.TimeToLive) -> int:
    key = turn.keyspace.find(command.stream)
    if key is None:
        return NO_STREAM
    expiry_ms = turn.keyspace.expiry_of(key)
    if expiry_ms is None:
        return NO_LIFETIME
    return expiry_ms if command.absolute else max(0, expiry_ms - turn.now_ms)


@runs(weir_commands.ExpireStreams)
def expire_streams(turn: Turn, _: weir_commands.ExpireStreams) -> bool:
    lifetimes = turn.keyspace.lifetimes
    for _round in range(TURN_EXPIRED_MAX):
        if not lifetimes.is_due(turn.now_ms):
            return False
        first = lifetimes.first()
        assert first is not None, "one of them is due"
        turn.expire(first[0])
        # One that has still to be archived is looked at by housekeeping, and when it is described anew.
        lifetimes.discard(*first)
    return lifetimes.is_due(turn.now_ms)
