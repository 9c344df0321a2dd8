"""Floods and slow peers: bounded memory, bounded time, and others are served meanwhile."""

import contextlib
import http.client
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.hostile.peers import HOST, ask, ask_json, connected, dripped, exchange, resident_bytes
from tests.server import Server

GROWTH_BYTES_MAX = 64 << 20
FLOOD_BYTES = 100 << 20
P99_S_MAX = 0.25
FLOODS = 3
FLOOD_S = 6.0
POST = b"POST /v1/streams/s/entries HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"


def pushed(port: int, head: bytes, piece: bytes, most_bytes: int = FLOOD_BYTES) -> int:
    """Send `head`, then `piece` until the gateway has had enough; the bytes that left."""
    sent = 0
    with connected(port, 3) as peer, contextlib.suppress(OSError):
        peer.sendall(head)
        while sent < most_bytes:
            peer.sendall(piece)
            sent += len(piece)
    return sent


@pytest.fixture
def bounded(server: Server) -> Iterator[Server]:
    """A server whose memory may not grow by more than this bound, and that goes on serving."""
    assert ask(server.port, "GET", b"/healthz/ready").status == 200
    before = resident_bytes(server.pid)
    yield server
    assert resident_bytes(server.pid) - before < GROWTH_BYTES_MAX
    assert ask(server.port, "GET", b"/healthz/ready").status == 200


PIECE = b"a" * (1 << 20)
ENDLESS = {
    "url": (b"GET /", PIECE),
    "header": (b"GET / HTTP/1.1\r\n" + HOST + b"X: ", PIECE),
    "headers": (b"GET / HTTP/1.1\r\n" + HOST, b"X: a\r\n" * 100_000),
    "header name": (b"GET / HTTP/1.1\r\n" + HOST, PIECE),
    "chunk extension": (POST + b"Transfer-Encoding: chunked\r\n\r\n1;", PIECE),
    "trailer": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: ", PIECE),
    "trailers": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", b"X: a\r\n" * 100_000),
    "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + PIECE + b"\r\n"),
    "small chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 50_000),
    "chunks that are never read": (
        b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
        b"100000\r\n" + PIECE + b"\r\n",
    ),
    "length": (POST + b"Content-Length: 100000000000\r\n\r\n", PIECE),
    "length that is never read": (
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 100000000000\r\n\r\n",
        PIECE,
    ),
    "blank lines": (b"", b"\r\n" * 500_000),
    "refusals, not read": (b"", (b"GET /%00 HTTP/1.1\r\n" + HOST + b"\r\n") * 10_000),
    "reads, not read": (b"", (b"GET /v1/streams/big/entries HTTP/1.1\r\n" + HOST + b"\r\n") * 10_000),
    "publishes, not read": (b"", (POST + b"Content-Length: 20\r\n\r\n" + b'{"fields":{"a":"1"}}') * 5_000),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_endless_requests(bounded: Server, what: str) -> None:
    """T20. A hundred megabytes of anything: cut off, without the memory for it."""
    pushed(bounded.port, *ENDLESS[what])
    ask_json(bounded.port, "POST", "/v1/commands", ["FLUSHALL"])


@pytest.mark.parametrize("route", [b"/v1/streams/s/entries", b"/v1/commands", b"/v1/publish", b"/v1/read"])
def test_huge_lengths(bounded: Server, route: bytes) -> None:
    """T20. 413 by the Content-Length alone, before anything of the body."""
    head = b"POST " + route + b" HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    received, closed = exchange(bounded.port, head + b"Content-Length: 99999999999\r\n\r\n")
    assert closed
    assert received.startswith(b"HTTP/1.1 413 ")


DRIPS = {
    "line": (b"GET /v1/str", b"e"),
    "head": (b"GET / HTTP/1.1\r\n" + HOST, b"X: a\r\n"),
    "body": (POST + b"Content-Length: 500\r\n\r\n", b" "),
    "body of a slow route": (b"POST /v1/read HTTP/1.1\r\n" + HOST + b"Content-Length: 500\r\n\r\n", b" "),
    "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "trailers": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", b"X: a\r\n"),
    "blank lines": (b"", b"\r\n"),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize("what", DRIPS)
def test_slow_senders(server: Server, what: str) -> None:
    """T19. A byte now and then does not keep a connection: it has the time of a request, all in all."""
    closed = dripped(server.port, *DRIPS[what], 0.2, 6)
    assert closed.after_s < 3
    assert not closed.received or closed.received.startswith(b"HTTP/1.1 4")


@pytest.fixture
def big(server: Server) -> Iterator[Server]:
    """A stream of 40 MB."""
    body = b'{"entries":[%b]}' % b",".join([b'{"fields":{"a":"%b"}}' % (b"x" * 100_000)] * 40)
    for _ in range(10):
        assert ask_json(server.port, "POST", "/v1/streams/big/entries", body).status == 201
    yield server
    assert ask_json(server.port, "POST", "/v1/commands", ["DEL", "big"]).json() == {"result": 1}


def _under_attack(big: Server) -> list[float]:
    """How long each request of a client took while others attacked from another process."""
    attackers = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("attackers.py"), str(big.port), str(FLOOD_S)]
    )
    took: list[float] = []
    refused = 0
    try:
        time.sleep(0.5)
        with closing(http.client.HTTPConnection("127.0.0.1", big.port, timeout=10)) as client:
            deadline = time.perf_counter() + FLOOD_S - 1
            while time.perf_counter() < deadline:
                began = time.perf_counter()
                client.request(
                    "POST",
                    "/v1/streams/mine/entries",
                    b'{"fields":{"a":"1"}}',
                    {"Content-Type": "application/json"},
                )
                answer = client.getresponse()
                answer.read()
                refused += answer.status != 201
                took.append(time.perf_counter() - began)
                time.sleep(0.005)
        assert attackers.wait(FLOOD_S + 10) == 0
    finally:
        attackers.kill()
        attackers.wait()
    assert refused == 0
    return took


@pytest.mark.alone
def test_an_innocent_client_under_attack(big: Server) -> None:
    """T32, T19, T20. While others attack, a client's p99 stays below 250 ms, in one of three floods at least:
    the machine's other work is no attack of theirs.
    """
    seen = []
    for _ in range(FLOODS):
        took = _under_attack(big)
        if _p99(took) <= P99_S_MAX:
            return
        seen.append(f"p50 {statistics.median(took):.3f} s, p99 {_p99(took):.3f} s, most {max(took):.3f} s")
    raise AssertionError(seen)


def _p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]
