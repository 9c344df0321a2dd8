"""Consumers that hold too much to be removed in one turn: their entries go in parts, they with the last.

Knows: how much one turn drops or transfers. Must never know: who runs the turns.

Removing is all or nothing for a consumer within these limits. Of a larger one a crash in between leaves the
consumer, with the entries that were not dropped or transferred yet; removing it again goes on there.
"""

from typing import Final

from engine import errors
from engine.commands import own, types
from engine.commands.types import Command
from engine.groups import Consumer
from engine.keyspace import Keyspace

# Pending entries of one turn: dropping takes up to 0.7 µs each, transferring up to 15 µs.
DROPPED_MAX: Final = 10_000
TRANSFERRED_MAX: Final = 500


def check_held(consumer: Consumer, *, transferred: bool) -> None:
    """Refuse to remove a consumer that holds more than one turn takes: within a transaction."""
    if len(consumer.pending) > _most(transferred=transferred):
        raise errors.too_many_to_remove(consumer.name, len(consumer.pending))


def part_of(keyspace: Keyspace, command: Command) -> own.ShedPending | None:
    """What to run before the command, and then again, until nothing is given."""
    if not isinstance(command, types.XGroupDelConsumer | own.RemoveConsumer):
        return None
    key = keyspace.find(command.stream)
    group = key.groups.get(command.group) if key is not None else None
    consumer = group.consumers.get(command.consumer) if group is not None else None
    transfer_to = command.transfer_to if isinstance(command, own.RemoveConsumer) else None
    is_refused = isinstance(command, own.RemoveConsumer) and not command.drop and transfer_to is None
    if consumer is None or is_refused or transfer_to == command.consumer:
        return None
    if len(consumer.pending) <= _most(transferred=transfer_to is not None):
        return None
    return own.ShedPending(
        stream=command.stream, group=command.group, consumer=command.consumer, transfer_to=transfer_to
    )


def _most(*, transferred: bool) -> int:
    return TRANSFERRED_MAX if transferred else DROPPED_MAX
