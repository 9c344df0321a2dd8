"""Durable Streams over a backend: streams of other programs are read."""

from collections.abc import AsyncIterator

import httpx
import pytest

from engine.cluster import ClusterEngine
from tests.app.conftest import app_on, calling
from tests.bounds import bounded
from tests.cluster.servers import Backend

_PATH = "/v1/stream/orders"


@pytest.fixture
async def http(engine: ClusterEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(app_on(engine, bounded(log_requests="none", durable_long_poll_s=0.2))) as client:
        yield client


async def test_a_stream_is_read_page_by_page(http: httpx.AsyncClient, backend: Backend) -> None:
    """And followed: what another program adds comes to a long-poll."""
    for number in range(1, 4):
        backend.call("XADD", "orders", f"{number}-0", "n", number)
    page = await http.get(_PATH)
    assert [one["id"] for one in page.json()] == ["1-0", "2-0", "3-0"]
    offset = page.headers["stream-next-offset"]
    assert (await http.get(_PATH, headers={"if-none-match": page.headers["etag"]})).status_code == 304
    assert (await http.get(f"{_PATH}?offset={offset}&live=long-poll")).status_code == 204
    backend.call("XADD", "orders", "4-0", "n", 4)
    live = await http.get(f"{_PATH}?offset={offset}&live=long-poll")
    assert [one["id"] for one in live.json()] == ["4-0"]
    assert (await http.head(_PATH)).headers["stream-next-offset"] == live.headers["stream-next-offset"]


async def test_a_stream_of_others_takes_none_here(http: httpx.AsyncClient, backend: Backend) -> None:
    """It was not made by Durable Streams; it can be deleted."""
    backend.call("XADD", "orders", "1-0", "n", 1)
    refused = await http.post(_PATH, headers={"content-type": "application/json"}, content="1")
    assert (refused.status_code, refused.json()["code"]) == (405, "not_durable")
    assert (await http.delete(_PATH)).status_code == 204
    assert (await http.delete(_PATH)).status_code == 404
