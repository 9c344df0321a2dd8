"""Many streams at once: reading from them, publishing into them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from fastapi import Depends, Header
from pydantic import Field

from app import names
from app.auth import Access, Action
from app.errors import invalid, step
from app.http import cursors, media, query
from app.http.asks import Ask
from app.http.entries import entry_bodies, stream_bodies
from app.http.entries.deliveries import (
    DRAINED,
    PAUSED,
    DeliveredEntry,
    deliveries,
    no_history,
    nothing_delivered,
)
from app.http.entries.entry_pages import GapReport, page, preferred_wait_ms
from app.http.entries.publishing import KeyHeader, PlainEntryInput
from app.http.models import (
    ABSENT,
    NAME_SCHEMA,
    ConsumerName,
    Count,
    CursorFormat,
    CursorsByStream,
    CursorText,
    Gap,
    GroupName,
    IdText,
    Milliseconds,
    Producer,
    RequestModel,
    ResponseModel,
    Whole,
)
from app.http.operations.binder import Body, RequestParameter, request_of
from app.http.operations.router import Router
from app.http.request_bodies import BodyReading
from app.http.requests import Request
from app.http.responses import Response
from app.limits import EntryLimits, ReadLimits
from engine import ids
from engine.commands.types import Cursor, IdempotencyKey, Until, XAdd, XRead, XReadGroup, until_end
from engine.commands.weir_commands import Chunk, DescribeGroup, Publish
from engine.replies import Entries, GroupRead, Published, Reply, Republished, StreamsRead

router: Final = Router("many")

# A publication into this many streams waits for its caller's turn: it takes about 3 ms to read and to store.
_STREAMS_IN_TURN_MIN: Final = 200


# ---- reading


class ManyRead(RequestModel):
    """Streams, each with a cursor: an ID, `0`, `$`; for a group `>` (new entries) or an ID (what it holds).

    `group` and `consumer` go together; `noack` and `claim_min_idle_ms` go with them, `cursor` does not.
    """

    streams: CursorsByStream
    count: Annotated[
        Annotated[int, Whole(1, "count_max")] | None, Field(description="entries of each stream")
    ] = None
    count_total: Annotated[
        Annotated[int, Whole(1, "count_max")] | None,
        Field(description="entries of all streams together, of the first ones first; at least `count`"),
    ] = None
    wait: Annotated[
        Annotated[int, Whole(0, "wait_ms_max")] | None,
        Field(description="milliseconds to wait for any of them"),
    ] = None
    on_gap: Annotated[
        Literal["report", "fail"] | None, Field(description="`fail`: 410 for any gap; without a group")
    ] = None
    cursor: CursorFormat | None = None
    group: GroupName | None = None
    consumer: ConsumerName | None = None
    noack: Annotated[bool | None, Field(description="acknowledged as soon as delivered")] = None
    claim_min_idle_ms: Milliseconds | None = None

    def command(self, limits: ReadLimits, prefer_wait_s: int | None) -> XRead | XReadGroup:
        """The read. Raises the refusal of what does not go together."""
        wait_ms = preferred_wait_ms(prefer_wait_s, limits) if self.wait is None else self.wait
        count, block_ms = self._count(limits), wait_ms or None
        if self.group is None and self.consumer is None:
            for name in ("noack", "claim_min_idle_ms"):
                if getattr(self, name) is not None:
                    raise invalid(f"/{name}", "it goes with group and consumer")
            self._check_cursors(Cursor.NEW, "it is an ID, '<ms>-<seq>' or '<ms>'")
            return XRead(
                streams=[(name, place.id) for name, place in self.streams.items()],
                count=count,
                count_total=self.count_total,
                block_ms=block_ms,
                bytes_max=limits.bytes_max,
                known=[place.generation for place in self.streams.values()],
                until=Until.CLOSED,
            )
        if self.group is None:
            raise invalid("/group", "the group name, a string, is missing")
        if self.consumer is None:
            raise invalid("/consumer", "the consumer name, a string, is missing")
        if self.on_gap is not None:
            raise invalid("/on_gap", "a group's entries are delivered before a gap is known: look at `gap`")
        if self.cursor is not None:
            raise invalid("/cursor", "a group has a position of its own")
        self._check_cursors(Cursor.LATEST, "it is '>' or an ID")
        return XReadGroup(
            group=self.group,
            consumer=self.consumer,
            streams=[(name, place.id) for name, place in self.streams.items()],
            count=count,
            count_total=self.count_total,
            block_ms=block_ms,
            noack=bool(self.noack),
            claim_min_idle_ms=self.claim_min_idle_ms,
            bytes_max=limits.bytes_max,
            until=until_end(self.claim_min_idle_ms),
        )

    def _count(self, limits: ReadLimits) -> int:
        """The most entries of each stream. Raises the refusal of more than all may have together."""
        total = self.count_total
        if total is None:
            return self.count or limits.count_default
        if self.count is not None and self.count > total:
            raise invalid("/count_total", "it is at least as large as count")
        return self.count or min(limits.count_default, total)

    def _check_cursors(self, wrong: Cursor, hint: str) -> None:
        for name, place in self.streams.items():
            if place.id is wrong or (place.generation and self.group is not None):
                raise query.malformed_id(f"/streams/{step(name)}", hint)


class StreamRead(ResponseModel):
    """What one stream gave. New entries of a group come with `last_delivered_id`, all else with `next`.
    `more`: a limit ended the read, maybe before this stream gave anything.
    """

    entries: list[DeliveredEntry]
    more: bool
    next: CursorText = ABSENT
    last_delivered_id: IdText = ABSENT
    gap: Gap = ABSENT
    closed: Annotated[
        bool, Field(description="the stream is closed, and nothing is left to read for the reader")
    ] = ABSENT
    drained: Annotated[bool, DRAINED] = ABSENT
    paused: Annotated[bool, PAUSED] = ABSENT


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
def read_streams(request: RequestParameter, given: ManyRead) -> Ask:
    """Read from many streams, each behind its cursor, or as a consumer of a group (XREAD, XREADGROUP)."""
    command = given.command(request.gateway.limits.reads, request.preferences.wait_s)
    for stream, _ in command.streams:
        if isinstance(command, XRead):
            request.require(Action.READ, stream)
        else:
            request.require(Action.CONSUME, stream, command.group, command.consumer)

    def answer(reply: Reply) -> Response | Ask:
        if isinstance(command, XRead):
            assert isinstance(reply, StreamsRead), "XREAD answers what each stream has"
            in_full = cursors.asks(given.cursor, given.streams.values())
            return Response(200, _object(_read(reply, fail_on_gap=given.on_gap == "fail", in_full=in_full)))
        assert isinstance(reply, GroupRead), "a group's read answers deliveries"
        empty = _without_new(command, reply)

        def show(*infos: Reply) -> Response:
            return request.respond_delivered(_object(_delivered(command, reply, empty, infos)))

        return Ask(empty, show) if empty else show()

    return Ask([command], answer, request.preferences.synced)


def _read(reply: StreamsRead, *, fail_on_gap: bool, in_full: bool) -> Mapping[str, bytes]:
    """What each stream gave; with `in_full` cursors have generations. Raises `gap` where asked to."""
    given = {stream.stream: stream for stream in reply.streams}
    unfinished, closed = set(reply.unfinished), {end.stream for end in reply.closed}
    bodies: dict[str, bytes] = {}
    for (name, after), there in zip(reply.cursors, reply.generations, strict=True):
        read, generation = given.get(name), there if in_full else ""
        gap = GapReport(read.gap, generation, in_full) if read is not None and read.gap is not None else None
        if gap is not None and fail_on_gap:
            raise gap.refused()
        entries = read.entries if read is not None else Entries(more=name in unfinished)
        nothing = after if gap is None else gap.gap.goes_on_after
        following = entries.last if entries.count else nothing
        bodies[name] = page(entries, following, gap, None, generation, closed=name in closed)
    return bodies


def _without_new(command: XReadGroup, reply: GroupRead) -> Sequence[DescribeGroup]:
    """For streams that gave nothing new: the question where the group stands there."""
    named = {stream.stream for stream in reply.streams}
    return [
        DescribeGroup(stream=name, group=command.group)
        for name, after in command.streams
        if name not in named and after is Cursor.NEW
    ]


def _delivered(
    command: XReadGroup, reply: GroupRead, empty: Sequence[DescribeGroup], infos: Sequence[Reply]
) -> Mapping[str, bytes]:
    """What each stream gave; `infos` answer `empty`."""
    ends = {end.stream: end for end in reply.closed}
    bodies = {found.stream: deliveries(found, ends.get(found.stream)) for found in reply.streams}
    for asked, info in zip(empty, infos, strict=True):
        more = asked.stream in reply.unfinished
        bodies[asked.stream] = nothing_delivered(info, ends.get(asked.stream), more=more)
    for name, after in command.streams:
        if name in reply.unfinished and isinstance(after, int):
            bodies[name] = no_history(after)
    return bodies


def _object(bodies: Mapping[str, bytes]) -> bytes:
    streams: Any = {name: msgspec.Raw(body) for name, body in bodies.items()}
    return ManyReadAnswer(streams).json()


# ---- publishing


class ManyPublish(RequestModel):
    """Streams, each with its entries: all are stored, or none."""

    streams: dict[str, Annotated[list[PlainEntryInput], Field(min_length=1)]] = Field(
        min_length=1,
        json_schema_extra={
            "propertyNames": NAME_SCHEMA,
            "maxProperties": 1_000,
            "x-maxProperties-setting": "request_streams_max",
        },
    )


class PublishedRun(ResponseModel):
    """What one stream got."""

    first_id: IdText
    last_id: IdText
    count: Count


class ManyPublished(ResponseModel):
    """What each stream got; `duplicate`: by an earlier request of the same key or chunk."""

    streams: dict[str, PublishedRun]
    duplicate: bool


class _PublicationBody(Body):
    """Entries of many streams, kept byte for byte."""

    models: ClassVar = (ManyPublish,)
    content: ClassVar = {media.JSON: {"schema": {"$ref": "#/components/schemas/ManyPublish"}}}

    @classmethod
    def reading(cls, request: Request, arguments: Mapping[str, Any]) -> BodyReading[Publish]:
        """The command."""
        key, given = arguments.get("idempotency_key"), arguments.get
        chunk = _chunk(given("producer"), given("epoch"), given("number"))
        if key is not None and chunk is not None:
            raise invalid(
                "Idempotency-Key",
                "it does not go with Weir-Producer, which identifies repeated requests itself",
            )
        media.check_is_json(request.media_type.name)
        most, limits = request.gateway.settings.request_streams_max, request.gateway.limits.entries
        reader = partial(publication, limits=limits, streams_max=most, key=key, chunk=chunk)
        return BodyReading(reader, quick=partial(reader, quick=True))


def publication(
    body: bytes,
    limits: EntryLimits,
    streams_max: int,
    key: str | None,
    chunk: Chunk | None,
    *,
    quick: bool = False,
) -> Publish:
    """The command of a body. Raises the refusal of what is wrong with the entries. `quick` as of
    `read_many`.
    """
    parts = stream_bodies.read_many(body, limits, streams_max, quick=quick)
    if len(parts) > streams_max:
        raise invalid("/streams", f"one request names at most {streams_max} streams")
    for name in parts:
        names.check_text(name, "stream name")
    idempotency = IdempotencyKey(key, entry_bodies.digest_of(body)) if key is not None else None
    return Publish(
        parts=[XAdd(stream=name, bodies=entries.bodies, ids=entries.ids) for name, entries in parts.items()],
        idempotency=idempotency,
        chunk=chunk,
    )


@router.post(
    "/v1/publish",
    Access.PER_STREAM,
    status=201,
    model=ManyPublished,
    refusals=(
        "malformed_id", "id_not_increasing", "stream_exhausted", "entry_too_large", "too_many_entries",
        "idempotency_mismatch", "stale_epoch",
    ),
    writes=True,
)  # fmt: skip
def publish(
    request: RequestParameter,
    body: Annotated[Publish, _PublicationBody, Depends(request_of)],
    idempotency_key: KeyHeader = None,
    producer: Annotated[
        Producer | None,
        Header(
            alias="Weir-Producer",
            description="who publishes in chunks; with Weir-Epoch and Weir-Chunk, without a key",
        ),
    ] = None,
    epoch: Annotated[
        Count | None, Header(alias="Weir-Epoch", description="the producer's run: a number, larger in each")
    ] = None,
    number: Annotated[
        Count | None, Header(alias="Weir-Chunk", description="the number of this chunk in its run")
    ] = None,
) -> Ask:
    """Publish into many streams: all entries are stored, or none.

    A chunk of a producer that was stored in its last epoch, or in the one before, is answered as the first
    time (`duplicate`), however much later it comes again; an older epoch is refused. docs/bulk.md says how
    long what is remembered.
    """
    for part in body.parts:
        request.require(Action.WRITE, part.stream)
    request.take_more(sum(len(part.bodies) for part in body.parts))
    return Ask(
        [body],
        lambda reply: request.respond(201, _published(reply)),
        request.preferences.synced,
        publishes=True,
        # Reading it has taken a while, and so will storing it, in one piece.
        in_turn=len(body.parts) >= _STREAMS_IN_TURN_MIN,
    )


def _chunk(producer: str | None, epoch: int | None, number: int | None) -> Chunk | None:
    """What the three headers say together, None without any of them."""
    headers = {"Weir-Producer": producer, "Weir-Epoch": epoch, "Weir-Chunk": number}
    given = [name for name, value in headers.items() if value is not None]
    for name in headers:
        if given and name not in given:
            raise invalid(
                name,
                f"{given[0]} goes with {' and '.join(header for header in headers if header not in given)}",
            )
    if producer is None or epoch is None or number is None:
        return None
    return Chunk(producer, epoch, number)


def _published(reply: Reply) -> ManyPublished:
    if isinstance(reply, Republished):
        rows = {
            stream.stream: _run(stream.first_id, stream.last_id, stream.count) for stream in reply.streams
        }
        return ManyPublished(rows, duplicate=True)
    assert isinstance(reply, Published), "publishing answers what was published"
    rows = {name: _run(added.ids[0], added.ids[-1], len(added.ids)) for name, added in reply.streams}
    return ManyPublished(rows, reply.duplicate)


def _run(first_id: int, last_id: int, count: int) -> PublishedRun:
    return PublishedRun(ids.format(first_id), ids.format(last_id), count)
