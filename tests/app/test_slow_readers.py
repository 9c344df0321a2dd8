"""A client that takes little is served on; one that takes nothing is not."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.sockets import Raw
from tests.server import Server

# The bytes and pauses of a link with 250 kB/s: what the system holds for it lasts longer than STALL_S.
PIECE_BYTES = 5_000
PIECE_S = 0.02
STALL_S = 0.4
ENTRIES = 80


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a short limit, and 8 MB in a stream: more than the system takes for one that reads nothing."""
    words = ("--set", f"stall_s_max={STALL_S}")
    with Server(Path(tmp_path_factory.mktemp("slow")) / "data", *words) as server:
        entries = [{"fields": {"a": "x" * 100_000}}] * (ENTRIES // 4)
        for _ in range(4):
            httpx.post(f"{server.url}/v1/streams/s/entries", json={"entries": entries}).raise_for_status()
        yield server


def ask(request: bytes) -> Callable[[Server], socket.socket]:
    def connect(server: Server) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        client.connect(("127.0.0.1", server.port))
        client.sendall(request)
        return client

    return connect


def follow(server: Server) -> socket.socket:
    raw = Raw(server.port, receive_bytes=16 << 10)
    raw.handshake()
    raw.send("subscribe", sub="t", streams={"s": "0"}, batch_max=2)
    return raw.socket


HEAD = b" HTTP/1.1\r\nHost: localhost\r\n"
WAYS = {
    "page": ask(b"GET /v1/streams/s/entries?count=1000" + HEAD + b"\r\n"),
    "events": ask(b"GET /v1/streams/s/tail?after=0" + HEAD + b"Accept: text/event-stream\r\n\r\n"),
    "socket": follow,
}


@pytest.mark.parametrize("way", [*WAYS])
def test_a_slow_reader_is_served_for_longer_than_a_stall(server: Server, way: str) -> None:
    with WAYS[way](server) as client:
        client.settimeout(5)
        ends = time.monotonic() + 3 * STALL_S
        while time.monotonic() < ends:
            assert client.recv(PIECE_BYTES), "it was cut off"
            time.sleep(PIECE_S)
        taken = len(client.recv(1 << 20))
        while taken < 5 << 20 and (more := client.recv(1 << 20)):
            taken += len(more)
        assert taken >= 5 << 20, "the rest did not come"


@pytest.mark.parametrize("way", [*WAYS])
def test_a_reader_that_takes_nothing_is_cut_off(server: Server, way: str) -> None:
    with WAYS[way](server) as client:
        client.settimeout(5)
        client.recv(PIECE_BYTES)
        time.sleep(2 * STALL_S)
        taken = 0
        try:
            while more := client.recv(1 << 20):
                taken += len(more)
        except ConnectionError:
            pass
        except TimeoutError:
            pytest.fail("it is still connected")
        assert taken < ENTRIES * 100_000
