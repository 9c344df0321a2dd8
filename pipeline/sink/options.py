"""The sink's options, as a user of Spark writes them.

Knows: their names, defaults and limits. Must never know: what follows from them.

    gateway.urls (url)          required        one gateway, http://host:port or name=http://host:port
    stream                      column `stream` the stream that all rows go to; it wins over the column
    keyMode                     position        position | content | none (pipeline.sink.keys)
    keyColumn                   idempotency_id  the column with each entry's key, for keyMode=content
    keyWindow                   640000          keys that the gateway remembers a stream, for keyMode=content
    jobId                       random          what makes a batch write the same one as before
    epoch                       0               which part of the job this is; never falls
    explicitIds                 true            whether a column `id` holds the entries' IDs
    nullFields                  skip            skip | empty | fail
    chunkRows                   5000            rows of a request, 1 to 10000; the same at each run of a job
    maxInFlight                 1               requests under way at once of a task; 1 keeps the order
    ordered                     false           refuse what would mix a stream's order
    maxEntriesPerSecond         none            of a task
    commitMarker                none            a stream that gets an entry for each finished batch
    allowTruncate               false           whether mode("overwrite") may empty the stream
    tokenFile, tokenEnv         none            where each worker finds the token
    requestTimeoutMs            30000           of one request
    retryTimeoutMs              60000           how long a request is tried again
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from pipeline.errors import OptionError
from pipeline.gateway.access import Access, request_timeout_ms_default, retry_timeout_ms_default
from pipeline.sink.chunks import chunk_rows_default, chunk_rows_max
from pipeline.sink.keys import KeyMode, key_window_default, key_window_max
from pipeline.sink.rows import NullFields, RowOptions

in_flight_max: Final = 16
epoch_max: Final = (1 << 53) - 1
_rate_max: Final = 10_000_000
_timeout_ms_max: Final = 3_600_000

_NAMED_URL: Final = re.compile(r"([A-Za-z0-9_.-]+)=(.*)")
_NAMES: Final = (
    "gateway.urls",
    "url",
    "stream",
    "keyMode",
    "keyColumn",
    "keyWindow",
    "jobId",
    "epoch",
    "explicitIds",
    "nullFields",
    "chunkRows",
    "maxInFlight",
    "ordered",
    "maxEntriesPerSecond",
    "commitMarker",
    "allowTruncate",
    "tokenFile",
    "tokenEnv",
    "requestTimeoutMs",
    "retryTimeoutMs",
)
# What Spark itself takes from a writer's options, and hands on.
_SPARKS: Final = frozenset({"checkpointlocation", "path", "queryname"})


@dataclass(frozen=True)
class SinkOptions:
    """What a writer does. See the table above; limits are checked."""

    access: Access
    rows: RowOptions
    key_mode: KeyMode = "position"
    key_window: int = key_window_default
    job_id: str | None = None
    epoch: int = 0
    chunk_rows: int = chunk_rows_default
    in_flight: int = 1
    ordered: bool = False
    entries_per_s: int | None = None
    commit_marker: str | None = None
    allow_truncate: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        """From what was given to Spark, in any case of letters. Raises OptionError."""
        given = _Given(options)
        made = cls(
            access=given.access(),
            rows=RowOptions(
                stream=given.text("stream"),
                null_fields=cast("NullFields", given.one_of("nullFields", ("skip", "empty", "fail"))),
                explicit_ids=given.flag("explicitIds", default=True),
                key_column=given.text("keyColumn"),
            ),
            key_mode=cast("KeyMode", given.one_of("keyMode", ("position", "content", "none"))),
            key_window=given.integer("keyWindow", 1, key_window_max) or key_window_default,
            job_id=given.text("jobId"),
            epoch=given.integer("epoch", 0, epoch_max) or 0,
            chunk_rows=given.integer("chunkRows", 1, chunk_rows_max) or chunk_rows_default,
            in_flight=given.integer("maxInFlight", 1, in_flight_max) or 1,
            ordered=given.flag("ordered", default=False),
            entries_per_s=given.integer("maxEntriesPerSecond", 1, _rate_max),
            commit_marker=given.text("commitMarker"),
            allow_truncate=given.flag("allowTruncate", default=False),
        )
        if made.ordered and made.in_flight > 1:
            raise OptionError(
                "ordered=true and maxInFlight above 1: requests overtake each other; leave one out"
            )
        return made


class _Given:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _NAMES}
        for name in self._values.keys() - known.keys() - _SPARKS:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {known[close[0]]}?" if close else f"there are {', '.join(_NAMES)}"
            raise OptionError(f"the sink has no option {name}: {hint}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value:
            raise OptionError(f"{name} is empty: give a value, or leave it out")
        return value

    def one_of(self, name: str, words: tuple[str, ...]) -> str:
        """One of the words; the first where nothing was given."""
        value = (self.text(name) or words[0]).lower()
        if value not in words:
            raise OptionError(f"{name}={value}: it is {', '.join(words[:-1])} or {words[-1]}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name}={value}: it is true or false")
        return value == "true"

    def integer(self, name: str, least: int, most: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
            raise OptionError(f"{name}={value}: it is a whole number from {least} to {most}")
        return int(value)

    def access(self) -> Access:
        name, url = "gateway", self.text("gateway.urls") or self.text("url")
        if url is None:
            raise OptionError("gateway.urls is missing: the gateway to write to, like http://127.0.0.1:8080")
        if named := _NAMED_URL.fullmatch(url):
            name, url = named.groups()
        if "," in url:
            raise OptionError("gateway.urls names several gateways: a sink writes to one")
        request_ms = self.integer("requestTimeoutMs", 1, _timeout_ms_max)
        retry_ms = self.integer("retryTimeoutMs", 0, _timeout_ms_max)
        return Access(
            name,
            url,
            token_file=self.text("tokenFile"),
            token_env=self.text("tokenEnv"),
            request_timeout_ms=request_timeout_ms_default if request_ms is None else request_ms,
            retry_timeout_ms=retry_timeout_ms_default if retry_ms is None else retry_ms,
        )
