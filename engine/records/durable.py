"""What changes in a stream of Durable Streams beside its entries, and how each change is done.

Knows: each resolved change, with its `apply`.
Must never know: files, frames, clients, why something changed.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat

from engine.copying import fork_key
from engine.durable_streams import DurableStream, Origin, ProducerPlace
from engine.keyspace import Keyspace
from engine.records.changes import Id, IdList, Record, TextList


class SetMedia(Record, frozen=True):
    """The stream is one of Durable Streams from here on."""

    number = 34
    stream: str
    media: str
    ttl_ms: int | None
    config: bytes

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.keys[self.stream].own_durable(DurableStream(self.media, self.ttl_ms, self.config))


class ForkStream(Record, frozen=True):
    """The stream is new, with the entries of another one up to an ID, and nothing else of it."""

    number = 37
    stream: str
    source: str
    upto: Id
    generation: str

    def apply(self, keyspace: Keyspace) -> None:
        self._fork(keyspace, None)

    def _fork(self, keyspace: Keyspace, texts: Sequence[bytes] | None) -> None:
        source, limits = keyspace.keys[self.source], keyspace.node_limits()
        key, cold = fork_key(source, self.generation, self.upto, limits, texts)
        keyspace.create(self.stream, key)
        keyspace.cold += cold


class ForkStored(ForkStream, frozen=True):
    """The same where it ends in a run: with what it has of that, so that no file is needed to do it again."""

    number = 49
    texts: TextList

    def apply(self, keyspace: Keyspace) -> None:
        self._fork(keyspace, self.texts)


class NoteFork(Record, frozen=True):
    """The stream is a fork of another one, whose name stays taken until it is gone."""

    number = 38
    stream: str
    source: str

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.forks.add(self.stream, self.source)


class SetOrigins(Record, frozen=True):
    """Of a fork: the generations of the streams that it has entries of, and up to which IDs."""

    number = 51
    stream: str
    generations: Sequence[str]
    upto: IdList

    def apply(self, keyspace: Keyspace) -> None:
        key = keyspace.keys[self.stream]
        durable = key.durable
        assert durable is not None, "it is one of Durable Streams by now"
        before = durable.footprint_bytes
        durable.origins = tuple(map(Origin, self.generations, self.upto))
        key.footprint.add(durable.footprint_bytes - before)


class RestoreHidden(Record, frozen=True):
    """Of a snapshot: a stream was removed and has forks."""

    number = 71
    stream: str

    def apply(self, keyspace: Keyspace) -> None:
        keyspace.forks.hidden[self.stream] = None


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
        _advance(keyspace, self.stream, {self.producer: ProducerPlace(self.epoch, self.seq, self.at_ms)})


class AdvanceProducers(Record, frozen=True):
    """The same of several that have written at one time."""

    number = 50
    stream: str
    producers: Sequence[str]
    epochs: Sequence[int]
    seqs: Sequence[int]
    at_ms: int

    def apply(self, keyspace: Keyspace) -> None:
        places = map(ProducerPlace, self.epochs, self.seqs, repeat(self.at_ms))
        _advance(keyspace, self.stream, dict(zip(self.producers, places, strict=True)))


def _advance(keyspace: Keyspace, stream: str, places: Mapping[str, ProducerPlace]) -> None:
    key = keyspace.keys[stream]
    durable = key.durable
    assert durable is not None, "the command has looked"
    before = durable.footprint_bytes
    durable.advance(places)
    key.footprint.add(durable.footprint_bytes - before)
