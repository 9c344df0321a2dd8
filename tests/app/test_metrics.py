"""What /metrics shows: counts that move with what is done, each API by its name, and streams by choice."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.api import metrics
from app.api.metrics import STREAM_SERIES_MAX
from app.errors import RefusalError
from app.main import App
from app.metrics.counters import REQUEST_BOUNDS_S, TIMES_MAX, RequestTimes
from app.metrics.families import FAMILIES
from app.settings import Settings
from engine import Caps, Engine, Histogram, SystemClock, entries
from engine.cluster import BackendFigures
from engine.commands.types import Cursor, Trim, XAdd, XGroupCreate, XReadGroup, XTrim
from engine.commands.weir_commands import EnsureStream, UpdateGroup
from engine.storage.memory import MemoryStorage
from tests.app.conftest import app_on, calling
from tests.app.metrics import OPENMETRICS, Series, parse, scrape, value
from tests.engine.asking import reply_to
from tests.turns import assert_within_async

BASE = "http://127.0.0.1:8080"
PUBLISH, READ = "POST /v1/streams/{stream}/entries", "GET /v1/streams/{stream}/entries"


@asynccontextmanager
async def serving(
    storage: MemoryStorage | None = None, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Engine, App]]:
    """A gateway with these settings, in this process."""
    caps = Caps(memory_bytes_max=1 << 40, memory_bytes_soft=1 << 39)
    async with Engine.open(storage, clock=SystemClock(), fsync="always", caps=caps) as engine:
        app = app_on(engine, Settings(log_requests="none", **settings))
        async with calling(app) as http:
            yield http, engine, app


async def add(engine: Engine, stream: str, count: int = 1) -> None:
    await reply_to(engine, XAdd(stream=stream, bodies=[entries.body([("a", "1")])] * count))


async def test_requests_are_counted_by_route_and_status(http: httpx.AsyncClient) -> None:
    """By the template, never by the stream; what no operation answers is `other`."""
    for stream in ("s", "t"):
        await http.post(f"/v1/streams/{stream}/entries", json={"fields": {"a": "1"}})
    await http.get("/v1/streams/s/entries")
    await http.get("/v1/streams/s/entries?count=x")
    await http.get("/nothing")
    found = await scrape(http)
    assert value(found, "weir_requests_total", route=PUBLISH, code="201") == 2
    assert value(found, "weir_requests_total", route=READ, code="200") == 1
    assert value(found, "weir_requests_total", route=READ, code="422") == 1
    assert value(found, "weir_requests_total", route="other", code="404") == 1
    assert value(found, "weir_rejected_total", code="invalid") == 1
    assert value(found, "weir_rejected_total", code="no_route") == 1
    assert value(found, "weir_request_seconds_count") == 5
    assert "/v1/streams/s" not in str(found)
    again = await scrape(http)
    assert value(again, "weir_requests_total", route="GET /metrics", code="200") == 1


async def test_entries_are_counted_where_they_come_and_go(http: httpx.AsyncClient) -> None:
    """Published once, delivered as often as they are read, by each API."""
    batch = {"entries": [{"fields": {"a": "1"}}] * 3}
    await http.post("/v1/streams/s/entries", json=batch)
    await http.put("/v1/streams/s/groups/g", json={"start": "0"})
    await http.get("/v1/streams/s/entries?count=2")
    await http.post("/v1/streams/s/groups/g/consumers/c/read", json={})
    await http.post("/v1/commands", json=["XRANGE", "s", "-", "+"])
    await http.post("/v1/commands/pipeline", json=[["XLEN", "s"], ["XREAD", "STREAMS", "s", "0"]])
    await http.post("/v1/commands/multi-exec", json=[["XREVRANGE", "s", "+", "-", "COUNT", "1"]])
    found = await scrape(http)
    assert value(found, "weir_entries_published_total") == 3
    assert value(found, "weir_entries_delivered_total", door="rest") == 5
    assert value(found, "weir_entries_delivered_total", door="commands") == 7


async def test_a_read_that_waits_is_no_slow_answer(http: httpx.AsyncClient) -> None:
    """It is blocked, then counted; its time is its own."""
    waiting = asyncio.create_task(http.get("/v1/streams/s/entries?after=0&wait=2000"))
    while value(await scrape(http), "weir_blocked_reads") == 0:  # noqa: ASYNC110 - there is no event but the figure
        await asyncio.sleep(0)
    before = value(await scrape(http), "weir_request_seconds_count")
    await http.post("/v1/streams/s/entries", json={"fields": {"a": "1"}})
    assert len((await waiting).json()["entries"]) == 1
    found = await scrape(http)
    assert value(found, "weir_blocked_reads") == 0
    assert value(found, "weir_requests_total", route=READ, code="200") == 1
    # The scrape and the publish.
    assert value(found, "weir_request_seconds_count") == before + 2


async def test_figures_of_the_log_and_of_memory() -> None:
    """They move with what is done, and agree with /v1/status."""
    async with serving() as (http, engine, _):
        before = await scrape(http)
        await add(engine, "s", 100)
        found, status = await scrape(http), (await http.get("/v1/status")).json()
        assert value(found, "weir_log_bytes") == status["log"]["bytes"] > value(before, "weir_log_bytes")
        assert value(found, "weir_log_sync_seconds_count") > value(before, "weir_log_sync_seconds_count")
        assert value(found, "weir_memory_bytes", kind="data") == status["memory"]["data_bytes"] > 0
        assert (value(found, "weir_streams"), value(found, "weir_log_failed")) == (1, 0)
        assert ("weir_log_answers_waiting", frozenset()) in found


async def test_streams_that_have_ended_and_hidden_names_are_counted() -> None:
    """Until they are removed, also by another name; what a gateway has read from its log too."""
    async with serving() as (http, _, __):
        for name in "ab":
            assert (
                await http.post(f"/v1/streams/{name}/close", json={"entry": {"fields": {"a": "1"}}})
            ).status_code == 200
        await http.put("/v1/stream/source")
        await http.put("/v1/stream/fork", headers={"stream-forked-from": "/v1/stream/source"})
        await http.delete("/v1/stream/source")

        async def counts() -> tuple[float, ...]:
            found, status = await scrape(http), (await http.get("/v1/status")).json()
            shown = [value(found, f"weir_streams_{what}") for what in ("closed", "hidden")]
            assert shown == [status["streams_closed"], status["streams_hidden"]]
            return value(found, "weir_streams"), *shown

        assert await counts() == (3, 2, 1)
        await http.post("/v1/commands", json=["RENAME", "a", "c"])
        await http.delete("/v1/streams/b")
        assert await counts() == (2, 1, 1)
        await http.post("/v1/commands", json=["COPY", "c", "d"])
        await http.delete("/v1/stream/fork")
        assert await counts() == (2, 1, 0)
        await http.post("/v1/commands", json=["FLUSHALL"])
        assert await counts() == (0, 0, 0)


async def test_streams_are_shown_by_choice() -> None:
    """Those that match, with their groups; a stream that comes later is found, one that goes is gone."""
    async with serving(metrics_streams=("orders.*", "x?")) as (http, engine, _):
        for stream in ("orders.eu", "other", "x1"):
            await add(engine, stream, 3)
        await reply_to(engine, XGroupCreate(stream="orders.eu", group="g", start=0))
        read = XReadGroup(group="g", consumer="c", streams=[("orders.eu", Cursor.NEW)], count=1)
        await reply_to(engine, read)
        found = await scrape(http)
        shown = {dict(labels)["stream"] for name, labels in found if name == "weir_stream_length"}
        assert shown == {"orders.eu", "x1"}
        group = {"stream": "orders.eu", "group": "g"}
        assert value(found, "weir_group_lag", **group) == 2
        assert value(found, "weir_group_pending", **group) == 1
        assert 0 <= value(found, "weir_group_oldest_pending_seconds", **group) < 60
        assert ("weir_group_dead_letters_total", frozenset(group.items())) in found
        assert value(found, "weir_group_paused", **group) == 0
        await reply_to(engine, UpdateGroup(stream="orders.eu", group="g", policy={"paused": True}))
        assert value(await scrape(http), "weir_group_paused", **group) == 1
        assert value(found, "weir_groups", state="running") == 1
        assert value(await scrape(http), "weir_groups", state="paused") == 1
        assert value(found, "weir_metrics_streams_left_out") == 0
        assert (await http.delete("/v1/streams/x1")).status_code == 204
        await add(engine, "x2")
        found = await scrape(http)
        shown = {dict(labels)["stream"] for name, labels in found if name == "weir_stream_length"}
        assert shown == {"orders.eu", "x2"}


async def test_dead_letters_are_counted_by_group() -> None:
    """Those of the group, and all."""
    async with serving(metrics_streams=("s",)) as (http, engine, _):
        await add(engine, "s", 2)
        policy = {"dead_letter": {"stream": "dead", "max_deliveries": 1}}
        await http.put("/v1/streams/s/groups/g", json={"start": "0", **policy})
        given = (await http.post("/v1/streams/s/groups/g/consumers/c/read", json={})).json()["entries"]
        ids = [one["id"] for one in given]
        await http.post("/v1/streams/s/groups/g/dead-letter", json={"ids": ids, "reason": "test"})
        found = await scrape(http)
        assert value(found, "weir_group_dead_letters_total", stream="s", group="g") == 2
        assert value(found, "weir_dead_letters_total") == 2


def stream_series(found: Series) -> int:
    return sum(name.startswith(("weir_stream_", "weir_group_")) for name, _ in found)


@pytest.mark.parametrize(
    ("streams", "groups", "left_out"),
    [(500, 0, 0), (501, 0, 1), (83, 2, 0), (1, 199, 0), (1, 200, 1), (84, 2, 1)],
)
async def test_no_more_than_a_thousand_series(streams: int, groups: int, left_out: int) -> None:
    """At the limit and one beyond, with streams and with groups; what is left out is counted."""
    async with serving(metrics_streams=("*",)) as (http, engine, _):
        for number in range(streams):
            await reply_to(engine, EnsureStream(stream=f"s{number:05}"))
            for group in range(groups):
                await reply_to(engine, XGroupCreate(stream=f"s{number:05}", group=f"g{group}", start=0))
        found = await scrape(http)
        assert stream_series(found) <= STREAM_SERIES_MAX
        assert value(found, "weir_metrics_streams_left_out") == left_out


async def test_openmetrics_on_request(http: httpx.AsyncClient) -> None:
    """With its own media type and its end; Prometheus's header, plain clients and browsers get the rest."""
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    for accept in (OPENMETRICS, prometheus):
        answer = await http.get("/metrics", headers={"accept": accept})
        assert answer.headers["content-type"] == OPENMETRICS
        assert answer.text.endswith("# EOF\n")
        assert value(parse(answer.text, openmetrics=True), "weir_streams") == 0
    plain = "text/plain; version=0.0.4; charset=utf-8"
    for accept in ("*/*", "text/plain", "text/html,*/*;q=0.8"):
        answer = await http.get("/metrics", headers={"accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (200, plain)
    refused = await http.get("/metrics", headers={"accept": "image/png"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")


async def test_names_that_need_escaping_stay_one_label() -> None:
    """A stream may have quotes and backslashes in its name."""
    odd = 'a"b\\c{d="e"}, ü'
    async with serving(metrics_streams=("*",)) as (http, engine, _):
        await add(engine, odd)
        assert value(await scrape(http), "weir_stream_length", stream=odd) == 1


async def test_each_family_is_shown() -> None:
    """Everything that the table of metrics names can be seen, and nothing else."""
    url = "http://127.0.0.1:9"
    async with serving(metrics_streams=("s",), history_url=url) as (http, engine, app):
        app.gateway.operator.backend = BackendFigures()
        app.gateway.reports.counters.note_hook("github", "stored", 1)
        await add(engine, "s")
        await reply_to(engine, XGroupCreate(stream="s", group="g", start=0))
        await http.get("/nothing")
        found = await scrape(http)
        bare = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in found}
        # There is no disk under a log in memory.
        assert bare == {name for name in FAMILIES if not name.startswith("weir_disk_")}
        assert app.gateway.reports.counters.connections == {"sse": 0, "websocket": 0, "resp": 0}


async def test_history_that_does_not_answer_is_what_an_operator_has_to_act_on() -> None:
    """In the eyes of a probe and of Prometheus, once a page was asked for and did not come."""
    async with serving(history_url="http://127.0.0.1:9") as (http, engine, _):
        await add(engine, "s")
        await add(engine, "s")
        newest = (await http.get("/v1/streams/s")).json()["last_id"]
        archived = await http.patch("/v1/streams/s", json={"archived_up_to": newest})
        assert archived.status_code == 200, archived.text
        assert value(await scrape(http), "weir_failing", what="history_unavailable") == 0
        await reply_to(engine, XTrim(stream="s", trim=Trim(maxlen=0)))
        page = await http.get("/v1/streams/s/entries")
        assert (page.status_code, page.json()["code"]) == (503, "history_unavailable")
        assert value(await scrape(http), "weir_failing", what="history_unavailable") == 1
        assert (await http.get("/healthz/ready")).json()["failing"] == ["history_unavailable"]


@pytest.mark.parametrize("number", [1, TIMES_MAX - 1, TIMES_MAX, TIMES_MAX + 1])
async def test_every_request_is_timed_whether_counted_already_or_only_noted(number: int) -> None:
    """Notes are counted together when there are enough of them, or when they are asked for."""
    async with serving() as (_, _, app):
        for _ in range(number):
            app.refuse(RefusalError("invalid", "for the test"))
        times = app.gateway.reports.counters.times
        assert len(times.noted) == number % TIMES_MAX
        assert sum(times.histogram.counts) == number
        assert not times.noted


def test_times_counted_together_are_those_counted_one_by_one() -> None:
    """At each bound, between bounds and above them all."""
    chance = random.Random(7)
    found = [*REQUEST_BOUNDS_S, 0.0, 11.0, *(chance.expovariate(20) for _ in range(500))]
    times, expected = RequestTimes(), Histogram(REQUEST_BOUNDS_S)
    for at in range(0, len(found), 100):
        times.noted.extend(found[at : at + 100])
        times.count()
    for one in found:
        expected.observe(one)
    assert times.histogram.counts == expected.counts
    assert times.histogram.total == pytest.approx(expected.total)


@pytest.mark.paired
async def test_a_scrape_of_ten_thousand_streams_is_quick_and_small() -> None:
    """Under 50 ms and 1 MB, with as many series of streams as there may be."""
    async with serving(metrics_streams=("*",)) as (_, engine, app):
        for number in range(10_000):
            await reply_to(engine, EnsureStream(stream=f"a-stream-of-a-usual-name-{number}"))
        for number in range(60):
            for code in (200, 201, 400, 404, 422):
                app.gateway.reports.counters.requests[f"GET /v1/streams/{{stream}}/{number}"][code] = number
        for openmetrics in (True, False):
            assert len(await metrics.write(app.gateway, openmetrics=openmetrics)) < 1_000_000

        async def measured() -> float:
            began = time.process_time()
            await metrics.write(app.gateway, openmetrics=False)
            return time.process_time() - began

        await assert_within_async(0.05, measured)
