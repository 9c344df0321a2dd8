"""Dead letters of a group: back to the stream that they came from."""

import asyncio
from collections.abc import Sequence
from typing import Final

from app.api import group_calls
from app.auth import Action
from app.http import media
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.wire import redrives as wire
from engine.commands import TURN_REDRIVEN_MAX, DescribeGroup
from engine.replies import DeadLettersFound

routes: Final = Routes()

# A call looks through so many turns' entries of a dead-letter stream that others share; `next` goes on there.
_SEARCHES_MAX: Final = 200


@routes.post("/v1/streams/{stream}/groups/{group}/dead-letters/redrive", Action.WRITE, "redriveDeadLetters")
async def redrive(call: Call) -> Answer:
    """Put dead letters of a group back into its stream, as new entries, and delete the dead letters."""
    settings = call.gateway.settings
    key = media.idempotency_key(call.headers.get(b"idempotency-key"))
    given = await call.members(*wire.MEMBERS)
    selection = wire.parse(given, key, settings.ids_max, settings.count_max)
    info = await group_calls.look(call, DescribeGroup(**call.names))
    letters = wire.dead_letter_stream(info)
    call.require(Action.WRITE, letters)
    found, upto = await _found(call, letters, selection)
    command = wire.command(
        **call.names, letters=letters, selection=selection, key=key, found=found, upto=upto
    )
    (reply,) = await group_calls.write(call, command)
    return call.written(200, wire.redriven(reply, letters))


async def _found(call: Call, letters: str, selection: wire.Selection) -> tuple[Sequence[int], int | None]:
    """The dead letters that are meant, as many as one turn takes, and the last one that was looked at where
    there are others.
    """
    if selection.named is not None:
        return selection.named, None
    found: list[int] = []
    most, start = min(selection.count, TURN_REDRIVEN_MAX), selection.start
    for _ in range(_SEARCHES_MAX):
        search = selection.search(**call.names, letters=letters, start=start, count=most - len(found))
        page = await call.execute(search)
        assert isinstance(page, DeadLettersFound), "looking for dead letters answers which there are"
        found += page.ids
        if page.upto is None or len(found) == most:
            return found, page.upto
        start = page.upto + 1
        # Others come between two looks.
        await asyncio.sleep(0)
    return found, start - 1
