"""Publishing, reading and deleting the entries of one stream."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn, Self, TypedDict

from fastapi import Query
from pydantic import Field, model_validator

from app.api.entries import tail
from app.api.entries.closing import IfMatchHeader
from app.api.entries.columns import read_accepted_columns
from app.api.entries.export import export_entries
from app.api.streams import change
from app.auth import Action, Resource
from app.doors.sse.tails import end_with
from app.errors import APPENDING, RefusalError, invalid
from app.http import media
from app.http.asks import Ask
from app.http.entries import cloud_events, entry_pages
from app.http.entries.entry_pages import (
    WHERE,
    DirectedRange,
    Entry,
    GapReport,
    Page,
    preferred_wait_ms,
    where,
)
from app.http.entries.publishing import (
    Added,
    AddOptions,
    BatchBody,
    EntryBody,
    KeyHeader,
    LinesBody,
    LinesOptions,
    PublishOptions,
    RawBody,
    References,
    added,
    raw_entries,
    scheduled,
    scheduled_each,
)
from app.http.entries.stored_entries import ParsedEntries
from app.http.models import (
    ABSENT,
    Count,
    EntryId,
    LookedUpIds,
    RequestModel,
    ResponseModel,
    StreamName,
    Whole,
    wrong,
)
from app.http.operations.binder import RequestParameter
from app.http.operations.operation import bound
from app.http.operations.router import Router
from app.http.requests import Request
from app.http.responses import Header as AnswerHeader
from app.http.responses import Response, location
from engine import EngineError, entries, ids, replies
from engine.commands.schedule_commands import AddScheduled
from engine.commands.types import Cursor, Refs, Until, XDelEx, XRange, XRead
from engine.commands.weir_commands import Close, DescribeEdges
from engine.replies import Deletions, Edges, Entries, Reply, StreamsRead

router: Final = Router("entries")

_STREAM: Final = "/v1/streams/{stream}"
_ENTRIES: Final = _STREAM + "/entries"
_ENTRY: Final = _ENTRIES + "/{id}"

# Projecting means decoding and encoding: this takes about ten milliseconds; `more` says that there is more.
_PROJECTED_BYTES_MAX: Final = 1 << 20
# Larger pages take a millisecond and more: their caller has one of them in a cycle of the loop.
_WITHOUT_TURN_MAX: Final = 1_000
_RESULTS: Final = {1: "deleted", -1: "absent", 2: "kept"}


# ---- publishing


class _Publishing(TypedDict):
    """What the ways to publish into a stream have in common."""

    status: int
    model: type[Added]
    also: Mapping[int, str]
    refusals: Sequence[str]
    prefer: str
    writes: bool


_PUBLISHING: Final[_Publishing] = {
    "status": 201,
    "model": Added,
    "also": {202: "All entries are appended later"},
    "refusals": (*APPENDING, "schedule_gone"),
    "prefer": "`return=minimal`: without `ids`",
    "writes": True,
}  # fmt: skip


@router.post(_ENTRIES, Action.WRITE, **_PUBLISHING, raw=raw_entries)
def add_entries(
    request: RequestParameter,
    stream: StreamName,
    options: Annotated[PublishOptions, Query()],
    body: EntryBody,
    if_match: IfMatchHeader = None,
    idempotency_key: KeyHeader = None,
) -> Response | Ask:
    """Append one entry (XADD).

    An object without `fields` that are an object or a list, and without a list of `entries`, is an entry with
    its members as fields. A batch as of `addEntryBatch` is stored too. Other media types: CloudEvents,
    `application/x-ndjson` as by `addEntriesNdjson`, a form as the fields of one entry, any other as by
    `addRawEntry`. JSON as `text/plain`, or without a type, is 415, unless `raw=true`.
    """
    if body.key is not None and idempotency_key is not None:
        raise invalid("dedupe", "it does not go with Idempotency-Key")
    return _Publication(request, stream, options, body, if_match, idempotency_key or body.key).ask()


@router.post(_ENTRIES + "/batch", Action.WRITE, **_PUBLISHING)
def add_entry_batch(
    request: RequestParameter,
    stream: StreamName,
    options: Annotated[LinesOptions, Query()],
    body: BatchBody,
    if_match: IfMatchHeader = None,
    idempotency_key: KeyHeader = None,
) -> Response | Ask:
    """Append a batch that is stored whole or not at all.

    A list of objects, each the fields of an entry, is a batch too.
    """
    if not body.batch:
        raise invalid("/entries", "a batch has a list of entries; addEntries takes one entry")
    return _Publication(request, stream, options, body, if_match, idempotency_key).ask()


@router.post(_ENTRIES + "/ndjson", Action.WRITE, **_PUBLISHING)
def add_entries_ndjson(
    request: RequestParameter,
    stream: StreamName,
    options: Annotated[LinesOptions, Query()],
    body: LinesBody,
    if_match: IfMatchHeader = None,
    idempotency_key: KeyHeader = None,
) -> Response | Ask:
    """Append a batch, one entry a line: its fields as an object, or an entry as `addEntries` takes it.

    It is stored whole or not at all. The media type may be another one.
    """
    return _Publication(request, stream, options, body, if_match, idempotency_key).ask()


@router.post(_ENTRIES + "/raw", Action.WRITE, **_PUBLISHING)
def add_raw_entry(
    request: RequestParameter,
    stream: StreamName,
    options: Annotated[AddOptions, Query()],
    body: RawBody,
    if_match: IfMatchHeader = None,
    idempotency_key: KeyHeader = None,
) -> Response | Ask:
    """Append one entry, whose field `data` is the body as it is, JSON too.

    The media type is kept as its field `content-type`.
    """
    return _Publication(request, stream, options, body, if_match, idempotency_key).ask()


class _Publication(NamedTuple):
    """What one request publishes."""

    request: Request
    stream: str
    options: AddOptions
    published: ParsedEntries
    if_match: int | Literal["*"] | None
    key: str | None

    def ask(self) -> Ask:
        """What stores it, or lets it be stored later."""
        request, options, published = self.request, self.options, self.published
        request.take_more(len(published.bodies))
        command = options.command(self.stream, published, self.if_match, self.key)
        later = None
        if published.later or options.is_later or options.cancel_schedule is not None:
            may_manage = request.principal.may(Action.MANAGE, Resource(self.stream))
            later = options.scheduled(command, published, recurring=may_manage)
        synced = request.preferences.synced
        if options.close:
            # Also where it is refused.
            request.note_action("close", "addEntries", stream=self.stream)
            request.require(Action.CLOSE, self.stream)
            close = Close(stream=self.stream, add=command)
            return Ask([close], self._closed, synced, publishes=True, refused=self._not_closed)
        if later is not None:
            refused = partial(self._not_scheduled, later)
            return Ask([later], self._scheduled, synced, publishes=True, refused=refused)
        return Ask([command], self._added, synced, joins=True, publishes=True)

    def _closed(self, reply: Reply) -> Response:
        assert isinstance(reply, replies.Closed), "closing answers the end"
        return self._added(reply.added)

    def _not_closed(self, refusal: EngineError) -> NoReturn:
        raise refusal if refusal.code != "no_stream" else self._not_created()

    def _scheduled(self, reply: Reply) -> Response:
        if not isinstance(reply, replies.AddedScheduled):
            raise self._not_created()
        if reply.recurring:
            self._note_recurring(reply.recurring)
        options, batch = self.options, self.published.batch
        cancelled = None if options.cancel_schedule is None else reply.cancelled
        each = scheduled_each(reply, options.later_places(self.published))
        if reply.added is None:
            return self.request.respond(202, scheduled(each, batch=batch, cancelled=cancelled))
        return self._added(reply.added, each, cancelled=cancelled)

    def _not_scheduled(self, later: AddScheduled, refusal: EngineError) -> NoReturn:
        if refusal.code == "forbidden":
            self._note_recurring([later.cancel or "", *(one.name for one in later.later)])
        raise refusal

    def _note_recurring(self, schedules: Sequence[str]) -> None:
        """Have the audit log say that what recurs was cancelled or replaced, or was to be."""
        named = [name for name in schedules if name]
        self.request.note_action("manage", "addEntries", stream=self.stream, schedules=named)

    def _added(
        self, reply: Reply, each: Sequence[dict[str, object]] = (), *, cancelled: bool | None = None
    ) -> Response:
        if not isinstance(reply, replies.Added):
            raise self._not_created()
        request, options, batch = self.request, self.options, self.published.batch
        preferences = request.preferences
        content = added(
            reply,
            batch=batch,
            trims=options.trim is not None,
            ids_wanted=not preferences.minimal,
            closes=options.close,
            cancelled=cancelled,
            scheduled=each,
        )
        safe = b"fsync" if preferences.synced else request.engine.durability.encode()
        headers: list[AnswerHeader] = [(b"weir-durability", safe)]
        if not batch and not options.removes(reply.ids[0]):
            headers.append(location("streams", self.stream, "entries", ids.format(reply.ids[0])))
        if preferences.minimal or preferences.synced:
            headers.append((b"preference-applied", preferences.applied))
        return Response(201, content, headers)

    def _not_created(self) -> RefusalError:
        stream = self.stream
        if self.if_match == "*":
            return RefusalError(
                "last_id_mismatch", f"there is no stream {stream!r}, and If-Match asks for one"
            )
        return RefusalError("no_stream", f"there is no stream {stream!r}, and nomkstream forbids to make it")


# ---- reading


class PageRange(DirectedRange):
    """A range, what comes after a cursor, or the newest entries."""

    count: Annotated[
        Annotated[int, Whole(1, "count_max")] | None,
        Field(description="maximum number of entries, 100 by default"),
    ] = None
    max_bytes: Annotated[
        Annotated[int, Whole(1, "answer_bytes_max")] | None,
        Field(description="maximum bytes of entries, but one entry"),
    ] = None
    wait: Annotated[
        Annotated[int, Whole(0, "wait_ms_max")] | None,
        Field(description="milliseconds to wait for entries after the cursor"),
    ] = None
    last: Annotated[
        Annotated[int, Whole(1, "count_max")] | None,
        Field(description="this many of the newest entries, in order"),
    ] = None

    @model_validator(mode="after")
    def _check_cursor(self) -> Self:
        if self.after is not None and self.after.id is Cursor.LATEST and self.has_end:
            raise wrong("it does not go with an end where it is `$`: nothing lies between", at="after")
        if self.wait and self.after is None:
            raise wrong("only a read with `after` can wait", at="wait")
        return self

    @property
    def has_end(self) -> bool:
        """Whether it ends before the stream does."""
        return self.end is not None or self.until is not None


async def read_events(
    request: RequestParameter, stream: StreamName, asked: Annotated[PageRange, Query()]
) -> Response:
    """The same entries as a batch of CloudEvents; headers say where to go on. A gap, which has no place
    in the batch, is 410.
    """
    if asked.fields is not None:
        raise invalid("fields", "it does not go with CloudEvents, which have all fields")
    source = cloud_events.source_of(request.gateway.settings.cloudevents_source, stream)
    settled = await request.settle(_asked_for(request, stream, asked, source))
    assert isinstance(settled, Response), "a page is one"
    return settled


@router.get(
    _ENTRIES,
    Action.READ,
    model=Page,
    refusals=("malformed_id", "gap", "too_many_waiters", "not_acceptable"),
    prefer="`wait=<seconds>`, where the query has no `wait`",
    headers={
        **WHERE,
        "Weir-More": "whether a limit, not the end, ended the page",
        **entry_pages.IS_CLOSED,
        **entry_pages.IS_ARCHIVED,
    },
    end=end_with,
    forms={
        media.NDJSON: bound(_STREAM, export_entries),
        media.EVENTS: tail.events,
        media.COLUMNS: bound(_STREAM, read_accepted_columns),
        media.CLOUDEVENTS: bound(_STREAM, read_events),
    },
)
def read_entries(request: RequestParameter, stream: StreamName, asked: Annotated[PageRange, Query()]) -> Ask:
    """Read a range of entries, or those after a cursor, and wait for them if asked to (XRANGE, XREVRANGE,
    XREAD).

    A range (`start`, `end`, or times), what comes after a cursor (`after`, with `wait` for what is not there
    yet), or the newest entries (`last`). For whole streams there are `exportEntries` and `readColumns`, to
    follow one `tailStream`.
    """
    return _asked_for(request, stream, asked)


def _asked_for(request: Request, stream: str, asked: PageRange, event_source: str = "") -> Ask:
    """A page; with a source, of CloudEvents."""
    commands, following = _commands(request, stream, asked, is_encoded=bool(event_source))
    answer = partial(_page, asked, following, asked.shows_generations, event_source=event_source)
    in_turn = max(asked.count or 0, asked.last or 0) > _WITHOUT_TURN_MAX
    return Ask(commands, answer, in_turn=in_turn, lasts=True)


def _page(
    asked: PageRange,
    following: int | None,
    shows_generations: bool,  # noqa: FBT001 - as found of what is asked
    *found_in_turn: Reply,
    event_source: str,
) -> Response:
    """The page of these replies; `following` is its `next` where nothing is found."""
    shown, gap, edges, generation, closed = Entries(), None, None, "", False
    for reply in found_in_turn:
        if isinstance(reply, StreamsRead):
            following, generation = reply.cursors[0][1], reply.generations[0]
            shown, gap = (reply.streams[0].entries, reply.streams[0].gap) if reply.streams else (shown, None)
            closed = bool(reply.closed)
        elif isinstance(reply, Entries) and (gap is None or gap.next is None):
            shown, closed = reply, closed if asked.last is not None else reply.closed
        elif isinstance(reply, Edges):
            edges, generation = reply, reply.generation
    if not shows_generations or asked.reverse:
        generation = ""
    report = None if gap is None else GapReport(gap, generation, shows_generations)
    if report is not None and (asked.fails_on_gap or event_source):
        raise report.refused()
    if asked.last is not None:
        shown = _forwards(shown)
    if shown.count:
        following = shown.last
    elif gap is not None:
        following = gap.goes_on_after
    headers = where(following, edges, gap, generation)
    headers.append((b"weir-more", b"true" if shown.more else b"false"))
    headers += [entry_pages.ARCHIVED_HEADER] * shown.archived + [entry_pages.CLOSED_HEADER] * closed
    if event_source:
        events = [cloud_events.write(entry_id, pairs, event_source) for entry_id, pairs in shown.pairs()]
        return Response(200, b"[%b]" % b",".join(events), headers, media_type=media.CLOUDEVENTS.encode())
    page = entry_pages.page(shown, following, report, asked.fields, generation, closed=closed)
    return Response(200, page, headers)


def _commands(
    request: Request, stream: str, asked: PageRange, *, is_encoded: bool
) -> tuple[Sequence[XRange | XRead | DescribeEdges], int | None]:
    """What is run, and the answer's `next` where nothing is found. Several commands are one turn: looks for a
    gap and for the stream's edges beside a range.
    """
    limits = request.gateway.limits.reads
    bytes_max = asked.max_bytes or limits.bytes_max
    if asked.fields is not None or is_encoded:
        bytes_max = min(bytes_max, _PROJECTED_BYTES_MAX)
    wait_ms = _wait_ms(request, asked)
    if asked.last is not None:
        newest = XRange(
            stream=stream,
            start=ids.ID_MIN,
            end=ids.ID_MAX,
            count=asked.last,
            reverse=True,
            bytes_max=bytes_max,
        )
        return [XRead(streams=[(stream, Cursor.LATEST)], count=1, known=[""]), newest], None
    count = asked.count or limits.count_default
    after = asked.after
    if after is not None and not asked.has_end:
        read = XRead(
            streams=[(stream, after.id)],
            count=count,
            block_ms=wait_ms,
            bytes_max=bytes_max,
            known=[after.generation],
            until=Until.CLOSED,
        )
        return [read], None
    wanted = XRange(
        stream=stream,
        start=asked.first(),
        end=asked.last_id(),
        reverse=bool(asked.reverse),
        count=count,
        bytes_max=bytes_max,
        up_to_damage=True,
    )
    if after is None:
        first = None if wanted.reverse else max(wanted.start - 1, ids.ID_MIN)
        return [wanted, DescribeEdges(stream=stream)] if asked.shows_generations else [wanted], first
    look = XRead(streams=[(stream, after.id)], count=1, known=[after.generation])
    return [look, wanted, DescribeEdges(stream=stream)], wanted.start - 1


def _wait_ms(request: Request, asked: PageRange) -> int | None:
    """How long to wait, None for not at all; the parameter wins over the preference."""
    if asked.wait is not None:
        return asked.wait or None
    wait_ms = preferred_wait_ms(request.preferences.wait_s, request.gateway.limits.reads)
    if wait_ms and asked.after is None:
        raise invalid("wait", "only a read with `after` can wait")
    return wait_ms or None


def _forwards(run: Entries) -> Entries:
    """Entries that were read backwards, in the order of the stream; they end where it ends."""
    texts = entries.texts(run.json()) if run.count else []
    return Entries(texts[::-1], run.count, run.last, run.first, archived=run.archived)


@router.get(
    _ENTRY,
    Action.READ,
    model=Entry,
    refusals=("malformed_id", "no_entry", "not_acceptable"),
    conditional=True,
)
def get_entry(request: RequestParameter, stream: StreamName, id: EntryId) -> Ask:  # noqa: A002 - as in the path
    """Read one entry."""
    media.check_accepts_json(request.headers.get(b"accept", b""))
    return Ask([XRange(stream=stream, start=id, end=id)], partial(_entry, id), lasts=True)


def _entry(entry_id: int, entry: Reply) -> Response:
    if not isinstance(entry, Entries) or not entry.count:
        raise _missing(entry_id)
    return Response(200, entry.json())


# ---- deleting


class Deletion(RequestModel):
    """Entries to delete."""

    ids: LookedUpIds
    refs: References = "keep"


class Deleted(ResponseModel):
    """How many are gone, and the result for each; `kept`: `refs` is `acked`, and a group still needs it."""

    deleted: Count
    results: dict[str, Literal["deleted", "absent", "kept"]] = ABSENT


@router.delete(
    _ENTRY,
    Action.WRITE,
    status=204,
    refusals=("malformed_id", "no_stream", "no_entry", "trim_guarded"),
    writes=True,
)
def delete_entry(
    request: RequestParameter,
    stream: StreamName,
    id: EntryId,  # noqa: A002 - as in the path
    refs: Annotated[References | None, Query()] = None,
) -> Ask:
    """Delete one entry."""

    def answer(reply: Reply) -> Response:
        (result,) = _results(reply)
        if result == "absent":
            raise _missing(id)
        if result == "kept":
            raise RefusalError(
                "trim_guarded", "a group has still to read or to acknowledge the entry: it is kept"
            )
        return request.respond(204)

    return change(request, XDelEx(stream=stream, ids=[id], refs=Refs(refs or "keep")), answer)


@router.post(
    _ENTRIES + "/delete",
    Action.WRITE,
    model=Deleted,
    refusals=("malformed_id", "no_stream"),
    prefer="`return=minimal`: without `results`",
    writes=True,
)
def delete_entries(request: RequestParameter, stream: StreamName, given: Deletion) -> Ask:
    """Delete entries, with a result for each (XDEL, XDELEX)."""

    def answer(reply: Reply) -> Response:
        results = _results(reply)
        shown = Deleted(results.count("deleted"))
        if not request.preferences.minimal:
            shown.results = dict(zip(map(ids.format, given.ids), results, strict=True))
        return request.respond(200, shown)

    return change(request, XDelEx(stream=stream, ids=given.ids, refs=Refs(given.refs)), answer)


def _results(reply: Reply) -> list[Any]:
    assert isinstance(reply, Deletions), "XDELEX answers a result for each ID"
    return [_RESULTS[result] for result in reply.results]


def _missing(entry_id: int) -> RefusalError:
    return RefusalError("no_entry", f"there is no entry {ids.format(entry_id)} in the stream")
