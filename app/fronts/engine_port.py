"""One front, as the engine's process serves it.

Knows: what each message asks of the engine, which reads of the front wait.
Must never know: sockets, HTTP.

When a front's connection ends, what was read for it is taken back: its clients are gone too.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from app.fronts.calls import Calls, Handler
from app.fronts.codec import codec_of
from app.fronts.figures import EngineReport
from app.fronts.link import Message, ProcessLink
from app.fronts.messages import MessageKind, pack_refusal, pack_replies, unpack_call
from app.live.leases import ConsumerKey, ConsumerLease, ConsumerLeases
from engine import (
    Call,
    EngineError,
    EngineProtocol,
    ReadHandle,
    Refused,
    Replies,
    errors,
    taking_back,
    unexpected,
)
from engine.commands.types import XReadGroup
from engine.replies import GroupRead

_FIGURES_INTERVAL_S: Final = 0.25
_pack_report = codec_of(EngineReport).pack


class EnginePort:
    """Runs a front's commands in `engine`. `link` is connected with `receive` and `lose`."""

    def __init__(
        self,
        engine: EngineProtocol,
        leases: ConsumerLeases,
        handlers: Mapping[str, Handler],
        failing: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.link: Final = ProcessLink(self.receive, self.lose, serves=True)
        self.calls: Final = Calls(self.link, handlers)
        self._engine = engine
        self._leases = leases
        # Called at the end of the connection.
        self.on_lost: Callable[[EnginePort], None] = lambda _: None
        # Those of this front, by its numbers.
        self._held: dict[int, ConsumerLease] = {}
        self._loop = asyncio.get_running_loop()
        # Reads that have no reply yet, by its numbers.
        self._reads: dict[int, ReadHandle] = {}
        self._failing = failing
        self._reported: tuple[EngineReport, Sequence[str]] | None = None
        self._reporting: asyncio.TimerHandle | None = None
        self._handlers: dict[int, Callable[..., None]] = {
            MessageKind.SEND: self._send,
            MessageKind.END: self._end,
            MessageKind.CANCEL: self._cancel,
            MessageKind.LEASE: self._lease,
            MessageKind.LEFT: self._leave,
        }

    def welcome(self) -> None:
        """Let the front use the engine from now on."""
        reported = self._reported = EngineReport.of(self._engine), self._failing()
        self.link.send(MessageKind.WELCOME, 0, [_pack_report(reported[0]), reported[1]])
        self._reporting = self._loop.call_later(_FIGURES_INTERVAL_S, self._report)

    def receive(self, message: Message) -> None:
        """Handle a message of the front."""
        if self.calls.receive(message):
            return
        kind, number, *parts = message
        try:
            self._handlers[kind](number, *parts)
        except Exception as error:  # noqa: BLE001 - the front gets an answer in any case
            self._loop.call_exception_handler({"message": "a front's message failed", "exception": error})
            # Calls and leases have numbers of their own.
            if kind == MessageKind.LEASE:
                self.link.send(MessageKind.NOT_LEASED, number, pack_refusal(errors.internal()))
            elif kind != MessageKind.LEFT:
                self._refuse(number, errors.internal())

    def lose(self) -> None:
        """The front is gone: end what it waits for."""
        if self._reporting is not None:
            self._reporting.cancel()
        self.calls.lose()
        self.on_lost(self)
        reads, self._reads = self._reads, {}
        for read in reads.values():
            read.cancel()
        for number in list(self._held):
            self._leave(number)

    def close(self) -> None:
        """End the connection."""
        self.link.close()

    # --- commands -------------------------------------------------------------------------------------------

    def _send(self, number: int, packed: Sequence[Any]) -> None:
        call = unpack_call(packed)
        if call.waits is not None:
            self._reads[number] = call.waits
        replies = self._engine.send(call, partial(self._reply, number, call))
        if replies is not None:
            self._reply(number, call, replies)

    def _end(self, number: int) -> None:
        if number in self._reads:
            self._reads[number].end()

    def _cancel(self, number: int) -> None:
        # Where the reply is on its way the front takes it back itself.
        read = self._reads.pop(number, None)
        if read is not None:
            read.cancel()
            self.link.send(MessageKind.REPLIES, number, pack_replies([None]))

    def _reply(self, number: int, call: Call, replies: Replies) -> None:
        self._reads.pop(number, None)
        try:
            if not self.link.is_lost:
                self.link.send(MessageKind.REPLIES, number, pack_replies(replies))
                return
        except Exception as error:  # noqa: BLE001 - the front gets an answer in any case
            self._refuse(number, unexpected(call.origin, error))
        # It never gets them.
        for command, reply in reversed([*zip(call.commands, replies, strict=False)]):
            if isinstance(command, XReadGroup) and isinstance(reply, GroupRead):
                for undo in taking_back(command, reply):
                    self._engine.send(Call((undo,)), lambda _: None)

    def _refuse(self, number: int, error: EngineError) -> None:
        self.link.send(MessageKind.REPLIES, number, pack_replies(Refused(error)))

    # --- leases ---------------------------------------------------------------------------------------------

    def _lease(self, number: int, key: Sequence[str]) -> None:
        lease = self._leases.acquire(
            ConsumerKey(*key), partial(self.link.send, MessageKind.REPLACED, number, None)
        )
        self._held[number] = lease
        lease.alone.add_done_callback(lambda _: self.link.send(MessageKind.ALONE, number, None))

    def _leave(self, number: int) -> None:
        # One that failed is not there.
        lease = self._held.pop(number, None)
        if lease is not None:
            lease.leave()

    # --- figures --------------------------------------------------------------------------------------------

    def _report(self) -> None:
        report, failing = reported = EngineReport.of(self._engine), self._failing()
        if reported != self._reported:
            self._reported = reported
            self.link.send(MessageKind.FIGURES, 0, [_pack_report(report), failing])
        self._reporting = self._loop.call_later(_FIGURES_INTERVAL_S, self._report)
