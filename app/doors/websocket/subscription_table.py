"""The subscriptions of a session: followed streams and consumers with their credit, and the table of them.

Knows: what each has said to its client, what it waits for; names, keys and limits; commands that wait for
replies; when the session ends.
Must never know: the connection, asyncio, what a subscription reads.
"""

from collections.abc import Callable, Sequence
from itertools import count
from sys import intern
from typing import Any, Final

from msgspec import UNSET, UnsetType

from app.auth import Action, Principal, Resource
from app.doors.websocket import frames
from app.doors.websocket.effects import Close, Effects, Ref, SendFrame, SessionLimits, Submit, Unsubscribe
from app.errors import RefusalError, invalid
from app.http.cursors import Position
from app.http.entries.entry_pages import GapReport
from app.live.consumer import Consumer, Credit
from app.live.feeds import FeedEnd, FeedPage
from app.live.leases import ConsumerKey
from engine import EngineError
from engine.commands import Command, Cursor, DescribeGroup, EnsureGroup, XGroupCreateConsumer
from engine.replies import Reply

Replies = Sequence[Reply | EngineError]

DRAIN_CLOSE: Final = 4001
CONSUME_CREDIT_DEFAULT: Final = 100
# Maximum size of a frame: the cost of a stalled reader, and the time other readers wait for one write.
PAGE_BYTES_MAX: Final = 256 << 10
READ_WAIT_MS: Final = 60_000


class Subscription:
    """One subscription of a connection."""

    __slots__ = ("away", "credit", "ended", "is_live", "key", "name", "paused")

    def __init__(self, key: int, name: str, credit: Credit) -> None:
        self.key = key
        # Many have the same, and frames are made by name.
        self.name = intern(name)
        self.credit = credit
        self.paused = False
        # The client knows that the backend cannot be used.
        self.away = False
        self.ended = False
        # Whether new pages may be written as they come: nothing was asked for, and no other frame is due.
        self.is_live = False


class StreamSubscription(Subscription):
    """Followed streams. `behind` are the streams with older entries, or entries that waited for credit. With
    `in_full` cursors have generations.
    """

    __slots__ = ("behind", "in_full", "open", "ready", "ref", "streams", "taking")

    def __init__(self, key: int, frame: frames.SubscribeFrame, batch_max: int, *, in_full: bool) -> None:
        super().__init__(key, frame.sub, Credit(None if frame.credit is UNSET else frame.credit, batch_max))
        self.in_full = in_full
        self.streams = tuple(frame.streams)
        # Those that are not closed, or have entries left.
        self.open = set(self.streams)
        self.ref: Ref = frame.ref
        self.behind = set(self.streams)
        self.ready: list[str] = []
        self.taking: str | None = None

    def has_live_room(self, entries: int) -> bool:
        """Whether there is credit for this number of entries at once, and more: `paused` follows the last."""
        credit = self.credit
        return entries <= credit.batch_max and (credit.left is None or entries < credit.left)

    def frame(self, page: FeedPage) -> bytes:
        """The frame for a page, made once for all subscriptions of this name."""
        form = frames.SUBPROTOCOL, self.name, self.in_full
        made = page.forms.get(form)
        if made is None:
            following = Position(page.last_id, page.generation).text(in_full=self.in_full)
            made = page.forms[form] = frames.entries(self.name, page.stream, page.entries, following)
        return made


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


def closed_frame(sub: str, found: FeedEnd) -> bytes:
    """The `closed` frame: nothing follows."""
    return frames.encode(frames.ClosedFrame(sub=sub, stream=found.stream, **found.members()))


AnySubscription = StreamSubscription | ConsumerSubscription


class SubscriptionTable:
    """What the readers of one session share. Methods return the effects to perform, in order."""

    def __init__(self, limits: SessionLimits, principal: Principal, request_id: str) -> None:
        self.limits = limits
        self.principal = principal
        self._request_id = request_id
        self._keys = count(1)
        self.by_name: dict[str, AnySubscription] = {}
        # Includes ended subscriptions until their operations in progress have finished.
        self.by_key: dict[int, AnySubscription] = {}
        self._waiting: dict[int, Callable[[Replies], Effects]] = {}
        self.draining = False
        self.closed = False
        # For longer than a moment, as health and log say.
        self.is_backend_away = False

    def require(
        self, action: Action, stream: str, group: str | None = None, consumer: str | None = None
    ) -> None:
        """Raise `forbidden` unless the client may do this."""
        self.principal.require(action, Resource(stream, group, consumer))

    def error(self, ref: Ref, refusal: RefusalError) -> SendFrame:
        """Make the frame that refuses one frame."""
        if refusal.code == "malformed_json":
            # The frame was JSON, but has an invalid value.
            refusal = invalid("", refusal.detail)
        return SendFrame(frames.error(ref, refusal, self._request_id), code=refusal.code)

    def submit(
        self,
        commands: Sequence[Command],
        done: Callable[[Replies], Effects],
        *,
        synced: bool = False,
        traceparent: bytes | None = None,
    ) -> Submit:
        """Run commands in one turn, and call `done` with the replies."""
        token = self.new_key()
        self._waiting[token] = done
        return Submit(token, commands, synced, traceparent)

    def on_replies(self, token: int, replies: Replies) -> Effects:
        """Handle the replies to a Submit."""
        return self._waiting.pop(token)(replies)

    # ---- subscriptions

    def new_key(self) -> int:
        """A key for a new subscription."""
        return next(self._keys)

    def find(self, name: str) -> AnySubscription:
        """The subscription of this name. Raises `invalid`."""
        found = self.by_name.get(name)
        if found is None:
            raise invalid("/sub", "there is no subscription of this name on this socket")
        return found

    def find_consumer(self, name: str) -> ConsumerSubscription:
        """The subscription of this name, whose entries are acknowledged. Raises `invalid`."""
        found = self.find(name)
        if not isinstance(found, ConsumerSubscription) or found.consumer.noack:
            raise invalid("/sub", "this subscription has nothing to acknowledge")
        return found

    def check_new(self, name: str, streams: int) -> None:
        """Check that a subscription of this name to this number of streams may begin. Raises `invalid`."""
        if len(name.encode()) > frames.SUB_BYTES_MAX:
            raise invalid("/sub", f"it has at most {frames.SUB_BYTES_MAX} bytes")
        if name in self.by_name:
            raise invalid("/sub", "this name is in use on this socket")
        if len(self.by_name) >= self.limits.subscriptions_max:
            raise invalid("/sub", f"a socket has at most {self.limits.subscriptions_max} subscriptions")
        tails = [one for one in self.by_name.values() if isinstance(one, StreamSubscription)]
        if sum(len(one.streams) for one in tails) + streams > self.limits.streams_max:
            raise invalid("/streams", f"a socket follows at most {self.limits.streams_max} streams")

    def batch_max(self, given: int | UnsetType, default: int) -> int:
        """The maximum number of entries in a frame."""
        return min(default if given is UNSET else given, self.limits.batch_max)

    def add(self, made: AnySubscription) -> None:
        """Begin a subscription."""
        self.by_name[made.name] = self.by_key[made.key] = made

    def end(self, one: AnySubscription) -> Effects:
        """End a subscription."""
        one.ended, one.is_live = True, False
        if self.by_name.get(one.name) is one:
            del self.by_name[one.name]
        self.forget(one)
        return [Unsubscribe(one.key)]

    def forget(self, one: AnySubscription) -> None:
        """Forget an ended subscription, unless a read of it is in progress."""
        if one.ended and not (isinstance(one, ConsumerSubscription) and one.reading):
            self.by_key.pop(one.key, None)

    def revoke(self, key: int, reason: str) -> Effects:
        """End a subscription for one of the `REASONS`."""
        one = self.by_key.get(key)
        if one is None or one.ended:
            return []
        revoked = frames.encode(frames.RevokedFrame(sub=one.name, reason=reason))
        return [*self.end(one), SendFrame(revoked), *self.close_if_idle()]

    def revoke_damaged(self, key: int, refusal: RefusalError) -> Effects:
        """End a subscription that has come to what cannot be read: the frame before says what to do."""
        revoked = self.revoke(key, refusal.code)
        return [self.error(UNSET, refusal), *revoked] if revoked else []

    def revoke_forbidden(self) -> Effects:
        """End the subscriptions that the client may not have any more."""
        ending = [one for one in self.by_name.values() if not self._may_go_on(one)]
        return [effect for one in ending for effect in self.revoke(one.key, "forbidden")]

    def _may_go_on(self, one: AnySubscription) -> bool:
        if isinstance(one, ConsumerSubscription):
            return self.principal.may(Action.CONSUME, Resource(*one.consumer.key))
        return all(self.principal.may(Action.READ, Resource(stream)) for stream in one.streams)

    def pause(self, one: AnySubscription) -> Effects:
        """Say once that a subscription has no credit left."""
        if one.paused:
            return []
        one.paused = True
        return [SendFrame(frames.encode(frames.PausedFrame(sub=one.name, reason="credit")))]

    def begin_outage(self) -> Effects:
        """Say once that the backend cannot be used. Without credit, entries wait in any case."""
        self.is_backend_away = True
        return [effect for one in self.by_name.values() if one.credit.room for effect in self.note_away(one)]

    def note_away(self, one: AnySubscription, *, alone: bool = False) -> Effects:
        """Say to a subscription that has room that entries wait for the backend, if they do, or those of its
        stream `alone`.
        """
        if not (self.is_backend_away or alone) or one.away or self.closed:
            return []
        one.away = True
        return [SendFrame(frames.encode(frames.PausedFrame(sub=one.name, reason="backend")))]

    def note_back(self, one: AnySubscription) -> Effects:
        """Say to a subscription that its stream can be read again, if the contrary was said."""
        if not one.away or self.is_backend_away or self.closed:
            return []
        one.away = False
        return [SendFrame(frames.encode(frames.ResumedFrame(sub=one.name)))]

    def end_outage(self) -> Effects:
        """Say that the backend can be used again where the contrary was said."""
        self.is_backend_away = False
        return [effect for one in self.by_name.values() for effect in self.note_back(one)]

    # ---- ends

    def drain(self, after_ms: int) -> Effects:
        """Start nothing new; entries in flight may still be acknowledged."""
        if self.draining or self.closed:
            return []
        self.draining = True
        for one in self.by_name.values():
            one.is_live = False
        return [SendFrame(frames.encode(frames.GoAwayFrame(after_ms=after_ms))), *self.close_if_idle()]

    def finish_drain(self) -> Effects:
        """Close: the time to acknowledge is over."""
        self.closed = True
        return [Close(DRAIN_CLOSE, "draining")]

    def close_if_idle(self) -> Effects:
        """Close while draining, once nothing is in flight."""
        if not self.draining or self.closed:
            return []
        consumers = (one for one in self.by_name.values() if isinstance(one, ConsumerSubscription))
        return [] if any(one.consumer.in_flight for one in consumers) else self.finish_drain()
