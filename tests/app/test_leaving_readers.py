"""Slow readers that leave in the middle of an answer: nothing went wrong, so the log has nothing to say."""

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
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
IMPATIENT = ("--set", f"stall_s_max={STALL_S}", "--set", "log_requests=none", "--set", "durable_streams=true")
RANGE = ["XRANGE", "s", "-", "+", "COUNT", "20"]
WAITING = ["XREAD", "BLOCK", "20000", "STREAMS", "s", "$"]
EVENTS = "text/event-stream"


def request(line: str, accept: str = "*/*", commands: list[list[str]] | None = None) -> bytes:
    body = b"" if commands is None else json.dumps(commands).encode()
    kind = "" if commands is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{line} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n{kind}\r\n".encode() + body


REQUESTS = {
    "page": request(f"GET {ENTRIES}?count=1000"),
    "export": request(f"GET {ENTRIES}", "application/x-ndjson"),
    "columns": request("GET /v1/streams/s/columns"),
    "tail": request("GET /v1/streams/s/tail?after=0", EVENTS),
    "consumer": request(f"GET {GROUP}/consumers/c/stream", EVENTS),
    "page of Durable Streams": request("GET /v1/stream/s?offset=-1"),
    "events of Durable Streams": request("GET /v1/stream/s?offset=-1&live=sse", EVENTS),
    "pipeline": request("POST /v1/commands/pipeline", commands=[RANGE] * 6),
    "transaction": request("POST /v1/commands/multi-exec", commands=[RANGE] * 3),
}
# What comes first leaves, and then they wait.
LATE = {
    "pipeline that waits": request("POST /v1/commands/pipeline", commands=[RANGE, WAITING]),
    "pipeline that goes on": request("POST /v1/commands/pipeline", commands=[RANGE, WAITING, RANGE]),
    "tail that waits": request("GET /v1/streams/t/tail?after=0", EVENTS),
    "tail of several streams": request("GET /v1/tail?stream=s&stream=t", EVENTS),
}


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
@pytest.mark.parametrize("kind", [*REQUESTS])
def test_a_slow_reader_of_an_answer_may_leave(server: Server, kind: str, how: str) -> None:
    """While megabytes wait for it."""
    for _ in range(1 if how == "stalled" else 3):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            client.sendall(REQUESTS[kind])
            assert client.recv(1 << 10).startswith(b"HTTP/1.1 200"), kind
            time.sleep(0.05)
            leave(client, how)
    check_log(server)


@pytest.mark.parametrize("how", ["closed", "broken off"])
@pytest.mark.parametrize("kind", [*LATE])
def test_a_reader_may_leave_once_the_rest_of_its_answer_waits(server: Server, kind: str, how: str) -> None:
    """It has read all that there was."""
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(LATE[kind])
            client.settimeout(0.1)
            received = b""
            with suppress(TimeoutError):
                while piece := client.recv(1 << 20):
                    received += piece
            assert received.startswith(b"HTTP/1.1 200")
            leave(client, how)
    check_log(server)


@pytest.mark.parametrize("how", ["closed", "broken off", "stalled"])
def test_a_slow_reader_of_several_answers_may_leave(server: Server, how: str) -> None:
    """It has asked for the next ones before it has read the first."""
    for _ in range(1 if how == "stalled" else 3):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            client.sendall(REQUESTS["page"] * 5)
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
