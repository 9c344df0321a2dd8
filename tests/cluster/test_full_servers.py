"""What makes room is done at a server that is full: over REST as by Redis's own commands."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import httpx
import pytest

from engine.cluster import ClusterEngine
from tests.app.conftest import app_on, calling
from tests.cluster.servers import Backend, full

S: Final = "/v1/streams/s"
G: Final = f"{S}/groups/g"
# Each way to remove or to settle something: the request, and the command for the same.
WAYS: Final[dict[str, tuple[tuple[str, str, Any], Sequence[str]]]] = {
    "trim by length": (("POST", f"{S}/trim", {"maxlen": 8}), ("XTRIM", "s", "MAXLEN", "8")),
    "trim by ID": (("POST", f"{S}/trim", {"minid": "3-0"}), ("XTRIM", "s", "MINID", "3-0")),
    "trim by age": (("POST", f"{S}/trim", {"older_than_ms": 0}), ("XTRIM", "s", "MAXLEN", "0")),
    "trim about": (("POST", f"{S}/trim", {"maxlen": 0, "approx": True}), ("XTRIM", "s", "MAXLEN", "~", "0")),
    "try a trim": (("POST", f"{S}/trim", {"maxlen": 8, "dry_run": True}), ("XLEN", "s")),
    "trim with care": (
        ("POST", f"{S}/trim", {"minid": "1-0", "guard": True}),
        ("XTRIM", "s", "MINID", "1-0"),
    ),
    "delete an entry": (("DELETE", f"{S}/entries/2-0", None), ("XDEL", "s", "2-0")),
    "delete entries": (("POST", f"{S}/entries/delete", {"ids": ["2-0", "3-0"]}), ("XDEL", "s", "2-0", "3-0")),
    "delete by references": (
        ("DELETE", f"{S}/entries/2-0?refs=delete", None),
        ("XDELEX", "s", "DELREF", "IDS", "1", "2-0"),
    ),
    "acknowledge": (("POST", f"{G}/ack", {"ids": ["1-0", "2-0"]}), ("XACK", "s", "g", "1-0", "2-0")),
    "give back": (
        ("POST", f"{G}/nack", {"ids": ["1-0"], "mode": "fail"}),
        ("XNACK", "s", "g", "FAIL", "IDS", "1", "1-0"),
    ),
    "remove a consumer": (
        ("DELETE", f"{G}/consumers/c?pending=drop", None),
        ("XGROUP", "DELCONSUMER", "s", "g", "c"),
    ),
    "resume a group": (("PATCH", G, {"paused": False}), ("WEIR.RESUME", "s", "g")),
    "cancel a schedule": (("DELETE", f"{S}/schedules/later", None), ("WEIR.SCHEDULE", "DEL", "s", "later")),
    "delete a stream": (("DELETE", f"{S}?schedules=drop", None), ("DEL", "s")),
    "delete a stream of Durable Streams": (("DELETE", "/v1/stream/d", None), ("DEL", "d")),
    "delete what is not there": (("DELETE", "/v1/streams/none", None), ("DEL", "none")),
}
ABSENT: Final = {"delete what is not there": 404}
# Redis 7.0 queues nothing without memory, and to change a group and to describe it is a transaction.
NOT_QUEUED: Final = {"redis": {"resume a group": 507}}


@pytest.fixture
async def http(engine: ClusterEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(app_on(engine)) as client:
        yield client


async def fill(http: httpx.AsyncClient) -> None:
    """Ten entries, three of them with a consumer; one for later; and a stream of Durable Streams."""
    for n in range(1, 11):
        added = await http.post(f"{S}/entries", json={"id": f"{n}-0", "fields": {"a": "1"}})
        assert added.status_code == 201
    made = [
        await http.post(f"{S}/groups", json={"name": "g", "start": "0"}),
        await http.post(f"{G}/consumers/c/read", json={"count": 3}),
        await http.put(f"{S}/schedules/later", json={"entry": {"fields": {"a": "1"}}, "in_ms": 60_000}),
        await http.put("/v1/stream/d", headers={"content-type": "text/plain"}, content=b"a"),
    ]
    assert all(one.is_success for one in made), [one.text for one in made]


@pytest.mark.parametrize("way", WAYS)
async def test_what_makes_room_is_done(backend: Backend, http: httpx.AsyncClient, way: str) -> None:
    (method, target, body), words = WAYS[way]
    await fill(http)
    with full(backend):
        refusal = await http.post(f"{S}/entries", json={"fields": {"a": "1"}})
        assert (refusal.status_code, refusal.json()["code"]) == (507, "memory_full")
        answer = await http.request(method, target, json=body)
        left = backend.call("XLEN", "s")
    done = answer.status_code if answer.is_success else 200
    expected = (ABSENT | NOT_QUEUED.get(backend.kind, {})).get(way, done)
    assert answer.status_code == expected, answer.text
    await fill_again(backend, http)
    with full(backend):
        said = (await http.post("/v1/commands", json=list(words))).json()
        assert "error" not in said, said
        assert backend.call("XLEN", "s") == left


async def fill_again(backend: Backend, http: httpx.AsyncClient) -> None:
    backend.call("FLUSHALL")
    await fill(http)
