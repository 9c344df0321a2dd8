"""Reading entries in further ways: the newest ones, some of their fields, and what HEAD answers."""

from typing import Any

import httpx
import pytest

ENTRIES = "/v1/streams/s/entries"


async def read(http: httpx.AsyncClient, query: str) -> Any:
    answer = await http.get(f"{ENTRIES}?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(("last", "expected"), [(1, "5"), (2, "45"), (5, "12345"), (100, "12345")])
async def test_the_newest_come_in_order(five: httpx.AsyncClient, last: int, expected: str) -> None:
    """`last=N` starts N entries back; `next` goes on at the end."""
    page = await read(five, f"last={last}")
    assert [entry["id"] for entry in page["entries"]] == [f"{n}-0" for n in expected]
    assert (page["next"], page["more"]) == ("5-0", False)


async def test_the_newest_of_nothing_still_tell_where_to_go_on(five: httpx.AsyncClient) -> None:
    """The last ID of an emptied stream, 0-0 of a missing one."""
    await five.post("/v1/streams/s/trim", json={"maxlen": 0})
    assert await read(five, "last=3") == {"entries": [], "next": "5-0", "more": False}
    answer = await five.get("/v1/streams/none/entries?last=3")
    assert answer.json() == {"entries": [], "next": "0-0", "more": False}


async def test_of_the_newest_as_many_come_as_fit(five: httpx.AsyncClient) -> None:
    """The oldest of them are left out."""
    page = await read(five, "last=5&max_bytes=1")
    assert [entry["id"] for entry in page["entries"]] == ["5-0"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("n", {"n": "1"}),
        ("m,n", {"n": "1", "m": "x"}),
        ("n,n,none", {"n": "1"}),
        ("none", {}),
    ],
)
@pytest.mark.parametrize("query", ["", "after=0&", "after=0&end=5&", "reverse=1&", "last=5&"])
async def test_fields_can_be_chosen(
    five: httpx.AsyncClient, query: str, fields: str, expected: dict[str, str]
) -> None:
    """Those that an entry has, in its order; however it is read."""
    page = await read(five, f"{query}fields={fields}")
    assert len(page["entries"]) == 5
    (one,) = [entry for entry in page["entries"] if entry["id"] == "1-0"]
    assert one == {"id": "1-0", "fields": expected}
    assert list(one["fields"]) == list(expected)


async def test_pairs_and_base64_survive_a_projection(http: httpx.AsyncClient) -> None:
    """`pairs` where a chosen name still occurs twice, `encoding` as it was."""
    rows = [
        {"id": "1-0", "fields": [["a", "1"], ["b", "2"], ["a", "3"]]},
        {"id": "2-0", "fields": {"a": "/w==", "b": "AA=="}, "encoding": "base64"},
    ]
    await http.post(ENTRIES, json={"entries": rows})
    assert (await read(http, "fields=a"))["entries"] == [
        {"id": "1-0", "fields": {"a": "3"}, "pairs": [["a", "1"], ["a", "3"]]},
        {"id": "2-0", "fields": {"a": "/w=="}, "encoding": "base64"},
    ]
    assert (await read(http, "fields=b"))["entries"][0] == {"id": "1-0", "fields": {"b": "2"}}


async def test_a_page_between_two_ids_tells_which_stream_it_is_of(five: httpx.AsyncClient) -> None:
    """What bulk readers need to notice a trim or another stream of the same name."""
    generation = (await five.get("/v1/streams/s")).json()["generation"]
    answer = await five.get(ENTRIES + "?after=1-0&end=4-0&max_bytes=1")
    assert answer.headers["weir-generation"] == generation
    assert answer.headers["weir-first-available"] == "1-0"
    assert (answer.headers["weir-next-id"], answer.headers["weir-more"]) == ("2-0", "true")
    missing = await five.get("/v1/streams/none/entries?after=1-0&end=4-0")
    assert missing.json() == {"entries": [], "next": "1-0", "more": False}
    assert "weir-generation" not in missing.headers


async def test_a_gap_names_what_there_is_in_the_head_too(five: httpx.AsyncClient) -> None:
    """Weir-First-Available with each gap."""
    await five.post("/v1/streams/s/trim", json={"maxlen": 2})
    for query in ("after=1-0", "after=1-0&end=9"):
        assert (await five.get(f"{ENTRIES}?{query}")).headers["weir-first-available"] == "4-0"
    assert "weir-first-available" not in (await five.get(ENTRIES + "?after=4-0")).headers


@pytest.mark.parametrize(
    ("held", "status"),
    [
        ("{own}", 304),
        ("W/{own}", 304),
        ("{other}, {own}", 304),
        ("*", 304),
        ("{other}", 200),
        ('"3-0"', 200),
        ("3-0", 200),
    ],
)
async def test_an_entry_that_is_held_is_not_sent_again(
    five: httpx.AsyncClient, held: str, status: int
) -> None:
    """304 with the tag and without a body (RFC 9110, 13.1.2); a neighbour's tag is another one."""
    own, other = [(await five.get(f"{ENTRIES}/{number}-0")).headers["etag"] for number in (3, 2)]
    held = held.format(own=own, other=other)
    answer = await five.get(f"{ENTRIES}/3-0", headers={"if-none-match": held})
    assert (answer.status_code, answer.headers["etag"]) == (status, own)
    assert answer.headers["cache-control"] == "private, no-cache"
    assert bool(answer.content) == (status == 200)
    assert ("content-length" in answer.headers) == (status == 200)


async def test_a_missing_entry_is_never_held(five: httpx.AsyncClient) -> None:
    """404 before any condition; an ID without a sequence has the tag of the whole ID."""
    assert (await five.get(f"{ENTRIES}/6-0", headers={"if-none-match": "*"})).status_code == 404
    tag = (await five.get(f"{ENTRIES}/3-0")).headers["etag"]
    await five.delete(f"{ENTRIES}/3-0")
    assert (await five.get(f"{ENTRIES}/3-0", headers={"if-none-match": tag})).status_code == 404
    tags = [(await five.get(f"{ENTRIES}/{text}")).headers["etag"] for text in ("4", "4-0")]
    assert tags[0] == tags[1]
