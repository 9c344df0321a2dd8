"""The end of a stream over REST, the command API and in tokens: who may close, and what readers learn."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import httpx
import pytest

from app.auth.grants import Action, Grant, Resource
from tests.app.conftest import call, refusal, store

STREAM: Final = "/v1/streams/s"
CLOSE: Final = STREAM + "/close"
ENTRIES: Final = STREAM + "/entries"


async def begin(read: Coroutine[Any, Any, httpx.Response]) -> asyncio.Task[httpx.Response]:
    """Start a request that waits, and let it come to that."""
    task = asyncio.create_task(read)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done(), "it waits"
    return task


# ---- closing


async def test_closing_says_since_when_and_may_be_repeated(http: httpx.AsyncClient) -> None:
    """The stream shows it too, and has another entity tag."""
    await store(http, "s", 2)
    before = await http.get(STREAM)
    assert before.json()["closed"] is False
    answer = await http.post(CLOSE, json={"reason": "done"})
    assert (answer.status_code, answer.headers["weir-durability"]) == (200, "os")
    ended = answer.json()
    assert (ended["closed"], ended["last_id"], ended["duplicate"]) == (True, "2-0", False)
    again = (await http.post(CLOSE)).json()
    assert again == {**ended, "duplicate": True}
    shown = await http.get(STREAM)
    assert (shown.json()["closed"], shown.json()["close_reason"]) == (True, "done")
    assert shown.json()["closed_at"] == ended["closed_at"]
    assert shown.headers["etag"] != before.headers["etag"]
    assert (await http.get("/v1/streams")).json()["streams"][0]["closed"] is True


async def test_the_body_may_be_left_out(http: httpx.AsyncClient) -> None:
    """Or be null, as typed clients send what is left out; the document says so."""
    nulls = b'{"reason": null, "entry": null, "entries": null}'
    for stream, body in (("s", b""), ("t", b"null"), ("u", b" null\n"), ("v", b"{}"), ("w", nulls)):
        await store(http, stream, 1)
        answer = await http.post(
            f"/v1/streams/{stream}/close", content=body, headers={"content-type": "application/json"}
        )
        assert answer.json()["closed"] is True
    operation = (await http.get("/openapi.json")).json()["paths"]["/v1/streams/{stream}/close"]["post"]
    assert operation["requestBody"]["required"] is False


@pytest.mark.parametrize(
    "given",
    [
        {"entry": {"fields": {"n": "3"}}},
        {"entry": {"id": "3-0", "fields": {"n": "3"}}},
        {"entries": [{"fields": {"n": "3"}}, {"fields": {"n": "4"}}], "reason": "done"},
    ],
)
async def test_last_entries_are_stored_with_the_end(http: httpx.AsyncClient, given: dict[str, Any]) -> None:
    """Also where they make the stream; their IDs are in the answer, unless it is to be short."""
    answer = (await http.post(CLOSE, json=given)).json()
    entries = (await http.get(ENTRIES)).json()["entries"]
    assert answer["ids"] == [one["id"] for one in entries]
    assert answer["last_id"] == entries[-1]["id"]
    assert entries[0]["fields"] == {"n": "3"}
    refused = await http.post(CLOSE, json=given)
    assert refusal(refused) == (409, "stream_closed")
    problem = refused.json()
    assert (problem["last_id"], problem["closed_at"]) == (answer["last_id"], answer["closed_at"])
    assert problem["retryable"] is False
    short = await http.post("/v1/streams/t/close", json=given, headers={"prefer": "return=minimal"})
    assert "ids" not in short.json()


@pytest.mark.parametrize(
    ("body", "headers", "pointer"),
    [
        ({"entry": {"fields": {}}}, {}, "/entry/fields"),
        ({"entries": [{"fields": {"a": []}}]}, {}, "/entries/0/fields/a"),
        ({"entry": {"entries": [{"fields": {"a": "1"}}]}}, {}, "/entry"),
        ({"entry": {"fields": {"a": "1"}}, "entries": [{"fields": {"a": "1"}}]}, {}, "/entries"),
    ],
)
async def test_what_is_wrong_with_an_end_is_said_where(
    http: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str], pointer: str
) -> None:
    """Nothing is closed, and nothing stored."""
    await store(http, "s", 1)
    answer = await http.post(CLOSE, json=body, headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text
    assert (await http.get(STREAM)).json()["closed"] is False


async def test_a_reason_may_have_256_bytes(http: httpx.AsyncClient) -> None:
    """And not one more."""
    await store(http, "s", 1)
    assert (await http.post(CLOSE, json={"reason": "é" * 129})).status_code == 422
    assert (await http.post(CLOSE, json={"reason": "é" * 128})).status_code == 200


async def test_an_end_has_the_conditions_of_a_publication(http: httpx.AsyncClient) -> None:
    """If-Match and Idempotency-Key, with and without entries."""
    assert refusal(await http.post(CLOSE)) == (404, "no_stream")
    entry = {"entry": {"fields": {"n": "3"}}}
    missing = await http.post(CLOSE, json=entry, headers={"if-match": "*"})
    assert missing.status_code in {404, 412}
    await store(http, "s", 2)
    for given in (entry, {}):
        answer = await http.post(CLOSE, json=given, headers={"if-match": '"1-0"'})
        assert refusal(answer) == (412, "last_id_mismatch")
    headers = {"if-match": '"2-0"', "idempotency-key": "k"}
    first = (await http.post(CLOSE, json=entry, headers=headers)).json()
    again = (await http.post(CLOSE, json=entry, headers=headers)).json()
    assert again == {**first, "duplicate": True}
    other = await http.post(CLOSE, json={"entry": {"fields": {"n": "4"}}}, headers=headers)
    assert refusal(other) == (422, "idempotency_mismatch")
    assert len((await http.get(ENTRIES)).json()["entries"]) == 3


@pytest.mark.parametrize("path", ["", "/ndjson", "/raw"])
async def test_publishing_may_close(http: httpx.AsyncClient, path: str) -> None:
    """By each form of a body; then nothing more is taken."""
    headers = {"content-type": "application/json"}
    body = b'{"fields":{"n":"1"}}'
    answer = await http.post(ENTRIES + path + "?close=true", content=body, headers=headers)
    assert (answer.status_code, answer.json()["closed"]) == (201, True)
    assert refusal(await http.post(ENTRIES + path, content=body, headers=headers)) == (409, "stream_closed")
    refused = await http.post(ENTRIES + path + "?close=true", content=body, headers=headers)
    assert refusal(refused) == (409, "stream_closed")
    kept = "/v1/streams/t/entries" + path
    for query in ("?close=false", "?close=true&nomkstream=true"):
        answer = await http.post(kept + query, content=body, headers=headers)
        assert "closed" not in answer.json()
        await http.delete("/v1/streams/t")
    assert refusal(await http.get("/v1/streams/t")) == (404, "no_stream")


async def test_all_ways_to_write_refuse(http: httpx.AsyncClient) -> None:
    """Publishing into many streams, and the last ID."""
    await store(http, "s", 1)
    await http.post(CLOSE)
    entry = [{"fields": {"n": "3"}}]
    many = await http.post("/v1/publish", json={"streams": {"{s}t": entry, "s": entry}})
    assert refusal(many) == (409, "stream_closed")
    assert refusal(await http.get("/v1/streams/{s}t")) == (404, "no_stream")
    assert refusal(await http.post(STREAM + "/last-id", json={"last_id": "9-0"})) == (409, "stream_closed")
    assert (await http.delete(STREAM)).status_code == 204
    await store(http, "s", 1)


# ---- reading


async def test_a_page_says_closed_where_nothing_is_left(http: httpx.AsyncClient) -> None:
    """In the body and as a header; one entry before it does not. Backwards there is no such end."""
    await store(http, "s", 3)
    assert "closed" not in (await http.get(ENTRIES)).json()
    await http.post(CLOSE)
    for query, is_closed in (
        ("", True), ("?count=3", True), ("?count=2", False), ("?after=2-0", True), ("?after=3-0", True),
        ("?after=0&count=2", False), ("?after=0&end=2-0", False), ("?after=1-0&end=9-0", True),
        ("?start=2-0&end=3-0", True), ("?start=4-0", True), ("?end=2-0", False), ("?last=2", True),
        ("?reverse=true", False), ("?after=$", True),
    ):  # fmt: skip
        answer = await http.get(ENTRIES + query)
        assert (answer.json().get("closed", False), answer.headers.get("weir-closed")) == (
            is_closed,
            "true" if is_closed else None,
        ), query
    await http.delete(ENTRIES + "/3-0")
    assert (await http.get(ENTRIES + "?after=2-0")).json()["closed"] is True


async def test_a_long_poll_ends_with_the_stream(http: httpx.AsyncClient) -> None:
    """With an empty list, at once; and at the end it waits for nothing."""
    await store(http, "s", 1)
    waiting = await begin(http.get(ENTRIES + "?after=1-0&wait=5000"))
    await http.post(CLOSE)
    answer = await waiting
    assert answer.json() == {"entries": [], "next": "1-0", "more": False, "closed": True}
    assert answer.headers["weir-closed"] == "true"
    assert (await http.get(ENTRIES + "?after=1-0&wait=5000")).json()["closed"] is True
    assert (await http.get(ENTRIES + "?after=1-0", headers={"prefer": "wait=5"})).json()["closed"] is True


async def test_the_last_entries_and_the_end_come_together(http: httpx.AsyncClient) -> None:
    """To a reader that waits."""
    await store(http, "s", 1)
    waiting = await begin(http.get(ENTRIES + "?after=1-0&wait=5000"))
    await http.post(CLOSE, json={"entry": {"id": "2-0", "fields": {"n": "2"}}})
    found = (await waiting).json()
    assert ([one["id"] for one in found["entries"]], found["next"], found["closed"]) == (["2-0"], "2-0", True)


async def test_a_read_of_several_streams_says_which_are_closed(http: httpx.AsyncClient) -> None:
    """And waits until all are."""
    await store(http, "s", 1)
    await store(http, "t", 1)
    await http.post(CLOSE)
    asked = {"streams": {"s": "1-0", "t": "0"}, "wait": 5_000}
    found = (await http.post("/v1/read", json=asked)).json()["streams"]
    assert (found["s"]["closed"], "closed" in found["t"]) == (True, False)
    waiting = await begin(http.post("/v1/read", json={**asked, "streams": {"s": "1-0", "t": "1-0"}}))
    await http.post("/v1/streams/t/close")
    found = (await waiting).json()["streams"]
    assert [one["closed"] for one in found.values()] == [True, True]


async def test_what_was_trimmed_before_the_end_is_a_gap(http: httpx.AsyncClient) -> None:
    """No entry comes that would show it."""
    await store(http, "s", 3)
    await http.post(CLOSE)
    await http.post(STREAM + "/trim", json={"maxlen": 0})
    page = (await http.get(ENTRIES + "?after=1-0&wait=5000")).json()
    assert (page["gap"]["requested"], page["next"], page["closed"]) == ("1-0", "3-0", True)
    assert refusal(await http.get(ENTRIES + "?after=1-0&on_gap=fail")) == (410, "gap")
    assert "gap" not in (await http.get(ENTRIES + "?after=3-0&wait=5000")).json()


# ---- groups


async def test_a_group_is_told_closed_and_drained(http: httpx.AsyncClient) -> None:
    """`closed` where nothing is left to read, `drained` where nothing is pending."""
    await store(http, "s", 2)
    group = STREAM + "/groups/g"
    await http.put(group, json={"start": "0"})
    await http.post(CLOSE)
    reading = group + "/consumers/c/read"
    first = (await http.post(reading, json={"count": 1})).json()
    assert ("closed" in first, "drained" in first) == (False, False)
    second = (await http.post(reading)).json()
    assert (second["closed"], "drained" in second) == (True, False)
    empty = (await http.post(reading, json={"wait": 5_000})).json()
    assert (empty["entries"], empty["closed"], "drained" in empty) == ([], True, False)
    claiming = await begin(http.post(reading, json={"wait": 5_000, "claim_min_idle_ms": 60_000}))
    await http.post(group + "/ack", json={"ids": ["1-0", "2-0"]})
    drained = (await claiming).json()
    assert (drained["entries"], drained["closed"], drained["drained"]) == ([], True, True)
    many = {"streams": {"s": ">"}, "group": "g", "consumer": "c", "wait": 5_000}
    (found,) = (await http.post("/v1/read", json=many)).json()["streams"].values()
    assert (found["closed"], found["drained"]) == (True, True)


async def test_a_group_read_that_waits_ends_with_the_stream(http: httpx.AsyncClient) -> None:
    """As a long-poll does."""
    await store(http, "s", 1)
    await http.put(STREAM + "/groups/g", json={"start": "$"})
    waiting = await begin(http.post(STREAM + "/groups/g/consumers/c/read", json={"wait": 5_000}))
    await http.post(CLOSE)
    answer = (await waiting).json()
    assert (answer["entries"], answer["closed"], answer["drained"]) == ([], True, True)


# ---- the command API


async def test_weir_close_closes(http: httpx.AsyncClient) -> None:
    """With a reason and a last entry; XADD is refused as Redis's own errors are."""
    await store(http, "s", 1)
    reply = await call(http, "WEIR.CLOSE", "s", "REASON", "done", "XADD", "2-0", "n", "2")
    closed_at_ms = reply[reply.index("closed-at-ms") + 1]
    assert reply == [
        "id", "2-0", "last-id", "2-0", "closed-at-ms", closed_at_ms, "close-reason", "done", "duplicate", 0,
    ]  # fmt: skip
    assert await call(http, "XADD", "s", "*", "n", "3") == "CLOSED stream is closed"
    assert (await call(http, "WEIR.CLOSE", "s"))[-2:] == ["duplicate", 1]
    info = await call(http, "WEIR.INFO", "s")
    assert info[-4:] == ["closed-at-ms", closed_at_ms, "close-reason", "done"]
    assert await call(http, "WEIR.CLOSE", "missing") == "ERR no such key"
    assert await call(http, "WEIR.CLOSE", "s", "SOON") == "ERR syntax error"
    assert await call(http, "WEIR.CLOSE", "s", "XADD") == "ERR wrong number of arguments for 'xadd' command"


# ---- access


def test_who_may_manage_may_close_and_who_may_write_may_not() -> None:
    """Also of tokens that were made before there was such an action; and passing on is no more than that."""
    stream = Resource("s")
    assert Grant.parse("close:s").allows(Action.CLOSE, stream)
    assert Grant.parse("manage:s").allows(Action.CLOSE, stream)
    assert not Grant.parse("read,write,consume,admin,issue:*").allows(Action.CLOSE, stream)
    assert not Grant.parse("close:s").allows(Action.MANAGE, stream)
    assert Grant.parse("manage:*").covers(Grant.parse("close,manage:s"))
    assert not Grant.parse("write:*").covers(Grant.parse("close:s"))
    # Who manages some groups has no say about the stream.
    some = Grant(actions=frozenset({Action.MANAGE}), streams="s", groups="g")
    assert not some.allows(Action.CLOSE, stream)
    assert not some.covers(Grant(actions=frozenset({Action.CLOSE}), streams="s", groups="g"))


async def test_a_plan_says_which_streams_are_closed(http: httpx.AsyncClient) -> None:
    """What is planned up to `last` is the last of it, for good."""
    await store(http, "s", 2)
    await store(http, "t", 1)
    await http.post(CLOSE)
    found = (await http.post("/v1/plan", json={"streams": {"s": "1-0", "t": "0"}})).json()["streams"]
    assert (found["s"]["end"], found["s"]["last"], found["s"]["closed"]) == ("2-0", "2-0", True)
    assert "closed" not in found["t"]
