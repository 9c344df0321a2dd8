"""One call of the API: how it becomes a request, what its answer means, whether to send it again.

Knows: HTTP, problem documents, when repeating is safe. Must never know: what a call is for; how it is sent
(`_sending.py` and `_async_sending.py` do that).
"""

import ipaddress
import json
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Generic, TypedDict, TypeVar
from urllib.parse import quote

import httpx

from weir import _tracing
from weir._retrying import BROKEN
from weir.entries import to_json
from weir.errors import (
    ApiError,
    InvalidValueError,
    NoAnswerError,
    NotAGatewayError,
    of_problem,
)

T = TypeVar("T")
Token = str | Callable[[], str | None] | None
# What a gateway's certificate has to be signed by: a file of authorities (PEM), or a context, which may hold
# a certificate of the client's own; None: the authorities that httpx trusts.
Verify = str | Path | ssl.SSLContext | None

CONNECT_S_MAX: Final = 5.0
# What httpx says with asyncio, of one address as well.
_ALL_FAILED: Final = "All connection attempts failed"


class CallOptions(TypedDict, total=False):
    """What `call` and `send` may be given beside a method and a path.

    `query` has values as Python has them; None leaves a parameter out. A `body` of bytes is sent as it is,
    and wants a content-type in `headers`; any other is sent as JSON. `wait_ms` is how long the gateway may
    keep the answer, beyond the client's `timeout_s`. `repeatable`: doing it twice is the same as doing it
    once (unless said, only GET is); with `repeat_faults` it is repeated after a fault inside the gateway
    (500) as well.
    """

    query: Mapping[str, object]
    body: object
    headers: Mapping[str, str]
    wait_ms: int
    repeatable: bool
    repeat_faults: bool


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One operation: fields are as in `CallOptions`. `parse` reads the answer's JSON (None for 204)."""

    method: str
    path: str
    parse: Callable[[Any], T]
    query: Mapping[str, object] = field(default_factory=dict)
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_ms: int = 0
    repeatable: bool = True
    repeat_faults: bool = False

    @classmethod
    def of(cls, method: str, path: str, options: CallOptions) -> "Call[Any]":
        """Any operation; its answer is not looked into. Raises InvalidValueError."""
        if not path.startswith("/"):
            raise InvalidValueError("a path begins with /, like /v1/streams")
        if "repeatable" not in options:
            options = {**options, "repeatable": method == "GET"}
        return Call(method, path, as_is, **options)

    @property
    def options(self) -> CallOptions:
        """All but what is called, and what its answer means."""
        return {
            "query": self.query,
            "body": self.body,
            "headers": self.headers,
            "wait_ms": self.wait_ms,
            "repeatable": self.repeatable,
            "repeat_faults": self.repeat_faults,
        }


def as_is(answer: Any) -> Any:  # noqa: ANN401 - JSON
    """The answer's JSON."""
    return answer


@dataclass(frozen=True)
class ConnectionOptions:
    """Where the gateway is, and how patient its client is. Times in seconds; `retry_s` None: for ever."""

    url: httpx.URL
    token: Token
    timeout_s: float
    retry_s: float | None
    tls: ssl.SSLContext | None = None

    @property
    def options(self) -> dict[str, Any]:
        """For httpx's clients."""
        tls = self.tls
        if tls is None and self.url.scheme == "http":
            # httpx loads all authorities otherwise, which takes longer than many calls; this trusts none.
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        verify = {} if tls is None else {"verify": tls}
        if not _is_loopback(self.url.host):
            return {"trust_env": True, **verify}
        # On one machine compression costs more than it saves, and no proxy of the environment is wanted.
        return {"trust_env": False, "headers": {"accept-encoding": "identity"}, **verify}

    @cached_property
    def websocket_tls(self) -> ssl.SSLContext | None:
        """For WebSockets, which trust what httpx trusts."""
        if self.url.scheme == "http":
            return None
        return self.tls or httpx.create_ssl_context(trust_env=self.options["trust_env"])

    def endpoint(self, path: str, query: Mapping[str, object]) -> httpx.URL:
        """The URL of a path. Raises InvalidValueError."""
        pairs = [
            f"{name}={_quote(one)}"
            for name, value in query.items()
            if value is not None
            for one in (value if isinstance(value, list | tuple) else [value])
        ]
        raw = "&".join(pairs).encode() or None
        return self.url.copy_with(path=self.url.path.rstrip("/") + path, query=raw)

    def headers(self) -> dict[str, str]:
        """Those of every request; the token is looked up each time. Raises InvalidValueError."""
        headers = {"accept": "application/json, application/problem+json"}
        token = self.token() if callable(self.token) else self.token
        if token is not None:
            headers["authorization"] = _check_header("authorization", f"Bearer {token}")
        return headers

    def request(self, client: httpx.Client | httpx.AsyncClient, call: Call[T]) -> httpx.Request:
        """The request of a call. Raises InvalidValueError."""
        own = {name: _check_header(name, value) for name, value in call.headers.items()}
        headers, content = {**self.headers(), **_tracing.headers(), **own}, None
        if isinstance(call.body, bytes):
            content = call.body
        elif call.body is not None:
            content = to_json(call.body)
            headers.setdefault("content-type", "application/json")
        timeout = httpx.Timeout(self.timeout_s + call.wait_ms / 1000, connect=CONNECT_S_MAX)
        url = self.endpoint(call.path, call.query)
        return client.build_request(call.method, url, content=content, headers=headers, timeout=timeout)


def parse_url(url: str) -> httpx.URL:
    """A gateway's base URL. Raises InvalidValueError, without showing the URL: it may hold a secret."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidValueError(f"not a URL like http://127.0.0.1:8080: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidValueError("a gateway's URL is like http://127.0.0.1:8080")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise InvalidValueError("a gateway's URL has no user, query or fragment: pass the token as `token`")
    if parsed.path.rstrip("/").endswith("/v1"):
        raise InvalidValueError("a gateway's URL ends before /v1")
    return parsed


def tls_context(verify: Verify) -> ssl.SSLContext | None:
    """What a client verifies a gateway's certificate with. Raises OSError for a file that cannot be used."""
    if verify is None or isinstance(verify, ssl.SSLContext):
        return verify
    return ssl.create_default_context(cafile=str(verify))


def unanswered(error: httpx.RequestError, url: httpx.URL, *, repeatable: bool) -> NoAnswerError:
    """What a failed exchange means: a request that was never sent has no unknown outcome."""
    never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    reason = str(error)
    if reason == _ALL_FAILED:
        reason = _first_cause(error)
    # "[Errno 111] Connection refused" → "connection refused"
    reason = reason.rpartition("] ")[2].lower().rstrip(".") or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        reason = "no answer in time"
    return NoAnswerError(
        f"the gateway at {url} does not answer: {reason}", outcome_unknown=not (never_sent or repeatable)
    )


def _first_cause(error: BaseException) -> str:
    """Why the last of several addresses could not be reached."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return str(error)


def parse_response(response: httpx.Response, parse: Callable[[Any], T]) -> T:
    """What a successful answer holds. Raises NotAGatewayError."""
    try:
        return parse(None if response.status_code == 204 else json.loads(response.content))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        where = response.url.copy_with(query=None)
        raise NotAGatewayError(f"{where} did not answer with the JSON of a gateway") from error


def check_events(response: httpx.Response) -> None:
    """Raises NotAGatewayError for a successful answer that has no events."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        raise NotAGatewayError(f"{response.url.copy_with(query=None)} did not answer with events")


def refusal(response: httpx.Response, *, repeatable: bool) -> ApiError | NoAnswerError:
    """The error in an answer; proxies in between may answer with anything."""
    try:
        problem = json.loads(response.content)
    except ValueError:
        problem = None
    error = of_problem(
        problem if isinstance(problem, dict) else {}, response.status_code, response.reason_phrase
    )
    if error.status in BROKEN and not error.code and not repeatable:
        return NoAnswerError(str(error), outcome_unknown=True)
    after = response.headers.get("retry-after", "")
    error.retry_after_s = float(after) if after.isascii() and after.isdigit() else None
    return error


def _quote(value: object) -> str:
    """A value of a query. Encoded here: httpx leaves `+` and `(` as they are, and IDs may begin with them."""
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise InvalidValueError.of_text(error) from None


def _check_header(name: str, value: str) -> str:
    """The value. What is refused is not shown: it may be a token."""
    if not (value and value.isascii() and value.isprintable()):
        raise InvalidValueError(f"{name} cannot be sent: it is empty, or not printable ASCII")
    return value


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
