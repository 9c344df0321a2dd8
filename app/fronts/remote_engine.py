"""A front's engine and its consumer leases: every command goes to the engine's process, which keeps the
leases for all fronts.

Knows: which requests have no reply yet, which of them wait for entries, what was last reported of the engine,
which leases this front holds or waits for.
Must never know: sockets, how the engine's process starts and ends, who else holds a lease.

When the connection ends, what has no reply is refused with `restarting`: it may or may not have been done.
The engine's process answers a lease when no other reader is left, and says when another one takes it over.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Final

import msgspec

from app.fronts.codec import codec_of
from app.fronts.figures import EngineReport, ReportedMemory
from app.fronts.link import Message, ProcessLink
from app.fronts.messages import MessageKind, pack_call, unpack_refusal, unpack_replies
from app.live.leases import ConsumerKey, ConsumerLease, ConsumerLeases
from engine import (
    Call,
    Done,
    EngineError,
    Events,
    Figures,
    Memory,
    Refused,
    Replies,
    errors,
    unexpected,
)
from engine.commands.base import Command
from engine.replies import GroupRead, Planned, Reply, StreamsRead

_unpack_report = codec_of(EngineReport).unpack


class RemoteEngine:
    """Sends commands over `link`, and is given its messages by `receive`. What it reports of the engine is up
    to a quarter of a second old.
    """

    def __init__(self, link: ProcessLink, report: Message) -> None:
        # The engine's process looks after what happens: nothing calls them here.
        self.events: Final = Events()
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._pending: dict[int, Done] = {}
        # Those of them that wait for entries.
        self._waiting: set[int] = set()
        self._is_draining = False
        self._report: EngineReport = _unpack_report(report)
        self._memory = ReportedMemory(lambda: self._report)
        # Called with what an operator has to act on in the engine's process.
        self.on_failing: Callable[[Sequence[str]], None] = lambda _: None

    # --- commands -------------------------------------------------------------------------------------------

    def send(self, call: Call, done: Done) -> Replies | None:
        """Run the commands of a call, as the engine does. Nothing is answered at once."""
        number, handle = next(self._numbers), call.waits
        if handle is not None:
            handle.begin(call.commands[0], done, self._take_back)
        answer = partial(self._answer, number, call, done)
        refusal = self._refusal(number, call)
        if refusal is not None:
            self._loop.call_soon(answer, Refused(refusal))
            return None
        self._pending[number] = answer
        if handle is not None:
            self._waiting.add(number)
            handle.wait(partial(self._end, number), partial(self._cancel, number))
            if self._is_draining:
                self._end(number)
        return None

    def _refusal(self, number: int, call: Call) -> EngineError | None:
        """Send a call. Returns why it was not sent."""
        if self._link.is_lost:
            return errors.restarting()
        try:
            self._link.send(MessageKind.SEND, number, pack_call(call))
        except Exception as error:  # noqa: BLE001 - the caller gets an answer in any case
            return unexpected(call.origin, error)
        return None

    def _answer(self, number: int, call: Call, done: Done, replies: Replies) -> None:
        if call.waits is None:
            done(call.refused(replies.error) if isinstance(replies, Refused) else replies)
            return
        self._waiting.discard(number)
        if self._is_draining and _is_empty(replies[0]):
            replies = Refused(errors.closing())
        call.waits.answer(replies)

    def _end(self, number: int) -> None:
        self._link.send(MessageKind.END, number)

    def _cancel(self, number: int) -> None:
        self._waiting.discard(number)
        self._link.send(MessageKind.CANCEL, number)

    def _take_back(self, command: Command) -> None:
        self.send(Call((command,)), lambda _: None)

    @property
    def durability(self) -> str:
        """What an answer promises."""
        return "fsync" if self._report.figures.fsync == "always" else "os"

    @property
    def delivery_durability(self) -> str:
        """The same for the answer to a group's read."""
        return self.durability

    # --- the other end --------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        """Handle a message of the engine's process."""
        kind, number, body = message
        if kind == MessageKind.FIGURES:
            report, failing = body
            self._report = _unpack_report(report)
            self.on_failing(failing)
        elif kind == MessageKind.REPLIES:
            self._pending.pop(number)(unpack_replies(body))

    def lose(self) -> None:
        """The connection has ended: refuse what has no reply."""
        pending, self._pending = self._pending, {}
        for done in pending.values():
            # Each in a cycle of its own: one that fails is no matter of the others.
            self._loop.call_soon(done, Refused(errors.restarting(is_unknown=True)))

    def end_waits(self) -> None:
        """Answer every read that waits, now and from now on, with `draining`."""
        self._is_draining = True
        for number in self._waiting:
            self._end(number)

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        """How much memory the engine's process uses, and the limit."""
        return self._memory

    def figures(self) -> Figures:
        """Those of the engine; reads that wait are this front's."""
        return msgspec.structs.replace(self._report.figures, waiting=len(self._waiting))

    def begin_rewrite(self) -> object:
        """Never called: the engine's process serves what administers the log."""
        raise AssertionError("a rewrite begins in the engine's process")


def _is_empty(reply: Reply | EngineError) -> bool:
    """Whether a read that may wait has found nothing."""
    if isinstance(reply, Planned):
        return not any(stream.count for stream in reply.streams)
    return isinstance(reply, StreamsRead | GroupRead) and not reply.streams


class RemoteLeases(ConsumerLeases):
    """Leases that are taken over `link`. Watchers hear of what this front settles."""

    def __init__(self, link: ProcessLink) -> None:
        super().__init__()
        self._link = link
        self._numbers = count()
        self._held: dict[int, ConsumerLease] = {}

    def acquire(self, consumer: ConsumerKey, replaced: Callable[[], None]) -> ConsumerLease:
        """Lease a consumer; the lease is `alone` when the engine's process has answered."""
        number, lease = next(self._numbers), ConsumerLease(consumer, replaced)
        self._held[number] = lease
        lease.over.add_done_callback(lambda _: self._leave(number))
        key = consumer._replace(stream=self._prefix + consumer.stream)
        self._link.send(MessageKind.LEASE, number, list(key))
        if self._link.is_lost:
            lease.alone.set_result(None)
        return lease

    def receive(self, message: Message) -> None:
        """Handle an answer of the engine's process; the reader may have left meanwhile."""
        kind, number, refusal = message
        lease = self._held.get(number)
        if lease is None:
            return
        if kind == MessageKind.REPLACED:
            lease.replace()
        elif not lease.alone.done():
            lease.alone.set_result(None if refusal is None else unpack_refusal(refusal))

    def lose(self) -> None:
        """The connection has ended: let no reader wait; what it reads is refused."""
        for lease in list(self._held.values()):
            if not lease.alone.done():
                lease.alone.set_result(None)

    def _leave(self, number: int) -> None:
        del self._held[number]
        self._link.send(MessageKind.LEFT, number)
