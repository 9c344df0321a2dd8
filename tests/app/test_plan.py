"""POST /v1/plan: many streams counted, a budget shared, a pattern, waits; strict about what it is asked."""

import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from app.api import plan as planning
from app.glob import Glob
from app.main import App
from engine import Call, Done, Replies
from engine.commands.weir_commands import Plan
from engine.replies import Planned
from tests.app.conftest import store, until_waiting
from tests.app.test_waits import WaitingClient
from tests.turns import longest_turn_s

PLAN = "/v1/plan"


@pytest.fixture
async def two(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Streams `a:1` with 1-0 to 5-0 and `a:2` with 1-0."""
    for name, count in (("a:1", 5), ("a:2", 1)):
        await store(http, name, count)
    return http


async def plan(http: httpx.AsyncClient, body: Any) -> Any:
    answer = await http.post(PLAN, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_planned_range_is_the_page_that_is_read(two: httpx.AsyncClient) -> None:
    """The same entries, the same number of bytes."""
    one = (await plan(two, {"streams": {"a:1": "1-0"}, "max_bytes": 70}))["streams"]["a:1"]
    page = await two.get("/v1/streams/a:1/entries", params={"after": one["after"], "end": one["end"]})
    assert [entry["id"] for entry in page.json()["entries"]] == ["2-0", "3-0"]
    assert (one["count"], one["bytes"]) == (2, 62)


async def test_an_empty_stream_has_no_first_entry(two: httpx.AsyncClient) -> None:
    """Its last ID stays."""
    await two.post("/v1/streams/a:2/trim", json={"maxlen": 0})
    one = (await plan(two, {"streams": {"a:2": "0"}}))["streams"]["a:2"]
    assert (one["first"], one["last"], one["end"], one["removed_upto"]) == (None, "1-0", "0-0", "1-0")


async def test_a_pattern_adds_streams_from_the_beginning(two: httpx.AsyncClient) -> None:
    """Those that are not named; ends may bound them, and may name streams that are not there."""
    await two.put("/v1/streams/b")
    result = await plan(two, {"streams": {"a:1": "3-0"}, "pattern": "a:?", "end": {"a:2": "0-5", "x": "1"}})
    assert {name: (one["after"], one["count"]) for name, one in result["streams"].items()} == {
        "a:1": ("3-0", 2),
        "a:2": ("0-0", 0),
    }
    assert set((await plan(two, {"pattern": "*"}))["streams"]) == {"a:1", "a:2", "b"}
    assert await plan(two, {"pattern": "nobody*"}) == {"streams": {}, "missing": []}


async def test_a_pattern_of_too_many_streams_is_refused(app: App, two: httpx.AsyncClient) -> None:
    """With what to do about it."""
    app.gateway.settings = app.gateway.settings.model_copy(update={"request_streams_max": 1})
    answer = await two.post(PLAN, json={"pattern": "a:*"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/pattern")
    assert (await plan(two, {"pattern": "a:1*"}))["streams"]["a:1"]["count"] == 5


async def test_a_plan_waits_for_what_comes(app: App, two: httpx.AsyncClient) -> None:
    """And answers then; nothing is blocked any more."""
    body = {"streams": {"a:1": "5-0", "c": "0"}, "wait": 5_000}
    waiting = asyncio.ensure_future(plan(two, body))
    await until_waiting(app.gateway.engine)
    await two.post("/v1/streams/c/entries", json={"fields": {"n": "1"}})
    result = await waiting
    assert {name: one["count"] for name, one in result["streams"].items()} == {"a:1": 0, "c": 1}
    assert app.gateway.engine.figures().waiting == 0


async def test_a_wait_in_vain_tells_where_the_streams_stand(two: httpx.AsyncClient) -> None:
    """As without waiting."""
    result = await plan(two, {"streams": {"a:1": "5-0"}, "wait": 1})
    assert (result["streams"]["a:1"]["count"], result["streams"]["a:1"]["last"]) == (0, "5-0")


async def test_a_plan_that_waits_is_one_of_the_waiters(app: App, two: httpx.AsyncClient) -> None:
    """Beyond the limit the next one is 429; a client that leaves makes room; a drain ends them."""
    entry = {"id": "6-0", "fields": {"n": "6"}}
    await two.post("/v1/streams/a:1/entries", json=entry, headers={"prefer": "durability=fsync"})
    body = b'{"streams":{"a:1":"6-0"},"wait":5000,"durable_only":true}'
    clients = [WaitingClient(app, "POST", PLAN, body=body) for _ in range(3)]
    await clients[0].waits(app, 3)
    answer = await two.post(PLAN, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_waiters")
    await clients[0].leave()
    assert app.gateway.engine.figures().waiting == 2
    app.life.drain()
    for client in clients[1:]:
        await client.request
        assert client.sent[0]["status"] == 503


async def test_names_are_names(two: httpx.AsyncClient) -> None:
    """And stand once."""
    answer = await two.post(PLAN, json={"streams": {"a//b": "0"}})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_name")
    content = b'{"streams":{"a":"0","a":"1"}}'
    answer = await two.post(PLAN, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize(
    "asked", [{}, {"max_entries": 9}, {"max_bytes": 300}, {"max_entries": 30, "parts": 2}]
)
async def test_a_plan_of_many_streams_is_one_plan(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, asked: dict[str, int]
) -> None:
    """However few of them are planned at a time: one budget, all streams, those that are missing too."""
    counts = {f"s{number}": number for number in range(1, 8)}
    for name, count in counts.items():
        await store(http, name, count)
    body = {"streams": {"none": "0", **dict.fromkeys(counts, "0")}, **asked}
    whole = await plan(http, body)
    monkeypatch.setattr(planning, "STREAMS_PER_TURN", 3)
    pieces = await plan(http, body)
    assert list(pieces["streams"]) == list(whole["streams"])
    assert pieces["missing"] == whole["missing"] == ["none"]
    for member in ("count", "bytes"):
        result = [{name: one[member] for name, one in each["streams"].items()} for each in (whole, pieces)]
        assert sum(result[0].values()) == sum(result[1].values()) or "max_bytes" in asked
        assert all(
            abs(result[0][name] - result[1][name]) <= 1 * len(counts) or member == "bytes" for name in counts
        )
    if "max_bytes" in asked:
        assert sum(one["bytes"] for one in pieces["streams"].values()) <= asked["max_bytes"]


async def test_a_plan_of_many_streams_waits_as_one(
    app: App, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waiter, woken by any of them."""
    monkeypatch.setattr(planning, "STREAMS_PER_TURN", 2)
    body = {"streams": {f"s{number}": "0" for number in range(5)}, "wait": 5_000, "max_entries": 1}
    waiting = asyncio.ensure_future(plan(http, body))
    await until_waiting(app.gateway.engine)
    assert app.gateway.engine.figures().waiting == 1
    await http.post("/v1/streams/s4/entries", json={"fields": {"n": "1"}})
    assert (await waiting)["streams"]["s4"]["count"] == 1


@pytest.mark.no_cover
async def test_a_pattern_that_is_hard_to_match_holds_nobody_up(http: httpx.AsyncClient) -> None:
    """Names are held against it while the loop goes on."""
    rows = [{"fields": {"n": "1"}}]
    names = ["a" * 500 + f"{number:02}" for number in range(40)]
    await http.post("/v1/publish", json={"streams": dict.fromkeys(names, rows)})
    hard = "*" + "a" * 255 + "b"
    began = time.thread_time()
    assert not any(Glob(hard.encode()).matches(name.encode()) for name in names)
    whole_s = time.thread_time() - began
    asked = asyncio.ensure_future(plan(http, {"pattern": hard}))
    longest = await longest_turn_s(asked)
    assert await asked == {"streams": {}, "missing": []}
    assert longest < whole_s / 2


@pytest.mark.parametrize("pattern", ["new*", "*"])
async def test_a_waiting_pattern_hears_of_new_streams(app: App, two: httpx.AsyncClient, pattern: str) -> None:
    """Long before its time is over."""
    known = {"a:1": "5-0", "a:2": "1-0"}
    began = time.monotonic()
    waiting = asyncio.ensure_future(plan(two, {"streams": known, "pattern": pattern, "wait": 5_000}))
    await until_waiting(app.gateway.engine)
    await two.post("/v1/streams/newx/entries", json={"fields": {"n": "1"}})
    assert (await waiting)["streams"]["newx"]["count"] == 1
    assert time.monotonic() - began < 3


async def test_a_plan_that_waited_is_made_a_few_streams_at_a_time(
    app: App, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that found something at once: budget and pieces are made in no turn of all streams."""
    monkeypatch.setattr(planning, "STREAMS_PER_TURN", 2)
    names = [f"s{number}" for number in range(5)]
    body = {"streams": dict.fromkeys(names, "0"), "wait": 5_000, "max_entries": 10, "parts": 4}
    waiting = asyncio.ensure_future(plan(http, body))
    await until_waiting(app.gateway.engine)
    ran: list[Plan] = []
    send = app.gateway.engine.send

    def noted(call: Call, done: Done) -> Replies | None:
        ran.extend(command for command in call.commands if isinstance(command, Plan))
        return send(call, done)

    monkeypatch.setattr(app.gateway.engine, "send", noted)
    rows = [{"fields": {"n": "1"}}] * 4
    await http.post("/v1/publish", json={"streams": dict.fromkeys(names, rows)})
    result = (await waiting)["streams"]
    assert {name: (one["count"], len(one["cuts"])) for name, one in result.items()} == dict.fromkeys(
        names, (2, 1)
    )
    assert ran
    assert all(len(command.streams) <= 2 and command.block_ms is None for command in ran)


@pytest.mark.parametrize(("count", "inline"), [(5, True), (300, False)])
async def test_a_large_plan_is_written_in_a_thread(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, count: int, *, inline: bool
) -> None:
    """Others are served meanwhile; its answer is the same."""
    threads: list[int] = []
    write = planning.write

    def noted(planned: Planned) -> bytes:
        threads.append(threading.get_ident())
        return write(planned)

    monkeypatch.setattr(planning, "write", noted)
    rows = [{"fields": {"n": "1"}}]
    names = [f"s{number}" for number in range(count)]
    for at in range(0, count, 100):
        await http.post("/v1/publish", json={"streams": dict.fromkeys(names[at : at + 100], rows)})
    result = await plan(http, {"pattern": "s*", "parts": 256})
    assert {name: one["count"] for name, one in result["streams"].items()} == dict.fromkeys(names, 1)
    assert [thread == threading.get_ident() for thread in threads] == [inline]
