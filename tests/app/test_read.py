"""Reading: ranges, cursors, waits, gaps; and each way of asking wrongly."""

import asyncio

import httpx
import pytest

from app.main import App
from tests.app.conftest import until_waiting

ENTRIES = "/v1/streams/s/entries"


async def ids(http: httpx.AsyncClient, query: str) -> list[str]:
    answer = await http.get(f"{ENTRIES}?{query}")
    assert answer.status_code == 200, answer.text
    return [entry["id"] for entry in answer.json()["entries"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "12345"),
        ("start=2", "2345"),
        ("start=(2-0", "345"),
        ("end=4", "1234"),
        ("end=(4-0", "123"),
        ("start=-&end=%2B", "12345"),
        ("start=-&end=+", "12345"),
        ("start=2&end=3-0", "23"),
        ("start=4&end=2", ""),
        ("reverse=true", "54321"),
        ("reverse=1&start=2&end=4", "432"),
        ("reverse=true&end=(3-0&count=1", "2"),
        ("count=2", "12"),
        ("after=0", "12345"),
        ("after=3-0", "45"),
        ("after=3-0&count=1", "4"),
        ("after=$", ""),
        ("after=1-0&end=3-0", "23"),
        ("after=5-0&end=9", ""),
        ("since=1970-01-01T00:00:00.002Z", "2345"),
        ("since=1970-01-01T00:00:00.0011Z", "2345"),
        ("until=1970-01-01T00:00:00.0029Z", "12"),
        ("since=1970-01-01T01:00:00.004+01:00", "45"),
        ("since=1970-01-01T01:00:00.004%2B01:00", "45"),
        ("since=1969-12-31T23:00:00.004-01:00&end=4", "4"),
        ("since=1970-01-01", "12345"),
        ("since=1970-01-02", ""),
        ("until=1970-01-01", "12345"),
        ("until=1969-12-31", ""),
        ("since=1970-01-01&until=1970-01-01T00:00:00.002Z", "12"),
    ],
)
async def test_a_range_is_what_was_asked_for(five: httpx.AsyncClient, query: str, expected: str) -> None:
    """Bounds are inclusive unless `(`, times are bounds, `after` is exclusive."""
    assert await ids(five, query) == [f"{n}-0" for n in expected]


@pytest.mark.parametrize(
    ("query", "following", "more"),
    [
        ("count=2", "2-0", True),
        ("", "5-0", False),
        ("count=5", "5-0", False),
        ("start=7", "6-18446744073709551615", False),
        ("after=7", "5-0", False),
        ("after=$", "5-0", False),
        ("reverse=true&count=2", "4-0", True),
        ("reverse=true&end=0-5", None, False),
        ("after=1-0&end=3-0&count=1", "2-0", True),
        ("after=6-0&end=7-0", "5-0", False),
        ("after=5-0&end=7-0", "5-0", False),
    ],
)
async def test_every_read_says_where_to_go_on(
    five: httpx.AsyncClient, query: str, following: str | None, *, more: bool
) -> None:
    """`next` is the last entry's ID or the bound asked for, for a cursor beyond the end the stream's last ID;
    `more` whether a limit ended it.
    """
    answer = await five.get(f"{ENTRIES}?{query}")
    assert (answer.json()["next"], answer.json()["more"]) == (following, more)
    assert answer.headers.get("weir-next-id") == following
    assert answer.headers["weir-more"] == str(more).lower()


async def test_a_missing_stream_is_empty(http: httpx.AsyncClient) -> None:
    """200 with nothing, not 404, for both ways of reading."""
    assert (await http.get(ENTRIES)).json() == {"entries": [], "next": "0-0", "more": False}
    assert (await http.get(ENTRIES + "?after=$")).json() == {"entries": [], "next": "0-0", "more": False}


async def test_an_answer_stops_at_its_bytes(five: httpx.AsyncClient) -> None:
    """At least one entry, then as many as fit."""
    answer = await five.get(ENTRIES + "?max_bytes=1")
    assert (len(answer.json()["entries"]), answer.json()["more"]) == (1, True)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("start=(-", 400, "malformed_id"),
        ("start=(18446744073709551615-18446744073709551615", 400, "malformed_id"),
        ("end=(0-0", 400, "malformed_id"),
        ("after=$&end=%2B", 422, "invalid"),
        ("wait=5", 422, "invalid"),
        ("after=0&end=5&wait=5", 422, "invalid"),
        ("after=0&start=1", 422, "invalid"),
        ("after=0&since=1970-01-01T00:00:00Z", 422, "invalid"),
        ("after=0&reverse=true", 422, "invalid"),
        ("start=1&since=1970-01-01T00:00:00Z", 422, "invalid"),
        ("since=1970-02-30T00:00:00Z", 422, "invalid"),
        ("since=1970-02-30", 422, "invalid"),
        ("until=1970-2-3", 422, "invalid"),
        ("since=1970-01-01Z", 422, "invalid"),
        ("since=1970-01-01T00:00:00", 422, "invalid"),
        ("last=3&after=1-0", 422, "invalid"),
        ("last=3&count=2", 422, "invalid"),
    ],
)
async def test_wrong_questions_are_refused(
    five: httpx.AsyncClient, query: str, status: int, code: str
) -> None:
    """400 malformed, 422 impossible; the place is named."""
    answer = await five.get(f"{ENTRIES}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    if code in ("malformed_id", "invalid"):
        assert answer.json()["errors"][0]["parameter"] in query


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("*/*", 200),
        ("application/json", 200),
        ("text/html,application/xhtml+xml,*/*;q=0.8", 200),
        ("application/x-ndjson", 200),
        ("application/vnd.weir.columns+json, */*;q=0.1", 200),
        ("application/json, text/event-stream;q=0.5", 200),
        ("image/png", 406),
        ("application/json;q=0", 406),
    ],
)
async def test_what_cannot_be_given_is_never_given_as_something_else(
    five: httpx.AsyncClient, accept: str, status: int
) -> None:
    """The impossible is 406."""
    assert (await five.get(ENTRIES, headers={"accept": accept})).status_code == status


async def test_one_entry_can_be_read(five: httpx.AsyncClient) -> None:
    """By its ID; 404 no_entry for one that is not there, 400 for what is no ID."""
    assert (await five.get(ENTRIES + "/3-0")).json() == {"id": "3-0", "fields": {"n": "3", "m": "x"}}
    assert (await five.get(ENTRIES + "/3-1")).json()["code"] == "no_entry"
    assert (await five.get("/v1/streams/t/entries/3-0")).status_code == 404
    assert (await five.get(ENTRIES + "/x")).json()["code"] == "malformed_id"


async def test_a_gap_is_reported_or_fails(five: httpx.AsyncClient) -> None:
    """A cursor before what was trimmed away gets `gap`, 410 where it asked for that; `after=0` never."""
    await five.post("/v1/commands", json=["XTRIM", "s", "MAXLEN", "2"])
    for query in ("after=1-0", "after=1-0&end=9"):
        answer = await five.get(f"{ENTRIES}?{query}")
        assert answer.json()["gap"]["requested"] == "1-0"
        assert answer.json()["gap"]["first_available"] == "4-0"
        assert [entry["id"] for entry in answer.json()["entries"]] == ["4-0", "5-0"]
        failed = await five.get(f"{ENTRIES}?{query}&on_gap=fail")
        assert (failed.status_code, failed.json()["code"], failed.json()["first_available"]) == (
            410,
            "gap",
            "4-0",
        )
    assert "gap" not in (await five.get(ENTRIES + "?after=0")).json()
    assert "gap" not in (await five.get(ENTRIES + "?after=3-0")).json()


async def test_a_waiting_read_gets_what_comes(app: App, http: httpx.AsyncClient) -> None:
    """A long-poll after `$` answers when an entry arrives; `next` goes on behind it."""
    waiting = asyncio.ensure_future(http.get(ENTRIES + "?after=$&wait=5000"))
    await until_waiting(app.gateway.engine)
    await http.post(ENTRIES, json={"id": "9-0", "fields": {"a": "1"}})
    assert (await waiting).json() == {
        "entries": [{"id": "9-0", "fields": {"a": "1"}}],
        "next": "9-0",
        "more": False,
    }


@pytest.mark.parametrize(("query", "prefer"), [("&wait=20", "wait=5"), ("", "wait=0")])
async def test_a_wait_that_runs_out_is_an_empty_200(five: httpx.AsyncClient, query: str, prefer: str) -> None:
    """The cursor comes back resolved, so that nothing between two polls is lost."""
    answer = await five.get(f"{ENTRIES}?after=${query}", headers={"prefer": prefer})
    assert answer.json() == {"entries": [], "next": "5-0", "more": False}


async def test_the_parameter_wins_over_the_preference(five: httpx.AsyncClient) -> None:
    """wait=0 does not wait, with any Prefer; a preference beyond the limit is 422."""
    answer = await five.get(ENTRIES + "?after=$&wait=0", headers={"prefer": "wait=5"})
    assert answer.status_code == 200
    answer = await five.get(ENTRIES + "?after=$", headers={"prefer": "wait=6"})
    assert answer.status_code == 422


async def test_head_is_get_without_a_body(five: httpx.AsyncClient) -> None:
    """The same status and headers."""
    head, whole = await five.head(ENTRIES), await five.get(ENTRIES)
    assert head.content == b""
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert head.status_code == 200
