"""The command door: Redis commands as JSON lists; one, several, or several as one turn."""

from typing import Final

from app.auth import Access
from app.errors import CODES
from app.http import query
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.redis import Request, executor
from app.redis.executor import Parsed
from app.wire import commands as wire
from app.wire.commands import Encoding
from engine import EngineError

routes: Final = Routes()

# Words may be two bytes long and cost a microsecond each: larger bodies are parsed in a thread.
_INLINE_BYTES_MAX: Final = 64 << 10

# What is not about the command but about the gateway keeps its status; the rest is 400 with Redis's sentence.
_GATEWAY_STATUSES: Final = frozenset({401, 413, 429, 503, 507})


def _encoding(call: Call) -> Encoding:
    query.parse(call.query, ())
    # Whatever the type, it is read as JSON; but not compressed, in parts, or in another charset.
    _ = call.media_type
    return wire.encoding(call.headers.get(b"upstash-encoding"), call.headers.get(b"weir-encoding"))


def _refused(refusal: EngineError, encoded: Encoding) -> Answer:
    if CODES[refusal.code].status in _GATEWAY_STATUSES:
        raise refusal
    return Answer(400, wire.outcome(refusal, encoded))


@routes.post("/v1/commands", Access.PER_COMMAND, "runCommand", hot=True)
async def run_command(call: Call) -> Answer:
    """Run one Redis command."""
    encoded, limits = _encoding(call), call.gateway.command_limits

    def read(body: bytes) -> Request:
        return executor.parsed(wire.one(body, encoded, limits.words_max), limits)

    try:
        request = await call.read(read, _INLINE_BYTES_MAX)
        return Answer(200, await executor.run(call, request, encoded))
    except EngineError as refusal:
        return _refused(refusal, encoded)


@routes.post("/v1/commands/pipeline", Access.PER_COMMAND, "runPipeline", hot=True)
async def run_pipeline(call: Call) -> Answer:
    """Run Redis commands one after the other; one that fails does not stop the others."""
    encoded, limits = _encoding(call), call.gateway.command_limits
    most = call.gateway.settings.pipeline_commands_max

    def read(body: bytes) -> list[tuple[Parsed, int]]:
        return executor.each_parsed(wire.many(body, encoded, most, limits.words_max), limits)

    requests = await call.read(read, _INLINE_BYTES_MAX)
    return Answer(200, wire.outcomes(await executor.run_each(call, requests, encoded)))


@routes.post("/v1/commands/multi-exec", Access.PER_COMMAND, "runTransaction", hot=True)
async def run_transaction(call: Call) -> Answer:
    """Run Redis commands as one turn: nothing between them, one reading of the clock, one frame in the
    log.
    """
    encoded, limits = _encoding(call), call.gateway.command_limits
    settings = call.gateway.settings

    def read(body: bytes) -> list[Parsed]:
        rows = wire.many(body, encoded, settings.pipeline_commands_max, limits.words_max)
        wire.check_number(rows, settings.transaction_commands_max)
        return executor.together_parsed(rows, limits)

    try:
        requests = await call.read(read, _INLINE_BYTES_MAX)
        return Answer(200, wire.outcomes(await executor.run_together(call, requests, encoded)))
    except EngineError as refusal:
        return _refused(refusal, encoded)
