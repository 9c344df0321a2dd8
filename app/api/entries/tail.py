"""Live tails: server-sent events of one stream, of several, and of a consumer of a group."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final, Literal

from fastapi import Header, Query
from msgspec.structs import replace

from app.api.groups import group_calls
from app.auth import Access, Action
from app.doors.sse.consumers import ConsumerEvents
from app.doors.sse.cursors import TailOptions, mark_for, parse_composite, parse_place
from app.doors.sse.tails import EventStream, Outbox, Tail, end_with
from app.errors import RefusalError, invalid
from app.http import media, query
from app.http.cursors import CursorForm, Place, asks
from app.http.models import (
    INTEGER_MAX,
    After,
    ConsumerName,
    CursorFormat,
    FieldNames,
    GroupName,
    ResponseModel,
    StreamName,
    StreamNames,
    Whole,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.operation import Operation
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Response
from app.live.consumer import CLAIM_MIN_IDLE_MS_MIN
from app.live.leases import ConsumerKey
from engine.commands.types import Cursor, XInfoStream, XRead
from engine.commands.weir_commands import DescribeGroup
from engine.replies import GroupInfo, Reply, StreamInfo, StreamsRead

_ENTRIES: Final = Router("entries")
_MANY: Final = Router("many")
_GROUPS: Final = Router("groups")

IN_FLIGHT_DEFAULT: Final = 100
# Each entry of several streams carries the cursor of all.
STREAMS_MAX: Final = 100
_OFFERS: Final = (media.EVENTS,)
_ANSWERS: Final = {
    "content": {
        "text/event-stream": {
            "schema": {
                "type": "string",
                "description": (
                    "events: `entry` (the data is the entry, the `id` a cursor), `gap` (with an `id` where "
                    "it has a `next`), and without an `id` `caught_up`, `closed`, `end` and `error`; of a "
                    "group `drained` too; a comment when nothing else came for 15 seconds. 204, where "
                    "a client comes back to a closed stream of which it has all"
                ),
            }
        }
    }
}
_REFUSALS: Final = ("malformed_id", "gap", "too_many_waiters", "not_acceptable")

_Last = Annotated[
    Annotated[int, Whole(1, "count_max")] | None,
    Query(description="begin this many entries back; not with `after`"),
]
_OnGap = Annotated[
    Literal["report", "fail"],
    Query(description="`fail`: 410, or an `error` event, where entries were lost"),
]
_Ticket = Annotated[str | None, Query(description="a ticket, instead of a token: see `createTicket`")]
_Fields = Annotated[FieldNames | None, Query(description="only these fields, names between commas")]
_CursorFormat = Annotated[CursorFormat | None, Query()]
_LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        description="the last `id` received: goes on after it, and wins over the query",
    ),
]


@_ENTRIES.get(
    "/v1/streams/{stream}/tail",
    Action.READ,
    offers=_OFFERS,
    end=end_with,
    answers=_ANSWERS,
    refusals=_REFUSALS,
)
async def tail_stream(
    request: RequestParameter,
    stream: StreamName,
    after: Annotated[
        After | None,
        Query(description="a cursor: an ID, `0`, `$` (what is new, the default) or one that was given"),
    ] = None,
    cursor: _CursorFormat = None,
    last: _Last = None,
    on_gap: _OnGap = "report",
    fields: _Fields = None,
    ticket: _Ticket = None,
    last_event_id: _LastEventId = None,
) -> Response:
    """Follow a stream: what comes after a cursor, then what is new, as server-sent events.

    The entries behind the cursor, `caught_up`, then each entry as it comes. The first line is the cursor as
    an `id`, so that coming back misses nothing. docs/sse.md has whole conversations.
    """
    _check(request, last, after)
    place = Place(Cursor.LATEST) if after is None else after
    came_back = (last_event_id or "").strip()
    if came_back:
        place, last = parse_place(came_back, "Last-Event-ID"), None
    wanted = TailOptions((stream,), (place,), "", last, on_gap == "fail", fields)
    return await _follow(request, cursor, wanted, came_back=bool(came_back))


@_MANY.get("/v1/tail", Access.PER_STREAM, offers=_OFFERS, end=end_with, answers=_ANSWERS, refusals=_REFUSALS)
async def tail_streams(
    request: RequestParameter,
    stream: Annotated[
        list[str], StreamNames(STREAMS_MAX), Query(description="a stream's name, given once for each")
    ],
    after: Annotated[
        str | None,
        Query(description="a cursor that a tail of these streams gave; or `0`, `$` or an ID, for each"),
    ] = None,
    cursor: _CursorFormat = None,
    last: _Last = None,
    on_gap: _OnGap = "report",
    fields: _Fields = None,
    ticket: _Ticket = None,
    last_event_id: _LastEventId = None,
) -> Response:
    """Follow several streams as server-sent events, with one cursor for all.

    As `tailStream`, of several streams: each entry and each `gap` has a member `stream`, and an `id` is an
    opaque cursor of all of them.
    """
    _check(request, last, after)
    places, came_back = _places(stream, "$" if after is None else after), (last_event_id or "").strip()
    if came_back:
        places, last = parse_composite(stream, came_back, "Last-Event-ID"), None
    for name in stream:
        request.require(Action.READ, name)
    wanted = TailOptions(stream, places, mark_for(stream), last, on_gap == "fail", fields)
    return await _follow(request, cursor, wanted, came_back=bool(came_back))


def _check(request: Request, last: int | None, after: object) -> None:
    media.accepted(request.headers.get(b"accept", b""), _OFFERS)
    if last is not None and after is not None:
        raise invalid("last", "it does not go with after")


def _places(streams: Sequence[str], text: str) -> Sequence[Place]:
    if "." in text:
        return parse_composite(streams, text, "after")
    return [Place(Cursor.LATEST if text == "$" else query.entry_id(text, "after"))] * len(streams)


async def _follow(
    request: Request, form: CursorForm | None, wanted: TailOptions, *, came_back: bool
) -> Response:
    gateway = request.gateway
    wanted = replace(wanted, shows_generations=asks(form, wanted.after))
    if came_back or (wanted.fail_on_gap and wanted.last is None):
        found = await _look(request, wanted)
        if came_back and len(found.closed) == len(wanted.streams) and not found.streams:
            # An EventSource comes back to any other answer, for ever.
            return Response(204)
        if wanted.fail_on_gap:
            _refuse_gaps(wanted, found)
    begin = partial(Tail.begin, request.tenant.feeds, wanted, gateway, request.caller)
    return await _stream(request, begin)


async def _look(request: Request, wanted: TailOptions) -> StreamsRead:
    """What a tail would begin with."""
    cursors = [(name, place.id) for name, place in zip(wanted.streams, wanted.after, strict=True)]
    look = XRead(streams=cursors, count=1, known=[place.generation for place in wanted.after])
    found = await request.execute(look)
    assert isinstance(found, StreamsRead), "that is what XREAD answers"
    return found


def _refuse_gaps(wanted: TailOptions, found: StreamsRead) -> None:
    """Refuse a tail that would begin with a gap."""
    generations = dict(zip(wanted.streams, found.generations, strict=True))
    for one in found.streams:
        if one.gap is not None:
            raise wanted.report(one.gap, generations[one.stream]).refused()


async def _stream(request: Request, begin: Callable[[], Awaitable[Outbox]]) -> Response:
    """Count the follower and begin the events; HEAD gets only the headers."""
    gateway = request.gateway
    place = gateway.waits.enter(request.caller, gateway.limits.connections)
    try:
        source = None if request.plan.method == "HEAD" else await begin()
    except BaseException:
        place.leave()
        raise
    return EventStream(request, source, place)


@_GROUPS.get(
    "/v1/streams/{stream}/groups/{group}/consumers/{consumer}/stream",
    Action.CONSUME,
    offers=_OFFERS,
    end=end_with,
    answers=_ANSWERS,
    refusals=("no_stream", "no_group", "too_many_waiters", "not_acceptable"),
)
async def consume_group(
    request: RequestParameter,
    stream: StreamName,
    group: GroupName,
    consumer: ConsumerName,
    max_in_flight: Annotated[
        Annotated[int, Whole(1, "count_max")] | None,
        Query(description="maximum number of entries sent and not acknowledged, 100 by default"),
    ] = None,
    claim_min_idle_ms: Annotated[
        Annotated[int, Whole(CLAIM_MIN_IDLE_MS_MIN, INTEGER_MAX)] | None,
        Query(
            description="also take over what others have held for this many milliseconds, more than the work "
            "on any entry takes"
        ),
    ] = None,
    ticket: _Ticket = None,
) -> Response | ResponseModel:
    """Read as a consumer as server-sent events: what it holds, what was given back, what is new.

    First what the consumer holds and has not acknowledged, then what was given back, and new entries as they
    come. Acknowledge by `ackEntries`, which makes room for more. A second connection of the same consumer
    ends the first (`end` with the reason `replaced`). It needs `Accept: text/event-stream`, which browsers do
    not send for images and links.
    """
    if not request.asks_for_events(_OFFERS):
        # It takes entries from the group: nothing that a page embeds, an image for one, may ask for that.
        raise RefusalError("not_acceptable", f"a consumer's entries need the header Accept: {media.EVENTS}")

    async def serve(info: Reply) -> Response:
        if request.headers.get(b"last-event-id") and await _is_drained(request, info):
            return Response(204)
        return await _stream(request, begin)

    def begin() -> Awaitable[Outbox]:
        source = ConsumerEvents(
            request.gateway,
            request.tenant,
            ConsumerKey(stream, group, consumer),
            request.caller,
            in_flight_max=max_in_flight or min(IN_FLIGHT_DEFAULT, request.gateway.settings.count_max),
            claim_min_idle_ms=claim_min_idle_ms,
        )
        return source.begin()

    return await request.settle(group_calls.look(request, DescribeGroup(stream=stream, group=group), serve))


async def _is_drained(request: Request, info: Reply) -> bool:
    """Whether nothing comes any more to a consumer that comes back."""
    assert isinstance(info, GroupInfo), "describing a group answers the group"
    if info.pending or info.lag:
        return False
    stream = await request.execute(XInfoStream(stream=request.names["stream"]))
    return isinstance(stream, StreamInfo) and stream.closed_at_ms is not None


operations: Final[list[Operation]] = [*_ENTRIES.operations, *_MANY.operations, *_GROUPS.operations]


async def events(request: Request) -> Response:
    """`tail_stream` for a call of the entries themselves that asks for events."""
    return await operations[0].run_as_form(request)
