"""Redis clients that attack: the gateway's memory is bounded, and others are served."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import redis

from tests.hostile.peers import resident_bytes
from tests.server import Server

LATE_S: Final = 60.0
POLL_S: Final = 0.05
GROWTH_BYTES_MAX: Final = 64 << 20
# Of virtual memory, beside what a gateway has that does nothing.
SPARE_BYTES: Final = 256 << 20
IDLE: Final = 10_000
# Of a connection that does nothing.
IDLE_BYTES_MAX: Final = 24 << 10
# A million takes the same memory, and half a minute.
QUEUED: Final = 200_000
TOKEN_FREE: Final = ("--set", "stall_s_max=1", "--set", f"sockets_max={IDLE}")


class Target(Server):
    """A gateway with a Unix socket for Redis clients; once it runs, its memory cannot grow by much."""

    def __init__(self, data: Path, *options: str) -> None:
        self.path = data.parent / "redis.sock"
        super().__init__(data, "--resp-listen", f"unix:{self.path}", *options)

    def bound(self) -> None:
        """From now on it has `SPARE_BYTES` more of virtual memory than it has now."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        size = int(status.split("VmSize:")[1].split()[0]) << 10
        resource.prlimit(self.pid, resource.RLIMIT_AS, (size + SPARE_BYTES, size + SPARE_BYTES))

    def connect(self) -> socket.socket:
        """A raw connection."""
        connection = socket.socket(socket.AF_UNIX)
        # With a time limit, a full queue of connections would be an error at once.
        connection.connect(str(self.path))
        connection.settimeout(LATE_S)
        return connection

    def serves(self) -> bool:
        """Whether another client is served."""
        with redis.Redis(unix_socket_path=str(self.path), socket_timeout=LATE_S) as client:
            return bool(client.xadd("served", {"a": "b"}) and client.xlen("served"))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with Target(tmp_path / "data", *TOKEN_FREE) as server:
        assert server.serves()
        server.bound()
        yield server
        assert server.serves()


def sent(*words: str | bytes | int) -> bytes:
    """A command."""
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in raw])


def replies_until(connection: socket.socket, last: bytes) -> bytes:
    """All that comes up to these bytes, which end it."""
    received = bytearray()
    while not received.endswith(last):
        some = connection.recv(1 << 18)
        assert some, bytes(received[-200:])
        received += some
    return bytes(received)


def test_ten_thousand_clients_that_do_nothing(target: Target) -> None:
    """Each costs some kilobytes; one more is refused, and the open ones still get answers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE + 1_000:
        pytest.skip(f"needs {IDLE + 1_000} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = resident_bytes(target.pid)
    try:
        with ExitStack() as stack:
            idle = [stack.enter_context(target.connect()) for _ in range(IDLE)]
            for connection in (idle[0], idle[-1]):
                connection.sendall(sent("PING"))
                assert replies_until(connection, b"\r\n") == b"+PONG\r\n"
            assert resident_bytes(target.pid) - before < IDLE * IDLE_BYTES_MAX
            with target.connect() as late:
                assert replies_until(late, b"\r\n") == b"-ERR max number of clients reached\r\n"
            idle[-1].sendall(sent("QUIT"))
            assert replies_until(idle[-1], b"\r\n") == b"+OK\r\n"
            assert idle[-1].recv(1) == b""
            assert target.serves()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_transaction_without_end(target: Target) -> None:
    """Refused at the 301st by the name of its limit; the others are counted, and not kept."""
    before = resident_bytes(target.pid)
    with target.connect() as connection:
        connection.sendall(sent("MULTI"))
        assert replies_until(connection, b"\r\n") == b"+OK\r\n"
        batch = sent("XADD", "s", "*", "a", "x" * 100) * 10_000
        refused = 0
        for _ in range(QUEUED // 10_000):
            connection.sendall(batch)
            received = b""
            while received.count(b"\r\n") < 10_000:
                received += connection.recv(1 << 18)
            refused += received.count(b"-ERR too many commands: a transaction has at most 300\r\n")
            refused += received.count(b"-ERR the transaction is too long (body_bytes_max)\r\n")
        assert refused > 0
        connection.sendall(sent("EXEC"))
        ended = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
        assert replies_until(connection, b"\r\n") == ended
    assert resident_bytes(target.pid) - before < GROWTH_BYTES_MAX


def test_replies_that_are_not_read(target: Target) -> None:
    """Clients ask for far more than they read; they are closed, and what waits for them stays small."""
    with redis.Redis(unix_socket_path=str(target.path), socket_timeout=LATE_S) as client:
        client.xadd("s", {"a": "x" * 500_000})
        before = resident_bytes(target.pid)
        with ExitStack() as stack:
            for connection in [stack.enter_context(target.connect()) for _ in range(4)]:
                connection.sendall(sent("XRANGE", "s", "-", "+") * 500)
            assert target.serves()
            late_s = time.monotonic() + LATE_S
            while client.info("clients")["connected_clients"] > 1:
                assert resident_bytes(target.pid) - before < 2 * GROWTH_BYTES_MAX
                assert time.monotonic() < late_s
                time.sleep(POLL_S)


def test_floods_without_a_token(tmp_path: Path) -> None:
    """Commands, long headers, words that never end: refused at little cost, and closed."""
    token = tmp_path / "root"
    token.write_text("r" * 40)
    token.chmod(0o600)
    floods = (
        sent("XADD", "s", "*", "a", "b") * 20_000,
        b"*1000000000\r\n",
        b"*3\r\n$1000000000\r\n" + b"x" * 1_000_000,
        b"*10\r\n" + b"$16384\r\n" + b"x" * 1_000_000,
        b"AUTH " + b"a" * 1_000_000,
        sent("AUTH", "default", "wrong") * 2_000,
        sent("HELLO", 3, "AUTH", "default", "x" * 10_000) * 200,
    )
    with Target(tmp_path / "data", "--set", f"root_token_file={token}", "--set", "stall_s_max=1") as server:
        server.bound()
        before = resident_bytes(server.pid)
        for flood in floods * 3:
            with server.connect() as connection, contextlib.suppress(ConnectionError):
                connection.sendall(flood)
                connection.shutdown(socket.SHUT_WR)
                while received := connection.recv(1 << 18):
                    assert b"+OK" not in received
        assert resident_bytes(server.pid) - before < GROWTH_BYTES_MAX
        password = token.read_text()
        with server.connect() as connection:
            late_s, answered = time.monotonic() + LATE_S, b""
            # Who has shown many wrong ones has to wait for a moment.
            while answered != b"+OK\r\n":
                connection.sendall(sent("AUTH", password))
                answered = replies_until(connection, b"\r\n")
                assert time.monotonic() < late_s, answered
            connection.sendall(sent("XLEN", "s"))
            assert replies_until(connection, b"\r\n") == b":0\r\n"
