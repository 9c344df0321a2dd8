"""The session of one WebSocket, as a pure state machine: frames and results in, effects out.

Knows: which part handles a frame, how the session ends.
Must never know: asyncio, sockets, clocks, the running engine. `app.doors.websocket.connection` performs the
effects and reports their results.

    receive(frame) ─► Submit     ─► on_replies(replies)       ─► SendFrame
                   ─► RunCommand ─► on_command_result(result) ─► SendFrame
                   ─► tails      : subscriptions that follow streams, see `stream_reader`
                   ─► consumers  : subscriptions that work for a group, see `group_reader`
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from app.auth import UNAUTHENTICATED, Action, Principal, Resource
from app.auth.policy import unauthenticated
from app.auth.rate_limiter import Meter
from app.doors.websocket import frame_reader, frames
from app.doors.websocket.effects import (
    Authenticate,
    Close,
    Effects,
    NoteRefusedEnd,
    Ref,
    RunCommand,
    SendFrame,
    SessionLimits,
)
from app.doors.websocket.group_reader import GroupReader
from app.doors.websocket.stream_reader import StreamReader
from app.doors.websocket.subscription_table import ConsumerSubscription, Replies, SubscriptionTable
from app.errors import RefusalError, draining, invalid, to_refusal
from app.http.entries.publishing import AddOptions, added, scheduled, scheduled_each
from app.http.entries.stored_entries import ParsedEntries
from app.live.sessions import AccessEnd
from engine import EngineError
from engine.commands import Close as CloseStream
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


class Session:
    """One session. Every method returns the effects to perform, in order."""

    def __init__(
        self,
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
        self.table = SubscriptionTable(limits, principal, request_id)
        self.tails = StreamReader(self.table)
        self.consumers = GroupReader(self.table)
        self.on_replies = self.table.on_replies
        self.revoke = self.table.revoke
        self.drain = self.table.drain
        self.finish_drain = self.table.finish_drain
        self.begin_outage = self.table.begin_outage
        self.end_outage = self.table.end_outage
        self._handlers: Final[Mapping[type, Callable[[Any], Effects]]] = {
            frames.AuthFrame: self._auth,
            frames.SubscribeFrame: self.tails.subscribe,
            frames.ConsumeFrame: self.consumers.consume,
            frames.AckFrame: self.consumers.ack,
            frames.NackFrame: self.consumers.nack,
            frames.CreditFrame: self._credit,
            frames.UnsubscribeFrame: self._unsubscribe,
            frames.CommandFrame: self._command,
            frames.PingFrame: self._ping,
        }

    def receive(self, text: bytes) -> Effects:
        """Handle a text message of the client."""
        return [] if self.table.closed else self.handle(self._read(text), len(text))

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
    ) -> Effects:
        """Handle what was read, of `size` bytes; the entries too, where they were read with it."""
        if self.table.closed:
            return []
        if isinstance(frame, frame_reader.MalformedFrameError):
            return self._break(frame.refusal)
        if isinstance(frame, frame_reader.RefusedFrameError):
            return [self.table.error(frame.ref, frame.refusal)]
        try:
            if self.meter is not None:
                self.meter.take_requests(1, size)
            effects = self._handle(frame, publication)
        except EngineError as error:
            effects = [self.table.error(frame.ref, to_refusal(error))]
        except RefusalError as refusal:
            if refusal.code == "rate_limited":
                return self._refuse_rate(frame.ref, refusal)
            effects = [self.table.error(frame.ref, refusal)]
        self._refused_in_a_row = 0
        return effects

    def _refuse_rate(self, ref: Ref, refusal: RefusalError) -> Effects:
        """Refuse a frame beyond the caller's rate; close if the client keeps sending."""
        self._refused_in_a_row += 1
        effects: Effects = [self.table.error(ref, refusal)]
        if self._refused_in_a_row == RATE_REFUSALS_MAX:
            self.table.closed = True
            effects.append(Close(RATE_LIMIT_CLOSE, refusal.code))
        return effects

    def receive_binary(self) -> Effects:
        """Refuse a binary message."""
        return self._break(RefusalError("malformed_json", "frames are text: this was a binary message"))

    def _break(self, refusal: RefusalError) -> Effects:
        self.table.closed = True
        error = SendFrame(frames.error(UNSET, refusal, self._request_id), code=refusal.code)
        return [error, Close(PROTOCOL_ERROR_CLOSE, refusal.code)]

    def _handle(self, frame: frames.Sent, publication: Publication | None) -> Effects:
        settles = isinstance(frame, frames.AckFrame | frames.NackFrame | frames.PingFrame)
        if self.table.draining and not settles:
            raise draining()
        if self.table.principal is UNAUTHENTICATED and not isinstance(
            frame, frames.AuthFrame | frames.PingFrame
        ):
            raise unauthenticated("send a frame `auth` with a token first", None)
        if isinstance(frame, frames.PublishFrame):
            return self._publish(frame, publication)
        return self._handlers[type(frame)](frame)

    def _ping(self, frame: frames.PingFrame) -> Effects:
        return [SendFrame(frames.encode(frames.PongFrame(ref=frame.ref)))]

    def _auth(self, frame: frames.AuthFrame) -> Effects:
        return [Authenticate(frame.ref, frame.token)]

    def on_principal(self, ref: Ref, principal: Principal | RefusalError) -> Effects:
        """Handle Authenticate. A token that is refused closes the connection; subscriptions that the new
        token does not allow are revoked.
        """
        if isinstance(principal, RefusalError):
            self.table.closed = True
            return [
                self.table.error(ref, principal),
                Close(principal.kind.close or BAD_TOKEN_CLOSE, principal.code),
            ]
        self.table.principal = principal
        answer = SendFrame(frames.ok(ref, {"expires_at": principal.expires_at}))
        return [answer, *self.table.revoke_forbidden()]

    def expiring(self, after_ms: int) -> Effects:
        """Send `expiring`: the token ends soon."""
        return [SendFrame(frames.encode(frames.ExpiringFrame(after_ms=after_ms)))]

    def end_access(self, end: AccessEnd) -> Effects:
        """Close: the token has expired or was revoked."""
        self.table.closed = True
        return [Close(TOKEN_EXPIRED_CLOSE if end is AccessEnd.EXPIRED else BAD_TOKEN_CLOSE, f"token_{end}")]

    def _command(self, frame: frames.CommandFrame) -> Effects:
        return [RunCommand(frame.ref, bytes(frame.command))]

    def on_command_result(self, ref: Ref, reply: bytes | RefusalError) -> Effects:
        """Handle the result of a RunCommand: `{"result": …}`, or a refusal."""
        if isinstance(reply, RefusalError):
            return [self.table.error(ref, reply)]
        if self.meter is not None:
            self.meter.charge(len(reply))
        return [SendFrame(frames.ok_with(ref, reply))]

    def _publish(self, frame: frames.PublishFrame, publication: Publication | None) -> Effects:
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
                return [NoteRefusedEnd(stream, refusal.code), self.table.error(frame.ref, refusal)]
        add = wanted.command(stream, published, last_id, frames.idempotency_key(frame))
        may_manage = self.table.principal.may(Action.MANAGE, Resource(stream))
        later = wanted.scheduled(add, published, recurring=may_manage)

        def done(replies: Replies) -> Effects:
            reply = replies[0].added if isinstance(replies[0], Closed) else replies[0]
            if isinstance(reply, EngineError):
                return [self.table.error(frame.ref, to_refusal(reply))]
            cancelled, each = None, list[dict[str, object]]()
            if isinstance(reply, AddedScheduled):
                cancelled = None if wanted.cancel_schedule is None else reply.cancelled
                each = scheduled_each(reply, wanted.later_places(published))
                if reply.added is None:
                    result = scheduled(each, batch=True, cancelled=cancelled)
                    return [SendFrame(frames.ok_with(frame.ref, result))]
                reply = reply.added
            if not isinstance(reply, Added):
                detail = f"there is no stream {stream!r}, and nomkstream forbids to make it"
                return [self.table.error(frame.ref, RefusalError("no_stream", detail))]
            result = added(
                reply,
                batch=True,
                trims=add.trim is not None,
                ids_wanted=True,
                closes=wanted.close,
                cancelled=cancelled,
                scheduled=each,
            )
            return [SendFrame(frames.ok_with(frame.ref, result))]

        synced, traceparent = frames.wants_sync(frame), frames.traceparent(frame)
        command = CloseStream(stream=stream, add=add) if wanted.close else later or add
        return [self.table.submit([command], done, synced=synced, traceparent=traceparent)]

    def _unsubscribe(self, frame: frames.UnsubscribeFrame) -> Effects:
        return [*self.table.end(self.table.find(frame.sub)), SendFrame(frames.ok(frame.ref))]

    def _credit(self, frame: frames.CreditFrame) -> Effects:
        subscription = self.table.find(frame.sub)
        left = subscription.credit.left
        if left is None:
            raise invalid("/sub", "this subscription has no limit")
        held = len(subscription.consumer.in_flight) if isinstance(subscription, ConsumerSubscription) else 0
        if left + held + frame.n > frames.CREDIT_MAX:
            raise invalid("/n", f"there is credit for at most {frames.CREDIT_MAX} entries")
        subscription.credit.left = left + frame.n
        away = self.table.note_away(subscription)
        if isinstance(subscription, ConsumerSubscription):
            return [*away, *self.consumers.go_on(subscription)]
        return [*away, *self.tails.go_on(subscription)]

    def on_disconnect(self, unwritten: Iterable[tuple[int, Sequence[int]]]) -> Effects:
        """End all subscriptions. `unwritten` are entries that were not sent, by subscription."""
        self.table.closed = True
        effects: Effects = []
        for key, entry_ids in unwritten:
            work = self.table.by_key.get(key)
            if isinstance(work, ConsumerSubscription) and not work.ended:
                in_flight = work.consumer.in_flight
                effects += self.consumers.give_back(
                    work, [entry_id for entry_id in entry_ids if entry_id in in_flight]
                )
        for subscription in list(self.table.by_name.values()):
            effects += self.table.end(subscription)
        return effects
