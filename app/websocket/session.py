"""The session of one WebSocket, as a pure state machine: frames and results in, effects out.

Knows: what each frame does; when a subscription continues, pauses and ends.
Must never know: asyncio, sockets, clocks, the running engine. `app.websocket.connection` performs the
effects and reports their results.

    receive(frame) ─► Submit ─► done(replies)     ─► Send
                   ─► Open   ─► opened(cursors)   ─► Send, then ready(stream) ─► Take ─► took(page) ─► Send …
                   ─► Claim  ─► owned()           ─► Read ─► delivered(entries) ─► Send, Read …

At most one Take and one Read of a subscription are under way, each for no more entries than there is credit
for. So the credit is never exceeded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from app.auth import Action
from app.errors import RefusalError, invalid, to_refusal
from app.gateway import draining
from app.http.entries.publishing import added
from app.live.feeds import FeedGap, FeedPage
from app.live.in_flight import PendingCheck
from app.websocket import frame_reader, frames
from app.websocket.effects import (
    AcquireLease,
    Close,
    Effects,
    FetchPage,
    ReadGroup,
    Ref,
    RunCommand,
    SendFrame,
    SessionLimits,
    Submit,
    Subscribe,
    Unsubscribe,
)
from app.websocket.subscriptions import PAGE_BYTES_MAX, ConsumerSubscription, StreamSubscription, gap_frame
from engine import EngineError, ids
from engine.commands import Command, Cursor, Exists, Nack, XAck, XAckDel, XNack
from engine.replies import Added, GroupInfo, GroupRead, PendingList, Reply, StreamDeliveries
from engine.replies import Deletions as EngineDeletions

Replies = Sequence[Reply | EngineError]

BATCH_MAX_DEFAULT: Final = 1_000

PROTOCOL_ERROR_CLOSE: Final = 4501
DRAIN_CLOSE: Final = 4001


class Session:
    """One session. Every method returns the effects to perform, in order."""

    def __init__(
        self, limits: SessionLimits, may: Callable[[Action, str], bool], request_id: str, *, depth_max: int
    ) -> None:
        self._limits = limits
        self._may = may
        self._request_id = request_id
        self._depth_max = depth_max
        self._keys = count(1)
        self._by_name: dict[str, StreamSubscription | ConsumerSubscription] = {}
        # Includes ended subscriptions until their operations in progress have finished.
        self._by_key: dict[int, StreamSubscription | ConsumerSubscription] = {}
        self._waiting: dict[int, Callable[[Replies], Effects]] = {}
        self._draining = False
        self._closed = False

    # ---- frames

    def receive(self, text: bytes) -> Effects:
        """Handle a text message of the client."""
        if self._closed:
            return []
        try:
            frame = frame_reader.read(text, self._depth_max)
        except frame_reader.MalformedFrameError as error:
            return self._broken(error.refusal)
        except frame_reader.RefusedFrameError as error:
            return [self._error(error.ref, error.refusal)]
        try:
            return self._handle(frame)
        except EngineError as error:
            return [self._error(frame.ref, to_refusal(error))]
        except RefusalError as refusal:
            return [self._error(frame.ref, refusal)]

    def receive_binary(self) -> Effects:
        """Refuse a binary message."""
        return self._broken(RefusalError("malformed_json", "frames are text: this was a binary message"))

    def _broken(self, refusal: RefusalError) -> Effects:
        self._closed = True
        error = SendFrame(frames.error(UNSET, refusal, self._request_id))
        return [error, Close(PROTOCOL_ERROR_CLOSE, refusal.code)]

    def _error(self, ref: Ref, refusal: RefusalError) -> SendFrame:
        if refusal.code == "malformed_json":
            # The frame was JSON, but has an invalid value.
            refusal = invalid("", refusal.detail)
        return SendFrame(frames.error(ref, refusal, self._request_id))

    def _handle(self, frame: frames.Sent) -> Effects:
        if self._draining and not isinstance(frame, frames.AckFrame | frames.NackFrame | frames.PingFrame):
            raise draining()
        return _HANDLERS[type(frame)](self, frame)

    def _ping(self, frame: frames.PingFrame) -> Effects:
        return [SendFrame(frames.encode(frames.PongFrame(ref=frame.ref)))]

    def _auth(self, frame: frames.AuthFrame) -> Effects:
        # The open policy knows no tokens: nothing expires.
        return [SendFrame(frames.ok(frame.ref, {"expires_at": None}))]

    def _command(self, frame: frames.CommandFrame) -> Effects:
        return [RunCommand(frame.ref, bytes(frame.command))]

    def asked(self, ref: Ref, found: bytes | RefusalError) -> Effects:
        """Handle the result of a RunCommand: `{"result": …}`, or a refusal."""
        if isinstance(found, RefusalError):
            return [self._error(ref, found)]
        return [SendFrame(frames.ok_with(ref, found))]

    def _submit(
        self, commands: Sequence[Command], done: Callable[[Replies], Effects], *, synced: bool = False
    ) -> Submit:
        token = next(self._keys)
        self._waiting[token] = done
        return Submit(token, commands, synced)

    def done(self, token: int, replies: Replies) -> Effects:
        """Handle the replies to a Submit."""
        return self._waiting.pop(token)(replies)

    def _require(self, action: Action, stream: str) -> None:
        if not self._may(action, stream):
            raise RefusalError("forbidden", f"the credentials do not allow to {action} here")

    # ---- publishing

    def _publish(self, frame: frames.PublishFrame) -> Effects:
        stream = frames.name(frame.stream, "stream name")
        self._require(Action.WRITE, stream)
        wanted, published, last_id = frames.parse_publish(frame, self._limits.entries)
        command = wanted.command(stream, published, last_id, frames.idempotency_key(frame))

        def done(replies: Replies) -> Effects:
            reply = replies[0]
            if isinstance(reply, EngineError):
                return [self._error(frame.ref, to_refusal(reply))]
            if not isinstance(reply, Added):
                detail = f"there is no stream {stream!r}, and nomkstream forbids to make it"
                return [self._error(frame.ref, RefusalError("no_stream", detail))]
            result = added(reply, batch=True, trims=command.trim is not None, ids_wanted=True)
            return [SendFrame(frames.ok_with(frame.ref, result))]

        return [self._submit([command], done, synced=frames.wants_sync(frame))]

    # ---- subscriptions

    def _subscription(self, name: str) -> StreamSubscription | ConsumerSubscription:
        found = self._by_name.get(name)
        if found is None:
            raise invalid("/sub", "there is no subscription of this name on this socket")
        return found

    def _work(self, name: str) -> ConsumerSubscription:
        found = self._subscription(name)
        if not isinstance(found, ConsumerSubscription) or found.noack:
            raise invalid("/sub", "this subscription has nothing to acknowledge")
        return found

    def _check_new(self, name: str, streams: int) -> None:
        if len(name.encode()) > frames.SUB_BYTES_MAX:
            raise invalid("/sub", f"it has at most {frames.SUB_BYTES_MAX} bytes")
        if name in self._by_name:
            raise invalid("/sub", "this name is in use on this socket")
        if len(self._by_name) >= self._limits.subscriptions_max:
            raise invalid("/sub", f"a socket has at most {self._limits.subscriptions_max} subscriptions")
        tails = [one for one in self._by_name.values() if isinstance(one, StreamSubscription)]
        if sum(len(one.streams) for one in tails) + streams > self._limits.streams_max:
            raise invalid("/streams", f"a socket follows at most {self._limits.streams_max} streams")

    def _batch_max(self, given: int | UnsetType, default: int) -> int:
        return min(default if given is UNSET else given, self._limits.batch_max)

    def _add(self, made: StreamSubscription | ConsumerSubscription) -> None:
        self._by_name[made.name] = self._by_key[made.key] = made

    def _unsubscribe(self, frame: frames.UnsubscribeFrame) -> Effects:
        return [*self._end(self._subscription(frame.sub)), SendFrame(frames.ok(frame.ref))]

    def _end(self, one: StreamSubscription | ConsumerSubscription) -> Effects:
        one.ended = True
        if self._by_name.get(one.name) is one:
            del self._by_name[one.name]
        self._forget(one)
        return [Unsubscribe(one.key)]

    def _forget(self, one: StreamSubscription | ConsumerSubscription) -> None:
        """Forget an ended subscription, unless a read of it is in progress."""
        if one.ended and not (isinstance(one, ConsumerSubscription) and one.reading):
            self._by_key.pop(one.key, None)

    def revoke(self, key: int, reason: str) -> Effects:
        """End a subscription: `replaced`, `group_destroyed`, `stream_deleted` or `forbidden`."""
        one = self._by_key.get(key)
        if one is None or one.ended:
            return []
        revoked = frames.encode(frames.RevokedFrame(sub=one.name, reason=reason))
        return [*self._end(one), SendFrame(revoked), *self._close_if_idle()]

    def _credit(self, frame: frames.CreditFrame) -> Effects:
        one = self._subscription(frame.sub)
        if one.credit is None:
            raise invalid("/sub", "this subscription has no limit")
        held = len(one.in_flight) if isinstance(one, ConsumerSubscription) else 0
        if one.credit + held + frame.n > frames.CREDIT_MAX:
            raise invalid("/n", f"there is credit for at most {frames.CREDIT_MAX} entries")
        one.credit += frame.n
        return self._go_on(one)

    def _go_on(self, one: StreamSubscription | ConsumerSubscription) -> Effects:
        """Continue a subscription."""
        return self._read_on(one) if isinstance(one, ConsumerSubscription) else self._take_on(one)

    def _pause(self, one: StreamSubscription | ConsumerSubscription) -> Effects:
        if one.paused:
            return []
        one.paused = True
        return [SendFrame(frames.encode(frames.PausedFrame(sub=one.name, reason="credit")))]

    # ---- following streams

    def _subscribe(self, frame: frames.SubscribeFrame) -> Effects:
        self._check_new(frame.sub, len(frame.streams))
        streams: dict[str, int | Cursor] = {}
        for text, after in frame.streams.items():
            name = frames.name(text, "stream name")
            self._require(Action.READ, name)
            streams[name] = frames.place(after, "/streams")
        last = None if frame.last is UNSET else frame.last
        if last is not None and any(after is not Cursor.LATEST for after in streams.values()):
            raise invalid("/last", "it goes with `$` alone")
        if last is not None and last > self._limits.batch_max:
            raise invalid("/last", f"it is at most {self._limits.batch_max}")
        tail = StreamSubscription(
            next(self._keys), frame, self._batch_max(frame.batch_max, BATCH_MAX_DEFAULT)
        )
        self._add(tail)
        return [Subscribe(tail.key, streams, last)]

    def opened(self, key: int, cursors: Mapping[str, tuple[int, bool]]) -> Effects:
        """Handle Subscribe: for each stream the cursor, and whether there are no entries after it."""
        tail = self._by_key.get(key)
        if not isinstance(tail, StreamSubscription):
            return []
        places = {stream: ids.format(cursor) for stream, (cursor, _) in cursors.items()}
        effects: Effects = [SendFrame(frames.ok(tail.ref, {"next": places}))]
        for stream, (cursor, caught_up) in cursors.items():
            if caught_up:
                effects += self._caught_up(tail, stream, cursor)
            else:
                tail.ready.append(stream)
        return effects + self._take_on(tail)

    def not_opened(self, key: int, refusal: RefusalError) -> Effects:
        """Handle that streams cannot be followed."""
        tail = self._by_key.get(key)
        if not isinstance(tail, StreamSubscription):
            return []
        return [*self._end(tail), self._error(tail.ref, refusal)]

    def ready(self, key: int, stream: str) -> Effects:
        """Handle that a followed stream has entries."""
        tail = self._by_key.get(key)
        if not isinstance(tail, StreamSubscription) or self._draining:
            return []
        if stream not in tail.ready and stream != tail.taking:
            tail.ready.append(stream)
        return self._take_on(tail)

    def live_room(self, key: int) -> int:
        """The number of entries that `live` may send, without any other frame; 0 if `ready` must be used."""
        tail = self._by_key.get(key)
        if (
            not isinstance(tail, StreamSubscription)
            or tail.taking
            or tail.ready
            or tail.behind
            or self._draining
        ):
            return 0
        # `paused` follows the last credit, so `live` may not spend it.
        return tail.batch_max if tail.credit is None else max(0, min(tail.credit - 1, tail.batch_max))

    def live(self, key: int, page: FeedPage) -> bytes:
        """The frame for a page of at most `live_room` entries; the caller sends it at once."""
        tail = self._by_key[key]
        assert isinstance(tail, StreamSubscription), "there was room"
        tail.spend(page.count)
        return self._page(tail, page)

    def _page(self, tail: StreamSubscription, page: FeedPage) -> bytes:
        return page.cached(
            (frames.SUBPROTOCOL, tail.name),
            lambda page: frames.entries(tail.name, page.stream, page.entries, page.last_id),
        )

    def _take_on(self, tail: StreamSubscription) -> Effects:
        if tail.taking is not None or self._draining:
            return []
        if not tail.room:
            tail.behind.update(tail.ready)
            return self._pause(tail)
        if not tail.ready:
            return []
        tail.paused = False
        tail.taking = tail.ready.pop(0)
        return [FetchPage(tail.key, tail.taking, tail.room, PAGE_BYTES_MAX)]

    def took(self, key: int, item: FeedPage | FeedGap | None, cursor: int, *, caught_up: bool) -> Effects:
        """What a Take gave, None for nothing; `cursor` is where the stream is followed from now."""
        tail = self._by_key.get(key)
        if not isinstance(tail, StreamSubscription):
            return []
        assert tail.taking is not None, "a page was requested"
        stream, tail.taking = tail.taking, None
        effects = self._taken(tail, stream, item)
        if not caught_up:
            tail.ready.append(stream)
        elif stream in tail.behind:
            effects += self._caught_up(tail, stream, cursor)
        return effects + self._take_on(tail)

    def _taken(self, tail: StreamSubscription, stream: str, item: FeedPage | FeedGap | None) -> Effects:
        if item is None:
            return []
        if isinstance(item, FeedGap):
            return [SendFrame(gap_frame(tail.name, stream, item.after, item.first_available, item.lost))]
        tail.spend(item.count)
        return [SendFrame(self._page(tail, item))]

    def _caught_up(self, one: StreamSubscription | ConsumerSubscription, stream: str, cursor: int) -> Effects:
        if isinstance(one, StreamSubscription):
            one.behind.discard(stream)
        return [
            SendFrame(
                frames.encode(frames.CaughtUpFrame(sub=one.name, stream=stream, next=ids.format(cursor)))
            )
        ]

    # ---- working for a group

    def _consume(self, frame: frames.ConsumeFrame) -> Effects:
        self._check_new(frame.sub, 0)
        work = ConsumerSubscription(
            next(self._keys), frame, self._batch_max(frame.batch_max, self._limits.batch_max)
        )
        self._require(Action.CONSUME, work.stream)
        if work.noack and frame.credit is UNSET:
            raise invalid("/credit", "with `noack` nothing is acknowledged, which would give credit back")
        self._add(work)

        def done(replies: Replies) -> Effects:
            refusal = next((one for one in replies if isinstance(one, EngineError)), None)
            if work.ended:
                return []
            if refusal is not None:
                return [*self._end(work), self._error(frame.ref, to_refusal(refusal))]
            info = replies[-1]
            assert isinstance(info, GroupInfo), "DescribeGroup is the last command"
            result = {"next": {work.stream: ids.format(info.last_delivered_id)}}
            claim = AcquireLease(work.key, work.consumer_key)
            return [SendFrame(frames.ok(frame.ref, result)), claim]

        try:
            return [self._submit(self._beginning(work, frame), done)]
        except RefusalError:
            self._end(work)
            raise

    def _beginning(self, work: ConsumerSubscription, frame: frames.ConsumeFrame) -> Sequence[Command]:
        """Commands that create the group, if requested, and the consumer, and read the group's position."""
        if frame.create is UNSET or frame.create is False:
            return work.begin_commands(None)
        self._require(Action.MANAGE, work.stream)
        start = Cursor.LATEST if frame.create is True else frames.place(frame.create, "/create")
        return work.begin_commands(start)

    def owned(self, key: int) -> Effects:
        """Handle AcquireLease: no other reader reads as this consumer."""
        work = self._by_key.get(key)
        if not isinstance(work, ConsumerSubscription) or work.ended:
            return []
        work.owned = True
        return self._read_on(work)

    def _read_on(self, work: ConsumerSubscription, *, going_on: bool = False) -> Effects:
        if work.ended or work.reading or not work.owned or self._draining:
            return []
        if not work.room:
            return self._pause(work)
        work.paused = False
        work.reading = True
        return [ReadGroup(work.key, work.next_read(), going_on)]

    def delivered(self, key: int, reply: Reply | RefusalError, *, room: bool = True) -> Effects:
        """What a Read gave. What is for a subscription that has ended, or for a socket that has no room for
        it, is given back.
        """
        work = self._by_key[key]
        assert isinstance(work, ConsumerSubscription), "only consumers read"
        work.reading = False
        self._forget(work)
        if isinstance(reply, RefusalError):
            return self._failed(work, reply)
        assert isinstance(reply, GroupRead), "XREADGROUP replies with a GroupRead"
        found = reply.streams[0] if reply.streams else None
        if work.ended or self._closed:
            return [] if found is None else self._decline(work, found)
        if found is not None and not room and not work.noack:
            return [*self._told_gap(work, found), *self._decline(work, found), *self._read_on(work)]
        more = bool(reply.unfinished) or (found is not None and found.more)
        effects = [] if found is None else self._hand_over(work, found)
        if work.history is not None and not more:
            work.history = None
            last = found.last_delivered_id if found is not None else ids.ID_MIN
            effects += self._caught_up(work, work.stream, last)
        going_on = found is not None and not found.history and bool(found.entries)
        return effects + self._read_on(work, going_on=going_on)

    def _hand_over(self, work: ConsumerSubscription, found: StreamDeliveries) -> Effects:
        effects = self._told_gap(work, found)
        following = found.last_delivered_id
        if not found.entries:
            return effects
        if found.history:
            following = work.history = found.entries[-1].id
        # Entries that were released or claimed meanwhile and are delivered again count once.
        given = [one.id for one in found.entries]
        work.release(given)
        work.spend(len(given))
        if not work.noack:
            work.in_flight.update(dict.fromkeys(given))
        texts = b",".join(map(frames.encode_delivery, found.entries))
        data = frames.entries(work.name, work.stream, texts, following)
        return [*effects, SendFrame(data, work.key, () if work.noack else given)]

    def _told_gap(self, work: ConsumerSubscription, found: StreamDeliveries) -> Effects:
        if found.gap is None:
            return []
        return [SendFrame(gap_frame(work.name, work.stream, *msgspec.structs.astuple(found.gap)))]

    def _decline(self, work: ConsumerSubscription, found: StreamDeliveries) -> Effects:
        """Give entries back. An entry that was in flight before was released meanwhile."""
        given = [one.id for one in found.entries]
        work.release(given)
        return self._give_back(work, given)

    def _failed(self, work: ConsumerSubscription, refusal: RefusalError) -> Effects:
        if work.ended or refusal.code == "draining":
            return []
        if refusal.code in ("no_group", "no_stream"):
            return self._look_why(work)
        self._closed = True
        return [self._error(UNSET, refusal), Close(refusal.kind.close or 4000, refusal.code)]

    def _look_why(self, work: ConsumerSubscription) -> Effects:
        """Revoke a subscription whose group is gone: with its stream, or alone."""

        def done(replies: Replies) -> Effects:
            return self.revoke(work.key, "group_destroyed" if replies[0] == 1 else "stream_deleted")

        return [self._submit([Exists(streams=[work.stream])], done)]

    def _give_back(self, work: ConsumerSubscription, entry_ids: Sequence[int]) -> Effects:
        if work.noack or not entry_ids:
            return []
        return [self._submit([work.consumer_key.give_back(entry_ids)], lambda _: [])]

    # ---- settling

    def _ack(self, frame: frames.AckFrame) -> Effects:
        work, refs = self._work(frame.sub), frames.refs(frame)
        most = self._limits.ids_max if refs is None else self._limits.lookups_max
        wanted = frames.entry_ids(frame, most)
        where = {"stream": work.stream, "group": work.group}
        if refs is None:
            return self._settle(work, frame, wanted, XAck(**where, ids=wanted), "acknowledged")
        command = XAckDel(**where, ids=wanted, refs=refs)
        return self._settle(work, frame, wanted, command, "acknowledged")

    def _nack(self, frame: frames.NackFrame) -> Effects:
        work, wanted = self._work(frame.sub), frames.entry_ids(frame, self._limits.lookups_max)
        nack = Nack(ids=wanted, mode=frames.nack_mode(frame))
        command = XNack(stream=work.stream, group=work.group, nack=nack)
        return self._settle(work, frame, wanted, command, "released")

    def _settle(
        self,
        work: ConsumerSubscription,
        frame: frames.AckFrame | frames.NackFrame,
        wanted: list[int],
        command: Command,
        word: str,
    ) -> Effects:
        def done(replies: Replies) -> Effects:
            reply = replies[0]
            if isinstance(reply, EngineError):
                return [self._error(frame.ref, to_refusal(reply))]
            work.release(wanted)
            settled = reply.results if isinstance(reply, EngineDeletions) else None
            number = sum(one != -1 for one in settled) if settled is not None else reply
            answer: Effects = [] if frame.ref is UNSET else [SendFrame(frames.ok(frame.ref, {word: number}))]
            return [*answer, *self._read_on(work), *self._close_if_idle()]

        return [self._submit([command], done)]

    def tick(self) -> Effects:
        """Check consumers without credit: their entries may have been settled or claimed by others."""
        effects: Effects = []
        for work in self._by_name.values():
            if (
                isinstance(work, ConsumerSubscription)
                and not work.room
                and work.in_flight
                and not work.looking
            ):
                work.looking = True
                effects.append(self._look(work))
        return effects

    def _look(self, work: ConsumerSubscription) -> Submit:
        look = PendingCheck(work.consumer_key, [*work.in_flight], work.looked_upto)

        def done(replies: Replies) -> Effects:
            work.looking = False
            reply = replies[0]
            if isinstance(reply, EngineError):
                return self._look_why(work) if reply.code == "no_group" and not work.ended else []
            assert isinstance(reply, PendingList), "XPENDING with a range replies with a PendingList"
            work.looked_upto = look.upto(reply)
            work.release(look.gone(reply))
            return self._read_on(work)

        return self._submit([look.command], done)

    # ---- ends

    def drain(self, after_ms: int) -> Effects:
        """Start nothing new; entries in flight may still be acknowledged."""
        if self._draining or self._closed:
            return []
        self._draining = True
        return [SendFrame(frames.encode(frames.GoAwayFrame(after_ms=after_ms))), *self._close_if_idle()]

    def drained(self) -> Effects:
        """Close: the time to acknowledge is over."""
        self._closed = True
        return [Close(DRAIN_CLOSE, "draining")]

    def _close_if_idle(self) -> Effects:
        if not self._draining or self._closed:
            return []
        if any(isinstance(one, ConsumerSubscription) and one.in_flight for one in self._by_name.values()):
            return []
        return self.drained()

    def lost(self, unwritten: Iterable[tuple[int, Sequence[int]]]) -> Effects:
        """End all subscriptions. `unwritten` are entries that were not sent, by subscription."""
        self._closed = True
        effects: Effects = []
        for key, entry_ids in unwritten:
            work = self._by_key.get(key)
            if isinstance(work, ConsumerSubscription) and not work.ended:
                effects += self._give_back(work, [one for one in entry_ids if one in work.in_flight])
        for one in list(self._by_name.values()):
            effects += self._end(one)
        return effects


_HANDLERS: Final[Mapping[type, Callable[[Session, Any], Effects]]] = {
    frames.AuthFrame: Session._auth,  # noqa: SLF001 - the table of its own methods
    frames.PublishFrame: Session._publish,  # noqa: SLF001
    frames.SubscribeFrame: Session._subscribe,  # noqa: SLF001
    frames.ConsumeFrame: Session._consume,  # noqa: SLF001
    frames.AckFrame: Session._ack,  # noqa: SLF001
    frames.NackFrame: Session._nack,  # noqa: SLF001
    frames.CreditFrame: Session._credit,  # noqa: SLF001
    frames.UnsubscribeFrame: Session._unsubscribe,  # noqa: SLF001
    frames.CommandFrame: Session._command,  # noqa: SLF001
    frames.PingFrame: Session._ping,  # noqa: SLF001
}
