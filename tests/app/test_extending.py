"""Consumers that say that their work goes on, over REST and the command API."""

import httpx
import pytest

from tests.app.conftest import call, store

G = "/v1/streams/s/groups/g"
EXTEND = G + "/extend"


@pytest.fixture
async def held(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Of 1-0 to 3-0 the consumer a holds the first, b the second; the third was given back."""
    await store(http, "s", 3)
    await http.put(G, json={"start": "0"})
    for consumer in "abb":
        await http.post(f"{G}/consumers/{consumer}/read", json={"count": 1})
    await http.post(f"{G}/nack", json={"ids": ["3-0"], "mode": "fail"})
    return http


async def owners(http: httpx.AsyncClient) -> list[tuple[str | None, int]]:
    rows = (await http.get(f"{G}/pending?count=9")).json()["pending"]
    return [(row["consumer"], row["delivery_count"]) for row in rows]


async def test_only_what_no_other_holds_is_extended(held: httpx.AsyncClient) -> None:
    """What was given back is held again; what is another's or not pending stays as it is; nothing counts as
    delivered.
    """
    assert await owners(held) == [("a", 1), ("b", 1), (None, 1)]
    body = {"consumer": "a", "ids": ["1-0", "2-0", "3-0", "9-0"]}
    answer = await held.post(EXTEND, json=body)
    assert answer.json() == {
        "extended": 2,
        "results": {"1-0": "extended", "2-0": "not_held", "3-0": "extended", "9-0": "absent"},
    }
    assert await owners(held) == [("a", 1), ("b", 1), ("a", 1)]
    assert await call(held, "WEIR.EXTEND", "s", "g", "b", "1-0", "2-0") == ["2-0"]


async def test_a_consumer_that_is_not_there_holds_nothing(held: httpx.AsyncClient) -> None:
    """It is not made by that."""
    answer = await held.post(EXTEND, json={"consumer": "nobody", "ids": ["1-0"]})
    assert answer.json() == {"extended": 0, "results": {"1-0": "not_held"}}
    shown = (await held.get(f"{G}/consumers")).json()["consumers"]
    assert [one["name"] for one in shown] == ["a", "b"]


async def test_the_idle_time_begins_anew(held: httpx.AsyncClient) -> None:
    claim = {"consumer": "b", "min_idle_ms": 1_000_000, "ids": ["1-0"], "just_ids": True}
    await held.post(f"{G}/claim", json={**claim, "consumer": "a", "min_idle_ms": 0, "idle_ms": 2_000_000})
    await held.post(EXTEND, json={"consumer": "a", "ids": ["1-0"]})
    assert (await held.post(f"{G}/claim", json=claim)).json()["ids"] == []
