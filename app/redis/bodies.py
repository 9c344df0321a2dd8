"""Commands as JSON: lists → words, replies → `{"result"}` and `{"error"}`, and the queue of one request.

Knows: the wire form of the "Redis over REST" SDKs; that all commands of a request are parsed, and may be run
by its caller, before one of them is; that what is published is a part of the request's trace.
Must never know: what a command means, statuses, sockets.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, Final, TypeAlias

import msgspec

from app import logs, redis
from app.auth import Action
from app.errors import CODES, RefusalError, invalid
from app.http import strict_json
from app.http.requests import Request
from app.limits import CommandLimits
from app.live.turns import slice_of
from app.live.waiting import ClientLeftError
from app.metrics import tracing
from app.redis.queue import (
    ITEMS_A_LOOK,
    Adds,
    CommandQueue,
    CommandRun,
    Parsed,
    Room,
    RunResult,
    parse,
)
from app.redis.request import CommandRequest, Visible
from app.redis.resp import Resp, arguments, load, to_json
from app.redis.rights import consumer_of, first_missing
from engine import EngineError, errors
from engine.commands.types import XAdd
from engine.ids import SEQUENCE_MAX
from engine.replies import Reply

# Bodies slightly beyond a limit are parsed, so that the refusal can name the limit.
_SLACK: Final = 2
# What a connection may have without asking is sent at once.
_PIECE_BYTES: Final = 64 << 10
# With more values than this a body is decoded command by command: some milliseconds at once.
_VALUES_AT_ONCE_MAX: Final = 200_000
_COMMANDS: Final = 'the body is a list of commands, [["XADD", …], …]'

_encode: Final = msgspec.json.Encoder().encode


class Encoding(msgspec.Struct, frozen=True):
    """Whether strings are base64: those of the arguments, those of the answer. A codec of replies."""

    # Around a result.
    frame_bytes: ClassVar = len(b'{"result":}')
    is_repeated: ClassVar = False

    arguments: bool = False
    answer: bool = False

    def refusal(self, refusal: EngineError) -> bytes:
        """Write Redis's sentence."""
        return outcome(refusal, self)

    def immediate(self, answer: Resp) -> bytes:
        """Write the result of a command that needs no engine."""
        return outcome(answer, self)

    def reply(self, parsed: CommandRequest, reply: Reply | EngineError, visible: Visible) -> bytes:
        """Write the engine's reply. Raises EngineError."""
        return b'{"result":%b}' % parsed.written(reply, visible, base64=self.answer)

    def each_id(self, entry_ids: Sequence[int]) -> bytes:
        """Write the IDs of entries."""
        texts = [b"%d-%d" % (entry_id >> 64, entry_id & SEQUENCE_MAX) for entry_id in entry_ids]
        if self.answer:
            return self.join([outcome(text, self) for text in texts])
        return self.join([b'{"result":"%b"}' % text for text in texts])

    def join(self, written: Sequence[bytes]) -> bytes:
        """Put results one behind the other."""
        return b",".join(written)


Words = Sequence[bytes]
CommandReply: TypeAlias = "Resp | EngineError"


def one(body: bytes, encoded: Encoding, limits: CommandLimits) -> Words:
    """Read the words of one command.

    Raises `malformed_json`; EngineError for an invalid argument, or for too many or too long ones.
    """
    _check_length(body, encoded, limits)
    return _words(_load(body, _SLACK * limits.words_max), encoded, limits.words_max)


def many(
    body: bytes, encoded: Encoding, commands_max: int, limits: CommandLimits
) -> list[Words | EngineError]:
    """Read the words of each command; an invalid command is returned as its refusal."""
    if strict_json.has_more_items(body, commands_max):
        # Before any list is built.
        raise _too_many(commands_max)
    if body.count(b",") > _VALUES_AT_ONCE_MAX or len(body) > limits.command_bytes_max:
        texts = strict_json.items_of(body, _COMMANDS)
        check_number(texts, commands_max)
        # All of their words are kept.
        strict_json.expect_room(body, copies=2, values=body.count(b","))
        return [_words_or_refusal(partial(_words_of_text, bytes(text), encoded, limits)) for text in texts]
    rows = _load(body, strict_json.VALUES_MAX)
    if not isinstance(rows, list):
        raise invalid("", _COMMANDS)
    check_number(rows, commands_max)
    return [_words_or_refusal(partial(_words, row, encoded, limits.words_max)) for row in rows]


def _words_of_text(text: bytes, encoded: Encoding, limits: CommandLimits) -> Words:
    """One command of many that have many words, or long ones: a decoder lets no other thread go on."""
    _check_length(text, encoded, limits)
    if strict_json.exceeds(text, _SLACK * limits.words_max):
        raise _too_many_words(limits.words_max)
    return _words(_load(text, strict_json.VALUES_MAX), encoded, limits.words_max)


def _check_length(text: bytes, encoded: Encoding, limits: CommandLimits) -> None:
    """Refuse a command that is too long however it is written, before it is read."""
    # As base64 its words are a third longer.
    most = limits.command_bytes_max * (2 if encoded.arguments else 1)
    if len(text) > most and strict_json.least_bytes(text) > most:
        raise _too_long(limits.command_bytes_max)


def check_number(rows: Sequence[object], commands_max: int) -> None:
    """Raise `too_many_entries` if there are more than `commands_max` commands."""
    if len(rows) > commands_max:
        raise _too_many(commands_max)


def _too_many(commands_max: int) -> RefusalError:
    return RefusalError("too_many_entries", f"one request has at most {commands_max} commands")


def _load(body: bytes, most: int) -> object:
    if strict_json.exceeds(body, most):
        raise RefusalError("body_too_large", f"the body has more than {most} values")
    # Its words are strings first, and bytes then.
    strict_json.expect_room(body, copies=1, strings=1, values=body.count(b","))
    try:
        return load(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise strict_json.malformed(str(error)) from None
    except RecursionError:
        raise strict_json.malformed("it is nested too deep") from None


def _words(row: object, encoded: Encoding, words_max: int) -> Words:
    if not isinstance(row, list):
        raise invalid("", 'a command is a list of words, ["XADD", …]')
    if len(row) > words_max:
        raise _too_many_words(words_max)
    return arguments(row, base64=encoded.arguments)


def _too_many_words(words_max: int) -> EngineError:
    return errors.invalid(
        f"ERR too many arguments: a command has at most {words_max} words (ids_max, entry_fields_max, "
        "request_streams_max); use several commands"
    )


def _too_long(bytes_max: int) -> EngineError:
    detail = f"the words of a command have at most {bytes_max} bytes together (entry_bytes_max)"
    return EngineError("entry_too_large", f"ERR command too long: {detail}; use several commands", detail)


def _words_or_refusal(read: Callable[[], Words]) -> Words | EngineError:
    try:
        return read()
    except EngineError as refusal:
        return refusal


def outcome(reply: CommandReply, encoded: Encoding) -> bytes:
    """Write the result of one command."""
    return _encode(_outcome(reply, encoded))


def outcomes(written: Sequence[bytes]) -> bytes:
    """Write the results of several commands, in order."""
    return b"[%b]" % b",".join(written)


async def _next(rest: AsyncGenerator[list[bytes], None]) -> list[bytes] | None:
    return await anext(rest, None)


async def outcomes_in_pieces(
    begun: Sequence[bytes], rest: AsyncGenerator[list[bytes], None]
) -> AsyncGenerator[bytes, None]:
    """The same in pieces: what is `begun`, then the rest as it comes. Long ones are not copied together."""
    some: Sequence[bytes] | None = begun
    mark = b"["
    try:
        while some is not None:
            short, size = list[bytes](), 0
            for outcome in some:
                if size + len(outcome) > _PIECE_BYTES and short:
                    yield b"".join(short)
                    short, size = [], 0
                short.append(mark)
                mark = b","
                if len(outcome) > _PIECE_BYTES:
                    yield short.pop()
                    yield outcome
                else:
                    short.append(outcome)
                    size += len(outcome)
            if short:
                yield b"".join(short)
            # Given up before the next is made.
            some = await _next(rest)
    finally:
        await rest.aclose()
    yield b"]"


def _outcome(reply: CommandReply, encoded: Encoding) -> dict[str, object]:
    if isinstance(reply, EngineError):
        return {"error": reply.redis}
    return {"result": to_json(reply, base64=encoded.answer)}


# ---- from bodies to commands, which a thread may do


def read_one(body: bytes, encoded: Encoding, limits: CommandLimits) -> tuple[Words, Adds | Parsed]:
    """One command with its words, or why it is invalid. Raises `malformed_json`."""
    try:
        words = one(body, encoded, limits)
    except EngineError as refusal:
        return (), refusal
    run = CommandRun(limits)
    return words, run.items[0] if run.add_plain(words) else parse(words, limits)


class ParsedCommands(msgspec.Struct):
    """The commands of a request. `invalid` are the words of those that are."""

    run: CommandRun
    invalid: list[tuple[Words, EngineError]]


def parse_each(rows: Sequence[Words | EngineError], limits: CommandLimits) -> ParsedCommands:
    """Parse the commands of a pipeline, however many: the engine runs them in runs of bounded size."""
    found = ParsedCommands(CommandRun(limits), [])
    before: Words = ()
    parsed: Parsed | None = None
    for row in rows:
        if isinstance(row, EngineError):
            found.run.append(row)
        elif not found.run.add_plain(row):
            # What repeats the command before it is the same. Each invalid one has a line in the audit log.
            if row != before or not isinstance(parsed, CommandRequest):
                before, parsed = row, parse(row, limits)
                if isinstance(parsed, EngineError):
                    found.invalid.append((row, parsed))
            found.run.append(parsed)
    return found


def parse_together(
    rows: Sequence[Words | EngineError], limits: CommandLimits
) -> ParsedCommands | EngineError:
    """Parse the commands of a transaction; EXECABORT if one is unknown or has invalid arguments."""
    words = list[Words]()
    for row in rows:
        if isinstance(row, EngineError):
            return errors.invalid(redis.EXECABORT, row.detail)
        words.append(row)
    try:
        redis.check_transaction(words)
    except EngineError as refusal:
        return refusal
    return parse_each(rows, limits)


# ---- the queue of a request


class RequestQueue(CommandQueue):
    """The commands of one request."""

    # Each of its runs has more than one client would join.
    joins = False

    def __init__(self, request: Request, encoded: Encoding) -> None:
        super().__init__(request, encoded, self, deque())
        self._request = request
        self._results: list[bytes] = []
        self._ran: asyncio.Future[None] | None = None

    # ---- as its own host

    @property
    def is_gone(self) -> bool:
        """Whether no one waits for the results of the run under way."""
        return self._ran is None or self._ran.done()

    def put(self, written: bytes) -> None:
        """These are the next results."""
        if written:
            self._results.append(written)

    def go_on(self) -> None:
        """The run under way is done."""
        if self._ran is not None and not self._ran.done():
            self._ran.set_result(None)

    def refuse(self, error: BaseException, name: str = "") -> bytes | None:
        """The run under way has failed."""
        if self._ran is not None and not self._ran.done():
            self._ran.set_exception(error)
        return None

    def _take_back(self, outcomes: Iterable[RunResult]) -> None:
        # It has what was delivered to it, and takes it back once.
        self._request.take_back()

    # ---- one

    def authorise(self, parsed: CommandRequest) -> None:
        """Have the audit log say what is about to be done, by the end of the request. Raises `forbidden`."""
        request = self._request
        audited = parsed.audited if request.gateway.access.audit.is_on else None
        if audited is not None:
            action, names = audited
            request.note_action(action, parsed.name, **names)
        _authorise(request, parsed)

    def note_late(self, parsed: CommandRequest, reply: Reply | EngineError | None) -> None:
        """Have the audit log say what only the reply shows."""
        if parsed.audited is None and (audited := parsed.audited_by(reply)) is not None:
            self._request.note_action(audited[0], parsed.name, **audited[1])

    async def answer_one(self, parsed: CommandRequest, room: Room | None = None) -> bytes:
        """The reply to one command, whose end is that of its request. Raises EngineError."""
        parsed = self.bound(parsed, room)
        with self.publishing([parsed]) as (traced,):
            assert isinstance(traced, CommandRequest), "it stays a command"
            try:
                reply = await self.ask_alone(traced, room)
            except EngineError as refusal:
                self.note_late(parsed, refusal)
                raise
        self.note_late(parsed, reply)
        if parsed.command is not None and reply is not None:
            self._request.note_reply(parsed.command, reply)
        return await self.write_one(parsed, reply, room)

    async def write_one(self, parsed: CommandRequest, reply: Reply | None, room: Room | None = None) -> bytes:
        """The reply to one command, in a thread if it is long. Raises EngineError."""
        if redis.is_laborious((reply,)):
            return await asyncio.to_thread(self.encode, parsed, reply, room)
        return self.encode(parsed, reply, room)

    # ---- several

    async def results(self, commands: ParsedCommands) -> AsyncGenerator[list[bytes], None]:
        """Run commands one after the other: their results in order, some at a time. What has not begun when
        the generator is closed is not run. The limit of their waiting time is for all together.

        Raises `forbidden`, `rate_limited` before the first is run.
        """
        await self._admit_each(commands)
        monotonic, settings = self._clock.monotonic, self._request.gateway.settings
        ends_s = monotonic() + settings.wait_ms_max / 1000
        if commands.run.count > 1:
            await self._begin_turn()
        has_time = slice_of(monotonic)
        with self.publishing(commands.run.items) as items:
            self.waiting.extend(items)
            while self.waiting:
                run = self._next_run()
                if run.count:
                    yield await self._run(run)
                else:
                    left_ms = max(1, int((ends_s - monotonic()) * 1000))
                    yield [await self._run_alone(self.waiting.popleft().bounded(left_ms))]
                if self.waiting and (run.is_full() or not has_time()):
                    await self._begin_turn()
                    has_time = slice_of(monotonic)

    async def together(self, commands: ParsedCommands) -> list[bytes]:
        """Run commands as one turn. Raises EngineError, and runs nothing, if too many of them read."""
        await self._admit_each(commands)
        with self.publishing(commands.run.items) as items:
            written = await self.transact(items)
        assert written is not None, "there was no condition"
        return written

    def _next_run(self) -> CommandRun:
        """What goes together next; nothing, where the next command is by itself."""
        run, waiting = CommandRun(self.limits), self.waiting
        has_time = slice_of(self._clock.monotonic)
        while waiting and not run.is_full():
            item = waiting[0]
            if isinstance(item, Adds):
                run.add_adds(item)
            elif not run.take(item, self.bound):
                break
            waiting.popleft()
            if not run.count % ITEMS_A_LOOK and not has_time():
                break
        return run

    async def _run(self, run: CommandRun) -> list[bytes]:
        self._ran = asyncio.get_running_loop().create_future()
        self.submit(run)
        await self._ran
        results, self._results = self._results, []
        return results

    async def _run_alone(self, parsed: CommandRequest) -> bytes:
        try:
            return await self.run_alone(self.bound(parsed))
        except ClientLeftError:
            raise
        except Exception as error:  # noqa: BLE001 - the other commands have replies of their own
            logs.note_fault(error, self._request.request_id)
            return self.write((parsed, errors.internal()))

    async def _begin_turn(self) -> None:
        await self._request.take_turn()
        try:
            self._request.check_access()
        except RefusalError as refusal:
            self.end = self._ending(refusal)

    async def _admit_each(self, commands: ParsedCommands) -> None:
        """Raise `forbidden` unless the caller may run all of them; then none of them is run."""
        request, items = self._request, commands.run.items
        async for words, refusal in self.in_slices(commands.invalid):
            self.admit(words, refusal)
        allowed = set[Hashable]()
        try:
            async for at, item in self.in_slices(enumerate(items)):
                if isinstance(item, Adds):
                    request.require(Action.WRITE, item.stream)
                elif isinstance(item, CommandRequest):
                    if (asked := _asked(item)) not in allowed:
                        _authorise(request, item)
                        allowed.add(asked)
                    items[at] = self.admit((), item)
        except RefusalError:
            async for item in self.in_slices(items):
                if isinstance(item, CommandRequest) and (audited := item.audited) is not None:
                    request.note_action(audited[0], item.name, **audited[1])
            raise
        request.take_more(commands.run.count)

    # ---- traces

    @contextmanager
    def publishing(self, items: Sequence[Adds | Parsed]) -> Iterator[Sequence[Adds | Parsed]]:
        """Be a part of the request's trace: one span for all that is published, which keeps its context."""
        tracer, traceparent = self._request.gateway.reports.tracer, self._request.traceparent
        published = [] if traceparent is None else [one for item in items if (one := _published(item))]
        if tracer is None or traceparent is None or not published:
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


def _asked(parsed: CommandRequest) -> Hashable:
    """What a caller needs for the command."""
    command = parsed.command
    group, consumer = getattr(command, "group", None), consumer_of(command)
    return parsed.actions, parsed.target_actions, parsed.streams, group, consumer


def _authorise(request: Request, parsed: CommandRequest) -> None:
    missing = first_missing(parsed, request.principal)
    if missing is not None:
        request.principal.require(*missing)


async def run_unblocked(request: Request, body: bytes, room: int) -> bytes:
    """Run the command in this JSON list without blocking; its reply has at most `room` bytes.

    Raises EngineError, `forbidden`.
    """
    encoded = Encoding()
    queue = RequestQueue(request, encoded)
    words = one(body, encoded, queue.limits)
    parsed = queue.parse(words)
    if isinstance(parsed, EngineError):
        raise parsed
    if getattr(parsed.command, "block_ms", None) is not None:
        assert parsed.command is not None, "it has an attribute"
        unblocked = msgspec.structs.replace(parsed.command, block_ms=None)
        parsed = msgspec.structs.replace(parsed, command=unblocked)
    try:
        queue.authorise(parsed)
        result = await queue.answer_one(parsed, Room(min(room, queue.room.bytes_max)))
    except (EngineError, RefusalError) as refusal:
        request.end_actions(CODES[refusal.code].status, refusal.code)
        raise
    request.end_actions(200, "")
    return result
