"""A server whose sockets send back what they receive, below the very guard that the gateway's sockets have.

Knows: the guard, frames of RFC 6455. Must never know: conversations, and what is tested with it.

The gateway takes no binary messages, so those are said again here, once the guard has let them pass.
"""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from queue import Queue
from typing import Final

from websockets.frames import Opcode

from app.api.socket import FRAME_OVERHEAD_BYTES
from app.doors.http.listening import HttpServer
from app.doors.websocket.frames import on_wire
from app.doors.websocket.websocket_connection import SocketLimits, WebSocketConnection, guarded_socket
from app.gateway import Gateway
from app.http.responses import Receive, Scope, Send
from app.main import App
from app.server import http_server
from app.settings import Settings
from engine import SystemClock

# After this text nothing is read for a while.
HOLD: Final = b"hold"
HELD_S: Final = 0.4
_PATIENCE_S: Final = 20.0
_TEXT: Final = 0x80 | Opcode.TEXT
_BINARY: Final = 0x80 | Opcode.BINARY


class _Saying(WebSocketConnection):
    """A connection that says binary messages again."""

    def receive_message(self, message: bytes, *, is_text: bool) -> None:
        if is_text:
            super().receive_message(message, is_text=True)
        else:
            self.write_frame(bytes([_BINARY]) + on_wire(message)[1:])


class _Voice:
    """Says texts again, and holds the socket where one asks for it."""

    def __init__(self, link: WebSocketConnection) -> None:
        self._link = link
        self.gone = asyncio.get_running_loop().create_future()

    caller = "echo"
    waiting_bytes = 0

    def received(self, text: bytes) -> None:
        if text == HOLD:
            self._link.hold(held=True)
            asyncio.get_running_loop().call_later(HELD_S, partial(self._link.hold, held=False))
        self._link.write_frame(bytes([_TEXT]) + on_wire(text)[1:])

    def received_binary(self) -> None:
        raise AssertionError("it was said again before")

    def resumed(self) -> None:
        """Nothing waits."""

    def leaving(self) -> None:
        """Nothing is read."""

    def lost(self, sent_bytes: int) -> None:
        assert sent_bytes >= 0, "it counts"
        self.gone.set_result(None)


class _Echo(App):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        link = scope["extensions"]["weir.socket"]
        voice = _Voice(link)
        link.listen(voice, self.gateway.limits.budgets)
        await voice.gone


async def _serve(
    server: HttpServer, listener: socket.socket, loops: Queue[asyncio.AbstractEventLoop]
) -> None:
    loops.put(asyncio.get_running_loop())
    await server.serve(listener)


@contextmanager
def echoing(message_s_max: float = _PATIENCE_S) -> Iterator[int]:
    """The port of a server in a thread of its own."""
    settings = Settings()
    app = _Echo(Gateway(settings, SystemClock()))
    server = http_server(settings, app)
    bytes_max = settings.entry_bytes_max + FRAME_OVERHEAD_BYTES
    limits = SocketLimits(_PATIENCE_S, message_s_max, bytes_max)
    server.service.websocket = type("Saying", (_Saying, guarded_socket(limits)), {})
    loops: Queue[asyncio.AbstractEventLoop] = Queue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(_serve(server, listener, loops)))
        thread.start()
        loop = loops.get(timeout=_PATIENCE_S)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.call_soon_threadsafe(server.stop)
            thread.join(_PATIENCE_S)
            assert not thread.is_alive(), "it stops"
