"""Clients that cost little: they share the cores with what they measure.

A connection is a protocol of the event loop: what arrives is cut into WebSocket messages, or into HTTP
answers, and handed on in the same call, without tasks, queues or futures. Gateway and peers are measured
through the same classes.

Knows: framing and the handshake of RFC 6455, as much of HTTP/1.1 as a keep-alive client needs.
Must never know: what is in a message.
"""

import asyncio
import base64
import os
from collections.abc import Callable
from typing import Any, Final, Self, cast

from websockets.speedups import apply_mask

_TEXT: Final = 0x81
_PING: Final = 0x9
_CLOSE: Final = 0x8

Heard = Callable[[Any, bytes], None]


def _frame(payload: bytes, first: int = _TEXT) -> bytes:
    """A client's frame, masked as RFC 6455 wants it."""
    size, key = len(payload), os.urandom(4)
    if size < 126:
        head = b"%c%c" % (first, 0x80 | size)
    elif size < 1 << 16:
        head = b"%c\xfe%b" % (first, size.to_bytes(2, "big"))
    else:
        head = b"%c\xff%b" % (first, size.to_bytes(8, "big"))
    return head + key + apply_mask(payload, key)


class Socket(asyncio.Protocol):
    """A WebSocket. `heard(socket, payload)` is called for each message, from the event loop."""

    def __init__(self, path: str, heard: Heard) -> None:
        self._path = path
        self._heard = heard
        self._rest = b""
        self._open = False
        self._full: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, port: int, path: str, heard: Heard) -> Self:
        """A socket that has been opened."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(path, heard), "127.0.0.1", port)
        await made.opened
        return made

    def send(self, payload: bytes) -> None:
        """A text message."""
        assert self._transport is not None, "it is open"
        self._transport.write(_frame(payload))

    async def drained(self) -> None:
        """Wait until what was sent has room in the system's buffers."""
        if self._full is not None:
            await self._full

    def pause_writing(self) -> None:
        self._full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        full, self._full = self._full, None
        if full is not None and not full.done():
            full.set_result(None)

    def close(self) -> None:
        """Break off."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        key = base64.b64encode(os.urandom(16)).decode()
        self._transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("no handshake"))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        if not self._open:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._rest = data
                return
            assert data.startswith(b"HTTP/1.1 101"), f"no handshake: {data[:200]!r}"
            self._open, at = True, end
            self.opened.set_result(None)
        while at + 2 <= size:
            length, start = data[at + 1], at + 2
            if length == 126:
                start += 2
                length = int.from_bytes(data[at + 2 : start], "big")
            elif length == 127:
                start += 8
                length = int.from_bytes(data[at + 2 : start], "big")
            if start + length > size:
                break
            self._message(data[at] & 0xF, data[start : start + length])
            at = start + length
        self._rest = data[at:]

    def _message(self, opcode: int, payload: bytes) -> None:
        if opcode in (1, 2):
            self._heard(self, payload)
        elif opcode == _PING:
            assert self._transport is not None, "it is open"
            self._transport.write(_frame(payload, 0x8A))
        elif opcode == _CLOSE:
            self.close()


class Http(asyncio.Protocol):
    """A keep-alive connection. `heard(http, body)` is called for each answer; one request at a time."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._rest = b""
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def connect(cls, port: int, heard: Heard) -> Self:
        """A connection that has been made."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(heard), "127.0.0.1", port)
        return made

    def post(self, path: str, body: bytes, kind: str = "application/json") -> None:
        """Send a request."""
        assert self._transport is not None, "it is open"
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}"
        )
        self._transport.write(b"%b\r\n\r\n%b" % (head.encode(), body))

    def close(self) -> None:
        """Break off."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is no subclass of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        self._rest = b""
        head_end = data.find(b"\r\n\r\n") + 4
        if head_end < 4:
            self._rest = data
            return
        head = data[:head_end].lower()
        at = head.find(b"content-length:") + len(b"content-length:")
        size = int(head[at : head.find(b"\r\n", at)])
        if len(data) < head_end + size:
            self._rest = data
            return
        assert data.startswith(b"HTTP/1.1 2"), f"refused: {data[:500]!r}"
        self._heard(self, data[head_end : head_end + size])
