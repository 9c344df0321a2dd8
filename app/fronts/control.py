"""A process's connection to its supervisor, which passes it connections to the other processes.

Knows: the words on it, which are one datagram each. Must never know: what the connections carry.

    ready     to the supervisor: requests can be served, each time anew
    alive     to the supervisor: the event loop runs
    link      to the supervisor: a front needs a connection to the engine's process
              from the supervisor, with a socket: this is one

All processes share one byte of memory, the phase of the gateway, so that every front reports the same one.

When the supervisor is gone the process ends at once, as if it had been killed too.
"""

import asyncio
import mmap
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from app.operating import Phase

READY: Final = b"ready"
ALIVE: Final = b"alive"
LINK: Final = b"link"
_WORD_BYTES_MAX: Final = 16


_PHASES: Final = (Phase.STARTING, Phase.READY, Phase.RESTARTING)


class CommonPhase:
    """Ready while all processes can serve. Forks share it."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    @property
    def phase(self) -> Phase:
        """The phase."""
        return _PHASES[self._byte[0]]

    def be_ready(self) -> None:
        """All can serve."""
        self._byte[0] = _PHASES.index(Phase.READY)

    def end_ready(self) -> None:
        """Not all can any more."""
        if self.phase is Phase.READY:
            self._byte[0] = _PHASES.index(Phase.RESTARTING)


class Control:
    """The end of a child process. `on_link` gets each connection."""

    def __init__(self, connection: socket.socket, common: CommonPhase, alive_every_s: float = 0.0) -> None:
        self.common: Final = common
        self._connection = connection
        self._alive_every_s = alive_every_s
        self.on_link: Callable[[socket.socket], None] = socket.socket.close

    def start(self) -> None:
        """Listen to the supervisor, on the running loop."""
        self._connection.setblocking(False)  # noqa: FBT003 - its only parameter
        asyncio.get_running_loop().add_reader(self._connection, self._receive)
        if self._alive_every_s:
            self._beat()

    def say(self, word: bytes) -> None:
        """Send a word. A supervisor that is gone ends this process soon."""
        with suppress(OSError):
            self._connection.send(word)

    def _beat(self) -> None:
        self.say(ALIVE)
        asyncio.get_running_loop().call_later(self._alive_every_s, self._beat)

    def _receive(self) -> None:
        word, descriptors, _, _ = socket.recv_fds(self._connection, _WORD_BYTES_MAX, 1)
        if not word:
            os.kill(os.getpid(), signal.SIGKILL)
        for descriptor in descriptors:
            self.on_link(socket.socket(fileno=descriptor))
