"""Idempotent production: which producer stored which entry under which key (semantics.md 1.5).

Knows: producers, their keys in order of use, how many are kept and how long.
Must never know: streams, clocks, how a key was made.
"""

from collections.abc import Iterator


class Productions:
    """The table of one stream. Keys are raw bytes; IDs integers."""

    __slots__ = ("added", "duplicates", "duration_s", "maxsize", "producers")

    def __init__(self, duration_s: int, maxsize: int) -> None:
        self.duration_s = duration_s
        self.maxsize = maxsize
        self.producers: dict[bytes, dict[bytes, int]] = {}
        self.added = 0
        self.duplicates = 0

    def find(self, producer: bytes, key: bytes) -> int | None:
        """The ID stored under the key."""
        return self.producers.get(producer, {}).get(key)

    def record(self, producer: bytes, key: bytes, entry_id: int) -> None:
        """Remember a production; the producer's oldest goes when there are too many."""
        keys = self.producers.setdefault(producer, {})
        keys[key] = entry_id
        self.added += 1
        while len(keys) > self.maxsize:
            del keys[next(iter(keys))]

    def configure(self, duration_s: int, maxsize: int) -> None:
        """New limits; if they differ from the old ones all keys are forgotten, the counters stay."""
        if (duration_s, maxsize) != (self.duration_s, self.maxsize):
            self.duration_s, self.maxsize = duration_s, maxsize
            self.producers.clear()

    def expired(self, now_ms: int) -> Iterator[tuple[bytes, int]]:
        """For each producer with keys older than `duration_s` (by their entries' IDs), how many of its
        oldest.
        """
        oldest_kept_ms = now_ms - self.duration_s * 1000
        for producer, keys in self.producers.items():
            count = 0
            for entry_id in keys.values():
                if entry_id >> 64 > oldest_kept_ms:
                    break
                count += 1
            if count:
                yield producer, count

    def forget(self, producer: bytes, count: int) -> None:
        """Drop the producer's `count` oldest keys; an empty producer goes."""
        keys = self.producers[producer]
        for key in list(keys)[:count]:
            del keys[key]
        if not keys:
            del self.producers[producer]

    @property
    def keys_tracked(self) -> int:
        """How many keys are held for all producers."""
        return sum(map(len, self.producers.values()))
