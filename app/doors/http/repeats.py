"""Requests like one that was answered before: what is remembered of it, and how a read is answered again.

    answered by its route ─► remembered by its head: the stamp, caller, arguments; of a read its commands too
    the same head ─► the same stamp? ─ no ──► its route
                          │ yes
                          ├► a read ─► the caller's rate ─► room ─► the engine ─► answer
                          │                └ refused, by any of them ─┐
                          └► any other ─► its route, from there on ◄──┘

What is skipped finds the same each time: who asks, whether that caller may, what the text of the head means.
What a route refuses is refused by the route, in its words.

Knows: that nothing of a verdict changes while the stamp is the same.
Must never know: what an operation does, bytes, sockets.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from app.auth import Principal
from app.doors.http.inline import InlineRequest, PutOff, Replies
from app.errors import RefusalError
from app.gateway import Gateway
from app.http.client_address import Client, client_address
from app.http.operations.operation import Operation
from app.http.prepared import PreparedRead, Verdict
from app.http.responses import OUTPUT_STATE, TRANSPORT_EXTENSION, Response
from app.live.budgets import FREE_BYTES, Reader, Reservation
from engine import EngineError, How


class Repeat(NamedTuple):
    """What is remembered of a request; `bound` is what a read may answer."""

    stamp: int
    verdict: Verdict
    read: PreparedRead | None = None
    bound: int = 0

    @classmethod
    def of(cls, request: InlineRequest, stamp: int) -> "Repeat | None":
        """What to remember of one that was answered; its caller was asked for under this stamp."""
        principal, gateway, read = request.principal, request.gateway, request.prepared
        if request.arguments is None:
            return None
        gateway.stamp.end_with(principal.expires_s)
        verdict = Verdict(principal, request.meter is not None, request.arguments)
        bound = 0 if read is None else gateway.limits.commands.answer_bound(read.commands)
        return cls(stamp, verdict, read, bound)


class Pending(Protocol):
    """A request that waits for its answer."""

    request_id: str
    # As in the scope of a request of the ordinary way.
    state: dict[str, Any]

    @property
    def client(self) -> Client | None: ...
    @property
    def headers(self) -> Mapping[bytes, bytes]: ...
    @property
    def extensions(self) -> Mapping[str, Any]: ...
    def serve_anew(self) -> None: ...
    def finish(self, response: Response) -> None: ...


class RepeatedRead(PutOff):
    """One that is answered again."""

    __slots__ = ("_pending", "_read", "_route", "principal")

    def __init__(
        self, gateway: Gateway, pending: Pending, route: Operation, verdict: Verdict, read: PreparedRead
    ) -> None:
        super().__init__(gateway, "rest")
        self._pending = pending
        self._route = route
        self._read = read
        self.principal: Principal = verdict.principal

    @property
    def host(self) -> str:
        """The same."""
        return client_address({"client": self._pending.client})

    @property
    def request_id(self) -> str:
        """The same."""
        return self._pending.request_id

    @property
    def held(self) -> Reservation | None:
        """The same."""
        return self._pending.state.get(OUTPUT_STATE)

    def reserve(self, size: int) -> None:
        """The same."""
        held, pool = self.held, self.gateway.limits.budgets.output
        if held is not None:
            held.grow(size)
        elif size > FREE_BYTES:
            reader = Reader(self._pending.extensions[TRANSPORT_EXTENSION])
            self._pending.state[OUTPUT_STATE] = pool.reserve(self.caller, size, reader)

    def begin(self, repeat: Repeat) -> bool:
        """Run it, and answer now or later. Returns False, with nothing run, if it is refused at once."""
        try:
            if repeat.verdict.is_metered:
                self.begin_metering()
                self.take_requests(1, 0)
        except RefusalError:
            return False
        try:
            if repeat.bound > FREE_BYTES:
                self.put_off(self.gateway.limits.budgets.before_run(repeat.bound))
            engine = self.engine
        except (EngineError, RefusalError):
            self.give_back()
            return False
        commands = self._read.commands
        replies = engine.send(
            self.call(commands, How.ALONE if len(commands) == 1 else How.TOGETHER), self._answer
        )
        if replies is None:
            self.note_wait()
        else:
            self._answer(replies)
        return True

    def _answer(self, replies: Replies) -> None:
        pending = self._pending
        try:
            response = self._route.answer_again(self, pending.headers, self._read, replies)
        except Exception:  # noqa: BLE001 - its route says why
            self.give_back()
            pending.serve_anew()
        else:
            pending.finish(response)
