"""Answers that are as long as they may be, where no memory is left for what waits to be sent."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from app.live.budgets import FREE_BYTES
from app.main import App

STREAM = "/v1/streams/s"
ENTRY_BYTES = 7_000
BATCH = 8
ENTRIES = 20 * BATCH
# Of a page in which each connection's own bytes have room.
FEW = range(1, FREE_BYTES // ENTRY_BYTES + 1)


@pytest.fixture
async def full(app: App, http: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """A stream of 1 MB, while others hold the whole pool."""
    for _ in range(ENTRIES // BATCH):
        entries = [{"fields": {"a": "x" * ENTRY_BYTES}}] * BATCH
        (await http.post(f"{STREAM}/entries", json={"entries": entries})).raise_for_status()
    pool = app.gateway.limits.budgets.output
    others = pool.reserve("another", pool.bytes_max)
    assert (await http.get(f"{STREAM}/entries")).json()["code"] == "overloaded"
    yield http
    others.release()


@pytest.mark.holding
async def test_pages_of_columns_are_smaller(full: httpx.AsyncClient) -> None:
    """And lead to the end, as others do."""
    after, more, counts = "0", "true", list[int]()
    while more == "true":
        page = await full.get(f"{STREAM}/columns?after={after}")
        assert page.status_code == 200
        counts.append(len(page.json()["ms"]))
        after, more = page.headers["weir-next-id"], page.headers["weir-more"]
    assert sum(counts) == ENTRIES
    assert all(count in FEW for count in counts)


@pytest.mark.holding
async def test_an_export_is_whole(full: httpx.AsyncClient) -> None:
    """It has pieces of the bytes that each connection has."""
    answer = await full.get(f"{STREAM}/export")
    assert answer.status_code == 200
    assert len([json.loads(line)["id"] for line in answer.text.splitlines()]) == ENTRIES
