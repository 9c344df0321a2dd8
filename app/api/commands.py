"""The command API: Redis commands as JSON lists; one, several, or several as one turn."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from fastapi import Depends, Header

from app.auth import Access, Action
from app.errors import CODES
from app.http.asks import Ask
from app.http.media import JSON
from app.http.models import ABSENT, Base64Flag, ResponseModel
from app.http.operations.binder import Body, RequestParameter, request_of
from app.http.operations.router import Router
from app.http.request_bodies import BodyReading
from app.http.requests import Request
from app.http.responses import JSON as JSON_TYPE
from app.http.responses import Response, StreamingResponse
from app.limits import CommandLimits
from app.redis import bodies, is_laborious
from app.redis.bodies import Encoding, ParsedCommands, RequestQueue, Words
from app.redis.bounds import takes_two_steps
from app.redis.queue import Adds, Parsed
from app.redis.request import CommandRequest
from engine import EngineError
from engine.commands.types import XAck, XAdd
from engine.replies import Added, Reply

router: Final = Router("commands")

# More is parsed in a thread. A word may have a byte and take a microsecond, so that all take a slice of time.
_INLINE_BYTES_MAX: Final = 64 << 10
_INLINE_WORDS_MAX: Final = 4_000
# Parsing a list of this size may take a millisecond, and a caller may send many lists at once.
_TURN_BYTES_MIN: Final = 8 << 10
# A longer answer is sent in pieces, while further commands run.
_WHOLE_BYTES_MAX: Final = 64 << 10

# What is not about the command but about the gateway, or what is behind it, keeps its status; the rest is 400
# with Redis's sentence.
_GATEWAY_STATUSES: Final = frozenset({401, 403, 413, 429, 500, 502, 503, 507})

# A string, number or boolean, without a union: generated clients take the value instead of a wrapper.
_SCALAR: Final = {"not": {"type": ["null", "array", "object"], "items": {}}}
_WORDS: Final = "a command's words"

UpstashEncoding = Annotated[
    Base64Flag | None,
    Header(alias="Upstash-Encoding", description="`base64`: strings of the answer are base64"),
]
WeirEncoding = Annotated[
    Base64Flag | None,
    Header(alias="Weir-Encoding", description="`base64`: strings of arguments and answer are base64"),
]


class CommandResult(ResponseModel):
    """The result of a command: `result` in the shapes of RESP2, or `error`, Redis's sentence."""

    result: Any = ABSENT
    error: str = ABSENT


class _CommandBody(Body):
    """One command: a list of words."""

    content: ClassVar = {JSON: {"schema": {"type": "array", "items": _SCALAR, "description": _WORDS}}}

    @classmethod
    def reading(cls, request: Request, arguments: Mapping[str, Any]) -> BodyReading[Any]:
        """Its words, and the command or why it is invalid."""
        encoded, limits = _expected(request, arguments)
        reader = partial(bodies.read_one, encoded=encoded, limits=limits)
        return BodyReading(reader, _INLINE_BYTES_MAX, inline_values_max=_INLINE_WORDS_MAX)


class _CommandsBody(Body):
    """A list of commands."""

    # A word that is none is answered as its command's error.
    content: ClassVar = {
        JSON: {
            "schema": {"type": "array", "items": {"type": "array", "items": {}, "description": _WORDS}},
        }
    }

    @classmethod
    def reading(cls, request: Request, arguments: Mapping[str, Any]) -> BodyReading[Any]:
        """The commands of a pipeline."""
        encoded, limits = _expected(request, arguments)
        most = request.gateway.settings.pipeline_commands_max

        def read(body: bytes) -> ParsedCommands:
            return bodies.parse_each(bodies.many(body, encoded, most, limits), limits)

        return _several_read(read)


class _TransactionBody(_CommandsBody):
    """The same, as one turn."""

    @classmethod
    def reading(cls, request: Request, arguments: Mapping[str, Any]) -> BodyReading[Any]:
        """The commands of a transaction, or why none of them is run."""
        encoded, limits = _expected(request, arguments)
        settings = request.gateway.settings

        def read(body: bytes) -> ParsedCommands | EngineError:
            rows = bodies.many(body, encoded, settings.pipeline_commands_max, limits)
            bodies.check_number(rows, settings.transaction_commands_max)
            return bodies.parse_together(rows, limits)

        return _several_read(read)


def _several_read(read: Callable[[bytes], Any]) -> BodyReading[Any]:
    return BodyReading(
        read, _INLINE_BYTES_MAX, inline_values_max=_INLINE_WORDS_MAX, turn_bytes_min=_TURN_BYTES_MIN
    )


CommandBody = Annotated[tuple[Words, Adds | Parsed], _CommandBody, Depends(request_of)]
CommandsBody = Annotated[ParsedCommands, _CommandsBody, Depends(request_of)]
TransactionBody = Annotated[ParsedCommands | EngineError, _TransactionBody, Depends(request_of)]


def _encoding(upstash: bool | None, weir: bool | None) -> Encoding:  # noqa: FBT001 - values of headers
    return Encoding(arguments=bool(weir), answer=bool(weir or upstash))


def _expected(request: Request, arguments: Mapping[str, Any]) -> tuple[Encoding, CommandLimits]:
    """How a body is read."""
    # Any type is read as JSON, unless it is compressed, in parts, or in another charset.
    _ = request.media_type
    encoded = _encoding(arguments.get("upstash_encoding"), arguments.get("weir_encoding"))
    return encoded, request.gateway.limits.commands


def _refused(refusal: EngineError, encoded: Encoding) -> Response:
    if CODES[refusal.code].status in _GATEWAY_STATUSES:
        raise refusal
    response = Response(400, encoded.refusal(refusal))
    response.code = refusal.code
    return response


async def _at_once(results: list[bytes]) -> AsyncGenerator[list[bytes], None]:
    yield results


async def _several(results: AsyncGenerator[list[bytes], None]) -> Response:
    """The results of several commands: long ones are sent as they come, each when the one before has left."""
    begun, size = list[bytes](), 0
    async for some in results:
        begun += some
        size += sum(map(len, some))
        if size > _WHOLE_BYTES_MAX:
            return StreamingResponse(bodies.outcomes_in_pieces(begun, results), (), media_type=JSON_TYPE)
    return Response(200, bodies.outcomes(begun))


class _OneCommand(NamedTuple):
    """One command of one request, which it may run, within its limits."""

    request: Request
    queue: RequestQueue
    encoded: Encoding
    parsed: CommandRequest

    def run(self) -> Response | Ask | Coroutine[Any, Any, Response]:
        """What asks the engine, or answers without it."""
        parsed, command = self.parsed, self.parsed.command
        if command is None:
            return Response(200, self.queue.encode(parsed, None))
        if takes_two_steps(parsed) or getattr(command, "block_ms", None) is not None:
            return self._wait()
        return Ask(
            [command],
            self.answer,
            synced=parsed.synced,
            joins=isinstance(command, XAdd | XAck),
            publishes=isinstance(command, XAdd),
            refused=self.refuse,
        )

    async def _wait(self) -> Response:
        try:
            return Response(200, await self.queue.answer_one(self.parsed))
        except EngineError as refusal:
            return _refused(refusal, self.encoded)

    def answer(self, reply: Reply) -> Response | Coroutine[Any, Any, Response]:
        """The answer to the engine's reply."""
        self.queue.note_late(self.parsed, reply)
        if is_laborious((reply,)):
            return self._write_in_thread(reply)
        try:
            return Response(200, self.queue.encode(self.parsed, reply))
        except EngineError as refusal:
            return _refused(refusal, self.encoded)

    async def _write_in_thread(self, reply: Reply) -> Response:
        try:
            return Response(200, await asyncio.to_thread(self.queue.encode, self.parsed, reply))
        except EngineError as refusal:
            return _refused(refusal, self.encoded)

    def refuse(self, refusal: EngineError) -> Response:
        """The answer to a refusal."""
        self.queue.note_late(self.parsed, refusal)
        return _refused(refusal, self.encoded)


@router.post("/v1/commands", Access.PER_COMMAND, model=CommandResult, refused=CommandResult)
def run_command(
    request: RequestParameter,
    given: CommandBody,
    upstash_encoding: UpstashEncoding = None,
    weir_encoding: WeirEncoding = None,
) -> Response | Ask | Coroutine[Any, Any, Response]:
    """Run one Redis command."""
    encoded = _encoding(upstash_encoding, weir_encoding)
    request.door = "commands"
    words, parsed = given
    if isinstance(parsed, Adds):
        # A plain XADD.
        request.require(Action.WRITE, parsed.stream)
        adds = XAdd(stream=parsed.stream, bodies=parsed.bodies)

        def answer(added: Added) -> Response:
            return Response(200, encoded.each_id(added.ids))

        return Ask([adds], answer, joins=True, publishes=True, refused=partial(_refused, encoded=encoded))
    queue = RequestQueue(request, encoded)
    parsed = queue.admit(words, parsed)
    if isinstance(parsed, EngineError):
        return _refused(parsed, encoded)
    queue.authorise(parsed)
    parsed = queue.bound(parsed.bounded(request.gateway.settings.wait_ms_max))
    return _OneCommand(request, queue, encoded, parsed).run()


@router.post("/v1/commands/pipeline", Access.PER_COMMAND, model=list[CommandResult], refused=CommandResult)
async def run_pipeline(
    request: RequestParameter,
    given: CommandsBody,
    upstash_encoding: UpstashEncoding = None,
    weir_encoding: WeirEncoding = None,
) -> Response:
    """Run Redis commands one after the other; one that fails does not stop the others."""
    encoded = _encoding(upstash_encoding, weir_encoding)
    request.door = "commands"
    return await _several(RequestQueue(request, encoded).results(given))


@router.post("/v1/commands/multi-exec", Access.PER_COMMAND, model=list[CommandResult], refused=CommandResult)
async def run_transaction(
    request: RequestParameter,
    given: TransactionBody,
    upstash_encoding: UpstashEncoding = None,
    weir_encoding: WeirEncoding = None,
) -> Response:
    """Run Redis commands as one turn: nothing between them, one reading of the clock, one frame in the
    log.
    """
    encoded = _encoding(upstash_encoding, weir_encoding)
    request.door = "commands"
    if isinstance(given, EngineError):
        return _refused(given, encoded)
    try:
        results = await RequestQueue(request, encoded).together(given)
    except EngineError as refusal:
        return _refused(refusal, encoded)
    return await _several(_at_once(results))
