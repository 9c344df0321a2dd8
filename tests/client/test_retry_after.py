"""The Python client waits for Retry-After, beside a server that refuses the first request."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

import pytest

from tests.serving import QuietHandler, serving
from weir import AsyncClient, Client, RateLimitedError

PROBLEM = {"code": "rate_limited", "detail": "wait", "status": 429, "retryable": True}
STORED = {"id": "5-1", "duplicate": False}


class Limiting(ThreadingHTTPServer):
    """Answers 429 to the first requests, and notes when each request came."""

    def __init__(self, refusals: int, retry_after: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusals = refusals
        self.retry_after = retry_after
        self.came_s: list[float] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(QuietHandler):
    server: Limiting

    def respond(self) -> None:
        self.server.came_s.append(time.monotonic())
        self.rfile.read(int(self.headers["content-length"]))
        is_refused = len(self.server.came_s) <= self.server.refusals
        body = json.dumps(PROBLEM if is_refused else STORED).encode()
        headers = {"content-type": "application/problem+json" if is_refused else "application/json"}
        if is_refused:
            headers["retry-after"] = self.server.retry_after
        self.reply(429 if is_refused else 201, body, headers)


@contextmanager
def limiting(refusals: int, retry_after: str) -> Iterator[Limiting]:
    with serving(Limiting(refusals, retry_after)) as server:
        yield server


def test_a_request_is_sent_again_after_retry_after() -> None:
    """Also one that is not safe to repeat: 429 has changed nothing."""
    with limiting(1, "1") as server, Client(server.url) as client:
        assert client.publish("s", {"a": "1"}).id == "5-1"
        first_s, second_s = server.came_s
        assert second_s - first_s >= 1.0


async def test_the_async_client_waits_as_long() -> None:
    with limiting(1, "1") as server:
        async with AsyncClient(server.url) as client:
            assert (await client.publish("s", {"a": "1"})).id == "5-1"
        first_s, second_s = server.came_s
        assert second_s - first_s >= 1.0


def test_at_zero_it_is_sent_again_soon() -> None:
    with limiting(2, "0") as server, Client(server.url) as client:
        assert client.publish("s", {"a": "1"}).id == "5-1"
        assert len(server.came_s) == 3
        assert server.came_s[-1] - server.came_s[0] < 1.0


def test_what_comes_after_the_time_for_retries_is_not_waited_for() -> None:
    with limiting(1, "60") as server, Client(server.url, retry_s=5) as client:
        with pytest.raises(RateLimitedError) as refused:
            client.publish("s", {"a": "1"})
        assert refused.value.retry_after_s == 60.0
        assert len(server.came_s) == 1
