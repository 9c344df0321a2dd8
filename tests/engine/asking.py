"""Calls of an engine as tests make them: in few words.

Knows: the terms of a call. Must never know: which engine it is.
"""

from collections.abc import Sequence
from typing import TypeVar

from engine import Call, Done, EngineError, How, Quota, ReadHandle, ask, ask_one
from engine.commands.base import BlockingCommand, Command
from engine.protocol import CommandEngine
from engine.replies import Reply

R = TypeVar("R")


async def reply_to(
    engine: CommandEngine,
    command: Command,
    *,
    synced: bool = False,
    quotas: Sequence[Quota] = (),
    on_run: Done | None = None,
) -> Reply:
    """The reply to a command; one with `block_ms` waits. Raises EngineError."""
    waits = isinstance(command, BlockingCommand) and command.block_ms is not None
    handle = ReadHandle() if waits else None
    return await ask_one(engine, Call((command,), waits=handle, synced=synced, quotas=quotas, on_run=on_run))


async def reply_of(engine: CommandEngine, kind: type[R], command: Command) -> R:
    """The same, known to be of a kind."""
    reply = await reply_to(engine, command)
    assert isinstance(reply, kind), reply
    return reply


async def turn_of(
    engine: CommandEngine, commands: Sequence[Command], *, synced: bool = False, quotas: Sequence[Quota] = ()
) -> list[Reply | EngineError]:
    """The replies to commands in one turn. Raises EngineError where the whole is refused."""
    return [*await ask(engine, Call(commands, How.TOGETHER, synced=synced, quotas=quotas))]


def submit(
    engine: CommandEngine,
    commands: Sequence[Command],
    done: Done,
    *,
    synced: bool = False,
    quotas: Sequence[Quota] = (),
    on_run: Done | None = None,
) -> None:
    """Have `done` called with the replies to one command alone, or to several in one turn; maybe at once."""
    how = How.ALONE if len(commands) == 1 else How.TOGETHER
    _call_back(engine, Call(commands, how, synced=synced, quotas=quotas, on_run=on_run), done)


def submit_each(
    engine: CommandEngine, commands: Sequence[Command], done: Done, quotas: Sequence[Quota] = ()
) -> None:
    """The same for commands one after the other."""
    _call_back(engine, Call(commands, How.EACH, quotas=quotas), done)


def begin_read(
    engine: CommandEngine,
    command: BlockingCommand,
    done: Done,
    *,
    synced: bool = False,
    going_on: bool = False,
) -> ReadHandle:
    """Begin a read that may wait."""
    handle = ReadHandle()
    engine.send(Call((command,), waits=handle, synced=synced, going_on=going_on), done)
    return handle


def _call_back(engine: CommandEngine, call: Call, done: Done) -> None:
    replies = engine.send(call, done)
    if replies is not None:
        done(replies)
