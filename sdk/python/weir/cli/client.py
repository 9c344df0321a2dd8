"""The gateway as a client sees it: one request, one JSON answer, or a sentence about what went wrong.

Knows: HTTP, problem documents, when trying again is safe and when it helps.
Must never know: what a command prints, what an answer is about.
"""

import ipaddress
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import orjson
import typer

from weir.cli.failure import Failure, Unanswered

# One answer of the gateway; its members are the public contract's.
Answer = dict[str, Any]

_connect_s_max: Final = 5.0
# Beyond what a read may wait by request; a batch that waits for a slow disk comes below it too.
_answer_s_max: Final = 60.0
_pause_s_min: Final = 0.1
_pause_s_max: Final = 5.0
_token_bytes_max: Final = 8 << 10
# 429: too many at the moment. 503: starting, draining, or a disk that failed.
_BUSY: Final = frozenset((429, 503))


class Backoff:
    """Pauses that double, with jitter so that many clients do not come back at once, until patience ends."""

    def __init__(self, patience_ms: int) -> None:
        self._deadline_s = time.monotonic() + patience_ms / 1000
        self._pause_s = _pause_s_min
        self._random = random.SystemRandom()

    def pause(self, least_s: float) -> bool:
        """Sleep, at least so long; False, without sleeping, when it would take longer than patience has."""
        pause_s = max(least_s, self._random.uniform(self._pause_s / 2, self._pause_s))
        if time.monotonic() + pause_s > self._deadline_s:
            return False
        time.sleep(pause_s)
        self._pause_s = min(self._pause_s * 2, _pause_s_max)
        return True


class Gateway:
    """A connection to a gateway.

    `patience_ms` is how long one call tries again, 0 for never; `tell` gets a line when that begins.
    """

    def __init__(
        self,
        url: str,
        token_file: Path | None = None,
        *,
        patience_ms: int = 0,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._url = _checked(url)
        self._patience_ms = patience_ms
        self.tell = tell
        headers = {"accept": "application/json, application/problem+json"}
        if token_file is not None:
            headers["authorization"] = f"Bearer {_token(token_file)}"
        self._client = httpx.Client(
            headers=headers,
            # A proxy of the environment is never the way to one's own machine.
            trust_env=not _is_loopback(self._url.host),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, query: Mapping[str, object] | None = None, *, wait_ms: int = 0) -> Answer:
        """Read; tried again while patience lasts. `wait_ms` is how long the gateway may keep the answer."""
        return self._call("GET", path, query=_texts(query), wait_ms=wait_ms, repeatable=True)

    def every(self, path: str, member: str, query: Mapping[str, object]) -> list[Answer]:
        """The rows of a list, page after page; `member` holds them."""
        rows: list[Answer] = []
        after = None
        while True:
            answer = self.get(path, {**query, "after": after})
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
        key: str | None = None,
    ) -> Answer:
        """Do something. `repeatable` where doing it twice is the same as once, as it is under an idempotency
        `key`; elsewhere a lost answer raises Unanswered at once.
        """
        headers = {"content-type": "application/json"}
        if key is not None:
            headers["idempotency-key"] = key
            repeatable = True
        content = orjson.dumps(body)
        return self._call(
            "POST", path, content=content, headers=headers, wait_ms=wait_ms, repeatable=repeatable
        )

    def publish(self, stream: str, lines: bytes, key: str) -> Answer:
        """Store a batch of NDJSON, once however often it is sent under this key."""
        headers = {
            "content-type": "application/x-ndjson",
            "idempotency-key": key,
            "prefer": "return=minimal",
        }
        path = f"{of_stream(stream)}/entries"
        return self._call("POST", path, content=lines, headers=headers, repeatable=True)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_ms: int = 0,
        repeatable: bool = False,
    ) -> Answer:
        url = self._url.copy_with(path=self._url.path.rstrip("/") + path, query=_query(query))
        timeout = httpx.Timeout(_answer_s_max + wait_ms / 1000, connect=_connect_s_max)
        request = self._client.build_request(method, url, content=content, headers=headers, timeout=timeout)
        backoff, told = Backoff(self._patience_ms), False
        while True:
            least_s = 0.0
            try:
                response = self._client.send(request)
            except httpx.TransportError as error:
                failure: Failure = Unanswered(f"{self._url} does not answer: {_reason(error)}")
                # What never got there was never done.
                if not repeatable and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise failure from None
            else:
                if response.is_success:
                    return _decoded(response)
                failure = _failure(response)
                if response.status_code not in _BUSY:
                    raise failure
                least_s = _retry_after_s(response)
            if not backoff.pause(least_s):
                raise failure
            if not told:
                self.tell(f"{failure}; trying again")
                told = True


def of_stream(stream: str) -> str:
    """The path of a stream."""
    return f"/v1/streams/{_segment(stream, 'stream')}"


def of_group(stream: str, group: str) -> str:
    """The path of a group."""
    return f"{of_stream(stream)}/groups/{_segment(group, 'group')}"


def of_consumer(stream: str, group: str, consumer: str) -> str:
    """The path of a consumer."""
    return f"{of_group(stream, group)}/consumers/{_segment(consumer, 'consumer')}"


def _segment(name: str, what: str) -> str:
    """A name as a segment of a path. Raises BadParameter for what would be another path, or none at all."""
    if name in ("", ".", "..") or "/" in name:
        raise typer.BadParameter(
            f"{name!r} is no name of a {what}: it has no '/', and is not '', '.' or '..'"
        )
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise typer.BadParameter(f"the name of the {what} is not UTF-8") from None


def _checked(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise typer.BadParameter(f"{url!r}: {error}", param_hint="--url") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise typer.BadParameter(f"{url!r} is not like http://127.0.0.1:8080", param_hint="--url")
    return parsed


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(_token_bytes_max + 1).strip()
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--token-file") from None
    if not token or len(token) > _token_bytes_max or not all(0x21 <= byte <= 0x7E for byte in token):
        raise typer.BadParameter(f"{path} does not hold one token", param_hint="--token-file")
    return token.decode("ascii")


def _texts(query: Mapping[str, object] | None) -> dict[str, str]:
    """Query parameters as they are written, without those that were not given."""
    texts = {True: "true", False: "false"}
    return {
        name: texts[value] if isinstance(value, bool) else str(value)
        for name, value in (query or {}).items()
        if value is not None
    }


def _query(query: Mapping[str, str] | None) -> bytes | None:
    # Written here: some libraries leave `+` and `(` as they are, and IDs begin with them.
    pairs = (f"{name}={quote(value, safe='')}" for name, value in (query or {}).items())
    return "&".join(pairs).encode() or None


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    # "[Errno 111] Connection refused" → "connection refused"
    return str(error).rpartition("] ")[2].lower() or type(error).__name__


def _retry_after_s(response: httpx.Response) -> float:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() else 0.0


def _decoded(response: httpx.Response) -> Answer:
    try:
        answer = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise Failure(f"{response.url.copy_with(path='/', query=None)} is no gateway: its answer is not JSON")
    return answer


def _failure(response: httpx.Response) -> Failure:
    """The problem in one line; whatever stands between may answer with anything at all."""
    try:
        problem = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        problem = None
    if isinstance(problem, dict) and isinstance(problem.get("detail"), str):
        code = problem.get("code")
        return Failure(problem["detail"], code=code if isinstance(code, str) else "", members=problem)
    return Failure(f"the gateway answered {response.status_code} {response.reason_phrase}".rstrip())
