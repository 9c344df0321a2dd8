"""Slow readers that leave in the middle of an answer: nothing went wrong, so the log has nothing to say."""

import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.sockets import Raw
from tests.server import Server

ENTRIES = "/v1/streams/s/entries"
GROUP = "/v1/streams/s/groups/g"
# An answer that no socket's buffers hold.
_ENTRY_BYTES = 100_000
_ENTRIES = 120
STALL_S = 0.3
IMPATIENT = ("--set", f"stall_s_max={STALL_S}", "--set", "log_requests=none")
PATHS = {
    "page": f"GET {ENTRIES}?count=1000",
    "export": f"GET {ENTRIES}?accept=export",
    "tail": "GET /v1/streams/s/tail?after=0",
    "consumer": f"GET {GROUP}/consumers/c/stream",
}
ACCEPT = {"export": "application/x-ndjson", "tail": "text/event-stream", "consumer": "text/event-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("leaving") / "data", "--fsync", "no", *IMPATIENT) as server:
        with httpx.Client(base_url=server.url) as http:
            row = json.dumps({"a": "x" * _ENTRY_BYTES}).encode() + b"\n"
            for _ in range(3):
                ndjson = {"content-type": "application/x-ndjson"}
                http.post(ENTRIES, content=row * (_ENTRIES // 3), headers=ndjson).raise_for_status()
            http.put(GROUP, json={"start": "0"}).raise_for_status()
        yield server


def leave(client: socket.socket, how: str) -> None:
    """Close in order, break off, or take nothing until the gateway breaks it off."""
    if how == "stalled":
        time.sleep(1.5 * STALL_S)
    if how == "broken off":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def check_log(server: Server) -> None:
    with httpx.Client(base_url=server.url) as http:
        for _ in range(5):
            time.sleep(0.05)
            assert http.get("/healthz/ready").status_code == 200
    log = Path(server.data.with_name(f"{server.data.name}.log")).read_text()
    words = ('"level":"error"', '"level":"warning"', "Traceback")
    assert [line for line in log.splitlines() if any(word in line for word in words)] == []
    assert [line for line in log.splitlines() if not line.startswith("{")] == []


@pytest.mark.parametrize("how", ["closed", "broken off", "stalled"])
@pytest.mark.parametrize("kind", [*PATHS])
def test_a_slow_reader_of_an_answer_may_leave(server: Server, kind: str, how: str) -> None:
    """While megabytes wait for it."""
    path = PATHS[kind].replace("?accept=export", "")
    for _ in range(1 if how == "stalled" else 3):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            accept = ACCEPT.get(kind, "*/*")
            client.sendall(f"{path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())
            assert client.recv(1 << 10).startswith(b"HTTP/1.1 200")
            time.sleep(0.05)
            leave(client, how)
    check_log(server)


@pytest.mark.parametrize("how", ["closed", "broken off", "stalled"])
def test_a_slow_reader_of_several_answers_may_leave(server: Server, how: str) -> None:
    """It has asked for the next ones before it has read the first."""
    page = f"{PATHS['page']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for _ in range(1 if how == "stalled" else 3):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            client.sendall(page * 5)
            assert client.recv(1 << 10).startswith(b"HTTP/1.1 200")
            time.sleep(0.05)
            leave(client, how)
    check_log(server)


@pytest.mark.parametrize("how", ["closed", "broken off", "stalled"])
@pytest.mark.parametrize("op", ["subscribe", "consume"])
def test_a_slow_reader_of_a_socket_may_leave(server: Server, op: str, how: str) -> None:
    """The same over WebSocket."""
    streams = {"streams": {"s": "0"}}
    work = {"stream": "s", "group": "g", "consumer": "w"}
    for _ in range(1 if how == "stalled" else 3):
        with Raw(server.port, receive_bytes=64 << 10) as raw:
            raw.handshake()
            raw.send(op, sub="x", **(streams if op == "subscribe" else work))
            raw.read()
            time.sleep(0.05)
            leave(raw.socket, how)
    check_log(server)
