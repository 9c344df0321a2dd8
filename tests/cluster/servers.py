"""Real servers on loopback, which a gateway has as its engine or imports from: Redis 7.0 and 8.2, Valkey 9.1.

Knows: how to start one, talk to it directly, stop it for a while, kill it, end it.
Must never know: the gateway, and what is tested.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from redis import connection as redis_connection
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import ResponseError

from engine.cluster import Address, ServerAccess, Standalone
from engine.cluster.replication import BackendDurability
from engine.cluster.topology import Topology
from tests.engine.real_redis import PROGRAMS
from tests.server import free_port

# The client library has types only for its higher layers.
_Connection: Final[Any] = redis_connection.Connection
START_S_MAX: Final = 10.0
_POLL_S: Final = 0.01


class Backend(Protocol):
    """A server, or a cluster of them, that is a gateway's engine."""

    # As the option `--backend` of the gateway's tests has it.
    kind: str

    def call(self, *words: object) -> Any:
        """The reply. Raises ResponseError."""

    def topology(self, timeout_s: float, durability: BackendDurability) -> Topology:
        """It, as a gateway finds it."""

    def pause(self) -> None:
        """Let it neither read nor answer, as a machine that hangs."""

    def resume(self) -> None:
        """Let it go on."""

    @property
    def url(self) -> str:
        """As the setting `backend` has it."""


class BackendServer:
    """One process on a free port of 127.0.0.1, which keeps nothing. `kind` is a key of `PROGRAMS`."""

    def __init__(self, directory: Path, kind: str = "redis", options: Sequence[str] = ()) -> None:
        self.kind = kind
        self.port = free_port()
        self.socket = directory / f"{self.port}.sock"
        listening = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory)]
        self.words: Final = [PROGRAMS[kind], *self._beginning(), *listening, *options]
        self._connection: Any = None
        self.start()

    def _beginning(self) -> list[str]:
        """What it is, and where it keeps what."""
        return ["--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]

    def start(self, *options: str) -> None:
        """Start it, at the same port after `kill`."""
        self._process = subprocess.Popen([*self.words, *options], stdout=subprocess.DEVNULL)
        try:
            self.connect()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def connect(self) -> None:
        """Make the connection of `call`, again where it is lost."""
        self._connection = self._connected()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def url(self) -> str:
        """As the setting `backend` has it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address("127.0.0.1", self.port)

    def topology(self, timeout_s: float, durability: BackendDurability) -> Topology:
        """It, as a gateway finds it."""
        return Standalone(self.address, ServerAccess(), timeout_s, durability)

    def _connected(self) -> Any:
        deadline = time.monotonic() + START_S_MAX
        while True:
            connection = _Connection(host="127.0.0.1", port=self.port, protocol=2)
            try:
                connection.connect()
            except (NotConnected, ResponseError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return connection

    def call(self, *words: object) -> Any:
        """The reply. Raises ResponseError."""
        self._connection.send_command(*words)
        return self._connection.read_response()

    def each(self, commands: Sequence[tuple[object, ...]]) -> list[Any]:
        """The replies to commands that are sent together; a refused one has its error in place of a reply."""
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as refusal:
            return refusal

    def pause(self) -> None:
        """Let it neither read nor answer, as a machine that hangs."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash does."""
        self._connection.disconnect()
        self._process.kill()
        self._process.wait(START_S_MAX)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.resume()
            self.kill()


@contextmanager
def full(backend: Backend) -> Iterator[None]:
    """It has no room meanwhile."""
    backend.call("CONFIG", "SET", "maxmemory", 1)
    try:
        yield
    finally:
        backend.call("CONFIG", "SET", "maxmemory", 0)
