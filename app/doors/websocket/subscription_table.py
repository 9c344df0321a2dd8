"""The subscriptions of a session: what each has said to its client, and the table of them.

Knows: names and limits of subscriptions, credit that is used up, an outage, when the session ends.
Must never know: how a connection does what a session asks of it, what a subscription reads.

A session calls its host directly. An answer is sent before what it starts; what a frame shares with others of
its cycle is sent before what the next frame asks (`flush`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from sys import intern
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from app.auth import Action, Principal, Resource
from app.doors.websocket import frames
from app.doors.websocket.frame_reader import Ref
from app.doors.websocket.socket_link import SocketLink
from app.errors import RefusalError, invalid
from app.http.entries.entry_pages import GapReport
from app.limits import EntryLimits
from app.live.budgets import Pool
from app.live.consumer import Credit
from app.live.feeds import FeedEnd
from app.live.readers import Gate, GroupPump, StreamPump
from app.tenants import Tenant
from engine import EngineError
from engine.commands.base import Command
from engine.commands.types import XReadGroup
from engine.replies import GroupRead, Reply

Replies = Sequence[Reply | EngineError]

DRAIN_CLOSE: Final = 4001
# Maximum size of a frame: the cost of a stalled reader, and the time other readers wait for one write.
PAGE_BYTES_MAX: Final = 256 << 10


class SessionLimits(msgspec.Struct, frozen=True):
    """Limits of one session: subscriptions, followed streams of all subscriptions, IDs in a frame, IDs in
    a frame that looks entries up, entries in a frame.
    """

    subscriptions_max: int
    streams_max: int
    ids_max: int
    lookups_max: int
    batch_max: int
    publications: EntryLimits


class Host(Protocol):
    """What a session asks of its connection. All of it is done, or begun, in this step."""

    tenant: Tenant
    # One look at history at a time.
    gate: Gate

    @property
    def link(self) -> SocketLink: ...
    @property
    def output(self) -> Pool:
        """What bounds pages while clients are slow."""
        ...

    @property
    def caller(self) -> str: ...

    def send(self, data: bytes) -> None:
        """Write a frame."""
        ...

    def deliver(self, data: bytes, work: "Subscription", count: int, entry_ids: Sequence[int] = ()) -> None:
        """Write a frame with this number of entries of a subscription: these go back if it never leaves."""
        ...

    def refuse(self, data: bytes, code: str) -> None:
        """Write a frame `error` with this code."""
        ...

    def flush(self) -> None:
        """Send what waits for others of this cycle."""
        ...

    def submit(
        self,
        commands: Sequence[Command],
        done: Callable[[Replies], None],
        *,
        synced: bool = False,
        traceparent: bytes | None = None,
    ) -> None:
        """Run commands in one turn; `done` gets the replies, if `synced` once they are on disk.

        With a `traceparent` there is one command, a publish that belongs to this trace.
        """
        ...

    def authenticate(self, ref: Ref, token: str) -> None:
        """Authenticate the token before any further frame, then call `on_principal`."""
        ...

    def run_command(self, ref: Ref, command: bytes) -> None:
        """Run this Redis command before any further frame, then call `on_command_result`."""
        ...

    def open(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Open a subscription, once fewer of the caller's are being opened. Returns what withdraws that."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this; its exception closes the connection."""
        ...

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call this after a while, as long as the connection is there."""
        ...

    def note_refused_end(self, stream: str, code: str) -> None:
        """Have the audit log say that a publish was not allowed to close this stream."""
        ...

    def note_delivered(self, number: int) -> None:
        """Count entries that have left past `deliver`."""
        ...

    def trace_read(self, command: XReadGroup, reply: GroupRead) -> None:
        """Trace what a group was given."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        ...

    def fail(self, error: Exception) -> None:
        """Close the connection because of an exception."""
        ...


class Subscription(ABC):
    """One subscription of a connection; its pump's sink."""

    __slots__ = ("away", "credit", "ended", "name", "paused", "table")
    # What reads for it, once it is open.
    pump: StreamPump | GroupPump | None
    # The followed streams.
    streams: Sequence[str] = ()

    def __init__(self, table: "SubscriptionTable", name: str, credit: Credit) -> None:
        self.table = table
        # Many have the same, and frames are made by name.
        self.name = intern(name)
        self.credit = credit
        self.paused = False
        # The client knows that the backend cannot be used.
        self.away = False
        self.ended = False

    @property
    def turn(self) -> int:
        """Which of those that wait for the socket go on first: least."""
        return 2

    @property
    def held(self) -> int:
        """Entries in flight."""
        return 0

    @abstractmethod
    def may_go_on(self, principal: Principal) -> bool:
        """Whether the client may have it."""

    def go_on(self) -> None:
        """Read on: there may be room."""
        if self.pump is not None:
            self.pump.go_on()

    def stop(self) -> None:
        """Read nothing more."""
        if self.pump is not None:
            self.pump.stop()

    def close(self) -> None:
        """Let go of what it reads."""
        self.stop()

    def wait_for_socket(self) -> bool:
        """Whether nothing is read for it now. If only for what waits in the socket, it goes on when that is
        sent.
        """
        table = self.table
        if not table.host.link.paused or table.draining:
            return table.draining
        table.waiting[self] = None
        return True

    def pause(self) -> None:
        """Say once that there is no credit left."""
        if not self.paused:
            self.paused = True
            self.table.send(frames.PausedFrame(sub=self.name, reason="credit"))

    def note_away(self, *, alone: bool = False) -> None:
        """Say once that entries wait for the backend, if they do, or those of its stream `alone`. Without
        credit they wait in any case.
        """
        table = self.table
        if self.credit.room and (table.is_backend_away or alone) and not self.away and not table.closed:
            self.away = True
            table.send(frames.PausedFrame(sub=self.name, reason="backend"))

    def note_back(self) -> None:
        """Say that its stream can be read again, if the contrary was said."""
        if self.away and not self.table.is_backend_away and not self.table.closed:
            self.away = False
            self.table.send(frames.ResumedFrame(sub=self.name))


def gap_frame(sub: str, stream: str, gap: GapReport) -> frames.GapFrame:
    """The `gap` frame: entries are not there to be read."""
    members: dict[str, Any] = gap.members()
    return frames.GapFrame(sub=sub, stream=stream, **members)


def closed_frame(sub: str, found: FeedEnd) -> frames.ClosedFrame:
    """The `closed` frame: nothing follows."""
    return frames.ClosedFrame(sub=sub, stream=found.stream, **found.members())


class SubscriptionTable:
    """What the subscriptions of one session share."""

    def __init__(self, host: Host, limits: SessionLimits, principal: Principal, request_id: str) -> None:
        self.host = host
        self.limits = limits
        self.principal = principal
        self._request_id = request_id
        self.by_name: dict[str, Subscription] = {}
        # Those that wait for the socket, in order.
        self.waiting: dict[Subscription, None] = {}
        self.draining = False
        self.closed = False
        # For longer than a moment, as health and log say.
        self.is_backend_away = False

    def require(
        self, action: Action, stream: str, group: str | None = None, consumer: str | None = None
    ) -> None:
        """Raise `forbidden` unless the client may do this."""
        self.principal.require(action, Resource(stream, group, consumer))

    def send(self, frame: frames.ServerFrame) -> None:
        """Write a frame."""
        self.host.send(frames.encode(frame))

    def refuse(self, ref: Ref, refusal: RefusalError) -> None:
        """Refuse one frame."""
        if refusal.code == "malformed_json":
            # The frame was JSON, but has an invalid value.
            refusal = invalid("", refusal.detail)
        self.host.refuse(frames.error(ref, refusal, self._request_id), refusal.code)

    def close(self, code: int, reason: str, refusal: RefusalError | None = None, ref: Ref = UNSET) -> None:
        """End the session, and say first why, if there is something to say."""
        self.closed = True
        if refusal is not None:
            self.host.refuse(frames.error(ref, refusal, self._request_id), refusal.code)
        self.host.close(code, reason)

    # ---- subscriptions

    def find(self, name: str) -> Subscription:
        """The subscription of this name. Raises `invalid`."""
        found = self.by_name.get(name)
        if found is None:
            raise invalid("/sub", "there is no subscription of this name on this socket")
        return found

    def check_new(self, name: str, streams: int) -> None:
        """Check that a subscription of this name to this number of streams may begin. Raises `invalid`."""
        if len(name.encode()) > frames.SUB_BYTES_MAX:
            raise invalid("/sub", f"it has at most {frames.SUB_BYTES_MAX} bytes")
        if name in self.by_name:
            raise invalid("/sub", "this name is in use on this socket")
        if len(self.by_name) >= self.limits.subscriptions_max:
            raise invalid("/sub", f"a socket has at most {self.limits.subscriptions_max} subscriptions")
        if sum(len(one.streams) for one in self.by_name.values()) + streams > self.limits.streams_max:
            raise invalid("/streams", f"a socket follows at most {self.limits.streams_max} streams")

    def batch_max(self, given: int | UnsetType, default: int) -> int:
        """The maximum number of entries in a frame."""
        return min(default if given is UNSET else given, self.limits.batch_max)

    def end(self, one: Subscription) -> None:
        """End a subscription."""
        one.ended = True
        if self.by_name.get(one.name) is one:
            del self.by_name[one.name]
        self.waiting.pop(one, None)
        one.close()

    def finish(self, one: Subscription) -> None:
        """End a subscription to which nothing more comes."""
        self.end(one)
        self.close_if_idle()

    def revoke(self, one: Subscription, reason: str, refusal: RefusalError | None = None) -> None:
        """End a subscription for one of the `REASONS`; a refusal before says what to do."""
        if one.ended:
            return
        if refusal is not None:
            self.refuse(UNSET, refusal)
        self.end(one)
        self.send(frames.RevokedFrame(sub=one.name, reason=reason))
        self.close_if_idle()

    def revoke_forbidden(self) -> None:
        """End the subscriptions that the client may not have any more."""
        for one in [*self.by_name.values()]:
            if not one.may_go_on(self.principal):
                self.revoke(one, "forbidden")

    def go_on(self) -> None:
        """The socket accepts data: those that waited go on, consumers first that were not given entries just
        before.
        """
        waiting, self.waiting = self.waiting, {}
        for one in sorted(waiting, key=lambda one: one.turn):
            one.go_on()

    def begin_outage(self) -> None:
        """The backend cannot be used."""
        self.is_backend_away = True
        for one in self.by_name.values():
            one.note_away()

    def end_outage(self) -> None:
        """The backend can be used again."""
        self.is_backend_away = False
        for one in self.by_name.values():
            one.note_back()

    # ---- ends

    def drain(self, after_ms: int) -> None:
        """Start nothing new; entries in flight may still be acknowledged."""
        if not self.draining and not self.closed:
            self.draining = True
            self.send(frames.GoAwayFrame(after_ms=after_ms))
            self.close_if_idle()

    def finish_drain(self) -> None:
        """Close: the time to acknowledge is over."""
        self.close(DRAIN_CLOSE, "draining")

    def close_if_idle(self) -> None:
        """Close while draining, once nothing is in flight."""
        if self.draining and not self.closed and not any(one.held for one in self.by_name.values()):
            self.finish_drain()

    def stop(self) -> None:
        """Read nothing more for any of them."""
        for one in self.by_name.values():
            one.stop()
