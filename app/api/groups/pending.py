"""Pending entries of a group: listing, acknowledging, releasing and dead-lettering them."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import Field

from app.api.groups import group_calls
from app.auth import ANY_CONSUMER, Action
from app.errors import invalid
from app.http.asks import Ask, Result
from app.http.models import (
    ABSENT,
    Bound,
    ConsumerName,
    Count,
    GroupName,
    Ids,
    IdText,
    LookedUpIds,
    Milliseconds,
    NameText,
    RequestModel,
    ResponseModel,
    StreamName,
    UpperBound,
    Whole,
    capped,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Response
from engine import ids
from engine.commands.types import DELAY_MS_MAX, Nack, NackMode, Refs, XAckDel, XNack, XPending, XPendingRange
from engine.commands.weir_commands import Acknowledge, DeadLetterEntries
from engine.replies import (
    NOT_HELD,
    AcknowledgedIds,
    DeadLettered,
    Deletions,
    PendingEntry,
    PendingList,
    PendingSummary,
    Reply,
)

router: Final = Router("groups")

_GROUP: Final = "/v1/streams/{stream}/groups/{group}"
_REFUSALS: Final = ("malformed_id", "no_stream", "no_group")
_RESULTS: Final = {1: "deleted", -1: "absent", 2: "kept", NOT_HELD: "not_held"}

REASON_CHARS_MAX: Final = 1_000
# Writing a row takes up to 1.7 µs: more of them are written in a thread.
_INLINE_ROWS_MAX: Final = 1_000


# ---- looking


class ConsumerPending(ResponseModel):
    """How many entries are pending with a consumer."""

    name: NameText
    count: Count


class PendingView(ResponseModel):
    """Without parameters the sum: `count`, `first_id`, `last_id`, `consumers`. With any parameter the list:
    `pending`, `next` (go on with `start=(<next>`), `more`.
    """

    count: Count = ABSENT
    first_id: IdText | None = ABSENT
    last_id: IdText | None = ABSENT
    consumers: list[ConsumerPending] = ABSENT
    pending: "list[PendingRow]" = ABSENT
    next: IdText = ABSENT
    more: bool = ABSENT


class PendingRow(ResponseModel):
    """A delivered and not acknowledged entry. One that was given back has no consumer and no idle time;
    `deferred_until` is when it comes back, if that is later.
    """

    id: IdText
    consumer: NameText | None
    idle_ms: Milliseconds | None
    delivery_count: Count
    deferred_until: Annotated[str, Field(json_schema_extra={"format": "date-time"})] = ABSENT


@router.get(_GROUP + "/pending", Action.READ, model=PendingView, refusals=_REFUSALS)
def list_pending(
    request: RequestParameter,
    stream: StreamName,
    group: GroupName,
    start: Annotated[
        Bound | None, Query(description="first ID: `-` (the default), an ID, or `(` and an ID")
    ] = None,
    end: Annotated[
        UpperBound | None, Query(description="last ID: `+` (the default), an ID, or `(` and an ID")
    ] = None,
    count: Annotated[
        Annotated[int, Whole(1, "count_max")] | None, Query(description="100 by default")
    ] = None,
    consumer: Annotated[ConsumerName | None, Query(description="those of this consumer alone")] = None,
    min_idle_ms: Annotated[
        Milliseconds | None, Query(description="those idle for this many milliseconds")
    ] = None,
) -> Ask:
    """Show what is pending: in sum, or with any parameter entry by entry (XPENDING)."""
    if not request.query:
        summary = XPending(stream=stream, group=group)
        return group_calls.look(request, summary, _summary)
    command = XPendingRange(
        stream=stream,
        group=group,
        start=ids.ID_MIN if start is None else start,
        end=ids.ID_MAX if end is None else end,
        count=request.gateway.limits.reads.count_default if count is None else count,
        consumer=consumer,
        min_idle_ms=min_idle_ms or 0,
    )
    return group_calls.look(request, command, partial(_listed, max(command.start - 1, ids.ID_MIN)))


def _summary(reply: Reply) -> Result:
    assert isinstance(reply, PendingSummary), "XPENDING answers a summary"
    return PendingView(
        count=reply.count,
        first_id=ids.format(reply.first_id) if reply.count else None,
        last_id=ids.format(reply.last_id) if reply.count else None,
        consumers=[ConsumerPending(name, count) for name, count in reply.consumers],
    )


def _listed(before: int, reply: Reply) -> Result:
    assert isinstance(reply, PendingList), "XPENDING with a range answers a list"
    if len(reply.entries) > _INLINE_ROWS_MAX:
        return asyncio.to_thread(_list, reply, before)
    return _list(reply, before)


def _list(reply: PendingList, before: int) -> Response:
    following = reply.entries[-1].id if reply.entries else before
    rows = list(map(_row, reply.entries))
    # In bytes: it may be made in a thread.
    return Response(200, PendingView(pending=rows, next=ids.format(following), more=reply.more).json())


def _row(entry: PendingEntry) -> PendingRow:
    """An entry without an owner has no consumer, and no time since when it has been delivered."""
    return PendingRow(
        id=ids.format(entry.id),
        consumer=entry.consumer,
        idle_ms=None if entry.consumer is None else capped(entry.idle_ms),
        delivery_count=capped(entry.delivery_count),
        deferred_until=ABSENT if entry.until_ms is None else ids.rfc3339(entry.until_ms),
    )


# ---- acknowledging


class Acknowledgement(RequestModel):
    """Entries that are done. With `delete` they are deleted too, their references kept, deleted or
    awaited. With `consumer`, which a worker names, what another one holds by now stays as it is.
    """

    ids: Ids
    consumer: ConsumerName | None = None
    delete: Annotated[
        Literal["keep", "delete", "acked"] | None,
        Field(description="with it `ids` are at most 500"),
    ] = None


class Acknowledged(ResponseModel):
    """How many were pending, and the result for each. `not_held`: another one than `consumer` holds it."""

    acknowledged: Count
    results: dict[str, Literal["acknowledged", "deleted", "kept", "not_held", "absent"]]


@router.post(
    _GROUP + "/ack",
    Action.CONSUME,
    model=Acknowledged,
    refusals=_REFUSALS,
    writes=True,
)
def ack_entries(
    request: RequestParameter, stream: StreamName, group: GroupName, given: Acknowledgement
) -> Ask:
    """Acknowledge entries, and delete them on request (XACK, XACKDEL), which needs the action `write` too."""
    request.require(Action.CONSUME, stream, group, given.consumer or ANY_CONSUMER)
    if given.delete:
        request.require(Action.WRITE, stream, group)
        return _delete(request, stream, group, given)
    holders = [given.consumer] * len(given.ids) if given.consumer is not None else ()
    command = Acknowledge(stream=stream, group=group, ids=given.ids, holders=holders)

    def answer(reply: Reply) -> Result:
        assert isinstance(reply, AcknowledgedIds), "an acknowledgement answers which IDs were pending"
        words = dict.fromkeys(reply.not_held, "not_held") | dict.fromkeys(reply.ids, "acknowledged")
        return _settled(request, stream, group, given.ids, [words.get(one, "absent") for one in given.ids])

    return group_calls.change(request, answer, command, joins=True)


def _delete(request: Request, stream: str, group: str, given: Acknowledgement) -> Ask:
    most = request.gateway.settings.lookups_max
    if len(given.ids) > most:
        raise invalid("/ids", f"one request names at most {most} IDs: send several requests")
    command = XAckDel(
        stream=stream, group=group, ids=given.ids, refs=Refs(given.delete), consumer=given.consumer
    )

    def answer(reply: Reply) -> Result:
        assert isinstance(reply, Deletions), "XACKDEL answers a result for each ID"
        words = [_RESULTS[result] for result in reply.results]
        return _settled(request, stream, group, given.ids, words)

    return group_calls.change(request, answer, command)


def _settled(
    request: Request, stream: str, group: str, wanted: Sequence[int], words: Sequence[str]
) -> Result:
    """The answer of these results, in the order of the IDs."""
    results: dict[str, Any] = dict(zip(map(ids.format, wanted), words, strict=True))
    found = [*results.values()]
    count = len(found) - found.count("absent") - found.count("not_held")
    response = request.respond(200, Acknowledged(count, results))
    if count or "not_held" in found:
        return response
    # Unlike Redis, distinguish an unknown group from one with nothing pending.
    return group_calls.look(request, XPending(stream=stream, group=group), lambda _: response)


# ---- giving back


class Negation(RequestModel):
    """Entries to give back. The delivery count goes one back (`silent`), stays (`fail`) or becomes the
    largest number (`fatal`), unless `retry_count` sets it. `force` takes entries that are not pending, too.
    With `delay_ms` they come back after that time, seven days at most, and until then belong to no consumer.
    With `consumer`, which a worker names, what that one does not hold any more stays as it is; `force` does
    not go with it.
    """

    ids: LookedUpIds
    consumer: ConsumerName | None = None
    mode: Literal["silent", "fail", "fatal"]
    retry_count: Count | None = None
    force: bool = False
    delay_ms: Annotated[int, Whole(0, DELAY_MS_MAX)] = 0


class Released(ResponseModel):
    """How many were given back, and the result for each. `not_held`: the `consumer` that was named does not
    hold it; `absent`: it is not pending.
    """

    released: Count
    results: dict[str, Literal["released", "not_held", "absent"]]


@router.post(_GROUP + "/nack", Action.CONSUME, model=Released, refusals=_REFUSALS, writes=True)
def nack_entries(request: RequestParameter, stream: StreamName, group: GroupName, given: Negation) -> Ask:
    """Give entries back: they have no owner, and the next reader that claims gets them first (XNACK)."""
    if given.force and given.consumer is not None:
        raise invalid("/force", "it does not go with consumer, since none holds what it takes: leave one out")
    request.require(Action.CONSUME, stream, group, given.consumer or ANY_CONSUMER)
    nack = Nack(
        ids=given.ids,
        mode=NackMode(given.mode),
        retry_count=given.retry_count,
        force=given.force,
        delay_ms=given.delay_ms,
    )
    command = XNack(stream=stream, group=group, nack=nack, consumer=given.consumer)
    return group_calls.change(
        request,
        lambda reply: request.respond(200, Released(*group_calls.outcomes(reply, given.ids, "released"))),
        command,
    )


# ---- dead letters


class DeadLettering(RequestModel):
    """Pending entries to move to the group's dead-letter stream. With `consumer`, which a worker names, what
    that one does not hold any more stays as it is.
    """

    ids: Ids
    consumer: ConsumerName | None = None
    reason: Annotated[str, Field(max_length=REASON_CHARS_MAX)] = "by hand"


class DeadLetteredEntries(ResponseModel):
    """What was moved, and where. As much as one turn takes: what is still pending goes with the next call."""

    stream: Annotated[NameText, Field(description="the dead-letter stream")]
    ids: Annotated[
        list[IdText],
        Field(
            description="of the entries that were moved, in the source; their dead letters have IDs of their "
            "own, and these as `weir-id`"
        ),
    ]
    not_held: Annotated[
        list[IdText],
        Field(description="pending, and not held by the `consumer` that was named; absent without one"),
    ] = ABSENT


@router.post(
    _GROUP + "/dead-letter", Action.CONSUME, model=DeadLetteredEntries, refusals=_REFUSALS, writes=True
)
def dead_letter_entries(
    request: RequestParameter, stream: StreamName, group: GroupName, given: DeadLettering
) -> Ask:
    """Move pending entries to the group's dead-letter stream, as many as one turn takes."""
    request.require(Action.CONSUME, stream, group, given.consumer or ANY_CONSUMER)
    command = DeadLetterEntries(
        stream=stream, group=group, ids=given.ids, reason=given.reason, consumer=given.consumer
    )

    def answer(reply: Reply) -> Response:
        assert isinstance(reply, DeadLettered), "dead-lettering answers what was moved"
        moved = DeadLetteredEntries(reply.stream, list(map(ids.format, reply.ids)))
        if given.consumer is not None:
            moved.not_held = list(map(ids.format, reply.not_held))
        return request.respond(200, moved)

    return group_calls.change(request, answer, command)
