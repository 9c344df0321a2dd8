"""Entries in flight: sent to a consumer, and neither acknowledged nor given back.

Knows: the commands that check which entries a consumer still has, return unsent ones, and end a consumer's
read; how to read their replies.
Must never know: asyncio, credit, the transport.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from engine import ids
from engine.commands import EndWait, GiveBack, XPendingRange
from engine.replies import PendingList

# An idle time that no entry reaches: a read claims released entries only.
RELEASED_ONLY_MS: Final = (1 << 53) - 1
# A consumer's own entries become idle too: with a shorter time it would claim its own entries repeatedly.
CLAIM_MIN_IDLE_MS_MIN: Final = 1_000
# Interval at which a consumer without room checks whether its entries were settled or claimed by others.
CHECK_S: Final = 1.0
# Entries that one check covers.
_CHECKED_MAX: Final = 10_000


class ConsumerKey(NamedTuple):
    """The consumer whose entries are read."""

    stream: str
    group: str
    name: str

    def give_back(self, entry_ids: Sequence[int]) -> GiveBack:
        """Return entries that were not sent; their delivery counts are restored."""
        return GiveBack(stream=self.stream, group=self.group, consumer=self.name, ids=tuple(entry_ids))

    def leave(self) -> EndWait:
        """End the read. Counts as read until now, even if delivery was delayed by backpressure."""
        return EndWait(streams=[self.stream], group=self.group, consumer=self.name)


class PendingCheck:
    """A check of which entries a consumer still has pending; `sent` is not empty.

    One check covers up to 10,000 entries. If more were sent, it covers those after `after`, and starts again
    from the first once it has reached the last. `command` replies with a PendingList.
    """

    def __init__(self, consumer: ConsumerKey, sent: Sequence[int], after: int = ids.ID_MIN) -> None:
        in_order = sorted(sent)
        at = bisect_right(in_order, after) if len(in_order) > _CHECKED_MAX else 0
        self._sent = in_order[at : at + _CHECKED_MAX] or in_order[:_CHECKED_MAX]
        self.command = XPendingRange(
            stream=consumer.stream,
            group=consumer.group,
            start=self._sent[0],
            end=self._sent[-1],
            count=_CHECKED_MAX,
            consumer=consumer.name,
        )

    def upto(self, reply: PendingList) -> int:
        """The last ID that the check covered; pass it as `after` to the next check."""
        return reply.entries[-1].id if reply.more else self._sent[-1]

    def gone(self, reply: PendingList) -> list[int]:
        """The IDs that are no longer pending with the consumer."""
        upto = self.upto(reply)
        own = {one.id for one in reply.entries}
        return [one for one in self._sent if one <= upto and one not in own]
