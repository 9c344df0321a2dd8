"""Transactions: several commands as one turn.

Knows: the budget that their replies share, commands whose replies are measured beforehand.
Must never know: where the commands came from, how replies are written, who asks.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from app import logs, redis
from app.gateway import Gateway
from app.limits import CommandLimits
from app.redis.request import CommandRequest
from app.redis.runs import Parsed
from engine import CommandEngine, EngineError, Quota, errors
from engine.commands import Command, Unchanged
from engine.replies import Reply

_ONE: Final = "answer_bytes_max"
_TOGETHER: Final = "output_bytes_max"
# All replies of a transaction are made at once; they take this much, and half of what all connections have.
_REPLIES_BYTES_MAX: Final = 64 << 20

# Holds bytes for replies before they are made. Raises EngineError `overloaded`.
Reserve = Callable[[int], None]


class Answered(NamedTuple):
    """A command and the engine's reply, None where it needs none; the most bytes that the reply may take as
    text, and the setting that says so.
    """

    parsed: Parsed
    reply: Reply | EngineError | None
    room: int
    name: str


async def run(
    gateway: Gateway,
    engine: CommandEngine,
    requests: Sequence[Parsed],
    quotas: Sequence[Quota],
    reserve: Reserve,
) -> list[Answered]:
    """Run commands as one turn. Raises EngineError, and runs nothing, if too many of them read."""
    found = await run_if(gateway, engine, requests, quotas, reserve, None)
    assert found is not None, "there was no condition"
    return found


async def run_if(
    gateway: Gateway,
    engine: CommandEngine,
    requests: Sequence[Parsed],
    quotas: Sequence[Quota],
    reserve: Reserve,
    condition: Unchanged | None,
) -> list[Answered] | None:
    """The same; None, with nothing run, if the condition does not hold."""
    room, name = _room_of_each(gateway, requests)
    limits = gateway.command_limits
    requests = [await _probed(engine, limits, parsed, room, name) for parsed in requests]
    requests = [
        parsed if isinstance(parsed, EngineError) else redis.within(parsed, room, limits, name)
        for parsed in requests
    ]
    reserve(limits.answer_bound([command for one in requests if (command := _command(one)) is not None]))
    guard = () if condition is None else (condition,)
    commands = [*guard, *(command for parsed in requests if (command := _command(parsed)) is not None)]
    synced = any(isinstance(parsed, CommandRequest) and parsed.synced for parsed in requests)
    replies = iter(await engine.transaction(commands, synced=synced, quotas=quotas) if commands else ())
    if condition is not None and next(replies) is not True:
        return None
    return [
        Answered(parsed, None if _command(parsed) is None else next(replies), room, name)
        for parsed in requests
    ]


def failed_alone(gateway: Gateway, error: Exception, request_id: str) -> EngineError:
    """Note that one reply of several could not be written; what stands in its place. The command has run."""
    logs.note_fault(error, request_id)
    gateway.counters.rejected["internal"] += 1
    return errors.internal()


def _command(parsed: Parsed) -> Command | None:
    return parsed.command if isinstance(parsed, CommandRequest) else None


async def _probed(
    engine: CommandEngine, limits: CommandLimits, parsed: Parsed, room: int, name: str
) -> Parsed:
    """The command, or its refusal if its reply would be too long."""
    if isinstance(parsed, EngineError):
        return parsed
    try:
        await probe(engine, limits, parsed, room, name)
    except EngineError as refusal:
        return refusal
    return parsed


async def probe(
    engine: CommandEngine, limits: CommandLimits, parsed: CommandRequest, room: int, name: str = _ONE
) -> None:
    """Check the size of an unlimited reply in advance. Raises EngineError if it would be too long."""
    probes = redis.probes(parsed, room)
    if probes:
        replies = await engine.transaction(probes)
        redis.check_probed(parsed, replies, room, limits, name)


def _room_of_each(gateway: Gateway, requests: Sequence[Parsed]) -> tuple[int, str]:
    """The maximum size of each long reply of a transaction, in bytes, and the setting that limits it.

    All replies are made in one turn, so the budget is divided in advance. Each reply has at least one entry,
    so the number of long replies is limited by the size of the largest entry.
    """
    settings = gateway.settings
    most = max(settings.answer_bytes_max, min(_REPLIES_BYTES_MAX, gateway.budgets.output.bytes_max // 2))
    long = sum(1 for parsed in requests if isinstance(parsed, CommandRequest) and redis.is_long(parsed))
    long_max = max(1, most // settings.entry_bytes_max)
    if long > long_max:
        raise errors.invalid(
            f"ERR too many reads: a transaction has at most {long_max} commands that answer with entries or "
            f"lists ({_TOGETHER} / 2 / entry_bytes_max); use several transactions, or a pipeline"
        )
    share = most // max(1, long)
    if settings.answer_bytes_max <= share:
        return settings.answer_bytes_max, _ONE
    return share, _TOGETHER
