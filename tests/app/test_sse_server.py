"""Server-sent events of a real gateway: over restarts, to readers that stall, with nothing but sockets."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.eventsource import EventSourceClient, Parser
from tests.server import Server, server_of
from tests.waiting import until

ENTRIES = "/v1/streams/s/entries"
GROUP = "/v1/streams/s/groups/g"
ROUNDS = 3
LARGE = "x" * 60_000
STALL_S = 1
GONE_S_MAX = 3.0 * STALL_S


server = server_of("function", "--set", "log_requests=none")


def connect(server: Server, path: str, *, receive_bytes: int | None = None) -> socket.socket:
    """A bare connection that has asked for events."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(GONE_S_MAX + 5)
    client.connect(("127.0.0.1", server.port))
    headers = f"Host: 127.0.0.1:{server.port}\r\nAccept: text/event-stream\r\n"
    client.sendall(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())
    return client


def rest_of(client: socket.socket) -> bytes:
    """Everything up to the end, however that comes."""
    pieces: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


class Follower(threading.Thread):
    """A browser: it comes back until `stop`, and notes the IDs of entries in their order."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.ids: list[int] = []
        self.connections = 0
        self._source = EventSourceClient(url)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            self.connections += 1
            for event in self._source.events(timeout_s=2.0):
                if event.name == "entry":
                    self.ids.append(int(json.loads(event.data)["id"].partition("-")[0]))
            time.sleep(0.05)

    def stop(self) -> None:
        self._over.set()
        self.join()


class SteadyPublisher(threading.Thread):
    """Publishes the numbers from 1 on, each until it is there."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.last = 0
        self._url = url
        self._over = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._url) as http:
            while not self._over.is_set():
                with contextlib.suppress(httpx.TransportError):
                    entry = {"id": f"{self.last + 1}-0", "fields": {"n": "1"}}
                    answer = http.post(ENTRIES, json=entry)
                    # 409: the answer to an earlier try was lost.
                    self.last += answer.status_code in (201, 409)
                time.sleep(0.002)

    def stop(self) -> None:
        self._over.set()
        self.join()


def _has(follower: Follower, count: int) -> bool:
    return len(follower.ids) > count


@pytest.mark.parametrize("end", [Server.stop, Server.kill], ids=["stopped", "killed"])
@pytest.mark.parametrize("path", [f"{ENTRIES}?after=0", "/v1/tail?stream=other&stream=s&after=0"])
def test_nothing_is_lost_or_told_twice_over_restarts(
    server: Server, end: Callable[[Server], object], path: str
) -> None:
    """While entries are published without a pause the gateway ends again and again."""
    follower, publisher = Follower(server.url + path), SteadyPublisher(server.url)
    follower.start()
    publisher.start()
    try:
        for _ in range(ROUNDS):
            wanted = len(follower.ids) + 20
            until(partial(_has, follower, wanted), "entries come")
            end(server)
            server.start()
    finally:
        publisher.stop()
    until(lambda: len(follower.ids) >= publisher.last, "everything arrives")
    follower.stop()
    assert follower.ids == list(range(1, publisher.last + 1))
    assert follower.connections > ROUNDS


def test_a_stop_ends_all_tails_with_a_word(server: Server) -> None:
    """Each gets `end` and the end of the answer; the gateway's exit is fine, and soon."""
    httpx.put(f"{server.url}/v1/streams/s/groups/g", json={"start": "0"}).raise_for_status()
    paths = ["/v1/streams/s/tail", "/v1/tail?stream=s&stream=t"] * 20
    paths += [f"/v1/streams/s/groups/g/consumers/{number}/stream" for number in range(20)]
    clients = [connect(server, path) for path in paths]
    heads = [client.recv(65_536) for client in clients]
    assert all(head.startswith(b"HTTP/1.1 200 OK\r\n") for head in heads)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 8
    for head, client in zip(heads, clients, strict=True):
        with client:
            whole = head + rest_of(client)
        assert b"event: end\ndata: {" in whole
        assert whole.endswith(b"0\r\n\r\n")


def test_the_cursor_comes_at_once(server: Server) -> None:
    """With the head, before there is any entry."""
    with connect(server, "/v1/streams/s/tail") as client:
        received = b""
        while b"id: 0-0\n\n" not in received:
            received += client.recv(65_536)
        head = received.lower()
    assert b"\r\ncontent-type: text/event-stream\r\n" in head
    assert head.count(b"\r\ncache-control: no-cache, no-transform\r\n") == 1
    assert b"\r\nx-accel-buffering: no\r\n" in head


def _resident_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.mark.paired
def test_readers_that_stall_are_cut_and_cost_little(tmp_path: Path) -> None:
    """Twenty of them, before thirty megabytes of history: two megabytes each at most, gone within three times
    the time that they may stall; one that reads gets what is new meanwhile.
    """
    with ExitStack() as sockets:
        server = sockets.enter_context(Server(tmp_path / "data", "--set", f"stall_s_max={STALL_S}"))
        http = sockets.enter_context(httpx.Client(base_url=server.url))
        for _ in range(50):
            entries = [{"fields": {"a": LARGE}}] * 10
            http.post(ENTRIES, json={"entries": entries}).raise_for_status()
        before = _resident_bytes(server)
        tail = f"{ENTRIES[:-8]}/tail?after=0"
        stalled = [sockets.enter_context(connect(server, tail, receive_bytes=4096)) for _ in range(20)]
        began = time.monotonic()
        with connect(server, "/v1/streams/s/tail") as live:
            parser, events, most = Parser(), 0, before
            while time.monotonic() - began < GONE_S_MAX:
                http.post(ENTRIES, json={"fields": {"a": "1"}}).raise_for_status()
                sent = time.monotonic()
                events += sum(1 for event in parser.feed(live.recv(65_536)) if event.name == "entry")
                assert time.monotonic() - sent < 1
                most = max(most, _resident_bytes(server))
                time.sleep(0.1)
        assert events > 10
        assert most - before < 20 * (2 << 20)
        for client in stalled:
            assert not rest_of(client).endswith(b"0\r\n\r\n")


def _pending(http: httpx.Client) -> list[Any]:
    found: list[Any] = http.get(f"{GROUP}/pending?count=10").raise_for_status().json()["pending"]
    return found


@pytest.mark.parametrize("order", ["entry first", "end first"])
def test_what_comes_with_the_clients_end_is_sent_or_given_back(server: Server, order: str) -> None:
    """An entry and the end of the client's half, at once: a client that did not get the entry does not
    hold it, and it counts as never delivered.
    """
    body = b'{"fields":{"a":"1"}}'
    publish = f"POST {ENTRIES} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\ncontent-length: {len(body)}\r\n"
    whole = publish.encode() + b"content-type: application/json\r\n\r\n" + body
    with httpx.Client(base_url=server.url) as http, connect(server, "/healthz/ready") as publisher:
        http.put(GROUP, json={"start": "0"}).raise_for_status()
        _answer(publisher)
        for number in range(20):
            with connect(server, f"{GROUP}/consumers/{number}/stream") as client:
                client.recv(65_536)
                if order == "entry first":
                    publisher.sendall(whole)
                client.shutdown(socket.SHUT_WR)
                if order == "end first":
                    publisher.sendall(whole)
                assert _answer(publisher).startswith(b"HTTP/1.1 201")
                received = rest_of(client)
            if b"event: entry" not in received:
                until(partial(_is_nobodys, http, number), "what was not sent is given back", 3.0)
            read = {"count": 10, "claim_min_idle_ms": (1 << 53) - 1}
            http.post(f"{GROUP}/consumers/last/read", json=read).raise_for_status()
            ids = [one["id"] for one in _pending(http)]
            assert len(ids) == 1, "it is there once, with either consumer"
            http.post(f"{GROUP}/ack", json={"ids": ids}).raise_for_status()


def _answer(client: socket.socket) -> bytes:
    """An answer with a body of JSON, which may come behind its head."""
    received = client.recv(65_536)
    while not received.endswith(b"}"):
        received += client.recv(65_536)
    return received


def _is_nobodys(http: httpx.Client, reader: int) -> bool:
    """Whether the reader holds nothing, and nothing counts as delivered."""
    return all(one["consumer"] != str(reader) and one["delivery_count"] == 0 for one in _pending(http))
