"""How much memory the data takes, and whether there is room for more.

Knows: an estimate that is kept by adding and subtracting, never by a walk; how much the process really holds.
Must never know: streams, commands, where the figures of the process come from.

    estimate    bytes of the data by the constants below; the process confirms them within a fifth, for four
                shapes of data (tests/engine/test_memory.py)
    resident    what the operating system counts for the process, looked at once a second
    buffers     of the resident size, what has limits of its own: answers on their way, bodies on theirs
    beside      what is resident and neither data nor buffers: interpreter, what the allocator cannot use
    used        estimate + beside

Neither figure will do alone. The estimate knows nothing of buffers and fragments. The resident size does not
fall when data is deleted, for the allocator keeps freed memory for what comes next: a limit on that alone
would never let writes in again. So `beside` grows where the resident size grows by more than the estimate,
and never exceeds what is resident beyond the estimate. Deleting makes room at once, and `used` never exceeds
the larger of the two.
"""

from collections.abc import Callable
from typing import Final

import msgspec

# Measured with CPython 3.11 on 64-bit Linux: objects with their headers, rounded as the allocator rounds,
# their slots in lists at their usual filling, and the integers and names that belong to nothing else.
STREAM_BYTES: Final = 410
OPEN_NODE_BYTES: Final = 190
# An entry of an open node, beside its text.
ENTRY_BYTES: Final = 112
# A sealed node, beside its text.
NODE_BYTES: Final = 400
# A run of any size, and an ID that was deleted in one.
RUN_BYTES: Final = 430
GONE_ID_BYTES: Final = 56
# What a stream has once its first node is sealed, beside the nodes.
SEALED_NODES_BYTES: Final = 800
GROUP_BYTES: Final = 660
CONSUMER_BYTES: Final = 800
# A pending entry, packed; what it takes beside that in lists of its group, and in those of its consumer.
PENDING_BYTES: Final = 61
PENDING_LIST_BYTES: Final = 104
HELD_LIST_BYTES: Final = 50
# What is remembered of an idempotent publication: its key and digest, and each of its IDs.
ANSWER_BYTES: Final = 460
ANSWER_ID_BYTES: Final = 56
# An entry that was deleted after it was archived.
DELETED_BYTES: Final = 52
PRODUCER_BYTES: Final = 620
# A schedule, beside its name, its entry and its rule.
SCHEDULE_BYTES: Final = 250
# What a stream of Durable Streams has beside its entries, and of that a producer.
DURABLE_BYTES: Final = 420
DURABLE_PRODUCER_BYTES: Final = 330
DURABLE_ORIGIN_BYTES: Final = 200
# An idempotent ID of a producer, a chunk of a producer.
PRODUCTION_BYTES: Final = 300
CHUNK_BYTES: Final = 250
# Consumers may take entries, which makes them pending, until the limit is exceeded by a tenth: only what is
# delivered can be worked off, and that makes room.
_DELIVERY_PART: Final = 10


class Total:
    """The estimated bytes of many things together, and how many `parts` they are."""

    __slots__ = ("alone", "bytes", "parts")

    def __init__(self) -> None:
        self.bytes = 0
        self.parts = 0
        # What a part that joins nothing else has: one for all of them.
        self.alone: tuple[Total, ...] = (self,)

    def add(self, size: int) -> None:
        """Add bytes; negative to subtract."""
        self.bytes += size


class Footprint(msgspec.Struct, gc=False, eq=False):
    """The estimated bytes of something. Each whole that it joins holds the sum of its parts.

    The collector passes it over: a whole does not lead back to its parts.
    """

    bytes: int = 0
    _wholes: tuple[Total, ...] = ()

    def add(self, size: int) -> None:
        """Add bytes; negative to subtract."""
        self.bytes += size
        for whole in self._wholes:
            whole.bytes += size

    def join(self, whole: Total) -> None:
        """Be a part of `whole` from here on."""
        assert whole not in self._wholes, "a part of each whole once"
        self._wholes = (*self._wholes, whole) if self._wholes else whole.alone
        whole.bytes += self.bytes
        whole.parts += 1

    def leave(self, whole: Total) -> None:
        """Be a part of `whole` no more."""
        left = tuple(one for one in self._wholes if one is not whole)
        self._wholes = left[0].alone if len(left) == 1 else left
        whole.bytes -= self.bytes
        whole.parts -= 1

    def leave_all(self) -> None:
        """Be a part of nothing: what it counts is to be freed."""
        for whole in self._wholes:
            self.leave(whole)


class Memory:
    """The data's memory beside its limit, `bytes_max`; None is no limit. Above `bytes_soft` cold entries
    leave it; None is never.
    """

    def __init__(self, bytes_max: int | None = None, bytes_soft: int | None = None) -> None:
        self.bytes_max, self.bytes_soft = bytes_max, bytes_soft
        self._full_at = float("inf") if bytes_max is None else bytes_max
        self._over_at = self._full_at + self._full_at // _DELIVERY_PART if bytes_max else self._full_at
        # Of all streams together; a new one where all are removed at once. And of what belongs to none.
        self.streams = Total()
        self.shared = Total()
        # What was removed and is not freed yet: while a rewrite reads it, it is not.
        self.garbage = Total()
        self.resident_bytes = 0
        self._beside_bytes = 0
        # Of the resident size, what the limit is about.
        self._counted_bytes = 0
        self._seen_bytes = 0
        self._was_full = False
        # Returns the bytes of buffers: readers that do not read never bring a refusal to writers.
        self.buffers: Callable[[], int] = lambda: 0
        # Called with whether it is full, when that has changed.
        self.on_change: Callable[[bool], None] | None = None

    @property
    def estimated_bytes(self) -> int:
        """The data, by its parts."""
        return self.streams.bytes + self.shared.bytes + self.garbage.bytes

    @property
    def used_bytes(self) -> int:
        """What the limit is compared with."""
        return self.estimated_bytes + self._beside_bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing may be added."""
        return self.used_bytes >= self._full_at

    @property
    def is_over(self) -> bool:
        """Whether nothing may be delivered to consumers either."""
        return self.used_bytes >= self._over_at

    def observe(self, resident_bytes: int | None) -> None:
        """Take in what the process holds; None where that cannot be known."""
        if resident_bytes is not None:
            estimated = self.estimated_bytes
            counted = max(0, resident_bytes - self.buffers())
            explained = max(0, estimated - self._seen_bytes)
            grown = counted - self._counted_bytes - explained
            self._beside_bytes = max(0, min(self._beside_bytes + max(0, grown), counted - estimated))
            self.resident_bytes, self._counted_bytes, self._seen_bytes = resident_bytes, counted, estimated
        if self.is_full != self._was_full:
            self._was_full = self.is_full
            if self.on_change is not None:
                self.on_change(self._was_full)
