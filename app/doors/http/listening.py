"""Listening for HTTP: connections that are accepted, and their end at a stop.

Knows: a socket, TLS and how long its handshake may take, how long answers may take at a stop.
Must never know: signals, what connections say.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple

from app import logs
from app.doors.http.service import HttpService

BACKLOG: Final = 2_048
_LOOK_S: Final = 0.1


class Times(NamedTuple):
    """Seconds for a TLS handshake (the loop's own bound is a minute), and for answers at a stop."""

    handshake_s_max: float
    drain_s_max: float


class HttpServer:
    """Serves the connections of sockets, until it is stopped."""

    def __init__(
        self,
        service: HttpService,
        connect: Callable[[], asyncio.Protocol],
        times: Times,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.service = service
        self.connect = connect
        self._times = times
        self._context = context
        self._stopping = asyncio.Event()
        self._is_hurried = False

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until `stop`, then answer what has come. Closes the socket."""
        context = self._context
        server = await asyncio.get_running_loop().create_server(
            self.connect,
            sock=listener,
            ssl=context,
            ssl_handshake_timeout=None if context is None else self._times.handshake_s_max,
            backlog=BACKLOG,
        )
        await self._stopping.wait()
        server.close()
        listener.close()
        await self.drain()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop; `at_once` without waiting for answers."""
        self._is_hurried |= at_once
        self._stopping.set()

    async def drain(self) -> None:
        """End each connection once its requests are answered. What takes too long is cancelled."""
        for connection in [*self.service.connections]:
            connection.shutdown()
        await asyncio.sleep(_LOOK_S)
        try:
            async with asyncio.timeout(self._times.drain_s_max):
                while not (self.service.is_over or self._is_hurried):  # noqa: ASYNC110 - it is seldom, and short
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            remedy = (
                "raise drain_s_max (and the time that the supervisor gives), or expect clients to try again"
            )
            count = len(self.service.tasks)
            logs.get().error("the stop takes too long: answers are cancelled", tasks=count, remedy=remedy)
            for task in self.service.tasks:
                task.cancel()
