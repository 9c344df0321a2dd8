"""Runs the Redis commands of a request: one, several one after the other, or several as one turn.

Knows: which commands of a pipeline run together, how long they may wait, what ends one early; that what is
published is a part of the request's trace.
Must never know: statuses, any single command.
"""

import asyncio
from collections.abc import AsyncGenerator, Hashable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from app import logs, redis
from app.auth import Action
from app.errors import CODES, RefusalError
from app.http.requests import Request
from app.live.turns import slice_of
from app.live.waiting import ClientLeftError
from app.metrics import tracing
from app.redis import CommandRequest, bodies, transactions
from app.redis.bodies import Encoding
from app.redis.rights import consumer_of, first_missing
from app.redis.runs import Adds, CommandRun, Parsed, runs_alone
from app.redis.steps import CommandSteps, Room, Words, in_words_of_redis
from engine import EngineError, How, ask, errors
from engine.commands import XAdd
from engine.replies import Reply


def parse_each(steps: CommandSteps, rows: Sequence[Words | EngineError]) -> CommandRun:
    """Parse the commands of a pipeline, however many: the engine runs them in runs of bounded size."""
    run = CommandRun(steps.limits)
    before: Words = ()
    parsed: Parsed | None = None
    for row in rows:
        if isinstance(row, EngineError):
            run.append(row)
        elif not run.add_plain(row):
            # What repeats the command before it is the same. Each invalid one has a line in the audit log.
            if row != before or not isinstance(parsed, CommandRequest):
                before, parsed = row, steps.parse(row)
            run.append(parsed)
    return run


def parse_together(steps: CommandSteps, rows: Sequence[Words | EngineError]) -> CommandRun:
    """Parse the commands of a transaction. Raises EXECABORT if one is unknown or has invalid arguments."""
    words = list[Words]()
    for row in rows:
        if isinstance(row, EngineError):
            raise errors.invalid(redis.EXECABORT, row.detail)
        words.append(row)
    redis.check_transaction(words)
    return parse_each(steps, words)


async def run(request: Request, steps: CommandSteps, parsed: Parsed) -> bytes:
    """Run one command. Raises EngineError, `forbidden`."""
    command = _authorise_one(request, parsed)
    settings = request.gateway.settings
    with _publishing(request, [command.bounded(settings.wait_ms_max)]) as (traced,):
        assert isinstance(traced, CommandRequest), "it stays a command"
        return await _run(request, steps, traced, steps.room)


async def run_unblocked(request: Request, body: bytes, room: int) -> bytes:
    """Run the command in this JSON list without blocking; its reply has at most `room` bytes.

    Raises EngineError, `forbidden`.
    """
    encoded = Encoding()
    steps = CommandSteps(request, encoded)
    parsed = steps.parse(bodies.one(body, encoded, steps.limits))
    if isinstance(parsed, CommandRequest) and getattr(parsed.command, "block_ms", None) is not None:
        assert parsed.command is not None, "it has an attribute"
        parsed = msgspec.structs.replace(
            parsed, command=msgspec.structs.replace(parsed.command, block_ms=None)
        )
    try:
        command = _authorise_one(request, parsed)
        result = await _run(request, steps, command, Room(min(room, steps.room.bytes_max)))
    except (EngineError, RefusalError) as refusal:
        request.end_actions(CODES[refusal.code].status, refusal.code)
        raise
    request.end_actions(200, "")
    return result


def run_each(request: Request, steps: CommandSteps, parsed: CommandRun) -> AsyncGenerator[list[bytes], None]:
    """Run commands one after the other: their results in order, some at a time. What has not begun when the
    generator is closed is not run. The limit of their waiting time is for all together.

    Raises `forbidden`, `rate_limited` before the first is run.
    """
    _authorise_each(request, parsed)
    request.take_more(parsed.count)
    return _Pipeline(request, steps).run(parsed)


async def run_together(request: Request, steps: CommandSteps, parsed: CommandRun) -> list[bytes]:
    """Run commands as one turn. Raises EngineError, and runs nothing, if too many of them read."""
    _authorise_each(request, parsed)
    request.take_more(parsed.count)
    with _publishing(request, parsed.items) as traced:
        found = await transactions.run(steps, traced)
    assert found is not None, "there was no condition"
    outcomes, room = found
    for outcome in outcomes:
        if isinstance(outcome, tuple):
            request.note_given(outcome[0].command, outcome[1])
    return await steps.write_each(outcomes, request.take_turn, room)


class _Pipeline:
    """Runs commands in order: short ones in runs of the engine, each long one by itself, so that its reply
    has left before the next is made.
    """

    def __init__(self, request: Request, steps: CommandSteps) -> None:
        gateway = request.gateway
        self._request = request
        self._steps = steps
        self._monotonic = gateway.clock.monotonic
        self._ends_s = self._monotonic() + gateway.settings.wait_ms_max / 1000
        # Long commands go on for a slice of time before other callers have their turn.
        self._has_time = slice_of(self._monotonic)
        self._run = CommandRun(steps.limits)
        # Why no more of it is run: the caller's token has ended, or the gateway stops.
        self._end: EngineError | None = None

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
                    if not self._has_time():
                        await self._take_turn()
                    yield await self._run_alone(item)
                elif isinstance(item, Adds):
                    self._run.add_adds(item)
                else:
                    self._run.add(item)
            if self._run.count:
                yield await self._flush()

    async def _take_turn(self) -> None:
        await self._request.take_turn()
        self._has_time = slice_of(self._monotonic)
        try:
            self._request.check_access()
        except RefusalError as refusal:
            self._end = in_words_of_redis(refusal)

    async def _run_alone(self, parsed: CommandRequest) -> list[bytes]:
        left_ms = max(1, int((self._ends_s - self._monotonic()) * 1000))
        parsed = self._steps.bound(parsed.bounded(left_ms))
        try:
            reply: Reply | EngineError | None = self._end or await _reply(self._request, self._steps, parsed)
        except EngineError as refusal:
            reply = refusal
        except RefusalError as refusal:
            reply = self._refuse(refusal)
        except ClientLeftError:
            raise
        except Exception as error:  # noqa: BLE001 - the other commands have replies of their own
            logs.note_fault(error, self._request.request_id)
            reply = errors.internal()
        return await self._steps.write_each([(parsed, reply)], self._request.take_turn)

    def _refuse(self, refusal: RefusalError) -> EngineError:
        """A refusal in the place of a reply; what follows is not run, unless it is of this command alone."""
        found = in_words_of_redis(refusal)
        if refusal.code != "too_many_waiters":
            self._end = found
        return found

    async def _flush(self) -> list[bytes]:
        run, self._run = self._run, CommandRun(self._steps.limits)
        commands, request = run.commands(), self._request
        replies: Sequence[Reply | EngineError] = ()
        try:
            if commands and self._end is None:
                # Cancelled, it takes nothing back: reads of groups run alone.
                replies = await ask(request.engine, request.call(commands, How.EACH))
        except RefusalError as refusal:
            self._refuse(refusal)
        if self._end is not None:
            replies = [self._end] * len(commands)
        return await self._steps.write_each([*run.outcomes(replies)], request.take_turn)


@contextmanager
def _publishing(request: Request, items: Sequence[Adds | Parsed]) -> Iterator[Sequence[Adds | Parsed]]:
    """Be a part of the request's trace: one span for all that is published, which keeps its context."""
    tracer, traceparent = request.gateway.reports.tracer, request.traceparent
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


def _authorise_one(request: Request, parsed: Parsed) -> CommandRequest:
    """The command, whose end is that of its request. Raises why it is invalid, or `forbidden`."""
    if isinstance(parsed, EngineError):
        raise parsed
    audited = parsed.audited if request.gateway.access.audit.is_on else None
    if audited is not None:
        action, names = audited
        request.note_action(action, parsed.name, **names)
    _authorise(request, parsed)
    return parsed


def _authorise_each(request: Request, run: CommandRun) -> None:
    """Raise `forbidden` unless the caller may run all of them; then none of them is run."""
    allowed = set[Hashable]()
    try:
        for item in run.items:
            if isinstance(item, Adds):
                request.require(Action.WRITE, item.stream)
            elif isinstance(item, CommandRequest) and (asked := _asked(item)) not in allowed:
                _authorise(request, item)
                allowed.add(asked)
    except RefusalError:
        for item in run.items:
            if isinstance(item, CommandRequest) and (audited := item.audited) is not None:
                request.note_action(audited[0], item.name, **audited[1])
        raise


def _asked(parsed: CommandRequest) -> Hashable:
    """What a caller needs for the command."""
    command = parsed.command
    group, consumer = getattr(command, "group", None), consumer_of(command)
    return parsed.actions, parsed.target_actions, parsed.streams, group, consumer


def _authorise(request: Request, parsed: CommandRequest) -> None:
    missing = first_missing(parsed, request.principal)
    if missing is not None:
        request.principal.require(*missing)


async def _run(request: Request, steps: CommandSteps, parsed: CommandRequest, room: Room) -> bytes:
    """The reply to one command, whose end is that of its request. Raises EngineError."""
    parsed = steps.bound(parsed, room)
    try:
        reply = await _reply(request, steps, parsed, room)
    except EngineError as refusal:
        _note_late(request, parsed, refusal)
        raise
    _note_late(request, parsed, reply)
    if parsed.command is not None and reply is not None:
        request.note_reply(parsed.command, reply)
    if reply is not None and redis.is_laborious((reply,)):
        return await asyncio.to_thread(steps.encode, parsed, reply, room)
    return steps.encode(parsed, reply, room)


async def _reply(
    request: Request, steps: CommandSteps, parsed: CommandRequest, room: Room | None = None
) -> Reply | None:
    """The engine's reply to a command within its limits. Raises EngineError, and what a wait raises."""
    if parsed.command is None:
        return None
    await steps.probe(parsed, room)
    reply = await request.reply_to(parsed.command, synced=parsed.synced)
    request.note_given(parsed.command, reply)
    return reply


def _note_late(request: Request, parsed: CommandRequest, reply: Reply | EngineError | None) -> None:
    """Have the audit log say what only the reply shows."""
    if parsed.audited is None and (audited := parsed.audited_by(reply)) is not None:
        request.note_action(audited[0], parsed.name, **audited[1])
