"""What a caller has to be allowed for a command: what the request of REST that does the same needs.

Knows: which actions a command has beside those of the table.
Must never know: how a refusal is said, who asks.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from app.auth import ANY_CONSUMER, Action, Principal, Resource
from app.redis.request import CommandRequest
from engine.commands.base import Command
from engine.commands.schedule_commands import SetSchedule
from engine.commands.types import XGroupDelConsumer, XNack
from engine.commands.weir_commands import UpdateGroup


def consumer_of(command: Command | None) -> str | None:
    """Whose entries the command is about: it may name a consumer, or give back what any one holds."""
    consumer: str | None = getattr(command, "consumer", None)
    return ANY_CONSUMER if consumer is None and isinstance(command, XNack) else consumer


def needed(parsed: CommandRequest, principal: Principal) -> Iterator[tuple[Action, Resource]]:
    """Each action, and what it is about."""
    command = parsed.command
    group, consumer = getattr(command, "group", None), consumer_of(command)
    if isinstance(command, UpdateGroup) and parsed.target_actions:
        # Entries go to another stream: the right to read them, in the group at least.
        worker = Resource(command.stream, group, ANY_CONSUMER)
        works = principal.may(Action.CONSUME, worker)
        yield (Action.CONSUME, worker) if works else (Action.READ, Resource(command.stream))
    for actions, streams in _places(parsed):
        for action in actions:
            for stream in streams:
                resource = Resource(stream, group, consumer)
                if isinstance(command, XGroupDelConsumer):
                    yield principal.right_to_drop(resource), resource
                else:
                    yield Action(action), resource


def _places(parsed: CommandRequest) -> Sequence[tuple[Sequence[str], Sequence[str | None]]]:
    """The actions that are asked for, and on which streams: source and target apart."""
    if parsed.target_actions:
        assert parsed.streams, "it has a source and a target"
        source, *targets = parsed.streams
        # Onto itself there is one name.
        return (parsed.actions, [source]), (parsed.target_actions, targets or [source])
    return ((parsed.actions, (None,) if parsed.streams is None else parsed.streams),)


def within_rights(parsed: CommandRequest, principal: Principal) -> CommandRequest:
    """The request as this caller may run it: who manages a stream may put a single run in the place of one
    that recurs.
    """
    command = parsed.command
    if not isinstance(command, SetSchedule) or not principal.may(Action.MANAGE, Resource(command.stream)):
        return parsed
    return replace(parsed, command=replace(command, recurring=True))


def first_missing(parsed: CommandRequest, principal: Principal) -> tuple[Action, Resource] | None:
    """The first of them that the caller is not allowed; None where it may run the command."""
    for action, resource in needed(parsed, principal):
        if not principal.may(action, resource):
            return action, resource
    return None
