"""A connection to a gateway: the Python client, with calls for bulk readers, and errors that survive Spark.

Knows: calls beyond the client's own, what an option remedies, where a token is looked up.
Must never know: how a call is repeated, what it is made for, Spark.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar, Unpack

import httpx
import orjson

from pyspark_weir import raw_options
from pyspark_weir.errors import OptionError, RefusedError, Unavailable
from pyspark_weir.raw_options import integer
from weir import ApiError, AuthenticationError, CallOptions, Client, InvalidNameError, NoAnswerError, paths

T = TypeVar("T")
# One answer of the gateway; its members are the public contract's.
Answer = dict[str, Any]

_TOKEN_BYTES_MAX: Final = 8 << 10
# The gateway's own limit, `request_streams_max`.
STREAMS_A_CALL_MAX: Final = 1_000
COLUMNS: Final = "application/vnd.weir.columns+json"
# A gateway that is busy, starting or draining.
_BUSY: Final = frozenset((429, 503))
# A fault in the gateway, or a proxy with no gateway behind it: the outcome is unknown.
_BROKEN: Final = frozenset((500, 502, 504))
_MISSING: Final = frozenset(("no_stream", "no_group"))
_MESSAGE_CHARS_MAX: Final = 500
_PAGE_ENTRIES: Final = 10_000


@dataclass(frozen=True)
class GatewayAccess:
    """The picklable part of a connection: no secret stands in it.

    `name` is the stable name under which offsets remember this gateway: it may move to another URL.
    The token is what `token_file` holds or what the environment variable `token_env` is set to, on the
    machine that connects. One request may take `request_timeout_ms`; it is tried again for
    `retry_timeout_ms`, 0 never.
    """

    name: str
    url: str
    token_file: str | None = raw_options.text("tokenFile")
    token_env: str | None = raw_options.text("tokenEnv")
    request_timeout_ms: int = integer("requestTimeoutMs", default=30_000)
    retry_timeout_ms: int = integer("retryTimeoutMs", default=60_000, least=0)

    def __post_init__(self) -> None:
        check_url(self.url)
        if self.token_file is not None and self.token_env is not None:
            raise OptionError("tokenFile and tokenEnv are both given: leave one of them out")

    def token(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The token, looked up now; None for an open gateway. Raises OptionError."""
        if self.token_file is not None:
            try:
                with Path(self.token_file).open("rb") as file:
                    found = file.read(_TOKEN_BYTES_MAX + 1).strip()
            except OSError as error:
                raise OptionError(
                    f"tokenFile {self.token_file}: {error.strerror}; workers need the file too"
                ) from None
            return _parse_token(found, f"tokenFile {self.token_file}")
        if self.token_env is not None:
            value = environment.get(self.token_env)
            if value is None:
                raise OptionError(
                    f"tokenEnv {self.token_env}: this environment variable is not set; workers need it too"
                )
            return _parse_token(value.encode("utf-8", "surrogateescape"), f"tokenEnv {self.token_env}")
        return None


def check_url(url: str) -> httpx.URL:
    """A gateway's URL. Raises OptionError for what is none, and for one that holds a password."""
    try:
        parsed = httpx.URL(url)
        host = parsed.host
        out_of_range = parsed.port is not None and not 0 < parsed.port < 1 << 16
    # A host's name may be none in ways of its own.
    except (httpx.InvalidURL, ValueError):
        raise _no_gateway("it is no URL, or has a port or a host's name that cannot be") from None
    wrong = {
        "it holds a user or a password; use tokenFile or tokenEnv instead": parsed.userinfo,
        "it does not begin with http:// or https://": parsed.scheme not in ("http", "https"),
        "it names no host": not host or "%" in host,
        "a port is a number up to 65535": out_of_range,
        "it has something after a ?; a token belongs into tokenFile or tokenEnv": parsed.query,
        "it has something after a #": parsed.fragment,
    }
    for why, holds in wrong.items():
        if holds:
            raise _no_gateway(why)
    return parsed


def _no_gateway(why: str) -> OptionError:
    """The URL is not shown, nor a part of it: options travel in logs, and anything may be a password."""
    return OptionError(f"gateway.urls: a URL is not like http://127.0.0.1:8080: {why}")


def _parse_token(token: bytes, where: str) -> str:
    if not token or len(token) > _TOKEN_BYTES_MAX or not all(0x21 <= byte <= 0x7E for byte in token):
        raise OptionError(f"{where} does not hold one token: a line of printable ASCII without blanks")
    return token.decode("ascii")


@dataclass(frozen=True)
class PlanQuery:
    """What is to be planned: `streams` after given IDs; up to `end` where a stream is in it.

    At most `max_entries` and `max_bytes` in all, shared in proportion to the streams' lengths; each range
    is cut into at most `parts`. `wait_ms`: how long to wait until there is anything.
    """

    streams: Mapping[str, str]
    end: Mapping[str, str] = field(default_factory=dict)
    max_entries: int | None = None
    max_bytes: int | None = None
    parts: int | None = None
    durable_only: bool = False
    wait_ms: int = 0

    def body(self) -> dict[str, object]:
        given = {**vars(self), "wait": self.wait_ms}
        del given["wait_ms"]
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class PlannedRange:
    """One stream's planned range `(after, end]`; IDs as text.

    `count` and `bytes`: what is in it. `first`: the stream's first entry, None if empty. `last`: its last.
    `removed_upto`: the highest ID removed from its front. `durable`: the highest ID that no crash takes back,
    None where the gateway never syncs. `lag`: entries after `after`, beyond the budget too. `cuts`: inner IDs
    that part the range. `closed`: nothing comes after `last`, for good.
    """

    after: str
    end: str
    count: int
    bytes: int
    first: str | None
    last: str
    removed_upto: str
    generation: str
    durable: str | None
    lag: int
    cuts: tuple[str, ...] = ()
    closed: bool = False

    @classmethod
    def of(cls, member: Mapping[str, Any]) -> Self:
        known = {name: member[name] for name in cls.__dataclass_fields__ if name not in ("cuts", "closed")}
        return cls(**known, cuts=tuple(member.get("cuts") or ()), closed=bool(member.get("closed")))


class PreviousStream(NamedTuple):
    """The stream that had a name before, or had it last: its generation, and the last ID that it gave."""

    generation: str
    last: str


@dataclass(frozen=True)
class GatewayPlan:
    """The answer to a plan: by stream, and the names that do not exist. `previous`: who had these names
    before, where the gateway knows it.
    """

    streams: Mapping[str, PlannedRange] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    previous: Mapping[str, PreviousStream] = field(default_factory=dict)

    def sum(self, member: str) -> int:
        """A member, `count`, `bytes` or `lag`, of all streams together."""
        return sum(getattr(one, member) for one in self.streams.values())


@dataclass(frozen=True)
class ColumnsPage:
    """Entries in columns. `ms` and `seq`: their IDs' halves. `n`: fields of each. `names`: the dictionary of
    field names, `name_index` which of them each field has, `values` each field's value; all three run through
    all entries. Where `base64` is set, names and values are base64 of their bytes, because one is not UTF-8.

    The next page is what comes after `next_id`; `more`: whether there is one. `removed_upto`: the highest ID
    that was gone from the stream's front when the page was begun.
    """

    ms: Sequence[int]
    seq: Sequence[int]
    n: Sequence[int]
    names: Sequence[str]
    name_index: Sequence[int]
    values: Sequence[str]
    base64: bool
    next_id: str
    more: bool
    generation: str = ""
    removed_upto: str = "0-0"

    def __len__(self) -> int:
        return len(self.ms)


def of_one_call(streams: Mapping[str, T]) -> Iterator[dict[str, T]]:
    """The streams, with what belongs to each, as many at once as a call may name."""
    every = iter(streams.items())
    while some := dict(islice(every, STREAMS_A_CALL_MAX)):
        yield some


class GatewayClient(Client):
    """An open connection; usable by several threads. Not picklable: send its `access` instead.

    `transport` is the way to the gateway, httpx's own by default. Every call raises RefusedError or
    Unavailable.
    """

    def __init__(self, access: GatewayAccess, *, transport: httpx.BaseTransport | None = None) -> None:
        self.access = access
        self._url = check_url(access.url)
        self._token = access.token()
        super().__init__(
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

    # ---- calls

    def plan(self, query: PlanQuery) -> GatewayPlan:
        """Ranges to read. Without streams nothing is asked."""
        if not query.streams:
            return GatewayPlan()
        answer = self.json("POST", "/v1/plan", body=query.body(), wait_ms=query.wait_ms, repeatable=True)
        planned = {name: PlannedRange.of(member) for name, member in answer["streams"].items()}
        previous = {name: PreviousStream(**member) for name, member in answer.get("previous", {}).items()}
        return GatewayPlan(planned, frozenset(answer["missing"]), previous)

    def page(
        self,
        stream: str,
        *,
        after: str,
        end: str | None = None,
        count: int | None = None,
        max_bytes: int | None = None,
        fields: Sequence[str] = (),
        fail_on_gap: bool = False,
    ) -> ColumnsPage:
        """Entries of `(after, end]` in columns, at most `count` and about `max_bytes`; `fields`: only these.

        A stream that is missing is empty. Raises RefusedError with status 410 where entries after `after`
        were trimmed and `fail_on_gap`.
        """
        query: dict[str, object] = {"after": after, "end": end, "count": count, "max_bytes": max_bytes}
        if fields and not any("," in name for name in fields):
            # A name that holds a comma cannot be asked for: then all come.
            query["fields"] = ",".join(fields)
        if fail_on_gap:
            query["on_gap"] = "fail"
        accept = {"accept": f"{COLUMNS}, application/problem+json"}
        path = f"{of_stream(stream)}/entries"
        response = self.send("GET", path, query=query, headers=accept)
        columns, headers = _object(response), response.headers
        return ColumnsPage(
            ms=columns["ms"],
            seq=columns["seq"],
            n=columns["n"],
            names=columns["kd"],
            name_index=columns["k"],
            values=columns["v"],
            base64=bool(columns.get("b64")),
            next_id=headers.get("weir-next-id", after),
            more=headers.get("weir-more") == "true",
            generation=headers.get("weir-generation", ""),
            removed_upto=headers.get("weir-removed-upto", "0-0"),
        )

    def pages(self, stream: str, *, after: str, end: str) -> Iterator[ColumnsPage]:
        """The pages of `(after, end]`. Raises as `page`."""
        more = True
        while more:
            page = self.page(stream, after=after, end=end, count=_PAGE_ENTRIES)
            yield page
            after, more = page.next_id, page.more

    def stream(self, name: str) -> Answer | None:
        """One stream, None where it is missing."""
        try:
            return self.get(of_stream(name))
        except RefusedError as refused:
            if refused.problem not in _MISSING:
                raise
            return None

    def groups(self, name: str) -> Iterator[Answer]:
        """The groups of a stream; none where it is missing."""
        return _unless_missing(self.list_groups(name))

    def consumers(self, name: str, group: str) -> Iterator[Answer]:
        """The consumers of a group; none where it is missing."""
        return _unless_missing(self.group(name, group).consumers())

    def pending(self, name: str, group: str, page_count: int) -> Iterator[Answer]:
        """A group's pending entries by ID, page by page; none where it is missing."""
        return _unless_missing(self.group(name, group).pending(page_count=page_count))

    def first_of_last(self, name: str, count: int) -> str:
        """The ID of the first of a stream's last entries."""
        body = {"maxlen": count, "approx": False, "dry_run": True}
        return str(self.json("POST", f"{of_stream(name)}/trim", body=body, repeatable=True)["first_id"])

    def move_group(self, name: str, group: str, entry_id: str, *, entries_read: int) -> None:
        """Have a group stand after `entry_id`, as if it had read everything up to there; made if missing.

        `entries_read` is how many of all entries that is: else its lag would be unknown.
        """
        path = of_group(name, group)
        place = {"last_delivered_id": entry_id, "entries_read": entries_read}
        self.json("PUT", path, body={"start": entry_id, "mkstream": False}, repeatable=True)
        self.json("PATCH", path, body=place, repeatable=True)

    # ---- any call

    def get(self, path: str, query: Mapping[str, object] = MappingProxyType({})) -> Answer:
        return self.json("GET", path, query=query)

    def post(
        self,
        path: str,
        body: object,
        *,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
    ) -> Any:  # noqa: ANN401 - JSON
        """Change something; bytes are JSON. `repeatable` where doing it twice is the same as once."""
        given = {"content-type": "application/json", **(headers or {})}
        sent = self.send("POST", path, body=body, headers=given, repeatable=repeatable)
        return orjson.loads(sent.content)

    def json(self, method: str, path: str, **options: Unpack[CallOptions]) -> Answer:
        return _object(self.send(method, path, **options))

    def send(self, method: str, path: str, **options: Unpack[CallOptions]) -> httpx.Response:
        place = f"{method} {path} at {self.access.name} ({self._url})"
        try:
            return self._send_with_token(method, path, {**options, "repeat_faults": True})
        except NoAnswerError as error:
            raise Unavailable(
                f"{place}: {error}; is it running, and is retryTimeoutMs long enough for its restart?"
            ) from None
        except ApiError as error:
            raise self._failure(error, place, repeatable=options.get("repeatable", method == "GET")) from None

    def _send_with_token(self, method: str, path: str, options: CallOptions) -> httpx.Response:
        try:
            return super().send(method, path, **options)
        except AuthenticationError:
            # Tokens are changed while queries run: the file may hold another one by now.
            before, self._token = self._token, self.access.token()
            if before == self._token:
                raise
            return super().send(method, path, **options)

    def _failure(self, error: ApiError, place: str, *, repeatable: bool) -> RefusedError | Unavailable:
        said = f"{place}: {error.detail[:_MESSAGE_CHARS_MAX]}"
        is_broken = error.status in _BROKEN and error.code != "backend_error"
        if error.status in _BUSY or (repeatable and is_broken):
            return Unavailable(said)
        remedy = ""
        if error.status == 401 and self._token is None:
            remedy = "; give a token with tokenFile or tokenEnv"
        elif error.status in (401, 403):
            remedy = "; look whether the token is still good, and what it may do"
        return RefusedError(f"{said}{remedy}", status=error.status, problem=error.code, members=error.problem)


def reach(accesses: Iterable[GatewayAccess]) -> None:
    """Have each gateway say that it knows the token. Raises OptionError, RefusedError, Unavailable."""
    for access in accesses:
        with GatewayClient(access) as gateway:
            gateway.get("/v1/whoami")


def of_stream(stream: str) -> str:
    """The path of a stream. Raises OptionError for what is no name."""
    try:
        return paths.stream_path(stream)
    except InvalidNameError as error:
        raise OptionError(str(error)) from None


def of_group(stream: str, group: str) -> str:
    """The path of a group. Raises OptionError for what is no name."""
    try:
        return paths.group_path(stream, group)
    except InvalidNameError as error:
        raise OptionError(str(error)) from None


def _object(response: httpx.Response) -> Answer:
    try:
        answer = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        place = response.url.copy_with(path="/", query=None)
        raise RefusedError(
            f"{place} is no gateway: its answer is no JSON object", status=response.status_code
        )
    return answer


def _unless_missing(found: Iterable[Mapping[str, Any]]) -> Iterator[Answer]:
    """What is found; nothing where the stream or the group is missing."""
    try:
        for one in found:
            yield dict(one)
    except RefusedError as refused:
        if refused.problem not in _MISSING:
            raise
