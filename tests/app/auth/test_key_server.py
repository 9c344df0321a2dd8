"""Keys of JWTs from a server on loopback, which may answer anything."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import pytest

from app.auth.jwt import KEYS_BYTES_MAX, KeysError, read_keys
from app.auth.key_server import fetch_from
from tests.app.auth.test_jwt import RSA, public
from tests.turns import assert_within_async

DRIP_S: Final = 0.01
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class KeyHost:
    """Answers every request with the same bytes; then, if it drips, with spaces until its client leaves."""

    def __init__(self, answer: bytes, *, drips: bool) -> None:
        self.answer = answer
        self.drips = drips
        self.requests: list[bytes] = []
        self.url = ""
        self.ended: list[asyncio.Event] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        ended = asyncio.Event()
        self.ended.append(ended)
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        while self.drips and not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(DRIP_S)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()


@asynccontextmanager
async def serving(answer: bytes, *, drips: bool = False) -> AsyncIterator[KeyHost]:
    served = KeyHost(answer, drips=drips)
    async with await asyncio.start_server(served.serve, "127.0.0.1", 0) as listener:
        host, port = listener.sockets[0].getsockname()
        served.url = f"http://{host}:{port}/keys"
        yield served
        for ended in served.ended:
            await ended.wait()


def whole(body: bytes, headers: bytes = b"") -> bytes:
    return OK + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def test_keys_are_fetched() -> None:
    async with serving(whole(public(RSA))) as server:
        (key,) = read_keys(await fetch_from(server.url)(), ["RS256"]).keys
    assert key.kid == RSA.kid


@pytest.mark.parametrize("size", [KEYS_BYTES_MAX, KEYS_BYTES_MAX + 1])
async def test_a_key_set_has_64_kilobytes_at_most(size: int) -> None:
    async with serving(whole(b" " * size)) as server:
        if size <= KEYS_BYTES_MAX:
            assert len(await fetch_from(server.url)()) == size
        else:
            with pytest.raises(KeysError, match="more than 65536 bytes"):
                await fetch_from(server.url)()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "answers 302"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answers 404"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "http://"),
        (b"no HTTP\r\n\r\n", "http://"),
        (b"", "http://"),
        # 64 MiB in 64 KiB, and the same coded twice, of which nothing is left to see but its name.
        (whole(gzip.compress(b" " * (64 << 20)), b"Content-Encoding: gzip\r\n"), "the coding 'gzip'"),
        (whole(b"x", b"Content-Encoding: gzip, gzip\r\n"), "the coding 'gzip, gzip'"),
    ],
)
async def test_what_is_no_answer_is_refused(answer: bytes, reason: str) -> None:
    """Nothing is followed, nothing decompressed."""
    async with serving(answer) as server:
        with pytest.raises(KeysError, match=reason):
            await fetch_from(server.url)()
    (request,) = server.requests
    assert b"accept-encoding: identity\r\n" in request.lower()


@pytest.mark.parametrize("begun", [b"", OK + b"Content-Length: 60000\r\n\r\n"], ids=["a head", "a body"])
async def test_a_server_that_drips_is_not_waited_for(begun: bytes) -> None:
    """Each of its pieces comes soon enough; meanwhile everybody with another key would wait."""
    async with serving(begun or b"HTTP/1.1 200", drips=True) as server:
        with pytest.raises(KeysError, match=r"within 0\.2 s"):
            await fetch_from(server.url, 0.2)()


async def test_fetching_again_does_not_hold_up_the_loop() -> None:
    """Who sends tokens with unknown keys has them fetched each minute: certificates are read once, before."""
    async with serving(whole(public(RSA))) as server:
        fetch = fetch_from(server.url)
        # What is imported with the first request.
        await fetch()

        async def measure() -> float:
            began = time.thread_time()
            await fetch()
            return time.thread_time() - began

        await assert_within_async(0.010, measure)


async def test_a_server_that_is_down_is_named() -> None:
    async with serving(b"") as server:
        pass
    with pytest.raises(KeysError, match=server.url):
        await fetch_from(server.url)()


@pytest.mark.parametrize("text", [b"[" * 60_000, b'{"keys":[' + b"[" * 60_000, b'{"keys":' * 8_000])
def test_a_deep_key_set_is_none(text: bytes) -> None:
    with pytest.raises(KeysError, match="no JWK set"):
        read_keys(text, ["RS256"])
