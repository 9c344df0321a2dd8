"""Calls from one process to the other, in both directions over one link.

Knows: which calls have no result yet. Must never know: what is called.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final

from app.fronts.link import Message, ProcessLink
from app.fronts.messages import MessageKind, pack_refusal, unpack_refusal
from engine import EngineError, errors

Handler = Callable[..., Awaitable[Any]]


class Calls:
    """One end. `handlers` are what the other end may call, by name; results are what msgpack carries."""

    def __init__(self, link: ProcessLink, handlers: Mapping[str, Handler]) -> None:
        self._link = link
        self._handlers: Final = handlers
        self._numbers = count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        # The loop holds tasks weakly.
        self._running: set[asyncio.Task[None]] = set()

    async def call(self, name: str, *arguments: Any) -> Any:  # noqa: ANN401 - what is carried
        """Call what the other end has under this name. Raises `restarting`, where nothing may have been done,
        and `internal`.
        """
        if self._link.is_lost:
            raise errors.restarting()
        number = next(self._numbers)
        self._link.send(MessageKind.CALL, number, [name, arguments])
        pending = self._pending[number] = asyncio.get_running_loop().create_future()
        return await pending

    def receive(self, message: Message) -> bool:
        """Handle a message; False for one that is neither a call nor a result."""
        kind, number = message[:2]
        if kind == MessageKind.CALL:
            name, arguments = message[2]
            task = asyncio.get_running_loop().create_task(self._run(number, name, arguments))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif kind == MessageKind.RESULT:
            value, refusal = message[2]
            pending = self._pending.pop(number)
            if pending.done():
                pass
            elif refusal is None:
                pending.set_result(value)
            else:
                pending.set_exception(unpack_refusal(refusal))
        else:
            return False
        return True

    def lose(self) -> None:
        """The connection has ended: refuse what has no result."""
        pending, self._pending = self._pending, {}
        for reply in pending.values():
            if not reply.done():
                reply.set_exception(errors.restarting(is_unknown=True))

    async def _run(self, number: int, name: str, arguments: list[Any]) -> None:
        try:
            result = await self._handlers[name](*arguments)
            self._link.send(MessageKind.RESULT, number, [result, None])
            return
        except EngineError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001 - the caller gets an answer in any case
            context = {"message": f"the call {name} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            refusal = errors.internal()
        self._link.send(MessageKind.RESULT, number, [None, pack_refusal(refusal)])
