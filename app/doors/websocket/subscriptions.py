"""Subscriptions of a session: followed streams and consumers, each with its credit.

Knows: what each has said to its client, what it waits for.
Must never know: the connection, other subscriptions, asyncio.
"""

from typing import Any, Final

from msgspec import UNSET

from app.doors.websocket import frames
from app.doors.websocket.effects import Ref
from app.http.entries.entry_pages import GapReport
from app.live.consumer import Consumer, Credit
from app.live.leases import ConsumerKey
from engine.commands import Command, Cursor, DescribeGroup, EnsureGroup, XGroupCreateConsumer

CONSUME_CREDIT_DEFAULT: Final = 100
# Maximum size of a frame: the cost of a stalled reader, and the time other readers wait for one write.
PAGE_BYTES_MAX: Final = 256 << 10
READ_WAIT_MS: Final = 60_000


class Subscription:
    """One subscription of a connection."""

    __slots__ = ("away", "credit", "ended", "key", "name", "paused")

    def __init__(self, key: int, name: str, credit: Credit) -> None:
        self.key = key
        self.name = name
        self.credit = credit
        self.paused = False
        # The client knows that the backend cannot be used.
        self.away = False
        self.ended = False


class StreamSubscription(Subscription):
    """Followed streams. `behind` are the streams with older entries, or entries that waited for credit. With
    `in_full` cursors have generations.
    """

    __slots__ = ("behind", "in_full", "ready", "ref", "streams", "taking")

    def __init__(self, key: int, frame: frames.SubscribeFrame, batch_max: int, *, in_full: bool) -> None:
        super().__init__(key, frame.sub, Credit(None if frame.credit is UNSET else frame.credit, batch_max))
        self.in_full = in_full
        self.streams = tuple(frame.streams)
        self.ref: Ref = frame.ref
        self.behind = set(self.streams)
        self.ready: list[str] = []
        self.taking: str | None = None


class ConsumerSubscription(Subscription):
    """A consumer of a group. `resting`: it reads nothing for now."""

    __slots__ = ("consumer", "looking", "owned", "reading", "resting")

    def __init__(self, key: int, frame: frames.ConsumeFrame, batch_max: int) -> None:
        credit = CONSUME_CREDIT_DEFAULT if frame.credit is UNSET else frame.credit
        super().__init__(key, frame.sub, Credit(credit, batch_max))
        self.consumer = Consumer(
            ConsumerKey(
                frames.name(frame.stream, "stream name"),
                frames.name(frame.group, "group name"),
                frames.name(frame.consumer, "consumer name"),
            ),
            self.credit,
            bytes_max=PAGE_BYTES_MAX,
            claim_min_idle_ms=None if frame.claim_min_idle_ms is UNSET else frame.claim_min_idle_ms,
            noack=frame.noack is True,
        )
        self.owned = False
        self.reading = False
        self.resting = False
        self.looking = False

    def begin_commands(self, start: int | Cursor | None) -> list[Command]:
        """Commands that create the group (with `start`) and the consumer, and read the group's position."""
        stream, group, name = self.consumer.key
        commands: list[Command] = [
            XGroupCreateConsumer(stream=stream, group=group, consumer=name),
            DescribeGroup(stream=stream, group=group),
        ]
        if start is not None:
            commands.insert(0, EnsureGroup(stream=stream, group=group, start=start, mkstream=True))
        return commands


def gap_frame(sub: str, stream: str, gap: GapReport) -> bytes:
    """The `gap` frame: entries are not there to be read."""
    members: dict[str, Any] = gap.members()
    return frames.encode(frames.GapFrame(sub=sub, stream=stream, **members))


def caught_up_frame(sub: str, stream: str, cursor: str) -> bytes:
    """The `caught_up` frame: every entry up to `cursor` was sent."""
    return frames.encode(frames.CaughtUpFrame(sub=sub, stream=stream, next=cursor))
