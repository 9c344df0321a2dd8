"""Transactions: several commands as one turn.

Knows: the budget that their replies share, commands whose replies are measured beforehand.
Must never know: where the commands came from, how replies are written, who asks.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from app import redis
from app.redis.request import CommandRequest
from app.redis.runs import Adds, Parsed, RunResult, each_added
from app.redis.steps import CommandSteps, Room
from engine import EngineError, How, ask, errors
from engine.commands import Command, Unchanged
from engine.replies import Reply

_TOGETHER: Final = "buffer_bytes_max"
# All replies of a transaction are made at once; they take this much, and half of what all connections have.
_REPLIES_BYTES_MAX: Final = 64 << 20


async def run(
    steps: CommandSteps, items: Sequence[Adds | Parsed], condition: Unchanged | None = None
) -> tuple[list[RunResult], Room] | None:
    """Run commands as one turn: what each comes to, and how long each reply may be; None, with nothing run,
    if the condition does not hold.

    Raises EngineError, and runs nothing, if too many of them read.
    """
    work = steps.work
    room = _room_of_each(steps, items)
    items = [await _within(steps, item, room) if isinstance(item, CommandRequest) else item for item in items]
    commands = [command for item in items if (command := _command(item)) is not None]
    work.reserve(steps.limits.answer_bound(commands))
    guard = () if condition is None else (condition,)
    synced = any(isinstance(item, CommandRequest) and item.synced for item in items)
    found: Sequence[Reply | EngineError] = ()
    if guard or commands:
        found = await ask(work.engine, work.call([*guard, *commands], How.TOGETHER, synced=synced))
    if guard and found[0] is not True:
        return None
    return [*_outcomes(items, iter(found[len(guard) :]))], room


def _outcomes(items: Sequence[Adds | Parsed], replies: Iterator[Reply | EngineError]) -> Iterator[RunResult]:
    for item in items:
        if isinstance(item, Adds):
            yield from each_added(next(replies), len(item.bodies))
        elif isinstance(item, EngineError):
            yield item
        else:
            yield item, None if item.command is None else next(replies)


def _command(item: Adds | Parsed) -> Command | None:
    if isinstance(item, Adds):
        return item.command()
    return item.command if isinstance(item, CommandRequest) else None


async def _within(steps: CommandSteps, parsed: CommandRequest, room: Room) -> Parsed:
    """The command within its room, or its refusal if its reply would be too long."""
    try:
        await steps.probe(parsed, room)
    except EngineError as refusal:
        return refusal
    return steps.bound(parsed, room)


def _room_of_each(steps: CommandSteps, items: Sequence[Adds | Parsed]) -> Room:
    """The maximum size of each long reply of a transaction, and the setting that limits it.

    All replies are made in one turn, so the budget is divided in advance. Each reply has at least one entry,
    so the number of long replies is limited by the size of the largest entry.
    """
    settings, output = steps.work.gateway.settings, steps.work.gateway.limits.budgets.output
    most = max(settings.answer_bytes_max, min(_REPLIES_BYTES_MAX, output.bytes_max // 2))
    long = sum(1 for item in items if isinstance(item, CommandRequest) and redis.is_long(item))
    long_max = max(1, most // settings.entry_bytes_max)
    if long > long_max:
        raise errors.invalid(
            f"ERR too many reads: a transaction has at most {long_max} commands that answer with entries or "
            f"lists ({_TOGETHER} / 2 / entry_bytes_max); use several transactions, or a pipeline"
        )
    share = most // max(1, long)
    return steps.room if settings.answer_bytes_max <= share else Room(share, _TOGETHER)
