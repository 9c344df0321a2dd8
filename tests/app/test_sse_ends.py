"""The end of a stream as events: to a tail, to one of several streams, to a consumer; and who comes back."""

import json
from typing import Final

import pytest

from tests.app.test_sse import SseWorld, world  # noqa: F401 - a fixture
from tests.engine.clocks import settle

CONSUME: Final = "/v1/streams/s/groups/g/consumers/c/stream"


async def close(world: SseWorld, stream: str = "s", **given: object) -> dict[str, str]:  # noqa: F811
    answer = await world.http.post(f"/v1/streams/{stream}/close", json=given)
    assert answer.status_code == 200, answer.text
    await settle()
    found: dict[str, str] = answer.json()
    return found


async def test_a_tail_ends_behind_the_last_entry(world: SseWorld) -> None:  # noqa: F811
    """`closed` has no ID, so that the client keeps that of the last entry."""
    await world.add("1-0")
    reader = world.read(query="after=0")
    await settle()
    ended = await close(world, reason="done", entry={"id": "2-0", "fields": {"n": "2"}})
    assert reader.names == ["entry", "caught_up", "entry", "closed"]
    assert reader.over
    closed = reader.events[-1]
    assert json.loads(closed.data) == {"last_id": "2-0", "closed_at": ended["closed_at"], "reason": "done"}
    assert closed.last_id == "2-0"


@pytest.mark.parametrize("query", ["after=0", "", "last=1"])
async def test_a_tail_of_a_closed_stream_ends_at_once(world: SseWorld, query: str) -> None:  # noqa: F811
    """With what there is from its cursor on."""
    await world.add("1-0", "2-0")
    await close(world)
    reader = world.read(query=query)
    await settle()
    assert reader.over
    assert reader.names[-1] == "closed"
    assert reader.ids == {"after=0": ["1-0", "2-0"], "": [], "last=1": ["2-0"]}[query]
    assert reader.parser.last_id == "2-0"


@pytest.mark.parametrize(("last_id", "status"), [("1-0", 200), ("2-0", 204), ("9-0", 200)])
async def test_who_comes_back_to_the_end_gets_204(world: SseWorld, last_id: str, status: int) -> None:  # noqa: F811
    """The only answer that makes an EventSource stop; before the last entry it goes on."""
    await world.add("1-0", "2-0")
    await close(world)
    reader = world.read(last_event_id=last_id)
    await settle()
    assert (reader.status, reader.over) == (status, True)
    if status == 200:
        assert reader.names[-1] == "closed"


async def test_the_last_entry_may_be_deleted(world: SseWorld) -> None:  # noqa: F811
    """Who has read what is left has all; who has not gets the gap, and then the end."""
    await world.add("1-0", "2-0", "3-0")
    await close(world)
    await world.run(("XDEL", "s", "3-0"))
    reader = world.read(last_event_id="2-0")
    await settle()
    assert reader.status == 204
    await world.run(("XTRIM", "s", "MAXLEN", "0"))
    behind = world.read(query="cursor=generation", last_event_id="1-0")
    await settle()
    assert behind.names == ["gap", "closed"]
    again = world.read(last_event_id=behind.parser.last_id)
    await settle()
    assert again.status == 204


async def test_a_tail_of_several_streams_ends_with_the_last(world: SseWorld) -> None:  # noqa: F811
    """An event for each; the cursor of all brings 204."""
    await world.add("1-0")
    await world.add("1-0", stream="t")
    reader = world.read("/v1/tail", "stream=s&stream=t&after=0")
    await settle()
    await close(world)
    assert len(reader.of("closed")) == 1
    await world.add("2-0", stream="t")
    assert [one["stream"] for one in reader.of("closed")] == ["s"]  # type: ignore[index]
    back = world.read("/v1/tail", "stream=s&stream=t", last_event_id=reader.parser.last_id)
    await settle()
    assert (back.status, back.over) == (200, False)
    await close(world, "t")
    assert reader.over
    assert [one["stream"] for one in reader.of("closed")] == ["s", "t"]  # type: ignore[index]
    again = world.read("/v1/tail", "stream=s&stream=t", last_event_id=reader.parser.last_id)
    await settle()
    assert again.status == 204


async def test_who_comes_back_to_a_drained_group_gets_204(world: SseWorld) -> None:  # noqa: F811
    """With a place; a reader that begins anew gets the end of both."""
    await world.add("1-0")
    await world.run(("XGROUP", "CREATE", "s", "g", "$"))
    await close(world)
    again, anew = world.read(CONSUME, last_event_id="1-0"), world.read(CONSUME)
    await settle()
    assert again.status == 204
    assert (anew.status, anew.names, anew.over) == (200, ["closed", "drained"], True)
