"""Compressed bodies are what they stand for at every route: limits, rates and memory go by decoded bytes."""

import gzip
import zlib
from collections.abc import Callable
from typing import Any, Final

import httpx
import pytest
import zstandard

from app.http.body_codings import SLICE_BYTES, CodedBody
from app.live.budgets import BODY_COPIES, FREE_BYTES
from app.main import App
from app.settings import Settings
from engine import Engine
from tests.app.conftest import app_on, calling
from tests.engine.clocks import HandClock

ENTRIES: Final = "/v1/streams/s/entries"
LINES: Final = {"content-type": "application/x-ndjson"}
MIB: Final = 1 << 20
TAKEN: Final = "gzip, deflate, zstd"


def zstd(body: bytes) -> bytes:
    """Without the length in front, as a program sends it that does not know it yet."""
    maker = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return maker.compress(body) + maker.flush()


CODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd,
}
every_coding = pytest.mark.parametrize("coding", CODERS)


async def post(http: httpx.AsyncClient, body: bytes, coding: str, **headers: str) -> httpx.Response:
    given = {**LINES, "content-encoding": coding, **headers}
    return await http.post(ENTRIES, content=body, headers=given)


async def fields(http: httpx.AsyncClient) -> list[object]:
    return [entry["fields"] for entry in (await http.get(ENTRIES)).json()["entries"]]


@every_coding
async def test_a_coded_body_is_stored_as_the_plain_one(http: httpx.AsyncClient, coding: str) -> None:
    coded = CODERS[coding](b'{"a":"1"}\n{"b":"2"}')
    assert (await post(http, coded, coding)).status_code == 201
    assert (await post(http, coded, coding.upper())).status_code == 201
    assert await fields(http) == [{"a": "1"}, {"b": "2"}] * 2


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_members_and_frames_go_on_from_one_to_the_next(http: httpx.AsyncClient, coding: str) -> None:
    coded = CODERS[coding](b'{"a":"1"}\n') + CODERS[coding](b"") + CODERS[coding](b'{"b":"2"}')
    assert (await post(http, coded, coding)).status_code == 201
    assert await fields(http) == [{"a": "1"}, {"b": "2"}]


async def test_every_route_takes_it(http: httpx.AsyncClient) -> None:
    """Bodies of JSON that a model reads, those of commands, those of many streams; pieces too."""

    async def piecewise(body: bytes) -> Any:
        for at in range(0, len(body), 7):
            yield body[at : at + 7]

    for method, path, text in (
        ("POST", "/v1/publish", '{"streams":{"s":[{"fields":{"a":"1"}}]}}'),
        ("POST", "/v1/commands", '["XADD","s","*","a","1"]'),
        ("POST", "/v1/commands/pipeline", '[["XADD","s","*","a","1"]]'),
        ("PUT", "/v1/streams/s/groups/g", '{"start":"0"}'),
    ):
        content = piecewise(gzip.compress(text.encode()))
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        answer = await http.request(method, path, content=content, headers=headers)
        assert answer.status_code in (200, 201), answer.text
    assert await fields(http) == [{"a": "1"}] * 3


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "zstd, gzip", "snappy", "aws-chunked", "none"])
async def test_other_codings_are_415_with_what_is_taken(http: httpx.AsyncClient, coding: str) -> None:
    answer = await post(http, b'{"a":"1"}', coding)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert answer.headers["accept-encoding"] == TAKEN
    assert TAKEN in answer.json()["detail"]
    assert await fields(http) == []


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
async def test_no_coding_may_be_said(http: httpx.AsyncClient, coding: str) -> None:
    assert (await post(http, b'{"a":"1"}', coding)).status_code == 201


@every_coding
async def test_what_is_not_that_coding_is_400(http: httpx.AsyncClient, coding: str) -> None:
    """Cut short, damaged, followed by something else, or not coded at all."""
    lines = b"\n".join(b'{"a":"%d"}' % number for number in range(100))
    coded = CODERS[coding](lines)
    damaged = bytes([coded[0] ^ 0xFF]) + coded[1:]
    cut = [coded[:-length] for length in (1, 4, len(coded) // 2, len(coded) - 1)]
    for body in (*cut, damaged, coded + b"more of it", lines):
        answer = await post(http, body, coding)
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_encoding"), body
        assert answer.json()["detail"].startswith(f"the body is not {coding}: ")
    assert await fields(http) == []


@every_coding
async def test_the_limit_is_of_decoded_bytes(app: App, http: httpx.AsyncClient, coding: str) -> None:
    """At the limit and one beyond; a small body that stands for a large one is never made."""
    most = app.gateway.settings.body_bytes_max
    row = b'{"a":"1"}\n'
    body = row + b" " * (most - len(row))
    assert (await post(http, CODERS[coding](body), coding)).status_code == 201
    answer = await post(http, CODERS[coding](body + b" "), coding)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert (await post(http, CODERS[coding](bytes(32 * MIB)), coding)).status_code == 413
    assert app.gateway.limits.budgets.bodies.peak_bytes <= BODY_COPIES * most


@every_coding
def test_a_slice_is_bounded_whatever_it_stands_for(coding: str) -> None:
    """Few bytes of many, none of many, and none at all."""
    bomb = CodedBody(coding, CODERS[coding](bytes(64 * MIB)))
    read = [len(bomb.read()) for _ in range(8)]
    assert max(read) <= SLICE_BYTES + 4 * MIB
    assert not bomb.is_read
    members = CODERS[coding](b"") * 10_000 if coding != "deflate" else CODERS[coding](b"")
    empty = CodedBody(coding, members)
    reads = 0
    while not empty.is_read:
        assert empty.read(FREE_BYTES) == b""
        reads += 1
    assert reads == -(-len(members) // FREE_BYTES)
    assert CodedBody(coding, b"").is_read


def test_a_frame_may_not_ask_for_more_memory_than_a_coding_needs() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    maker = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    coded = maker.compress(b"{}") + maker.flush()
    with pytest.raises(Exception, match="too much memory"):
        CodedBody("zstd", coded).read()


async def test_rates_count_decoded_bytes() -> None:
    """As many as the plain body has; a refused one stores nothing."""
    clock = HandClock()
    async with Engine.open(None, clock=clock) as engine:
        settings = Settings(log_requests="none", rate_bytes="1000/s burst 4000")
        app = app_on(engine, settings, clock)
        body = gzip.compress(b'{"a":"%b"}' % (b"x" * 3_000))
        async with calling(app) as http:
            stored = await post(http, body, "gzip")
            assert stored.status_code == 201
            refused = await post(http, body, "gzip")
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            clock.pass_ms(10_000)
            assert len(await fields(http)) == 1


async def test_memory_is_held_for_what_is_decoded(engine: Engine) -> None:
    """Refused while others hold the pool, before it is made; given back after the answer."""
    app = app_on(engine, Settings(log_requests="none", body_bytes_max=4 * MIB), HandClock())
    pool = app.gateway.limits.budgets.bodies
    body = gzip.compress(b'{"a":"1"}' + b" " * (3 * MIB))
    async with calling(app) as http:
        held = pool.reserve("another", pool.bytes_max - 2 * MIB)
        refused = await post(http, body, "gzip")
        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert await fields(http) == []
        held.release()
        assert (await post(http, body, "gzip")).status_code == 201
        assert pool.held_bytes == 0
        assert pool.peak_bytes >= pool.bytes_max - 2 * MIB
