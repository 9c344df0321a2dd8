"""The sink's options, as a user of Spark writes them; docs/pipeline.md has a table of them.

Knows: their names, defaults and limits. Must never know: what follows from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark_weir import raw_options
from pyspark_weir.errors import OptionError
from pyspark_weir.gateway import GatewayAccess
from pyspark_weir.options import COMMON, SOURCE, accesses
from pyspark_weir.raw_options import RawOptions, flag, integer, table_of, word
from pyspark_weir.sink.keys import KEY_WINDOW_DEFAULT, KEY_WINDOW_MAX, TRANSACTION_COMMANDS_MAX, KeyMode
from pyspark_weir.sink.rows import CHUNK_ROWS_DEFAULT, CHUNK_ROWS_MAX, RowOptions

_IN_FLIGHT_MAX: Final = 16
_RATE_MAX: Final = 10_000_000
# What Spark takes from a writer's options itself, and hands on.
_SPARKS: Final = ("checkpointLocation", "queryName")


@dataclass(frozen=True)
class SinkOptions:
    """What a writer does, for one gateway. `entries_per_s` is of a task."""

    access: GatewayAccess
    rows: RowOptions
    key_mode: KeyMode = word("keyMode", ("position", "content", "none"))
    key_window: int = integer("keyWindow", default=KEY_WINDOW_DEFAULT, most=KEY_WINDOW_MAX)
    job_id: str | None = raw_options.text("jobId")
    epoch: int = integer("epoch", default=0, least=0)
    chunk_rows: int = integer("chunkRows", default=CHUNK_ROWS_DEFAULT, most=CHUNK_ROWS_MAX)
    in_flight: int = integer("maxInFlight", default=1, most=_IN_FLIGHT_MAX)
    ordered: bool = flag("ordered")
    entries_per_s: int | None = integer("maxEntriesPerSecond", most=_RATE_MAX)
    commit_marker: str | None = raw_options.text("commitMarker")
    allow_truncate: bool = flag("allowTruncate")

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        """From what was given to Spark, in any case of letters. Raises OptionError."""
        raw = RawOptions(options, SINK, also={"reading": SOURCE}, ignored=_SPARKS)
        access, *more = accesses(raw)
        if more:
            raise OptionError("gateway.urls names several gateways: a sink writes to one")
        found = cls(access=access, rows=RowOptions(**raw.members(RowOptions)), **raw.members(cls))
        if found.ordered and found.in_flight > 1:
            raise OptionError(
                "ordered=true and maxInFlight above 1: requests overtake each other; leave one out"
            )
        if found.key_mode == "content":
            return replace(found, chunk_rows=min(found.chunk_rows, TRANSACTION_COMMANDS_MAX))
        return found


SINK: Final = (*COMMON, *table_of(RowOptions, SinkOptions))
