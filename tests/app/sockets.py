"""Sockets of a real gateway: a client that speaks in frames, and one that has nothing but bytes.

Knows: WebSocket, JSON. Must never know: what is tested with it.
"""

import base64
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from tests.server import Server

Json = dict[str, Any]
ANSWER_S_MAX = 15.0


class SocketClient:
    """One conversation. Frames that answer have a `ref`; all others are pushed."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.hello = self.next()

    def send(self, op: str, **members: Any) -> None:
        """Send a frame."""
        self.connection.send(json.dumps({"op": op, **members}))

    def next(self, timeout_s: float = ANSWER_S_MAX) -> Json:
        """The next frame that is no heartbeat."""
        while True:
            frame: Json = json.loads(self.connection.recv(timeout_s))
            if frame["op"] != "heartbeat":
                return frame

    def until(self, op: str) -> list[Json]:
        """The frames up to the next of this kind, that one included."""
        frames = [self.next()]
        while frames[-1]["op"] != op:
            frames.append(self.next())
        return frames

    def ask(self, op: str, **members: Any) -> Json:
        """Send a frame, and give what it is answered; nothing else may come before."""
        self.send(op, ref=op, **members)
        answer = self.next()
        assert answer.pop("ref", None) == op, answer
        return answer

    def entries(self, count: int) -> list[Json]:
        """This number of entries, as they are pushed."""
        found: list[Json] = []
        while len(found) < count:
            found += self.until("entries")[-1]["entries"]
        return found


@contextmanager
def talking(server: Server, **options: Any) -> Iterator[SocketClient]:
    """A conversation with the gateway."""
    options = {"subprotocols": ["weir.v1"], "compression": None, "max_size": None, **options}
    with connect(f"ws://127.0.0.1:{server.port}/v1/ws", **options) as connection:
        yield SocketClient(connection)


class Raw:
    """A socket that was upgraded by hand: it reads what it likes, when it likes."""

    def __init__(self, port: int, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(ANSWER_S_MAX)
        self.socket.connect(("127.0.0.1", port))
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self.socket.close()

    def handshake(self, path: str = "/v1/ws", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer. `Name_of=value` is a header, an empty one is left out."""
        fields = {
            "Host": "127.0.0.1", "Connection": "Upgrade", "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        }  # fmt: skip
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{name}: {value}\r\n" for name, value in fields.items() if value]
        self.socket.sendall(f"GET {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode())
        status = int(self._file.readline().split()[1])
        found: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            found[name.lower()] = value
        body = b"" if status == 101 else self._file.read(int(found.get("content-length", 0)))
        return status, found, body

    def send(self, op: str, **members: Any) -> None:
        """A frame of the conversation."""
        self.write(0x1, json.dumps({"op": op, **members}).encode())

    def write(self, opcode: int, data: bytes = b"", *, fin: bool = True) -> None:
        """A frame of the socket, masked with zeros."""
        self.socket.sendall(masked(opcode, data, fin=fin))

    def read(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; opcode -1 at the end."""
        head = self._file.read(2)
        if len(head) < 2:
            return -1, b""
        length = head[1] & 0x7F
        if length >= 126:
            wide = self._file.read(2 if length == 126 else 8)
            length = int.from_bytes(wide, "big")
        return head[0] & 0xF, self._file.read(length)

    def close_code(self) -> int:
        """The code of the close frame, after any other frames; -1 where the connection ends without."""
        while True:
            try:
                opcode, data = self.read()
            except ConnectionError:
                return -1
            if opcode == 0x8:
                return int(struct.unpack(">H", data[:2])[0])
            if opcode < 0:
                return -1


def masked(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A client's frame."""
    head = bytes([opcode | (0x80 if fin else 0)])
    if len(data) < 126:
        head += bytes([0x80 | len(data)])
    elif len(data) < 1 << 16:
        head += b"\xfe" + struct.pack(">H", len(data))
    else:
        head += b"\xff" + struct.pack(">Q", len(data))
    return head + bytes(4) + data
