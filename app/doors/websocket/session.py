"""The session of one WebSocket: what a frame does, and how the session ends.

Knows: which part handles a frame, what a frame may do.
Must never know: asyncio, clocks, how its host does what it asks.

    receive(frame) ─► host.submit(commands) ─► send(answer)
                   ─► host.run_command      ─► on_command_result(result) ─► send(answer)
                   ─► subscriptions: `stream_subscription` follows streams,
                                     `group_subscription` works for a group
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from app.auth import UNAUTHENTICATED, Action, Principal, Resource
from app.auth.policy import unauthenticated
from app.auth.rate_limiter import Meter
from app.doors.websocket import frame_reader, frames
from app.doors.websocket.frame_reader import Ref
from app.doors.websocket.group_subscription import GroupSubscription, ack, consume, nack
from app.doors.websocket.stream_subscription import subscribe
from app.doors.websocket.subscription_table import (
    Host,
    Replies,
    SessionLimits,
    Subscription,
    SubscriptionTable,
)
from app.errors import RefusalError, draining, invalid, to_refusal
from app.http.entries.publishing import AddOptions, added, scheduled, scheduled_each
from app.http.entries.stored_entries import ParsedEntries
from app.live.sessions import AccessEnd
from engine import EngineError
from engine.commands.weir_commands import Close as CloseStream
from engine.replies import Added, AddedScheduled, Closed

BAD_TOKEN_CLOSE: Final = 4500
TOKEN_EXPIRED_CLOSE: Final = 4002
PROTOCOL_ERROR_CLOSE: Final = 4501
RATE_LIMIT_CLOSE: Final = 4005
# Frames in a row that are refused for the caller's rate, after which the connection is closed.
RATE_REFUSALS_MAX: Final = 1_000

FRAME_ERRORS: Final = frame_reader.MalformedFrameError, frame_reader.RefusedFrameError
FrameError = frame_reader.MalformedFrameError | frame_reader.RefusedFrameError
# What a `publish` holds, or why it is refused.
Publication = tuple[AddOptions, ParsedEntries, int | None] | EngineError | RefusalError
# What these ask goes together with what others ask, in order.
_SUBMITTING: Final = frames.PublishFrame, frames.ConsumeFrame, frames.AckFrame, frames.NackFrame


class Session:
    """One session, on its host."""

    def __init__(
        self,
        host: Host,
        limits: SessionLimits,
        principal: Principal,
        request_id: str,
        *,
        depth_max: int,
        meter: Meter | None = None,
    ) -> None:
        # Counts frames and their bytes for the caller; None without a limit.
        self.meter = meter
        self._refused_in_a_row = 0
        self._request_id = request_id
        self._depth_max = depth_max
        self._host = host
        self.table = SubscriptionTable(host, limits, principal, request_id)
        self._handlers: Final[Mapping[type, Callable[[Any], None]]] = {
            frames.AuthFrame: lambda frame: host.authenticate(frame.ref, frame.token),
            frames.SubscribeFrame: partial(subscribe, self.table),
            frames.ConsumeFrame: partial(consume, self.table),
            frames.AckFrame: partial(ack, self.table),
            frames.NackFrame: partial(nack, self.table),
            frames.CreditFrame: self._credit,
            frames.UnsubscribeFrame: self._unsubscribe,
            frames.CommandFrame: lambda frame: host.run_command(frame.ref, bytes(frame.command)),
            frames.PingFrame: lambda frame: self.table.send(frames.PongFrame(ref=frame.ref)),
        }

    def receive(self, text: bytes) -> None:
        """Handle a text message of the client."""
        if not self.table.closed:
            self.handle(self._read(text), len(text))

    def _read(self, text: bytes) -> frames.Sent | FrameError:
        try:
            return frame_reader.read(text, self._depth_max)
        except FRAME_ERRORS as error:
            return error

    def read_long(self, text: bytes) -> tuple[frames.Sent | FrameError, Publication | None]:
        """Read a text message and the entries in it, for `handle`. It takes milliseconds and changes nothing:
        a thread may do it.
        """
        read = self._read(text)
        if not isinstance(read, frames.PublishFrame):
            return read, None
        try:
            return read, frames.parse_publish(read, self.table.limits.publications)
        except (EngineError, RefusalError) as refusal:
            return read, refusal

    def handle(
        self, frame: frames.Sent | FrameError, size: int, publication: Publication | None = None
    ) -> None:
        """Handle what was read, of `size` bytes; the entries too, where they were read with it."""
        if self.table.closed:
            return
        if not isinstance(frame, _SUBMITTING):
            self._host.flush()
        if isinstance(frame, frame_reader.MalformedFrameError):
            self._break(frame.refusal)
            return
        if isinstance(frame, frame_reader.RefusedFrameError):
            self.table.refuse(frame.ref, frame.refusal)
            return
        try:
            if self.meter is not None:
                self.meter.take_requests(1, size)
            self._handle(frame, publication)
        except EngineError as error:
            self._refuse(frame.ref, to_refusal(error))
        except RefusalError as refusal:
            self._refuse(frame.ref, refusal)
            if refusal.code == "rate_limited":
                # Only those that stand in a row count.
                self._refused_in_a_row += 1
                if self._refused_in_a_row == RATE_REFUSALS_MAX:
                    self.table.close(RATE_LIMIT_CLOSE, refusal.code)
                return
        self._refused_in_a_row = 0

    def _refuse(self, ref: Ref, refusal: RefusalError) -> None:
        """Refuse a frame, behind the answers to those before it."""
        self._host.flush()
        self.table.refuse(ref, refusal)

    def receive_binary(self) -> None:
        """Refuse a binary message."""
        self._break(RefusalError("malformed_json", "frames are text: this was a binary message"))

    def _break(self, refusal: RefusalError) -> None:
        self.table.close(PROTOCOL_ERROR_CLOSE, refusal.code, refusal)

    def _handle(self, frame: frames.Sent, publication: Publication | None) -> None:
        settles = isinstance(frame, frames.AckFrame | frames.NackFrame | frames.PingFrame)
        if self.table.draining and not settles:
            raise draining()
        if self.table.principal is UNAUTHENTICATED and not isinstance(
            frame, frames.AuthFrame | frames.PingFrame
        ):
            raise unauthenticated("send a frame `auth` with a token first", None)
        if isinstance(frame, frames.PublishFrame):
            self._publish(frame, publication)
        else:
            self._handlers[type(frame)](frame)

    def on_principal(self, ref: Ref, principal: Principal | RefusalError) -> None:
        """Handle `authenticate`. A token that is refused closes the connection; subscriptions that the new
        token does not allow are revoked.
        """
        if isinstance(principal, RefusalError):
            self.table.close(principal.kind.close or BAD_TOKEN_CLOSE, principal.code, principal, ref)
            return
        self.table.principal = principal
        self._host.send(frames.ok(ref, {"expires_at": principal.expires_at}))
        self.table.revoke_forbidden()

    def expiring(self, after_ms: int) -> None:
        """Send `expiring`: the token ends soon."""
        self.table.send(frames.ExpiringFrame(after_ms=after_ms))

    def end_access(self, end: AccessEnd) -> None:
        """Close: the token has expired or was revoked."""
        self.table.close(TOKEN_EXPIRED_CLOSE if end is AccessEnd.EXPIRED else BAD_TOKEN_CLOSE, f"token_{end}")

    def on_command_result(self, ref: Ref, reply: bytes | RefusalError) -> None:
        """Handle the result of a command: `{"result": …}`, or a refusal."""
        if isinstance(reply, RefusalError):
            self.table.refuse(ref, reply)
            return
        if self.meter is not None:
            self.meter.charge(len(reply))
        self._host.send(frames.ok_with(ref, reply))

    def _publish(self, frame: frames.PublishFrame, publication: Publication | None) -> None:
        stream = frames.name(frame.stream, "stream name")
        self.table.require(Action.WRITE, stream)
        if publication is None:
            publication = frames.parse_publish(frame, self.table.limits.publications)
        if isinstance(publication, Exception):
            raise publication
        wanted, published, last_id = publication
        if self.meter is not None:
            self.meter.take_more(len(published.bodies))
        if wanted.close:
            try:
                self.table.require(Action.CLOSE, stream)
            except RefusalError as refusal:
                self._host.note_refused_end(stream, refusal.code)
                raise
        add = wanted.command(stream, published, last_id, frames.idempotency_key(frame))
        may_manage = self.table.principal.may(Action.MANAGE, Resource(stream))
        later = wanted.scheduled(add, published, recurring=may_manage)

        def done(replies: Replies) -> None:
            reply = replies[0].added if isinstance(replies[0], Closed) else replies[0]
            if isinstance(reply, EngineError):
                self.table.refuse(frame.ref, to_refusal(reply))
                return
            cancelled, each = None, list[dict[str, object]]()
            if isinstance(reply, AddedScheduled):
                cancelled = None if wanted.cancel_schedule is None else reply.cancelled
                each = scheduled_each(reply, wanted.later_places(published))
                if reply.added is None:
                    result = scheduled(each, batch=True, cancelled=cancelled)
                    self._host.send(frames.ok_with(frame.ref, result))
                    return
                reply = reply.added
            if not isinstance(reply, Added):
                detail = f"there is no stream {stream!r}, and nomkstream forbids to make it"
                self.table.refuse(frame.ref, RefusalError("no_stream", detail))
                return
            result = added(
                reply,
                batch=True,
                trims=add.trim is not None,
                ids_wanted=True,
                closes=wanted.close,
                cancelled=cancelled,
                scheduled=each,
            )
            self._host.send(frames.ok_with(frame.ref, result))

        synced, traceparent = frames.wants_sync(frame), frames.traceparent(frame)
        command = CloseStream(stream=stream, add=add) if wanted.close else later or add
        self._host.submit([command], done, synced=synced, traceparent=traceparent)

    def _unsubscribe(self, frame: frames.UnsubscribeFrame) -> None:
        self.table.end(self.table.find(frame.sub))
        self._host.send(frames.ok(frame.ref))

    def _credit(self, frame: frames.CreditFrame) -> None:
        subscription = self.table.find(frame.sub)
        left = subscription.credit.left
        if left is None:
            raise invalid("/sub", "this subscription has no limit")
        if left + subscription.held + frame.n > frames.CREDIT_MAX:
            raise invalid("/n", f"there is credit for at most {frames.CREDIT_MAX} entries")
        subscription.credit.left = left + frame.n
        subscription.note_away()
        subscription.go_on()

    def on_disconnect(self, unwritten: Iterable[tuple[Subscription, Sequence[int]]]) -> None:
        """End all subscriptions. `unwritten` are entries that were not sent, by subscription."""
        self.table.closed = True
        for work, entry_ids in unwritten:
            if isinstance(work, GroupSubscription):
                work.give_back(entry_ids)
        for subscription in [*self.table.by_name.values()]:
            self.table.end(subscription)
