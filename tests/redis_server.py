"""A real Redis process on loopback, for tests that bring streams from one.

Knows: how to start it on a free port without a disk, raw RESP2 replies, how to end it.
Must never know: what is tested with it.
"""

import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from redis import connection as redis_connection
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import ResponseError

from tests.server import free_port

# The client library has types only for its higher layers.
_Connection: Final[Any] = redis_connection.Connection
_start_s_max: Final = 10.0
_poll_s: Final = 0.01


class RedisServer:
    """`redis-server` on a free port of 127.0.0.1; nothing of it is kept."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory))
        self._process = subprocess.Popen(
            ["redis-server", *place, "--save", "", "--appendonly", "no", "--daemonize", "no"],
            stdout=subprocess.DEVNULL,
        )
        self._connection = self._connected()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def _connected(self) -> Any:
        deadline = time.monotonic() + _start_s_max
        while True:
            connection = _Connection(host="127.0.0.1", port=self.port, protocol=2)
            try:
                connection.connect()
            except NotConnected:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_poll_s)
            else:
                return connection

    def call(self, *words: object) -> Any:
        """The reply. Raises ResponseError."""
        self._connection.send_command(*words)
        return self._connection.read_response()

    def each(self, commands: list[tuple[object, ...]]) -> list[Any]:
        """Many commands at once; a refused one gives its error in place of a reply."""
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as refusal:
            return refusal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.disconnect()
        self._process.terminate()
        self._process.wait(_start_s_max)
