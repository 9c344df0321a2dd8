"""A handler without a task: it runs when its request is there, and again whenever the engine has answered.

Knows: that a handler whose body is in hand awaits the engine alone.
Must never know: what a handler does, bytes.

Should a handler want to wait for anything else before it has run a command, nothing has been done: it is
dropped, and its request is served by a task. So no command runs twice.
"""

from collections.abc import Callable, Coroutine, Generator, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

from app.gateway import Gateway
from app.http.requests import Request
from app.http.responses import Response, Scope
from engine import EngineError, EngineProtocol
from engine.commands import Command
from engine.replies import Reply

Replies = Sequence[Reply | EngineError]


class _Turn:
    """What a handler awaits: the replies to these commands."""

    __slots__ = ("commands",)

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands

    def __await__(self) -> Generator["_Turn", Replies, Replies]:
        return (yield self)


class _Elsewhere:
    """What a handler awaits that cannot be had here."""

    __slots__ = ()

    def __await__(self) -> Generator["_Elsewhere", None, NoReturn]:
        yield self
        raise AssertionError("a handler that waits for something else is not run on")


async def _receive() -> MutableMapping[str, Any]:
    await _Elsewhere()


class InlineRequest(Request):
    """A request whose body is in hand. `InlineHandler` runs its handler."""

    __slots__ = ("_body",)

    def __init__(self, gateway: Gateway, scope: Scope, names: Mapping[str, str], body: bytes) -> None:
        super().__init__(gateway, scope, _receive, names)
        self._body = body

    async def authenticate(self, *, tickets: Sequence[str] = ()) -> None:
        """Recognise a caller that was recognised before."""
        principal = None if tickets else self.gateway.policy.recognise(self.headers)
        if principal is None:
            await _Elsewhere()
        self.principal = principal

    async def body(self) -> bytes:
        """The whole body."""
        return self._body

    async def execute(self, command: Command, *, synced: bool = False) -> Reply:
        """Run one command that does not wait."""
        if synced or getattr(command, "block_ms", None) is not None:
            await _Elsewhere()
        (reply,) = await _Turn((command,))
        if isinstance(reply, EngineError):
            raise reply
        return reply

    async def transaction(self, commands: Sequence[Command], *, synced: bool = False) -> list[Reply]:
        """Run commands as one turn; the first refusal among them is raised."""
        if synced:
            await _Elsewhere()
        replies: list[Reply] = []
        for reply in await _Turn(commands):
            if isinstance(reply, EngineError):
                raise reply
            replies.append(reply)
        return replies


class InlineHandler:
    """A handler at work: each turn that it wants is submitted, until there is an answer for `done`."""

    __slots__ = ("_done", "_engine", "_handler", "_replies", "_submitting")

    def __init__(
        self,
        engine: EngineProtocol,
        handler: Coroutine[object, Any, Response],
        done: Callable[[Response], None],
    ) -> None:
        self._engine = engine
        self._handler = handler
        self._done = done
        self._replies: Replies | None = None
        self._submitting = False

    def begin(self) -> bool:
        """Run until the answer is there or waited for. False, with nothing done, if it is had elsewhere."""
        try:
            wanted = self._handler.send(None)
        except StopIteration as ended:
            # An answer that is made while it is sent needs somebody to send it.
            plain = type(ended.value) is Response
            if plain:
                self._done(ended.value)
            return plain
        if not isinstance(wanted, _Turn):
            self._handler.close()
            return False
        self._go_on(wanted)
        return True

    def _go_on(self, wanted: object) -> None:
        try:
            while (replies := self._submit(wanted)) is not None:
                wanted = self._handler.send(replies)
        except StopIteration as ended:
            self._done(ended.value)

    def _submit(self, wanted: object) -> Replies | None:
        """The replies, None if they come later. An exception goes to the handler, which answers it."""
        self._submitting, self._replies = True, None
        try:
            assert isinstance(wanted, _Turn), "once it has run something a handler awaits the engine alone"
            self._engine.submit(wanted.commands, self._told)
        except Exception as error:  # noqa: BLE001 - every exception has an answer, see `routing.answer`
            self._handler.throw(error)
        finally:
            self._submitting = False
        return self._replies

    def _told(self, replies: Replies) -> None:
        if self._submitting:
            self._replies = replies
            return
        try:
            wanted = self._handler.send(replies)
        except StopIteration as ended:
            self._done(ended.value)
        else:
            self._go_on(wanted)
