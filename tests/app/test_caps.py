"""More streams, groups or consumers than the settings allow: 422 that names the setting, at every API.

Knows: how a refusal for want of room looks to a client. Must never know: where the engine counts.
"""

from collections.abc import AsyncIterator

import httpx
import pytest

from engine import Caps, Engine, SystemClock


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """An engine with room for one of each."""
    engine = Engine.open(None, clock=SystemClock(), caps=Caps(1, 1, 1))
    await engine.start()
    yield engine
    engine.check()
    await engine.close()


async def test_what_has_no_room_is_refused_by_the_name_of_the_setting(http: httpx.AsyncClient) -> None:
    """Trying again is no use, so no Retry-After; what is there goes on."""
    group, entry = "/v1/streams/s/groups/{}", {"fields": {"a": "1"}}
    assert (await http.post("/v1/streams/s/entries", json=entry)).status_code == 201
    assert (await http.put(group.format("g"), json={"start": "0"})).status_code == 201
    assert (await http.put(group.format("g") + "/consumers/c")).status_code == 201
    refused = {
        "streams_max": await http.post("/v1/streams/t/entries", json=entry),
        "groups_max": await http.put(group.format("h"), json={"start": "0"}),
        "consumers_max": await http.put(group.format("g") + "/consumers/d"),
    }
    for limit, answer in refused.items():
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["limit"]) == (422, "invalid", limit)
        assert limit in problem["detail"]
        assert not problem["retryable"]
        assert "retry-after" not in answer.headers
    command = await http.post("/v1/commands", json=["XADD", "t", "*", "a", "1"])
    assert command.status_code == 400
    assert command.json()["error"].startswith("ERR no room for another stream")
    assert (await http.post("/v1/streams/s/entries", json=entry)).status_code == 201
