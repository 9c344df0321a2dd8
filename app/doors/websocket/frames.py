"""The frames of `weir.v1`: those of clients, those of the server, and how they are written.

Knows: the members of each frame, the options that they set, the bytes of pushed frames.
Must never know: subscriptions, credit, sockets, what a frame does.

A frame is a JSON object with `op`. The same types parse the clients' frames, write the server's, and describe
both (`app.openapi.asyncapi`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from app import errors, names
from app.errors import RefusalError, invalid
from app.http import cursors, media, query, strict_json
from app.http.cursors import Place
from app.http.entries import deliveries, entry_bodies
from app.http.entries.publishing import AddOptions
from app.http.entries.stored_entries import ParsedEntries
from app.http.entries.values import FIELDS_SCHEMA
from app.http.models import GAP_REASON
from app.http.operations.binder import bind_query
from app.limits import EntryLimits
from app.live.consumer import CLAIM_MIN_IDLE_MS_MIN
from app.metrics import tracing
from app.settings import Settings
from engine.commands.types import DELAY_MS_MAX, Cursor, NackMode, Refs
from engine.name_rules import NAME_BYTES_MAX
from engine.replies import Delivered

SUBPROTOCOL: Final = "weir.v1"
VERSION: Final = 1
SUB_BYTES_MAX: Final = 64
CREDIT_MAX: Final = 1_000_000
_INTEGER_MAX: Final = (1 << 53) - 1

Sub = Annotated[str, Meta(min_length=1, max_length=SUB_BYTES_MAX, description="the subscription's name")]
Ref = (
    Annotated[str, Meta(max_length=128, description="chosen by the client; the answer repeats it")]
    | Annotated[int, Meta(ge=-_INTEGER_MAX, le=_INTEGER_MAX)]
)
# What uses a name or an ID checks it, and has the refusals of REST.
Name = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": NAME_BYTES_MAX})]
Id = Annotated[str, Meta(description="an entry's ID, `<ms>-<seq>`", extra_json_schema={"maxLength": 64})]
CursorText = Annotated[
    str,
    Meta(
        description="a cursor: an ID; of a subscription with `cursor`, `<id>.<generation>`",
        extra_json_schema={"maxLength": 64},
    ),
]
CursorForm = Annotated[
    str,
    Meta(
        description="`generation`: cursors are `<id>.<generation>`, which tells a stream from another one "
        "that has its name later",
        extra_json_schema={"enum": ["generation"]},
    ),
]
Count = Annotated[int, Meta(ge=1, le=CREDIT_MAX)]
Credit = Annotated[int, Meta(ge=0, le=CREDIT_MAX, description="entries that may be sent")]
ClaimIdle = Annotated[
    int,
    Meta(
        ge=CLAIM_MIN_IDLE_MS_MIN,
        le=_INTEGER_MAX,
        description="claim entries that others have had for this many ms; longer than processing takes",
    ),
]
Whole = Annotated[int, Meta(ge=0, le=_INTEGER_MAX)]
Durability = Annotated[
    str,
    Meta(
        description="`fsync`: answer only when the entries are on disk, with any setting of `fsync`",
        extra_json_schema={"enum": ["fsync"]},
    ),
]

Traceparent = Annotated[
    str,
    Meta(
        description="the trace that the frame belongs to, as HTTP's header of this name: with the setting "
        "`tracing` the entries keep it; one that is malformed is ignored",
    ),
]

_ANY: Final = {"type": "string"}
_ENTRIES_SCHEMA: Final = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["fields"],
        "properties": {
            "id": _ANY,
            "fields": FIELDS_SCHEMA,
            "encoding": {"const": "base64"},
            "deliver_at": {"type": "string", "format": "date-time"},
            "delay_ms": {"type": "integer", "minimum": 0},
            "schedule": _ANY,
        },
        "additionalProperties": False,
    },
}
_PUSHED_SCHEMA: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["id", "fields"],
        "properties": {
            "id": _ANY,
            "fields": {"type": ["object", "null"], "additionalProperties": _ANY},
            "encoding": {"const": "base64"},
            "pairs": {"type": "array", "items": {"type": "array", "items": _ANY}},
            "meta": {"type": "object", "additionalProperties": _ANY},
            "delivery_count": {"type": "integer", "minimum": 0},
            "idle_ms": {"type": ["integer", "null"], "minimum": 0},
        },
    },
}
_SCHEDULED_SCHEMA: Final = {
    "type": "array",
    "description": "entries for later, each with its place in `entries`",
    "items": {
        "type": "object",
        "required": ["index", "schedule", "deliver_at"],
        "properties": {
            "index": {"type": "integer", "minimum": 0},
            "schedule": _ANY,
            "deliver_at": {"type": "string", "format": "date-time"},
        },
    },
}
_COMMAND_SCHEMA: Final = {
    "type": "array",
    "minItems": 1,
    "items": {"type": ["string", "number", "boolean"]},
    "description": "a command's words",
}
Command = Annotated[Raw, Meta(extra_json_schema=_COMMAND_SCHEMA)]
Entries = Annotated[Raw, Meta(extra_json_schema=_ENTRIES_SCHEMA)]
Fields = Annotated[Raw, Meta(extra_json_schema=FIELDS_SCHEMA)]
Pushed = Annotated[Raw, Meta(extra_json_schema=_PUSHED_SCHEMA)]


class BaseFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", omit_defaults=True):
    """The base class of frames."""


class ClientFrame(BaseFrame, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base class of the client's frames."""

    ref: Ref | UnsetType = UNSET


class AuthFrame(ClientFrame, frozen=True, kw_only=True, tag="auth"):
    """Present a token, at the beginning or to refresh it."""

    token: str


class PublishFrame(ClientFrame, frozen=True, kw_only=True, tag="publish"):
    """Append entries, all or none (XADD): `entries`, or one entry's `fields`. With `deliver_at` or `delay_ms`
    later: all of them, or those of `entries` that have it. With `close` the stream ends behind them.
    """

    stream: Name
    entries: Entries | UnsetType = UNSET
    fields: Fields | UnsetType = UNSET
    id: str | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    nomkstream: bool | UnsetType = UNSET
    maxlen: Whole | UnsetType = UNSET
    minid: Id | UnsetType = UNSET
    approx: bool | UnsetType = UNSET
    limit: Whole | UnsetType = UNSET
    refs: str | UnsetType = UNSET
    close: bool | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    if_last_id: Id | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    delay_ms: Whole | UnsetType = UNSET
    schedule: Name | UnsetType = UNSET
    cancel_schedule: Name | UnsetType = UNSET
    required: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    traceparent: Traceparent | UnsetType = UNSET


class SubscribeFrame(ClientFrame, frozen=True, kw_only=True, tag="subscribe"):
    """Follow streams, each after an ID, `0`, `$` or a cursor that was given; with `last`, begin that many
    entries back.
    """

    sub: Sub
    streams: Annotated[dict[Name, CursorText], Meta(min_length=1)]
    cursor: CursorForm | UnsetType = UNSET
    last: Count | UnsetType = UNSET
    credit: Credit | UnsetType = UNSET
    batch_max: Count | UnsetType = UNSET


class ConsumeFrame(ClientFrame, frozen=True, kw_only=True, tag="consume"):
    """Read as a consumer of a group: first its own pending entries, then new ones.

    `create` creates the group if it is missing, to begin after this ID, `0` or `$` (true means `$`).
    """

    sub: Sub
    stream: Name
    group: Name
    consumer: Name
    credit: Credit | UnsetType = UNSET
    create: bool | Id | UnsetType = UNSET
    noack: bool | UnsetType = UNSET
    claim_min_idle_ms: ClaimIdle | UnsetType = UNSET
    batch_max: Count | UnsetType = UNSET


class AckFrame(ClientFrame, frozen=True, kw_only=True, tag="ack"):
    """Acknowledge entries, but for those that another consumer holds by now. `delete` also deletes them from
    the stream (XACKDEL), up to `hello.limits.lookups_max` in a frame.
    """

    sub: Sub
    ids: Annotated[list[Id], Meta(min_length=1)]
    delete: str | UnsetType = UNSET


class NackFrame(ClientFrame, frozen=True, kw_only=True, tag="nack"):
    """Return entries that the consumer holds to the group, at once or after `delay_ms`. `fail` keeps the
    delivery count, `silent` takes one off it, `fatal` sets it to the maximum.
    """

    sub: Sub
    ids: Annotated[list[Id], Meta(min_length=1)]
    mode: str | UnsetType = UNSET
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | UnsetType = UNSET


class CreditFrame(ClientFrame, frozen=True, kw_only=True, tag="credit"):
    """Allow `n` more entries."""

    sub: Sub
    n: Count


class UnsubscribeFrame(ClientFrame, frozen=True, kw_only=True, tag="unsubscribe"):
    """End a subscription. A consumer keeps its pending entries."""

    sub: Sub


class CommandFrame(ClientFrame, frozen=True, kw_only=True, tag="command"):
    """Run a Redis command; BLOCK does not block."""

    command: Command


class PingFrame(ClientFrame, frozen=True, kw_only=True, tag="ping"):
    """Ask for a `pong`."""


Sent = (
    AuthFrame
    | PublishFrame
    | SubscribeFrame
    | ConsumeFrame
    | AckFrame
    | NackFrame
    | CreditFrame
    | UnsubscribeFrame
    | CommandFrame
    | PingFrame
)
CLIENT_FRAMES: Final = get_args(Sent)


class ServerFrame(BaseFrame, frozen=True, kw_only=True):
    """The base class of the server's frames."""


class HelloLimits(msgspec.Struct, frozen=True):
    """Limits of one connection: `ids_max` IDs in an `ack`, `lookups_max` in a `nack` or an `ack` with
    `delete`.
    """

    frame_bytes_max: int
    entry_bytes_max: int
    batch_entries_max: int
    subscriptions_max: int
    streams_max: int
    ids_max: int
    lookups_max: int
    credit_max: int


class HelloFrame(ServerFrame, frozen=True, kw_only=True, tag="hello"):
    """The first frame. A `heartbeat` is sent every `heartbeat_ms`."""

    version: int
    limits: HelloLimits
    heartbeat_ms: int


class EntriesFrame(ServerFrame, frozen=True, kw_only=True, tag="entries"):
    """Entries of one stream, in order. After a reconnect, continue from `next`."""

    sub: Sub
    stream: Name
    entries: Pushed
    next: CursorText


class CaughtUpFrame(ServerFrame, frozen=True, kw_only=True, tag="caught_up"):
    """Existing entries were sent; new ones follow. In `consume`: pending entries were sent."""

    sub: Sub
    stream: Name
    next: CursorText


class GapFrame(ServerFrame, frozen=True, kw_only=True, tag="gap"):
    """Entries after `requested` are not there to be read; `lost` of them, null if unknown. It goes on after
    `next`, where the frame has one.
    """

    sub: Sub
    stream: Name
    requested: Id
    first_available: Id
    lost: int | None
    reason: Annotated[str, Meta(description=GAP_REASON)] | UnsetType = UNSET
    next: CursorText | UnsetType = UNSET


class PausedFrame(ServerFrame, frozen=True, kw_only=True, tag="paused"):
    """Further entries wait in their stream: no credit is left, the backend cannot be used, or the group was
    paused.
    """

    sub: Sub
    reason: Annotated[str, Meta(extra_json_schema={"enum": ["credit", "backend", "group"]})]


class ResumedFrame(ServerFrame, frozen=True, kw_only=True, tag="resumed"):
    """What waited follows, after `paused`: the backend can be used again, or the group was resumed."""

    sub: Sub


REASONS: Final = ("replaced", "group_destroyed", "stream_deleted", "forbidden", "entries_damaged")


class RevokedFrame(ServerFrame, frozen=True, kw_only=True, tag="revoked"):
    """The subscription has ended for `reason`; the connection stays open."""

    sub: Sub
    reason: Annotated[str, Meta(extra_json_schema={"enum": list(REASONS)})]


class ClosedFrame(ServerFrame, frozen=True, kw_only=True, tag="closed"):
    """The stream is closed, and all of it was sent. A subscription ends with the last of its streams; a
    consumer stays until its group is drained.
    """

    sub: str
    stream: Name
    last_id: Id
    closed_at: str
    reason: str


class DrainedFrame(ServerFrame, frozen=True, kw_only=True, tag="drained"):
    """The stream is closed, and nothing of it is pending in the group: the subscription has ended."""

    sub: str
    stream: Name


class GoAwayFrame(ServerFrame, frozen=True, kw_only=True, tag="goaway"):
    """The gateway stops. Acknowledge processed entries; it closes after `after_ms`. Then reconnect."""

    after_ms: int


class ExpiringFrame(ServerFrame, frozen=True, kw_only=True, tag="expiring"):
    """The token ends after `after_ms`: send `auth` with another one, or the connection closes with 4002."""

    after_ms: int


class HeartbeatFrame(ServerFrame, frozen=True, kw_only=True, tag="heartbeat"):
    """Sent at intervals, to show that the connection is alive."""


class PongFrame(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """The answer to `ping`."""

    ref: Ref | UnsetType = UNSET


class OkFrame(ServerFrame, frozen=True, kw_only=True, tag="ok"):
    """The answer to a successful frame, with its results."""

    ref: Ref | UnsetType = UNSET
    ids: list[Id] | UnsetType = UNSET
    first_id: Id | UnsetType = UNSET
    last_id: Id | UnsetType = UNSET
    count: int | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    trimmed: int | UnsetType = UNSET
    pending_affected: int | UnsetType = UNSET
    scheduled: Annotated[Raw, Meta(extra_json_schema=_SCHEDULED_SCHEMA)] | UnsetType = UNSET
    cancelled: bool | UnsetType = UNSET
    next: dict[Name, Id] | UnsetType = UNSET
    acknowledged: int | UnsetType = UNSET
    released: int | UnsetType = UNSET
    not_held: (
        Annotated[
            list[Id],
            Meta(description="pending, and left: others hold them, or with `nack` no consumer does"),
        ]
        | UnsetType
    ) = UNSET
    expires_at: str | UnsetType | None = UNSET
    result: Annotated[Raw, Meta(extra_json_schema={"description": "of a command"})] | UnsetType = UNSET


class ErrorFrame(ServerFrame, frozen=True, kw_only=True, tag="error"):
    """The answer to a refused frame; `problem` is the same as in HTTP (RFC 9457)."""

    problem: Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/Problem"})]
    ref: Ref | UnsetType = UNSET


SERVER_FRAMES: Final = (
    HelloFrame,
    EntriesFrame,
    CaughtUpFrame,
    GapFrame,
    PausedFrame,
    ResumedFrame,
    RevokedFrame,
    ClosedFrame,
    DrainedFrame,
    GoAwayFrame,
    ExpiringFrame,
    HeartbeatFrame,
    PongFrame,
    OkFrame,
    ErrorFrame,
)


# ---- options of a frame


_encode: Final = msgspec.json.Encoder().encode


def parse_publish(frame: PublishFrame, limits: EntryLimits) -> tuple[AddOptions, ParsedEntries, int | None]:
    """The options of a publish, its entries in their stored form, and the last ID that it expects."""
    entries, fields = _text(frame.entries), _text(frame.fields)
    if entries is not None and not entries.startswith(b"["):
        raise invalid("/entries", "it is a list of entries")
    if fields is not None and not fields.startswith((b"{", b"[")):
        raise invalid("/fields", "fields are an object, or a list of [name, value] pairs")
    beside = [name for name in ("id", "encoding") if getattr(frame, name) is not UNSET]
    if entries is not None and fields is None:
        if beside:
            raise invalid(f"/{beside[0]}", "give it in each of `entries`")
        body = b'{"entries":%b}' % entries
    elif fields is not None and entries is None:
        more = b"".join(b',"%b":%b' % (name.encode(), _encode(getattr(frame, name))) for name in beside)
        body = b'{"fields":%b%b}' % (fields, more)
    else:
        raise invalid("/entries", "give either `entries` or `fields`, not both")
    key = frame.idempotency_key
    # The frame, its member and this are copies of the entries, which are read and stored.
    strict_json.expect_room(body, copies=4, strings=1)
    found = entry_bodies.read(body, _JSON, limits, digest=key is not UNSET)
    return _options(frame), found, _expected(frame)


def _text(given: Raw | UnsetType) -> bytes | None:
    """Null is not given, as in other members."""
    return None if given is UNSET or (text := bytes(given)) == b"null" else text


_JSON: Final = media.MediaType(media.JSON, media.JSON)
_OPTIONS: Final = (
    *("nomkstream", "maxlen", "minid", "approx", "limit", "refs", "close"),
    *("deliver_at", "delay_ms", "schedule", "cancel_schedule", "required"),
)
_PLAIN: Final = AddOptions()
# None of these bounds is a setting.
_SETTINGS: Final = Settings.model_construct()


def _options(frame: PublishFrame) -> AddOptions:
    given = {name: value for name in _OPTIONS if (value := getattr(frame, name)) is not UNSET}
    if not given:
        return _PLAIN
    text = {
        name: value if isinstance(value, str) else _encode(value).decode() for name, value in given.items()
    }
    return bind_query(AddOptions, text, _SETTINGS)


def _expected(frame: PublishFrame) -> int | None:
    return None if frame.if_last_id is UNSET else query.entry_id(frame.if_last_id, "/if_last_id")


def idempotency_key(frame: PublishFrame) -> str | None:
    """The key of a publish, checked as the header is."""
    key = frame.idempotency_key
    if key is UNSET:
        return None
    try:
        return media.idempotency_key(key.encode("latin-1"))
    except UnicodeEncodeError:
        raise invalid("/idempotency_key", "it is printable ASCII") from None


def traceparent(frame: PublishFrame) -> bytes | None:
    """The trace of a publish, if it can be followed."""
    return None if frame.traceparent is UNSET else tracing.valid(frame.traceparent.encode())


def wants_sync(frame: PublishFrame) -> bool:
    """Whether a publish is answered only once it is on disk."""
    if frame.durability is not UNSET and frame.durability != "fsync":
        raise invalid("/durability", "it is `fsync`: there is no other node to wait for")
    return frame.durability is not UNSET


def name(text: str, what: str) -> str:
    """A name within a frame. Raises `invalid_name`."""
    return names.check_text(text, what)


def entry_ids(frame: AckFrame | NackFrame, ids_max: int) -> list[int]:
    """The IDs of a frame, each once."""
    if len(frame.ids) > ids_max:
        raise invalid("/ids", f"one frame names at most {ids_max} IDs: send several frames")
    found = query.entry_ids(frame.ids) or [query.entry_id(text, "/ids") for text in frame.ids]
    return list(dict.fromkeys(found))


def place(text: str, pointer: str) -> int | Cursor:
    """`$` or an ID."""
    return Cursor.LATEST if text == "$" else query.entry_id(text, pointer)


def cursor(text: str) -> Place:
    """Where a stream is followed from: `$`, or a cursor of either form."""
    found = Place(Cursor.LATEST) if text == "$" else cursors.parse(text)
    if found is None:
        raise query.malformed_id("/streams", cursors.HINT)
    return found


def shows_generations(frame: SubscribeFrame, places: Iterable[Place]) -> bool:
    """Whether cursors are wanted with generations."""
    if frame.cursor is not UNSET:
        _word(frame.cursor, "/cursor", ["generation"])
    return frame.cursor is not UNSET or cursors.asks(None, places)


def refs(frame: AckFrame) -> Refs | None:
    """How acknowledged entries are deleted; None if they are not."""
    return (
        None if frame.delete is UNSET else Refs(_word(frame.delete, "/delete", [one.value for one in Refs]))
    )


def nack_mode(frame: NackFrame) -> NackMode:
    """How the delivery counts change."""
    modes = [one.value for one in NackMode]
    return NackMode.FAIL if frame.mode is UNSET else NackMode(_word(frame.mode, "/mode", modes))


def _word(value: str, pointer: str, words: Sequence[str]) -> str:
    if value not in words:
        raise invalid(pointer, f"it is one of {', '.join(words)}")
    return value


# ---- writing


def encode(frame: ServerFrame) -> bytes:
    """The bytes of a frame, ready for the socket."""
    return on_wire(_encode(frame))


def on_wire(payload: bytes) -> bytes:
    """A text message as one unmasked frame of RFC 6455."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 1 << 16:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


def entries(sub: str, stream: str, texts: bytes, following: str) -> bytes:
    """The `entries` frame for stored texts, joined by `,`; `following` is its `next`."""
    return on_wire(
        b'{"op":"entries","sub":%b,"stream":%b,"entries":[%b],"next":"%b"}'
        % (_encode(sub), _encode(stream), texts, following.encode())
    )


def encode_delivery(one: Delivered) -> bytes:
    """An entry for a consumer: its stored text, with the delivery count if it was delivered before."""
    if one.text is not None and one.delivery_count == 1:
        return one.text
    return deliveries.delivered(one)


def ok(ref: str | int | UnsetType, members: Mapping[str, Any] | None = None) -> bytes:
    """An `ok` frame."""
    head: dict[str, Any] = {"op": "ok"}
    if ref is not UNSET:
        head["ref"] = ref
    return on_wire(_encode({**head, **(members or {})}))


def ok_with(ref: str | int | UnsetType, rest: bytes) -> bytes:
    """An `ok` frame with encoded members, `{…}`."""
    known = b"" if ref is UNSET else b'"ref":%b,' % _encode(ref)
    return on_wire(b'{"op":"ok",%b%b' % (known, rest[1:]))


def error(ref: str | int | UnsetType, refusal: RefusalError, request_id: str) -> bytes:
    """An `error` frame."""
    known = b"" if ref is UNSET else b',"ref":%b' % _encode(ref)
    refusal.places = [errors.as_frame_location(place) for place in refusal.places]
    return on_wire(b'{"op":"error"%b,"problem":%b}' % (known, errors.problem(refusal, request_id)))
