"""What needs memory: the commands that are refused once the limit is reached.

Knows: which commands add data, and which only deliver it. Must never know: how memory is counted.

    memory          adds data          delivers entries    everything else
    below limit     runs               runs                runs
    full            refused            runs                runs
    over by 1/10    refused            refused             runs

Everything else is what reads, makes room (acknowledging, trimming, deleting) or changes what is there.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from engine import errors
from engine.commands import own, types
from engine.commands.types import Command
from engine.keyspace import Keyspace


def check_memory(keyspace: Keyspace, commands: Sequence[Command]) -> None:
    """Refuse all of them, before anything is changed, if one needs memory that there is not."""
    memory = keyspace.memory
    if not memory.is_full:
        return
    over = memory.is_over
    for command in commands:
        if adds(keyspace, command) or (over and delivers(command)):
            assert memory.bytes_max is not None, "only a limit is reached"
            raise errors.memory_full(memory.used_bytes, memory.bytes_max)


def adds(keyspace: Keyspace, command: Command) -> bool:
    """Whether the command adds entries, streams, groups, consumers or answers to remember."""
    asked = _ADDING.get(type(command))
    return asked is not None and asked(keyspace, command)


def delivers(command: Command) -> bool:
    """Whether the command makes entries pending, or a consumer in passing."""
    asked = _DELIVERING.get(type(command))
    return asked is not None and asked(command)


def _always(*_: object) -> bool:
    return True


def _makes_stream(keyspace: Keyspace, command: own.EnsureStream) -> bool:
    return keyspace.find(command.stream) is None


def _makes_group(keyspace: Keyspace, command: own.EnsureGroup) -> bool:
    key = keyspace.find(command.stream)
    return key is None or command.group not in key.groups


def _redrives(_: Keyspace, command: own.Redrive) -> bool:
    # The dead letters' memory is free only when half of their node is.
    return not command.dry_run


def _reads_new(command: types.XReadGroup) -> bool:
    return not command.noack and any(cursor is types.Cursor.NEW for _, cursor in command.streams)


def _is_forced(command: types.XNack) -> bool:
    return command.nack.force


_ADDING: Final[dict[type[Command], Callable[[Keyspace, Any], bool]]] = {
    types.XAdd: _always,
    types.XIdmpRecord: _always,
    types.XGroupCreate: _always,
    types.XGroupCreateConsumer: _always,
    own.EnsureStream: _makes_stream,
    own.EnsureGroup: _makes_group,
    own.BuryEntries: _always,
    own.Redrive: _redrives,
    own.Publish: _always,
}
_DELIVERING: Final[dict[type[Command], Callable[[Any], bool]]] = {
    types.XReadGroup: _reads_new,
    types.XClaim: _always,
    types.XAutoClaim: _always,
    types.XNack: _is_forced,
}
