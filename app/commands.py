"""Running parsed Redis commands: authorised, in order, each with its outcome.

Knows: which requests need the engine, which may wait and for how long. Must never know: JSON, statuses, any
command.
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby

from app import redis
from app.auth import Action
from app.calls import Call
from app.redis import Request, Resp
from app.wire.commands import Outcome, Words
from engine import Command, EngineError, Reply, errors


async def run(call: Call, words: Words) -> Resp:
    """Run one command. Raises EngineError, `forbidden`."""
    request = redis.parse(words)
    _authorise(call, request)
    return await _run(call, request.bounded(call.gateway.settings.wait_ms_max))


async def run_each(call: Call, rows: Sequence[Words | EngineError]) -> list[Outcome]:
    """Run commands one after the other. What they may wait, they may wait together."""
    requests = [_parsed(row) for row in rows]
    for request in requests:
        _authorise(call, request)
    clock, found = call.gateway.clock, list[Outcome]()
    ends_s = clock.monotonic() + call.gateway.settings.wait_ms_max / 1000
    for waits, some in groupby(requests, _waits):
        if waits:
            for request in some:
                left_ms = max(1, int((ends_s - clock.monotonic()) * 1000))
                found.append(await _outcome(call, request, left_ms))
        else:
            # Tasks begin in this order, and each is run before it first waits: for the log, for all together.
            found += await asyncio.gather(*(_outcome(call, request, 0) for request in some))
    return found


async def run_together(call: Call, rows: Sequence[Words | EngineError]) -> list[Outcome]:
    """Run commands as one turn. Raises EXECABORT where one is unknown or has impossible arguments: nothing
    is run.
    """
    for row in rows:
        if isinstance(row, EngineError):
            raise errors.invalid(redis.EXECABORT, row.detail)
    requests = redis.parse_transaction([row for row in rows if not isinstance(row, EngineError)])
    for request in requests:
        _authorise(call, request)
    commands = [command for request in requests if (command := _command(request)) is not None]
    synced = any(isinstance(request, Request) and request.synced for request in requests)
    replies = iter(await call.engine.transaction(commands, synced=synced) if commands else ())
    return [_shaped(call, request, replies) for request in requests]


def _parsed(row: Words | EngineError) -> Request | EngineError:
    return row if isinstance(row, EngineError) else redis.parse_each([row])[0]


def _command(request: Request | EngineError) -> Command | None:
    return request.command if isinstance(request, Request) else None


def _authorise(call: Call, request: Request | EngineError) -> None:
    if isinstance(request, EngineError):
        return
    for action in request.actions:
        for stream in (None,) if request.streams is None else request.streams:
            call.require(Action(action), stream)


def _waits(request: Request | EngineError) -> bool:
    return getattr(_command(request), "block_ms", None) is not None


async def _outcome(call: Call, request: Request | EngineError, block_ms_max: int) -> Outcome:
    if isinstance(request, EngineError):
        return request
    try:
        return await _run(call, request.bounded(block_ms_max))
    except EngineError as refusal:
        return refusal


async def _run(call: Call, request: Request) -> Resp:
    if request.command is None:
        return request.immediate(call.gateway.clock.wall_ms() * 1000)
    return _answer(call, request, await call.execute(request.command, synced=request.synced))


def _shaped(call: Call, request: Request | EngineError, replies: Iterator[Reply | EngineError]) -> Outcome:
    if isinstance(request, EngineError):
        return request
    if request.command is None:
        return request.immediate(call.gateway.clock.wall_ms() * 1000)
    try:
        return _answer(call, request, next(replies))
    except EngineError as refusal:
        return refusal


def _answer(call: Call, request: Request, reply: Reply | EngineError) -> Resp:
    policy, principal = call.gateway.policy, call.principal
    return request.answer(reply, lambda name: policy.may(principal, Action.READ, name))
