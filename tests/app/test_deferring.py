"""Entries that are given back for later, over REST and the command API."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.app.conftest import call, store

G = "/v1/streams/s/groups/g"


@pytest.fixture
async def held(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Of 1-0 to 3-0 the consumer a holds all."""
    await store(http, "s", 3)
    await http.put(G, json={"start": "0"})
    await http.post(f"{G}/consumers/a/read", json={"count": 3})
    return http


async def test_a_deferred_entry_shows_when_it_comes_back(held: httpx.AsyncClient) -> None:
    """Only it does, and readers of what was given back do not get it until then."""
    answer = await held.post(G + "/nack", json={"ids": ["2-0"], "mode": "fail", "delay_ms": 60_000})
    assert answer.json() == {"released": 1, "results": {"2-0": "released"}}
    rows = {row["id"]: row for row in (await held.get(G + "/pending?count=10")).json()["pending"]}
    until = datetime.fromisoformat(rows["2-0"].pop("deferred_until"))
    assert timedelta(seconds=50) < until - datetime.now(UTC) <= timedelta(seconds=60)
    assert rows["2-0"] == {"id": "2-0", "consumer": None, "idle_ms": None, "delivery_count": 1}
    assert "deferred_until" not in rows["1-0"]
    read = await held.post(f"{G}/consumers/b/read", json={"claim_min_idle_ms": 1_000_000})
    assert read.json()["entries"] == []


async def test_one_that_is_due_comes_to_a_reader_that_waits(held: httpx.AsyncClient) -> None:
    await held.post(G + "/nack", json={"ids": ["2-0"], "mode": "silent", "delay_ms": 20})
    body = {"claim_min_idle_ms": 1_000_000, "wait": 5_000}
    entries = (await held.post(f"{G}/consumers/b/read", json=body)).json()["entries"]
    assert [(one["id"], one["delivery_count"]) for one in entries] == [("2-0", 1)]


async def test_the_command_of_weir_is_one_of_the_command_api(held: httpx.AsyncClient) -> None:
    assert await call(held, "WEIR.NACK", "s", "g", "FAIL", "DELAY", "60000", "IDS", "1", "1-0") == 1
