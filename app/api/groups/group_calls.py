"""Calls about groups: Redis has one sentence for a missing group and a missing stream, these have two codes.

Knows: how to distinguish the two. Must never know: what a request does with a group.
"""

from app.http.requests import Request
from engine import EngineError
from engine.commands import Command, Exists
from engine.replies import Reply


async def look(request: Request, command: Command) -> Reply:
    """Run a command that changes nothing. Raises `no_stream` where the stream is missing, `no_group` where
    the group is.
    """
    try:
        return await request.execute(command)
    except EngineError as refusal:
        raise await _precise(request, refusal) from None


async def write(request: Request, *commands: Command) -> list[Reply]:
    """Run commands that change something as one turn; the same refusals."""
    try:
        return await request.write(*commands)
    except EngineError as refusal:
        raise await _precise(request, refusal) from None


async def _precise(request: Request, refusal: EngineError) -> EngineError:
    """The refusal as it is for programs; Redis's sentence goes along."""
    stream = request.names["stream"]
    if refusal.code != "no_group" or await request.execute(Exists(streams=[stream])):
        return refusal
    return EngineError("no_stream", refusal.redis, f"there is no stream {stream!r}", stream=stream)
