"""For bulk readers: what there is in many streams, and which part of it to read next."""

import asyncio
from collections.abc import Collection
from typing import Final

from app.auth import Access, Action
from app.calls import Answer, Call
from app.redis.glob import Glob
from app.routing import Routes
from app.wire import plan as wire
from app.wire.read import preferred_wait_ms
from engine import Listing, ListStreams

routes: Final = Routes()

# Names looked at in one turn.
_names_a_turn: Final = 1_000


@routes.post("/v1/plan", Access.PER_STREAM, "plan")
async def plan(call: Call) -> Answer:
    """Tell what there is behind a cursor in each of many streams, and share a budget between them."""
    settings = call.gateway.settings
    prefer_wait_ms = preferred_wait_ms(call.wishes.wait_s, call.gateway.read_limits)
    given = await call.members(*wire.PLAN)
    wanted = wire.parse(given, settings.request_streams_max, settings.wait_ms_max, prefer_wait_ms)
    for name in wanted.streams:
        call.require(Action.READ, name)
    found = await _matching(call, wanted.pattern, wanted.streams) if wanted.pattern is not None else []
    return Answer(200, wire.answer(await call.execute(wanted.command(found))))


async def _matching(call: Call, pattern: Glob, named: Collection[str]) -> list[str]:
    """The other streams that fit the pattern, of those that may be read."""
    most = call.gateway.settings.request_streams_max
    found: list[str] = []
    prefix = pattern.prefix.decode(errors="ignore")
    after = None
    while True:
        page = await call.execute(ListStreams(prefix=prefix, after=after, limit=_names_a_turn))
        assert isinstance(page, Listing), "listing answers names"
        found += [
            name
            for name in page.names
            if name not in named
            and pattern.matches(name.encode())
            and call.gateway.policy.may(call.principal, Action.READ, name)
        ]
        if len(found) + len(named) > most:
            raise wire.too_many("pattern", most)
        after = page.next
        if after is None:
            return found
        # Others come between two pages.
        await asyncio.sleep(0)
