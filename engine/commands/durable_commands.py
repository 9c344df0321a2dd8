"""The commands of Durable Streams: create, append, describe.

Knows: the arguments of each. Must never know: HTTP, how offsets and bodies are written, what a command does.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import ClassVar

import msgspec

from engine import rows
from engine.commands.base import MemoryNeed, StreamCommand
from engine.keyspace import Keyspace
from engine.name_marks import Body, StreamKey
from engine.quotas import Quota


class ProducerBatch(msgspec.Struct, frozen=True):
    """Which batch of which run of a producer it is."""

    producer: str
    epoch: int
    seq: int


class ForkPoint(msgspec.Struct, frozen=True):
    """Where a fork begins: behind the entry `upto` of its source, None for its last one, and `beyond` more
    messages, or bytes of the next entry. `generation` is that of the source, empty where it is not known.
    """

    source: StreamKey
    upto: int | None = None
    beyond: int = 0
    generation: str = ""


class CreateDurable(StreamCommand, frozen=True, kw_only=True):
    """Create a stream of this media type, with entries; or find one that was created so. Reply:
    `DurableCreated`.

    `config` identifies what else it is created with. `expires_at_ms` is a time, `ttl_ms` lets it live for
    that long after each use. `closes`: it ends behind these entries. A `fork` begins
    with entries of another stream; it has the media type and the lifetime of that where none is given.
    """

    media: str
    config: bytes = b""
    bodies: Sequence[Body] = ()
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    closes: bool = False
    fork: ForkPoint | None = None

    def named_streams(self) -> tuple[str, ...]:
        return (self.stream,) if self.fork is None else (self.stream, self.fork.source)

    def grown_streams(self, keyspace: Keyspace, quota: Quota) -> Sequence[str]:
        return [self.stream] if quota.matches(self.stream) else []

    def entry_bytes(self) -> int:
        return rows.size(self.bodies)

    def memory_need(self, keyspace: Keyspace) -> MemoryNeed:
        return MemoryNeed.ADDS if keyspace.find(self.stream) is None else MemoryNeed.NONE


class AppendDurable(StreamCommand, frozen=True, kw_only=True):
    """Append to a stream of Durable Streams, all or none, once for each batch of a producer. Reply:
    `DurableAppended`.

    `kind` is the media type of the entries, without parameters, in lower case. `writer_seq` has to be above
    the one before. With `closes` the stream ends behind the entries, which may be none.
    """

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    bodies: Sequence[Body]
    kind: str
    writer_seq: bytes | None = None
    batch: ProducerBatch | None = None
    closes: bool = False

    def entry_bytes(self) -> int:
        return rows.size(self.bodies)


class AppendBatches(StreamCommand, frozen=True, kw_only=True):
    """Append batches of producers, one behind the other, of each as many bodies as `counts` says. Where the
    stream takes no entries, or not all of these, they are refused together. Reply: `BatchesAppended`.
    """

    needs: ClassVar[MemoryNeed] = MemoryNeed.ADDS

    kind: str
    batches: Sequence[ProducerBatch]
    counts: Sequence[int]
    bodies: Sequence[Body]

    def entry_bytes(self) -> int:
        return rows.size(self.bodies)

    def bodies_of_each(self) -> Iterator[Sequence[bytes]]:
        """The bodies of each batch."""
        ends = accumulate(self.counts, initial=0)
        return (self.bodies[start:end] for start, end in pairwise(ends))


class DescribeDurable(StreamCommand, frozen=True, kw_only=True):
    """Reply: `DurableInfo`, None for a missing stream. It is no use of the stream.

    `after` is the position of a reader, None for none, and `known` the generation that it is of, empty where
    that is not known.
    """

    changes: ClassVar[bool] = False
    touches: ClassVar[bool] = False

    after: int | None = None
    known: str = ""
