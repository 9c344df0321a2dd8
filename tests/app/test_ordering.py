"""Groups that are ordered by key: over REST, server-sent events and in Redis's words."""

from typing import Any

import httpx
import pytest

from tests.app.test_sse import SseWorld, world
from tests.app.test_sse_groups import ack, consume
from tests.engine.clocks import settle

__all__ = ["world"]
G = "/v1/streams/s/groups/g"
SAID = "the order of a group changes only while nothing of it is in flight"


@pytest.fixture
async def ordered(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """A group by the field `user`, and entries of `a`, `a`, `b` and `a`."""
    answer = await http.put(G, json={"start": "0", "ordered_by": "user"})
    found = answer.json()
    assert (found["ordered_by"], found["in_flight_per_key"], found["passed_over"]) == ("user", 1, 0)
    await add(http, "aaba")
    return http


async def add(http: httpx.AsyncClient, keys: str, first: int = 1) -> None:
    rows = [{"id": f"{at}-0", "fields": {"user": key}} for at, key in enumerate(keys, first)]
    answer = await http.post("/v1/streams/s/entries", json={"entries": rows})
    assert answer.status_code == 201, answer.text


async def read(http: httpx.AsyncClient, **more: object) -> list[str]:
    found = (await http.post(f"{G}/consumers/c/read", json=more)).json()
    return [one["id"] for one in found["entries"]]


async def test_a_read_gives_one_of_a_key_and_the_description_says_what_waits(
    ordered: httpx.AsyncClient,
) -> None:
    assert await read(ordered) == ["1-0", "3-0"]
    found = (await ordered.get(G)).json()
    assert (found["pending"], found["passed_over"], found["lag"]) == (2, 2, 2)
    assert (await ordered.get("/v1/streams/s/groups")).json()["groups"] == [found]
    await ordered.post(f"{G}/ack", json={"ids": ["1-0"]})
    assert await read(ordered) == ["2-0"]


async def test_why_says_that_a_group_in_order_waits_for_its_turn(http: httpx.AsyncClient) -> None:
    await http.put(G, json={"start": "0", "ordered_by": "*"})
    await add(http, "ab")
    assert await read(http) == ["1-0"]
    (busy,) = [one for one in (await http.get(f"{G}/why")).json()["reasons"] if one["code"] == "key_busy"]
    assert busy["detail"].startswith("1 entry waits for the turn of the group, which 1-0 has")


async def test_the_order_is_changed_only_while_nothing_is_in_flight(ordered: httpx.AsyncClient) -> None:
    await read(ordered)
    refused = await ordered.patch(G, json={"in_flight_per_key": 2})
    assert (refused.status_code, refused.json()["code"]) == (409, "group_has_pending")
    assert refused.json()["detail"].startswith(SAID)
    await ordered.post(f"{G}/ack", json={"ids": ["1-0", "3-0"]})
    assert (await ordered.patch(G, json={"ordered_by": None})).status_code == 409
    moved = (await ordered.patch(G, json={"last_delivered_id": "0-0"})).json()
    assert (moved["passed_over"], moved["lag"]) == (0, 4)
    changed = (await ordered.patch(G, json={"in_flight_per_key": 2})).json()
    assert (changed["ordered_by"], changed["in_flight_per_key"]) == ("user", 2)
    assert await read(ordered) == ["1-0", "2-0", "3-0"]


async def test_a_command_of_redis_obeys_and_says_what_it_cannot(ordered: httpx.AsyncClient) -> None:
    reading = ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"]

    async def call(*words: str) -> Any:
        return (await ordered.post("/v1/commands", json=words)).json()

    found = await call(*reading)
    assert [one[0] for one in found["result"][0][1]] == ["1-0", "3-0"]
    refused = await call(*reading[:4], "NOACK", *reading[4:])
    assert "until it is acknowledged" in str(refused)
    (info,) = (await call("XINFO", "GROUPS", "s"))["result"]
    assert info[info.index("lag") + 1] == 2


async def test_a_stream_of_events_goes_on_with_what_is_free(world: SseWorld) -> None:
    await world.http.put(G, json={"start": "0", "ordered_by": "user"})
    await add(world.http, "aab")
    reader = consume(world)
    await settle()
    assert reader.ids == ["1-0", "3-0"]
    await ack(world, "1-0")
    assert reader.ids == ["1-0", "3-0", "2-0"]
