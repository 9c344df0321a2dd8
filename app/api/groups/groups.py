"""Groups of one stream: listing, making, showing, changing, removing them."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import Field

from app.api.groups import group_calls
from app.api.groups.group_calls import After, Limit, page_of
from app.auth import Action
from app.errors import invalid
from app.http.asks import Ask
from app.http.models import (
    ABSENT,
    ConsumerName,
    Count,
    GroupName,
    IdText,
    Milliseconds,
    NameText,
    RequestModel,
    ResponseModel,
    Start,
    StreamName,
    Whole,
    capped,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response, location
from engine import errors, ids
from engine.commands.types import Cursor, XInfoGroups
from engine.commands.weir_commands import (
    IN_FLIGHT_PER_KEY_MAX,
    ORDERED_BY_BYTES_MAX,
    DeleteGroup,
    DescribeGroup,
    EnsureGroup,
    ExamineGroup,
    UpdateGroup,
)
from engine.replies import GroupFacts, GroupInfo, Reply
from engine.why import explain

router: Final = Router("groups")

_FieldName = Annotated[str, Field(min_length=1, max_length=ORDERED_BY_BYTES_MAX)]

_GROUPS: Final = "/v1/streams/{stream}/groups"
_GROUP: Final = _GROUPS + "/{group}"
_NO_GROUP: Final = ("no_stream", "no_group")
_CREATED: Final = {201: "Made"}

Timeout = Annotated[int, Whole(1)]


class DeadLetter(RequestModel):
    """Where entries go that were delivered too often; without `max_deliveries` they go by hand alone."""

    stream: StreamName
    max_deliveries: Timeout | None = None


class GroupPolicy(RequestModel):
    """The policy: what is delivered, and what happens to entries that are not acknowledged."""

    dead_letter: DeadLetter | None = None
    ack_timeout_ms: Annotated[
        Timeout | None,
        Field(description="entries idle for so long are released: the next reader that claims gets them"),
    ] = None
    consumer_timeout_ms: Annotated[
        Timeout | None,
        Field(
            description="consumers that have not read or been connected for so long are removed, and what "
            "they hold is released"
        ),
    ] = None

    max_age_ms: Annotated[
        Timeout | None,
        Field(
            description="entries whose IDs are older when they would be delivered are acknowledged instead, "
            "with a dead letter (`expired`) where the group has `dead_letter`"
        ),
    ] = None
    paused: Annotated[
        bool,
        Field(
            description="nothing is delivered, new or given back, until it is false; what consumers hold "
            "they can acknowledge, give back, claim and read again"
        ),
    ] = False
    ordered_by: Annotated[
        _FieldName | None,
        Field(
            description="a field: entries with the same value of it are delivered in order, those of other "
            "values meanwhile; `*`: all in order; it changes only while nothing is pending or passed over"
        ),
    ] = None
    in_flight_per_key: Annotated[
        Annotated[int, Whole(1, IN_FLIGHT_PER_KEY_MAX)],
        Field(description="how many entries with the same value of `ordered_by` are pending at a time"),
    ] = 1

    def changes(self, stream: str) -> dict[str, Any]:
        """What changes of the engine's policy: the members that are given; null takes a part of it away."""
        named = [one for one in GroupPolicy.model_fields if one in self.model_fields_set - {"dead_letter"}]
        given: dict[str, Any] = {name: getattr(self, name) for name in named}
        if "dead_letter" in self.model_fields_set:
            target = self.dead_letter
            if target is not None and target.stream == stream:
                raise invalid("/dead_letter/stream", "a dead letter in the same stream would be read again")
            given["dead_letter_stream"] = target and target.stream
            given["max_deliveries"] = target and target.max_deliveries
        return given


_EntriesRead = Annotated[
    Annotated[int, Whole()] | None, Field(description="keeps the lag of a new group exact")
]


class EnsuredGroup(GroupPolicy):
    """A group that is to be there. One that is keeps its position and its policy."""

    start: Start = Field(Cursor.LATEST, json_schema_extra={"default": "$"})
    mkstream: Annotated[bool, Field(description="make the stream where it is missing")] = True
    entries_read: _EntriesRead = None


class GroupInput(GroupPolicy):
    """A group to make."""

    name: GroupName
    start: Start = Field(Cursor.LATEST, json_schema_extra={"default": "$"})
    mkstream: Annotated[bool, Field(description="make the stream where it is missing")] = False
    entries_read: _EntriesRead = None


class GroupChanges(GroupPolicy):
    """What is to change; what is not named stays. Null takes a part of the policy away."""

    last_delivered_id: Start | None = None
    entries_read: Annotated[int, Whole()] | None = None


class DeadLetterTarget(ResponseModel):
    """Where entries go that were delivered too often."""

    stream: NameText
    max_deliveries: Count | None


_AS_THEY_ARE: Final = (
    *("name", "consumers", "pending", "state"),
    *("ack_timeout_ms", "consumer_timeout_ms", "max_age_ms", "paused"),
)
_OF_AN_ORDER: Final = ("ordered_by", "in_flight_per_key", "passed_over")


class Group(ResponseModel):
    """A group of a stream: where it is, what is pending, how far it is behind (`lag`), and its policy.

    `entries_read` and `lag` are null where they are unknown.
    """

    name: NameText
    consumers: Count
    pending: Count
    last_delivered_id: IdText
    entries_read: Count | None
    lag: Count | None
    dead_letter: DeadLetterTarget | None
    ack_timeout_ms: Milliseconds | None
    consumer_timeout_ms: Milliseconds | None
    max_age_ms: Milliseconds | None
    paused: bool
    state: Annotated[
        Literal["drained", "paused", "no_consumers", "failing", "running", "idle"],
        Field(description="the first that holds"),
    ]
    # Of a group that is ordered by key.
    ordered_by: _FieldName = ABSENT
    in_flight_per_key: Count = ABSENT
    passed_over: Annotated[
        Count,
        Field(description="entries that were read and wait for others of their key; `lag` has them too"),
    ] = ABSENT

    @classmethod
    def of(cls, info: Reply) -> "Group":
        """A group as every operation shows it."""
        assert isinstance(info, GroupInfo), "describing a group answers the group"
        target = None
        if info.dead_letter_stream is not None:
            target = DeadLetterTarget(stream=info.dead_letter_stream, max_deliveries=info.max_deliveries)
        shown = {name: getattr(info, name) for name in _AS_THEY_ARE}
        if info.ordered_by is not None:
            shown |= {name: getattr(info, name) for name in _OF_AN_ORDER}
        return cls(
            last_delivered_id=ids.format(info.last_delivered_id),
            entries_read=capped(info.entries_read),
            lag=capped(info.lag),
            dead_letter=target,
            **shown,
        )


class GroupPage(ResponseModel):
    """Groups by name; `next` is the name to go on `after`, null at the end."""

    groups: list[Group]
    next: NameText | None


@router.get(_GROUPS, Action.READ, model=GroupPage, refusals=("no_stream",), conditional=True)
def list_groups(
    request: RequestParameter, stream: StreamName, after: After = None, limit: Limit = None
) -> Ask:
    """List the groups of a stream by name (XINFO GROUPS)."""
    most = limit or request.gateway.settings.count_max

    def page(infos: Reply) -> GroupPage:
        assert isinstance(infos, list), "XINFO GROUPS answers a list"
        page, following = page_of(infos, after, most)
        return GroupPage(groups=[Group.of(one) for one in page], next=following)

    return Ask([XInfoGroups(stream=stream)], page, lasts=True)


@router.post(
    _GROUPS,
    Action.MANAGE,
    status=201,
    model=Group,
    refusals=("no_stream", "group_exists", "malformed_id"),
    writes=True,
)
def create_group(request: RequestParameter, stream: StreamName, given: GroupInput) -> Ask:
    """Make a group; refused where there is one of that name (XGROUP CREATE)."""
    return _ensure(request, stream, given.name, given, only_new=True)


_ENSURED: Final = EnsuredGroup()


@router.put(
    _GROUP,
    Action.MANAGE,
    also=_CREATED,
    model=Group,
    refusals=("no_stream", "malformed_id"),
    writes=True,
)
def ensure_group(
    request: RequestParameter, stream: StreamName, group: GroupName, given: EnsuredGroup = _ENSURED
) -> Ask:
    """Make a group, and its stream, where they are missing; one that is there keeps position and policy."""
    return _ensure(request, stream, group, given, only_new=False)


def _ensure(
    request: RequestParameter, stream: str, group: str, given: GroupInput | EnsuredGroup, *, only_new: bool
) -> Ask:
    command = EnsureGroup(
        stream=stream,
        group=group,
        start=given.start,
        mkstream=given.mkstream,
        entries_read=given.entries_read,
        policy=given.changes(stream),
    )

    def answer(created: Reply, info: Reply) -> Response:
        if only_new and not created:
            raise errors.group_exists(group)
        where = [location("streams", stream, "groups", group)] if created else []
        return request.respond(201 if created else 200, Group.of(info), where)

    return _set(request, command, answer)


def _set(
    request: RequestParameter, command: EnsureGroup | UpdateGroup, answer: Callable[..., Response]
) -> Ask:
    """Answer the group as it is then. Setting a dead-letter stream requires write access to that stream, and
    access to the entries of this one, which go there.
    """
    target = command.policy.get("dead_letter_stream")
    if target is not None:
        group_calls.require_entries(request, command.stream, command.group)
        request.require(Action.WRITE, target)
    described = DescribeGroup(stream=command.stream, group=command.group)
    return group_calls.change(request, answer, command, described)


@router.get(_GROUP, Action.READ, model=Group, refusals=_NO_GROUP)
def get_group(request: RequestParameter, stream: StreamName, group: GroupName) -> Ask:
    """Show one group: its position, its lag, what is pending, its policy."""
    return group_calls.look(request, DescribeGroup(stream=stream, group=group), Group.of)


class Reason(ResponseModel):
    """One of them; new codes may come."""

    code: str
    detail: str
    remedies: Annotated[
        dict[str, str], Field(description="what to do: in the words of `rest`, `cli`, `console`, `redis`")
    ]


class Why(ResponseModel):
    """All reasons that hold; `ready` where nothing is in the way."""

    reasons: list[Reason]


@router.get(_GROUP + "/why", Action.READ, model=Why)
def explain_group(
    request: RequestParameter,
    stream: StreamName,
    group: GroupName,
    consumer: Annotated[ConsumerName | None, Query(description="what this one holds")] = None,
) -> Ask:
    """Say why a group delivers nothing, and what to do."""

    def answer(facts: Reply) -> Why:
        assert isinstance(facts, GroupFacts), "examining answers facts"
        live = request.tenant.leases.explain(stream, group, consumer)
        reasons = explain(facts, stream, group, consumer, live)
        return Why([Reason(one.code, one.detail, one.remedy._asdict()) for one in reasons])

    return Ask([ExamineGroup(stream=stream, group=group, consumer=consumer)], answer)


_UNCHANGED: Final = GroupChanges()


@router.patch(
    _GROUP,
    Action.MANAGE,
    model=Group,
    refusals=("malformed_id", "group_has_pending", *_NO_GROUP),
    writes=True,
)
def update_group(
    request: RequestParameter, stream: StreamName, group: GroupName, given: GroupChanges = _UNCHANGED
) -> Ask:
    """Move a group, pause or resume it, or change its policy (XGROUP SETID)."""
    command = UpdateGroup(
        stream=stream,
        group=group,
        start=given.last_delivered_id,
        entries_read=given.entries_read,
        policy=given.changes(stream),
    )
    return _set(request, command, lambda _, info: request.respond(200, Group.of(info)))


@router.delete(_GROUP, Action.MANAGE, status=204, refusals=(*_NO_GROUP, "group_has_pending"), writes=True)
def delete_group(
    request: RequestParameter,
    stream: StreamName,
    group: GroupName,
    pending: Annotated[
        Literal["refuse", "drop"],
        Query(description="whether pending entries forbid the removal or are dropped"),
    ] = "refuse",
) -> Ask:
    """Remove a group; refused while entries are pending, unless these may be dropped (XGROUP DESTROY)."""
    command = DeleteGroup(stream=stream, group=group, drop=pending == "drop")
    return group_calls.change(request, lambda _: request.respond(204), command)
