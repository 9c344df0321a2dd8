"""Idempotent publishing: which producer stored which entry under which key (docs/semantics.md).

Knows: producers, their keys in order of use, how many are kept and how long.
Must never know: streams, clocks, how a key was made.

    producers   p → {key: ID, …}, q → {…}     each producer's keys in order of use
    _dues       [(ms of p's oldest, p), …]    a heap, so that a look costs what has expired, not what there is

A producer's item in the heap counts if `_due` names its time; others are left from before, and are passed
over when they come up. No item that counts is later than its producer's oldest key.
"""

from functools import lru_cache
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from engine.memory import PRODUCER_BYTES, PRODUCTION_BYTES, Footprint

# Tables without keys that are kept to be shared: each has limits of its own.
_UNUSED_TABLES_MAX: Final = 64


class IdempotencyTable:
    """The table of one stream. Keys are raw bytes; IDs integers."""

    __slots__ = ("_due", "_dues", "added", "duplicates", "duration_s", "footprint", "maxsize", "producers")

    def __init__(self, duration_s: int, maxsize: int, footprint: Footprint | None = None) -> None:
        # Without one it is a table that streams without keys share, and is never written.
        self.footprint = footprint or Footprint()
        self.duration_s = duration_s
        self.maxsize = maxsize
        self.producers: dict[bytes, dict[bytes, int]] = {}
        self._dues: list[tuple[int, bytes]] = []
        self._due: dict[bytes, int] = {}
        self.added = 0
        self.duplicates = 0

    def find(self, producer: bytes, key: bytes, now_ms: int) -> int | None:
        """The ID stored under the key; none under one that is over, although it is still to be forgotten."""
        found = self.producers.get(producer, {}).get(key)
        return None if found is None or found >> 64 <= self._oldest_kept_ms(now_ms) else found

    def record(self, producer: bytes, key: bytes, entry_id: int) -> None:
        """Remember a key and count it; the producer's oldest goes when there are too many."""
        self.restore(producer, key, entry_id)
        self.added += 1
        keys = self.producers[producer]
        while len(keys) > self.maxsize:
            oldest = next(iter(keys))
            del keys[oldest]
            self.footprint.add(-key_bytes(oldest))
            self._watch(producer)

    def restore(self, producer: bytes, key: bytes, entry_id: int) -> None:
        """Remember a key without counting it."""
        keys = self.producers.get(producer)
        if keys is None:
            keys = self.producers[producer] = {}
            self.footprint.add(producer_bytes(producer))
        # One that is over may be there still: in order of use it comes last now.
        if keys.pop(key, None) is None:
            self.footprint.add(key_bytes(key))
        keys[key] = entry_id
        if len(keys) == 1:
            self._watch(producer)

    def configure(self, duration_s: int, maxsize: int) -> None:
        """New limits; if they differ from the old ones all keys are forgotten, the counters stay."""
        if (duration_s, maxsize) != (self.duration_s, self.maxsize):
            self.duration_s, self.maxsize = duration_s, maxsize
            self.footprint.add(-self.footprint_bytes)
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
        oldest_kept_ms = self._oldest_kept_ms(now_ms)
        found: dict[bytes, int] = {}
        left = self.maxsize * len(self.producers) if keys_max is None else keys_max
        while self._dues and self._dues[0][0] <= oldest_kept_ms and left > 0:
            due_ms, producer = heappop(self._dues)
            if self._due.get(producer) != due_ms:
                continue
            del self._due[producer]
            count = self._count_upto(producer, oldest_kept_ms, left)
            if count:
                found[producer] = count
                left -= count
            else:
                self._watch(producer)
        for producer in found:
            self._watch(producer)
        return list(found.items())

    def _oldest_kept_ms(self, now_ms: int) -> int:
        return now_ms - self.duration_s * 1000

    def _count_upto(self, producer: bytes, oldest_kept_ms: int, keys_max: int) -> int:
        """How many of the producer's oldest keys are not to be kept."""
        count = 0
        for entry_id in islice(self.producers[producer].values(), keys_max):
            if entry_id >> 64 > oldest_kept_ms:
                break
            count += 1
        return count

    def forget(self, producer: bytes, count: int) -> None:
        """Drop the producer's `count` oldest keys; an empty producer goes."""
        keys = self.producers[producer]
        for key in list(islice(keys, count)):
            del keys[key]
            self.footprint.add(-key_bytes(key))
        self._due.pop(producer, None)
        if keys:
            self._watch(producer)
        else:
            del self.producers[producer]
            self.footprint.add(-producer_bytes(producer))

    @property
    def footprint_bytes(self) -> int:
        """How much memory the table takes, counted anew."""
        return sum(
            producer_bytes(producer) + sum(map(key_bytes, keys)) for producer, keys in self.producers.items()
        )

    @property
    def keys_tracked(self) -> int:
        """How many keys are held for all producers."""
        return sum(map(len, self.producers.values()))


def producer_bytes(producer: bytes) -> int:
    """How much memory a producer takes beside its keys."""
    return PRODUCER_BYTES + len(producer)


def key_bytes(key: bytes) -> int:
    """How much memory one key takes."""
    return PRODUCTION_BYTES + len(key)


@lru_cache(_UNUSED_TABLES_MAX)
def unused_table(duration_s: int, maxsize: int) -> IdempotencyTable:
    """The table of all streams with these limits that never had a key. It is never written."""
    return IdempotencyTable(duration_s, maxsize)
