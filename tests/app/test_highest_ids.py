"""The two highest IDs there are, over REST: they are read, worked off and trimmed as all others."""

from typing import Any, Final

import httpx
import pytest

STREAM: Final = "/v1/streams/s"
ENTRIES: Final = f"{STREAM}/entries"
MAX: Final = "18446744073709551615-18446744073709551615"
BELOW: Final = "18446744073709551615-18446744073709551614"
COLUMNS: Final = {"accept": "application/vnd.weir.columns+json"}
LINES: Final = {"accept": "application/x-ndjson"}


@pytest.fixture
async def both(http: httpx.AsyncClient) -> httpx.AsyncClient:
    rows = [{"id": each, "fields": {"a": "1"}} for each in (BELOW, MAX)]
    assert (await http.post(ENTRIES, json={"entries": rows})).status_code == 201
    return http


async def found(http: httpx.AsyncClient, query: str) -> list[str]:
    answer = await http.get(f"{ENTRIES}?{query}")
    assert answer.status_code == 200, answer.text
    return [entry["id"] for entry in answer.json()["entries"]]


async def test_they_are_read(both: httpx.AsyncClient) -> None:
    """Up to them, from them, and behind them, where nothing is; in every form of an answer."""
    assert await found(both, f"after={BELOW}") == [MAX]
    assert await found(both, f"after={MAX}") == []
    assert await found(both, f"after={MAX}&wait=1") == []
    assert await found(both, f"start={MAX}") == [MAX]
    assert await found(both, f"end=({MAX}") == [BELOW]
    assert await found(both, "reverse=1") == [MAX, BELOW]
    assert await found(both, "last=1") == [MAX]
    for accept in (COLUMNS, LINES):
        whole = await both.get(f"{ENTRIES}?after=0", headers=accept)
        rest = await both.get(f"{ENTRIES}?after={MAX}", headers=accept)
        assert (whole.status_code, rest.status_code) == (200, 200), (whole.text, rest.text)
        assert len(rest.content) < len(whole.content)
    several = await both.post("/v1/read", json={"streams": {"s": MAX}})
    assert several.status_code == 200, several.text
    planned = await both.post("/v1/plan", json={"streams": {"s": BELOW}, "durable_only": True})
    assert planned.status_code == 200, planned.text


async def test_a_transaction_gets_the_ids_that_are_left(http: httpx.AsyncClient) -> None:
    """Its commands are single ones: those without an ID are refused, and undo none of the others."""
    last = {"id": "18446744073709551615-18446744073709551613", "fields": {"a": "1"}}
    assert (await http.post(ENTRIES, json={"entries": [last]})).status_code == 201
    done: Any = (await http.post("/v1/commands/multi-exec", json=[["XADD", "s", "*", "a", "1"]] * 3)).json()
    assert [one.get("result") for one in done] == [BELOW, MAX, None]
    assert done[2]["error"].startswith("ERR The stream has exhausted")


async def test_they_are_worked_off(both: httpx.AsyncClient) -> None:
    """Delivered, given back, claimed, acknowledged; a group that begins behind them has nothing to do."""
    group = f"{STREAM}/groups/g"
    assert (await both.put(group, json={"start": "0"})).status_code == 201
    assert (await both.put(f"{STREAM}/groups/h", json={"start": MAX})).status_code == 201
    read: Any = (await both.post(f"{group}/consumers/a/read", json={})).json()
    assert [one["id"] for one in read["entries"]] == [BELOW, MAX]
    assert (await both.post(f"{group}/nack", json={"ids": [MAX], "mode": "fail"})).status_code == 200
    claim = await both.post(f"{group}/claim", json={"consumer": "b", "ids": [MAX], "min_idle_ms": 0})
    assert claim.status_code == 200, claim.text
    pending = await both.get(f"{group}/pending?start={MAX}&count=1")
    assert [one["id"] for one in pending.json()["pending"]] == [MAX]
    acked: Any = (await both.post(f"{group}/ack", json={"ids": [BELOW, MAX]})).json()
    assert acked["acknowledged"] == 2
    nothing = await both.post(f"{STREAM}/groups/h/consumers/a/read", json={})
    assert nothing.json()["entries"] == []


async def test_they_are_trimmed_and_nothing_comes_behind_them(both: httpx.AsyncClient) -> None:
    """The log takes the cut that is above all IDs, and what comes after."""
    assert (await both.patch(STREAM, json={"archived_up_to": MAX})).status_code == 200
    assert (await both.post(f"{STREAM}/trim", json={"maxlen": 0})).json()["deleted"] == 2
    assert (await both.get(f"{ENTRIES}?after={BELOW}")).status_code == 200
    exhausted = await both.post(ENTRIES, json={"fields": {"a": "1"}})
    assert (exhausted.status_code, exhausted.json()["code"]) == (409, "stream_exhausted")
    assert (await both.post("/v1/streams/t/entries", json={"fields": {"a": "1"}})).status_code == 201
