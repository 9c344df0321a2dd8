"""Live tails: server-sent events of one stream, of several, and of a consumer of a group."""

from typing import Final

from app.api import group_calls
from app.auth import Access, Action
from app.errors import Refusal
from app.http import media
from app.http.calls import Answer, Call
from app.http.routing import Routes
from app.live.in_flight import RELEASED_ONLY_MS
from app.live.sse import cursors as wire
from app.live.sse.consumers import Asked, Consuming
from app.live.sse.cursors import Wanted
from app.live.sse.tails import Events, Following
from app.wire import read as reading
from engine.commands import DescribeGroup, XRead
from engine.replies import StreamsRead

routes: Final = Routes()

_EVENTS: Final = (media.EVENTS,)
_CONSUMER_STREAM: Final = "/v1/streams/{stream}/groups/{group}/consumers/{consumer}/stream"


@routes.get("/v1/streams/{stream}/tail", Action.READ, "tailStream", offers=_EVENTS)
async def tail_stream(call: Call) -> Answer:
    """Follow a stream: what comes after a cursor, then what is new, as server-sent events."""
    media.accepted(call.headers.get(b"accept", b""), _EVENTS)
    return await events(call)


async def events(call: Call) -> Answer:
    """The same, also for those who ask the entries themselves for events."""
    wanted = wire.parse(call.names["stream"], call.query, _last_event_id(call), _count_max(call))
    return await _follow(call, wanted)


@routes.get("/v1/tail", Access.PER_STREAM, "tailStreams", offers=_EVENTS)
async def tail_streams(call: Call) -> Answer:
    """Follow several streams as server-sent events, with one cursor for all."""
    media.accepted(call.headers.get(b"accept", b""), _EVENTS)
    wanted = wire.parse_several(call.query, _last_event_id(call), _count_max(call))
    for stream in wanted.streams:
        call.require(Action.READ, stream)
    return await _follow(call, wanted)


@routes.get(_CONSUMER_STREAM, Action.CONSUME, "consumeGroup", offers=_EVENTS)
async def consume_group(call: Call) -> Answer:
    """Read as a consumer as server-sent events: what it holds, what was given back, what is new."""
    if not call.asks_for_events(_EVENTS):
        # It takes entries from the group: nothing that a page embeds, an image for one, may ask for that.
        raise Refusal("not_acceptable", f"a consumer's entries need the header Accept: {media.EVENTS}")
    in_flight_max, claim_ms = wire.parse_consuming(call.query, _count_max(call))
    asked = Asked(
        stream=call.names["stream"],
        group=call.names["group"],
        consumer=call.names["consumer"],
        in_flight_max=in_flight_max,
        claim_min_idle_ms=RELEASED_ONLY_MS if claim_ms is None else claim_ms,
    )
    await group_calls.look(call, DescribeGroup(stream=asked.stream, group=asked.group))
    gateway = call.gateway
    gateway.follow()
    try:
        source = None if call.scope["method"] == "HEAD" else await Consuming.begin(gateway, asked)
    except BaseException:
        gateway.unfollow()
        raise
    return Events(gateway, source, call.request_id)


async def _follow(call: Call, wanted: Wanted) -> Answer:
    gateway = call.gateway
    if wanted.fail_on_gap and wanted.last is None:
        look = XRead(streams=list(zip(wanted.streams, wanted.after, strict=True)), count=1)
        found = await call.execute(look)
        assert isinstance(found, StreamsRead), "that is what XREAD answers"
        for one in found.streams:
            if one.gap is not None:
                raise reading.gap_refused(one.gap)
    gateway.follow()
    try:
        source = None
        if call.scope["method"] != "HEAD":
            source = await Following.begin(gateway.feeds, wanted, gateway.clock)
    except BaseException:
        gateway.unfollow()
        raise
    return Events(gateway, source, call.request_id)


def _last_event_id(call: Call) -> bytes:
    return call.headers.get(b"last-event-id", b"").strip()


def _count_max(call: Call) -> int:
    return call.gateway.settings.count_max
