"""Publishing into one stream: its body, XADD's options, and what is answered.

Knows: the models of an entry to publish, how options become a command. Must never know: statuses, sockets,
the bytes of a body (`entry_bodies` does).
"""

from collections.abc import Container, Mapping, Sequence
from functools import partial
from secrets import token_urlsafe
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import msgspec
import orjson
from fastapi import Depends, Header
from pydantic import BaseModel, Field, WithJsonSchema, model_validator

from app.errors import invalid
from app.gateway import Gateway
from app.http.asks import Ask
from app.http.entries import cloud_events, entry_bodies
from app.http.entries.entry_pages import Base64
from app.http.entries.line_bodies import ENVELOPE_STARTS
from app.http.entries.stored_entries import ParsedEntries, in_one_pass
from app.http.entries.values import VALUE_SCHEMA
from app.http.media import EVENT_MARK, JSON, NDJSON, MediaType, is_event
from app.http.models import (
    ABSENT,
    Count,
    EntryId,
    Flag,
    IdempotencyKey,
    IdText,
    Moment,
    QueryModel,
    RequestModel,
    ResponseModel,
    ScheduleName,
    Whole,
    absent,
    wrong,
)
from app.http.operations.binder import Body, request_of
from app.http.request_bodies import INLINE_BYTES_MAX, BodyReading
from app.http.requests import Request
from app.http.responses import Response, location
from app.limits import EntryLimits
from app.operating import Phase
from engine import ids, replies
from engine.commands import types
from engine.commands.schedule_commands import AddScheduled, NewSchedule
from engine.recurrence import AHEAD_MS_MAX, Rule
from engine.rows import Form

References = Annotated[
    Literal["keep", "delete", "acked"],
    Field(description="references in pending lists: they stay, go too, or forbid the removal"),
]
KeyHeader = Annotated[
    IdempotencyKey | None,
    Header(
        alias="Idempotency-Key",
        description="a repeated request with the same key and body answers as the first time",
    ),
]

_REF: Final = "#/components/schemas/"
_PRODUCER_HEADERS: Final = (b"weir-producer", b"weir-epoch", b"weir-chunk")
# What goes with others asks for none of these.
_ASKING: Final = frozenset({b"prefer", b"content-encoding", EVENT_MARK, *_PRODUCER_HEADERS})
_INT64_MAX: Final = (1 << 63) - 1
# Nested values take longer to read than others.
_NESTED_INLINE_BYTES_MAX: Final = 64 << 10


# ---- the body


class PlainEntryInput(RequestModel):
    """An entry. Values are strings; numbers and booleans are stored as their JSON text.

    `fields` may also be a list of [name, value] pairs, so that a name can stand twice.
    """

    # A list of types, not of alternatives, of which generators of clients would make classes.
    fields: dict[str, Annotated[object, WithJsonSchema(VALUE_SCHEMA)]] = Field(min_length=1)
    id: Annotated[
        str,
        Field(
            pattern=r"^(\*|[0-9]{1,20}(-(\*|[0-9]{1,20}))?)$",
            description="`*` (the default), `<ms>-*` or `<ms>-<seq>`",
            json_schema_extra={"format": "new-entry-id"},
        ),
    ] = "*"
    encoding: Base64 = absent()


class EntryInput(PlainEntryInput):
    """An entry to publish. Values are strings; numbers and booleans are stored as their JSON text.

    `fields` may also be a list of [name, value] pairs, so that a name can stand twice.
    """

    deliver_at: Annotated[Moment, Field(description="append it at this time, in place of the query's")] = (
        absent()
    )
    delay_ms: Annotated[
        Annotated[int, Whole(0, AHEAD_MS_MAX)],
        Field(description="append it after this many milliseconds, in place of the query's"),
    ] = absent()
    schedule: Annotated[
        ScheduleName, Field(description="the name of its schedule; it replaces one of that name")
    ] = absent()


class EntriesInput(RequestModel):
    """A batch: stored whole or not at all."""

    entries: list[EntryInput] = Field(
        min_length=1, json_schema_extra={"maxItems": 10_000, "x-maxItems-setting": "batch_entries_max"}
    )


class _EntryBody(Body):
    """One entry, or a batch that is stored whole or not at all."""

    models: ClassVar[Sequence[type[BaseModel]]] = (EntryInput,)
    # Generators of clients make one function of an operation, for one media type and one form of the body: of
    # two, some send neither. Others are taken too.
    content: ClassVar = {JSON: {"schema": {"$ref": _REF + "EntryInput"}}}

    # Whether the body is one entry as it is, with any query.
    is_raw: ClassVar = False

    @staticmethod
    def media_type(request: Request) -> MediaType:
        """As what it is read. Raises `unsupported_media_type`."""
        return request.media_type

    @classmethod
    def reading(cls, request: Request, arguments: Mapping[str, Any]) -> BodyReading[ParsedEntries]:
        """The entries, with a digest for an idempotency key; of its options those that say how it is read."""
        for name in _PRODUCER_HEADERS:
            if name in request.headers:
                raise invalid(
                    name.decode().title(), "chunks of a producer are published to /v1/publish, one stream too"
                )
        _ = request.preferences
        media, limits = cls.media_type(request), request.gateway.limits.publications
        options = arguments["options"]
        nested = getattr(options, "nested", None) is not None
        if nested:
            limits = msgspec.structs.replace(limits, nested=True)
        digest = arguments.get("idempotency_key") is not None
        takes_events = isinstance(options, PublishOptions) and not options.raw
        if takes_events and is_event(media.name, request.headers):
            if nested:
                raise invalid("nested", "it does not go with CloudEvents")
            is_keyed = options.dedupe is not None
            events = partial(
                _read_events,
                media=media,
                headers=request.headers,
                limits=limits,
                digest=digest,
                is_keyed=is_keyed,
            )
            return BodyReading(events, cloud_events.INLINE_BYTES_MAX)
        if getattr(options, "dedupe", None) is not None:
            raise invalid("dedupe", "it goes with CloudEvents")
        raw = cls.is_raw or getattr(options, "raw", False)
        reader = partial(entry_bodies.read, media=media, limits=limits, digest=digest, raw=raw)
        inline_bytes_max = _NESTED_INLINE_BYTES_MAX if nested else INLINE_BYTES_MAX
        return BodyReading(reader, inline_bytes_max, quick=partial(reader, quick=True))


def _read_events(
    body: bytes,
    media: MediaType,
    headers: Mapping[bytes, bytes],
    limits: EntryLimits,
    *,
    digest: bool,
    is_keyed: bool,
) -> ParsedEntries:
    published, key = cloud_events.read(body, media.name, headers, limits)
    if is_keyed:
        # What comes again may be written otherwise: it is known by its source and ID alone.
        return msgspec.structs.replace(published, key=key, digest=entry_bodies.digest_of(key.encode()))
    return msgspec.structs.replace(published, digest=entry_bodies.digest_of(body)) if digest else published


class _BatchBody(_EntryBody):
    """A batch in JSON, under any media type."""

    models: ClassVar = (EntriesInput,)
    content: ClassVar = {JSON: {"schema": {"$ref": _REF + "EntriesInput"}}}

    @staticmethod
    def media_type(request: Request) -> MediaType:
        """Of JSON. Raises `unsupported_media_type` for what no JSON is."""
        return MediaType(request.media_type.text, JSON)


class _LinesBody(_EntryBody):
    """A batch of lines, under any media type."""

    models: ClassVar = ()
    # Of a string a generator of clients would send the JSON.
    content: ClassVar = {
        NDJSON: {"schema": {"type": "string", "format": "binary", "description": "one entry a line"}}
    }

    @staticmethod
    def media_type(request: Request) -> MediaType:
        """Of lines. Raises `unsupported_media_type` for what no text of lines is."""
        return MediaType(request.media_type.text, NDJSON)


class _RawBody(_EntryBody):
    """One entry, which is the body as it is."""

    models: ClassVar = ()
    is_raw: ClassVar = True
    content: ClassVar = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


# Entries to publish, kept byte for byte: JSON (one or a batch), NDJSON, a form; any other is one entry.
EntryBody = Annotated[ParsedEntries, _EntryBody, Depends(request_of)]
BatchBody = Annotated[ParsedEntries, _BatchBody, Depends(request_of)]
LinesBody = Annotated[ParsedEntries, _LinesBody, Depends(request_of)]
RawBody = Annotated[ParsedEntries, _RawBody, Depends(request_of)]


# ---- options


class AddOptions(QueryModel):
    """XADD's options."""

    nomkstream: Annotated[Flag, Field(description="refuse where the stream is missing")] = False
    maxlen: Annotated[
        Annotated[int, Whole(0, _INT64_MAX, format="int64")] | None,
        Field(description="trim to this many entries"),
    ] = None
    minid: Annotated[EntryId | None, Field(description="trim entries with smaller IDs")] = None
    approx: Annotated[
        Flag | None, Field(description="trim whole nodes only, which costs less; true by default")
    ] = None
    limit: Annotated[
        Annotated[int, Whole(0, _INT64_MAX, format="int64")] | None,
        Field(description="trim at most this many; 0 is no limit"),
    ] = None
    refs: References | None = None
    close: Annotated[
        Flag, Field(description="close the stream behind the entries: both or neither; needs `close` too")
    ] = False
    deliver_at: Annotated[
        Moment | None, Field(description="append the entries at this time, and answer 202")
    ] = None
    delay_ms: Annotated[
        Annotated[int, Whole(0, AHEAD_MS_MAX)] | None,
        Field(description="append the entries after this many milliseconds, and answer 202"),
    ] = None
    schedule: Annotated[
        ScheduleName | None,
        Field(description="with these: the name of the schedule, of one entry; it replaces one of that name"),
    ] = None
    cancel_schedule: Annotated[
        ScheduleName | None, Field(description="cancel this schedule: both or neither")
    ] = None
    required: Annotated[
        Flag,
        Field(description="with `cancel_schedule`: `schedule_gone` where that has run already"),
    ] = False

    @model_validator(mode="after")
    def _check_later(self) -> Self:
        if self.required and self.cancel_schedule is None:
            raise wrong("it goes with cancel_schedule", at="required")
        if self.deliver_at is not None and self.delay_ms is not None:
            raise wrong("it does not go with deliver_at", at="delay_ms")
        if self.schedule is not None and not self.is_later:
            raise wrong("it goes with deliver_at or delay_ms", at="schedule")
        if self.is_later and (self.close or self.maxlen is not None or self.minid is not None):
            name = "close" if self.close else "minid" if self.maxlen is None else "maxlen"
            raise wrong("it does not go with entries for later", at=name)
        if self.cancel_schedule is not None and self.close:
            raise wrong("it does not go with close: close with schedules=drop", at="cancel_schedule")
        return self

    @property
    def is_later(self) -> bool:
        """Whether the entries are appended at a time of their own."""
        return self.deliver_at is not None or self.delay_ms is not None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.maxlen is not None and self.minid is not None:
            raise wrong("it does not go with minid", at="maxlen")
        if self.maxlen is None and self.minid is None:
            for name in ("approx", "limit", "refs"):
                if name in self.model_fields_set:
                    raise wrong("it goes with maxlen or minid", at=name)
        if self.limit is not None and self.approx is False:
            raise wrong("it goes with approximate trimming", at="limit")
        return self

    @property
    def trim(self) -> types.Trim | None:
        """The trim behind the publication."""
        if self.maxlen is None and self.minid is None:
            return None
        return types.Trim(
            maxlen=self.maxlen,
            minid=self.minid,
            approx=self.approx is not False,
            limit=self.limit,
            refs=types.Refs(self.refs or "keep"),
            count_pending=True,
        )

    def removes(self, entry_id: int) -> bool:
        """Whether the trim removes what was just published."""
        return self.maxlen == 0 or (self.minid is not None and self.minid > entry_id)

    def command(
        self,
        stream: str,
        published: ParsedEntries,
        expected: int | Literal["*"] | None = None,
        key: str | None = None,
    ) -> types.XAdd:
        """The whole command. `expected` is the last ID, `*` any of a stream that exists."""
        return types.XAdd(
            stream=stream,
            bodies=published.bodies,
            ids=published.ids,
            mkstream=not self.nomkstream and expected != "*",
            trim=self.trim,
            idempotency=types.IdempotencyKey(key, published.digest) if key is not None else None,
            expected_last_id=None if expected == "*" else expected,
        )

    def scheduled(self, add: types.XAdd, published: ParsedEntries, *, recurring: bool) -> AddScheduled | None:
        """The same, where entries are for later or a schedule is cancelled; else None. `recurring`: it may be
        one that recurs. Raises 422 for what goes with no entry for later.
        """
        places = self.later_places(published)
        if not places and self.cancel_schedule is None:
            return None
        later = [self._for_later(published, place) for place in places]
        now = _without(add, set(places)) if places else add
        if places:
            self._check_goes_with_later(add, now)
        return AddScheduled(
            stream=add.stream, add=now, later=later, cancel=self.cancel_schedule,
            cancel_required=self.required, mkstream=add.mkstream, recurring=recurring,
        )  # fmt: skip

    def later_places(self, published: ParsedEntries) -> Sequence[int]:
        """Which of the entries are for later."""
        if self.is_later:
            return range(len(published.bodies))
        return [place for place, later in enumerate(published.later) if later is not None]

    def _for_later(self, published: ParsedEntries, place: int) -> NewSchedule:
        """One of the entries: what it says itself wins over the query."""
        own = published.later[place] if published.later else None
        pointer = "" if own is None else own.place
        if published.ids and published.ids[place] is not None:
            raise invalid(f"{pointer}/id", "an entry for later gets its ID when it is appended: leave it out")
        rule = Rule(at_ms=self.deliver_at, in_ms=self.delay_ms)
        if own is not None and own.has_time:
            rule = Rule(at_ms=own.at_ms, in_ms=own.in_ms)
        elif not self.is_later:
            raise invalid(f"{pointer}/schedule", "it goes with deliver_at or delay_ms")
        name = self.schedule if own is None or own.name is None else own.name
        return NewSchedule(name or _new_name(), published.bodies[place], rule)

    def _check_goes_with_later(self, add: types.XAdd, now: types.XAdd | None) -> None:
        """Raise 422 for what goes with no entry for later; or, unless others are published `now`, for what is
        about those.
        """
        if self.close:
            raise invalid("close", "it does not go with entries for later")
        if add.idempotency is not None:
            raise invalid(
                "Idempotency-Key", "give entries for later names by schedule: they replace themselves"
            )
        if self.schedule is not None and len(add.bodies) > 1:
            raise invalid("schedule", "a name is for one entry: give each entry a member schedule")
        if now is None and add.expected_last_id is not None:
            raise invalid("If-Match", "it does not go with entries for later")
        if now is None and add.trim is not None:
            raise invalid(
                "minid" if self.maxlen is None else "maxlen", "it does not go with entries for later"
            )


def _without(add: types.XAdd, places: Container[int]) -> types.XAdd | None:
    """The same command without the entries at these places; None if there is no other one."""
    rest = [place for place in range(len(add.bodies)) if place not in places]
    if not rest:
        return None
    bodies = [add.bodies[place] for place in rest]
    return msgspec.structs.replace(
        add, bodies=bodies, ids=[add.ids[place] for place in rest] if add.ids else ()
    )


def _new_name() -> str:
    """A name for a schedule that has none: too long to be guessed or to come twice, and short enough."""
    return f"sch_{token_urlsafe(8)}"


class LinesOptions(AddOptions):
    """The same, and how lines are read."""

    nested: Annotated[
        Literal["json"] | None,
        Field(
            description="`json`: values that are objects, lists or null are stored as their JSON text; a "
            "line, or an item of a list, is then always the fields of an entry, under any names"
        ),
    ] = None


class PublishOptions(LinesOptions):
    """The same, and how the body is read."""

    raw: Annotated[
        Flag, Field(description="the body of any type is one entry as it is: its field `data`")
    ] = False
    dedupe: Annotated[
        Literal["ce"] | None,
        Field(description="`source` and `id` of CloudEvents"),
    ] = None

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.raw and self.dedupe is not None:
            raise wrong("it does not go with raw", at="dedupe")
        if self.raw and self.nested is not None:
            raise wrong("it does not go with nested", at="raw")
        return self


# ---- the answer


class Scheduled(ResponseModel):
    """An entry that is appended later; of a batch, `index` is its place in it."""

    schedule: Annotated[str, Field(description="its name, to look at it or to cancel it")]
    deliver_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    index: Count = ABSENT


class Added(ResponseModel):
    """What was stored: `id` for one entry, the others for a batch."""

    duplicate: Annotated[bool, Field(description="the entries were stored already, by an earlier request")]
    id: IdText = ABSENT
    first_id: IdText = ABSENT
    last_id: IdText = ABSENT
    count: Count = ABSENT
    ids: list[IdText] = ABSENT
    trimmed: Annotated[Count, Field(description="entries that were trimmed away")] = ABSENT
    pending_affected: Annotated[
        Count, Field(description="trimmed entries that are still pending in a group")
    ] = ABSENT
    closed: Annotated[bool, Field(description="the stream is closed, as `close` asked for")] = ABSENT
    cancelled: Annotated[bool, Field(description="whether `cancel_schedule` had not run yet")] = ABSENT
    schedule: Annotated[str, Field(description="202: the name of the entry for later")] = ABSENT
    deliver_at: Annotated[
        str, Field(description="202: when it is appended", json_schema_extra={"format": "date-time"})
    ] = ABSENT
    scheduled: Annotated[list[Scheduled], Field(description="those of a batch that are for later")] = ABSENT


def added(
    reply: replies.Added,
    *,
    batch: bool,
    trims: bool,
    ids_wanted: bool,
    closes: bool = False,
    cancelled: bool | None = None,
    scheduled: Sequence[Mapping[str, object]] = (),
) -> bytes:
    """The bytes of `Added`; `scheduled` are those of the batch that are for later."""
    if batch:
        shown = b',"ids":[%b]' % ids_text(reply.ids) if ids_wanted else b""
        first, last, count = reply.ids[0], reply.ids[-1], len(reply.ids)
        what = b'"first_id":%b,"last_id":%b,"count":%d%b' % (_id(first), _id(last), count, shown)
    else:
        what = b'"id":%b' % _id(reply.ids[0])
    trimmed = b""
    if trims:
        trimmed = b',"trimmed":%d,"pending_affected":%d' % (reply.trimmed, reply.pending_affected)
    more = b',"closed":true' if closes else b""
    if cancelled is not None:
        more += b',"cancelled":' + _flag(cancelled)
    if scheduled:
        more += b',"scheduled":' + orjson.dumps(scheduled)
    return b'{%b,"duplicate":%b%b%b}' % (what, _flag(reply.duplicate), trimmed, more)


def _flag(value: bool) -> bytes:  # noqa: FBT001 - it is what is written
    return b"true" if value else b"false"


def scheduled_each(reply: replies.AddedScheduled, places: Sequence[int]) -> list[dict[str, object]]:
    """`Scheduled` of each entry for later; `places` are where they stand in the batch."""
    return [
        {"index": place, "schedule": name, "deliver_at": ids.rfc3339(at_ms)}
        for place, (name, at_ms) in zip(places, reply.scheduled, strict=True)
    ]


def scheduled(each: Sequence[Mapping[str, object]], *, batch: bool, cancelled: bool | None) -> bytes:
    """The bytes of `Added` where all entries are for later."""
    one = {name: value for name, value in each[0].items() if name != "index"}
    what: dict[str, object] = {"scheduled": each, "count": len(each)} if batch else one
    more = {} if cancelled is None else {"cancelled": cancelled}
    return orjson.dumps({**what, "duplicate": False, **more})


def _id(entry_id: int) -> bytes:
    return b'"%d-%d"' % divmod(entry_id, 1 << ids.SEQUENCE_BITS)


def ids_text(entry_ids: Sequence[int]) -> bytes:
    """IDs as the inside of a JSON array."""
    if isinstance(entry_ids, range) and ids.ms_of(entry_ids[0]) == ids.ms_of(entry_ids[-1]):
        # A batch within one millisecond, as nearly all are: only the sequence differs.
        between = f'","{ids.ms_of(entry_ids[0])}-'
        sequences = range(ids.sequence_of(entry_ids[0]), ids.sequence_of(entry_ids[-1]) + 1)
        return (between[2:] + between.join(map(str, sequences)) + '"').encode()
    return b",".join(map(_id, entry_ids))


# ---- entries of several requests

# Larger entries would gain nothing.
_ENTRY_BYTES_MAX: Final = 16 << 10
_SEQUENCES: Final = 1 << ids.SEQUENCE_BITS


class _RawEntries:
    """How bodies of plain requests to publish an entry into this stream are read together."""

    __slots__ = ("_bytes_max", "_durability", "_gateway", "_where", "stream")

    def __init__(self, stream: str, gateway: Gateway) -> None:
        self.stream = stream
        self._gateway = gateway
        self._bytes_max = min(_ENTRY_BYTES_MAX, gateway.settings.body_bytes_max)
        self._durability = b"weir-durability", gateway.engine.durability.encode()
        _, self._where = location("streams", stream, "entries", "")

    def takes(self, body: bytes) -> bool:
        """Whether this body may be read with others: it is one line, and begins as an entry does."""
        return body.startswith(ENVELOPE_STARTS) and b"\n" not in body and len(body) <= self._bytes_max

    def read(self, bodies: Sequence[bytes]) -> Sequence[bytes] | None:
        """An entry of each body, read as the lines of one; None where one of them is anything else."""
        if self._gateway.phase is not Phase.READY:
            return None
        found = in_one_pass(b"\n".join(bodies), Form.LINES, self._gateway.limits.entries)
        return found if found is not None and len(found) == len(bodies) else None

    def answer(self, reply: replies.Reply) -> Response:
        """The answer to one of them."""
        assert isinstance(reply, replies.Added), "it is stored"
        entry_id = b"%d-%d" % divmod(reply.ids[0], _SEQUENCES)
        where = b"location", self._where + entry_id
        return Response(201, b'{"id":"%b","duplicate":false}' % entry_id, (self._durability, where))


def raw_entries(names: Mapping[str, str], headers: Mapping[bytes, bytes], gateway: Gateway) -> Ask | None:
    """What a request with this head asks with others; None where it asks for more."""
    if headers.get(b"content-type") != JSON.encode() or not _ASKING.isdisjoint(headers):
        return None
    raw = _RawEntries(names["stream"], gateway)
    return Ask((), raw.answer, joins=True, raw=raw)
