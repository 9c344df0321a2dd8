"""The command API: Redis commands as JSON lists; one, several, or several as one turn."""

from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any, ClassVar, Final

from fastapi import Depends, Header

from app.auth import Access
from app.errors import CODES
from app.http.media import JSON
from app.http.models import Base64Flag, ResponseModel, absent
from app.http.operations.binder import Body, RequestParameter, request_of
from app.http.operations.router import Router
from app.http.requests import BodyReading
from app.http.responses import JSON as JSON_TYPE
from app.http.responses import Response, StreamingResponse
from app.redis import bodies, executor
from app.redis.bodies import Encoding
from app.redis.runs import CommandRun, Parsed
from app.redis.steps import CommandSteps
from engine import EngineError

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

    result: Any = absent()
    error: str = absent()


class _CommandBody(Body):
    """One command: a list of words."""

    content: ClassVar = {JSON: {"schema": {"type": "array", "items": _SCALAR, "description": _WORDS}}}

    async def read(self, steps: CommandSteps, encoded: Encoding) -> Parsed:
        """The command, or why it is invalid. Raises `malformed_json`, EngineError."""

        def parse(body: bytes) -> Parsed:
            return steps.parse(bodies.one(body, encoded, steps.limits))

        return await self.request.read_body(
            BodyReading(parse, _INLINE_BYTES_MAX, inline_values_max=_INLINE_WORDS_MAX)
        )


class _CommandsBody(Body):
    """A list of commands."""

    # A word that is none is answered as its command's error.
    content: ClassVar = {
        JSON: {
            "schema": {"type": "array", "items": {"type": "array", "items": {}, "description": _WORDS}},
        }
    }

    async def read_each(self, steps: CommandSteps, encoded: Encoding) -> CommandRun:
        """The commands. Raises `malformed_json`, `too_many_entries`."""
        most = self.request.gateway.settings.pipeline_commands_max

        def parse(body: bytes) -> CommandRun:
            return executor.parse_each(steps, bodies.many(body, encoded, most, steps.limits))

        return await self._read_several(parse)

    async def _read_several(self, parse: Callable[[bytes], CommandRun]) -> CommandRun:
        return await self.request.read_body(
            BodyReading(
                parse, _INLINE_BYTES_MAX, inline_values_max=_INLINE_WORDS_MAX, turn_bytes_min=_TURN_BYTES_MIN
            )
        )

    async def read_together(self, steps: CommandSteps, encoded: Encoding) -> CommandRun:
        """The commands of a transaction. Raises the same, and EXECABORT."""
        settings = self.request.gateway.settings

        def parse(body: bytes) -> CommandRun:
            rows = bodies.many(body, encoded, settings.pipeline_commands_max, steps.limits)
            bodies.check_number(rows, settings.transaction_commands_max)
            return executor.parse_together(steps, rows)

        return await self._read_several(parse)


CommandBody = Annotated[_CommandBody, Depends(request_of)]
CommandsBody = Annotated[_CommandsBody, Depends(request_of)]


def _encoding(request: RequestParameter, *, upstash: bool | None, weir: bool | None) -> Encoding:
    # Any type is read as JSON, unless it is compressed, in parts, or in another charset.
    _ = request.media_type
    return Encoding(arguments=bool(weir), answer=bool(weir or upstash))


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


@router.post("/v1/commands", Access.PER_COMMAND, model=CommandResult, refused=CommandResult)
async def run_command(
    request: RequestParameter,
    given: CommandBody,
    upstash_encoding: UpstashEncoding = None,
    weir_encoding: WeirEncoding = None,
) -> Response:
    """Run one Redis command."""
    encoded = _encoding(request, upstash=upstash_encoding, weir=weir_encoding)
    try:
        request.door = "commands"
        steps = CommandSteps(request, encoded)
        return Response(200, await executor.run(request, steps, await given.read(steps, encoded)))
    except EngineError as refusal:
        return _refused(refusal, encoded)


@router.post("/v1/commands/pipeline", Access.PER_COMMAND, model=list[CommandResult], refused=CommandResult)
async def run_pipeline(
    request: RequestParameter,
    given: CommandsBody,
    upstash_encoding: UpstashEncoding = None,
    weir_encoding: WeirEncoding = None,
) -> Response:
    """Run Redis commands one after the other; one that fails does not stop the others."""
    encoded = _encoding(request, upstash=upstash_encoding, weir=weir_encoding)
    steps = CommandSteps(request, encoded)
    requests = await given.read_each(steps, encoded)
    request.door = "commands"
    return await _several(executor.run_each(request, steps, requests))


@router.post("/v1/commands/multi-exec", Access.PER_COMMAND, model=list[CommandResult], refused=CommandResult)
async def run_transaction(
    request: RequestParameter,
    given: CommandsBody,
    upstash_encoding: UpstashEncoding = None,
    weir_encoding: WeirEncoding = None,
) -> Response:
    """Run Redis commands as one turn: nothing between them, one reading of the clock, one frame in the
    log.
    """
    encoded = _encoding(request, upstash=upstash_encoding, weir=weir_encoding)
    try:
        steps = CommandSteps(request, encoded)
        requests = await given.read_together(steps, encoded)
        request.door = "commands"
        return await _several(_at_once(await executor.run_together(request, steps, requests)))
    except EngineError as refusal:
        return _refused(refusal, encoded)
