"""Consumers of Weir's own over a backend, for what was given back: no door shows or counts them."""

import httpx
import pytest

from tests.app.conftest import app_on, call, calling, store
from tests.cluster.engines import opened
from tests.cluster.servers import Backend

G = "/v1/streams/s/groups/g"


async def give_back(http: httpx.AsyncClient, entry: str, **more: object) -> None:
    answer = await http.post(f"{G}/nack", json={"ids": [entry], "mode": "fail", **more})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("is_emptied", [False, True])
async def test_no_door_shows_or_counts_them(backend: Backend, is_emptied: bool) -> None:  # noqa: FBT001 - a parameter
    """While they hold something, and when it has been taken from them."""
    async with opened(backend) as engine, calling(app_on(engine)) as http:
        await store(http, "s", 3)
        await http.put(G, json={"start": "0"})
        await http.post(f"{G}/consumers/anna/read", json={})
        await give_back(http, "1-0")
        await give_back(http, "2-0", delay_ms=60_000)
        there = backend.call("XINFO", "CONSUMERS", "s", "g")
        assert len(there) == 3
        if is_emptied:
            await http.post(f"{G}/consumers/anna/read", json={"claim_min_idle_ms": 1 << 40})
            await http.post(f"{G}/ack", json={"ids": ["2-0"]})
        shown = (await http.get(G)).json()
        listed = (await http.get("/v1/streams/s/groups")).json()["groups"]
        assert (shown["consumers"], [one["consumers"] for one in listed]) == (1, [1])
        consumers = (await http.get(f"{G}/consumers")).json()["consumers"]
        assert [one["name"] for one in consumers] == ["anna"]
        full = await http.get("/v1/streams/s?full=true")
        for text in (full.text, (await http.get(f"{G}/pending")).text, (await http.get("/metrics")).text):
            assert "weir:" not in text
        (row,) = await call(http, "XINFO", "GROUPS", "s")
        assert dict(zip(row[::2], row[1::2], strict=True))["consumers"] == 1
        rows = await call(http, "XINFO", "CONSUMERS", "s", "g")
        assert [row[1] for row in rows] == ["anna"]
        for words in (
            ("XINFO", "STREAM", "s", "FULL"),
            ("XPENDING", "s", "g"),
            ("XPENDING", "s", "g", "-", "+", "9"),
        ):
            assert "weir:" not in str(await call(http, *words))
