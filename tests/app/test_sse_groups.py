"""A consumer of a group over server-sent events: what it is given, how much at once, what goes back."""

import json

import pytest

from tests.app.test_sse import EventReader, SseWorld, world
from tests.engine.clocks import settle

__all__ = ["world"]
GROUP = "/v1/streams/s/groups/g"


def consume(world: SseWorld, consumer: str = "c", query: str = "") -> EventReader:
    return world.read(f"{GROUP}/consumers/{consumer}/stream", query)


async def begin(world: SseWorld) -> None:
    answer = await world.http.put(GROUP, json={"start": "0"})
    assert answer.status_code == 201


async def ack(world: SseWorld, *ids: str) -> None:
    answer = await world.http.post(f"{GROUP}/ack", json={"ids": ids})
    assert answer.status_code == 200
    await settle()


async def pending(world: SseWorld) -> list[list[object]]:
    """ID, consumer and delivery count of all that is pending."""
    answer = await world.http.post("/v1/commands", json=["XPENDING", "s", "g", "-", "+", "100"])
    return [[row[0], row[1], row[3]] for row in answer.json()["result"]]


async def test_entries_go_to_one_consumer_each(world: SseWorld) -> None:
    """With how often they were delivered; what is acknowledged is not pending."""
    await begin(world)
    readers = [consume(world, name) for name in "ab"]
    await settle()
    await world.add("1-0")
    await world.add("2-0")
    assert sorted(readers[0].ids + readers[1].ids) == ["1-0", "2-0"]
    first = next(event for reader in readers for event in reader.events if event.last_id == "1-0")
    expected = {"id": "1-0", "fields": {"n": "1-0"}, "delivery_count": 1, "idle_ms": 0}
    assert json.loads(first.data) == expected
    await ack(world, "1-0")
    assert [row[0] for row in await pending(world)] == ["2-0"]


async def test_no_more_is_in_flight_than_asked_for(world: SseWorld) -> None:
    """An acknowledgement makes room at once; one that this gateway does not see is found within a second."""
    await begin(world)
    await world.add(*[f"{number}-0" for number in range(1, 8)])
    reader = consume(world, query="max_in_flight=2")
    await settle()
    assert reader.ids == ["1-0", "2-0"]
    await ack(world, "1-0")
    assert reader.ids == ["1-0", "2-0", "3-0"]
    await ack(world, "2-0", "3-0")
    assert reader.ids == ["1-0", "2-0", "3-0", "4-0", "5-0"]
    await world.run(("XACK", "s", "g", "4-0"))
    await world.pass_s(1.1)
    assert reader.ids[5:] == ["6-0"]


async def test_a_consumer_that_comes_back_first_gets_what_it_holds(world: SseWorld) -> None:
    """`Last-Event-ID` is ignored: what came last may not have been worked on. Then what is new."""
    await begin(world)
    await world.add("1-0", "2-0")
    first = consume(world)
    await settle()
    await ack(world, "1-0")
    await first.leave()
    again = world.read(f"{GROUP}/consumers/c/stream", last_event_id="2-0")
    await settle()
    await world.add("3-0")
    assert again.ids == ["2-0", "3-0"]
    assert [json.loads(event.data)["delivery_count"] for event in again.events] == [2, 1]


@pytest.mark.parametrize("full", [False, True])
async def test_a_shutdown_is_an_end(world: SseWorld, *, full: bool) -> None:
    """Whether it waits for entries or for room."""
    await begin(world)
    if full:
        await world.add("1-0")
    reader = consume(world, query="max_in_flight=1")
    await settle()
    world.app.life.drain()
    await settle()
    assert reader.of("end") == [{"reason": "draining"}]
    assert reader.over


async def test_a_group_that_goes_is_an_error(world: SseWorld) -> None:
    """The problem that a long-poll would be answered with."""
    await begin(world)
    reader = consume(world)
    await settle()
    await world.http.delete(GROUP)
    await settle()
    assert [json.loads(event.data)["code"] for event in reader.events] == ["no_group"]
    assert reader.over


@pytest.mark.parametrize("full", [False, True])
async def test_silence_is_broken_for_consumers_too(world: SseWorld, *, full: bool) -> None:
    """While they wait for entries and while they wait for room."""
    await begin(world)
    if full:
        await world.add("1-0")
    reader = consume(world, query="max_in_flight=1")
    await settle()
    for _ in range(16):
        await world.pass_s(1)
    assert reader.parser.comments == 1


@pytest.mark.parametrize(
    ("stream", "query", "status", "code"),
    [
        ("s", "", 404, "no_group"),
        ("none", "", 404, "no_stream"),
    ],
)
async def test_what_cannot_be_consumed_is_refused(
    world: SseWorld, stream: str, query: str, status: int, code: str
) -> None:
    """Before there is a stream of events."""
    await world.add("1-0")
    reader = world.read(f"/v1/streams/{stream}/groups/g/consumers/c/stream", query)
    await settle()
    assert (reader.status, json.loads(reader.body)["code"]) == (status, code)
