"""The end of a stream, with or without last entries."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import orjson
from fastapi import Depends, Header, Query
from pydantic import Field

from app.auth import Action
from app.errors import APPENDING, RefusalError, invalid, locate
from app.http import media, strict_json
from app.http.asks import Ask
from app.http.entries import entry_bodies, json_bodies
from app.http.entries.publishing import KeyHeader, PlainEntryInput, ids_text
from app.http.entries.stored_entries import ParsedEntries
from app.http.media import JSON, MediaType
from app.http.models import ABSENT, IdText, IfMatch, RequestModel, ResponseModel, StreamName, absent, raw
from app.http.operations.binder import Body, RequestParameter, request_of
from app.http.operations.router import Router
from app.http.request_bodies import BodyReading
from app.http.requests import Request
from app.http.responses import Response
from app.limits import EntryLimits
from engine import ids, replies
from engine.commands.types import IdempotencyKey, XAdd
from engine.commands.weir_commands import Close

router: Final = Router("entries")

IfMatchHeader = Annotated[
    IfMatch | None,
    Header(
        alias="If-Match",
        description='the stream\'s last ID in quotation marks, `"0-0"` for an empty or missing stream; '
        "`*` for any stream that exists",
    ),
]
# Members of the body, and one that is too many.
_MEMBERS_MAX: Final = 4
_JSON: Final = MediaType(JSON, JSON)
# A reason of 256 bytes, each of them escaped.
_REASON_TEXT_BYTES_MAX: Final = 2 << 10


class Ending(RequestModel):
    """The end of a stream. `entry` or `entries` are its last ones: stored with the end, or neither is."""

    reason: Annotated[str, Field(description="why, for readers: at most 256 bytes", max_length=256)] = ""
    entry: PlainEntryInput = absent()
    entries: Annotated[
        list[PlainEntryInput],
        Field(
            min_length=1,
            json_schema_extra={"maxItems": 10_000, "x-maxItems-setting": "batch_entries_max"},
        ),
    ] = absent()


class StreamClosed(ResponseModel):
    """The end of a stream. `duplicate`: an earlier request closed it, or stored these entries."""

    closed: bool
    closed_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    last_id: IdText
    duplicate: bool
    ids: list[IdText] = ABSENT


_Ended: TypeAlias = tuple[str, ParsedEntries | None]


class _EndingBody(Body):
    """A reason and last entries, kept byte for byte; all of it may be left out."""

    models: ClassVar = (Ending,)
    content: ClassVar = {JSON: {"schema": {"$ref": "#/components/schemas/Ending"}}}
    required: ClassVar = False

    @classmethod
    def reading(cls, request: Request, arguments: Mapping[str, Any]) -> BodyReading[_Ended]:
        """The reason and the entries, with a digest for an idempotency key."""
        digest = arguments.get("idempotency_key") is not None
        media_type, limits = request.media_type, request.gateway.limits.entries
        return BodyReading(partial(_read, media_type=media_type, limits=limits, digest=digest))


def _read(body: bytes, media_type: MediaType, limits: EntryLimits, *, digest: bool) -> _Ended:
    if not body:
        return "", None
    media.check_is_json(media_type.name)
    if body.strip() == b"null":
        # As of every body that may be left out.
        return "", None
    # Its members are copied, and long entries once more before they are read.
    strict_json.expect_room(body, copies=3)
    members = strict_json.members_of(body, _MEMBERS_MAX)
    unknown = members.keys() - {"reason", "entry", "entries"}
    if unknown:
        raise invalid(f"/{min(unknown)}", "there is no such member: it is reason, entry or entries")
    # As everywhere: null is what is left out.
    members = {name: text for name, text in members.items() if text != b"null"}
    text = members.get("reason", b'""')
    if len(text) > _REASON_TEXT_BYTES_MAX:
        raise invalid("/reason", "it has at most 256 bytes")
    reason = orjson.loads(text)
    if not isinstance(reason, str):
        raise invalid("/reason", "it is a string")
    if "entry" in members and "entries" in members:
        raise invalid("/entries", "it does not go with entry")
    added = None
    if "entry" in members:
        added = _located("/entry", partial(entry_bodies.read, members.pop("entry"), _JSON, limits))
        if added.batch:
            raise invalid("/entry", "it is one entry: an object with fields")
    elif "entries" in members:
        added = _located("", partial(json_bodies.read_list, members.pop("entries"), "/entries", limits))
    if added is not None and digest:
        added = ParsedEntries(added.bodies, added.ids, added.batch, entry_bodies.digest_of(body))
    return reason, added


def _located(place: str, read: Callable[[], ParsedEntries]) -> ParsedEntries:
    """What is read, of which a refusal names its place in the body."""
    try:
        return read()
    except RefusalError as refusal:
        refusal.places = [locate(place + one.name or "/entries", one.detail) for one in refusal.places]
        raise


@router.post(
    "/v1/streams/{stream}/close",
    Action.CLOSE,
    model=StreamClosed,
    refusals=(*APPENDING, "has_schedules"),
    prefer="`return=minimal`: without `ids`",
    writes=True,
)  # fmt: skip
def close_stream(
    request: RequestParameter,
    stream: StreamName,
    body: Annotated[_Ended, _EndingBody, Depends(request_of)],
    schedules: Annotated[
        Literal["refuse", "drop"],
        Query(description="whether entries for later forbid the end or are dropped"),
    ] = "refuse",
    if_match: IfMatchHeader = None,
    idempotency_key: KeyHeader = None,
) -> Ask:
    """Close a stream for good: it takes no entries any more, and its readers end behind the last one.

    Without entries it may be repeated. With entries a stream that is closed refuses it, unless the key is the
    same. Entries need `write` too.
    """
    reason, last = body
    expected = None if if_match == "*" else if_match
    add = None
    if last is not None:
        request.require(Action.WRITE, stream)
        request.take_more(len(last.bodies))
        key = None if idempotency_key is None else IdempotencyKey(idempotency_key, last.digest)
        add = XAdd(
            stream=stream, bodies=last.bodies, ids=last.ids, mkstream=if_match != "*", idempotency=key,
            expected_last_id=expected,
        )  # fmt: skip
    command = Close(
        stream=stream, reason=reason, add=add, expected_last_id=expected, drops_schedules=schedules == "drop"
    )

    def answer(found: replies.Reply) -> Response:
        assert isinstance(found, replies.Closed), "closing answers the end"
        end = found.end
        shown = StreamClosed(
            closed=True,
            closed_at=ids.rfc3339(end.closed_at_ms),
            last_id=ids.format(end.last_id),
            duplicate=found.duplicate,
        )
        if found.added is not None and not request.preferences.minimal:
            shown.ids = raw([ids_text(found.added.ids)])
        return request.respond(200, shown)

    return Ask([command], answer, request.preferences.synced, publishes=True)
