"""The sink's options, as a user of Spark writes them.

Knows: their names, defaults and limits. Must never know: what follows from them.

    gateway.urls (url)          required        one gateway, http://host:port or name=http://host:port
    stream                      column `stream` the stream that all rows go to; it wins over the column
    keyMode                     position        position | content | none (pyspark_weir.sink.keys)
    keyColumn                   idempotency_id  the column with each entry's key, for keyMode=content
    keyWindow                   640000          keys that the gateway remembers a stream, for keyMode=content
    jobId                       random          what makes a batch write the same one as before
    epoch                       0               which part of the job this is; never falls
    explicitIds                 true            whether a column `id` holds the entries' IDs
    nullFields                  skip            skip | empty | fail
    chunkRows                   5000            rows of a request, 1 to 10000, 300 at most with content keys;
                                                the same at each run of a job
    maxInFlight                 1               requests under way at once of a task; 1 keeps the order
    ordered                     false           refuse what would mix a stream's order
    maxEntriesPerSecond         none            of a task
    commitMarker                none            a stream that gets an entry for each finished batch
    allowTruncate               false           whether mode("overwrite") may empty the stream
    tokenFile, tokenEnv         none            where each worker finds the token
    requestTimeoutMs            30000           of one request
    retryTimeoutMs              60000           how long a request is tried again
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from pyspark_weir.errors import OptionError
from pyspark_weir.gateway.access import Access
from pyspark_weir.options import COMMON, SOURCE, Given, Option, accesses
from pyspark_weir.sink.chunks import chunk_rows_default, chunk_rows_max
from pyspark_weir.sink.keys import TRANSACTION_COMMANDS_MAX, KeyMode, key_window_default, key_window_max
from pyspark_weir.sink.rows import NullFields, RowOptions

in_flight_max: Final = 16
_rate_max: Final = 10_000_000

SINK: Final = (
    *COMMON,
    Option("stream", ("topic",)),
    Option("keyMode"),
    Option("keyColumn"),
    Option("keyWindow"),
    Option("jobId"),
    Option("epoch"),
    Option("explicitIds"),
    Option("nullFields"),
    Option("chunkRows"),
    Option("maxInFlight"),
    Option("ordered"),
    Option("maxEntriesPerSecond"),
    Option("commitMarker"),
    Option("allowTruncate"),
)
# What Spark takes from a writer's options itself, and hands on.
_SPARKS: Final = ("checkpointLocation", "queryName")


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
        given = Given(options, SINK, also={"reading": SOURCE}, ignored=_SPARKS)
        key_mode = cast("KeyMode", given.word("keyMode", ("position", "content", "none"), "position"))
        rows_max = TRANSACTION_COMMANDS_MAX if key_mode == "content" else chunk_rows_max
        made = cls(
            access=_one(accesses(given)),
            rows=RowOptions(
                stream=given.text("stream"),
                null_fields=cast("NullFields", given.word("nullFields", ("skip", "empty", "fail"), "skip")),
                explicit_ids=given.boolean("explicitIds", default=True),
                key_column=given.text("keyColumn"),
            ),
            key_mode=key_mode,
            key_window=given.integer("keyWindow", key_window_default, most=key_window_max),
            job_id=given.text("jobId"),
            epoch=given.integer("epoch", 0, least=0),
            chunk_rows=min(given.integer("chunkRows", chunk_rows_default, most=chunk_rows_max), rows_max),
            in_flight=given.integer("maxInFlight", 1, most=in_flight_max),
            ordered=given.boolean("ordered", default=False),
            entries_per_s=given.maybe_integer("maxEntriesPerSecond", most=_rate_max),
            commit_marker=given.text("commitMarker"),
            allow_truncate=given.boolean("allowTruncate", default=False),
        )
        if made.ordered and made.in_flight > 1:
            raise OptionError(
                "ordered=true and maxInFlight above 1: requests overtake each other; leave one out"
            )
        return made


def _one(found: tuple[Access, ...]) -> Access:
    if len(found) > 1:
        raise OptionError("gateway.urls names several gateways: a sink writes to one")
    return found[0]
