"""What changes in a stream of Durable Streams beside its entries, and how each change is done.

Knows: each resolved change, with its `apply`.
Must never know: files, frames, clients, why something changed.
"""

from engine.durable_streams import DurableStream, ProducerPlace
from engine.keyspace import Keyspace
from engine.records.changes import Record


class SetMedia(Record, frozen=True):
    """The stream is one of Durable Streams from here on."""

    number = 34
    stream: str
    media: str
    ttl_ms: int | None
    config: bytes

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].own_durable(DurableStream(self.media, self.ttl_ms, self.config))


class SetWriterSeq(Record, frozen=True):
    """The highest `Stream-Seq` that was written."""

    number = 35
    stream: str
    seq: bytes

    def apply(self, keyspace: Keyspace) -> None:
        durable = keyspace.keys[self.stream].durable
        assert durable is not None, "the command has looked"
        durable.writer_seq = self.seq


class AdvanceProducer(Record, frozen=True):
    """How far a producer is. Times ascend; what has been silent for too long is forgotten."""

    number = 36
    stream: str
    producer: str
    epoch: int
    seq: int
    at_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.keys[self.stream]
        durable = key.durable
        assert durable is not None, "the command has looked"
        before = durable.footprint_bytes
        durable.advance(self.producer, ProducerPlace(self.epoch, self.seq, self.at_ms))
        key.footprint.add(durable.footprint_bytes - before)
