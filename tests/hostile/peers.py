"""Peers that are not polite: raw bytes to a gateway on loopback, and what came back.

Knows: sockets, how an answer ends, a process's memory. Must never know: what an attack is about.
"""

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

HOST: Final = b"Host: localhost\r\n"
PATIENCE_S: Final = 10.0


class Answer(NamedTuple):
    """One answer as it stood on the wire; `status` is 0 where there was none."""

    status: int
    head: bytes
    body: bytes

    def json(self) -> Any:
        """The body, which has to be JSON."""
        return json.loads(self.body)


def connected(port: int, seconds: float = PATIENCE_S) -> socket.socket:
    """A connection; each of its waits is bounded."""
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def exchange(port: int, sent: bytes, seconds: float = PATIENCE_S) -> tuple[bytes, bool]:
    """All that comes back until the gateway closes or says nothing for some time; whether it closed."""
    received = bytearray()
    with connected(port, seconds) as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(sent)
        try:
            while piece := peer.recv(65_536):
                received += piece
        except TimeoutError:
            return bytes(received), False
        except ConnectionError:
            pass
    return bytes(received), True


def answers(received: bytes) -> list[Answer]:
    """The answers that these bytes are; each has a Content-Length, or ends with the bytes."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        words = head.split(b" ", 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        length = len(rest)
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        found.append(Answer(status, head, rest[:length]))
        received = rest[length:]
    return found


def ask(port: int, method: str, raw_path: bytes, body: bytes = b"", headers: bytes = b"") -> Answer:
    """One request on a connection of its own, its path as it is."""
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    head = method.encode() + b" " + raw_path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n"
    received, _ = exchange(port, head + length + headers + b"\r\n" + body)
    return (answers(received) or [Answer(0, b"", b"")])[0]


def ask_json(port: int, method: str, path: str, value: object) -> Answer:
    """The same with a JSON body."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return ask(port, method, path.encode(), body, b"Content-Type: application/json\r\n")


def resident_bytes(pid: int) -> int:
    """The memory that a process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4_096


class Closed(NamedTuple):
    """How a slow peer ended."""

    after_s: float
    received: bytes


def dripped(port: int, first: bytes, drop: bytes, pause_s: float, seconds: float = PATIENCE_S) -> Closed:
    """Send `drop` again and again until the gateway has had enough."""
    began = time.perf_counter()
    received = bytearray()
    with connected(port, pause_s) as peer:
        peer.sendall(first)
        while time.perf_counter() - began < seconds:
            try:
                piece = peer.recv(4_096)
            except TimeoutError:
                with contextlib.suppress(ConnectionError):
                    peer.sendall(drop)
                continue
            except ConnectionError:
                break
            if not piece:
                break
            received += piece
    return Closed(time.perf_counter() - began, bytes(received))
