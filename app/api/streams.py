"""Streams: listing, showing, retention, trimming, removing them."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec
from fastapi import Header, Query
from msgspec.structs import asdict, replace
from pydantic import Field

from app.api.groups.groups import Group
from app.auth import Access, Action, Resource
from app.errors import RefusalError, invalid
from app.http import media
from app.http.asks import Ask, Result
from app.http.conditional import matches, tag_of
from app.http.entries.entry_pages import Entry
from app.http.entries.publishing import References
from app.http.models import (
    ABSENT,
    Count,
    EntityTags,
    EntryId,
    Flag,
    IdText,
    Moment,
    NameText,
    RequestModel,
    ResponseModel,
    StreamName,
    Whole,
    absent,
    capped,
    raw,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Header as ResponseHeader
from app.http.responses import Response, location
from engine import errors, ids
from engine.commands import types
from engine.commands.base import Command
from engine.commands.weir_commands import EnsureStream, NewLifetime, StreamInfos, UpdateStream
from engine.parts import keeping
from engine.replies import ConsumerDetail, Entries, GroupDetail, Reply, StreamDetail, StreamInfo
from engine.replies import StreamPage as FoundStreams
from engine.replies import Trimmed as TrimReply

router: Final = Router("streams")

_STREAMS: Final = "/v1/streams"
_STREAM: Final = "/v1/streams/{stream}"
_PAGE_MAX: Final = 1_000
_DETAILS_MAX: Final = 1_000
_DETAILS_DEFAULT: Final = 10

Limit = Annotated[int, Whole()] | None


class Retention(RequestModel):
    """How much of a stream is kept; null is no limit.

    Limits are kept to exactly about once a second, and roughly with each publish.
    """

    is_patch: ClassVar[bool] = True

    max_len: Annotated[Limit, Field(description="entries")] = None
    max_age_ms: Annotated[Limit, Field(description="milliseconds since the entry's ID")] = None
    max_bytes: Annotated[Limit, Field(description="bytes of the entries as JSON")] = None
    keep_unacknowledged: Annotated[
        bool,
        Field(
            description="keep what a group has still to read or to acknowledge; until there was a group, "
            "everything up to `max_bytes`"
        ),
    ] = absent()
    keep_unarchived: Annotated[bool, Field(description="keep what lies above `archived_up_to`")] = absent()
    acknowledged: Annotated[
        Literal[True],
        Field(
            description="in a request: what all groups have read and acknowledged goes. "
            "`keep_unacknowledged`, and a `max_len` of 0 where neither it nor `max_age_ms` is named"
        ),
    ] = absent()

    @property
    def changes(self) -> dict[str, Any]:
        """The members that are given, as the engine has them. Raises 422 for two that exclude each other."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if given.pop("acknowledged", False):
            if given.get("keep_unacknowledged") is False:
                raise invalid("/retention/keep_unacknowledged", "with acknowledged it is true, or not there")
            stays = given.get("max_len") is not None or given.get("max_age_ms") is not None
            given |= {"keep_unacknowledged": True} if stays else {"keep_unacknowledged": True, "max_len": 0}
        return given


_RETENTION: Final = keeping.Retention._fields
_retention_of: Final = attrgetter(*_RETENTION)


class StreamInput(RequestModel):
    """A stream to be there. What `retention` does not name has no limit. A lifetime that is not named stays;
    null ends it.
    """

    is_patch: ClassVar[bool] = True

    retention: Retention = absent()
    expires_at: Annotated[Moment | None, Field(description="when the stream is removed")] = None
    expires_in_ms: Annotated[
        Annotated[int, Whole(1)] | None, Field(description="milliseconds from now, instead of `expires_at`")
    ] = None

    @property
    def lifetime(self) -> NewLifetime | None:
        """The lifetime, None where it is not named. Raises 422 where it is named twice."""
        named = self.model_fields_set & {"expires_at", "expires_in_ms"}
        if self.expires_at is not None and self.expires_in_ms is not None:
            raise invalid("/expires_in_ms", "a stream has one of expires_at and expires_in_ms")
        if self.expires_in_ms is not None:
            return NewLifetime(ms=self.expires_in_ms, relative=True)
        return NewLifetime(ms=self.expires_at) if named else None

    @property
    def changes(self) -> dict[str, Any]:
        """The retention's members that are given."""
        return self.retention.changes if "retention" in self.model_fields_set else {}


class StreamChanges(StreamInput):
    """What is named changes, all else stays. A limit of null goes."""

    archived_up_to: Annotated[EntryId, Field(description="everything up to here is kept elsewhere")] = (
        absent()
    )


class NewLastId(RequestModel):
    """The last ID, and the counters that go with it where a stream was moved here."""

    last_id: EntryId
    entries_added: Annotated[int, Whole()] | None = None
    max_deleted_id: EntryId | None = None


class Holder(ResponseModel):
    """A group, and the first ID that it has still to read or to acknowledge."""

    group: NameText
    id: IdText


class Stream(ResponseModel):
    """A stream. `0-0` stands for no ID; `entries_added` counts all that ever were."""

    name: str
    type: Literal["stream"]
    length: Count
    first_id: IdText
    last_id: Annotated[IdText, Field(description="the last ID given, whether its entry is there or not")]
    first_entry: Entry | None
    last_entry: Entry | None
    max_deleted_id: IdText
    removed_upto: Annotated[IdText, Field(description="a cursor above 0-0 and below this has a gap")]
    entries_added: Count
    nodes: Count
    groups: Count
    generation: Annotated[str, Field(description="new each time that the name is created")]
    retention: Retention
    archived_up_to: IdText
    expires_at: Annotated[
        str | None, Field(description="when it is removed", json_schema_extra={"format": "date-time"})
    ]
    memory_bytes: Count
    schedules: Annotated[Count, Field(description="entries for later")]
    state: Literal["open", "ending", "closed"]
    closed: Annotated[bool, Field(description="it takes no entries any more")]
    closed_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})] = ABSENT
    close_reason: str = ABSENT
    media_type: Annotated[str, Field(description="of a stream of Durable Streams")] = ABSENT
    forked_from: Annotated[str, Field(description="the stream that it is a fork of")] = ABSENT
    held_by: Annotated[
        Literal["no group"] | Holder,
        Field(
            description="what keeps all of it in spite of its limits, where it keeps what is not "
            "acknowledged: a group, or that it never had one"
        ),
    ] = ABSENT


class StreamPage(ResponseModel):
    """A page of streams; go on with `after=<next>` until it is null."""

    streams: list[Stream]
    next: str | None


class PendingDetail(ResponseModel, kw_only=True):
    """An entry that was not acknowledged; in a group's list `consumer` is null where it has no owner."""

    id: IdText
    consumer: str | None = ABSENT
    delivery_time_ms: Count
    delivery_count: Count


class ConsumerDetails(ResponseModel):
    """A consumer, with the times of its last attempt to read and of its last success (-1: never)."""

    name: str
    pending: Count
    seen_time_ms: int
    active_time_ms: int
    pending_entries: list[PendingDetail]


class GroupDetails(Group, kw_only=True):
    """A group with what is pending and its consumers; `nacked` entries were given back."""

    nacked: Count
    pending_entries: list[PendingDetail]
    consumer_details: list[ConsumerDetails]


class StreamDetails(Stream):
    """A stream; with `full=true` also its first entries and its groups."""

    entries: list[Entry] = ABSENT
    group_details: list[GroupDetails] = ABSENT


# ---- looking


@router.get(_STREAMS, Access.PER_STREAM, model=StreamPage, refusals=("not_acceptable",), conditional=True)
def list_streams(
    request: RequestParameter,
    prefix: Annotated[str, Query(description="only names that begin with it")] = "",
    after: Annotated[str | None, Query(description="names above this one: a page's `next`")] = None,
    limit: Annotated[int, Whole(1, _PAGE_MAX), Query(description="maximum number of streams")] = 100,
) -> Ask:
    """List streams by name: those that the caller may read. A page may hold fewer than `limit`."""
    if not request.principal.may_somewhere(Action.READ):
        request.require(Action.READ, None)
    media.check_accepts_json(request.headers.get(b"accept", b""))
    bytes_max = request.gateway.settings.answer_bytes_max
    if request.principal.may(Action.READ, Resource()):
        command = StreamInfos(prefix=prefix, after=after, limit=limit)
        return Ask([command], lambda page: _listed(_page(page), bytes_max))
    return _readable(request, StreamInfos(prefix=prefix, after=after, limit=_PAGE_MAX), limit, ())


def _readable(
    request: Request, look: StreamInfos, limit: int, before: Sequence[tuple[str, StreamInfo]]
) -> Ask:
    """A page of the streams that the caller may read. It ends, and goes on, as if there were no others: their
    names are not to be found out by asking for pages. Others come between two looks.
    """

    def answer(reply: Reply) -> Result:
        page, bytes_max = _page(reply), request.gateway.settings.answer_bytes_max
        readable = [*before, *(one for one in page.streams if request.may_read(one[0]))]
        if len(readable) > limit:
            return _listed(FoundStreams(readable[:limit], readable[limit - 1][0]), bytes_max)
        if page.next is None:
            return _listed(FoundStreams(readable), bytes_max)
        return _readable(request, replace(look, after=page.next), limit, readable)

    return Ask([look], answer, in_turn=bool(before))


def _page(reply: Reply) -> FoundStreams:
    assert isinstance(reply, FoundStreams), "listing answers a page"
    return reply


def _listed(found: FoundStreams, bytes_max: int) -> Response:
    shown: list[bytes] = []
    left, following = bytes_max, found.next
    for place, (name, info) in enumerate(found.streams):
        text = _stream(name, info)
        left -= len(text)
        if left < 0 and shown:
            following = found.streams[place - 1][0]
            break
        shown.append(text)
    return Response(200, StreamPage(streams=raw(shown), next=following).json())


@router.get(
    _STREAM,
    Action.READ,
    model=StreamDetails,
    refusals=("no_stream", "not_acceptable"),
    conditional=True,
)
def get_stream(
    request: RequestParameter,
    stream: StreamName,
    full: Annotated[Flag, Query(description="with entries, groups, consumers and what is pending")] = False,  # noqa: FBT002 - a parameter of the query
    count: Annotated[
        Annotated[int, Whole(1, _DETAILS_MAX)] | None,
        Query(description="with `full`: maximum number of entries, and of each pending list; 10 by default"),
    ] = None,
) -> Ask:
    """Show one stream: its edges, counts, retention; in full with entries and groups (XINFO STREAM)."""
    media.check_accepts_json(request.headers.get(b"accept", b""))
    if not full:
        if count is not None:
            raise invalid("count", "it goes with full=true")
        return Ask([types.XInfoStream(stream=stream)], partial(_shown, stream), lasts=True)
    count = count or _DETAILS_DEFAULT
    bytes_max = request.gateway.settings.answer_bytes_max
    first = types.XRange(stream=stream, start=ids.ID_MIN, end=ids.ID_MAX, count=count, bytes_max=bytes_max)
    return Ask(
        [types.XInfoStreamFull(stream=stream, count=count, bytes_max=bytes_max), first],
        partial(_details, stream),
        lasts=True,
    )


def _shown(stream: str, info: Reply) -> Response:
    return Response(200, _stream(stream, info))


def _members(name: str, info: Reply) -> dict[str, Any]:
    """A stream as every operation shows it."""
    assert isinstance(info, StreamInfo), "XINFO STREAM answers the stream"
    return {
        "name": name,
        "type": "stream",
        "length": info.length,
        "first_id": ids.format(info.first_id),
        "last_id": ids.format(info.last_id),
        "first_entry": None if info.first_entry is None else msgspec.Raw(info.first_entry),
        "last_entry": None if info.last_entry is None else msgspec.Raw(info.last_entry),
        "max_deleted_id": ids.format(info.max_deleted_id),
        "removed_upto": ids.format(info.removed_upto),
        "entries_added": capped(info.entries_added),
        "nodes": info.nodes,
        "groups": info.groups,
        "generation": info.generation,
        "retention": dict(zip(_RETENTION, _retention_of(info), strict=True)),
        "archived_up_to": ids.format(info.archived_up_to),
        "expires_at": _moment(info.expires_at_ms),
        "memory_bytes": info.memory_bytes,
        "schedules": info.schedules,
        "state": info.state,
        "closed": info.closed_at_ms is not None,
        "closed_at": ABSENT if info.closed_at_ms is None else ids.rfc3339(info.closed_at_ms),
        "close_reason": info.close_reason or ABSENT,
        "media_type": ABSENT if info.media is None else info.media,
        "forked_from": ABSENT if info.forked_from is None else info.forked_from,
        "held_by": Holder(info.held_by, ids.format(info.held_id)) if info.held_id else info.held_by or ABSENT,
    }


def _stream(name: str, info: Reply) -> bytes:
    return Stream(**_members(name, info)).json()


def _moment(at_ms: int | None) -> str | None:
    return None if at_ms is None else ids.rfc3339(at_ms)


def _details(name: str, found: Reply, first: Reply) -> Response:
    assert isinstance(found, StreamDetail), "XINFO STREAM FULL answers the details"
    assert isinstance(first, Entries), "XRANGE answers entries"
    groups = list(map(_group, found.groups))
    shown = StreamDetails(**_members(name, found.stream), entries=raw([first.json()]), group_details=groups)
    return Response(200, shown.json())


def _group(found: GroupDetail) -> GroupDetails:
    return GroupDetails(
        **asdict(Group.of(found.group)),
        nacked=found.nacked_count,
        pending_entries=[
            _pending(entry_id, at_ms, count, consumer) for entry_id, consumer, at_ms, count in found.pending
        ],
        consumer_details=list(map(_consumer, found.consumers)),
    )


def _consumer(found: ConsumerDetail) -> ConsumerDetails:
    return ConsumerDetails(
        name=found.name,
        pending=found.pending_count,
        seen_time_ms=found.seen_time_ms,
        active_time_ms=found.active_time_ms,
        pending_entries=[
            _pending(entry_id, at_ms, count, ABSENT) for entry_id, at_ms, count in found.pending
        ],
    )


def _pending(entry_id: int, at_ms: int, count: int, consumer: str | None) -> PendingDetail:
    return PendingDetail(
        id=ids.format(entry_id), consumer=consumer, delivery_time_ms=at_ms, delivery_count=capped(count)
    )


# ---- changing


_NEW: Final = StreamInput()
_UNCHANGED: Final = StreamChanges()


IfUnchanged = Annotated[
    EntityTags | None,
    Header(
        alias="If-Match",
        description="change nothing unless the stream's ETag is one of these; `*` is any",
    ),
]
_TAGGED: Final = {"ETag": "the stream's entity tag after the change"}


@router.put(
    _STREAM,
    Action.MANAGE,
    status=201,
    model=Stream,
    also={200: "Its retention is set"},
    refusals=("no_stream", "precondition_failed"),
    headers=_TAGGED,
    writes=True,
)
def put_stream(
    request: RequestParameter,
    stream: StreamName,
    given: StreamInput = _NEW,
    if_match: IfUnchanged = None,
) -> Ask:
    """Create a stream, or set retention and lifetime of the one there is; with If-Match only the latter."""
    retention = keeping.Retention()._replace(**given.changes)
    if if_match is not None:
        command = UpdateStream(stream=stream, retention=retention._asdict(), lifetime=given.lifetime)
        return _if_unchanged(request, command, if_match, partial(_change, request, stream))

    def answer(created: Reply, info: Reply) -> Response:
        where = [location("streams", stream)] if created else []
        return _changed(request, 201 if created else 200, stream, info, where)

    ensure = EnsureStream(stream=stream, retention=retention, lifetime=given.lifetime)
    return Ask([ensure, types.XInfoStream(stream=stream)], answer, request.preferences.synced)


@router.patch(
    _STREAM,
    Action.MANAGE,
    model=Stream,
    refusals=("malformed_id", "no_stream", "precondition_failed"),
    headers=_TAGGED,
    writes=True,
)
def update_stream(
    request: RequestParameter,
    stream: StreamName,
    given: StreamChanges = _UNCHANGED,
    if_match: IfUnchanged = None,
) -> Ask:
    """Change parts of a stream's retention, its lifetime, or say up to where it is archived."""
    command = UpdateStream(
        stream=stream,
        retention=given.changes,
        archived_up_to=given.archived_up_to,
        lifetime=given.lifetime,
    )
    return _if_unchanged(request, command, if_match, partial(_change, request, stream))


@router.delete(
    _STREAM,
    Action.MANAGE,
    status=204,
    refusals=("no_stream", "precondition_failed", "has_schedules"),
    writes=True,
)
def delete_stream(
    request: RequestParameter,
    stream: StreamName,
    schedules: Annotated[
        Literal["refuse", "drop"],
        Query(description="whether entries for later forbid it or are dropped"),
    ] = "refuse",
    if_match: IfUnchanged = None,
) -> Ask:
    """Remove a stream with its groups and everything in them (DEL)."""

    def answer(removed: Reply) -> Response:
        if not removed:
            raise _missing(stream)
        return request.respond(204)

    command = types.Delete(streams=[stream], drops_schedules=schedules == "drop")
    synced = request.preferences.synced
    return _if_unchanged(request, command, if_match, lambda command: Ask([command], answer, synced))


C = TypeVar("C", types.Delete, UpdateStream)


def _if_unchanged(
    request: Request, command: C, tags: Sequence[bytes] | Literal["*"] | None, ask: Callable[[C], Ask]
) -> Ask:
    """Ask this of the stream that If-Match names: the engine changes it only if it is still so in the same
    turn. Refused with `no_stream`, `precondition_failed`.
    """
    if tags is None or tags == "*":
        # The change itself refuses a missing stream with 404.
        return ask(command)
    stream = request.names["stream"]

    def found(info: Reply) -> Ask:
        assert isinstance(info, StreamInfo), "XINFO STREAM answers the stream"
        if not matches(tags, tag_of(_stream(stream, info))):
            raise errors.stream_changed()
        return ask(replace(command, expected=info))

    return Ask([types.XInfoStream(stream=stream)], found)


def _change(request: Request, stream: str, command: Command) -> Ask:
    """Change the stream, and show it as it is then."""
    return Ask(
        [command, types.XInfoStream(stream=stream)],
        lambda _, info: _changed(request, 200, stream, info),
        request.preferences.synced,
    )


def _changed(
    request: Request, status: int, stream: str, info: Reply, headers: Sequence[ResponseHeader] = ()
) -> Response:
    body = _stream(stream, info)
    return request.respond(status, body, [(b"etag", tag_of(body)), *headers])


@router.post(
    _STREAM + "/last-id",
    Action.MANAGE,
    model=Stream,
    refusals=("malformed_id", "no_stream", "last_id_too_small", "stream_closed"),
    headers=_TAGGED,
    writes=True,
)
def set_last_id(request: RequestParameter, stream: StreamName, given: NewLastId) -> Ask:
    """Set a stream's last ID, as after a move from elsewhere (XSETID)."""
    command = types.XSetId(
        stream=stream,
        last_id=given.last_id,
        entries_added=given.entries_added,
        max_deleted_id=given.max_deleted_id,
    )
    return _change(request, stream, command)


# ---- trimming


class Trimming(RequestModel):
    """One of `maxlen`, `minid` and `older_than_ms` says what goes."""

    maxlen: Annotated[Count, Field(description="keep this many of the newest")] = absent()
    minid: Annotated[EntryId, Field(description="remove what has a smaller ID")] = absent()
    older_than_ms: Annotated[Count, Field(description="remove what is older")] = absent()
    approx: Annotated[bool, Field(description="whole nodes only, which costs less")] = False
    limit: Annotated[
        Annotated[int, Whole()] | None,
        Field(description="with `approx`: maximum number to remove; 0 is no limit"),
    ] = None
    refs: References = "keep"
    dry_run: Annotated[bool, Field(description="only show what would go")] = False
    guard: Annotated[bool, Field(description="refuse to remove what a group has not finished")] = False

    def command(self, stream: str) -> types.XTrim:
        """The trim; exact by default. Raises 422 unless one way is given."""
        ways = ("maxlen", "minid", "older_than_ms")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) != 1:
            raise invalid(f"/{given[1]}" if given else "", f"a trim has one of {', '.join(ways)}")
        if self.limit is not None and not self.approx:
            raise invalid("/limit", "it goes with approximate trimming")
        trim = types.Trim(
            maxlen=self.maxlen,
            minid=self.minid,
            older_than_ms=self.older_than_ms,
            approx=self.approx,
            limit=self.limit,
            refs=types.Refs(self.refs),
            count_pending=True,
        )
        return types.XTrim(stream=stream, trim=trim, dry_run=self.dry_run, guard=self.guard)


class Trimmed(ResponseModel):
    """What went; `pending_affected` of them are pending in a group. `first_id` is the first one kept."""

    deleted: Count
    first_id: IdText
    pending_affected: Count


@router.post(
    _STREAM + "/trim",
    Action.MANAGE,
    model=Trimmed,
    refusals=("malformed_id", "no_stream", "trim_guarded"),
    writes=True,
)
def trim_stream(request: RequestParameter, stream: StreamName, given: Trimming) -> Ask:
    """Remove the oldest entries, or show how many would go (XTRIM)."""

    def answer(reply: Reply) -> Response:
        assert isinstance(reply, TrimReply), "XTRIM answers what went"
        trimmed = Trimmed(
            deleted=reply.deleted,
            first_id=ids.format(reply.first_id),
            pending_affected=reply.pending_affected,
        )
        return request.respond(200, trimmed)

    return change(request, given.command(stream), answer)


def change(request: Request, command: Command, answer: Callable[[Reply], Response]) -> Ask:
    """Ask a command of a stream that has to exist."""
    stream = request.names["stream"]

    def done(exists: Reply, reply: Reply) -> Response:
        if not exists:
            raise _missing(stream)
        return answer(reply)

    return Ask([types.Exists(streams=[stream]), command], done, request.preferences.synced)


def _missing(name: str) -> RefusalError:
    return RefusalError("no_stream", f"there is no stream {name!r}", members={"stream": name})
