"""Consumers of one group: listing, making, removing them, and reading as one of them."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Query
from pydantic import Field

from app import names
from app.api.groups import group_calls
from app.api.groups.group_calls import After, Limit, page_of
from app.auth import Access, Action, Resource
from app.errors import invalid
from app.http.asks import Ask, Result
from app.http.entries.deliveries import (
    CLOSED,
    DRAINED,
    PAUSED,
    DeliveredEntry,
    deliveries,
    nothing_delivered,
)
from app.http.entries.entry_pages import preferred_wait_ms
from app.http.models import (
    ABSENT,
    INTEGER_MAX,
    NAME_CHARACTERS,
    NOT_MISLEADING,
    ConsumerName,
    Count,
    EntryId,
    Gap,
    GroupName,
    IdText,
    Milliseconds,
    NameText,
    RequestModel,
    ResponseModel,
    StreamName,
    Whole,
    capped,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Response, location
from engine import errors
from engine.commands.types import Cursor, XGroupCreateConsumer, XInfoConsumers, XReadGroup, until_end
from engine.commands.weir_commands import DeleteConsumer, DescribeGroup
from engine.name_rules import NAME_BYTES_MAX
from engine.replies import ConsumerInfo, GroupRead, Reply

router: Final = Router("groups")

_CONSUMERS: Final = "/v1/streams/{stream}/groups/{group}/consumers"
_CONSUMER: Final = _CONSUMERS + "/{consumer}"
_NO_GROUP: Final = ("no_stream", "no_group")
# A row takes up to 5 µs to make: more of them are made in a thread.
_INLINE_ROWS_MAX: Final = 500


class Consumer(ResponseModel):
    """A consumer of a group: what it holds, when it last asked (`idle_ms`) and last got something
    (`inactive_ms`, null before the first time).
    """

    name: NameText
    pending: Count
    idle_ms: Milliseconds
    inactive_ms: Milliseconds | None

    @classmethod
    def of(cls, info: ConsumerInfo) -> "Consumer":
        """A consumer as every operation shows it."""
        return cls(
            name=info.name,
            pending=info.pending,
            idle_ms=min(info.idle_ms, INTEGER_MAX),
            inactive_ms=None if info.inactive_ms < 0 else capped(info.inactive_ms),
        )


class ConsumerPage(ResponseModel):
    """Consumers by name; `next` is the name to go on `after`, null at the end."""

    consumers: list[Consumer]
    next: NameText | None


@router.get(_CONSUMERS, Action.READ, model=ConsumerPage, refusals=_NO_GROUP)
def list_consumers(
    request: RequestParameter, stream: StreamName, group: GroupName, after: After = None, limit: Limit = None
) -> Ask:
    """List the consumers of a group by name (XINFO CONSUMERS)."""
    most = limit or request.gateway.settings.count_max

    def show(found: Reply) -> Result:
        page, following = page_of(_infos(found), after, most)
        if len(page) > _INLINE_ROWS_MAX:
            return asyncio.to_thread(_show, page, following)
        return _show(page, following)

    return group_calls.look(request, XInfoConsumers(stream=stream, group=group), show)


def _show(page: Sequence[ConsumerInfo], following: str | None) -> ConsumerPage:
    return ConsumerPage(consumers=list(map(Consumer.of, page)), next=following)


@router.get(_CONSUMER, Action.READ, model=Consumer, refusals=(*_NO_GROUP, "no_consumer"))
def get_consumer(
    request: RequestParameter, stream: StreamName, group: GroupName, consumer: ConsumerName
) -> Ask:
    """Show one consumer: what it holds, when it was last seen, when it last got something."""
    command = XInfoConsumers(stream=stream, group=group)
    return group_calls.look(request, command, lambda infos: _find(infos, stream, group, consumer))


@router.put(
    _CONSUMER,
    Action.CONSUME,
    also={201: "Made"},
    model=Consumer,
    refusals=_NO_GROUP,
    writes=True,
    bodiless=True,
)
def create_consumer(
    request: RequestParameter,
    stream: StreamName,
    group: GroupName,
    consumer: ConsumerName,
) -> Ask:
    """Make a consumer where it is missing; reading makes it too (XGROUP CREATECONSUMER)."""

    def answer(created: Reply, infos: Reply) -> Response:
        shown = _find(infos, stream, group, consumer)
        where = [location("streams", stream, "groups", group, "consumers", consumer)] if created else []
        return request.respond(201 if created else 200, shown, where)

    return group_calls.change(
        request,
        answer,
        XGroupCreateConsumer(stream=stream, group=group, consumer=consumer),
        XInfoConsumers(stream=stream, group=group),
    )


def _infos(reply: Reply) -> list[ConsumerInfo]:
    assert isinstance(reply, Sequence), "XINFO CONSUMERS answers a list"
    return [one for one in reply if isinstance(one, ConsumerInfo)]


def _find(reply: Reply, stream: str, group: str, name: str) -> Consumer:
    for info in _infos(reply):
        if info.name == name:
            return Consumer.of(info)
    raise errors.no_consumer(stream, group, name)


# ---- removing


class RemovedConsumer(ResponseModel):
    """How many pending entries the consumer held."""

    pending: Count


_TRANSFER: Final = "transfer:"
_CONSUMER_PATTERN: Final = f"{NOT_MISLEADING}{NAME_CHARACTERS}{{1,{NAME_BYTES_MAX}}}"


@router.delete(
    _CONSUMER,
    # What is dropped may be another's.
    Access.PER_TOKEN,
    model=RemovedConsumer,
    refusals=(*_NO_GROUP, "no_consumer", "consumer_has_pending"),
    writes=True,
)
def delete_consumer(
    request: RequestParameter,
    stream: StreamName,
    group: GroupName,
    consumer: ConsumerName,
    pending: Annotated[
        str,
        Query(
            description="what happens to the entries it holds: `refuse`, `drop` or `transfer:<consumer>`",
            json_schema_extra={"pattern": f"^(refuse|drop|{_TRANSFER}{_CONSUMER_PATTERN})$"},
        ),
    ] = "refuse",
) -> Ask:
    """Remove a consumer; refused while it holds pending entries, unless these may be dropped or go to
    another (XGROUP DELCONSUMER).

    It takes the action `manage`, but for a grant that is for this consumer alone; to transfer what it holds
    takes `consume`, of both.
    """
    held, heir = Resource(stream, group, consumer), None
    transfers = pending.startswith(_TRANSFER)
    if not transfers:
        request.note_action("manage", "deleteConsumer", stream=stream, group=group, consumer=consumer)
    request.principal.require(Action.CONSUME if transfers else request.principal.right_to_drop(held), held)
    if transfers:
        heir = names.check_text(pending.removeprefix(_TRANSFER), "consumer name")
        if heir == consumer:
            raise invalid("pending", "the entries go to another consumer")
        request.require(Action.CONSUME, stream, group, heir)
    elif pending not in ("refuse", "drop"):
        raise invalid("pending", "it is refuse, drop or transfer:<consumer>")
    drops = pending == "drop"
    command = DeleteConsumer(stream=stream, group=group, consumer=consumer, drop=drops, transfer_to=heir)

    def answer(count: Reply) -> Response:
        assert isinstance(count, int), "removing a consumer answers a number"
        return request.respond(200, RemovedConsumer(pending=count))

    return group_calls.change(request, answer, command)


# ---- reading


class GroupReading(RequestModel):
    """What a consumer wants. With `after`, an ID or `0`, it reads again what it has not acknowledged; `wait`,
    `noack` and `claim_min_idle_ms` are for new entries.
    """

    count: Annotated[Annotated[int, Whole(1, "count_max")] | None, Field(description="100 by default")] = None
    wait: Annotated[
        Annotated[int, Whole(0, "wait_ms_max")] | None, Field(description="milliseconds to wait")
    ] = None
    noack: Annotated[bool | None, Field(description="acknowledged as soon as delivered")] = None
    after: EntryId | None = None
    claim_min_idle_ms: Milliseconds | None = None

    def command(self, request: Request, stream: str, group: str, consumer: str) -> XReadGroup:
        """The command. A preference says how long to wait where the body does not."""
        limits = request.gateway.limits.reads
        wait_ms = self.wait
        if self.after is not None:
            # 0 and false ask for nothing: clients that always send them read what was delivered too.
            asked = {
                "wait": wait_ms,
                "noack": self.noack,
                "claim_min_idle_ms": self.claim_min_idle_ms is not None,
            }
            for name in (name for name, wanted in asked.items() if wanted):
                raise invalid(f"/{name}", "it does not go with `after`, a read of what was delivered already")
        elif wait_ms is None:
            wait_ms = preferred_wait_ms(request.preferences.wait_s, limits)
        return XReadGroup(
            group=group,
            consumer=consumer,
            streams=[(stream, Cursor.NEW if self.after is None else self.after)],
            count=self.count or limits.count_default,
            block_ms=wait_ms or None,
            noack=bool(self.noack),
            claim_min_idle_ms=self.claim_min_idle_ms,
            bytes_max=limits.bytes_max,
            until=until_end(self.claim_min_idle_ms),
        )


class Deliveries(ResponseModel):
    """New entries come with `last_delivered_id`, those of a history read with `next`. `more` says that a
    limit ended the read: what it left is not delivered yet, so read again. That is so without entries too,
    where a read that does not wait came to more that were too old (`max_age_ms`) than expire at once.
    """

    entries: list[DeliveredEntry]
    more: bool
    last_delivered_id: IdText = ABSENT
    next: IdText = ABSENT
    gap: Gap = ABSENT
    closed: Annotated[bool, CLOSED] = ABSENT
    drained: Annotated[bool, DRAINED] = ABSENT
    paused: Annotated[bool, PAUSED] = ABSENT


_ANYTHING: Final = GroupReading()


@router.post(
    _CONSUMER + "/read",
    Action.CONSUME,
    model=Deliveries,
    refusals=("malformed_id", "no_group", "too_many_waiters"),
    prefer="`wait=<seconds>`",
    writes=True,
)
def read_group(
    request: RequestParameter,
    stream: StreamName,
    group: GroupName,
    consumer: ConsumerName,
    given: GroupReading = _ANYTHING,
) -> Ask:
    """Read as a consumer of a group: new entries, or again what it has not acknowledged (XREADGROUP).

    New entries go to one consumer of the group each, and are pending until they are acknowledged. With
    `after` the consumer reads again what it holds: begin with `0`, go on with `next`. With
    `claim_min_idle_ms` it first gets what was given back or held for that long.
    """

    def answer(reply: Reply) -> Result:
        assert isinstance(reply, GroupRead), "XREADGROUP answers deliveries"
        end = next(iter(reply.closed), None)
        if reply.streams:
            return request.respond_delivered(deliveries(reply.streams[0], end))
        more = bool(reply.unfinished)
        return Ask(
            [DescribeGroup(stream=stream, group=group)],
            lambda info: request.respond_delivered(nothing_delivered(info, end, more=more)),
        )

    command = given.command(request, stream, group, consumer)
    return Ask([command], answer, request.preferences.synced)
