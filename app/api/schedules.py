"""Entries for later: set, listed, cancelled, fired."""

from collections.abc import Callable, Mapping
from functools import partial
from heapq import merge
from itertools import accumulate, takewhile
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, NoReturn

import msgspec
import orjson
from fastapi import Depends, Header, Query
from msgspec.structs import replace
from pydantic import Field

from app.auth import Access, Action, Resource
from app.errors import RefusalError, invalid
from app.http import media, query, strict_json
from app.http.asks import Ask
from app.http.entries import entry_bodies
from app.http.entries.entry_pages import Base64, Meta, Pairs
from app.http.entries.publishing import Added, PlainEntryInput, added
from app.http.entries.stored_entries import check_least
from app.http.media import JSON, MediaType
from app.http.models import (
    ABSENT,
    Count,
    Milliseconds,
    Moment,
    NameText,
    RequestModel,
    ResponseModel,
    ScheduleName,
    StreamName,
    Whole,
)
from app.http.operations.binder import Body, RequestParameter, read_body, request_of
from app.http.operations.router import Router
from app.http.request_bodies import BodyReading
from app.http.requests import Request
from app.http.responses import Response, location
from app.limits import EntryLimits
from app.settings import Settings
from engine import EngineError, ids
from engine.commands import schedule_commands
from engine.commands.schedule_commands import Pause
from engine.commands.scheduling import PAGE_BYTES_MAX
from engine.commands.types import ListStreams
from engine.recurrence import AHEAD_MS_MAX, CRON_BYTES_MAX, EVERY_MS_MIN, NEVER_MS, Rule
from engine.replies import Added as AddedReply
from engine.replies import Listing, Reply, ScheduleInfo, SchedulePage, ScheduleSet

router: Final = Router("schedules")

_ALL: Final = "/v1/schedules"
_SCHEDULES: Final = "/v1/streams/{stream}/schedules"
_SCHEDULE: Final = _SCHEDULES + "/{schedule}"
_PAGE_MAX: Final = 1_000
# Streams that are looked at before others have their turn.
_STREAMS_A_TURN: Final = 10
_JSON: Final = MediaType(JSON, JSON)
_MEMBERS_MAX: Final = 16
# Of all members but the entry, each of them escaped.
_RULE_BYTES_MAX: Final = 16 << 10
_NO_SCHEDULE: Final = ("no_stream", "no_schedule")
_DATE_TIME: Final = {"format": "date-time"}
# Members that a rule has of the engine as it has them here.
_AS_THEY_ARE: Final = ("in_ms", "every_ms", "cron", "count", "expires_in_ms")


class SchedulePause(RequestModel):
    """Whether a schedule waits. What recurs makes up for no run."""

    paused: Annotated[bool | None, Field(description="until it is false; not named it stays")] = None
    paused_until: Annotated[Moment | None, Field(description="until this time")] = None

    @property
    def pause(self) -> Pause | None:
        """As the engine has it; None where nothing is said of it. Raises 422 for what contradicts itself."""
        if self.paused_until is not None and self.paused is False:
            raise invalid("/paused_until", "with paused it is true, or not there")
        if self.paused is None and self.paused_until is None:
            return None
        return Pause(self.paused is not False, self.paused_until)


class ScheduleRule(SchedulePause):
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
        same = {name: getattr(self, name) for name in (*_AS_THEY_ARE, "tz", "missed")}
        return Rule(at_ms=self.at, until_ms=self.until, **same)


class ScheduleInput(ScheduleRule):
    """An entry, and when it is appended."""

    entry: PlainEntryInput


class ScheduledEntry(ResponseModel):
    """An entry that has no ID yet."""

    fields: dict[str, str]
    encoding: Base64 = ABSENT
    pairs: Pairs = ABSENT
    meta: Meta = ABSENT


class Schedule(ResponseModel):
    """An entry for later; of its rule what was given."""

    name: NameText
    next_at: Annotated[
        str | None,
        Field(
            description="when it is appended next; null in a pause without an end",
            json_schema_extra=_DATE_TIME,
        ),
    ]
    entry: ScheduledEntry
    at: Annotated[str, Field(json_schema_extra=_DATE_TIME)] = ABSENT
    in_ms: Milliseconds = ABSENT
    every_ms: Milliseconds = ABSENT
    cron: str = ABSENT
    tz: str = ABSENT
    until: Annotated[str, Field(json_schema_extra=_DATE_TIME)] = ABSENT
    count: Count = ABSENT
    left: Annotated[Count, Field(description="runs that are left of `count`")] = ABSENT
    missed: Literal["once", "skip"] = ABSENT
    expires_in_ms: Milliseconds = ABSENT
    paused: Literal[True] = ABSENT
    paused_until: Annotated[str, Field(json_schema_extra=_DATE_TIME)] = ABSENT
    # In a list of those of all streams.
    stream: NameText = ABSENT


class ScheduleList(ResponseModel):
    """A page of schedules; go on with `after=<next>` until it is null."""

    schedules: list[Schedule]
    next: str | None


class _Given(NamedTuple):
    body: bytes
    rule: Rule
    pause: Pause | None


class _ScheduleBody(Body):
    """A rule and an entry, which is kept byte for byte."""

    models: ClassVar = (ScheduleInput,)
    content: ClassVar = {JSON: {"schema": {"$ref": "#/components/schemas/ScheduleInput"}}}

    @classmethod
    def reading(cls, request: Request, arguments: Mapping[str, Any]) -> BodyReading[_Given]:
        """The entry's body and the rule."""
        if arguments.get("if_none_match") not in (None, "*"):
            raise invalid("If-None-Match", "here it is `*`, or left out")
        media.check_is_json(request.media_type.name)
        gateway = request.gateway
        return BodyReading(partial(_read, settings=gateway.settings, limits=gateway.limits.publications))


def _read(body: bytes, settings: Settings, limits: EntryLimits) -> _Given:
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
    return _Given(found.bodies[0], given.rule, given.pause)


def _shown(info: ScheduleInfo, now_ms: int) -> Schedule:
    """A schedule as every operation shows it."""
    rule = info.rule
    is_paused = rule.is_paused(now_ms)
    return Schedule(
        name=info.name,
        next_at=None if info.at_ms == NEVER_MS else ids.rfc3339(info.at_ms),
        entry=msgspec.Raw(b"{" + info.body[1:]),  # type: ignore[arg-type]  # what it is written as
        at=_or_absent(rule.at_ms, ids.rfc3339),
        tz=ABSENT if rule.cron is None else rule.tz,
        until=_or_absent(rule.until_ms, ids.rfc3339),
        left=_or_absent(info.left),
        missed=ABSENT if rule.missed == "once" else rule.missed,
        paused=is_paused or ABSENT,
        paused_until=_or_absent(rule.paused_until_ms if is_paused else None, ids.rfc3339),
        **{name: _or_absent(getattr(rule, name)) for name in _AS_THEY_ARE},
    )


def _or_absent(value: Any, shown: Callable[[Any], Any] | None = None) -> Any:  # noqa: ANN401 - of any member
    return ABSENT if value is None else shown(value) if shown else value


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
def list_schedules(
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
) -> Ask:
    """List what is scheduled for a stream, the next one first, or by name."""
    media.check_accepts_json(request.headers.get(b"accept", b""))
    command = schedule_commands.ListSchedules(
        stream=stream, limit=limit, **_order(by, after, before)._asdict()
    )

    def answer(page: Reply) -> Response:
        assert isinstance(page, SchedulePage), "listing answers a page"
        now_ms = request.gateway.clock.wall_ms()
        shown = [_shown(one, now_ms) for one in page.schedules]
        following = None
        if page.more:
            last = page.schedules[-1]
            following = last.name if by == "name" else f"{last.at_ms}:{last.name}"
        return Response(200, ScheduleList(shown, following).json())

    return Ask([command], answer, lasts=True)


# ---- looking at all of them


class _Place(NamedTuple):
    """Where one stands among all: by time, then by stream and name."""

    at_ms: int
    stream: str
    name: str

    def seen_from(self, stream: str) -> tuple[int, str]:
        """The time and the name behind which what is behind this begins in a stream."""
        if stream == self.stream:
            return self.at_ms, self.name
        return (self.at_ms, "") if stream > self.stream else (self.at_ms + 1, "")

    @property
    def text(self) -> str:
        """As `next` has it."""
        return f"{self.at_ms}:{len(self.stream)}:{self.stream}{self.name}"

    @classmethod
    def parse(cls, text: str) -> "_Place":
        """That of a page's `next`, or behind a time. Raises 422."""
        ms, _, rest = text.partition(":")
        size, _, names = rest.partition(":")
        if all(one.isascii() and one.isdigit() and len(one) <= len(str(NEVER_MS)) for one in (ms, size)):
            return cls(int(ms), names[: int(size)], names[int(size) :])
        return cls(_time("after", text) + 1, "", "")


_place_of: Final = itemgetter(0)
_START: Final = _Place(0, "", "")


@router.get(_ALL, Access.PER_STREAM, model=ScheduleList, refusals=("not_acceptable",))
async def list_all_schedules(
    request: RequestParameter,
    after: Annotated[str | None, Query(description="later than this time; or a page's `next`")] = None,
    before: Annotated[str | None, Query(description="earlier than this time")] = None,
    limit: Annotated[int, Whole(1, _PAGE_MAX), Query(description="maximum number of schedules")] = 100,
) -> ScheduleList:
    """List what is scheduled for all streams that the caller may read, the next one first."""
    if not request.principal.may_somewhere(Action.READ):
        request.require(Action.READ, None)
    media.check_accepts_json(request.headers.get(b"accept", b""))
    page = _Page(
        _START if after is None else _Place.parse(after),
        NEVER_MS + 1 if before is None else _time("before", before),
        limit,
    )
    following: str | None = ""
    while following is not None:
        listing = await request.execute(ListStreams(scheduled=True, after=following, limit=_PAGE_MAX))
        assert isinstance(listing, Listing), "listing answers names"
        for place, stream in enumerate(filter(request.may_read, listing.names)):
            if not place % _STREAMS_A_TURN:
                await request.take_turn()
            try:
                found = await request.execute(page.command(stream))
            except EngineError as refusal:
                # It went since it was listed.
                if refusal.code != "no_stream":
                    raise
            else:
                page.add(stream, found)
        following = listing.next
    return page.shown(request.gateway.clock.wall_ms())


class _Page:
    """The first schedules behind a place, of the streams that were looked at so far: no more than fit."""

    def __init__(self, after: _Place, before_ms: int, limit: int) -> None:
        self._after, self._before_ms, self._limit = after, before_ms, limit
        self._rows: list[tuple[_Place, ScheduleInfo]] = []
        self._has_more = False
        self._end = _Place(before_ms, "", "")

    def command(self, stream: str) -> schedule_commands.ListSchedules:
        """What is asked of one more stream."""
        after = self._after.seen_from(stream)
        return schedule_commands.ListSchedules(
            stream=stream, after=after, before_ms=self._before_ms, limit=self._limit
        )

    def add(self, stream: str, found: Reply) -> None:
        """Take what it has; where there are too many the last ones go."""
        assert isinstance(found, SchedulePage), "listing answers a page"
        rows = [(_Place(one.at_ms, stream, one.name), one) for one in found.schedules]
        if found.more:
            self._end_at(rows[-1][0])
        merged = [row for row in merge(self._rows, rows, key=_place_of) if row[0] <= self._end]
        sizes = accumulate(len(place.stream) + len(one.name) + len(one.body) for place, one in merged)
        most = max(1, sum(1 for _ in takewhile(PAGE_BYTES_MAX.__ge__, sizes)))
        self._rows = merged[: min(most, self._limit)]
        if len(self._rows) < len(merged):
            self._end_at(self._rows[-1][0])

    def _end_at(self, place: _Place) -> None:
        """Others behind this place are for another page."""
        self._has_more = True
        self._end = min(self._end, place)
        self._before_ms = self._end.at_ms + 1

    def shown(self, now_ms: int) -> ScheduleList:
        """The page."""
        rows = [replace(_shown(one, now_ms), stream=place.stream) for place, one in self._rows]
        return ScheduleList(rows, self._rows[-1][0].text if self._has_more else None)


@router.get(_SCHEDULE, Action.READ, model=Schedule, refusals=(*_NO_SCHEDULE, "not_acceptable"))
def get_schedule(request: RequestParameter, stream: StreamName, schedule: ScheduleName) -> Ask:
    """Show one schedule: its entry, its rule, and when it is due next."""
    media.check_accepts_json(request.headers.get(b"accept", b""))

    def answer(found: Reply) -> Response:
        assert isinstance(found, ScheduleInfo), "it answers the schedule"
        return Response(200, _shown(found, request.gateway.clock.wall_ms()).json())

    return Ask([schedule_commands.DescribeSchedule(stream=stream, name=schedule)], answer, lasts=True)


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
def put_schedule(
    request: RequestParameter,
    stream: StreamName,
    schedule: ScheduleName,
    body: Annotated[_Given, _ScheduleBody, Depends(request_of)],
    if_none_match: Annotated[
        str | None, Header(alias="If-None-Match", description="`*`: only if there is none")
    ] = None,
) -> Ask:
    """Schedule an entry, once or again and again; a missing stream is made.

    It may be repeated whenever a program starts: with the same entry and rule everything stays, the next time
    too. One with another definition is replaced. What recurs takes `manage` too.
    """
    recurs = body.rule.recurs
    note = partial(request.note_action, "manage", "putSchedule", stream=stream, schedule=schedule)
    if recurs:
        note()

    def answer(found: Reply) -> Response:
        assert isinstance(found, ScheduleSet), "it answers the schedule"
        if found.replaced_recurring and not recurs:
            note()
        where = [location("streams", stream, "schedules", schedule)] if found.created else []
        shown = _shown(found.schedule, request.gateway.clock.wall_ms())
        return request.respond(201 if found.created else 200, shown, where)

    def refuse(refusal: EngineError) -> NoReturn:
        if refusal.code == "forbidden" and not recurs:
            note()
        raise _pointed(refusal)

    command = schedule_commands.SetSchedule(
        stream=stream,
        schedule=schedule_commands.NewSchedule(schedule, body.body, body.rule),
        only_new=if_none_match is not None,
        recurring=_may_manage(request, stream),
        pause=body.pause,
    )
    return Ask([command], answer, request.preferences.synced, refused=refuse)


def _pointed(refusal: EngineError) -> EngineError | RefusalError:
    """The refusal with the member that it is about: what is wrong with a rule begins with it."""
    member, _, hint = refusal.detail.partition(": ")
    if refusal.code != "invalid" or member not in ScheduleRule.model_fields:
        return refusal
    return invalid(f"/{member}", hint)


@router.patch(_SCHEDULE, Action.WRITE, model=Schedule, refusals=_NO_SCHEDULE, writes=True)
def update_schedule(
    request: RequestParameter, stream: StreamName, schedule: ScheduleName, given: SchedulePause
) -> Ask:
    """Pause a schedule, or go on with it. What recurs takes `manage` too."""
    if (pause := given.pause) is None:
        raise invalid("/paused", "say paused or paused_until")

    def answer(reply: Reply) -> Response:
        assert isinstance(reply, ScheduleSet), "it answers the schedule"
        return request.respond(200, _shown(reply.schedule, request.gateway.clock.wall_ms()))

    command = schedule_commands.PauseSchedule(
        stream=stream, name=schedule, pause=pause, recurring=_may_manage(request, stream)
    )
    return _change(request, command, "updateSchedule", answer)


@router.delete(_SCHEDULE, Action.WRITE, status=204, refusals=_NO_SCHEDULE, writes=True)
def delete_schedule(request: RequestParameter, stream: StreamName, schedule: ScheduleName) -> Ask:
    """Cancel a schedule; 404 `no_schedule` where it has run already. What recurs takes `manage` too."""
    command = schedule_commands.CancelSchedule(
        stream=stream, name=schedule, recurring=_may_manage(request, stream)
    )
    return _change(request, command, "deleteSchedule", lambda _: request.respond(204))


@router.post(
    _SCHEDULE + "/fire",
    Action.WRITE,
    status=201,
    model=Added,
    refusals=(*_NO_SCHEDULE, "stream_exhausted"),
    bodiless=True,
    writes=True,
)
def fire_schedule(request: RequestParameter, stream: StreamName, schedule: ScheduleName) -> Ask:
    """Append the entry now. What recurs keeps its next time, and takes `manage` too; else it is done with."""

    def answer(reply: Reply) -> Response:
        assert isinstance(reply, AddedReply), "firing answers the entry"
        where = [location("streams", stream, "entries", ids.format(reply.ids[0]))]
        return request.respond(201, added(reply, batch=False, trims=False, ids_wanted=True), where)

    command = schedule_commands.FireSchedule(
        stream=stream, name=schedule, recurring=_may_manage(request, stream)
    )
    return _change(request, command, "fireSchedule", answer)


def _change(
    request: Request,
    command: schedule_commands.CancelSchedule
    | schedule_commands.FireSchedule
    | schedule_commands.PauseSchedule,
    operation: str,
    answer: Callable[[Reply], Response],
) -> Ask:
    """Ask it; of what recurs the audit log says so, done or refused."""
    stream, schedule = command.stream, command.name
    note = partial(request.note_action, "manage", operation, stream=stream, schedule=schedule)

    def done(found: Reply, reply: Reply) -> Response:
        if isinstance(found, ScheduleInfo) and found.rule.recurs:
            note()
        return answer(reply)

    def refuse(refusal: EngineError) -> NoReturn:
        if refusal.code == "forbidden":
            note()
        raise _pointed(refusal)

    look = schedule_commands.DescribeSchedule(stream=stream, name=schedule)
    return Ask([look, command], done, request.preferences.synced, refused=refuse)
