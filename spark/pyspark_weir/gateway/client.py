"""A connection to a gateway: one request, one answer, tried again while that is safe and helps.

Knows: HTTP, problem documents, when trying again is safe, how long a server asks to be left alone.
Must never know: what a call is about, what its answer holds, Spark.
"""

import ipaddress
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import orjson
import stamina
from stamina.instrumentation import LoggingOnRetryHook, set_on_retry_hooks

from pyspark_weir.clock import monotonic_s
from pyspark_weir.errors import OptionError, PipelineError, Refused, Unavailable
from pyspark_weir.gateway.access import Access, checked_url

# Told on standard error: by its own choice stamina prints, and what a job prints may be read by a program.
set_on_retry_hooks((LoggingOnRetryHook,))

# One answer of the gateway; its members are the public contract's.
Answer = dict[str, Any]

_connect_s_max: Final = 5.0
_pause_s_min: Final = 0.1
_pause_s_max: Final = 5.0
# 429: too many at the moment. 503: starting, draining, or a disk that failed.
_BUSY: Final = frozenset((429, 503))
# What a proxy says when the gateway behind it is not there, and what a fault says: safe where repeating is.
_BROKEN: Final = frozenset((500, 502, 504))
_MESSAGE_CHARS_MAX: Final = 500


class _Again(Exception):  # noqa: N818 - never leaves this module
    """Trying again may help, after at least so many seconds."""

    def __init__(self, failure: PipelineError, least_s: float) -> None:
        super().__init__(failure.sentence)
        self.failure = failure
        self.least_s = least_s


class Gateway:
    """An open connection; usable by several threads. Not picklable: send its `access` instead.

    `transport` is the way to the gateway, httpx's own by default; `clock` gives seconds that never go back.
    """

    def __init__(
        self,
        access: Access,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        self.access = access
        self._url = checked_url(access.url)
        self._clock = clock
        loopback = _is_loopback(self._url.host)
        headers = {"accept": "application/json, application/problem+json"}
        if loopback:
            # Between two processes of one machine, packing costs more than it saves.
            headers["accept-encoding"] = "identity"
        # A proxy of the environment is never the way to one's own machine.
        self._client = httpx.Client(headers=headers, transport=transport, trust_env=not loopback)
        self._authorize()

    def __repr__(self) -> str:
        return f"Gateway({self.access.name!r}, {self.access.url!r})"

    def __getstate__(self) -> None:
        raise TypeError("a Gateway is an open connection with a token: send its `access`, and open another")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(
        self,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        about: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Read; tried again. `about` names stream and range in errors.

        Raises Refused, Unavailable.
        """
        return decoded(self.send("GET", path, query=query, about=about, headers=headers))

    def every(
        self, path: str, member: str, query: Mapping[str, object] | None = None, *, about: str = ""
    ) -> list[Answer]:
        """The rows of a list, page after page; `member` holds them."""
        rows: list[Answer] = []
        after = None
        while True:
            answer = self.get(path, {**(query or {}), "after": after}, about=about)
            rows += answer[member]
            after = answer.get("next")
            if after is None or not answer[member]:
                return rows

    def post(
        self,
        path: str,
        body: Mapping[str, object],
        *,
        wait_ms: int = 0,
        repeatable: bool = False,
        headers: Mapping[str, str] | None = None,
        about: str = "",
    ) -> Answer:
        """Do something. `repeatable` where doing it twice is the same as once; elsewhere a lost answer raises
        Unavailable at once. `wait_ms` is how long the gateway may keep the answer.
        """
        return self._change("POST", path, body, wait_ms, repeatable=repeatable, headers=headers, about=about)

    def patch(self, path: str, body: Mapping[str, object], *, about: str = "") -> Answer:
        """Set members of something; setting them twice is the same as once."""
        return self._change("PATCH", path, body, 0, repeatable=True, headers=None, about=about)

    def put(self, path: str, body: Mapping[str, object], *, about: str = "") -> Answer:
        """Make sure that something is there."""
        return self._change("PUT", path, body, 0, repeatable=True, headers=None, about=about)

    def _change(
        self,
        method: str,
        path: str,
        body: Mapping[str, object],
        wait_ms: int,
        *,
        repeatable: bool,
        headers: Mapping[str, str] | None,
        about: str,
    ) -> Answer:
        headers = {"content-type": "application/json", **(headers or {})}
        response = self.send(
            method,
            path,
            content=orjson.dumps(body),
            headers=headers,
            wait_ms=wait_ms,
            repeatable=repeatable,
            about=about,
        )
        return decoded(response)

    def send(  # noqa: PLR0913 - one request has so many parts
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_ms: int = 0,
        repeatable: bool = True,
        about: str = "",
    ) -> httpx.Response:
        """The successful answer, read wholly. Raises Refused, Unavailable; both name `about`."""
        url = self._url.copy_with(path=self._url.path.rstrip("/") + path, query=_query(query))
        timeout = httpx.Timeout((self.access.request_timeout_ms + wait_ms) / 1000, connect=_connect_s_max)
        request = self._client.build_request(method, url, content=content, headers=headers, timeout=timeout)
        patience_s = self.access.retry_timeout_ms / 1000
        deadline_s = self._clock() + patience_s

        def pause(error: Exception) -> bool | float:
            """Whether to try again; a number where the server said in how many seconds."""
            if not isinstance(error, _Again):
                return False
            if self._clock() + error.least_s >= deadline_s:
                return False
            return error.least_s or True

        try:
            for attempt in stamina.retry_context(
                on=pause,
                attempts=None if patience_s else 1,
                timeout=patience_s or None,
                wait_initial=_pause_s_min,
                wait_max=_pause_s_max,
                wait_jitter=_pause_s_min,
            ):
                with attempt:
                    return self._once(request, about, repeatable=repeatable)
        except _Again as last:
            raise last.failure from None
        raise AssertionError("an attempt answers or raises")

    def _once(self, request: httpx.Request, about: str, *, repeatable: bool) -> httpx.Response:
        try:
            response = self._client.send(request)
        except httpx.TransportError as error:
            failure = Unavailable(
                f"{self._place(about)}: the gateway does not answer ({_reason(error)}); is it running, "
                "and is retryTimeoutMs long enough for its restart?"
            )
            # What never got there was never done.
            if repeatable or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                raise _Again(failure, 0.0) from None
            raise failure from None
        if response.is_success:
            return response
        if response.status_code in _BUSY or (repeatable and response.status_code in _BROKEN):
            failure = Unavailable(f"{self._place(about)}: {_told(response)}")
            raise _Again(failure, _retry_after_s(response))
        refused = self._refused(response, about)
        if response.status_code == 401 and self._authorize():
            # Tokens are changed while queries run: the file holds another one by now.
            request.headers["authorization"] = self._client.headers["authorization"]
            raise _Again(refused, 0.0)
        raise refused

    def _authorize(self) -> bool:
        """Send the token that there is now; whether it is another one than before."""
        token = self.access.token()
        before = self._client.headers.get("authorization")
        if token is None or before == f"Bearer {token}":
            return False
        self._client.headers["authorization"] = f"Bearer {token}"
        return True

    def _place(self, about: str) -> str:
        return (
            f"{about} at {self.access.name} ({self._url})" if about else f"{self.access.name} ({self._url})"
        )

    def _refused(self, response: httpx.Response, about: str) -> Refused:
        problem = _problem(response)
        code = problem.get("code")
        return Refused(
            f"{self._place(about)}: {_told(response)}{self._remedy(response.status_code)}",
            status=response.status_code,
            problem=code if isinstance(code, str) else "",
            members=problem,
        )

    def _remedy(self, status: int) -> str:
        has_token = "authorization" in self._client.headers
        if status == 401 and not has_token:
            return "; give a token with tokenFile or tokenEnv"
        if status in (401, 403):
            return "; look whether the token is still good, and what it may do"
        return ""


def of_stream(stream: str) -> str:
    """The path of a stream. Raises OptionError for what is no name."""
    return f"/v1/streams/{_segment(stream, 'stream')}"


def of_group(stream: str, group: str) -> str:
    """The path of a group."""
    return f"{of_stream(stream)}/groups/{_segment(group, 'group')}"


def decoded(response: httpx.Response) -> Answer:
    """The answer's JSON object."""
    try:
        answer = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        place = response.url.copy_with(path="/", query=None)
        raise Refused(f"{place} is no gateway: its answer is no JSON object", status=response.status_code)
    return answer


def _segment(name: str, what: str) -> str:
    """A name as a segment of a path. Raises OptionError for what would be another path, or none at all."""
    if name in ("", ".", "..") or "/" in name:
        raise OptionError(f"{name!r} is no name of a {what}: it has no '/', and is not '', '.' or '..'")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise OptionError(f"{name!r} is no name of a {what}: it is not Unicode text") from None


def _query(query: Mapping[str, object] | None) -> bytes | None:
    # Written here: some libraries leave `+` and `(` as they are, and IDs begin with them.
    pairs = (
        f"{name}={quote(_text(value), safe='')}" for name, value in (query or {}).items() if value is not None
    )
    return "&".join(pairs).encode() or None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    # "[Errno 111] Connection refused" → "connection refused"
    return str(error).rpartition("] ")[2].lower() or type(error).__name__


def _retry_after_s(response: httpx.Response) -> float:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else 0.0


def _problem(response: httpx.Response) -> dict[str, Any]:
    """The problem document, or nothing: whatever stands between may answer with anything at all."""
    try:
        problem = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _told(response: httpx.Response) -> str:
    detail = _problem(response).get("detail")
    if isinstance(detail, str):
        return detail[:_MESSAGE_CHARS_MAX]
    return f"it answered {response.status_code} {response.reason_phrase}".rstrip()
