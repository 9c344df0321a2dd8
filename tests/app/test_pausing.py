"""Groups that an operator pauses: over REST, the socket, server-sent events and the command API."""

from typing import Any

import httpx
import pytest

from tests.app.conftest import store
from tests.app.test_sse import SseWorld, world
from tests.app.test_sse_groups import begin, consume
from tests.engine.clocks import settle

__all__ = ["world"]
G = "/v1/streams/s/groups/g"


@pytest.fixture
async def paused(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Three entries that no consumer has, and a group that is paused."""
    await store(http, "s", 3)
    await http.put(G, json={"start": "0"})
    answer = await http.patch(G, json={"paused": True})
    assert (answer.status_code, answer.json()["paused"]) == (200, True)
    return http


async def read(http: httpx.AsyncClient, **more: object) -> Any:
    return (await http.post(f"{G}/consumers/a/read", json=more)).json()


async def test_a_read_is_told_that_its_group_is_paused(paused: httpx.AsyncClient) -> None:
    nothing = {"entries": [], "last_delivered_id": "0-0", "more": False, "paused": True}
    assert await read(paused) == nothing
    assert await read(paused, wait=20, claim_min_idle_ms=0) == nothing
    many = {"streams": {"s": ">"}, "group": "g", "consumer": "a"}
    assert (await paused.post("/v1/read", json=many)).json() == {"streams": {"s": nothing}}


async def test_a_resumed_group_goes_on_where_it_was(paused: httpx.AsyncClient) -> None:
    await paused.patch(G, json={"paused": False})
    found = await read(paused)
    assert ([one["id"] for one in found["entries"]], "paused" in found) == (["1-0", "2-0", "3-0"], False)


async def test_a_group_can_be_made_paused(http: httpx.AsyncClient) -> None:
    """And a change of something else leaves it so."""
    assert (await http.put(G, json={"start": "0", "paused": True})).json()["paused"] is True
    changed = (await http.patch(G, json={"ack_timeout_ms": 1_000})).json()
    assert (changed["paused"], changed["ack_timeout_ms"]) == (True, 1_000)


async def test_the_commands_of_weir_pause_and_resume(paused: httpx.AsyncClient) -> None:
    for command, expected in (("WEIR.RESUME", False), ("WEIR.PAUSE", True)):
        assert (await paused.post("/v1/commands", json=[command, "s", "g"])).json() == {"result": "OK"}
        assert (await paused.get(G)).json()["paused"] is expected


async def test_a_consumer_over_sse_is_told_of_a_pause_and_of_its_end(world: SseWorld) -> None:
    await begin(world)
    reader = consume(world)
    await settle()
    await world.http.patch(G, json={"paused": True})
    await world.add("1-0")
    await settle()
    assert [event.name for event in reader.events] == ["paused"]
    await world.http.patch(G, json={"paused": False})
    await settle()
    assert [event.name for event in reader.events] == ["paused", "resumed", "entry"]
