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
from engine import Listing, ListStreams, Plan, Planned

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
    return Answer(200, wire.answer(await _planned(call, wanted.command(found))))


async def _planned(call: Call, command: Plan) -> Planned:
    """The plan. One of many streams is made a few at a time, with others' turns between: counted first, so
    that the budget is shared by all of them.
    """
    several = wire.Several(command)
    if several.is_one:
        return await _turn(call, command)
    counted = [await _turn(call, one) for one in several.counting()]
    if command.block_ms is not None and not several.has_any(counted):
        return await _turn(call, command)
    if several.is_counting:
        return several.together(counted)
    return several.together([await _turn(call, one) for one in several.sharing(counted)])


async def _turn(call: Call, command: Plan) -> Planned:
    await asyncio.sleep(0)
    reply = await call.execute(command)
    assert isinstance(reply, Planned), "a plan answers what is planned"
    return reply


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
