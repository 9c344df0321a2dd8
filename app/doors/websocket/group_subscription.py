"""Working for a group: a subscription that reads as a consumer, and settles its entries.

Knows: what a consumer is sent and says. Must never know: sockets, clocks, which read comes next.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec import UNSET

from app.auth import Action, Principal, Resource
from app.doors.websocket import frames
from app.doors.websocket.subscription_table import (
    PAGE_BYTES_MAX,
    Replies,
    Subscription,
    SubscriptionTable,
    closed_frame,
    gap_frame,
)
from app.errors import draining, invalid, to_refusal
from app.http.entries.entry_pages import GapReport
from app.live import readers
from app.live.consumer import Consumer, Credit, Taken
from app.live.feeds import FeedEnd
from app.live.leases import ConsumerKey
from app.live.readers import GroupPump
from engine import EngineError, ids
from engine.commands.base import Command
from engine.commands.types import Cursor, Exists, Nack, XAckDel, XGroupCreateConsumer, XNack
from engine.commands.weir_commands import Acknowledge, DescribeGroup, EnsureGroup
from engine.errors import ENTRIES_DAMAGED, OF_BACKEND
from engine.replies import (
    NOT_HELD,
    AcknowledgedIds,
    Deletions,
    GroupInfo,
    Outcomes,
    Reply,
    StreamDeliveries,
)

CREDIT_DEFAULT: Final = 100


def consume(table: SubscriptionTable, frame: frames.ConsumeFrame) -> None:
    """Handle the frame `consume`. Raises RefusalError."""
    table.check_new(frame.sub, 0)
    work = GroupSubscription(table, frame)
    key = work.consumer.key
    table.require(Action.CONSUME, *key)
    if work.consumer.noack and frame.credit is UNSET:
        raise invalid("/credit", "with `noack` nothing is acknowledged, which would give credit back")
    commands: list[Command] = [
        XGroupCreateConsumer(stream=key.stream, group=key.group, consumer=key.name),
        DescribeGroup(stream=key.stream, group=key.group),
    ]
    if frame.create is not UNSET and frame.create is not False:
        table.require(Action.MANAGE, key.stream, key.group)
        start = Cursor.LATEST if frame.create is True else frames.place(frame.create, "/create")
        commands.insert(0, EnsureGroup(stream=key.stream, group=key.group, start=start, mkstream=True))
    table.by_name[work.name] = work
    table.host.submit(commands, partial(work.begin, frame))


class GroupSubscription(Subscription):
    """A consumer of a group, as a GroupSink."""

    __slots__ = ("consumer", "pump")

    def __init__(self, table: SubscriptionTable, frame: frames.ConsumeFrame) -> None:
        left = CREDIT_DEFAULT if frame.credit is UNSET else frame.credit
        batch_max = table.batch_max(frame.batch_max, table.limits.batch_max)
        super().__init__(table, frame.sub, Credit(left, batch_max))
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
        self.pump: GroupPump | None = None

    @property
    def turn(self) -> int:
        """Those that were given entries just before come behind the others."""
        return int(self.pump is not None and self.pump.going_on)

    @property
    def held(self) -> int:
        """Entries in flight."""
        return len(self.consumer.in_flight)

    def may_go_on(self, principal: Principal) -> bool:
        """Whether the client may work for the group."""
        return principal.may(Action.CONSUME, Resource(*self.consumer.key))

    def close(self) -> None:
        """End the consumer's lease."""
        if self.pump is not None:
            self.pump.close()

    def begin(self, frame: frames.ConsumeFrame, replies: Replies) -> None:
        """The consumer is there: read, once it is its own."""
        table = self.table
        refusal = next((one for one in replies if isinstance(one, EngineError)), None)
        if self.ended:
            return
        if refusal is not None:
            table.end(self)
            table.refuse(frame.ref, to_refusal(refusal))
            return
        info = replies[-1]
        assert isinstance(info, GroupInfo), "DescribeGroup is the last command"
        following = {self.consumer.key.stream: ids.format(info.last_delivered_id)}
        table.host.send(frames.ok(frame.ref, {"next": following}))
        tenant = table.host.tenant
        self.pump = GroupPump(tenant.leases, tenant.engine, self.consumer, self, table.host.trace_read)
        self.pump.begin()

    def give_back(self, entry_ids: Sequence[int]) -> None:
        """Return to the group what has not left, as far as it is still held."""
        if self.pump is not None and not self.ended:
            in_flight = self.consumer.in_flight
            self.pump.give_back([entry_id for entry_id in entry_ids if entry_id in in_flight])

    # ---- the sink of its pump

    @property
    def is_full(self) -> bool:
        """Whether the socket accepts no data, or the gateway stops."""
        return self.wait_for_socket()

    def declines(self, found: StreamDeliveries) -> bool:
        """Whether too much waits in the socket by now. A gap would not come again."""
        if self.consumer.noack or not self.table.host.link.full:
            return False
        self._send_gap(found)
        return True

    def write(self, taken: Taken, *, was_closed: bool) -> None:
        """Send what a read has brought."""
        table, stream, found = self.table, self.consumer.key.stream, taken.found
        self.paused = False
        self.note_back()
        if taken.paused is not None:
            table.send(
                frames.PausedFrame(sub=self.name, reason="group")
                if taken.paused
                else frames.ResumedFrame(sub=self.name)
            )
        if found is not None:
            self._send_gap(found)
            if taken.ids:
                self._send_entries(found, taken.ids)
        if taken.caught_up:
            last = ids.ID_MIN if found is None else found.last_delivered_id
            table.send(frames.CaughtUpFrame(sub=self.name, stream=stream, next=ids.format(last)))
        if taken.end is not None and not was_closed:
            table.send(closed_frame(self.name, FeedEnd(taken.end)))
        if taken.end is not None and taken.end.drained:
            table.send(frames.DrainedFrame(sub=self.name, stream=stream))

    def _send_entries(self, found: StreamDeliveries, given: Sequence[int]) -> None:
        following = given[-1] if found.history else found.last_delivered_id
        texts = b",".join(map(frames.encode_delivery, found.entries))
        data = frames.entries(self.name, found.stream, texts, ids.format(following))
        # What was the consumer's before stays with it, sent or not.
        goes_back = () if self.consumer.noack or found.history else given
        self.table.host.deliver(data, self, len(given), goes_back)

    def _send_gap(self, found: StreamDeliveries) -> None:
        if found.gap is not None:
            self.table.send(gap_frame(self.name, found.stream, GapReport(found.gap)))

    def lack_credit(self) -> None:
        """Say so."""
        if self.table.draining:
            raise draining()
        self.pause()

    def replaced(self) -> None:
        """Another reader has taken the consumer over."""
        self.table.revoke(self, "replaced")

    def waits(self, why: EngineError) -> bool:
        """Read again when the backend can be read."""
        self.note_away(alone=why.code != "backend_unavailable")
        return True

    def end(self, why: Exception | None) -> None:
        """The group is drained, or for this reason."""
        table = self.table
        if why is None:
            table.finish(self)
        elif not isinstance(why, EngineError):
            table.host.fail(why)
        elif why.code in ("no_group", "no_stream"):
            self._revoke_missing()
        elif why.code == ENTRIES_DAMAGED:
            table.revoke(self, why.code, to_refusal(why))
        elif why.code != "draining" and not table.closed:
            refusal = to_refusal(why)
            table.close(refusal.kind.close or 4000, refusal.code, refusal)

    def _revoke_missing(self) -> None:
        """Revoke it: the group is gone, with its stream or alone."""

        def done(replies: Replies) -> None:
            found = replies[0]
            if not isinstance(found, EngineError):
                self.table.revoke(self, "group_destroyed" if found == 1 else "stream_deleted")
            elif found.code in OF_BACKEND and not self.ended:
                self.table.host.call_later(readers.rest_s(), self._revoke_missing)
            else:
                self.end(found)

        if not self.ended:
            self.table.host.submit([Exists(streams=[self.consumer.key.stream])], done)


# ---- settling


def ack(table: SubscriptionTable, frame: frames.AckFrame) -> None:
    """Handle the frame `ack`. Raises RefusalError."""
    work, refs = _find(table, frame.sub), frames.refs(frame)
    wanted = frames.entry_ids(frame, table.limits.ids_max if refs is None else table.limits.lookups_max)
    stream, group, consumer = work.consumer.key
    if refs is None:
        one: Command = Acknowledge(stream=stream, group=group, ids=wanted, holders=[consumer] * len(wanted))
    else:
        table.require(Action.WRITE, stream, group)
        one = XAckDel(stream=stream, group=group, ids=wanted, refs=refs, consumer=consumer)
    _settle(work, frame, wanted, one, "acknowledged")


def nack(table: SubscriptionTable, frame: frames.NackFrame) -> None:
    """Handle the frame `nack`. Raises RefusalError."""
    work, wanted = _find(table, frame.sub), frames.entry_ids(frame, table.limits.lookups_max)
    delay_ms = 0 if frame.delay_ms is UNSET else frame.delay_ms
    how = Nack(ids=wanted, mode=frames.nack_mode(frame), delay_ms=delay_ms)
    stream, group, consumer = work.consumer.key
    _settle(work, frame, wanted, XNack(stream=stream, group=group, nack=how, consumer=consumer), "released")


def _find(table: SubscriptionTable, name: str) -> GroupSubscription:
    """The subscription of this name, whose entries are acknowledged. Raises `invalid`."""
    found = table.find(name)
    if not isinstance(found, GroupSubscription) or found.consumer.noack:
        raise invalid("/sub", "this subscription has nothing to acknowledge")
    return found


def _settle(
    work: GroupSubscription,
    frame: frames.AckFrame | frames.NackFrame,
    wanted: list[int],
    command: Command,
    word: str,
) -> None:
    table = work.table

    def done(replies: Replies) -> None:
        reply = replies[0]
        if isinstance(reply, EngineError):
            table.refuse(frame.ref, to_refusal(reply))
            return
        work.consumer.release(wanted)
        members: dict[str, object] = {word: _settled(reply)}
        if not_held := _not_held(reply, wanted):
            members["not_held"] = list(map(ids.format, not_held))
        if frame.ref is not UNSET:
            table.host.send(frames.ok(frame.ref, members))
        work.go_on()
        table.close_if_idle()

    table.host.submit([command], done)


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
