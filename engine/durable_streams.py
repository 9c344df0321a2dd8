"""What a stream of Durable Streams has beside its entries: media type, lifetime, and how far its writers are.

Knows: the last sequence of each producer, and which producer goes when there are too many.
Must never know: entries, commands, HTTP, what time it is.

A producer counts its runs (epochs), and in each its batches from 0. The state of one that has been silent for
a week, or longest of too many, is forgotten: it begins again at 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from engine.memory import DURABLE_BYTES, DURABLE_ORIGIN_BYTES, DURABLE_PRODUCER_BYTES

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


class DurableStream:
    """`config` identifies what the stream was created with beside its media type. With `ttl_ms` it lives on
    for that long after each use.
    """

    __slots__ = ("config", "kind", "media", "origins", "producers", "ttl_ms", "writer_seq")

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

    def origins_upto(self, generation: str, upto: int) -> Sequence[Origin]:
        """Those of a fork of this stream, of this generation, up to an ID."""
        before = [Origin(one.generation, min(one.upto, upto)) for one in self.origins[: ORIGINS_MAX - 1]]
        return [Origin(generation, upto), *before]

    def place_of(self, producer: str, now_ms: int) -> ProducerPlace | None:
        """How far a producer is; None for one that has not written, or not for too long."""
        place = self.producers.get(producer)
        return None if place is None or now_ms - place.at_ms > PRODUCER_AGE_MS_MAX else place

    def last_ms(self) -> int:
        """When a producer last wrote; 0 where none has."""
        return next(reversed(self.producers.values())).at_ms if self.producers else 0

    def advance(self, places: Mapping[str, ProducerPlace]) -> None:
        """Note what producers have written at one time, in the order of time."""
        for producer in places:
            self.producers.pop(producer, None)
        self.producers.update(places)
        oldest_ms = self.last_ms() - PRODUCER_AGE_MS_MAX
        if len(self.producers) > PRODUCERS_MAX or next(iter(self.producers.values())).at_ms < oldest_ms:
            for name in list(self._gone(oldest_ms)):
                del self.producers[name]

    def _gone(self, oldest_ms: int) -> Iterator[str]:
        over = len(self.producers) - PRODUCERS_MAX
        for at, (name, place) in enumerate(self.producers.items()):
            if at >= over and place.at_ms >= oldest_ms:
                return
            yield name

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
