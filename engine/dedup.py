"""What was done under which key, so that none of it is done twice: one class, five declarations.

Knows: of each table how old what is in it may be, how many it holds, how much memory each takes.
Must never know: streams, clocks, what an answer says.

    table                                   key    too old                       at most
    answers of a stream, of publications    any    a day behind their time       10 000
    places of Durable producers             name   a week behind their time      10 000, each stream
    IDs of a producer                       any    as configured, by their IDs   as configured, each producer
    chunks of a producer                    number never                         two epochs

Tables are dicts, what came first at their front. What is too old is not found, though it may still be there:
it goes with the next that comes, or when time is looked after. IDs go by number, as a record says.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice, takewhile
from math import inf
from operator import attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from engine.memory import (
    ANSWER_BYTES,
    ANSWER_ID_BYTES,
    CHUNK_BYTES,
    PRODUCER_BYTES,
    Total,
)

K = TypeVar("K")
V = TypeVar("V")

ANSWER_AGE_MS_MAX: Final = 24 * 3600 * 1000
ANSWERS_MAX: Final = 10_000
# Beyond these the producers that published longest ago are forgotten, with all that is known of them; the
# one that has just published stays. A chunk takes about 150 bytes beside its answer, which has a row for each
# of its streams.
PRODUCERS_MAX: Final = 10_000
CHUNKS_MAX: Final = 500_000
ANSWER_BYTES_MAX: Final = 128 * 1024 * 1024
# Of one epoch; more are refused. Two epochs are within the bounds above, give or take an answer.
EPOCH_CHUNKS_MAX: Final = 100_000
EPOCH_BYTES_MAX: Final = 64 * 1024 * 1024


class Dedup(msgspec.Struct, Generic[K, V], frozen=True):
    """What is so of all tables of one kind. Changes return by how many bytes a table takes more."""

    at_ms: Callable[[V], int]
    age_ms_max: float
    most: int
    bytes_of: Callable[[K, V], int]
    # What is too old goes with the next that comes.
    replaces_old: bool = True

    def is_old(self, value: V, now_ms: int) -> bool:
        """Whether it is not found any more."""
        return now_ms - self.at_ms(value) > self.age_ms_max

    def find(self, table: Mapping[K, V], key: K, now_ms: int) -> V | None:
        """What is there under the key."""
        found = table.get(key)
        return None if found is None or self.is_old(found, now_ms) else found

    def put(self, table: dict[K, V], key: K, value: V) -> int:
        """Enter it at the end; the oldest of too many go, but never the last one."""
        grown = self.bytes_of(key, value) - (self.bytes_of(key, table.pop(key)) if key in table else 0)
        table[key] = value
        now_ms, held = self.at_ms(value), table.values()
        while len(table) > self.most or (self.replaces_old and self.is_old(next(iter(held)), now_ms)):
            grown += self.forget(table, 1)
        return grown

    def count_old(self, table: Mapping[K, V], now_ms: int, most: int) -> int:
        """How many of the oldest are not found any more, `most` at most."""
        return sum(1 for _ in takewhile(lambda one: self.is_old(one, now_ms), islice(table.values(), most)))

    def forget(self, table: dict[K, V], count: int) -> int:
        """Take out the oldest."""
        return -sum(self.bytes_of(key, table.pop(key)) for key in list(islice(table, count)))


# --- answers ------------------------------------------------------------------------------------------------


class IdempotentPublishReply(NamedTuple):
    """What a publication into many streams was answered: for each its first and last ID and their number."""

    digest: bytes
    streams: tuple[tuple[str, tuple[int, ...]], ...]
    at_ms: int

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        return sum(ANSWER_BYTES + len(given) * ANSWER_ID_BYTES for _, given in self.streams)


PUBLISHED: Final = Dedup[str, IdempotentPublishReply](
    attrgetter("at_ms"), ANSWER_AGE_MS_MAX, ANSWERS_MAX, lambda _, one: one.footprint_bytes
)


# --- chunks -------------------------------------------------------------------------------------------------


class Epoch:
    """The answers of its chunks, and their bytes."""

    __slots__ = ("bytes", "chunks")

    def __init__(self) -> None:
        self.chunks: dict[int, bytes] = {}
        self.bytes = 0


class Producer:
    """Its last epoch and the one before, which comes first; `edition` is that of its last writing."""

    __slots__ = ("edition", "epochs")

    def __init__(self) -> None:
        self.epochs: dict[int, Epoch] = {}
        self.edition = 0

    @property
    def count(self) -> int:
        """How many chunks it has."""
        return sum(len(epoch.chunks) for epoch in self.epochs.values())

    @property
    def size(self) -> int:
        """How many bytes their answers have."""
        return sum(epoch.bytes for epoch in self.epochs.values())


# Never too old: a run that died may be taken up again after weeks.
_CHUNKS: Final = Dedup[int, bytes](lambda _: 0, inf, EPOCH_CHUNKS_MAX, lambda _, answer: len(answer))


class HeldProducer(NamedTuple):
    """A producer as it was: its epochs, the older one first, each with its chunks."""

    name: str
    epochs: Sequence[tuple[int, Mapping[int, bytes]]]


class Producers:
    """What producers have published into many streams: the answers of their chunks, so that none is stored
    twice. The producer that published longest ago comes first.

    A producer counts its runs (epochs) and the chunks of each. A chunk sent again in the last epoch or
    in the one before gets its first answer; an older epoch is stale, for any chunk.
    """

    __slots__ = ("answer_bytes", "chunk_count", "edition", "footprint", "producers")

    def __init__(self, footprint: Total | None = None) -> None:
        self.footprint = footprint or Total()
        self.producers: dict[str, Producer] = {}
        self.chunk_count = self.answer_bytes = self.edition = 0

    def epoch(self, name: str) -> int:
        """The last epoch of the producer, -1 for one that is not known."""
        return max(self._epochs(name), default=-1)

    def _epochs(self, name: str) -> Mapping[int, Epoch]:
        producer = self.producers.get(name)
        return {} if producer is None else producer.epochs

    def answer(self, name: str, epoch: int, chunk: int) -> bytes | None:
        """What was answered, None for a chunk that was not stored or is not known any more."""
        found = self._epochs(name).get(epoch)
        return None if found is None else _CHUNKS.find(found.chunks, chunk, 0)

    def has_room(self, name: str, epoch: int) -> bool:
        """Whether another chunk of the epoch may be stored."""
        found = self._epochs(name).get(epoch)
        return found is None or (len(found.chunks) < EPOCH_CHUNKS_MAX and found.bytes < EPOCH_BYTES_MAX)

    def remember(self, name: str, epoch: int, chunk: int, answer: bytes) -> None:
        """Keep the answer of a chunk of the producer's last epoch, or of a newer one."""
        assert epoch >= self.epoch(name), "an older epoch is stale"
        producer = self._take_out(name) if name in self.producers else Producer()
        kept = producer.epochs.get(epoch)
        if kept is None:
            kept = Epoch()
            producer.epochs = {**dict(list(producer.epochs.items())[-1:]), epoch: kept}
        elif producer.edition != self.edition:
            # A snapshot holds the one before.
            kept.chunks = kept.chunks.copy()
        producer.edition = self.edition
        kept.bytes += _CHUNKS.put(kept.chunks, chunk, answer)
        self.producers[name] = producer
        self._count(producer, 1)
        while self._too_many() and len(self.producers) > 1:
            self._take_out(next(iter(self.producers)))

    def _take_out(self, name: str) -> Producer:
        producer = self.producers.pop(name)
        self._count(producer, -1)
        return producer

    def _count(self, producer: Producer, sign: int) -> None:
        self.chunk_count += sign * producer.count
        self.answer_bytes += sign * producer.size
        self.footprint.add(sign * (PRODUCER_BYTES + producer.count * CHUNK_BYTES + producer.size))

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
        return len(self.producers) * PRODUCER_BYTES + self.chunk_count * CHUNK_BYTES + self.answer_bytes

    def hold(self) -> list[HeldProducer]:
        """All as they are now: from here on chunks are copied before they are written."""
        self.edition += 1
        return [
            HeldProducer(name, [(number, epoch.chunks) for number, epoch in producer.epochs.items()])
            for name, producer in self.producers.items()
        ]

    def check(self) -> None:
        """Assert that counts and epochs agree."""
        every = self.producers.values()
        assert self.chunk_count == sum(producer.count for producer in every), "chunks are counted"
        assert self.answer_bytes == sum(producer.size for producer in every), "bytes are counted"
        for producer in every:
            assert 1 <= len(producer.epochs) <= 2 and list(producer.epochs) == sorted(producer.epochs), (  # noqa: PT018
                "epochs ascend"
            )
            for epoch in producer.epochs.values():
                assert epoch.bytes == sum(map(len, epoch.chunks.values())), "the bytes of an epoch"
                assert epoch.chunks, "an epoch begins with a chunk"
