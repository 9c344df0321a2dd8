"""One WebSocket on any ASGI server, for `uvicorn app.main:app` and others.

Knows: ASGI's messages for WebSockets, how a frame is laid out. Must never know: what a frame means.

It knows less about the socket than `websocket_connection`: a frame counts as sent once `send` has returned.
"""

import asyncio
from collections import deque
from typing import Final

from app.doors.websocket.socket_link import NEVER_SENT, Listener
from app.http.responses import Receive, Send

# Bytes that wait to be sent; with more, the socket is `full`.
_WAITING_BYTES_MAX: Final = 64 << 10


class AsgiSocket:
    """The socket of one conversation: `serve` it, from its acceptance to its end."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.sent_bytes = 0
        self._written_bytes = 0
        self._waiting: deque[bytes] = deque()
        self._close: tuple[int, str] | None = None
        self._is_over = False
        # Set when there is something to send.
        self._due = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()

    @property
    def paused(self) -> bool:
        """Whether data waits to be sent, or the socket has ended."""
        return bool(self._waiting) or self._is_over

    @property
    def full(self) -> bool:
        """Whether too much data waits to be sent, or the socket has ended."""
        return self._is_over or self._written_bytes - self.sent_bytes > _WAITING_BYTES_MAX

    def write_frame(self, data: bytes) -> int:
        """Write a whole frame. Returns the number of bytes written so far, `NEVER_SENT` after the end."""
        if self._is_over:
            return NEVER_SENT
        self._waiting.append(data)
        self._written_bytes += len(data)
        self._due.set()
        return self._written_bytes

    def write_alone(self, data: bytes) -> bool:
        """Write a whole frame if nothing waits to be sent, and the socket is open. Returns whether it did."""
        return not self.paused and self.write_frame(data) != NEVER_SENT

    def hold(self, *, held: bool) -> None:
        """Pause or resume reading."""
        if held:
            self._may_read.clear()
        else:
            self._may_read.set()

    def close_with(self, code: int, reason: str) -> None:
        """Send a close frame after everything that was written before, and close."""
        if not self._is_over:
            self._is_over = True
            self._close = code, reason
            self._due.set()

    async def serve(self, listener: Listener) -> None:
        """Carry messages in both directions until either side has closed."""
        sending = asyncio.create_task(self._send_all(listener))
        reading = asyncio.create_task(self._read_all(listener))
        try:
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_over = True
            for task in (sending, reading):
                task.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)
            listener.lost(self.sent_bytes)

    async def _send_all(self, listener: Listener) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            while self._waiting:
                frame = self._waiting[0]
                await self._send({"type": "websocket.send", "text": _payload(frame).decode()})
                self.sent_bytes += len(self._waiting.popleft())
            if self._close is not None:
                code, reason = self._close
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
                return
            listener.resumed()

    async def _read_all(self, listener: Listener) -> None:
        while True:
            await self._may_read.wait()
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            if message.get("text") is not None:
                listener.received(message["text"].encode())
            elif message["type"] == "websocket.receive":
                listener.received_binary()


def _payload(frame: bytes) -> bytes:
    """The text of a frame, see RFC 6455, 5.2: its length takes one, three or nine bytes."""
    return frame[{126: 4, 127: 10}.get(frame[1], 2) :]
