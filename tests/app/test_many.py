"""Many streams in one request: reading behind many cursors, publishing all or nothing."""

import asyncio
from typing import Any

import httpx
import pytest

from app.main import App
from tests.app.conftest import refusal, store, until_waiting

READ = "/v1/read"
PUBLISH = "/v1/publish"


@pytest.fixture
async def two(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Streams `a` with 1-0 to 3-0 and `b` with 1-0."""
    for name, count in (("a", 3), ("b", 1)):
        await store(http, name, count)
    return http


def ids(answer: httpx.Response) -> dict[str, list[str]]:
    assert answer.status_code == 200, answer.text
    return {name: [entry["id"] for entry in one["entries"]] for name, one in answer.json()["streams"].items()}


# ---- reading


async def test_each_stream_is_read_behind_its_cursor(two: httpx.AsyncClient) -> None:
    """All that were asked for are in the answer, in order, each with where to go on."""
    answer = await two.post(READ, json={"streams": {"b": "0", "a": "1-0", "none": "0", "c": "$"}})
    assert answer.json() == {
        "streams": {
            "b": {"entries": [{"id": "1-0", "fields": {"n": "1"}}], "next": "1-0", "more": False},
            "a": {
                "entries": [{"id": "2-0", "fields": {"n": "2"}}, {"id": "3-0", "fields": {"n": "3"}}],
                "next": "3-0",
                "more": False,
            },
            "none": {"entries": [], "next": "0-0", "more": False},
            "c": {"entries": [], "next": "0-0", "more": False},
        }
    }
    assert list(answer.json()["streams"]) == ["b", "a", "none", "c"]


async def test_count_is_for_each_stream(two: httpx.AsyncClient) -> None:
    """`more` says which of them have more."""
    answer = await two.post(READ, json={"streams": {"a": "0", "b": "0"}, "count": 1})
    assert ids(answer) == {"a": ["1-0"], "b": ["1-0"]}
    assert [one["more"] for one in answer.json()["streams"].values()] == [True, False]


async def test_count_total_is_for_all_streams(two: httpx.AsyncClient) -> None:
    """The first streams have it; `more` says what was left, for a group undelivered."""
    streams = {"a": "0", "b": "0"}
    answer = await two.post(READ, json={"streams": streams, "count_total": 3})
    assert ids(answer) == {"a": ["1-0", "2-0", "3-0"], "b": []}
    assert [one["more"] for one in answer.json()["streams"].values()] == [False, True]
    for stream in streams:
        await two.put(f"/v1/streams/{stream}/groups/g", json={"start": "0"})
    group = {"group": "g", "consumer": "c", "streams": {"a": ">", "b": ">"}}
    answer = await two.post(READ, json={**group, "count": 2, "count_total": 2})
    assert ids(answer) == {"a": ["1-0", "2-0"], "b": []}
    assert [one["more"] for one in answer.json()["streams"].values()] == [True, True]
    assert ids(await two.post(READ, json={**group, "count_total": 2})) == {"a": ["3-0"], "b": ["1-0"]}
    answer = await two.post(READ, json={"streams": streams, "count": 3, "count_total": 2})
    assert refusal(answer) == (422, "invalid")


async def test_streams_share_the_bytes_of_an_answer(app: App, two: httpx.AsyncClient) -> None:
    """The first ones get them; the others tell that there is more, and come when these are read on."""
    limits = app.gateway.limits.reads
    app.gateway.limits.reads = type(limits)(limits.count_default, limits.count_max, 60, limits.wait_ms_max)
    answer = await two.post(READ, json={"streams": {"a": "0", "b": "0"}})
    assert ids(answer) == {"a": ["1-0"], "b": []}
    result = answer.json()["streams"]
    assert [(one["next"], one["more"]) for one in result.values()] == [("1-0", True), ("0-0", True)]
    answer = await two.post(READ, json={"streams": {"a": "3-0", "b": "0"}})
    assert ids(answer) == {"a": [], "b": ["1-0"]}


async def test_a_group_read_leaves_undelivered_what_has_no_room(app: App, two: httpx.AsyncClient) -> None:
    """New entries and history alike: `more` says so, also where a stream gave nothing."""
    limits = app.gateway.limits.reads
    app.gateway.limits.reads = type(limits)(limits.count_default, limits.count_max, 60, limits.wait_ms_max)
    for name in ("a", "b"):
        await two.post(f"/v1/streams/{name}/groups", json={"name": "g", "start": "0"})
    who = {"group": "g", "consumer": "c"}
    answer = await two.post(READ, json={"streams": {"a": ">", "b": ">"}, **who})
    assert answer.json()["streams"] == {
        "a": {"entries": [{"id": "1-0", "fields": {"n": "1"}}], "last_delivered_id": "1-0", "more": True},
        "b": {"entries": [], "last_delivered_id": "0-0", "more": True},
    }
    await two.post(READ, json={"streams": {"b": ">"}, **who})
    answer = await two.post(READ, json={"streams": {"a": "0", "b": "0"}, **who})
    assert ids(answer) == {"a": ["1-0"], "b": []}
    assert answer.json()["streams"]["b"] == {"entries": [], "next": "0-0", "more": True}


async def test_a_wait_ends_with_the_first_stream_that_has_something(app: App, two: httpx.AsyncClient) -> None:
    """The others come with their cursors, resolved."""
    body = {"streams": {"a": "$", "b": "$"}, "wait": 5000}
    waiting = asyncio.ensure_future(two.post(READ, json=body))
    await until_waiting(app.gateway.engine)
    await two.post("/v1/streams/b/entries", json={"id": "7-0", "fields": {"x": "y"}})
    answer = await waiting
    assert ids(answer) == {"a": [], "b": ["7-0"]}
    assert [one["next"] for one in answer.json()["streams"].values()] == ["3-0", "7-0"]


@pytest.mark.parametrize(("wait", "prefer"), [({"wait": 20}, ""), ({"wait": 0}, "wait=5"), ({}, "wait=0")])
async def test_a_wait_that_runs_out_is_an_empty_200(
    two: httpx.AsyncClient, wait: dict[str, int], prefer: str
) -> None:
    """The member wins over the preference."""
    body = {"streams": {"a": "$", "b": "1-0"}, **wait}
    answer = await two.post(READ, json=body, headers={"prefer": prefer})
    assert ids(answer) == {"a": [], "b": []}
    assert [one["next"] for one in answer.json()["streams"].values()] == ["3-0", "1-0"]


async def test_a_gap_is_reported_where_it_is_or_fails(two: httpx.AsyncClient) -> None:
    """For the stream that has it; on_gap=fail refuses the whole."""
    await two.post("/v1/streams/a/trim", json={"maxlen": 1})
    answer = await two.post(READ, json={"streams": {"a": "1-0", "b": "0"}})
    assert answer.json()["streams"]["a"]["gap"] == {
        "requested": "1-0",
        "first_available": "3-0",
        "lost": None,
    }
    assert "gap" not in answer.json()["streams"]["b"]
    answer = await two.post(READ, json={"streams": {"a": "1-0", "b": "0"}, "on_gap": "fail"})
    assert refusal(answer) == (410, "gap")


async def test_with_a_group_it_is_a_group_read(two: httpx.AsyncClient) -> None:
    """`>` is what is new, an ID what the consumer holds; a stream with nothing says where the group is."""
    for name in ("a", "b"):
        await two.post(f"/v1/streams/{name}/groups", json={"name": "g", "start": "0"})
    who = {"group": "g", "consumer": "c"}
    answer = await two.post(READ, json={"streams": {"a": ">", "b": ">"}, "count": 2, **who})
    assert ids(answer) == {"a": ["1-0", "2-0"], "b": ["1-0"]}
    assert answer.headers["weir-durability"] == "os"
    answer = await two.post(READ, json={"streams": {"b": ">", "a": ">"}, **who})
    assert answer.json()["streams"] == {
        "a": {"entries": [{"id": "3-0", "fields": {"n": "3"}}], "last_delivered_id": "3-0", "more": False},
        "b": {"entries": [], "last_delivered_id": "1-0", "more": False},
    }
    answer = await two.post(READ, json={"streams": {"a": "1-0", "b": ">"}, **who})
    assert ids(answer) == {"a": ["2-0", "3-0"], "b": []}
    assert answer.json()["streams"]["a"]["next"] == "3-0"
    assert [one["delivery_count"] for one in answer.json()["streams"]["a"]["entries"]] == [2, 2]


async def test_a_group_has_to_be_in_each_stream(two: httpx.AsyncClient) -> None:
    """404 no_group, and nothing is delivered of the others."""
    await two.post("/v1/streams/a/groups", json={"name": "g", "start": "0"})
    body = {"streams": {"a": ">", "b": ">"}, "group": "g", "consumer": "c"}
    assert refusal(await two.post(READ, json=body)) == (404, "no_group")
    assert (await two.get("/v1/streams/a/groups/g")).json()["pending"] == 0


async def test_a_stream_stands_once(http: httpx.AsyncClient) -> None:
    """In a read and in a publication."""
    for path, value in ((READ, '"0"'), (PUBLISH, '[{"fields":{"a":"b"}}]')):
        content = f'{{"streams":{{"a":{value},"a":{value}}}}}'
        answer = await http.post(path, content=content, headers={"content-type": "application/json"})
        assert refusal(answer) == (422, "invalid")


# ---- publishing


async def test_many_streams_are_published_into(http: httpx.AsyncClient) -> None:
    """Each stream says what it got; what was read is what was sent."""
    body = {
        "streams": {
            "a": [{"id": "5-0", "fields": {"x": "1"}}, {"id": "5-*", "fields": {"x": "2"}}],
            "b": [{"fields": {"y": "é"}}],
        }
    }
    answer = await http.post(PUBLISH, json=body)
    assert answer.status_code == 201
    assert answer.headers["weir-durability"] == "os"
    assert answer.json()["duplicate"] is False
    result = answer.json()["streams"]
    assert result["a"] == {"first_id": "5-0", "last_id": "5-1", "count": 2}
    assert result["b"]["count"] == 1
    assert result["b"]["first_id"] == result["b"]["last_id"]
    read = (await http.post(READ, json={"streams": {"a": "0", "b": "0"}})).json()["streams"]
    assert [entry["fields"] for entry in read["a"]["entries"]] == [{"x": "1"}, {"x": "2"}]
    assert [entry["fields"] for entry in read["b"]["entries"]] == [{"y": "é"}]


async def test_what_is_not_plain_is_published_too(http: httpx.AsyncClient) -> None:
    """Numbers, booleans, pairs and bytes, as into one stream."""
    body = {
        "streams": {
            "a": [{"fields": {"n": 1.5, "b": True}}],
            "b": [{"fields": [["k", "1"], ["k", "2"]]}, {"fields": {"k": "/w=="}, "encoding": "base64"}],
        }
    }
    assert (await http.post(PUBLISH, json=body)).status_code == 201
    read = (await http.post(READ, json={"streams": {"a": "0", "b": "0"}})).json()["streams"]
    assert read["a"]["entries"][0]["fields"] == {"n": "1.5", "b": "true"}
    assert read["b"]["entries"][0]["pairs"] == [["k", "1"], ["k", "2"]]
    assert read["b"]["entries"][1]["encoding"] == "base64"


async def test_a_repeated_publication_answers_as_the_first_time(http: httpx.AsyncClient) -> None:
    """With the same key and body; another body is 422."""
    body = {"streams": {"a": [{"fields": {"x": "1"}}], "b": [{"fields": {"x": "1"}}]}}
    key = {"idempotency-key": "chunk-7"}
    first = await http.post(PUBLISH, json=body, headers=key)
    again = await http.post(PUBLISH, json=body, headers=key)
    assert (again.status_code, again.json()) == (201, first.json() | {"duplicate": True})
    assert (await http.get("/v1/streams/a")).json()["length"] == 1
    other = await http.post(PUBLISH, json={"streams": {"a": [{"fields": {"x": "2"}}]}}, headers=key)
    assert refusal(other) == (422, "idempotency_mismatch")


async def test_one_bad_entry_stores_nothing(two: httpx.AsyncClient) -> None:
    """Whether it is malformed, or its stream refuses it."""
    good = [{"fields": {"x": "1"}}]
    answer = await two.post(PUBLISH, json={"streams": {"c": good, "a": [*good, {"fields": {}}]}})
    assert refusal(answer) == (422, "invalid")
    assert answer.json()["index"] == 1
    assert answer.json()["errors"][0]["pointer"] == "/streams/a/1/fields"
    answer = await two.post(
        PUBLISH, json={"streams": {"c": good, "a": [{"id": "2-0", "fields": {"x": "1"}}]}}
    )
    assert refusal(answer) == (409, "id_not_increasing")
    assert [one["name"] for one in (await two.get("/v1/streams")).json()["streams"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({}, 422, "invalid", "/streams"),
        ([], 422, "invalid", "/streams"),
        ({"streams": {}}, 422, "invalid", "/streams"),
        ({"streams": {"a": []}}, 422, "invalid", "/streams/a"),
        ({"streams": {"a": {"fields": {"x": "1"}}}}, 422, "invalid", "/streams/a"),
        ({"streams": {"a": [1]}}, 422, "invalid", "/streams/a/0"),
        ({"streams": {"a": [{"fields": {"x": None}}]}}, 422, "invalid", "/streams/a/0/fields/x"),
        ({"streams": {"a": [{"id": "x", "fields": {"x": "1"}}]}}, 400, "malformed_id", "/streams/a/0/id"),
        ({"streams": {"a//b": [{"fields": {"x": "1"}}]}}, 400, "invalid_name", None),
        ({"streams": {"a": [{"fields": {"x": "1"}}] * 101}}, 413, "too_many_entries", None),
        (
            {"streams": {"a": [{"fields": {"x": "1"}}] * 51, "b": [{"fields": {"x": "1"}}] * 50}},
            413,
            "too_many_entries",
            None,
        ),
        ({"streams": {"a": [{"fields": {"x": "1" * 9000}}]}}, 413, "entry_too_large", None),
        ({"streams": {"a": [{"fields": {"x": "1"}}]}, "to": 1}, 422, "invalid", "/streams"),
    ],
)
async def test_wrong_publications_are_refused(
    http: httpx.AsyncClient, body: Any, status: int, code: str, pointer: str | None
) -> None:
    """With the place, and nothing is stored."""
    answer = await http.post(PUBLISH, json=body)
    assert refusal(answer) == (status, code)
    if pointer is not None:
        assert answer.json()["errors"][0]["pointer"] == pointer
    assert (await http.get("/v1/streams")).json()["streams"] == []


@pytest.mark.parametrize(
    ("header", "value", "status", "code"),
    [
        ("weir-producer", "p", 422, "invalid"),
        ("weir-chunk", "1", 422, "invalid"),
        ("if-match", '"1-0"', 422, "invalid"),
        ("content-type", "application/x-ndjson", 415, "unsupported_media_type"),
        ("idempotency-key", "", 422, "invalid"),
    ],
)
async def test_headers_are_never_ignored(
    http: httpx.AsyncClient, header: str, value: str, status: int, code: str
) -> None:
    """What cannot be is 422, a part of what goes together too."""
    body = {"streams": {"a": [{"fields": {"x": "1"}}]}}
    answer = await http.post(PUBLISH, json=body, headers={header: value})
    assert refusal(answer) == (status, code)
