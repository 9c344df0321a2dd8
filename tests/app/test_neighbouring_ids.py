"""Each ID that a request names as a bound, at, below and above entries side by side: 5-0, 5-1, 5-2."""

import json
from itertools import product
from typing import Any, Final

import httpx
import pytest

STREAM: Final = "/v1/streams/s"
GROUP: Final = f"{STREAM}/groups/g"
ENTRIES: Final = f"{STREAM}/entries"
ALL: Final = ("4-18446744073709551615", "5-0", "5-1", "5-2", "6-0")
ASKED: Final = ("4-1", *ALL, "5-3")


@pytest.fixture
async def side_by_side(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """All of them, pending in a group for one consumer."""
    rows = [{"id": each, "fields": {"a": "1"}} for each in ALL]
    assert (await http.post(ENTRIES, json={"entries": rows})).status_code == 201
    await answered(http.put(GROUP, json={"start": "0"}))
    await answered(http.post(f"{GROUP}/consumers/c/read", json={}))
    return http


async def answered(asked: Any) -> Any:
    answer = await asked
    assert answer.status_code < 300, answer.text
    return answer.json()


def number(entry_id: str) -> int:
    ms, _, sequence = entry_id.partition("-")
    return (int(ms) << 64) + int(sequence)


def meant(start: str, end: str) -> list[str]:
    """The entries between two bounds, by what the words say."""
    low, high = number(start.removeprefix("(")), number(end.removeprefix("("))
    found = [each for each in ALL if low <= number(each) <= high]
    return [each for each in found if f"({each}" not in {start, end}]


async def test_ranges(side_by_side: httpx.AsyncClient) -> None:
    """Of entries, in both directions, and of what is pending: with a bound, and with `(` without it."""
    bounds = [*ASKED, *(f"({each}" for each in ASKED)]
    for start, end in product(bounds, repeat=2):
        query = f"start={start}&end={end}"
        expected = meant(start, end)
        found = await answered(side_by_side.get(f"{ENTRIES}?{query}"))
        assert [entry["id"] for entry in found["entries"]] == expected, query
        pending = await answered(side_by_side.get(f"{GROUP}/pending?{query}"))
        assert [entry["id"] for entry in pending["pending"]] == expected, query


async def test_ranges_of_commands_end_before_what_is_excluded(side_by_side: httpx.AsyncClient) -> None:
    """Of entries, in both directions, and of what is pending."""
    ends = [*ASKED, *(f"({each}" for each in ASKED)]
    for words in (
        ["XRANGE", "s", "-", "END"],
        ["XREVRANGE", "s", "END", "-"],
        ["XPENDING", "s", "g", "-", "END", 9],
    ):
        rows = [[end if word == "END" else word for word in words] for end in ends]
        outcomes = await answered(side_by_side.post("/v1/commands/pipeline", json=rows))
        found = [sorted((one[0] for one in outcome["result"]), key=number) for outcome in outcomes]
        assert found == [meant("0-0", end) for end in ends], words[0]


async def test_cursors(side_by_side: httpx.AsyncClient) -> None:
    """What is behind one: pages, exports, several streams at once, plans, and what a group has before it."""
    for place, cursor in enumerate(ASKED):
        behind = [each for each in ALL if number(each) > number(cursor)]
        found = await answered(side_by_side.get(f"{ENTRIES}?after={cursor}"))
        assert [entry["id"] for entry in found["entries"]] == behind
        lines = await side_by_side.get(
            f"{ENTRIES}?after={cursor}", headers={"accept": "application/x-ndjson"}
        )
        assert [json.loads(line)["id"] for line in lines.text.splitlines()] == behind
        several = await answered(side_by_side.post("/v1/read", json={"streams": {"s": cursor}}))
        assert [entry["id"] for one in several["streams"].values() for entry in one["entries"]] == behind
        planned = await answered(side_by_side.post("/v1/plan", json={"streams": {"s": cursor}}))
        assert planned["streams"]["s"]["count"] == len(behind)
        await answered(side_by_side.put(f"{STREAM}/groups/h{place}", json={"start": cursor}))
        read = await answered(side_by_side.post(f"{STREAM}/groups/h{place}/consumers/c/read", json={}))
        assert [entry["id"] for entry in read["entries"]] == behind
        history = await answered(side_by_side.post(f"{GROUP}/consumers/c/read", json={"after": cursor}))
        assert [entry["id"] for entry in history["entries"]] == behind


async def test_a_trim_and_the_gap_behind_it(side_by_side: httpx.AsyncClient) -> None:
    """What is below goes; a reader of the last that went misses nothing, one that is behind it gets a gap."""
    for min_id in ASKED[1:6]:
        await answered(side_by_side.post(f"{STREAM}/trim", json={"minid": min_id}))
        kept = [each for each in ALL if number(each) >= number(min_id)]
        gone = [each for each in ALL if number(each) < number(min_id)]
        found = await answered(side_by_side.get(ENTRIES))
        assert [entry["id"] for entry in found["entries"]] == kept
        for cursor in ASKED:
            answer = await answered(side_by_side.get(f"{ENTRIES}?after={cursor}"))
            misses = bool(gone) and number(cursor) < number(gone[-1])
            assert bool(answer.get("gap")) == misses, (min_id, cursor)
