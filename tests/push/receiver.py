"""A receiver of webhooks that answers as a test says: any status, late, by drips, not at all, too much.

Knows: HTTP/1.1, as one request after the other. Must never know: what is sent, signatures.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Self

Answer = Callable[["Delivered", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Delivered:
    """One request; names of headers in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes


def status(code: int, *lines: str) -> Answer:
    """Answer with this status and these header lines."""

    async def answer(_: Delivered, writer: asyncio.StreamWriter) -> None:
        head = [f"HTTP/1.1 {code} x", "Content-Length: 0", *lines, "", ""]
        writer.write("\r\n".join(head).encode())

    return answer


async def hang(_: Delivered, writer: asyncio.StreamWriter) -> None:
    """Say nothing until the client leaves."""
    await writer.wait_closed()


async def drip(_: Delivered, writer: asyncio.StreamWriter) -> None:
    """One header after the other, for ever."""
    writer.write(b"HTTP/1.1 200 x\r\n")
    while not writer.is_closing():
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def reset(_: Delivered, writer: asyncio.StreamWriter) -> None:
    """Cut the connection."""
    writer.transport.abort()


async def flood(_: Delivered, writer: asyncio.StreamWriter) -> None:
    """200, and a gigabyte."""
    writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 1073741824\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x" * 65_536)
        await writer.drain()


@dataclass
class Receiver(AbstractAsyncContextManager["Receiver"]):
    """Listens on loopback. `answers` are for the next requests, `usual` for all others."""

    usual: Answer = field(default_factory=lambda: status(200))
    answers: list[Answer] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    # Requests that are answered now, and the most there were.
    at_once: int = 0
    at_once_max: int = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/hook?a=1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").strip().split("\r\n")
                pairs = [line.split(": ", 1) for line in lines]
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers["content-length"]))
                one = Delivered(first, headers, body)
                self.delivered.append(one)
                answer = self.answers.pop(0) if self.answers else self.usual
                self.at_once += 1
                self.at_once_max = max(self.at_once, self.at_once_max)
                try:
                    await answer(one, writer)
                finally:
                    self.at_once -= 1
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            """It has left, or the test is over."""
        finally:
            writer.close()
