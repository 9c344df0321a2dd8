"""Working for a group: subscriptions that read as a consumer, and settle its entries.

Knows: which read comes next, which entries are in flight. Must never know: sockets, clocks, the running
engine.

    consume(frame) ─► Submit ─► AcquireLease ─► on_lease() ─► ReadGroup ─► on_delivery(entries) ─► SendFrame …

At most one ReadGroup of a subscription is in progress, for no more entries than there is credit for.
"""

from collections.abc import Sequence

from msgspec import UNSET

from app.auth import Action
from app.doors.websocket import frames
from app.doors.websocket.effects import AcquireLease, Close, Effects, ReadGroup, Rest, SendFrame, Submit
from app.doors.websocket.subscription_table import (
    READ_WAIT_MS,
    ConsumerSubscription,
    Replies,
    SubscriptionTable,
    caught_up_frame,
    closed_frame,
    gap_frame,
)
from app.errors import RefusalError, invalid, to_refusal
from app.http.entries.entry_pages import GapReport
from app.live.consumer import Taken
from app.live.feeds import FeedEnd
from engine import EngineError, ids
from engine.commands import Acknowledge, Command, Cursor, Exists, Nack, XAckDel, XNack
from engine.errors import ENTRIES_DAMAGED, OF_BACKEND
from engine.replies import (
    NOT_HELD,
    AcknowledgedIds,
    Deletions,
    GroupInfo,
    GroupRead,
    Outcomes,
    PendingList,
    Reply,
    StreamDeliveries,
    StreamEnd,
)


class GroupReader:
    """The consumers of one session."""

    def __init__(self, table: SubscriptionTable) -> None:
        self._table = table

    def consume(self, frame: frames.ConsumeFrame) -> Effects:
        """Handle the frame `consume`."""
        self._table.check_new(frame.sub, 0)
        work = ConsumerSubscription(
            self._table.new_key(), frame, self._table.batch_max(frame.batch_max, self._table.limits.batch_max)
        )
        stream = work.consumer.key.stream
        self._table.require(Action.CONSUME, *work.consumer.key)
        if work.consumer.noack and frame.credit is UNSET:
            raise invalid("/credit", "with `noack` nothing is acknowledged, which would give credit back")
        self._table.add(work)

        def done(replies: Replies) -> Effects:
            refusal = next((one for one in replies if isinstance(one, EngineError)), None)
            if work.ended:
                return []
            if refusal is not None:
                return [*self._table.end(work), self._table.error(frame.ref, to_refusal(refusal))]
            info = replies[-1]
            assert isinstance(info, GroupInfo), "DescribeGroup is the last command"
            result = {"next": {stream: ids.format(info.last_delivered_id)}}
            claim = AcquireLease(work.key, work.consumer.key)
            return [SendFrame(frames.ok(frame.ref, result)), claim]

        try:
            return [self._table.submit(self._begin_commands(work, frame), done)]
        except RefusalError:
            self._table.end(work)
            raise

    def _begin_commands(self, work: ConsumerSubscription, frame: frames.ConsumeFrame) -> Sequence[Command]:
        """Commands that create the group, if requested, and the consumer, and read the group's position."""
        if frame.create is UNSET or frame.create is False:
            return work.begin_commands(None)
        self._table.require(Action.MANAGE, work.consumer.key.stream, work.consumer.key.group)
        start = Cursor.LATEST if frame.create is True else frames.place(frame.create, "/create")
        return work.begin_commands(start)

    def on_lease(self, key: int, refusal: RefusalError | None = None) -> Effects:
        """Handle AcquireLease: no other reader reads as this consumer, and it may, without a refusal."""
        work = self._table.by_key.get(key)
        if not isinstance(work, ConsumerSubscription) or work.ended:
            return []
        if refusal is not None:
            return self._fail(work, refusal)
        work.owned = True
        return self.go_on(work)

    def go_on(self, work: ConsumerSubscription, *, going_on: bool = False) -> Effects:
        """Read again, if there is credit."""
        if work.ended or work.reading or work.resting or not work.owned or self._table.draining:
            return []
        if work.consumer.is_unsure and work.consumer.history is None:
            work.resting = True
            return [self._find_unsent(work, ids.ID_MIN)]
        if not work.credit.room:
            return self._table.pause(work)
        work.paused = False
        work.reading = True
        return [ReadGroup(work.key, work.consumer.next_read(READ_WAIT_MS), going_on)]

    def on_delivery(self, key: int, reply: Reply | RefusalError, *, room: bool = True) -> Effects:
        """Handle ReadGroup. Entries go back if the subscription has ended or the socket has no room."""
        work = self._table.by_key[key]
        assert isinstance(work, ConsumerSubscription), "only consumers read"
        work.reading = False
        self._table.forget(work)
        if isinstance(reply, RefusalError):
            return self._fail(work, reply)
        assert isinstance(reply, GroupRead), "XREADGROUP replies with a GroupRead"
        found = reply.streams[0] if reply.streams else None
        if work.ended or self._table.closed:
            return [] if found is None else self._decline(work, found)
        if found is not None and not room and not work.consumer.noack:
            return [*self._send_gap(work, found), *self._decline(work, found), *self.go_on(work)]
        was_closed = work.consumer.is_closed
        taken = work.consumer.take_reply(reply)
        effects = self._table.note_back(work)
        if taken.paused is not None:
            effects.append(SendFrame(_paused_frame(work.name, paused=taken.paused)))
        effects += self._send(work, taken)
        if taken.caught_up:
            last = ids.ID_MIN if found is None else found.last_delivered_id
            frame = caught_up_frame(work.name, work.consumer.key.stream, ids.format(last))
            effects.append(SendFrame(frame))
        if taken.end is not None:
            effects += self._send_end(work, taken.end, was_closed=was_closed)
        return effects + self.go_on(work, going_on=taken.is_new)

    def _send_end(self, work: ConsumerSubscription, end: StreamEnd, *, was_closed: bool) -> Effects:
        """The group has all; once nothing is pending either, the subscription ends."""
        effects: Effects = [] if was_closed else [SendFrame(closed_frame(work.name, FeedEnd(end)))]
        if end.drained:
            drained = frames.encode(frames.DrainedFrame(sub=work.name, stream=end.stream))
            effects += [SendFrame(drained), *self._table.end(work), *self._table.close_if_idle()]
        return effects

    def _send(self, work: ConsumerSubscription, taken: Taken) -> Effects:
        found, given = taken.found, taken.ids
        if found is None or not given:
            return [] if found is None else self._send_gap(work, found)
        following = given[-1] if found.history else found.last_delivered_id
        texts = b",".join(map(frames.encode_delivery, found.entries))
        data = frames.entries(work.name, work.consumer.key.stream, texts, ids.format(following))
        kept = () if work.consumer.noack else given
        return [*self._send_gap(work, found), SendFrame(data, work.key, kept)]

    def _send_gap(self, work: ConsumerSubscription, found: StreamDeliveries) -> Effects:
        if found.gap is None:
            return []
        return [SendFrame(gap_frame(work.name, work.consumer.key.stream, GapReport(found.gap)))]

    def _decline(self, work: ConsumerSubscription, found: StreamDeliveries) -> Effects:
        """Give entries back that are not sent."""
        return self.give_back(work, work.consumer.decline(found))

    def _fail(self, work: ConsumerSubscription, refusal: RefusalError) -> Effects:
        if work.ended or refusal.code == "draining":
            return []
        if refusal.code in ("no_group", "no_stream"):
            return self._revoke_missing(work)
        if refusal.code == ENTRIES_DAMAGED:
            return self._table.revoke_damaged(work.key, refusal)
        if refusal.code in OF_BACKEND:
            work.resting = True
            work.consumer.lose()
            is_alone = refusal.code != "backend_unavailable"
            return [*self._table.note_away(work, alone=is_alone), Rest(work.key)]
        self._table.closed = True
        return [self._table.error(UNSET, refusal), Close(refusal.kind.close or 4000, refusal.code)]

    def on_rested(self, key: int) -> Effects:
        """Handle Rest: read again."""
        work = self._table.by_key.get(key)
        if not isinstance(work, ConsumerSubscription):
            return []
        work.resting = False
        return self.go_on(work)

    def _find_unsent(self, work: ConsumerSubscription, start: int) -> Submit:
        """Look for entries that a lost reply has delivered: they go back to the group."""

        def done(replies: Replies) -> Effects:
            reply = replies[0]
            if isinstance(reply, EngineError):
                return self._fail(work, to_refusal(reply))
            assert isinstance(reply, PendingList), "XPENDING with a range replies with a PendingList"
            if work.ended:
                return []
            return [self._return_unsent(work, *work.consumer.unsent(reply))]

        return self._table.submit([work.consumer.find_unsent(start)], done)

    def _return_unsent(
        self, work: ConsumerSubscription, unsent: Sequence[int], following: int | None
    ) -> Submit:
        """Return these entries, then look for more after them, or read again."""

        def done(replies: Replies) -> Effects:
            if isinstance(replies[0], EngineError):
                return self._fail(work, to_refusal(replies[0]))
            if following is not None:
                return [] if work.ended else [self._find_unsent(work, following)]
            work.consumer.is_unsure = False
            return self.on_rested(work.key)

        return self._table.submit([work.consumer.key.give_back(unsent)], done)

    def _revoke_missing(self, work: ConsumerSubscription) -> Effects:
        """Revoke a subscription whose group is gone: with its stream, or alone."""

        def done(replies: Replies) -> Effects:
            if isinstance(replies[0], EngineError):
                return self._fail(work, to_refusal(replies[0]))
            return self._table.revoke(work.key, "group_destroyed" if replies[0] == 1 else "stream_deleted")

        return [self._table.submit([Exists(streams=[work.consumer.key.stream])], done)]

    def give_back(self, work: ConsumerSubscription, entry_ids: Sequence[int]) -> Effects:
        """Return entries to the group that were not sent."""
        if not entry_ids:
            return []
        return [self._table.submit([work.consumer.key.give_back(entry_ids)], lambda _: [])]

    # ---- settling

    def ack(self, frame: frames.AckFrame) -> Effects:
        """Handle the frame `ack`."""
        work, refs = self._table.find_consumer(frame.sub), frames.refs(frame)
        most = self._table.limits.ids_max if refs is None else self._table.limits.lookups_max
        wanted = frames.entry_ids(frame, most)
        where = {"stream": work.consumer.key.stream, "group": work.consumer.key.group}
        if refs is None:
            ack = Acknowledge(**where, ids=wanted, holders=[work.consumer.key.name] * len(wanted))
            return self._settle(work, frame, wanted, ack, "acknowledged")
        self._table.require(Action.WRITE, **where)
        command = XAckDel(**where, ids=wanted, refs=refs, consumer=work.consumer.key.name)
        return self._settle(work, frame, wanted, command, "acknowledged")

    def nack(self, frame: frames.NackFrame) -> Effects:
        """Handle the frame `nack`."""
        work, wanted = (
            self._table.find_consumer(frame.sub),
            frames.entry_ids(frame, self._table.limits.lookups_max),
        )
        delay_ms = 0 if frame.delay_ms is UNSET else frame.delay_ms
        nack = Nack(ids=wanted, mode=frames.nack_mode(frame), delay_ms=delay_ms)
        stream, group, consumer = work.consumer.key
        command = XNack(stream=stream, group=group, nack=nack, consumer=consumer)
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
                return [self._table.error(frame.ref, to_refusal(reply))]
            work.consumer.release(wanted)
            members: dict[str, object] = {word: _settled(reply)}
            if not_held := _not_held(reply, wanted):
                members["not_held"] = list(map(ids.format, not_held))
            answer: Effects = [] if frame.ref is UNSET else [SendFrame(frames.ok(frame.ref, members))]
            return [*answer, *self.go_on(work), *self._table.close_if_idle()]

        return [self._table.submit([command], done)]

    def tick(self) -> Effects:
        """Check consumers without credit: their entries may have been settled or claimed by others."""
        effects: Effects = []
        for work in self._table.by_name.values():
            if not isinstance(work, ConsumerSubscription) or work.looking:
                continue
            if work.consumer.in_flight and not work.credit.room:
                work.looking = True
                effects.append(self._check_pending(work))
        return effects

    def _check_pending(self, work: ConsumerSubscription) -> Submit:
        check = work.consumer.check()

        def done(replies: Replies) -> Effects:
            work.looking = False
            reply = replies[0]
            if isinstance(reply, EngineError):
                return self._revoke_missing(work) if reply.code == "no_group" and not work.ended else []
            assert isinstance(reply, PendingList), "XPENDING with a range replies with a PendingList"
            work.consumer.note_checked(check, reply)
            return self.go_on(work)

        return self._table.submit([check.command], done)


def _settled(reply: Reply) -> Reply:
    """With how many entries it was done."""
    if isinstance(reply, Deletions):
        return sum(one > 0 for one in reply.results)
    if isinstance(reply, AcknowledgedIds):
        return len(reply.ids)
    return len(reply.done) if isinstance(reply, Outcomes) else reply


def _not_held(reply: Reply, wanted: Sequence[int]) -> Sequence[int]:
    """What other consumers hold."""
    if isinstance(reply, Deletions):
        return [entry_id for entry_id, one in zip(wanted, reply.results, strict=True) if one == NOT_HELD]
    return reply.not_held if isinstance(reply, Outcomes | AcknowledgedIds) else ()


def _paused_frame(name: str, *, paused: bool) -> bytes:
    frame = frames.PausedFrame(sub=name, reason="group") if paused else frames.ResumedFrame(sub=name)
    return frames.encode(frame)
