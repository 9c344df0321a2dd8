"""Subscriptions: followed streams, and consumers at work, each with its credit.

Knows: what is left of a credit, who holds what, which read comes next.
Must never know: frames on their way, what else there is on the socket, asyncio.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from app.live.in_flight import RELEASED_ONLY_MS, ConsumerKey
from app.live.websocket import frames
from app.live.websocket.effects import Ref
from engine import ids
from engine.commands import Command, Cursor, DescribeGroup, EnsureGroup, XGroupCreateConsumer, XReadGroup

CONSUME_CREDIT_DEFAULT: Final = 100
# A frame's bytes: what one reader that stalls may cost, and what others wait for while it is written.
PAGE_BYTES_MAX: Final = 256 << 10
READ_WAIT_MS: Final = 60_000


class Subscription:
    """One name on the socket. `credit` None is unlimited."""

    __slots__ = ("batch_max", "credit", "ended", "key", "name", "paused")

    def __init__(self, key: int, name: str, credit: int | None, batch_max: int) -> None:
        self.key = key
        self.name = name
        self.credit = credit
        self.batch_max = batch_max
        self.paused = False
        self.ended = False

    @property
    def room(self) -> int:
        """Entries that may be sent now, in one frame."""
        return self.batch_max if self.credit is None else min(self.credit, self.batch_max)

    def spend(self, entries: int) -> None:
        """So many are sent."""
        if self.credit is not None:
            assert entries <= self.credit, "nothing is asked for that there is no credit for"
            self.credit -= entries


class StreamSubscription(Subscription):
    """Followed streams. `behind` are those with entries that were there before, or that had to wait."""

    __slots__ = ("behind", "ready", "ref", "streams", "taking")

    def __init__(self, key: int, frame: frames.SubscribeFrame, batch_max: int) -> None:
        super().__init__(key, frame.sub, None if frame.credit is UNSET else frame.credit, batch_max)
        self.streams = tuple(frame.streams)
        self.ref: Ref = frame.ref
        self.behind = set(self.streams)
        self.ready: list[str] = []
        self.taking: str | None = None


class ConsumerSubscription(Subscription):
    """A consumer of a group. `held` is what was sent and is neither done nor given back.

    `history` is where reading its own unacknowledged entries goes on, None when that is over.
    """

    __slots__ = (
        "claim_min_idle_ms",
        "consumer",
        "group",
        "held",
        "history",
        "looked_upto",
        "looking",
        "noack",
        "owned",
        "reading",
        "stream",
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
        self.held: dict[int, None] = {}
        self.history: int | None = None if self.noack else ids.ID_MIN
        self.owned = False
        self.reading = False
        self.looking = False
        # Where looking whether it still has what it holds goes on.
        self.looked_upto = ids.ID_MIN

    @property
    def whose(self) -> ConsumerKey:
        """Whose entries these are."""
        return ConsumerKey(self.stream, self.group, self.consumer)

    def begin_commands(self, start: int | Cursor | None) -> list[Command]:
        """Make the group if it is to begin somewhere, and the consumer; look where the group is."""
        stream, group = self.stream, self.group
        commands: list[Command] = [
            XGroupCreateConsumer(stream=stream, group=group, consumer=self.consumer),
            DescribeGroup(stream=stream, group=group),
        ]
        if start is not None:
            commands.insert(0, EnsureGroup(stream=stream, group=group, start=start, mkstream=True))
        return commands

    def next_read(self) -> XReadGroup:
        """The read that comes next: of its own entries, then of new ones."""
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
        """These are no longer held: their credit is back."""
        for entry_id in entry_ids:
            if self.held.pop(entry_id, 0) is None and self.credit is not None:
                self.credit += 1


def gap_frame(sub: str, stream: str, requested: int, first_available: int, lost: int | None) -> bytes:
    """The frame that tells of entries removed before they were read."""
    return frames.encode(
        frames.GapFrame(
            sub=sub,
            stream=stream,
            requested=ids.text(requested),
            first_available=ids.text(first_available),
            lost=lost,
        )
    )
