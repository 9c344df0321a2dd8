"""Claims: pending entries taken over, by their IDs or by how long they have been idle."""

import httpx
import pytest

from app.main import App
from tests.app.conftest import store

G = "/v1/streams/s/groups/g"
CLAIM = G + "/claim"
AUTO = G + "/autoclaim"
TAKE = {"consumer": "b", "min_idle_ms": 0}


@pytest.fixture
async def held(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Of 1-0 to 4-0 the consumer a holds 1-0 to 3-0."""
    await store(http, "s", 4)
    await http.put(G, json={"start": "0"})
    await http.post(f"{G}/consumers/a/read", json={"count": 3})
    return http


async def _pending(http: httpx.AsyncClient) -> dict[str, tuple[str, int]]:
    rows = (await http.get(f"{G}/pending?count=10")).json()["pending"]
    return {one["id"]: (one["consumer"], one["delivery_count"]) for one in rows}


async def test_entries_are_taken_over(held: httpx.AsyncClient) -> None:
    """They come whole, with the count of this delivery and how long they had been idle."""
    answer = await held.post(CLAIM, json={**TAKE, "ids": ["2-0", "4-0", "9-0"]})
    assert (answer.status_code, answer.headers["weir-durability"]) == (200, "os")
    (taken,) = answer.json()["entries"]
    assert taken.pop("idle_ms") >= 0
    assert taken == {"id": "2-0", "fields": {"n": "2"}, "delivery_count": 2}
    assert await _pending(held) == {"1-0": ("a", 1), "2-0": ("b", 2), "3-0": ("a", 1)}


async def test_what_is_not_idle_stays_where_it_is(held: httpx.AsyncClient) -> None:
    """Unless it has no owner."""
    await held.post(G + "/nack", json={"ids": ["3-0"], "mode": "fail"})
    body = {**TAKE, "min_idle_ms": 600_000, "ids": ["1-0", "3-0"]}
    assert [one["id"] for one in (await held.post(CLAIM, json=body)).json()["entries"]] == ["3-0"]


async def test_what_was_given_back_has_no_idle_time(held: httpx.AsyncClient) -> None:
    """It had no consumer, however it is taken over. Redis counts from 1970: so does the command API."""
    nacked = {"ids": ["2-0"], "mode": "fail"}
    read = {"count": 1, "claim_min_idle_ms": (1 << 53) - 1}
    for path, body in ((f"{G}/consumers/b/read", read), (CLAIM, {**TAKE, "ids": ["2-0"]}), (AUTO, TAKE)):
        await held.post(G + "/nack", json=nacked)
        taken = {one["id"]: one for one in (await held.post(path, json=body)).json()["entries"]}
        assert taken["2-0"]["idle_ms"] is None
        assert all(one["idle_ms"] >= 0 for name, one in taken.items() if name != "2-0")
    await held.post(G + "/nack", json=nacked)
    words = ["XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "CLAIM", "600000", "STREAMS", "s", ">"]
    ((_, ((entry_id, _, idle_ms, _),)),) = (await held.post("/v1/commands", json=words)).json()["result"]
    assert (entry_id, idle_ms > 1_600_000_000_000) == ("2-0", True)


async def test_ids_alone(held: httpx.AsyncClient) -> None:
    """Nothing was delivered, so nothing is counted."""
    answer = await held.post(CLAIM, json={**TAKE, "ids": ["1-0"], "just_ids": True})
    assert answer.json() == {"ids": ["1-0"], "more": False}
    assert (await _pending(held))["1-0"] == ("b", 1)


async def test_a_claim_may_say_since_when_and_how_often(held: httpx.AsyncClient) -> None:
    """For those who move a group from elsewhere."""
    await held.post(CLAIM, json={**TAKE, "ids": ["1-0"], "idle_ms": 600_000, "retry_count": 9})
    await held.post(CLAIM, json={**TAKE, "ids": ["2-0"], "time_ms": 1_000})
    rows = (await held.get(f"{G}/pending?min_idle_ms=600000")).json()["pending"]
    assert [(one["id"], one["delivery_count"]) for one in rows] == [("1-0", 9), ("2-0", 2)]


async def test_force_makes_pending_and_last_id_moves_the_group(held: httpx.AsyncClient) -> None:
    """4-0 was never delivered."""
    body = {**TAKE, "ids": ["4-0"], "force": True, "last_id": "4-0"}
    answer = await held.post(CLAIM, json=body, headers={"prefer": "durability=fsync"})
    assert [one["id"] for one in answer.json()["entries"]] == ["4-0"]
    assert answer.headers["weir-durability"] == "fsync"
    assert (await held.get(G)).json()["last_delivered_id"] == "4-0"


async def test_a_deleted_entry_is_not_claimed(held: httpx.AsyncClient) -> None:
    """It is no longer pending either."""
    await held.post("/v1/commands", json=["XDEL", "s", "1-0"])
    assert (await held.post(CLAIM, json={**TAKE, "ids": ["1-0"]})).json() == {"entries": [], "more": False}
    assert "1-0" not in await _pending(held)


# ---- all that is idle


async def test_idle_entries_are_taken_some_at_a_time(held: httpx.AsyncClient) -> None:
    """`next_start` goes on, 0-0 is the end."""
    first = (await held.post(AUTO, json={**TAKE, "count": 2})).json()
    assert [(one["id"], one["delivery_count"]) for one in first["entries"]] == [("1-0", 2), ("2-0", 2)]
    assert all(one["idle_ms"] >= 0 for one in first["entries"])
    assert (first["next_start"], first["deleted_ids"]) == ("3-0", [])
    rest = (await held.post(AUTO, json={**TAKE, "start": first["next_start"]})).json()
    assert ([one["id"] for one in rest["entries"]], rest["next_start"]) == (["3-0"], "0-0")


async def test_nothing_is_idle_for_so_long(held: httpx.AsyncClient) -> None:
    """Then there is nothing to take."""
    answer = await held.post(AUTO, json={**TAKE, "min_idle_ms": 600_000})
    assert answer.json() == {"next_start": "0-0", "entries": [], "deleted_ids": []}


async def test_autoclaim_tells_what_is_deleted(held: httpx.AsyncClient) -> None:
    """And takes it off the pending list; IDs alone count no delivery."""
    await held.post("/v1/commands", json=["XDEL", "s", "2-0"])
    answer = await held.post(AUTO, json={**TAKE, "just_ids": True, "start": "-"})
    assert answer.json() == {"next_start": "0-0", "ids": ["1-0", "3-0"], "deleted_ids": ["2-0"]}
    assert await _pending(held) == {"1-0": ("b", 1), "3-0": ("b", 1)}


async def test_an_answer_has_so_many_bytes(app: App, held: httpx.AsyncClient) -> None:
    """What has no room stays with whom it was, and the answer says so; one entry always has room."""
    limits = app.gateway.limits.reads
    app.gateway.limits.reads = type(limits)(limits.count_default, limits.count_max, 60, limits.wait_ms_max)
    claimed = (await held.post(CLAIM, json={**TAKE, "ids": ["1-0", "2-0", "3-0"]})).json()
    assert ([one["id"] for one in claimed["entries"]], claimed["more"]) == (["1-0"], True)
    alone = (await held.post(CLAIM, json={**TAKE, "ids": ["2-0", "3-0"], "just_ids": True})).json()
    assert alone == {"ids": ["2-0", "3-0"], "more": False}
    taken = (await held.post(AUTO, json={**TAKE, "consumer": "c"})).json()
    assert ([one["id"] for one in taken["entries"]], taken["next_start"]) == (["1-0"], "2-0")
    assert await _pending(held) == {"1-0": ("c", 3), "2-0": ("b", 1), "3-0": ("b", 1)}
