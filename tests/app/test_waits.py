"""Reads that wait and do not get to the end: clients that leave, limits, a gateway that stops."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from app.main import App
from app.operating import RecoveryProgress
from engine import entries
from engine.commands.types import XAdd
from tests.app.conftest import calling, until_waiting
from tests.engine.asking import reply_to

READ = "/v1/streams/s/groups/g/consumers/c/read"
Message = MutableMapping[str, Any]


class WaitingClient:
    """A connection that can be closed while its answer is waited for."""

    def __init__(self, app: App, method: str, path: str, query: bytes = b"", body: bytes = b"") -> None:
        self._left = asyncio.Event()
        self._body = [{"type": "http.request", "body": body, "more_body": False}]
        self.sent: list[Message] = []
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "path": path,
            "query_string": query,
            "headers": [(b"host", b"127.0.0.1:8080"), (b"content-length", b"%d" % len(body))],
        }
        self.request = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._body:
            return self._body.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def waits(self, app: App, reads: int = 1) -> None:
        await until_waiting(app.gateway.engine, reads)

    async def leave(self) -> None:
        self._left.set()
        await self.request


@pytest.mark.holding
async def test_a_waiting_read_that_finds_no_memory_takes_nothing(app: App, http: httpx.AsyncClient) -> None:
    """It was not known before how long its answer is: what the group has given goes back."""
    group = "/v1/streams/s/groups/g"
    await http.put(group, json={"start": "0"})
    reads = {READ: {"wait": 5_000}, "/v1/read": _group_read(wait=5_000)}
    pool = app.gateway.limits.budgets.output
    for path, body in reads.items():
        reading = asyncio.create_task(http.post(path, json=body))
        await until_waiting(app.gateway.engine)
        others = pool.reserve("another", pool.bytes_max)
        long = XAdd(stream="s", bodies=[entries.body([("a", b"x" * 100_000)])])
        await reply_to(app.gateway.engine, long)
        answer = await reading
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded"), path
        others.release()
        assert (await http.get(f"{group}/pending")).json()["count"] == 0, path
        (found,) = (await http.post(READ, json={})).json()["entries"]
        await http.post(f"{group}/ack", json={"ids": [found["id"]]})


def _group_read(**more: int) -> dict[str, Any]:
    return {"group": "g", "consumer": "c", "streams": {"s": ">"}, **more}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("GET", "/v1/streams/s/entries", b"after=$&wait=5000"), b'"code":"draining"'),
        (("POST", READ, b"", b'{"wait":5000}'), b'"code":"draining"'),
        (("POST", "/v1/commands", b"", b'["XREAD","BLOCK","0","STREAMS","s","$"]'), b'"error":"ERR'),
    ],
    ids=["of a stream", "of a group", "of a command"],
)
async def test_draining_ends_waits_and_refuses_new_work(
    app: App, http: httpx.AsyncClient, asked: tuple[Any, ...], said: bytes
) -> None:
    """503 with Retry-After for both; the connection is closed; health still answers."""
    await http.post("/v1/streams/s/groups", json={"name": "g", "mkstream": True})
    client = WaitingClient(app, *asked)
    await client.waits(app)
    app.life.drain()
    await client.request
    assert client.sent[0]["status"] == 503
    assert {(b"retry-after", b"1"), (b"connection", b"close")} <= {*client.sent[0]["headers"]}
    assert said in client.sent[1]["body"]
    answer = await http.post("/v1/streams/s/entries", json={"fields": {"a": "1"}})
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert answer.headers["connection"] == "close"
    assert (await http.get("/healthz/live")).status_code == 200
    ready = await http.get("/healthz/ready")
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})


async def test_draining_lets_what_was_served_be_answered(app: App, http: httpx.AsyncClient) -> None:
    """An entry that was delivered to a waiting reader reaches it, though the gateway stops at that moment."""
    await http.post("/v1/streams/s/groups", json={"name": "g", "mkstream": True})
    client = WaitingClient(app, "POST", READ, body=b'{"wait":5000}')
    await client.waits(app)
    await http.post("/v1/streams/s/entries", json={"id": "1-0", "fields": {"a": "1"}})
    app.life.drain()
    await client.request
    assert client.sent[0]["status"] == 200
    assert b'"1-0"' in client.sent[1]["body"]


async def test_before_recovery_there_is_only_health(closed_app: App) -> None:
    """Live at once, not ready; work is 503 `starting` before its body is read."""
    async with calling(closed_app) as http:
        assert (await http.get("/healthz/live")).status_code == 200
        assert (await http.get("/healthz/ready")).json() == {"status": "starting"}
        closed_app.gateway.operator.progress = RecoveryProgress("loading", 10, 100)
        result = {"step": "loading", "done_bytes": 10, "total_bytes": 100}
        assert (await http.get("/healthz/ready")).json() == {"status": "starting", "progress": result}
        for path in ("/v1/streams/s/entries", "/v1/commands", "/v1/streams/s/groups"):
            answer = await http.post(path, content=b"not even JSON")
            assert (answer.status_code, answer.json()["code"]) == (503, "starting")
            assert answer.headers["retry-after"] == "1"
        assert (await http.get("/")).status_code == 200


@pytest.mark.parametrize("wait", ["0", "1"])
async def test_a_group_that_goes_ends_its_readers(app: App, http: httpx.AsyncClient, wait: str) -> None:
    """A waiting group read whose group is destroyed is 404 no_group."""
    await http.post("/v1/streams/s/groups", json={"name": "g", "mkstream": True})
    client = WaitingClient(app, "POST", READ, body=b'{"wait":5000}')
    await client.waits(app)
    await http.post("/v1/commands", json=["XGROUP", "DESTROY", "s", "g"] if wait == "0" else ["DEL", "s"])
    await client.request
    assert client.sent[0]["status"] == 404
    assert b'"no_group"' in client.sent[1]["body"]


async def test_a_group_that_is_moved_back_serves_its_readers(app: App, http: httpx.AsyncClient) -> None:
    """A waiting group read gets what PATCH makes new again; XGROUP SETID wakes no reader, as in Redis."""
    await http.post("/v1/streams/s/entries", json={"id": "5-0", "fields": {"a": "b"}})
    await http.post("/v1/streams/s/groups", json={"name": "g"})
    client = WaitingClient(app, "POST", READ, body=b'{"wait":5000}')
    await client.waits(app)
    await http.post("/v1/commands", json=["XGROUP", "SETID", "s", "g", "4-0"])
    assert app.gateway.engine.figures().waiting == 1
    await http.patch("/v1/streams/s/groups/g", json={"last_delivered_id": "0"})
    await client.request
    assert b'"5-0"' in client.sent[1]["body"]
