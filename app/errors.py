"""The one registry of refusals: code → status, title, whether trying again helps, WebSocket close.

Knows: every code of the public contract and how a refusal becomes a problem (RFC 9457).
Must never know: routes, and what a refusal was about.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from engine import EngineError
from engine.errors import by_door

Member = str | int | bool | Mapping[str, str] | None

_PARAMETER: Final = re.compile("[a-z_]+")
_STEP_CHARS_MAX: Final = 128


class Code(NamedTuple):
    """`close` is the WebSocket close code of a connection that cannot go on, None where one frame is refused.

    `retry_after_s` goes into Retry-After; a code with it is retryable.
    """

    status: int
    title: str
    retry_after_s: int | None = None
    close: int | None = None


CODES: Final[dict[str, Code]] = {
    "malformed_request": Code(400, "The request is not valid HTTP (RFC 9112)"),
    "headers_too_large": Code(431, "The request's line and headers are larger than the limit"),
    "request_timeout": Code(408, "The request did not arrive in time"),
    "malformed_json": Code(400, "The body is not valid JSON (RFC 8259)", close=4501),
    "malformed_encoding": Code(400, "A text has a wrong encoding"),
    "malformed_id": Code(400, "An ID is malformed"),
    "invalid_name": Code(400, "A name is malformed"),
    "unknown_parameter": Code(400, "The query is malformed or has an unknown parameter"),
    "unauthenticated": Code(401, "Credentials are missing or wrong", close=4500),
    "forbidden": Code(403, "The credentials do not allow this", close=4502),
    "origin_refused": Code(403, "Requests from this origin are refused"),
    "no_stream": Code(404, "There is no such stream"),
    "no_group": Code(404, "There is no such group"),
    "no_consumer": Code(404, "There is no such consumer"),
    "no_entry": Code(404, "There is no such entry"),
    "no_schedule": Code(404, "There is no such schedule"),
    "no_token": Code(404, "There is no such token"),
    "no_route": Code(404, "There is nothing at this path"),
    "method_not_allowed": Code(405, "This path has no such method"),
    "not_acceptable": Code(406, "None of the accepted media types is available"),
    "id_not_increasing": Code(409, "ID is not greater than the last one"),
    "stream_exhausted": Code(409, "The stream has used up its IDs"),
    "stream_closed": Code(409, "The stream is closed"),
    "last_id_too_small": Code(409, "The last ID would contradict the entries"),
    "group_exists": Code(409, "The group exists"),
    "group_has_pending": Code(409, "The group has pending entries"),
    "consumer_has_pending": Code(409, "The consumer has pending entries"),
    "has_schedules": Code(409, "The stream has schedules"),
    "trim_guarded": Code(409, "The trim would remove what a group has not finished"),
    "busy": Code(409, "An operation of this kind is running already"),
    "stream_exists": Code(409, "The stream exists and was created otherwise"),
    "media_type_differs": Code(409, "The stream has another media type"),
    "sequence_too_small": Code(409, "The sequence is not above the last one"),
    "producer_gap": Code(409, "A batch of the producer is missing"),
    "producer_fenced": Code(403, "A newer run of the producer has taken over"),
    "malformed_header": Code(400, "A header or parameter is malformed"),
    "not_durable": Code(405, "The stream is not written by Durable Streams"),
    "stale_epoch": Code(409, "A newer producer has taken over"),
    "stream_gone": Code(410, "The stream was removed, and has forks"),
    "gap": Code(410, "Entries after the cursor were removed before they were read"),
    "last_id_mismatch": Code(412, "The last ID is not the expected one"),
    "precondition_failed": Code(412, "The stream is not the one that If-Match names"),
    "schedule_gone": Code(412, "The schedule is gone"),
    "schedule_exists": Code(412, "There is such a schedule"),
    "body_too_large": Code(413, "The body is larger than the limit"),
    "entry_too_large": Code(413, "An entry is larger than the limit"),
    "too_many_entries": Code(413, "The batch has more entries than the limit"),
    "unsupported_media_type": Code(415, "The body's media type, charset or coding is not supported"),
    "invalid": Code(422, "A value has a wrong type, range or combination"),
    "idempotency_mismatch": Code(422, "The key, or the number of the chunk, was used with another body"),
    "upgrade_required": Code(426, "This path is a WebSocket, and the request was no handshake"),
    "too_many_sockets": Code(429, "Too many sockets are open", retry_after_s=30, close=4503),
    "rate_limited": Code(429, "Too many requests", retry_after_s=1, close=4005),
    "too_many_waiters": Code(429, "Too many reads are waiting", retry_after_s=1),
    "keys_unavailable": Code(503, "Keys to verify tokens are not available", retry_after_s=5, close=4000),
    "internal": Code(500, "Something went wrong in the gateway", close=4000),
    "not_configured": Code(409, "A setting of the gateway is needed for this"),
    "starting": Code(503, "The gateway is starting", retry_after_s=1, close=4000),
    "restarting": Code(503, "The engine is being restarted after a fault", retry_after_s=1, close=4000),
    "draining": Code(503, "The gateway is shutting down", retry_after_s=1, close=4001),
    "overloaded": Code(503, "The gateway has no room for this now", retry_after_s=1),
    "storage_failed": Code(503, "The log cannot be written", retry_after_s=30),
    "entries_damaged": Code(500, "A part of the stream cannot be read from the disk"),
    "storage_full": Code(507, "The disk is full", retry_after_s=30),
    "memory_full": Code(507, "The memory limit is reached", retry_after_s=30),
    "history_busy": Code(429, "Too many pages of history are being read", retry_after_s=1),
    "history_unavailable": Code(503, "The history of the stream cannot be read now", retry_after_s=5),
    "backend_unavailable": Code(503, "The backend cannot be used now", retry_after_s=1),
    "backend_error": Code(502, "The backend gave an unexpected answer"),
    "backend_forbidden": Code(403, "The backend does not let the gateway do this"),
    "not_replicated": Code(503, "The write is not known to be as safe as promised", retry_after_s=1),
    "not_supported_by_backend": Code(501, "The backend does not support this"),
    "cross_slot": Code(422, "The streams are in different slots of the backend"),
    "quota_exceeded": Code(507, "A quota of the caller's grants is used up", retry_after_s=30),
}
# With which entries may be refused that are appended.
APPENDING: Final = (
    *("malformed_id", "no_stream", "id_not_increasing", "stream_exhausted", "stream_closed"),
    *("last_id_mismatch", "entry_too_large", "too_many_entries", "idempotency_mismatch"),
)


class ErrorLocation(NamedTuple):
    """Where something is wrong, and what: `name` is a JSON pointer into the body, a parameter or a header."""

    kind: Literal["pointer", "parameter", "header"]
    name: str
    detail: str


class RefusalError(Exception):
    """A request that is not served. `code` is one of `CODES`, `detail` a sentence for people.

    `places` say where it is wrong; `members` are further facts for programs, `headers` are header fields of
    the response.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        places: Sequence[ErrorLocation] = (),
        members: Mapping[str, Member] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code, detail)
        assert code in CODES, "a refusal without a status could not be answered"
        self.code = code
        self.detail = detail
        self.places = places
        self.members: dict[str, Member] = dict(members or {})
        self.headers: dict[str, str] = dict(headers or {})

    @property
    def kind(self) -> Code:
        """The registry's line."""
        return CODES[self.code]

    @property
    def retryable(self) -> bool:
        """Whether the same request may work later."""
        return self.kind.retry_after_s is not None


def to_refusal(error: EngineError, *, of_command: bool = False) -> RefusalError:
    """The engine's refusal as one of the HTTP API, which carries Redis's sentence too. `of_command`: to a
    command of Redis, in whose words its sentence is.
    """
    members: dict[str, Member] = {"redis_error": error.redis, **error.members}
    if words := by_door(error):
        members["by_door"] = words
    detail = words.get("redis", error.detail) if of_command else error.detail
    return RefusalError(error.code, detail, members=members)


def draining() -> RefusalError:
    """503: the gateway is stopping."""
    return RefusalError("draining", "the gateway is shutting down: try again in a moment, here or elsewhere")


def invalid(name: str, detail: str) -> RefusalError:
    """422: what stands at `name` (a JSON pointer, or a parameter's or header's name) is wrong."""
    return RefusalError("invalid", f"{name or 'the body'}: {detail}", places=[locate(name, detail)])


def locate(name: str, detail: str) -> ErrorLocation:
    """The place of this name: pointers begin with a slash or are empty, for all of the body; parameters are
    lower-case words, headers are neither.
    """
    if not name or name.startswith("/"):
        return ErrorLocation("pointer", name, detail)
    return ErrorLocation("parameter" if _PARAMETER.fullmatch(name) else "header", name, detail)


def as_frame_location(place: ErrorLocation) -> ErrorLocation:
    """The same place where there are neither parameters nor headers: a member of the frame."""
    if place.kind == "pointer":
        return place
    return ErrorLocation("pointer", "/" + place.name.lower().replace("-", "_"), place.detail)


def step(name: str) -> str:
    """A name as one step of a JSON pointer (RFC 6901), cut where a program would not read on."""
    # In this order: the other way round, the tilde of `~1` would be escaped again.
    return name[:_STEP_CHARS_MAX].replace("~", "~0").replace("/", "~1")


def slug(code: str) -> str:
    """A code as its page's name."""
    return code.replace("_", "-")


def problem(refusal: RefusalError, request_id: str) -> bytes:
    """The body of `application/problem+json`."""
    kind = refusal.kind
    members: dict[str, object] = {
        "type": f"/errors/{slug(refusal.code)}",
        "title": kind.title,
        "status": kind.status,
        "code": refusal.code,
        "detail": refusal.detail,
        "retryable": refusal.retryable,
        "request_id": request_id,
        **refusal.members,
    }
    if refusal.places:
        members["errors"] = [{kind: name, "detail": detail} for kind, name, detail in refusal.places]
    return msgspec.json.encode(members)


def problem_headers(refusal: RefusalError) -> list[tuple[bytes, bytes]]:
    """What goes beside the body: when to come back, how to authenticate, whether the connection can go on."""
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    if refusal.kind.retry_after_s is not None and "retry-after" not in refusal.headers:
        headers.append((b"retry-after", b"%d" % refusal.kind.retry_after_s))
    if refusal.code in ("body_too_large", "draining"):
        # The rest of the body is never read; a draining gateway takes no further request here.
        headers.append((b"connection", b"close"))
    return headers
