"""Claims: who takes over which pending entries."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from app.api.groups import group_calls
from app.auth import Action
from app.errors import invalid
from app.http import query
from app.http.asks import Ask
from app.http.entries.deliveries import DeliveredEntry, delivered
from app.http.models import (
    ABSENT,
    ID_PATTERN,
    ConsumerName,
    Count,
    EntryId,
    GroupName,
    IdText,
    LookedUpIds,
    Milliseconds,
    RequestModel,
    ResponseModel,
    StreamName,
    Whole,
    raw,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.responses import Response
from engine import ids
from engine.commands import types
from engine.commands.weir_commands import Extend
from engine.replies import AutoClaimed, Claimed, Delivered, Reply

router: Final = Router("groups")

_GROUP: Final = "/v1/streams/{stream}/groups/{group}"
_REFUSALS: Final = ("malformed_id", "no_stream", "no_group")


class Claim(RequestModel):
    """Entries to take over, if they have been idle for `min_idle_ms`; what has no owner is always taken.

    `idle_ms` or `time_ms` says since when they count as delivered, `retry_count` how often. `just_ids`
    answers IDs and counts no delivery. `last_id` moves the group on.
    """

    consumer: ConsumerName
    min_idle_ms: Milliseconds
    ids: LookedUpIds
    idle_ms: Milliseconds | None = None
    time_ms: Milliseconds | None = None
    retry_count: Count | None = None
    force: bool = False
    just_ids: bool = False
    last_id: EntryId | None = None


class ClaimedEntries(ResponseModel, kw_only=True):
    """What was taken over: `entries`, or `ids` where only these were asked for. `idle_ms` is from before.
    `more` says that the answer was full before the last ID: claim the others again.
    """

    entries: list[DeliveredEntry] = ABSENT
    ids: list[IdText] = ABSENT
    more: bool


@router.post(_GROUP + "/claim", Action.CONSUME, model=ClaimedEntries, refusals=_REFUSALS, writes=True)
def claim_entries(request: RequestParameter, stream: StreamName, group: GroupName, given: Claim) -> Ask:
    """Take over these pending entries, as far as they have been idle for long enough (XCLAIM)."""
    if given.idle_ms is not None and given.time_ms is not None:
        raise invalid("/idle_ms", "it does not go with time_ms")
    request.require(Action.CONSUME, stream, group, given.consumer)
    claim = types.Claim(**{name: getattr(given, name) for name in types.Claim.__struct_fields__})
    bytes_max = request.gateway.limits.reads.bytes_max
    command = types.XClaim(
        stream=stream, group=group, consumer=given.consumer, claim=claim, bytes_max=bytes_max
    )

    def answer(reply: Reply) -> Response:
        assert isinstance(reply, Claimed), "XCLAIM answers what was claimed"
        return request.respond(
            200, ClaimedEntries(**_taken(reply.entries, just_ids=given.just_ids), more=reply.more)
        )

    return group_calls.change(request, answer, command)


class Extension(RequestModel):
    """Entries that a consumer still works on."""

    consumer: ConsumerName
    ids: LookedUpIds


class ExtendedEntries(ResponseModel):
    """How many the consumer holds from now on, and the result for each. `not_held`: another one holds it, or
    it is deferred; `absent`: it is not pending.
    """

    extended: Count
    results: dict[str, Literal["extended", "not_held", "absent"]]


@router.post(_GROUP + "/extend", Action.CONSUME, model=ExtendedEntries, refusals=_REFUSALS, writes=True)
def extend_entries(request: RequestParameter, stream: StreamName, group: GroupName, given: Extension) -> Ask:
    """Say that the work on these entries goes on: their idle time begins anew (`ack_timeout_ms`,
    `min_idle_ms`). What was given back or has timed out, and was given to no one since, is the consumer's
    again.
    """
    request.require(Action.CONSUME, stream, group, given.consumer)
    command = Extend(stream=stream, group=group, consumer=given.consumer, ids=given.ids)
    return group_calls.change(
        request,
        lambda reply: request.respond(
            200, ExtendedEntries(*group_calls.outcomes(reply, given.ids, "extended"))
        ),
        command,
    )


class AutoClaim(RequestModel):
    """Take over what has been idle for `min_idle_ms`, in order of IDs from `start` on; one answer has at
    most 500 entries.
    """

    consumer: ConsumerName
    min_idle_ms: Milliseconds
    start: Annotated[
        str,
        Field(
            description="`-` or an ID; an answer's `next_start` goes on",
            json_schema_extra={"format": "entry-start", "pattern": f"^(-|{ID_PATTERN})$"},
        ),
    ] = "-"
    count: Annotated[int, Whole(1, "count_max")] | None = Field(None, description="100 by default")
    just_ids: bool = False


class AutoClaimedEntries(ResponseModel, kw_only=True):
    """What was taken over, where to go on (`0-0` at the end), and what was pending and is deleted."""

    next_start: IdText
    entries: list[DeliveredEntry] = ABSENT
    ids: list[IdText] = ABSENT
    deleted_ids: list[IdText]


@router.post(_GROUP + "/autoclaim", Action.CONSUME, model=AutoClaimedEntries, refusals=_REFUSALS, writes=True)
def autoclaim_entries(
    request: RequestParameter, stream: StreamName, group: GroupName, given: AutoClaim
) -> Ask:
    """Take over what has been idle for long enough, some at a time (XAUTOCLAIM)."""
    request.require(Action.CONSUME, stream, group, given.consumer)
    limits = request.gateway.limits.reads
    command = types.XAutoClaim(
        stream=stream,
        group=group,
        consumer=given.consumer,
        min_idle_ms=given.min_idle_ms,
        start=ids.ID_MIN if given.start == "-" else query.entry_id(given.start, "/start"),
        count=given.count or limits.count_default,
        just_ids=given.just_ids,
        bytes_max=limits.bytes_max,
    )

    def answer(reply: Reply) -> Response:
        assert isinstance(reply, AutoClaimed), "XAUTOCLAIM answers what was claimed"
        claimed = AutoClaimedEntries(
            next_start=ids.format(reply.next_start),
            **_taken(reply.entries, just_ids=given.just_ids),
            deleted_ids=list(map(ids.format, reply.deleted_ids)),
        )
        return request.respond(200, claimed)

    return group_calls.change(request, answer, command)


def _taken(entries: Sequence[Delivered], *, just_ids: bool) -> dict[str, Any]:
    if just_ids:
        return {"ids": [ids.format(one.id) for one in entries]}
    return {"entries": raw(map(delivered, entries))}
