"""What can go wrong between a program and a gateway, as exceptions.

Knows: the gateway's problem documents (RFC 9457) and their codes. Must never know: how a request is sent.

    WeirError
    ├─ NoAnswerError           no answer arrived; a change may have happened all the same
    ├─ NotAGatewayError        what answered is no gateway
    ├─ InvalidValueError       an argument cannot be sent (also a ValueError); nothing was sent
    │  └─ InvalidNameError     a stream, group or consumer cannot have this name
    ├─ ClientClosedError       the client or the worker was closed before this call (also a RuntimeError)
    ├─ GapError                entries were removed before they were read
    ├─ ConsumerReplacedError   another connection consumes under the same name
    ├─ ConnectionClosedError   the gateway closed a WebSocket for good
    └─ ApiError                the gateway refused; `code` says why, subclasses group the codes
       └─ NotFoundError        no such stream, group, consumer or entry
          └─ StreamDeletedError, GroupDeletedError: what a worker consumed is gone
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Self


class WeirError(Exception):
    """Base of all exceptions of this package."""


class NoAnswerError(WeirError):
    """No answer arrived, even after the retries that were allowed.

    With `outcome_unknown` the request may have been carried out all the same: it reached the gateway, or may
    have, and it was not safe to send it again.
    """

    def __init__(self, message: str, *, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class NotAGatewayError(WeirError):
    """Something answered, but not as a gateway does."""


class InvalidValueError(WeirError, ValueError):
    """An argument that cannot be sent: text without UTF-8, a key that is not ASCII, an empty entry."""

    @classmethod
    def of_text(cls, error: UnicodeEncodeError) -> Self:
        """For text that holds half of a surrogate pair."""
        return cls(f"text with {error.object[error.start]!a} cannot be sent: it has no UTF-8")


class InvalidNameError(InvalidValueError):
    """A name that is another path, or none: '', '.' or '..', also between slashes, or not valid UTF-8."""


class ClientClosedError(WeirError, RuntimeError):
    """A call of a client, or a start of a worker, after `close`; nothing was sent."""

    def __init__(self, what: str = "client") -> None:
        super().__init__(f"this {what} is closed: make another one, or close this one later")


class GapError(WeirError):
    """Entries after the cursor were removed before they were read, or their stream is another one by now.

    `requested` is the cursor, `first_available` the oldest entry that is kept (None if there is none),
    `lost` the number of entries in between where it is known, `reason` that of `Gap`.
    """

    def __init__(
        self,
        stream: str,
        requested: str,
        first_available: str | None,
        lost: int | None,
        reason: str | None = None,
    ) -> None:
        super().__init__(describe_gap(stream, requested, lost, reason))
        self.stream = stream
        self.requested = requested
        self.first_available = first_available
        self.lost = lost
        self.reason = reason


class ConsumerReplacedError(WeirError):
    """Another connection consumes under the same name, and the gateway has ended this one."""

    def __init__(self) -> None:
        super().__init__("another connection consumes under the same name")


class ConnectionClosedError(WeirError):
    """The gateway closed the WebSocket with a code that means: do not come again."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the gateway closed the connection with {code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class ApiError(WeirError):
    """The gateway refused. `code` is one of the documented codes, `problem` the whole problem document."""

    def __init__(self, status: int, code: str, detail: str, problem: Mapping[str, Any]) -> None:
        super().__init__(f"{detail} ({code})" if code else detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.problem = problem
        # Seconds after which the gateway asks to try again, where it says so.
        self.retry_after_s: float | None = None

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return bool(self.problem.get("retryable"))

    @property
    def outcome_unknown(self) -> bool:
        """Whether the gateway says that the change may have been made, or may not."""
        return self.problem.get("outcome") == "unknown"

    @property
    def request_id(self) -> str | None:
        """The gateway's name for the request; its log has it too."""
        value = self.problem.get("request_id")
        return value if isinstance(value, str) else None


class InvalidRequestError(ApiError):
    """The request is malformed or has values that are not allowed (400, 413, 415, 422)."""


class AuthenticationError(ApiError):
    """The token is missing or wrong (401)."""


class ForbiddenError(ApiError):
    """The token does not allow this (403)."""


class NotFoundError(ApiError):
    """There is no such stream, group, consumer or entry (404); `code` says which."""


class StreamDeletedError(NotFoundError):
    """The stream that a worker consumed was deleted, and its groups with it."""

    def __init__(self, stream: str) -> None:
        super().__init__(404, "no_stream", f"the stream {stream!r} was deleted", {})


class GroupDeletedError(NotFoundError):
    """The group that a worker consumed with was deleted; its stream is still there."""

    def __init__(self, stream: str, group: str) -> None:
        super().__init__(404, "no_group", f"the group {group!r} of the stream {stream!r} was deleted", {})


class ConflictError(ApiError):
    """The state of the stream or group does not allow this (409, 412); `code` says why."""


class StaleProducerError(ConflictError):
    """A newer producer of the same name has taken over (`stale_epoch`)."""


class RateLimitedError(ApiError):
    """Too many requests, waiting reads or connections (429)."""


class UnavailableError(ApiError):
    """The gateway is starting, stopping, or cannot write its log (503)."""


class FullError(ApiError):
    """The disk or the memory limit is reached (507): reads, acknowledgements and deletions still work."""


class InternalError(ApiError):
    """Something went wrong in the gateway (500), or in its backend (502, `backend_error`)."""


_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: RateLimitedError,
    500: InternalError,
    503: UnavailableError,
    507: FullError,
}
_BY_CODE: Final[Mapping[str, type[ApiError]]] = {
    "stale_epoch": StaleProducerError,
    "backend_error": InternalError,
}


_POINTER: Final = re.compile(r"(?<![\w/}])/([a-z_]+)(?:/[0-9]+)?(?=: )")


def in_words_of_commands(error: WeirError) -> str:
    """The sentence of a refusal as a command line says it: its own options, and no paths of the API."""
    if not isinstance(error, ApiError):
        return str(error)
    by_door = error.problem.get("by_door")
    found = by_door.get("cli") if isinstance(by_door, Mapping) else None
    detail = found if isinstance(found, str) else _POINTER.sub(r"\1", error.detail)
    return str(error).replace(error.detail, detail)


# What happened to a stream, by the reason of a gap.
_FATES: Final[Mapping[str, str]] = {
    "deleted": "was deleted",
    "expired": "has expired",
    "replaced": "was replaced by another one",
    "recreated": "was deleted and made again",
    "restored": "was restored from an older state",
}


def describe_gap(stream: str, requested: str, lost: int | None, reason: str | None) -> str:
    """A gap in one sentence; `reason` may be one that is not known here."""
    if reason is not None and reason in _FATES:
        return f"the stream {stream!r} {_FATES[reason]} after {requested} was read"
    if reason == "ahead":
        return f"the stream {stream!r} ends before {requested}, so entries were lost or it is another one"
    count = "an unknown number of" if lost is None else f"{lost}"
    removed = "removed before they were read"
    ends = {"failover": "lost in a fail-over", "trimmed": removed, None: removed}
    end = ends.get(reason, f"lost ({reason})")
    return f"{count} entries of {stream!r} after {requested} were {end}"


def of_problem(problem: Mapping[str, Any], status: int, reason: str = "") -> ApiError:
    """The exception for a problem document, or for what a proxy says instead of one.

    `reason` is HTTP's reason phrase.
    """
    # Of a Redis command only Redis's own sentence is there.
    code, detail = problem.get("code"), problem.get("detail", problem.get("error"))
    code = code if isinstance(code, str) else ""
    detail = detail if isinstance(detail, str) else f"the gateway answered {status} {reason}".rstrip()
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, ApiError)
    return kind(status, code, detail, problem)
