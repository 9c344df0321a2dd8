"""One consumer of a group, as a pure state machine: replies in, the next command out.

Knows: credit, which read comes next, which entries are in flight, what is unsure, what goes back.
Must never know: asyncio, clocks, the running engine, how entries are sent.

    next_read() ─► XREADGROUP ─► take(reply) ─► entries to be sent, and its own pending entries come first
                                 decline(found) ─► those that are not sent go back
    no room:   check() ─► XPENDING ─► note_checked(reply) ─► what others have settled or claimed is released
    unsure:    find_unsent() ─► XPENDING ─► unsent(reply) ─► those that a lost reply has delivered go back
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from app.live.leases import ConsumerKey
from engine import ids
from engine.commands.types import Cursor, Until, XPendingRange, XReadGroup
from engine.replies import GroupRead, PendingList, StreamDeliveries, StreamEnd

# An idle time that no entry reaches: a read claims released entries only.
RELEASED_ONLY_MS: Final = (1 << 53) - 1
# A consumer's own entries become idle too: with a shorter time it would claim its own entries repeatedly.
CLAIM_MIN_IDLE_MS_MIN: Final = 1_000
# Interval at which a consumer without room checks whether its entries were settled or claimed by others.
CHECK_S: Final = 1.0
# Entries that one check covers, or one look for those that were not sent.
_CHECKED_MAX: Final = 10_000


class Credit:
    """How many entries may still be sent, at most `batch_max` at once. `left` None is no limit."""

    __slots__ = ("batch_max", "left")

    def __init__(self, left: int | None, batch_max: int) -> None:
        self.left = left
        self.batch_max = batch_max

    @property
    def room(self) -> int:
        """The number of entries that may be sent now, at once."""
        return self.batch_max if self.left is None else min(self.left, self.batch_max)

    def spend(self, entries: int) -> None:
        """Take sent entries off the credit."""
        if self.left is not None:
            assert entries <= self.left, "no more is requested than there is credit for"
            self.left -= entries


class PendingCheck:
    """A check of which entries a consumer still has pending; `sent` is not empty.

    One check covers up to 10,000 entries. If more were sent, it covers those after `after`, and starts again
    from the first once it has reached the last. `command` replies with a PendingList.
    """

    __slots__ = ("_sent", "command")

    def __init__(self, consumer: ConsumerKey, sent: Iterable[int], after: int) -> None:
        in_order = sorted(sent)
        at = bisect_right(in_order, after) if len(in_order) > _CHECKED_MAX else 0
        self._sent = in_order[at : at + _CHECKED_MAX] or in_order[:_CHECKED_MAX]
        self.command = _pending(consumer, self._sent[0], self._sent[-1])

    def upto(self, reply: PendingList) -> int:
        """The last ID that the check covered."""
        return reply.entries[-1].id if reply.more else self._sent[-1]

    def gone(self, reply: PendingList) -> list[int]:
        """The IDs that are no longer pending with the consumer."""
        upto = self.upto(reply)
        own = {entry.id for entry in reply.entries}
        return [entry_id for entry_id in self._sent if entry_id <= upto and entry_id not in own]


class Taken(NamedTuple):
    """What a read has brought, to be sent now: nothing, or deliveries of these IDs. With it the consumer may
    have `caught_up` with its own pending entries.
    """

    found: StreamDeliveries | None
    ids: Sequence[int]
    caught_up: bool
    # Where its stream is closed, and the group has all of it: once, and once more when it is drained.
    end: StreamEnd | None = None
    # Where the group was paused, and where it was resumed.
    paused: bool | None = None

    @property
    def is_new(self) -> bool:
        """Whether new entries came: the next read leaves no trace if it finds nothing."""
        return self.found is not None and not self.found.history and bool(self.ids)


class Consumer:
    """A consumer, from its lease on. `in_flight` is what was sent and neither acknowledged nor given back.

    `history` is the position in its own pending entries, None once they were all read. `is_unsure`: a reply
    was lost, so it may have been given entries that were not sent.
    """

    __slots__ = (
        "_bytes_max",
        "_claim_min_idle_ms",
        "_looked_upto",
        "credit",
        "history",
        "in_flight",
        "is_closed",
        "is_drained",
        "is_paused",
        "is_unsure",
        "key",
        "noack",
    )

    def __init__(
        self,
        key: ConsumerKey,
        credit: Credit,
        *,
        bytes_max: int,
        claim_min_idle_ms: int | None = None,
        noack: bool = False,
    ) -> None:
        self.key = key
        self.credit = credit
        self.noack = noack
        self._bytes_max = bytes_max
        self._claim_min_idle_ms = RELEASED_ONLY_MS if claim_min_idle_ms is None else claim_min_idle_ms
        self.in_flight: dict[int, None] = {}
        self.history: int | None = None if noack else ids.ID_MIN
        self.is_unsure = False
        # What of the end was said, and whether that the group is paused.
        self.is_closed = self.is_drained = self.is_paused = False
        # Where the next check of the entries in flight continues.
        self._looked_upto = ids.ID_MIN

    def next_read(self, block_ms: int) -> XReadGroup:
        """The next read: of its own pending entries, then of new ones, for which it waits."""
        history = self.history
        return XReadGroup(
            group=self.key.group,
            consumer=self.key.name,
            streams=[(self.key.stream, Cursor.NEW if history is None else history)],
            count=self.credit.room,
            block_ms=block_ms if history is None else None,
            noack=self.noack,
            claim_min_idle_ms=self._claim_min_idle_ms if history is None else None,
            claims_own=False,
            bytes_max=self._bytes_max,
            # What was given back comes as long as something is pending.
            until=Until.DRAINED if self.is_closed else Until.CLOSED,
            knows_paused=self.is_paused,
        )

    def take_reply(self, reply: GroupRead) -> Taken:
        """Count what a read has brought: it is sent."""
        delivered = reply.streams[0] if reply.streams else None
        more = bool(reply.unfinished) or (delivered is not None and delivered.more)
        given = () if delivered is None else [entry.id for entry in delivered.entries]
        if delivered is not None and given:
            if delivered.history:
                self.history = given[-1]
            # Entries that were released or claimed meanwhile and are delivered again count once.
            self.release(given)
            self.credit.spend(len(given))
            if not self.noack:
                self.in_flight.update(dict.fromkeys(given))
        caught_up = self.history is not None and not more
        if caught_up:
            self.history = None
        return Taken(delivered, given, caught_up, self._end(reply), self._pause(reply))

    def _end(self, reply: GroupRead) -> StreamEnd | None:
        """The end, where there is something new to say of it: entries of its own come first."""
        if self.history is not None or not reply.closed:
            return None
        end = reply.closed[0]
        is_news = not self.is_closed or (end.drained and not self.is_drained)
        self.is_closed, self.is_drained = True, end.drained
        return end if is_news else None

    def _pause(self, reply: GroupRead) -> bool | None:
        """Whether the group is paused, where that is news."""
        is_paused = bool(reply.paused)
        if is_paused == self.is_paused:
            return None
        self.is_paused = is_paused
        return is_paused

    def decline(self, delivered: StreamDeliveries) -> Sequence[int]:
        """What goes back of deliveries that are not sent. One that was in flight before was released
        meanwhile.
        """
        given = [entry.id for entry in delivered.entries]
        self.release(given)
        return () if self.noack else given

    def release(self, entry_ids: Iterable[int]) -> None:
        """Remove entries from those in flight, and add them to the credit."""
        for entry_id in entry_ids:
            if self.in_flight.pop(entry_id, 0) is None and self.credit.left is not None:
                self.credit.left += 1

    # ---- what others have settled

    def check(self) -> PendingCheck:
        """A check of what is in flight, which is something."""
        return PendingCheck(self.key, self.in_flight, self._looked_upto)

    def note_checked(self, check: PendingCheck, reply: PendingList) -> None:
        """Release what is no longer pending."""
        self._looked_upto = check.upto(reply)
        self.release(check.gone(reply))

    # ---- what a lost reply has delivered

    def lose(self) -> None:
        """A reply was lost."""
        self.is_unsure = not self.noack

    def find_unsent(self, start: int = ids.ID_MIN) -> XPendingRange:
        """Look for entries that a lost reply has delivered. Reading history would count as a delivery, so
        they go back to the group.
        """
        return _pending(self.key, start, ids.ID_MAX)

    def unsent(self, reply: PendingList) -> tuple[Sequence[int], int | None]:
        """Those that go back, and where to look for more."""
        unsent = [entry.id for entry in reply.entries if entry.id not in self.in_flight]
        return unsent, reply.entries[-1].id + 1 if reply.more else None


def _pending(consumer: ConsumerKey, start: int, end: int) -> XPendingRange:
    return XPendingRange(
        stream=consumer.stream,
        group=consumer.group,
        start=start,
        end=end,
        count=_CHECKED_MAX,
        consumer=consumer.name,
    )
