"""Many streams at once: reading from them, publishing into them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, Literal

import orjson
from pydantic import Field

from app.auth import Access, Action
from app.errors import invalid, step
from app.http import media, members, query
from app.http.binder import CallParameter
from app.http.calls import Answer, Call
from app.http.deliveries import DeliveredEntry, deliveries, no_history, nothing_delivered
from app.http.entry_pages import ReadLimits, gap_refused, page, preferred_wait_ms
from app.http.models import (
    ConsumerName,
    CursorsByStream,
    Gap,
    GroupName,
    IdText,
    Milliseconds,
    RequestModel,
    ResponseModel,
    Whole,
    absent,
)
from app.http.operations import Router
from app.http.routing import Routes
from app.wire import many as wire
from engine.commands import Cursor, DescribeGroup, XRead, XReadGroup
from engine.replies import Entries, GroupRead, Reply, StreamsRead

routes: Final = Routes()
router: Final = Router("many")


# ---- reading


class ManyRead(RequestModel):
    """Streams, each with a cursor: an ID, `0`, `$`; for a group `>` (new entries) or an ID (what it holds).

    `group` and `consumer` go together; `noack` and `claim_min_idle_ms` go with them.
    """

    streams: CursorsByStream
    count: Annotated[
        Annotated[int, Whole(1, "count_max")] | None, Field(description="entries of each stream")
    ] = None
    wait: Annotated[
        Annotated[int, Whole(0, "wait_ms_max")] | None,
        Field(description="milliseconds to wait for any of them"),
    ] = None
    on_gap: Annotated[
        Literal["report", "fail"] | None, Field(description="`fail`: 410 for any gap; without a group")
    ] = None
    group: GroupName | None = None
    consumer: ConsumerName | None = None
    noack: Annotated[bool | None, Field(description="acknowledged as soon as delivered")] = None
    claim_min_idle_ms: Milliseconds | None = None

    def command(self, limits: ReadLimits, prefer_wait_s: int | None) -> XRead | XReadGroup:
        """The read. Raises the refusal of what does not go together."""
        wait_ms = preferred_wait_ms(prefer_wait_s, limits) if self.wait is None else self.wait
        count, block_ms = self.count or limits.count_default, wait_ms or None
        if self.group is None and self.consumer is None:
            for name in ("noack", "claim_min_idle_ms"):
                if getattr(self, name) is not None:
                    raise invalid(f"/{name}", "it goes with group and consumer")
            self._check_cursors(Cursor.NEW, "it is an ID, '<ms>-<seq>' or '<ms>'")
            streams = [*self.streams.items()]
            return XRead(streams=streams, count=count, block_ms=block_ms, bytes_max=limits.bytes_max)
        if self.group is None:
            raise invalid("/group", "the group name, a string, is missing")
        if self.consumer is None:
            raise invalid("/consumer", "the consumer name, a string, is missing")
        if self.on_gap is not None:
            raise invalid("/on_gap", "a group's entries are delivered before a gap is known: look at `gap`")
        self._check_cursors(Cursor.LATEST, "it is '>' or an ID")
        return XReadGroup(
            group=self.group,
            consumer=self.consumer,
            streams=[*self.streams.items()],
            count=count,
            block_ms=block_ms,
            noack=bool(self.noack),
            claim_min_idle_ms=self.claim_min_idle_ms,
            bytes_max=limits.bytes_max,
        )

    def _check_cursors(self, wrong: Cursor, hint: str) -> None:
        for name, after in self.streams.items():
            if after is wrong:
                raise query.malformed_id(f"/streams/{step(name)}", hint)


class StreamRead(ResponseModel):
    """What one stream gave. New entries of a group come with `last_delivered_id`, all else with `next`.
    `more`: a limit ended the read, maybe before this stream gave anything.
    """

    entries: list[DeliveredEntry]
    more: bool
    next: IdText = absent()
    last_delivered_id: IdText = absent()
    gap: Gap = absent()


class ManyReadAnswer(ResponseModel):
    """Each stream that was asked for."""

    streams: dict[str, StreamRead]


@router.post(
    "/v1/read",
    Access.PER_STREAM,
    model=ManyReadAnswer,
    refusals=("malformed_id", "gap", "no_group", "too_many_waiters"),
    prefer="`wait=<seconds>`, where the body has no `wait`",
)
async def read_streams(call: CallParameter, given: ManyRead) -> Answer:
    """Read from many streams, each behind its cursor, or as a consumer of a group (XREAD, XREADGROUP)."""
    command = given.command(call.gateway.read_limits, call.wishes.wait_s)
    action = Action.READ if isinstance(command, XRead) else Action.CONSUME
    for stream, _ in command.streams:
        call.require(action, stream)
    (reply,) = await call.write(command)
    if isinstance(command, XRead):
        assert isinstance(reply, StreamsRead), "XREAD answers what each stream has"
        return Answer(200, _object(_read(reply, fail_on_gap=given.on_gap == "fail")))
    assert isinstance(reply, GroupRead), "a group's read answers deliveries"
    empty = _without_new(command, reply)
    infos = await call.transaction(empty) if empty else []
    answer = call.written(200, _object(_delivered(command, reply, empty, infos)))
    answer.unsent = partial(call.give_back, command, reply)
    return answer


def _read(reply: StreamsRead, *, fail_on_gap: bool) -> Mapping[str, bytes]:
    """What each stream gave. Raises `gap` where that was asked for."""
    found = {one.stream: one for one in reply.streams}
    unfinished = set(reply.unfinished)
    bodies: dict[str, bytes] = {}
    for name, after in reply.cursors:
        one = found.get(name)
        gap = one.gap if one is not None else None
        if gap is not None and fail_on_gap:
            raise gap_refused(gap)
        entries = one.entries if one is not None else Entries(more=name in unfinished)
        bodies[name] = page(entries, entries.last if entries.count else after, gap, None)
    return bodies


def _without_new(command: XReadGroup, reply: GroupRead) -> Sequence[DescribeGroup]:
    """For streams that gave nothing new: the question where the group stands there."""
    found = {one.stream for one in reply.streams}
    return [
        DescribeGroup(stream=name, group=command.group)
        for name, after in command.streams
        if name not in found and after is Cursor.NEW
    ]


def _delivered(
    command: XReadGroup, reply: GroupRead, empty: Sequence[DescribeGroup], infos: Sequence[Reply]
) -> Mapping[str, bytes]:
    """What each stream gave; `infos` answer `empty`."""
    bodies = {one.stream: deliveries(one) for one in reply.streams}
    for one, info in zip(empty, infos, strict=True):
        bodies[one.stream] = nothing_delivered(info, more=one.stream in reply.unfinished)
    for name, after in command.streams:
        if name in reply.unfinished and isinstance(after, int):
            bodies[name] = no_history(after)
    return bodies


def _object(bodies: Mapping[str, bytes]) -> bytes:
    inside = b",".join(b"%b:%b" % (orjson.dumps(name), body) for name, body in bodies.items())
    return b'{"streams":{%b}}' % inside


# ---- publishing


@routes.post("/v1/publish", Access.PER_STREAM, "publish")
async def publish(call: Call) -> Answer:
    """Publish into many streams: all entries are stored, or none."""
    if b"if-match" in call.headers:
        raise invalid("If-Match", "it goes with publishing into one stream")
    query.parse(call.query, ())
    members.check_is_json(call.media_type.name)
    key = media.idempotency_key(call.headers.get(b"idempotency-key"))
    chunk = media.chunk(call.headers)
    if key is not None and chunk is not None:
        raise invalid("Idempotency-Key", "it does not go with Weir-Producer, which says the same in its way")
    most = call.gateway.settings.request_streams_max
    reader = partial(
        wire.publication, limits=call.gateway.entry_limits, streams_max=most, key=key, chunk=chunk
    )
    command = await call.read(reader)
    for part in command.parts:
        call.require(Action.WRITE, part.stream)
    (reply,) = await call.write(command)
    return call.written(201, wire.published(reply))
