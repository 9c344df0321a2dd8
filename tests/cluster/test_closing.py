"""The end of a stream over a backend, for readers that follow it, and for what other programs do to it.

Looks of its own are an hour apart here: what wakes a reader is the server's notification.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx
import pytest

from app.main import App
from engine.commands.types import XAdd, XLen
from engine.commands.weir_commands import Close
from engine.replies import Closed
from tests.app.conftest import app_on, calling
from tests.app.test_sse import EventReader
from tests.bounds import bounded
from tests.cluster.engines import BODY, opened
from tests.cluster.servers import Backend, BackendServer
from tests.cluster.test_repeating import opened as opened_losing
from tests.engine.asking import reply_of, reply_to
from tests.waiting import until_async

# One slot of a cluster.
S: Final = "{t}s"
T: Final = "{t}t"
STREAM: Final = f"/v1/streams/{S}"
CONSUME: Final = f"{STREAM}/groups/g/consumers/c/stream"
POLL_S: Final = 3_600.0
READERS: Final = 100


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[App]:
    async with opened(backend, poll_s=POLL_S) as engine:
        app = app_on(engine, bounded(log_requests="none", waiters_max=3 * READERS))
        yield app
        app.gateway.tenant("").feeds.close()


@pytest.fixture
async def http(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(app) as client:
        yield client


async def add(http: httpx.AsyncClient, *ids: str, stream: str = S) -> None:
    for entry_id in ids:
        answer = await http.post(
            f"/v1/streams/{stream}/entries", json={"id": entry_id, "fields": {"n": entry_id}}
        )
        assert answer.status_code == 201, answer.text


async def close(http: httpx.AsyncClient, stream: str = S, **given: object) -> Any:
    answer = await http.post(f"/v1/streams/{stream}/close", json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def read(app: App, path: str, query: str = "", names: tuple[str, ...] = (), **head: str) -> EventReader:
    """A reader of events that has had these by now."""
    if "/consumers/" in path:
        head["accept"] = "text/event-stream"
    reader = EventReader(app, path, query, **head)
    await until_async(lambda: reader.names == [*names] if names else reader.status)
    return reader


async def test_a_tail_ends_behind_the_last_entry(app: App, http: httpx.AsyncClient) -> None:
    """And who comes back to that gets 204."""
    await add(http, "1-0")
    tail = await read(app, f"{STREAM}/tail", "after=0", ("entry", "caught_up"))
    ended = await close(http, reason="done", entry={"id": "2-0", "fields": {"n": "2"}})
    await until_async(lambda: tail.over)
    assert tail.names == ["entry", "caught_up", "entry", "closed"]
    said = {"last_id": "2-0", "closed_at": ended["closed_at"], "reason": "done"}
    assert json.loads(tail.events[-1].data) == said
    for last_id, status in (("1-0", 200), ("2-0", 204)):
        back = EventReader(app, f"{STREAM}/tail", last_event_id=last_id)
        await until_async(lambda back=back: back.over)
        assert back.status == status


async def test_a_tail_of_several_streams_ends_with_the_last(app: App, http: httpx.AsyncClient) -> None:
    for stream in (S, T):
        await add(http, "1-0", stream=stream)
    tail = await read(app, "/v1/tail", f"stream={S}&stream={T}&after=1-0", ("caught_up",))
    for count, stream in enumerate((S, T), 1):
        assert not tail.over
        await close(http, stream)
        await until_async(lambda count=count: len(tail.of("closed")) == count)
    await until_async(lambda: tail.over)


async def test_a_consumer_stays_until_its_group_is_drained(app: App, http: httpx.AsyncClient) -> None:
    """Its own acknowledgement ends it at once."""
    await add(http, "1-0", "2-0")
    await http.put(f"{STREAM}/groups/g", json={"start": "0"})
    reader = await read(app, CONSUME, names=("entry", "entry"))
    await close(http)
    await until_async(lambda: reader.names[-1] == "closed")
    await http.post(f"{STREAM}/groups/g/ack", json={"ids": ["1-0", "2-0"]})
    await until_async(lambda: reader.over)
    assert reader.names[-1] == "drained"
    back = await read(app, CONSUME, last_event_id="2-0")
    assert back.status == 204


async def test_all_that_wait_end_with_the_stream(app: App, http: httpx.AsyncClient) -> None:
    """Without an entry, for which the server says nothing by itself."""
    await add(http, "1-0")
    await http.put(f"{STREAM}/groups/g", json={"start": "$"})
    waits = [
        asyncio.ensure_future(http.get(f"{STREAM}/entries?after=1-0&wait=60000", timeout=None))
        for _ in range(READERS)
    ] + [
        asyncio.ensure_future(
            http.post(f"{STREAM}/groups/g/consumers/c{n}/read", json={"wait": 60_000}, timeout=None)
        )
        for n in range(READERS)
    ]
    tails = [await read(app, f"{STREAM}/tail", "after=0", ("entry", "caught_up")) for _ in range(10)]
    assert not any(wait.done() for wait in waits)
    await close(http)
    answers = await asyncio.wait_for(asyncio.gather(*waits), 30)
    assert {answer.json()["closed"] for answer in answers} == {True}
    await until_async(lambda: all(tail.over for tail in tails))


async def test_what_other_programs_add_is_read_before_the_end(
    backend: Backend, http: httpx.AsyncClient
) -> None:
    """A server keeps no program from writing. Weir refuses on, and readers that have ended are not asked."""
    await add(http, "1-0")
    await close(http)
    assert backend.call("XADD", S, "2-0", "n", "2") == b"2-0"
    page = (await http.get(f"{STREAM}/entries?after=0&count=1")).json()
    assert "closed" not in page
    rest = (await http.get(f"{STREAM}/entries?after=1-0")).json()
    assert ([one["id"] for one in rest["entries"]], rest["closed"]) == (["2-0"], True)
    refused = await http.post(f"{STREAM}/entries", json={"fields": {"n": "3"}})
    assert (refused.status_code, refused.json()["last_id"]) == (409, "2-0")


async def test_the_end_goes_where_the_stream_goes(backend: Backend, http: httpx.AsyncClient) -> None:
    """Renamed it is closed, a copy is open, and what is made again under its name is, too."""
    await add(http, "1-0")
    await close(http, reason="done")

    async def run(*words: str) -> None:
        assert (await http.post("/v1/commands", json=list(words))).status_code == 200

    async def is_closed(stream: str) -> bool:
        found: bool = (await http.get(f"/v1/streams/{stream}")).json()["closed"]
        return found

    await run("COPY", S, "{t}copy")
    await run("RENAME", S, T)
    assert (await is_closed("{t}copy"), await is_closed(T)) == (False, True)
    await run("XADD", "{t}copy", "2-0", "n", "2")
    await run("DEL", T)
    await add(http, "1-0", stream=T)
    assert not await is_closed(T)
    await close(http, T)
    backend.call("DEL", T)
    await add(http, "1-0", stream=T)
    assert not await is_closed(T)


async def test_dead_letters_stay_pending_where_their_stream_is_closed(http: httpx.AsyncClient) -> None:
    """And are not delivered; the group goes on."""
    await add(http, "1-0", "2-0")
    await add(http, "1-0", stream=T)
    policy = {"dead_letter": {"stream": T, "max_deliveries": 1}}
    await http.put(f"{STREAM}/groups/g", json={"start": "0", **policy})
    await close(http, T)
    body = {"claim_min_idle_ms": 0, "count": 1}
    first = (await http.post(f"{STREAM}/groups/g/consumers/a/read", json=body)).json()
    second = (await http.post(f"{STREAM}/groups/g/consumers/b/read", json=body)).json()
    assert [one["id"] for page in (first, second) for one in page["entries"]] == ["1-0", "2-0"]
    shown = (await http.get(f"{STREAM}/groups/g/pending?count=10")).json()["pending"]
    assert [one["id"] for one in shown] == ["1-0", "2-0"]


@pytest.mark.parametrize("add", [None, XAdd(stream=S, bodies=[BODY])])
async def test_an_end_whose_reply_was_lost_is_made_once(server: BackendServer, add: XAdd | None) -> None:
    """And has the reply of the first time."""
    async with opened_losing(server) as (engine, link):
        await reply_to(engine, XAdd(stream=S, bodies=[BODY]))
        link.losing = 1
        found = await reply_of(engine, Closed, Close(stream=S, reason="done", add=add))
        assert (found.duplicate, found.end.reason, link.lost) == (False, "done", 1)
        assert await reply_to(engine, XLen(stream=S)) == (1 if add is None else 2)


async def test_a_stream_that_is_changed_as_seen_is_seen_open(http: httpx.AsyncClient) -> None:
    """Its tag is another one since it was closed."""
    await add(http, "1-0")
    tag = (await http.get(STREAM)).headers["etag"]
    await close(http)
    refused = await http.delete(STREAM, headers={"if-match": tag})
    assert refused.status_code == 412
    tag = (await http.get(STREAM)).headers["etag"]
    assert (await http.delete(STREAM, headers={"if-match": tag})).status_code == 204
