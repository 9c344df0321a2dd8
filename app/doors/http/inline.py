"""Runs a handler without a task: when its request has arrived, and again whenever the engine has answered.

Knows: that a handler with its whole body awaits the engine, and little else.
Must never know: what a handler does, bytes.

A waiting read of a group goes on in a task, which learns from `receive` when its client leaves. If a handler
awaits anything else before it has run a command, it has done nothing yet: it is dropped, and its request is
served the ordinary way. So no command runs twice.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import coroutine
from typing import Any, Final, NamedTuple, NoReturn

from app.gateway import Gateway, Receive
from app.http.requests import Request, too_large
from app.http.responses import Response, Scope
from app.limits import text_bytes
from app.live.budgets import FREE_BYTES
from app.work import Work
from engine import Call, CommandEngine, EngineError, How
from engine.commands import Command, XReadGroup
from engine.replies import Reply

Replies = Sequence[Reply | EngineError]


class _Turn(NamedTuple):
    """The replies of the engine to this call."""

    engine: CommandEngine
    call: Call
    request: "InlineRequest"


# Something that a task can wait for, and something that only the ordinary way has.
_TASK: Final = object()
_ELSEWHERE: Final = object()


@coroutine
def _ask(wanted: object) -> Generator[object, Any, Any]:
    """Wait for what the `InlineHandler` gives."""
    return (yield wanted)


async def _go_elsewhere() -> NoReturn:
    await _ask(_ELSEWHERE)
    raise AssertionError("a handler that waits for something else is not run on")


class PutOff(Work):
    """Work whose replies mostly leave in the turn of their commands."""

    __slots__ = ()

    def put_off(self, bound: int) -> None:
        """Reserve this, but where there is room for any caller, not before it is known that the replies come
        later: an answer that leaves in the turn of its command takes nothing from others.
        """
        if bound <= FREE_BYTES:
            return
        if self.held is not None or not self.gateway.limits.budgets.output.has_room(bound):
            self.reserve(bound)
        else:
            self._put_off_bytes = bound

    def note_run(self, replies: Replies) -> None:
        """The same."""
        self._put_off_bytes = 0
        if self.held is not None:
            super().note_run(replies)
        elif (size := sum(map(text_bytes, replies))) > FREE_BYTES:
            # There was room for more when the turn began.
            with suppress(EngineError):
                self.reserve(size)

    def note_wait(self) -> None:
        """Reserve what was put off: the replies come later."""
        if self._put_off_bytes:
            with suppress(EngineError):
                self.reserve(self._put_off_bytes)
            self._put_off_bytes = 0


class InlineRequest(PutOff, Request):
    """A request whose whole body has arrived. `InlineHandler` runs its handler.

    `receive` waits until its client has left.
    """

    __slots__ = ("_body", "_has_task")

    def __init__(
        self, gateway: Gateway, scope: Scope, receive: Receive, names: Mapping[str, str], body: bytes
    ) -> None:
        super().__init__(gateway, scope, receive, names)
        self._body = body
        self._has_task = False

    async def _authenticate_anew(self, tickets: Sequence[str]) -> None:
        await _go_elsewhere()

    async def body(self, bytes_max: int = sys.maxsize) -> bytes:
        """The whole body."""
        if len(self._body) > bytes_max:
            raise too_large(bytes_max)
        return self._body

    async def take_turn(self) -> None:
        """Be served by a task, which can wait."""
        await self.in_task()
        await super().take_turn()

    async def in_task(self) -> None:
        """Be served by one."""
        if not self._has_task:
            await _go_elsewhere()

    async def reply_to(self, command: Command, *, synced: bool = False) -> Reply:
        """The reply to one command that does not wait, or in a task to a group's read that does."""
        if isinstance(command, XReadGroup) and command.block_ms is not None and not synced:
            await _ask(_TASK)
            self._has_task = True
            return await super().reply_to(command)
        if synced or getattr(command, "block_ms", None) is not None:
            await _go_elsewhere()
        self.put_off(self.answer_bound((command,)))
        replies: Replies = await _ask(_Turn(self.engine, self.call((command,)), self))
        (reply,) = replies
        if isinstance(reply, EngineError):
            raise reply
        self.note_arrived(reply)
        return reply

    async def _run_together(self, commands: Sequence[Command], *, synced: bool) -> Replies:
        if synced:
            await _go_elsewhere()
        self.put_off(self.answer_bound(commands))
        replies: Replies = await _ask(_Turn(self.engine, self.call(commands, How.TOGETHER), self))
        return replies


class InlineHandler:
    """A running handler. Each turn that it awaits is submitted, until `done` gets its answer.

    If it awaits anything else after it has run something, a task runs the rest: one of `tasks`, which a
    stopping server waits for.
    """

    __slots__ = ("_done", "_handler", "_tasks")

    def __init__(
        self,
        handler: Coroutine[object, Any, Response],
        done: Callable[[Response], None],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._handler = handler
        self._done = done
        self._tasks = tasks

    def begin(self) -> bool:
        """Run until the answer is there or waited for. False, with nothing done, if it is had elsewhere."""
        try:
            wanted = self._handler.send(None)
        except StopIteration as ended:
            # An answer that is made while it is sent needs a task that sends it.
            plain = type(ended.value) is Response
            if plain:
                self._done(ended.value)
            return plain
        if not isinstance(wanted, _Turn) and wanted is not _TASK:
            self._handler.close()
            return False
        self._go_on(wanted)
        return True

    def _go_on(self, wanted: object) -> None:
        turn: _Turn | None = None
        replies: Replies | None = ()
        try:
            while isinstance(wanted, _Turn):
                turn = wanted
                replies = turn.engine.send(turn.call, self._take)
                if replies is None:
                    turn.request.note_wait()
                    return
                wanted = self._handler.send(replies)
        except StopIteration as ended:
            self._done(ended.value)
        else:
            if turn is not None and replies:
                # What is made of them takes a while.
                turn.request.note_run(replies)
            rest = asyncio.ensure_future(self._end(wanted))
            self._tasks.add(rest)
            rest.add_done_callback(self._tasks.discard)

    async def _end(self, wanted: object) -> None:
        """Run on from what the handler awaits."""
        while True:
            try:
                if isinstance(wanted, _Turn):
                    sent: object = await self._submitted(wanted)
                elif wanted is _TASK:
                    sent = None
                else:
                    sent = await _ask(wanted)
            except BaseException as error:  # noqa: BLE001 - the handler's to answer
                step = partial(self._handler.throw, error)
            else:
                step = partial(self._handler.send, sent)
            try:
                wanted = step()
            except StopIteration as ended:
                self._done(ended.value)
                return

    async def _submitted(self, turn: _Turn) -> Replies:
        later: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()
        replies = turn.engine.send(turn.call, later.set_result)
        if replies is None:
            turn.request.note_wait()
            replies = await later
        return replies

    def _take(self, replies: Replies) -> None:
        try:
            wanted = self._handler.send(replies)
        except StopIteration as ended:
            self._done(ended.value)
        else:
            self._go_on(wanted)
