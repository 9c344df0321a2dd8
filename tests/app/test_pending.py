"""Pending entries: in sum, entry by entry, given back."""

import threading

import httpx
import pytest

from app.api.groups import pending
from engine.replies import PendingEntry
from tests.app.conftest import store

G = "/v1/streams/s/groups/g"
PENDING = G + "/pending"
NACK = G + "/nack"
CLAIM = G + "/claim"


@pytest.fixture
async def held(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Of 1-0 to 5-0 the consumer a holds 1-0 and 2-0, b holds 3-0 and 4-0."""
    await store(http, "s", 5)
    await http.put(G, json={"start": "0"})
    for consumer in "ab":
        await http.post(f"{G}/consumers/{consumer}/read", json={"count": 2})
    return http


async def _ids(http: httpx.AsyncClient, query: str) -> list[str]:
    answer = await http.get(f"{PENDING}?{query}")
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["pending"]]


async def test_the_sum_of_nothing(held: httpx.AsyncClient) -> None:
    """No IDs, no consumers."""
    await held.post(G + "/ack", json={"ids": ["1-0", "2-0", "3-0", "4-0"]})
    assert (await held.get(PENDING)).json() == {
        "count": 0,
        "first_id": None,
        "last_id": None,
        "consumers": [],
    }


@pytest.mark.parametrize(("most", "inline"), [(4, True), (3, False)])
async def test_a_long_list_is_written_in_a_thread(
    held: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, most: int, *, inline: bool
) -> None:
    """Others are served meanwhile; its answer is the same."""
    threads: set[int] = set()
    row = pending._row  # noqa: SLF001 - what takes the time

    def noted(one: PendingEntry) -> pending.PendingRow:
        threads.add(threading.get_ident())
        return row(one)

    monkeypatch.setattr(pending, "_row", noted)
    monkeypatch.setattr(pending, "_INLINE_ROWS_MAX", most)
    assert await _ids(held, "count=10") == ["1-0", "2-0", "3-0", "4-0"]
    assert [thread == threading.get_ident() for thread in threads] == [inline]


async def test_the_list_goes_on(held: httpx.AsyncClient) -> None:
    """With an exclusive start at `next`, until there is no more."""
    answer = (await held.get(f"{PENDING}?count=3")).json()
    rest = (await held.get(PENDING, params={"count": 3, "start": f"({answer['next']}"})).json()
    assert [one["id"] for one in answer["pending"] + rest["pending"]] == ["1-0", "2-0", "3-0", "4-0"]
    assert (rest["next"], rest["more"]) == ("4-0", False)
    end = (await held.get(PENDING, params={"start": f"({rest['next']}"})).json()
    assert end == {"pending": [], "next": "4-0", "more": False}


async def test_the_list_is_narrowed(held: httpx.AsyncClient) -> None:
    """By range, by consumer, by idle time; all that is asked for has to hold."""
    assert await _ids(held, "start=2&end=3") == ["2-0", "3-0"]
    assert await _ids(held, "start=(2-0&end=%2B") == ["3-0", "4-0"]
    assert await _ids(held, "start=-&end=(3-0") == ["1-0", "2-0"]
    assert await _ids(held, "consumer=b") == ["3-0", "4-0"]
    assert await _ids(held, "consumer=b&start=4") == ["4-0"]
    assert await _ids(held, "consumer=nobody") == []
    await held.post(CLAIM, json={"consumer": "a", "min_idle_ms": 0, "ids": ["2-0"], "idle_ms": 600_000})
    assert await _ids(held, "min_idle_ms=500000") == ["2-0"]
    assert await _ids(held, "min_idle_ms=500000&consumer=b") == []


# ---- given back


async def test_entries_are_given_back(held: httpx.AsyncClient) -> None:
    """They stay pending without an owner, and each ID has its result."""
    answer = await held.post(NACK, json={"ids": ["2-0", "5-0", "2-0"], "mode": "fail"})
    assert (answer.status_code, answer.headers["weir-durability"]) == (200, "os")
    assert answer.json() == {"released": 1, "results": {"2-0": "released", "5-0": "absent"}}
    listed = (await held.get(f"{PENDING}?start=2&end=2")).json()["pending"]
    assert listed == [{"id": "2-0", "consumer": None, "idle_ms": None, "delivery_count": 1}]
    summary = (await held.get(PENDING)).json()
    assert (summary["count"], summary["consumers"][0]) == (4, {"name": "a", "count": 1})


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({"mode": "silent"}, 0),
        ({"mode": "fail"}, 1),
        ({"mode": "fatal"}, (1 << 53) - 1),
        ({"mode": "fail", "retry_count": 7}, 7),
    ],
)
async def test_the_mode_says_what_becomes_of_the_count(
    held: httpx.AsyncClient, body: dict[str, object], count: int
) -> None:
    """One back, nothing, the largest number; a number given wins."""
    await held.post(NACK, json={"ids": ["1-0"], **body})
    (pending,) = (await held.get(f"{PENDING}?end=1")).json()["pending"]
    assert pending["delivery_count"] == count


async def test_force_releases_what_is_not_pending(held: httpx.AsyncClient) -> None:
    """As long as the entry exists."""
    answer = await held.post(NACK, json={"ids": ["5-0", "9-0"], "mode": "fail", "force": True})
    assert answer.json() == {"released": 1, "results": {"5-0": "released", "9-0": "absent"}}
