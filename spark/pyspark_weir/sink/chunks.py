"""Entries → chunks: what one request stores, all or nothing.

Knows: where a chunk ends. Must never know: how it is sent, and what makes it the same as one sent before.

A retry has to cut the same entries at the same places: so a chunk ends by what is in it and never by time,
nor by how the entries came.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pyspark_weir.sink.rows import Entry

chunk_rows_default: Final = 5_000
# The gateway's limit on a batch.
chunk_rows_max: Final = 10_000
# Of the entries' written forms: an eighth of what the gateway takes at once. One entry alone may have more.
chunk_bytes_max: Final = 1 << 20
# The gateway's limit on a request.
chunk_streams_max: Final = 1_000

T = TypeVar("T")


@dataclass(frozen=True)
class Chunk(Generic[T]):
    """Consecutive entries of a task in their written form, by stream; in order within each."""

    number: int
    streams: dict[str, list[T]]
    rows: int

    def counts(self) -> dict[str, int]:
        """Entries by stream."""
        return {name: len(entries) for name, entries in self.streams.items()}


def cut(
    entries: Iterable[Entry], write: Callable[[Entry], tuple[T, int]], rows_max: int
) -> Iterator[Chunk[T]]:
    """Chunks numbered from 0. `write` gives an entry's written form and its bytes."""
    number, rows, size = 0, 0, 0
    streams: dict[str, list[T]] = {}
    for entry in entries:
        written, entry_size = write(entry)
        crowded = len(streams) == chunk_streams_max and entry.stream not in streams
        if rows and (rows == rows_max or size + entry_size > chunk_bytes_max or crowded):
            yield Chunk(number, streams, rows)
            number, rows, size, streams = number + 1, 0, 0, {}
        streams.setdefault(entry.stream, []).append(written)
        rows += 1
        size += entry_size
    if rows:
        yield Chunk(number, streams, rows)
