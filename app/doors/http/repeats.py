"""Plain reads that were answered before, in the same bytes, and how they are answered again.

    answered by its route ─► remembered under its bytes: caller, commands, what makes the answer, the stamp
    the same bytes ─► the same stamp? ─ yes ─► the caller's rate ─► room ─► the engine ─► answer
                          │ no                     └ refused, by any of them ─┐
                          └► its route ◄──────────────────────────────────────┘

What is skipped finds the same each time: who asks, whether that caller may, what the text of the request
means. What a route refuses is refused by the route, in its words.

Knows: that nothing of a verdict changes while the stamp is the same.
Must never know: what an operation does, bytes, sockets.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from app.auth import Principal
from app.doors.http.inline import InlineRequest, Replies
from app.errors import RefusalError
from app.http.operations.operation import Operation
from app.http.prepared import PreparedRead
from app.http.responses import Response
from engine import EngineError, How

Done = Callable[[Response], None]


class Repeat(NamedTuple):
    """What is remembered of a read. `is_metered`: its caller has a rate."""

    principal: Principal
    is_metered: bool
    read: PreparedRead
    stamp: int

    @classmethod
    def of(cls, request: InlineRequest, stamp: int) -> "Repeat | None":
        """What to remember of one that was answered; its caller was asked for under this stamp. None for
        one that cannot be repeated.
        """
        if request.prepared is None:
            return None
        principal = request.principal
        request.gateway.stamp.end_with(principal.expires_s)
        return cls(principal, request.meter is not None, request.prepared, stamp)

    def begin(
        self, route: Operation, request: InlineRequest, done: Done, refused: Callable[[], None]
    ) -> bool:
        """Run it. Later, or before this returns, `done` gets the answer, or `refused` is called.

        Returns False, with nothing run, if it is refused at once.
        """
        commands = self.read.commands
        request.principal = self.principal
        try:
            engine = request.engine
            if self.is_metered:
                request.take_request()
        except RefusalError:
            return False
        try:
            request.put_off(*commands)
        except EngineError:
            request.give_back()
            return False
        call = request.call(commands, How.ALONE if len(commands) == 1 else How.TOGETHER)
        answer = partial(self._answer, route, request, done, refused)
        replies = engine.send(call, answer)
        if replies is None:
            request.note_wait()
        else:
            answer(replies)
        return True

    def _answer(
        self,
        route: Operation,
        request: InlineRequest,
        done: Done,
        refused: Callable[[], None],
        replies: Replies,
    ) -> None:
        try:
            response = route.answer_again(request, self.read, replies)
        except Exception:  # noqa: BLE001 - its route says why
            refused()
        else:
            done(response)
