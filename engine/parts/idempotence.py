"""What a stream has been asked to do under a key, so that none of it is done twice.

Knows: what was answered under each idempotency key, and which producer stored which entry under which key.
Must never know: commands, what an answer says, what time it is.

Most streams have none of it, and the limits of producers' keys that all streams have by default.
"""

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter
from typing import ClassVar, Final, NamedTuple

from engine.dedup import ANSWER_AGE_MS_MAX, ANSWERS_MAX, Dedup
from engine.memory import ANSWER_BYTES, ANSWER_ID_BYTES, PRODUCER_BYTES, PRODUCTION_BYTES
from engine.parts.part import Holder, StreamPart, Streams
from engine.record import Id, IdList, Record

# Of producers' keys, as Redis has them.
DURATION_S_DEFAULT: Final = 100
MAXSIZE_DEFAULT: Final = 100
# With how many were added and repeated, of a stream that has nothing of it.
UNUSED: Final = (DURATION_S_DEFAULT, MAXSIZE_DEFAULT, 0, 0)
# Rules that are kept to be shared by streams with these limits.
_RULES_MAX: Final = 64


class IdempotentReply(NamedTuple):
    """What was answered under an idempotency key: the body's digest, the IDs given, and when."""

    digest: bytes
    ids: tuple[int, ...]
    at_ms: int


def _answer_bytes(_: str, answer: IdempotentReply) -> int:
    return ANSWER_BYTES + len(answer.ids) * ANSWER_ID_BYTES


ANSWERS: Final = Dedup[str, IdempotentReply](
    attrgetter("at_ms"), ANSWER_AGE_MS_MAX, ANSWERS_MAX, _answer_bytes
)


@lru_cache(_RULES_MAX)
def _rule_of_ids(duration_s: int, maxsize: int) -> Dedup[bytes, int]:
    """One is over when it is as old as `duration_s`."""
    return Dedup(
        lambda entry_id: entry_id >> 64,
        duration_s * 1000 - 1,
        maxsize,
        lambda key, _: _key_bytes(key),
        replaces_old=False,
    )


class Idempotence(StreamPart):
    """The answers under the keys of one stream, the oldest first; and which producer stored which entry under
    which key. Keys of producers are raw bytes; IDs integers.

        producers   p → {key: ID, …}, q → {…}     each producer's keys in order of use
        _dues       [(ms of p's oldest, p), …]    a heap, so that a look costs what has expired

    A producer's item in the heap counts if `_due` names its time; others are left from before, and are passed
    over when they come up. No item that counts is later than its producer's oldest key.
    """

    __slots__ = (
        *("_due", "_dues", "_rule", "added", "answers", "duplicates", "duration_s", "size_bytes", "maxsize"),
        "producers",
    )
    rank = 5
    may_refuse = False

    def __init__(
        self,
        duration_s: int = DURATION_S_DEFAULT,
        maxsize: int = MAXSIZE_DEFAULT,
        added: int = 0,
        duplicates: int = 0,
    ) -> None:
        self.answers: dict[str, IdempotentReply] = {}
        self.producers: dict[bytes, dict[bytes, int]] = {}
        self._dues: list[tuple[int, bytes]] = []
        self._due: dict[bytes, int] = {}
        self.added, self.duplicates = added, duplicates
        self.size_bytes = 0
        self._limit(duration_s, maxsize)

    def _limit(self, duration_s: int, maxsize: int) -> None:
        self.duration_s, self.maxsize = duration_s, maxsize
        self._rule = _rule_of_ids(duration_s, maxsize)

    @property
    def is_over(self) -> bool:
        """Whether the stream is as one without it."""
        limits_and_counts = (self.duration_s, self.maxsize, self.added, self.duplicates)
        return limits_and_counts == UNUSED and not (self.answers or self.producers)

    def find(self, producer: bytes, key: bytes, now_ms: int) -> int | None:
        """The ID stored under the key; none under one that is over, although it is still to be forgotten."""
        return self._rule.find(self.producers.get(producer, {}), key, now_ms)

    def record(self, producer: bytes, key: bytes, entry_id: int) -> None:
        """Remember a key and count it; the producer's oldest goes when there are too many."""
        self.restore(producer, key, entry_id)
        self.added += 1

    def restore(self, producer: bytes, key: bytes, entry_id: int) -> None:
        """Remember a key without counting it."""
        keys = self.producers.get(producer)
        if keys is None:
            keys = self.producers[producer] = {}
            self.size_bytes += _producer_bytes(producer)
        self.size_bytes += self._rule.put(keys, key, entry_id)
        self._watch(producer)

    def configure(self, duration_s: int, maxsize: int) -> None:
        """New limits; if they differ from the old ones all keys are forgotten, the counters stay."""
        if (duration_s, maxsize) != (self.duration_s, self.maxsize):
            self._limit(duration_s, maxsize)
            self.size_bytes -= self._producers_bytes
            self.producers.clear()
            self._dues.clear()
            self._due.clear()

    def _watch(self, producer: bytes) -> None:
        """Let the producer come up when its oldest key expires, at the latest."""
        due_ms = next(iter(self.producers[producer].values())) >> 64
        if due_ms < self._due.get(producer, due_ms + 1):
            self._due[producer] = due_ms
            heappush(self._dues, (due_ms, producer))

    def find_expired(self, now_ms: int, keys_max: int | None = None) -> list[tuple[bytes, int]]:
        """Producers with keys older than `duration_s` (by their entries' IDs), and how many of their oldest.

        At most `keys_max` keys in all; call again for the others once these are forgotten.
        """
        oldest_kept_ms = now_ms - self.duration_s * 1000
        found: dict[bytes, int] = {}
        left = self.maxsize * len(self.producers) if keys_max is None else keys_max
        while self._dues and self._dues[0][0] <= oldest_kept_ms and left > 0:
            due_ms, producer = heappop(self._dues)
            if self._due.get(producer) != due_ms:
                continue
            del self._due[producer]
            count = self._rule.count_old(self.producers[producer], now_ms, left)
            if count:
                found[producer] = count
                left -= count
            else:
                self._watch(producer)
        for producer in found:
            self._watch(producer)
        return list(found.items())

    def forget(self, producer: bytes, count: int) -> None:
        """Drop the producer's `count` oldest keys; an empty producer goes."""
        keys = self.producers[producer]
        self.size_bytes += self._rule.forget(keys, count)
        self._due.pop(producer, None)
        if keys:
            self._watch(producer)
        else:
            del self.producers[producer]
            self.size_bytes -= _producer_bytes(producer)

    @property
    def _producers_bytes(self) -> int:
        keys_bytes = sum(_key_bytes(key) for keys in self.producers.values() for key in keys)
        return keys_bytes + sum(map(_producer_bytes, self.producers))

    @property
    def footprint_bytes(self) -> int:
        """How much memory it takes, counted anew."""
        return self._producers_bytes + sum(_answer_bytes(*item) for item in self.answers.items())

    @property
    def keys_tracked(self) -> int:
        """How many keys are held for all producers."""
        return sum(map(len, self.producers.values()))

    @property
    def kept_bytes(self) -> int:
        """The same as it is kept."""
        return self.size_bytes

    @property
    def copy_cost(self) -> int:
        """What a copy holds of it."""
        return len(self.answers) + self.keys_tracked

    def garbage(self) -> list[object]:
        """What is large in it."""
        return [one for one in (self.answers, self.producers) if one]

    def copy(self) -> "Idempotence":
        """The same, which goes on by itself."""
        copy = Idempotence(self.duration_s, self.maxsize, self.added, self.duplicates)
        for producer, keys in self.producers.items():
            for key, entry_id in keys.items():
                copy.restore(producer, key, entry_id)
        copy.answers, copy.size_bytes = self.answers.copy(), self.size_bytes
        return copy

    def begin_fork(self) -> "Idempotence | None":
        """The limits alone."""
        fork = Idempotence(self.duration_s, self.maxsize)
        return None if fork.is_over else fork

    def behind(self, stream: str) -> Iterable[Record]:
        """Keys and answers; limits and counts are in the record of the stream."""
        producers, answers = [(one, keys.copy()) for one, keys in self.producers.items()], self.answers.copy()
        keys = (
            RestoreProducerKey(stream, producer, key, entry_id)
            for producer, held in producers
            for key, entry_id in held.items()
        )
        return chain(keys, (RememberAnswer(stream, key, *answer) for key, answer in answers.items()))

    def check(self) -> None:
        """Assert that what is kept is what is there."""
        assert self.size_bytes == self.footprint_bytes, "the bytes of keys and answers"
        assert not self.is_over, "a stream without any has none of it"


_NONE: Final = Idempotence()


def idempotence_of(key: Holder) -> Idempotence:
    """What the stream has of it, or what all others have, which is only read."""
    for part in key.parts:
        if type(part) is Idempotence:
            return part
    return _NONE


def _producer_bytes(producer: bytes) -> int:
    """How much memory a producer takes beside its keys."""
    return PRODUCER_BYTES + len(producer)


def _key_bytes(key: bytes) -> int:
    """How much memory one key takes."""
    return PRODUCTION_BYTES + len(key)


class _OfIdempotence(Record, frozen=True):
    """A change of it; the first one makes it."""

    # Whether nothing may be left of it then.
    may_end: ClassVar[bool] = False
    stream: str

    def apply(self, keyspace: Streams) -> None:
        key = keyspace.keys[self.stream]
        part = Idempotence.of(key) or keyspace.put_part(self.stream, Idempotence())
        before = part.size_bytes
        self.change(part)
        key.footprint.add(part.size_bytes - before)
        if part.answers or part.producers:
            keyspace.maintained[self.stream] = None
        elif self.may_end and part.is_over:
            keyspace.drop_part(self.stream, Idempotence)

    def change(self, part: Idempotence) -> None:
        raise AssertionError("each record has its own")


class RememberProducerKey(_OfIdempotence, frozen=True):
    """An entry stored under a producer's key."""

    number = 17
    producer: bytes
    key: bytes
    id: Id

    def change(self, part: Idempotence) -> None:
        part.record(self.producer, self.key, self.id)


class RepeatProducerKey(_OfIdempotence, frozen=True):
    """A key was used again: only counted."""

    number = 18

    def change(self, part: Idempotence) -> None:
        part.duplicates += 1


class ConfigureProducerKeys(_OfIdempotence, frozen=True):
    """New limits of producers' keys, which are forgotten where these differ."""

    number = 19
    may_end = True
    duration_s: int
    maxsize: int

    def change(self, part: Idempotence) -> None:
        part.configure(self.duration_s, self.maxsize)


class ForgetProducerKeys(_OfIdempotence, frozen=True):
    """A producer's oldest keys."""

    number = 20
    producer: bytes
    count: int

    def change(self, part: Idempotence) -> None:
        part.forget(self.producer, self.count)


class RememberAnswer(_OfIdempotence, frozen=True):
    """What an idempotency key was answered; keys older than a day, and the oldest beyond 10 000, are
    forgotten.
    """

    number = 21
    key: str
    digest: bytes
    ids: IdList
    at_ms: int

    def change(self, part: Idempotence) -> None:
        answer = IdempotentReply(self.digest, tuple(self.ids), self.at_ms)
        part.size_bytes += ANSWERS.put(part.answers, self.key, answer)


class RestoreProducerKey(_OfIdempotence, frozen=True):
    """Of a snapshot: a key without counting it."""

    number = 69
    producer: bytes
    key: bytes
    id: Id

    def change(self, part: Idempotence) -> None:
        part.restore(self.producer, self.key, self.id)


class ForgetAnswers(_OfIdempotence, frozen=True):
    """The oldest answers under idempotency keys: of a stream, or (empty) of publications into many."""

    number = 27
    may_end = True
    count: int

    def apply(self, keyspace: Streams) -> None:
        if self.stream:
            super().apply(keyspace)
        else:
            keyspace.forget_published(self.count)

    def change(self, part: Idempotence) -> None:
        part.size_bytes += ANSWERS.forget(part.answers, self.count)
