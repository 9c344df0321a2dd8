"""Subscriptions of a session: followed streams and consumers, each with its credit.

Knows: remaining credit, entries in flight, which read comes next.
Must never know: the connection, other subscriptions, asyncio.
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET

from app.doors.websocket import frames
from app.doors.websocket.effects import Ref
from app.http.entries.entry_pages import GapReport
from app.live.in_flight import RELEASED_ONLY_MS, ConsumerKey
from engine import ids
from engine.commands import Command, Cursor, DescribeGroup, EnsureGroup, XGroupCreateConsumer, XReadGroup

CONSUME_CREDIT_DEFAULT: Final = 100
# Maximum size of a frame: the cost of a stalled reader, and the time other readers wait for one write.
PAGE_BYTES_MAX: Final = 256 << 10
READ_WAIT_MS: Final = 60_000


class Subscription:
    """One subscription of a connection. `credit` None is unlimited."""

    __slots__ = ("away", "batch_max", "credit", "ended", "key", "name", "paused")

    def __init__(self, key: int, name: str, credit: int | None, batch_max: int) -> None:
        self.key = key
        self.name = name
        self.credit = credit
        self.batch_max = batch_max
        self.paused = False
        # The client knows that the backend cannot be used.
        self.away = False
        self.ended = False

    @property
    def room(self) -> int:
        """The number of entries that may be sent now in one frame."""
        return self.batch_max if self.credit is None else min(self.credit, self.batch_max)

    def spend(self, entries: int) -> None:
        """Take sent entries off the credit."""
        if self.credit is not None:
            assert entries <= self.credit, "no more is requested than there is credit for"
            self.credit -= entries


class StreamSubscription(Subscription):
    """Followed streams. `behind` are the streams with older entries, or entries that waited for credit. With
    `in_full` cursors have generations.
    """

    __slots__ = ("behind", "in_full", "ready", "ref", "streams", "taking")

    def __init__(self, key: int, frame: frames.SubscribeFrame, batch_max: int, *, in_full: bool) -> None:
        super().__init__(key, frame.sub, None if frame.credit is UNSET else frame.credit, batch_max)
        self.in_full = in_full
        self.streams = tuple(frame.streams)
        self.ref: Ref = frame.ref
        self.behind = set(self.streams)
        self.ready: list[str] = []
        self.taking: str | None = None


class ConsumerSubscription(Subscription):
    """A consumer of a group. `in_flight` is what was sent and neither acknowledged nor given back.

    `history` is the position in its own pending entries, None once they were all read. `unsure`: a reply was
    lost, so it may have been given entries that were not sent. `resting`: it reads nothing for now.
    """

    __slots__ = (
        "claim_min_idle_ms",
        "consumer",
        "group",
        "history",
        "in_flight",
        "looked_upto",
        "looking",
        "noack",
        "owned",
        "reading",
        "resting",
        "stream",
        "unsure",
    )

    def __init__(self, key: int, frame: frames.ConsumeFrame, batch_max: int) -> None:
        credit = CONSUME_CREDIT_DEFAULT if frame.credit is UNSET else frame.credit
        super().__init__(key, frame.sub, credit, batch_max)
        self.stream = frames.name(frame.stream, "stream name")
        self.group = frames.name(frame.group, "group name")
        self.consumer = frames.name(frame.consumer, "consumer name")
        self.noack = frame.noack is True
        idle_ms = frame.claim_min_idle_ms
        self.claim_min_idle_ms = RELEASED_ONLY_MS if idle_ms is UNSET else idle_ms
        self.in_flight: dict[int, None] = {}
        self.history: int | None = None if self.noack else ids.ID_MIN
        self.owned = False
        self.reading = False
        self.resting = False
        self.unsure = False
        self.looking = False
        # Where the next check of the entries in flight continues.
        self.looked_upto = ids.ID_MIN

    @property
    def consumer_key(self) -> ConsumerKey:
        """The consumer whose entries are read."""
        return ConsumerKey(self.stream, self.group, self.consumer)

    def begin_commands(self, start: int | Cursor | None) -> list[Command]:
        """Commands that create the group (with `start`) and the consumer, and read the group's position."""
        stream, group = self.stream, self.group
        commands: list[Command] = [
            XGroupCreateConsumer(stream=stream, group=group, consumer=self.consumer),
            DescribeGroup(stream=stream, group=group),
        ]
        if start is not None:
            commands.insert(0, EnsureGroup(stream=stream, group=group, start=start, mkstream=True))
        return commands

    def next_read(self) -> XReadGroup:
        """The next read: first of its own pending entries, then of new ones."""
        history = self.history is not None
        return XReadGroup(
            group=self.group,
            consumer=self.consumer,
            streams=[(self.stream, Cursor.NEW if self.history is None else self.history)],
            count=self.room,
            block_ms=None if history else READ_WAIT_MS,
            noack=self.noack,
            claim_min_idle_ms=None if history else self.claim_min_idle_ms,
            claims_own=False,
            bytes_max=PAGE_BYTES_MAX,
        )

    def release(self, entry_ids: Iterable[int]) -> None:
        """Remove entries from those in flight, and add them to the credit."""
        for entry_id in entry_ids:
            if self.in_flight.pop(entry_id, 0) is None and self.credit is not None:
                self.credit += 1


def gap_frame(sub: str, stream: str, gap: GapReport) -> bytes:
    """The `gap` frame: entries are not there to be read."""
    members: dict[str, Any] = gap.members()
    return frames.encode(frames.GapFrame(sub=sub, stream=stream, **members))


def caught_up_frame(sub: str, stream: str, cursor: str) -> bytes:
    """The `caught_up` frame: every entry up to `cursor` was sent."""
    return frames.encode(frames.CaughtUpFrame(sub=sub, stream=stream, next=cursor))
