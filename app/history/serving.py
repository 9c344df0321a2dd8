"""The service as a process: its socket, its signals. Must never know: pages."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from app.history.service import History


class _Server(uvicorn.Server):
    """uvicorn, but that a signal to stop is an end like any other: exit code 0. It calls `say` once it serves
    and handles signals.
    """

    def __init__(self, config: uvicorn.Config, say: Callable[[], None]) -> None:
        super().__init__(config)
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, and say so."""
        await super().startup(sockets)
        self._say()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def run(history: History, listening: socket.socket, say: Callable[[], None]) -> None:
    """Serve on a socket until SIGTERM or SIGINT; `say` is called when it can."""
    config = uvicorn.Config(
        history.app(), http="httptools", ws="none", log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=10,
    )  # fmt: skip
    uvloop.run(_Server(config, say).serve([listening]))
