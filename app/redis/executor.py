"""Runs parsed Redis commands: authorises them, runs them in order, limits the size of their replies.

Knows: which requests need the engine, which may block and for how long, the size limit of several replies.
Must never know: JSON, HTTP statuses, any single command.
"""

import asyncio
from collections.abc import AsyncGenerator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec

from app import redis
from app.auth import Action
from app.errors import CODES, RefusalError
from app.http.requests import Request
from app.limits import CommandLimits
from app.live.turns import slice_of
from app.metrics import tracing
from app.redis import CommandRequest, bodies, transactions
from app.redis.bodies import Encoding, Words
from app.redis.rights import needed
from app.redis.runs import Adds, CommandRun, Parsed, each_added, runs_alone
from app.redis.transactions import Answered
from engine import EngineError, errors
from engine.commands import XAdd
from engine.ids import SEQUENCE_MAX
from engine.replies import Reply

_ONE: Final = "answer_bytes_max"
# Replies of these types have no entries, and are written at once.
_BRIEF: Final = frozenset({int, bool, str, type(None)})
# Long commands of a pipeline go on for this long before other callers have their turn.
_TURN_S: Final = 0.005


def parse_one(words: Words, limits: CommandLimits) -> CommandRequest:
    """Parse one command and check its limits. Raises EngineError."""
    return redis.checked(redis.parse(words), limits)


def parse_each(rows: Sequence[Words | EngineError], limits: CommandLimits) -> CommandRun:
    """Parse the commands of a pipeline, however many: the engine runs them in runs of bounded size."""
    run = CommandRun(limits)
    for row in rows:
        if isinstance(row, EngineError):
            run.append(row)
        elif not run.add_plain(row):
            run.append(_parse(row, limits))
    return run


def parse_together(rows: Sequence[Words | EngineError], limits: CommandLimits) -> CommandRun:
    """Parse the commands of a transaction. Raises EXECABORT if one is unknown or has invalid arguments."""
    words = list[Words]()
    for row in rows:
        if isinstance(row, EngineError):
            raise errors.invalid(redis.EXECABORT, row.detail)
        words.append(row)
    redis.check_transaction(words)
    return parse_each(words, limits)


def _parse(words: Words, limits: CommandLimits) -> Parsed:
    try:
        return parse_one(words, limits)
    except EngineError as refusal:
        return refusal


async def run(request: Request, parsed: CommandRequest, encoded: Encoding) -> bytes:
    """Run one command. Raises EngineError, `forbidden`."""
    _note_action(request, parsed)
    _authorise(request, parsed, set())
    settings = request.gateway.settings
    with _publishing(request, [parsed.bounded(settings.wait_ms_max)]) as (traced,):
        assert isinstance(traced, CommandRequest), "it stays a command"
        return await _run(request, traced, settings.answer_bytes_max, _ONE, encoded)


async def run_unblocked(request: Request, body: bytes, room: int) -> bytes:
    """Run the command in this JSON list without blocking; its reply has at most `room` bytes.

    Raises EngineError, `forbidden`.
    """
    limits, encoded = request.gateway.command_limits, Encoding()
    parsed = parse_one(bodies.one(body, encoded, limits.words_max), limits)
    if getattr(parsed.command, "block_ms", None) is not None:
        assert parsed.command is not None, "it has an attribute"
        parsed = msgspec.structs.replace(
            parsed, command=msgspec.structs.replace(parsed.command, block_ms=None)
        )
    room = min(room, request.gateway.settings.answer_bytes_max)
    try:
        _note_action(request, parsed)
        _authorise(request, parsed, set())
        result = await _run(request, parsed, room, _ONE, encoded)
    except (EngineError, RefusalError) as refusal:
        request.end_actions(CODES[refusal.code].status, refusal.code)
        raise
    request.end_actions(200, "")
    return result


def run_each(request: Request, parsed: CommandRun, encoded: Encoding) -> AsyncGenerator[list[bytes], None]:
    """Run commands one after the other: their results in order, some at a time. What has not begun when the
    generator is closed is not run. The limit of their waiting time is for all together.

    Raises `forbidden`, `rate_limited` before the first is run.
    """
    _authorise_each(request, parsed)
    request.take_more(parsed.count)
    return _Pipeline(request, encoded).run(parsed)


async def run_together(request: Request, parsed: CommandRun, encoded: Encoding) -> list[bytes]:
    """Run commands as one turn. Raises EngineError, and runs nothing, if too many of them read."""
    _authorise_each(request, parsed)
    request.take_more(parsed.count)
    with _publishing(request, parsed.items) as traced:
        requests = [item.as_request() if isinstance(item, Adds) else item for item in traced]
        answered = await transactions.run(
            request.gateway, request.engine, requests, request.principal.quotas, request.reserve
        )
    found: list[bytes] = []
    for item, one in zip(parsed.items, answered, strict=True):
        if isinstance(item, Adds):
            found += [_added(outcome, encoded) for outcome in each_added(one.reply, len(item.bodies))]
        else:
            found.append(await _shaped(request, one, encoded))
    return found


class _Pipeline:
    """Runs commands in order: short ones in runs of the engine, each long one by itself, so that its reply
    has left before the next is made.
    """

    def __init__(self, request: Request, encoded: Encoding) -> None:
        gateway = request.gateway
        self._request = request
        self._encoded = encoded
        self._monotonic = gateway.clock.monotonic
        self._ends_s = self._monotonic() + gateway.settings.wait_ms_max / 1000
        self._turn_ends_s = 0.0
        self._run = CommandRun(gateway.command_limits)

    async def run(self, parsed: CommandRun) -> AsyncGenerator[list[bytes], None]:
        """The results."""
        if parsed.count > 1:
            await self._take_turn()
        with _publishing(self._request, parsed.items) as traced:
            for item in traced:
                if self._run.is_full():
                    yield await self._flush()
                    await self._take_turn()
                if isinstance(item, CommandRequest) and (redis.is_long(item) or runs_alone(item)):
                    if self._run.count:
                        yield await self._flush()
                    if self._monotonic() > self._turn_ends_s:
                        await self._take_turn()
                    yield [await self._run_alone(item)]
                elif isinstance(item, Adds):
                    self._run.add_adds(item)
                else:
                    self._run.add(item)
            if self._run.count:
                yield await self._flush()

    async def _take_turn(self) -> None:
        await self._request.take_turn()
        self._turn_ends_s = self._monotonic() + _TURN_S

    async def _run_alone(self, parsed: CommandRequest) -> bytes:
        left_ms = max(1, int((self._ends_s - self._monotonic()) * 1000))
        room = self._request.gateway.settings.answer_bytes_max
        try:
            return await _run(self._request, parsed.bounded(left_ms), room, _ONE, self._encoded)
        except EngineError as refusal:
            return bodies.outcome(refusal, self._encoded)
        except Exception as error:  # noqa: BLE001 - the other commands have replies of their own
            return _failed(self._request, error, self._encoded)

    async def _flush(self) -> list[bytes]:
        run, self._run = self._run, CommandRun(self._request.gateway.command_limits)
        commands = run.commands()
        replies: asyncio.Future[Sequence[Reply | EngineError]] = asyncio.get_running_loop().create_future()

        def answer(found: Sequence[Reply | EngineError]) -> None:
            # Unless who waited for them was cancelled: reads of groups, to be undone then, run alone.
            if not replies.done():
                replies.set_result(found)

        if commands:
            self._request.engine.submit_each(commands, answer, self._request.principal.quotas)
        else:
            replies.set_result(())
        found: list[bytes] = []
        outcomes = run.outcomes(await replies)
        has_time = slice_of(self._monotonic)
        for outcome in outcomes:
            if isinstance(outcome, tuple):
                answered = Answered(*outcome, 0, _ONE)
                # A coroutine and more for each would add a tenth to what a short command takes.
                shaped = (
                    _shape(self._request, answered, self._encoded)
                    if type(answered.reply) in _BRIEF
                    else await _shaped(self._request, answered, self._encoded)
                )
                found.append(shaped)
            else:
                found.append(_added(outcome, self._encoded))
            if not has_time():
                await self._request.take_turn()
                has_time = slice_of(self._monotonic)
        return found


def _added(entry_id: EngineError | int, encoded: Encoding) -> bytes:
    """The reply of a plain XADD, or of a command that was refused before."""
    if isinstance(entry_id, EngineError):
        return bodies.outcome(entry_id, encoded)
    text = b"%d-%d" % (entry_id >> 64, entry_id & SEQUENCE_MAX)
    return bodies.outcome(text, encoded) if encoded.reply else b'{"result":"%b"}' % text


@contextmanager
def _publishing(request: Request, items: Sequence[Adds | Parsed]) -> Iterator[Sequence[Adds | Parsed]]:
    """Be a part of the request's trace: one span for all that is published, which keeps its context."""
    tracer, traceparent = request.gateway.tracer, request.traceparent
    if tracer is None or traceparent is None:
        yield items
        return
    published = [one for item in items if (one := _published(item)) is not None]
    if not published:
        yield items
        return
    streams, count = {stream for stream, _ in published}, sum(len(bodies) for _, bodies in published)
    with tracer.sending(streams, count, traceparent) as kept:
        yield [_with_traceparent(item, kept) for item in items]


def _published(item: Adds | Parsed) -> tuple[str, Sequence[bytes]] | None:
    command = item.command if isinstance(item, CommandRequest) else item
    return (command.stream, command.bodies) if isinstance(command, Adds | XAdd) else None


def _with_traceparent(item: Adds | Parsed, traceparent: str) -> Adds | Parsed:
    if isinstance(item, Adds):
        return msgspec.structs.replace(item, bodies=tracing.bodies_with(item.bodies, traceparent))
    if isinstance(item, CommandRequest) and isinstance(item.command, XAdd):
        return msgspec.structs.replace(item, command=tracing.with_traceparent(item.command, traceparent))
    return item


def _note_action(request: Request, parsed: CommandRequest) -> None:
    """Have the audit log say how the command ends, if it is one for it."""
    audited = parsed.audited if request.gateway.audit.is_on else None
    if audited is not None:
        action, names = audited
        request.note_action(action, parsed.name, **names)


def _authorise_each(request: Request, parsed: CommandRun) -> None:
    allowed = set[Hashable]()
    # All of them: a refused one ends the request, and does not hide those behind it.
    for item in parsed.items:
        if isinstance(item, CommandRequest):
            _note_action(request, item)
    for item in parsed.items:
        if isinstance(item, CommandRequest):
            _authorise(request, item, allowed)
        elif isinstance(item, Adds):
            request.require(Action.WRITE, item.stream)


def _authorise(request: Request, parsed: CommandRequest, allowed: set[Hashable]) -> None:
    """Raise `forbidden` unless the caller may run the command. What was `allowed` is not asked again."""
    group = getattr(parsed.command, "group", None)
    consumer = getattr(parsed.command, "consumer", None)
    wanted = parsed.actions, parsed.streams, group, consumer
    if wanted in allowed:
        return
    for action, resource in needed(parsed, request.principal):
        request.principal.require(action, resource)
    allowed.add(wanted)


async def _run(request: Request, parsed: CommandRequest, room: int, name: str, encoded: Encoding) -> bytes:
    if parsed.command is None:
        return _immediate(request, parsed, encoded)
    if redis.is_long(parsed):
        await transactions.probe(request.engine, request.gateway.command_limits, parsed, room, name)
        parsed = redis.within(parsed, room, request.gateway.command_limits, name)
        if request.principal.may_see_all:
            parsed = redis.seeing_all(parsed)
    assert parsed.command is not None, "a limit takes no command away"
    reply = await request.execute(parsed.command, synced=parsed.synced)
    write = partial(_write, request, Answered(parsed, reply, room, name), encoded)
    return await asyncio.to_thread(write) if redis.is_laborious((reply,)) else write()


async def _shaped(request: Request, answered: Answered, encoded: Encoding) -> bytes:
    """The result of one of several commands, with any reply."""
    parsed, reply = answered.parsed, answered.reply
    if (
        isinstance(parsed, CommandRequest)
        and parsed.command is not None
        and not isinstance(reply, EngineError)
    ):
        request.note_read(parsed.command, reply)
        if redis.is_laborious((reply,)):
            return await asyncio.to_thread(_shape, request, answered, encoded)
    return _shape(request, answered, encoded)


def _shape(request: Request, answered: Answered, encoded: Encoding) -> bytes:
    """The same, here and now. What it delivers is counted before."""
    parsed, reply, _, _ = answered
    if isinstance(parsed, EngineError):
        return bodies.outcome(parsed, encoded)
    if parsed.command is None:
        return _immediate(request, parsed, encoded)
    if isinstance(reply, EngineError):
        return bodies.outcome(reply, encoded)
    try:
        return _write(request, answered, encoded)
    except EngineError as refusal:
        return bodies.outcome(refusal, encoded)
    except Exception as error:  # noqa: BLE001 - the other commands have run too, and have their replies
        return _failed(request, error, encoded)


def _failed(request: Request, error: Exception, encoded: Encoding) -> bytes:
    return bodies.outcome(transactions.failed_alone(request.gateway, error, request.request_id), encoded)


def _write(request: Request, answered: Answered, encoded: Encoding) -> bytes:
    parsed, reply, room, name = answered
    assert isinstance(parsed, CommandRequest), "a refusal is written at once"
    written = parsed.written(reply, request.may_read, base64=encoded.reply)
    redis.check_written(parsed, len(written), room, name)
    return bodies.result(written)


def _immediate(request: Request, parsed: CommandRequest, encoded: Encoding) -> bytes:
    return bodies.outcome(parsed.immediate(request.gateway.clock.wall_ms() * 1000), encoded)
