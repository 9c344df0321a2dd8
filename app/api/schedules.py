"""Entries for later: set, listed, cancelled, fired."""

from functools import partial
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

import orjson
from fastapi import Depends, Header, Query
from pydantic import Field

from app.auth import Action, Resource
from app.errors import RefusalError, invalid
from app.http import media, query, strict_json
from app.http.entries import entry_bodies
from app.http.entries.entry_pages import Base64, Meta, Pairs
from app.http.entries.publishing import Added, PlainEntryInput, added
from app.http.entries.stored_entries import check_least
from app.http.media import JSON, MediaType
from app.http.models import (
    Count,
    Milliseconds,
    Moment,
    NameText,
    RequestModel,
    ResponseModel,
    ScheduleName,
    StreamName,
    Whole,
    absent,
)
from app.http.operations.binder import Body, RequestParameter, read_body, request_of
from app.http.operations.router import Router
from app.http.requests import BodyReading, Request
from app.http.responses import Response, location
from app.settings import Settings
from engine import EngineError, ids
from engine.commands import (
    CancelSchedule,
    DescribeSchedule,
    FireSchedule,
    ListSchedules,
    NewSchedule,
    SetSchedule,
)
from engine.recurrence import AHEAD_MS_MAX, CRON_BYTES_MAX, EVERY_MS_MIN, Rule
from engine.replies import Added as AddedReply
from engine.replies import Reply, ScheduleInfo, SchedulePage, ScheduleSet

router: Final = Router("schedules")

_SCHEDULES: Final = "/v1/streams/{stream}/schedules"
_SCHEDULE: Final = _SCHEDULES + "/{schedule}"
_PAGE_MAX: Final = 1_000
_JSON: Final = MediaType(JSON, JSON)
_MEMBERS_MAX: Final = 16
# Of all members but the entry, each of them escaped.
_RULE_BYTES_MAX: Final = 16 << 10
_NO_SCHEDULE: Final = ("no_stream", "no_schedule")
_DATE_TIME: Final = {"format": "date-time"}


class ScheduleRule(RequestModel):
    """When an entry is appended: exactly one of `at`, `in_ms`, `every_ms` and `cron`."""

    at: Annotated[Moment | None, Field(description="once, at this time")] = None
    in_ms: Annotated[
        Annotated[int, Whole(0, AHEAD_MS_MAX)] | None, Field(description="once, milliseconds from now")
    ] = None
    every_ms: Annotated[
        Annotated[int, Whole(EVERY_MS_MIN, AHEAD_MS_MAX)] | None,
        Field(description="again and again, first after this time"),
    ] = None
    cron: Annotated[
        str | None,
        Field(
            max_length=CRON_BYTES_MAX,
            description="again and again: minute, hour, day of month, month, day of week, as in crontab(5); "
            "or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`",
        ),
    ] = None
    tz: Annotated[str, Field(max_length=64, description="the time zone of `cron`, by its IANA name")] = "UTC"
    until: Annotated[Moment | None, Field(description="no run is later than this")] = None
    count: Annotated[Annotated[int, Whole(1)] | None, Field(description="this many runs")] = None
    missed: Annotated[
        Literal["once", "skip"],
        Field(
            description="runs whose time passed while nothing ran: one for all of them, or none that is more "
            "than 10 seconds late"
        ),
    ] = "once"
    expires_in_ms: Annotated[
        Annotated[int, Whole(1, AHEAD_MS_MAX)] | None,
        Field(description="a run that would be later than this is left out"),
    ] = None

    @property
    def rule(self) -> Rule:
        """As the engine has it."""
        return Rule(
            at_ms=self.at,
            in_ms=self.in_ms,
            every_ms=self.every_ms,
            cron=self.cron,
            tz=self.tz,
            until_ms=self.until,
            count=self.count,
            missed=self.missed,
            expires_in_ms=self.expires_in_ms,
        )


class ScheduleInput(ScheduleRule):
    """An entry, and when it is appended."""

    entry: PlainEntryInput


class ScheduledEntry(ResponseModel):
    """An entry that has no ID yet."""

    fields: dict[str, str]
    encoding: Base64 = absent()
    pairs: Pairs = absent()
    meta: Meta = absent()


class Schedule(ResponseModel):
    """An entry for later; of its rule what was given."""

    name: NameText
    next_at: Annotated[str, Field(description="when it is appended next", json_schema_extra=_DATE_TIME)]
    entry: ScheduledEntry
    at: Annotated[str, Field(json_schema_extra=_DATE_TIME)] = absent()
    in_ms: Milliseconds = absent()
    every_ms: Milliseconds = absent()
    cron: str = absent()
    tz: str = absent()
    until: Annotated[str, Field(json_schema_extra=_DATE_TIME)] = absent()
    count: Count = absent()
    left: Annotated[Count, Field(description="runs that are left of `count`")] = absent()
    missed: Literal["once", "skip"] = absent()
    expires_in_ms: Milliseconds = absent()


class ScheduleList(ResponseModel):
    """A page of schedules; go on with `after=<next>` until it is null."""

    schedules: list[Schedule]
    next: str | None


class _Given(NamedTuple):
    body: bytes
    rule: Rule


class _ScheduleBody(Body):
    """A rule and an entry, which is kept byte for byte."""

    models: ClassVar = (ScheduleInput,)
    content: ClassVar = {JSON: {"schema": {"$ref": "#/components/schemas/ScheduleInput"}}}

    async def read(self) -> _Given:
        """The entry's body and the rule. Raises the refusal of what is wrong with them."""
        request = self.request
        media.check_is_json(request.media_type.name)
        return await request.read_body(
            BodyReading(partial(_read, settings=request.gateway.settings, request=request))
        )


def _read(body: bytes, settings: Settings, request: Request) -> _Given:
    limits = request.gateway.limits.publications
    check_least(body, limits)
    # Its members are copied, and the entry once more before it is read.
    strict_json.expect_room(body, copies=3)
    members = strict_json.members_of(body, _MEMBERS_MAX)
    entry = members.pop("entry", b"null")
    if sum(map(len, members.values())) > _RULE_BYTES_MAX:
        raise RefusalError("body_too_large", f"a rule has at most {_RULE_BYTES_MAX} bytes")
    if entry == b"null":
        raise invalid("/entry", 'it is missing: {"fields": {…}}')
    rest = b",".join(b"%b:%b" % (orjson.dumps(name), text) for name, text in members.items())
    given = read_body(b"{%b}" % rest, model=ScheduleRule, default=None, settings=settings)
    assert isinstance(given, ScheduleRule), "there is a body"
    try:
        found = entry_bodies.read(entry, _JSON, limits)
    except RefusalError as refusal:
        refusal.places = [one._replace(name="/entry" + one.name) for one in refusal.places]
        raise
    if found.batch or found.ids:
        raise invalid("/entry", "it is one entry, and gets its ID when it is appended")
    if found.later:
        raise invalid("/entry", "when it is appended stands beside it: at, in_ms, every_ms or cron")
    return _Given(found.bodies[0], given.rule)


def _shown(info: ScheduleInfo) -> bytes:
    """A schedule as every operation shows it."""
    rule = info.rule
    members = {
        "at": None if rule.at_ms is None else ids.rfc3339(rule.at_ms),
        "in_ms": rule.in_ms,
        "every_ms": rule.every_ms,
        "cron": rule.cron,
        "tz": rule.tz if rule.cron is not None else None,
        "until": None if rule.until_ms is None else ids.rfc3339(rule.until_ms),
        "count": rule.count,
        "left": info.left,
        "missed": None if rule.missed == "once" else rule.missed,
        "expires_in_ms": rule.expires_in_ms,
    }
    given = {name: value for name, value in members.items() if value is not None}
    entry = orjson.Fragment(b"{" + info.body[1:])
    return orjson.dumps({"name": info.name, "next_at": ids.rfc3339(info.at_ms), "entry": entry, **given})


# ---- looking


class _Order(NamedTuple):
    by_name: bool
    after: tuple[int, str]
    before_ms: int | None
    before: str | None


def _order(by: str, after: str | None, before: str | None) -> _Order:
    """What a page begins and ends with."""
    if by == "name":
        return _Order(True, (0, after or ""), None, before)  # noqa: FBT003 - a field
    before_ms = None if before is None else _time("before", before)
    ms, _, name = (after or "").partition(":")
    if name and ms.isdigit() and len(ms) <= len(str(1 << 53)):
        return _Order(False, (int(ms), name), before_ms, None)  # noqa: FBT003 - a field
    return _Order(False, (0 if after is None else _time("after", after) + 1, ""), before_ms, None)  # noqa: FBT003


def _time(parameter: str, text: str) -> int:
    try:
        return query.time_ms(text)
    except RefusalError as refusal:
        raise invalid(parameter, refusal.places[0].detail) from None


@router.get(_SCHEDULES, Action.READ, model=ScheduleList, refusals=("no_stream", "not_acceptable"))
async def list_schedules(
    request: RequestParameter,
    stream: StreamName,
    by: Annotated[Literal["time", "name"], Query(description="in which order")] = "time",
    after: Annotated[
        str | None, Query(description="later than this time, or names above this one; or a page's `next`")
    ] = None,
    before: Annotated[
        str | None, Query(description="earlier than this time, or names below this one")
    ] = None,
    limit: Annotated[int, Whole(1, _PAGE_MAX), Query(description="maximum number of schedules")] = 100,
) -> Response:
    """List what is scheduled for a stream, the next one first, or by name."""
    media.check_accepts_json(request.headers.get(b"accept", b""))
    page = await request.execute(
        ListSchedules(stream=stream, limit=limit, **_order(by, after, before)._asdict())
    )
    assert isinstance(page, SchedulePage), "listing answers a page"
    shown = b",".join(map(_shown, page.schedules))
    following = None
    if page.more:
        last = page.schedules[-1]
        following = last.name if by == "name" else f"{last.at_ms}:{last.name}"
    return Response(200, b'{"schedules":[%b],"next":%b}' % (shown, orjson.dumps(following)))


@router.get(_SCHEDULE, Action.READ, model=Schedule, refusals=(*_NO_SCHEDULE, "not_acceptable"))
async def get_schedule(request: RequestParameter, stream: StreamName, schedule: ScheduleName) -> Response:
    """Show one schedule: its entry, its rule, and when it is due next."""
    media.check_accepts_json(request.headers.get(b"accept", b""))
    found = await request.execute(DescribeSchedule(stream=stream, name=schedule))
    assert isinstance(found, ScheduleInfo), "it answers the schedule"
    return Response(200, _shown(found))


# ---- changing


def _may_manage(request: Request, stream: str) -> bool:
    """Whether the caller may change what recurs."""
    return request.principal.may(Action.MANAGE, Resource(stream))


@router.put(
    _SCHEDULE,
    Action.WRITE,
    status=201,
    model=Schedule,
    also={200: "There was one of that name: the same one stays, with its next time"},
    refusals=("no_stream", "stream_closed", "schedule_exists", "entry_too_large"),
    writes=True,
)
async def put_schedule(
    request: RequestParameter,
    stream: StreamName,
    schedule: ScheduleName,
    body: Annotated[_ScheduleBody, Depends(request_of)],
    if_none_match: Annotated[
        str | None, Header(alias="If-None-Match", description="`*`: only if there is none")
    ] = None,
) -> Response:
    """Schedule an entry, once or again and again; a missing stream is made.

    It may be repeated whenever a program starts: with the same entry and rule everything stays, the next time
    too. One with another definition is replaced. What recurs takes `manage` too.
    """
    if if_none_match not in (None, "*"):
        raise invalid("If-None-Match", "here it is `*`, or left out")
    recurring = _may_manage(request, stream)
    given = await body.read()
    if given.rule.recurs:
        request.note_action("manage", "putSchedule", stream=stream, schedule=schedule)
    command = SetSchedule(
        stream=stream,
        schedule=NewSchedule(schedule, given.body, given.rule),
        only_new=if_none_match is not None,
        recurring=recurring,
    )
    try:
        (found,) = await request.write(command)
    except EngineError as refusal:
        if refusal.code == "forbidden" and not given.rule.recurs:
            request.note_action("manage", "putSchedule", stream=stream, schedule=schedule)
        # What the engine finds wrong with a rule begins with the member.
        member, _, hint = refusal.detail.partition(": ")
        if refusal.code != "invalid" or member not in ScheduleRule.model_fields:
            raise
        raise invalid(f"/{member}", hint) from None
    assert isinstance(found, ScheduleSet), "it answers the schedule"
    if found.replaced_recurring and not given.rule.recurs:
        request.note_action("manage", "putSchedule", stream=stream, schedule=schedule)
    where = [location("streams", stream, "schedules", schedule)] if found.created else []
    return request.respond(201 if found.created else 200, _shown(found.schedule), where)


@router.delete(_SCHEDULE, Action.WRITE, status=204, refusals=_NO_SCHEDULE, writes=True)
async def delete_schedule(request: RequestParameter, stream: StreamName, schedule: ScheduleName) -> Response:
    """Cancel a schedule; 404 `no_schedule` where it has run already. What recurs takes `manage` too."""
    command = CancelSchedule(stream=stream, name=schedule, recurring=_may_manage(request, stream))
    await _change(request, command, "deleteSchedule")
    return request.respond(204)


@router.post(
    _SCHEDULE + "/fire",
    Action.WRITE,
    status=201,
    model=Added,
    refusals=(*_NO_SCHEDULE, "stream_exhausted"),
    bodiless=True,
    writes=True,
)
async def fire_schedule(request: RequestParameter, stream: StreamName, schedule: ScheduleName) -> Response:
    """Append the entry now. What recurs keeps its next time, and takes `manage` too; else it is done with."""
    command = FireSchedule(stream=stream, name=schedule, recurring=_may_manage(request, stream))
    reply = await _change(request, command, "fireSchedule")
    assert isinstance(reply, AddedReply), "firing answers the entry"
    where = [location("streams", stream, "entries", ids.format(reply.ids[0]))]
    return request.respond(201, added(reply, batch=False, trims=False, ids_wanted=True), where)


async def _change(request: Request, command: CancelSchedule | FireSchedule, operation: str) -> Reply:
    """Run it; of what recurs the audit log says so, done or refused."""
    stream, schedule = command.stream, command.name
    try:
        found, reply = await request.write(DescribeSchedule(stream=stream, name=schedule), command)
    except EngineError as refusal:
        if refusal.code == "forbidden":
            request.note_action("manage", operation, stream=stream, schedule=schedule)
        raise
    if isinstance(found, ScheduleInfo) and found.rule.recurs:
        request.note_action("manage", operation, stream=stream, schedule=schedule)
    return reply
