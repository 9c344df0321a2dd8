"""What producers have published into many streams: the answers of their chunks, so that none is stored twice.

Knows: producers, the chunks of the last two epochs of each, and which producer goes when there are too many.
Must never know: streams, what an answer says, clocks.

A producer counts its runs (epochs) and the chunks of each. A chunk sent again in the last epoch or
in the one before gets its first answer; an older epoch is stale, for any chunk. Nothing
expires: a run that died may be taken up again after weeks.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from engine.memory import CHUNK_BYTES, PRODUCER_BYTES, Total

# Beyond these the producers that published longest ago are forgotten, with all that is known of them; the
# one that has just published stays. A chunk takes about 150 bytes beside its answer, which has a row for each
# of its streams.
PRODUCERS_MAX: Final = 10_000
CHUNKS_MAX: Final = 500_000
ANSWER_BYTES_MAX: Final = 128 * 1024 * 1024
# Of one epoch; more are refused. Two epochs are within the bounds above, give or take an answer.
EPOCH_CHUNKS_MAX: Final = 100_000
EPOCH_BYTES_MAX: Final = 64 * 1024 * 1024


class Producer:
    """The answers of the chunks of two epochs, and their bytes; `edition` is that of its last writing."""

    __slots__ = ("before", "before_bytes", "before_epoch", "chunks", "chunks_bytes", "edition", "epoch")

    def __init__(self, epoch: int, edition: int) -> None:
        self.epoch = epoch
        self.chunks: dict[int, bytes] = {}
        self.chunks_bytes = 0
        # The epoch before it; -1 for none.
        self.before_epoch = -1
        self.before: dict[int, bytes] = {}
        self.before_bytes = 0
        self.edition = edition

    @property
    def count(self) -> int:
        """How many chunks it has."""
        return len(self.chunks) + len(self.before)

    @property
    def size(self) -> int:
        """How many bytes their answers have."""
        return self.chunks_bytes + self.before_bytes

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return PRODUCER_BYTES + self.count * CHUNK_BYTES + self.size


class HeldProducer(NamedTuple):
    """A producer as it was: its epochs, the older one first, each with its chunks."""

    name: str
    epochs: tuple[tuple[int, Mapping[int, bytes]], tuple[int, Mapping[int, bytes]]]


class Producers:
    """All producers, the one that published longest ago first."""

    __slots__ = ("answer_bytes", "chunk_count", "edition", "footprint", "producers")

    def __init__(self, footprint: Total | None = None) -> None:
        self.footprint = footprint or Total()
        self.producers: dict[str, Producer] = {}
        self.chunk_count = 0
        self.answer_bytes = 0
        self.edition = 0

    def epoch(self, name: str) -> int:
        """The last epoch of the producer, -1 for one that is not known."""
        producer = self.producers.get(name)
        return -1 if producer is None else producer.epoch

    def answer(self, name: str, epoch: int, chunk: int) -> bytes | None:
        """What was answered, None for a chunk that was not stored or is not known any more."""
        producer = self.producers.get(name)
        if producer is None:
            return None
        if epoch == producer.epoch:
            return producer.chunks.get(chunk)
        return producer.before.get(chunk) if epoch == producer.before_epoch else None

    def has_room(self, name: str, epoch: int) -> bool:
        """Whether another chunk of the epoch may be stored."""
        producer = self.producers.get(name)
        if producer is None or epoch != producer.epoch:
            return True
        return len(producer.chunks) < EPOCH_CHUNKS_MAX and producer.chunks_bytes < EPOCH_BYTES_MAX

    def remember(self, name: str, epoch: int, chunk: int, answer: bytes) -> None:
        """Keep the answer of a chunk of the producer's last epoch, or of a newer one."""
        assert epoch >= self.epoch(name), "an older epoch is stale"
        producer = self.producers.pop(name, None)
        if producer is None:
            producer = Producer(epoch, self.edition)
        else:
            self._count(producer, -1)
        self.producers[name] = producer
        if epoch > producer.epoch:
            producer.before_epoch, producer.before = producer.epoch, producer.chunks
            producer.before_bytes = producer.chunks_bytes
            producer.epoch, producer.chunks, producer.chunks_bytes = epoch, {}, 0
        elif producer.edition != self.edition:
            # A snapshot holds the one before.
            producer.chunks = producer.chunks.copy()
        producer.edition = self.edition
        producer.chunks_bytes += len(answer) - len(producer.chunks.get(chunk, b""))
        producer.chunks[chunk] = answer
        self._count(producer, 1)
        while self._too_many() and len(self.producers) > 1:
            oldest = next(iter(self.producers))
            self._count(self.producers.pop(oldest), -1)

    def _count(self, producer: Producer, sign: int) -> None:
        self.chunk_count += sign * producer.count
        self.answer_bytes += sign * producer.size
        self.footprint.add(sign * producer.footprint_bytes)

    def _too_many(self) -> bool:
        return (
            len(self.producers) > PRODUCERS_MAX
            or self.chunk_count > CHUNKS_MAX
            or self.answer_bytes > ANSWER_BYTES_MAX
        )

    def clear(self) -> None:
        """Forget all of them. A snapshot that holds them keeps its copy."""
        self.footprint.add(-self.footprint_bytes)
        self.producers.clear()
        self.chunk_count = self.answer_bytes = 0

    @property
    def footprint_bytes(self) -> int:
        """How much memory they take."""
        chunks_bytes = self.chunk_count * CHUNK_BYTES + self.answer_bytes
        return len(self.producers) * PRODUCER_BYTES + chunks_bytes

    def hold(self) -> list[HeldProducer]:
        """All as they are now: from here on chunks are copied before they are written."""
        self.edition += 1
        return [
            HeldProducer(name, ((producer.before_epoch, producer.before), (producer.epoch, producer.chunks)))
            for name, producer in self.producers.items()
        ]

    def check(self) -> None:
        """Assert that counts and epochs agree."""
        assert self.chunk_count == sum(producer.count for producer in self.producers.values()), (
            "chunks are counted"
        )
        assert self.answer_bytes == sum(producer.size for producer in self.producers.values()), (
            "bytes are counted"
        )
        for producer in self.producers.values():
            assert producer.chunks_bytes == sum(map(len, producer.chunks.values())), "the last epoch's bytes"
            assert producer.before_bytes == sum(map(len, producer.before.values())), "those of the one before"
        assert all(producer.before_epoch < producer.epoch for producer in self.producers.values()), (
            "epochs ascend"
        )
        assert all(producer.chunks for producer in self.producers.values()), "an epoch begins with a chunk"
