"""What a stream of Durable Streams has beside its entries: media type, lifetime, and how far its writers are.

Knows: the last sequence of each producer, and which producer goes when there are too many.
Must never know: commands, HTTP, what time it is.

A producer counts its runs (epochs), and in each its batches from 0. The state of one that has been silent for
a week, or longest of too many, is forgotten: it begins again at 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import ClassVar, Final, NamedTuple

from engine import entries, errors
from engine.dedup import Dedup
from engine.errors import EngineError
from engine.memory import DURABLE_BYTES, DURABLE_ORIGIN_BYTES, DURABLE_PRODUCER_BYTES
from engine.parts.part import StreamPart, Streams
from engine.record import IdList, Record

# Its entries are JSON texts.
JSON_MEDIA: Final = "application/json"
# A page that is reloaded each minute with a new name for its producer reaches this in a week.
PRODUCERS_MAX: Final = 10_000
PRODUCER_AGE_MS_MAX: Final = 7 * 24 * 3600 * 1000
# Streams that a fork has entries of, one through the other, whose positions are its own.
ORIGINS_MAX: Final = 16
# Media types that are remembered.
_KINDS_MAX: Final = 256


class ProducerPlace(NamedTuple):
    """The epoch of a producer, the last sequence in it, and when that was written."""

    epoch: int
    seq: int
    at_ms: int


_PRODUCERS: Final = Dedup[str, ProducerPlace](
    attrgetter("at_ms"), PRODUCER_AGE_MS_MAX, PRODUCERS_MAX, lambda _, __: DURABLE_PRODUCER_BYTES
)


class Origin(NamedTuple):
    """A stream that a fork has the entries of, up to an ID: to there, a position of the one is one of the
    other.
    """

    generation: str
    upto: int


@lru_cache(_KINDS_MAX)
def kind_of(media: str) -> str:
    """The media type without its parameters, in lower case."""
    return media.partition(";")[0].strip().lower()


class DurableStream(StreamPart):
    """`config` identifies what the stream was created with beside its media type. With `ttl_ms` it lives on
    for that long after each use.
    """

    __slots__ = ("config", "kind", "media", "origins", "producers", "ttl_ms", "writer_seq")
    rank = 40
    refusals: ClassVar = {"not_data": errors.not_data}

    def __init__(self, media: str, ttl_ms: int | None, config: bytes) -> None:
        # As it was given, and as it is compared.
        self.media, self.kind = media, kind_of(media)
        self.ttl_ms = ttl_ms
        self.config = config
        # The highest `Stream-Seq`, empty before the first.
        self.writer_seq = b""
        # Of a fork: its source first, then the source of that.
        self.origins: Sequence[Origin] = ()
        # The one that wrote longest ago first.
        self.producers: dict[str, ProducerPlace] = {}

    @property
    def lives_on_ms(self) -> int | None:
        """Its time to live."""
        return self.ttl_ms

    def origins_upto(self, generation: str, upto: int) -> Sequence[Origin]:
        """Those of a fork of this stream, of this generation, up to an ID."""
        before = [Origin(one.generation, min(one.upto, upto)) for one in self.origins[: ORIGINS_MAX - 1]]
        return [Origin(generation, upto), *before]

    def place_of(self, producer: str, now_ms: int) -> ProducerPlace | None:
        """How far a producer is; None for one that has not written, or not for too long."""
        return _PRODUCERS.find(self.producers, producer, now_ms)

    def last_ms(self) -> int:
        """When a producer last wrote; 0 where none has."""
        return next(reversed(self.producers.values())).at_ms if self.producers else 0

    def advance(self, places: Mapping[str, ProducerPlace]) -> None:
        """Note what producers have written at one time, in the order of time."""
        for producer, place in places.items():
            _PRODUCERS.put(self.producers, producer, place)

    def copy(self) -> "DurableStream":
        """The same, which goes on by itself, and is no fork."""
        copy = DurableStream(self.media, self.ttl_ms, self.config)
        copy.writer_seq, copy.producers = self.writer_seq, dict(self.producers)
        return copy

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, about."""
        producers_bytes = DURABLE_PRODUCER_BYTES * len(self.producers)
        return DURABLE_BYTES + producers_bytes + DURABLE_ORIGIN_BYTES * len(self.origins)

    def regenerate(self, renew: Callable[[str], str]) -> None:
        """Its origins are other ones."""
        self.origins = [one._replace(generation=renew(one.generation)) for one in self.origins]

    def before(self, stream: str) -> Sequence[Record]:
        """What it is."""
        records: list[Record] = [SetMedia(stream, self.media, self.ttl_ms, self.config)]
        if self.origins:
            records.append(SetOrigins(stream, *zip(*self.origins, strict=True)))
        if self.writer_seq:
            records.append(SetWriterSeq(stream, self.writer_seq))
        return records

    def behind(self, stream: str) -> Iterable[Record]:
        """Its producers."""
        held = self.producers.copy()
        return (AdvanceProducer(stream, name, *place) for name, place in held.items())

    def may_hold(self, bodies: Sequence[bytes]) -> EngineError | None:
        """What readers of Durable Streams could not read is refused."""
        for body in bodies:
            data = entries.data_of(body)
            if data is None or (self.kind == JSON_MEDIA and not entries.is_json(data)):
                return errors.not_data(self.kind)
        return None


class SetMedia(Record, frozen=True):
    """The stream is one of Durable Streams from here on."""

    number = 34
    stream: str
    media: str
    ttl_ms: int | None
    config: bytes

    def apply(self, keyspace: Streams) -> None:
        keyspace.put_part(self.stream, DurableStream(self.media, self.ttl_ms, self.config))


class _OfDurable(Record, frozen=True):
    """Of a stream that is one of Durable Streams by now."""

    stream: str

    def apply(self, keyspace: Streams) -> None:
        key = keyspace.keys[self.stream]
        durable = DurableStream.of(key)
        assert durable is not None, "the command has looked"
        before = durable.footprint_bytes
        self.change(durable)
        key.footprint.add(durable.footprint_bytes - before)

    def change(self, durable: DurableStream) -> None:
        raise AssertionError("each record has its own")


class SetOrigins(_OfDurable, frozen=True):
    """Of a fork: the generations of the streams that it has entries of, and up to which IDs."""

    number = 51
    generations: Sequence[str]
    upto: IdList

    def change(self, durable: DurableStream) -> None:
        durable.origins = tuple(map(Origin, self.generations, self.upto))


class SetWriterSeq(_OfDurable, frozen=True):
    """The highest `Stream-Seq` that was written."""

    number = 35
    seq: bytes

    def change(self, durable: DurableStream) -> None:
        durable.writer_seq = self.seq


class AdvanceProducer(_OfDurable, frozen=True):
    """How far a producer is. Times ascend; what has been silent for too long is forgotten."""

    number = 36
    producer: str
    epoch: int
    seq: int
    at_ms: int

    def change(self, durable: DurableStream) -> None:
        durable.advance({self.producer: ProducerPlace(self.epoch, self.seq, self.at_ms)})


class AdvanceProducers(_OfDurable, frozen=True):
    """The same of several that have written at one time."""

    number = 50
    producers: Sequence[str]
    epochs: Sequence[int]
    seqs: Sequence[int]
    at_ms: int

    def change(self, durable: DurableStream) -> None:
        places = map(ProducerPlace, self.epochs, self.seqs, repeat(self.at_ms))
        durable.advance(dict(zip(self.producers, places, strict=True)))
