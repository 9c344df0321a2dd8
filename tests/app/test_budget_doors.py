"""At every door: what a client has asked for and does not take is counted, and given back when it leaves.

Some reserve it before they run, the others send piece by piece. Meanwhile everybody else publishes.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import httpx
import pytest

from app.live.budgets import FREE_BYTES
from tests.app.sockets import Raw
from tests.cluster.servers import BackendServer
from tests.server import Server, free_port

POOL_BYTES: Final = 8 << 20
ENTRY_BYTES: Final = 900_000
CLIENTS: Final = 4
RECEIVE_BYTES: Final = 16 << 10
PATIENCE_S: Final = 15.0
# A stream whose name makes its notifications long.
LONG_NAME: Final = "n" * 500
# Of 2 KB each: one client may have them all, and not all clients.
NOTIFICATIONS: Final = 2_500


def asking(method: str, path: str, commands: object = None) -> bytes:
    """Requests of this kind, several on one connection."""
    body = b"" if commands is None else json.dumps(commands).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head.encode(), len(body), body) * 3


RANGE: Final = ["XRANGE", "b", "-", "+"]
SHORT_RANGE: Final = [*RANGE, "COUNT", "3"]
RESP_RANGE: Final = b"XRANGE b - + COUNT 3\r\n"
# Door, port, and what is sent to it.
DOORS: Final = [
    ("range", "http", asking("GET", "/v1/streams/b/entries")),
    ("asgi", "http", asking("GET", "/v1/streams/b/entries?wait=1000&after=0")),
    ("columns", "http", asking("GET", "/v1/streams/b/columns")),
    ("export", "http", asking("GET", "/v1/streams/b/export")),
    ("sse", "http", asking("GET", "/v1/streams/b/tail?after=0")),
    ("command", "http", asking("POST", "/v1/commands", RANGE)),
    ("pipeline", "http", asking("POST", "/v1/commands/pipeline", [RANGE] * 20)),
    ("multi-exec", "http", asking("POST", "/v1/commands/multi-exec", [SHORT_RANGE] * 2)),
    ("resp", "resp", b"XRANGE b - +\r\n" * 20),
    ("resp multi", "resp", b"MULTI\r\n%bEXEC\r\n" % (RESP_RANGE * 2)),
    ("resp blocked", "resp", b"XREAD BLOCK 10000 STREAMS late $\r\n"),
    ("notifications", "resp", b"PSUBSCRIBE __key*\r\n"),
    ("websocket", "socket", b""),
]
# The others are served by the same code.
IN_FRONTS: Final = ("range", "columns", "pipeline", "resp", "websocket")
OVER_A_BACKEND: Final = (*IN_FRONTS, "sse", "multi-exec")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[Server, int]]:
    """With a stream of 7 MB; and its port of Redis's protocol."""
    resp_port, directory = free_port(), tmp_path_factory.mktemp("doors")
    words = ["--set", f"buffer_bytes_max={POOL_BYTES}", "--set", f"resp_listen={resp_port}"]
    with ExitStack() as stack:
        if request.param == "backend":
            words += ["--backend", stack.enter_context(BackendServer(directory)).url]
        else:
            words += ["--fsync", "no"]
        if request.param == "fronts":
            words += ["--fronts", "2"]
        server = stack.enter_context(Server(directory / "data", *words))
        publish(server, "b", 8)
        yield server, resp_port


def publish(server: Server, stream: str, entries: int) -> None:
    """Large entries."""
    for _ in range(entries):
        content = {"fields": {"a": "x" * ENTRY_BYTES}}
        httpx.post(f"{server.url}/v1/streams/{stream}/entries", json=content).raise_for_status()


def held_bytes(server: Server) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    name = 'weir_buffer_bytes{pool="output"}'
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def connect(stack: ExitStack, port: int) -> socket.socket:
    """A client that takes nothing."""
    client = stack.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    client.connect(("127.0.0.1", port))
    return client


def follow(stack: ExitStack, port: int) -> None:
    """The same, which has subscribed over a WebSocket."""
    raw = stack.enter_context(Raw(port, RECEIVE_BYTES))
    assert raw.handshake()[0] == 101
    raw.send("subscribe", sub="b", streams={"b": "0"}, credit=1_000)


def cause(door: str, link: socket.socket) -> None:
    """What those clients wait for, who wait for something, by another client of Redis's protocol."""
    if door == "resp blocked":
        big = b"$%d\r\n%b\r\n" % (ENTRY_BYTES, b"x" * ENTRY_BYTES)
        add = b"*5\r\n$4\r\nXADD\r\n$4\r\nlate\r\n$1\r\n*\r\n$1\r\na\r\n" + big
        link.sendall(b"MULTI\r\n" + add * 5 + b"EXEC\r\n")
    elif door == "notifications":
        link.sendall(f"XADD {LONG_NAME} MAXLEN 1 * a b\r\n".encode() * NOTIFICATIONS)


def until_blocked(server: Server) -> None:
    """Wait until the clients' reads have been received."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if httpx.get(f"{server.url}/v1/status").json()["connections"]["waiting_reads"] == CLIENTS:
            return
    raise AssertionError("they are not blocked")


def watch(server: Server, ends: Callable[[float], bool]) -> float:
    """Publish until what is held is as wanted, and return that; it is never more than the pool."""
    deadline, held = time.monotonic() + PATIENCE_S, -1.0
    with httpx.Client(base_url=server.url) as innocent:
        while time.monotonic() < deadline:
            answer = innocent.post("/v1/streams/other/entries", json={"fields": {"n": "1"}})
            assert answer.status_code == 201
            held = held_bytes(server)
            if ends(held):
                break
            time.sleep(0.02)
    return held


CASES: Final = [
    *[("embedded", *one) for one in DOORS],
    *[("fronts", *one) for one in DOORS if one[0] in IN_FRONTS],
    *[("backend", *one) for one in DOORS if one[0] in OVER_A_BACKEND],
]


@pytest.mark.parametrize(
    ("server", "door", "port", "sent"),
    CASES,
    indirect=["server"],
    ids=[f"{door}, {place}" for place, door, _, _ in CASES],
)
def test_what_is_not_taken_is_counted(server: tuple[Server, int], door: str, port: str, sent: bytes) -> None:
    gateway, resp_port = server
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            if port == "socket":
                follow(stack, gateway.port)
                continue
            client = connect(stack, resp_port if port == "resp" else gateway.port)
            client.sendall(sent)
            if door == "notifications":
                assert client.recv(1) == b"*"
        if door == "resp blocked":
            until_blocked(gateway)
        cause(door, stack.enter_context(socket.create_connection(("127.0.0.1", resp_port))))
        held = watch(gateway, lambda held: held > FREE_BYTES)
        assert FREE_BYTES < held <= 3 * POOL_BYTES
    assert watch(gateway, lambda held: held == 0) == 0
