"""What producers have published into many streams: the answers of their chunks, so that none is stored twice.

Knows: producers, the chunks of the last two epochs of each, and which producer goes when there are too many.
Must never know: streams, what an answer says, clocks.

A producer counts its runs (epochs) and the chunks of each. Whoever tries a chunk again in its last epoch or
in the one before is answered as the first time; an older one is stale, whatever it wants to store. Nothing
expires: a run that died may be taken up again after weeks.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

# Beyond these the producers that published longest ago are forgotten, with all that is known of them. A
# chunk takes about 200 bytes.
producers_max: Final = 10_000
chunks_max: Final = 500_000
# Of one epoch; more are refused.
epoch_chunks_max: Final = 100_000


class Producer:
    """The answers of the chunks of two epochs. `edition` is that of the producers at its last writing."""

    __slots__ = ("before", "before_epoch", "chunks", "edition", "epoch")

    def __init__(self, epoch: int, edition: int) -> None:
        self.epoch = epoch
        self.chunks: dict[int, bytes] = {}
        # The epoch before it; -1 for none.
        self.before_epoch = -1
        self.before: dict[int, bytes] = {}
        self.edition = edition

    @property
    def count(self) -> int:
        """How many chunks it has."""
        return len(self.chunks) + len(self.before)


class HeldProducer(NamedTuple):
    """A producer as it was: its epochs, the older one first, each with its chunks."""

    name: str
    epochs: tuple[tuple[int, Mapping[int, bytes]], tuple[int, Mapping[int, bytes]]]


class Producers:
    """All producers, the one that published longest ago first."""

    __slots__ = ("chunk_count", "edition", "producers")

    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        self.chunk_count = 0
        self.edition = 0

    def epoch(self, name: str) -> int:
        """The last epoch of the producer, -1 for one that is not known."""
        found = self.producers.get(name)
        return -1 if found is None else found.epoch

    def answer(self, name: str, epoch: int, chunk: int) -> bytes | None:
        """What was answered, None for a chunk that was not stored or is not known any more."""
        found = self.producers.get(name)
        if found is None:
            return None
        if epoch == found.epoch:
            return found.chunks.get(chunk)
        return found.before.get(chunk) if epoch == found.before_epoch else None

    def has_room(self, name: str, epoch: int) -> bool:
        """Whether another chunk of the epoch may be stored."""
        found = self.producers.get(name)
        return found is None or epoch != found.epoch or len(found.chunks) < epoch_chunks_max

    def remember(self, name: str, epoch: int, chunk: int, answer: bytes) -> None:
        """Keep the answer of a chunk of the producer's last epoch, or of a newer one."""
        assert epoch >= self.epoch(name), "an older epoch is stale"
        found = self.producers.pop(name, None)
        if found is None:
            found = Producer(epoch, self.edition)
        self.producers[name] = found
        self.chunk_count -= found.count
        if epoch > found.epoch:
            found.before_epoch, found.before = found.epoch, found.chunks
            found.epoch, found.chunks = epoch, {}
        elif found.edition != self.edition:
            # Somebody holds it as it was.
            found.chunks = found.chunks.copy()
        found.edition = self.edition
        found.chunks[chunk] = answer
        self.chunk_count += found.count
        while len(self.producers) > producers_max or self.chunk_count > chunks_max:
            oldest = next(iter(self.producers))
            self.chunk_count -= self.producers.pop(oldest).count

    def hold(self) -> list[HeldProducer]:
        """All as they are now: from here on chunks are copied before they are written."""
        self.edition += 1
        return [
            HeldProducer(name, ((one.before_epoch, one.before), (one.epoch, one.chunks)))
            for name, one in self.producers.items()
        ]

    def check(self) -> None:
        """Assert that counts and epochs agree."""
        assert self.chunk_count == sum(one.count for one in self.producers.values()), "chunks are counted"
        assert all(one.before_epoch < one.epoch for one in self.producers.values()), "epochs ascend"
        assert all(one.chunks for one in self.producers.values()), "an epoch begins with a chunk"
