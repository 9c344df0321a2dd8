"""For bulk readers: what there is in many streams, and which part of it to read next."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from app.auth import Access, Action
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.redis.glob import Glob
from app.wire import plan as wire
from app.wire.read import preferred_wait_ms
from engine.commands import ListStreams, Plan
from engine.replies import Listing, Planned

routes: Final = Routes()

# Names looked at in one turn.
_names_a_turn: Final = 1_000
# While a plan waits, new streams that fit its pattern are looked for after so long; less often where looking
# takes long: one part of so many of the time.
_look_again_ms: Final = 1_000
_looking_share: Final = 20


@routes.post("/v1/plan", Access.PER_STREAM, "plan")
async def plan(call: Call) -> Answer:
    """Tell what there is behind a cursor in each of many streams, and share a budget between them."""
    settings = call.gateway.settings
    prefer_wait_ms = preferred_wait_ms(call.wishes.wait_s, call.gateway.read_limits)
    given = await call.members(*wire.PLAN)
    wanted = wire.parse(given, settings.request_streams_max, settings.wait_ms_max, prefer_wait_ms)
    for name in wanted.streams:
        call.require(Action.READ, name)
    found = await _found(call, wanted)
    planned = await _planned(call, wanted.command(found))
    if wanted.wait_ms and not wire.has_any(planned):
        planned = await call.gateway.wait(_waited(call, wanted, found), call.receive)
    if wire.is_laborious(planned):
        return Answer(200, await asyncio.to_thread(wire.answer, planned))
    return Answer(200, wire.answer(planned))


async def _waited(call: Call, wanted: wire.Wanted, found: Sequence[str]) -> Planned:
    """The plan, made when there is something or the time is over."""
    clock = call.gateway.clock
    until = clock.monotonic() + wanted.wait_ms / 1000
    looked_s = 0.0
    while True:
        wait_ms = max(1, round((until - clock.monotonic()) * 1000))
        if wanted.pattern is not None:
            wait_ms = min(wait_ms, max(_look_again_ms, round(looked_s * _looking_share * 1000)))
        # What this answers is made in one turn, and of streams that were found before: it only tells when.
        await call.engine.execute(wanted.waiting(found, wait_ms))
        began = clock.monotonic()
        found = await _found(call, wanted)
        looked_s = clock.monotonic() - began
        planned = await _planned(call, wanted.command(found))
        if wire.has_any(planned) or clock.monotonic() >= until:
            return planned


async def _planned(call: Call, command: Plan) -> Planned:
    """The plan. One of many streams is made a few at a time, with others' turns between: counted first, so
    that the budget is shared by all of them.
    """
    several = wire.Several(command)
    if several.is_one:
        return await _turn(call, command)
    counted = [await _turn(call, one) for one in several.counting()]
    if several.is_counting:
        return several.together(counted)
    return several.together([await _turn(call, one) for one in several.sharing(counted)])


async def _turn(call: Call, command: Plan) -> Planned:
    await asyncio.sleep(0)
    reply = await call.execute(command)
    assert isinstance(reply, Planned), "a plan answers what is planned"
    return reply


async def _found(call: Call, wanted: wire.Wanted) -> list[str]:
    """The other streams that fit the pattern, of those that may be read."""
    if wanted.pattern is None:
        return []
    most = call.gateway.settings.request_streams_max
    found: list[str] = []
    prefix = wanted.pattern.prefix.decode(errors="ignore")
    after = None
    while True:
        page = await call.execute(ListStreams(prefix=prefix, after=after, limit=_names_a_turn))
        assert isinstance(page, Listing), "listing answers names"
        # A match takes as long as pattern and name make it: others are served meanwhile.
        found += await asyncio.to_thread(_matching, call, wanted.pattern, wanted.streams, page.names)
        if len(found) + len(wanted.streams) > most:
            raise wire.too_many("pattern", most)
        after = page.next
        if after is None:
            return found


def _matching(call: Call, pattern: Glob, named: Collection[str], names: Sequence[str]) -> list[str]:
    policy, principal = call.gateway.policy, call.principal
    return [
        name
        for name in names
        if name not in named and pattern.matches(name.encode()) and policy.may(principal, Action.READ, name)
    ]
