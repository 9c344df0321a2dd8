"""A real gateway as tests of readers use it: entries with chosen IDs, and what a reader makes of them.

Knows: how to publish, trim and delete, and how Spark drives a streaming reader.
Must never know: what is tested.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from pyspark_weir.gateway import GatewayAccess, GatewayClient, of_stream
from pyspark_weir.options import source_options
from pyspark_weir.schema import schema_of
from pyspark_weir.source.batch import BatchReader
from pyspark_weir.source.stream import StreamingReader
from tests.server import Server

Offset = dict[str, Any]
EVERYTHING = {"startingOffsets": "earliest"}


def ids(*numbers: int) -> list[str]:
    """The IDs `7-0` of these numbers."""
    return [f"{number}-0" for number in numbers]


class Weir:
    """A running gateway, with names that no other test has."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.server = server
        self.prefix = prefix
        self.gateway = GatewayClient(GatewayAccess("test", server.url))
        self._readers: list[StreamingReader] = []

    def name(self, short: str = "s") -> str:
        """A stream of this test."""
        return f"{self.prefix}/{short}"

    def publish(self, entries: Iterable[int | str], stream: str = "s") -> list[str]:
        """One entry for each ID, `7` being `7-0`; its only field is the ID."""
        ids = [one if isinstance(one, str) else f"{one}-0" for one in entries]
        body = {"entries": [{"id": one, "fields": {"n": one}} for one in ids]}
        self.gateway.post(f"{of_stream(self.name(stream))}/entries", body)
        return ids

    def trim(self, minid: int | str, stream: str = "s") -> None:
        """Everything before an ID."""
        self.gateway.trim(self.name(stream), minid=str(minid), guard=False)

    def delete(self, stream: str = "s") -> None:
        """The stream itself."""
        self.gateway.delete_stream(self.name(stream))

    def options(self, **more: str) -> dict[str, str]:
        """Options for reading stream `s`, unless something else is said."""
        ways = {"subscribe", "subscribePattern", "assign"} & set(more)
        chosen = {} if ways else {"subscribe": self.name()}
        return {"gateway.urls": self.server.url, **chosen, "pollTimeoutMs": "0", **more}

    def stream_reader(self, **more: Any) -> StreamingReader:
        """A reader as Spark makes it; `clock` and `sleep` go to the reader, the rest are options."""
        machine = {name: more.pop(name) for name in ("clock", "sleep") if name in more}
        options = source_options(self.options(**more))
        reader = StreamingReader(options, schema_of(options), **machine)
        self._readers.append(reader)
        return reader

    def batch_reader(self, **more: str) -> BatchReader:
        """The same for a batch."""
        options = source_options(self.options(**more))
        return BatchReader(options, schema_of(options))

    def close(self) -> None:
        self.gateway.close()
        for reader in self._readers:
            reader.stop()


def through_json(offset: Mapping[str, Any]) -> Offset:
    """An offset on its way through Spark's checkpoint."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """All rows."""
    return [row for batch in batches for row in batch.to_pylist()]


def ids_between(reader: StreamingReader, start: Offset, end: Offset) -> list[str]:
    """What a batch reads, by partition and in order."""
    parts = reader.partitions(through_json(start), through_json(end))
    return [row["id"] for part in parts for row in rows_of(reader.read(part))]


def step(reader: StreamingReader, start: Offset, limit: ReadLimit | None = None) -> tuple[Offset, list[str]]:
    """One batch, as Spark makes it: where it ends, and what is in it."""
    end = reader.latestOffset(through_json(start), limit or reader.getDefaultReadLimit())
    return end, ids_between(reader, start, end)


def steps(reader: StreamingReader, start: Offset) -> tuple[Offset, list[list[str]]]:
    """Batches until there is nothing new."""
    found: list[list[str]] = []
    while True:
        end, ids = step(reader, start)
        if json.dumps(end) == json.dumps(start):
            return end, found
        found.append(ids)
        start = end


def read_all(reader: BatchReader) -> list[dict[str, Any]]:
    """The rows of a batch, as Spark asks for them: for nothing, it asks with None."""
    parts: Sequence[Any] = reader.partitions() or [None]
    return [row for part in parts for row in rows_of(reader.read(part))]


def cpu_s() -> float:
    """The processor time of this process."""
    return sum(os.times()[:2])
