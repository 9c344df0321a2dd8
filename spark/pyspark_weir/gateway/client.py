"""A connection to a gateway: `weir.Client` with errors that survive Spark and say which stream they concern.

Knows: what an option remedies, where a token is looked up. Must never know: how a call is repeated, Spark.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import httpx
import orjson
from stamina.instrumentation import LoggingOnRetryHook, set_on_retry_hooks

from pyspark_weir.errors import OptionError, Refused, Unavailable
from pyspark_weir.gateway.access import Access, checked_url
from weir import ApiError, AuthenticationError, Client, InvalidNameError, NoAnswerError
from weir._calls import as_is, group_path, stream_path
from weir._http import Call

# On standard error: by itself stamina prints, and what a job prints may be read by a program.
set_on_retry_hooks((LoggingOnRetryHook,))

# One answer of the gateway; its members are the public contract's.
Answer = dict[str, Any]

# A gateway that is busy, starting or draining.
_BUSY: Final = frozenset((429, 503))
# A fault in the gateway, or a proxy with no gateway behind it: the outcome is unknown.
_BROKEN: Final = frozenset((500, 502, 504))
_MESSAGE_CHARS_MAX: Final = 500


class Gateway:
    """An open connection; usable by several threads. Not picklable: send its `access` instead.

    `transport` is the way to the gateway, httpx's own by default.
    """

    def __init__(self, access: Access, *, transport: httpx.BaseTransport | None = None) -> None:
        self.access = access
        self._url = checked_url(access.url)
        self._token = access.token()
        self._client = Client(
            access.url,
            token=lambda: self._token,
            timeout_s=access.request_timeout_ms / 1000,
            retry_s=access.retry_timeout_ms / 1000,
            transport=transport,
        )

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
    ) -> Answer:
        """Read. `about` names stream and range in errors. Raises Refused, Unavailable."""
        return decoded(self.send("GET", path, query=query, about=about))

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
        """Change something. `repeatable` where doing it twice is the same as once; elsewhere a lost answer
        raises Unavailable at once. `wait_ms` is how long the gateway may keep the answer.
        """
        content = orjson.dumps(body)
        return decoded(
            self.send(
                "POST",
                path,
                content=content,
                headers=headers,
                wait_ms=wait_ms,
                repeatable=repeatable,
                about=about,
            )
        )

    def patch(self, path: str, body: Mapping[str, object], *, about: str = "") -> Answer:
        """Set members of something."""
        return decoded(self.send("PATCH", path, content=orjson.dumps(body), about=about))

    def put(self, path: str, body: Mapping[str, object], *, about: str = "") -> Answer:
        """Create something where it is missing."""
        return decoded(self.send("PUT", path, content=orjson.dumps(body), about=about))

    def send(  # noqa: PLR0913 - the parts of a request
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
        call = Call(
            method,
            path,
            as_is,
            query=query or {},
            body=content,
            headers={"content-type": "application/json", **(headers or {})} if content else headers or {},
            wait_ms=wait_ms,
            repeatable=repeatable,
            repeat_faults=True,
        )
        try:
            return self._send(call)
        except NoAnswerError as error:
            raise Unavailable(
                f"{self._place(about)}: {error}; is it running, and is retryTimeoutMs long enough for its "
                "restart?"
            ) from None
        except ApiError as error:
            raise self._failure(error, about, repeatable=repeatable) from None

    def _send(self, call: Call[Any]) -> httpx.Response:
        try:
            return self._client.send(call)
        except AuthenticationError:
            # Tokens are changed while queries run: the file may hold another one by now.
            before, self._token = self._token, self.access.token()
            if before == self._token:
                raise
            return self._client.send(call)

    def _place(self, about: str) -> str:
        return f"{about} at {self.access.name}" if about else self.access.name

    def _failure(self, error: ApiError, about: str, *, repeatable: bool) -> Refused | Unavailable:
        place, said = f"{self._place(about)} ({self._url})", error.detail[:_MESSAGE_CHARS_MAX]
        if error.status in _BUSY or (repeatable and error.status in _BROKEN):
            return Unavailable(f"{place}: {said}")
        return Refused(
            f"{place}: {said}{self._remedy(error.status)}",
            status=error.status,
            problem=error.code,
            members=error.problem,
        )

    def _remedy(self, status: int) -> str:
        if status == 401 and self._token is None:
            return "; give a token with tokenFile or tokenEnv"
        if status in (401, 403):
            return "; look whether the token is still good, and what it may do"
        return ""


def of_stream(stream: str) -> str:
    """The path of a stream. Raises OptionError for what is no name."""
    try:
        return stream_path(stream)
    except InvalidNameError as error:
        raise OptionError(str(error)) from None


def of_group(stream: str, group: str) -> str:
    """The path of a group. Raises OptionError for what is no name."""
    try:
        return group_path(stream, group)
    except InvalidNameError as error:
        raise OptionError(str(error)) from None


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
