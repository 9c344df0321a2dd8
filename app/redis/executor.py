"""Runs parsed Redis commands: authorises them, runs them in order, limits the size of their replies.

Knows: which requests need the engine, which may block and for how long, the size limit of several replies.
Must never know: JSON, HTTP statuses, any single command.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import msgspec

from app import redis
from app.auth import Action
from app.http.requests import Request
from app.limits import CommandLimits
from app.redis import CommandRequest, bodies
from app.redis.bodies import Encoding, Words
from engine import EngineError, errors
from engine.commands import Command
from engine.replies import Listing, Reply

_ONE: Final = "answer_bytes_max"
_TOGETHER: Final = "pipeline_bytes_max"
# Longer replies take milliseconds to write, so a thread writes them.
_INLINE_BYTES_MAX: Final = 256 << 10
_INLINE_NAMES_MAX: Final = 100
# After this many words a pipeline yields to other requests.
_TURN_WORDS_MAX: Final = 1_000


# A parsed command, or the reason why it is invalid.
Parsed: TypeAlias = "CommandRequest | EngineError"


def parse_one(words: Words, limits: CommandLimits) -> CommandRequest:
    """Parse one command and check its limits. Raises EngineError."""
    return redis.checked(redis.parse(words), limits)


def parse_each(rows: Sequence[Words | EngineError], limits: CommandLimits) -> list[tuple[Parsed, int]]:
    """Parse the commands of a pipeline; each comes with its number of words."""
    return [
        (row, 0) if isinstance(row, EngineError) else (_checked(redis.parse_each([row])[0], limits), len(row))
        for row in rows
    ]


def parse_together(rows: Sequence[Words | EngineError], limits: CommandLimits) -> list[Parsed]:
    """Parse the commands of a transaction. Raises EXECABORT if one is unknown or has invalid arguments."""
    words = list[Words]()
    for row in rows:
        if isinstance(row, EngineError):
            raise errors.invalid(redis.EXECABORT, row.detail)
        words.append(row)
    return [_checked(parsed, limits) for parsed in redis.parse_transaction(words)]


def _checked(parsed: Parsed, limits: CommandLimits) -> Parsed:
    if isinstance(parsed, EngineError):
        return parsed
    try:
        return redis.checked(parsed, limits)
    except EngineError as refusal:
        return refusal


async def run(request: Request, parsed: CommandRequest, encoded: Encoding) -> bytes:
    """Run one command. Raises EngineError, `forbidden`."""
    _authorise(request, parsed)
    settings = request.gateway.settings
    return await _run(request, parsed.bounded(settings.wait_ms_max), settings.answer_bytes_max, _ONE, encoded)


async def run_unblocked(request: Request, body: bytes, room: int) -> bytes:
    """Run the command in this JSON list without blocking; its reply has at most `room` bytes.

    Raises EngineError, `forbidden`.
    """
    limits, encoded = request.gateway.command_limits, Encoding()
    parsed = parse_one(bodies.one(body, encoded, limits.words_max), limits)
    _authorise(request, parsed)
    if getattr(parsed.command, "block_ms", None) is not None:
        assert parsed.command is not None, "it has an attribute"
        parsed = replace(parsed, command=msgspec.structs.replace(parsed.command, block_ms=None))
    return await _run(request, parsed, min(room, request.gateway.settings.answer_bytes_max), _ONE, encoded)


async def run_each(
    request: Request, requests: Sequence[tuple[Parsed, int]], encoded: Encoding
) -> list[bytes]:
    """Run commands one after the other. The limit of their waiting time is for all together."""
    for parsed, _ in requests:
        _authorise(request, parsed)
    pipeline, words = _Pipeline(request, encoded), 0
    for parsed, length in requests:
        await pipeline.add(parsed)
        words += 1 + length
        if words > _TURN_WORDS_MAX:
            # The tasks begin, then other requests have a turn.
            words = 0
            await asyncio.sleep(0)
    return await pipeline.end()


async def run_together(request: Request, requests: Sequence[Parsed], encoded: Encoding) -> list[bytes]:
    """Run commands as one turn. Raises EngineError, and runs nothing, if too many of them read."""
    for parsed in requests:
        _authorise(request, parsed)
    room, name = _room_of_each(request, requests)
    requests = [await _probed(request, parsed, room, name) for parsed in requests]
    requests = [_within(request, parsed, room, name) for parsed in requests]
    commands = [command for parsed in requests if (command := _command(parsed)) is not None]
    synced = any(isinstance(parsed, CommandRequest) and parsed.synced for parsed in requests)
    replies = iter(await request.engine.transaction(commands, synced=synced) if commands else ())
    return [await _shaped(request, parsed, replies, room, name, encoded) for parsed in requests]


class _Pipeline:
    """Runs commands in order; those whose replies fit into the budget together run concurrently.

    The maximum of a long reply is reserved before its command runs; the unused part is released afterwards.
    """

    def __init__(self, request: Request, encoded: Encoding) -> None:
        settings = request.gateway.settings
        self._request = request
        self._encoded = encoded
        self._ends_s = request.gateway.clock.monotonic() + settings.wait_ms_max / 1000
        self._left = settings.pipeline_bytes_max
        self._taken = 0
        self._under_way: list[asyncio.Task[bytes]] = []
        self._found: list[bytes] = []

    async def add(self, parsed: Parsed) -> None:
        """Run a command after those that were added before; `end` waits for it."""
        most = self._request.gateway.settings.answer_bytes_max
        wanted = most if isinstance(parsed, CommandRequest) and redis.is_long(parsed) else 0
        alone = _is_alone(parsed)
        if alone or (wanted and self._taken + wanted > self._left):
            await self._flush()
        name = _ONE if wanted <= self._left else _TOGETHER
        if wanted and self._left <= 0:
            parsed = _no_room(self._request)
        room = min(wanted, max(1, self._left))
        self._taken += room
        left_ms = 0
        if alone:
            left_ms = max(1, int((self._ends_s - self._request.gateway.clock.monotonic()) * 1000))
        work = _outcome(self._request, parsed, left_ms, room, name, self._encoded)
        self._under_way.append(asyncio.create_task(work))
        if alone:
            await self._flush()

    async def end(self) -> list[bytes]:
        """Return all results, in order."""
        await self._flush()
        return self._found

    async def _flush(self) -> None:
        # Tasks begin in this order; each runs its command before it waits for the log, once for all.
        under_way, self._under_way, self._taken = self._under_way, [], 0
        found = await asyncio.gather(*under_way)
        self._left -= sum(map(len, found))
        self._found += found


def _no_room(request: Request) -> EngineError:
    most = request.gateway.settings.pipeline_bytes_max
    return errors.invalid(
        f"ERR not run: the answers of this pipeline have reached {most} bytes ({_TOGETHER}); "
        "send the command again, in another request"
    )


def _room_of_each(request: Request, requests: Sequence[Parsed]) -> tuple[int, str]:
    """The maximum size of each long reply of a transaction, in bytes, and the setting that limits it.

    All replies are made in one turn, so the budget is divided in advance. Each reply has at least one entry,
    so the number of long replies is limited by the size of the largest entry.
    """
    settings = request.gateway.settings
    long = sum(1 for parsed in requests if isinstance(parsed, CommandRequest) and redis.is_long(parsed))
    long_max = max(1, settings.pipeline_bytes_max // settings.entry_bytes_max)
    if long > long_max:
        raise errors.invalid(
            f"ERR too many reads: a transaction has at most {long_max} commands that answer with entries or "
            f"lists ({_TOGETHER} / entry_bytes_max); use several transactions, or a pipeline"
        )
    share = settings.pipeline_bytes_max // max(1, long)
    if settings.answer_bytes_max <= share:
        return settings.answer_bytes_max, _ONE
    return share, _TOGETHER


def _command(parsed: Parsed) -> Command | None:
    return parsed.command if isinstance(parsed, CommandRequest) else None


def _authorise(request: Request, parsed: Parsed) -> None:
    if isinstance(parsed, EngineError):
        return
    group = getattr(parsed.command, "group", None)
    consumer = getattr(parsed.command, "consumer", None)
    for action in parsed.actions:
        for stream in (None,) if parsed.streams is None else parsed.streams:
            request.require(Action(action), stream, group, consumer)


def _is_alone(parsed: Parsed) -> bool:
    """Whether no other command of the pipeline may run meanwhile: it blocks, or takes several turns."""
    if isinstance(parsed, EngineError):
        return False
    return getattr(parsed.command, "block_ms", None) is not None or bool(redis.probes(parsed, 0))


async def _outcome(
    request: Request, parsed: Parsed, block_ms_max: int, room: int, name: str, encoded: Encoding
) -> bytes:
    if isinstance(parsed, EngineError):
        return bodies.outcome(parsed, encoded)
    try:
        return await _run(request, parsed.bounded(block_ms_max), room, name, encoded)
    except EngineError as refusal:
        return bodies.outcome(refusal, encoded)


async def _run(request: Request, parsed: CommandRequest, room: int, name: str, encoded: Encoding) -> bytes:
    if parsed.command is None:
        return _immediate(request, parsed, encoded)
    await _probe(request, parsed, room, name)
    parsed = redis.within(parsed, room, request.gateway.command_limits, name)
    assert parsed.command is not None, "a limit takes no command away"
    reply = await request.execute(parsed.command, synced=parsed.synced)
    return await _written(request, parsed, reply, room, name, encoded)


async def _probe(request: Request, parsed: CommandRequest, room: int, name: str) -> None:
    """Check the size of an unlimited reply in advance. Raises EngineError if it would be too long."""
    probes = redis.probes(parsed, room)
    if probes:
        replies = await request.engine.transaction(probes)
        redis.check_probed(parsed, replies, room, request.gateway.command_limits, name)


async def _probed(request: Request, parsed: Parsed, room: int, name: str) -> Parsed:
    if isinstance(parsed, EngineError):
        return parsed
    try:
        await _probe(request, parsed, room, name)
    except EngineError as refusal:
        return refusal
    return parsed


def _within(request: Request, parsed: Parsed, room: int, name: str) -> Parsed:
    if isinstance(parsed, EngineError):
        return parsed
    return redis.within(parsed, room, request.gateway.command_limits, name)


async def _shaped(
    request: Request,
    parsed: Parsed,
    replies: Iterator[Reply | EngineError],
    room: int,
    name: str,
    encoded: Encoding,
) -> bytes:
    if isinstance(parsed, EngineError):
        return bodies.outcome(parsed, encoded)
    if parsed.command is None:
        return _immediate(request, parsed, encoded)
    try:
        return await _written(request, parsed, next(replies), room, name, encoded)
    except EngineError as refusal:
        return bodies.outcome(refusal, encoded)


async def _written(
    request: Request,
    parsed: CommandRequest,
    reply: Reply | EngineError,
    room: int,
    name: str,
    encoded: Encoding,
) -> bytes:
    write = partial(parsed.written, reply, request.may_read, base64=encoded.reply)
    written = await asyncio.to_thread(write) if _is_laborious(reply) else write()
    redis.check_written(parsed, len(written), room, name)
    return bodies.result(written)


def _is_laborious(reply: Reply | EngineError) -> bool:
    """Whether writing the reply takes long: many entries, or many names to match."""
    if isinstance(reply, EngineError):
        return False
    if isinstance(reply, Listing):
        return len(reply.names) > _INLINE_NAMES_MAX
    return redis.text_bytes(reply) > _INLINE_BYTES_MAX


def _immediate(request: Request, parsed: CommandRequest, encoded: Encoding) -> bytes:
    return bodies.outcome(parsed.immediate(request.gateway.clock.wall_ms() * 1000), encoded)
