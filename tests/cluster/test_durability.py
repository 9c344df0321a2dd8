"""What `Weir-Durability` promises over a server with a replica, and what is answered when it is not kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from app.backend import log_health
from app.settings import Settings
from engine import EngineError, SystemClock
from engine.commands.base import Command
from engine.commands.types import IdempotencyKey, XAdd, XLen
from engine.commands.weir_commands import Chunk, EnsureGroup, Publish, PutMetadata
from engine.replies import Added, Reply
from tests.app.conftest import app_on, calling
from tests.cluster.engines import BODY, opened, refused
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_to, submit_each
from tests.waiting import until_async

Pair = tuple[BackendServer, BackendServer]

BASE = "http://127.0.0.1:8080"
ENTRIES = "/v1/streams/s/entries"
# A confirmation takes half of it at most.
TIMEOUT_S = 1.0


@asynccontextmanager
async def serving(
    server: BackendServer, durability: str = "replicated:1"
) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        opened(server, TIMEOUT_S, durability=durability) as engine,
        calling(app_on(engine)) as http,
    ):
        yield http


async def test_a_write_that_no_replica_confirms_is_refused(pair: Pair) -> None:
    """And the same one, sent again with its key, is confirmed once a replica has it: it is stored once."""
    primary, replica = pair
    key = {"Idempotency-Key": "k"}
    async with serving(primary) as http:
        assert (await http.get("/v1/status")).json()["durability"]["answers"] == "replicated:1"
        replica.pause()
        refusal = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers=key)
        assert (refusal.status_code, refusal.json()["code"]) == (503, "not_replicated")
        assert (refusal.json()["outcome"], refusal.json()["retryable"]) == ("unknown", True)
        assert "the outcome is unknown" in refusal.json()["detail"]
        assert "a retry under the same idempotency key is safe" in refusal.json()["detail"]
        assert "retry-after" in refusal.headers
        replica.resume()
        done = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers=key)
        assert done.status_code == 201, done.text
        assert (done.status_code, done.headers["weir-durability"]) == (201, "replicated:1")
        assert primary.call("XLEN", "s") == replica.call("XLEN", "s") == 1


async def test_every_kind_of_write_waits_and_no_read_does(pair: Pair) -> None:
    """Also those of several commands, and those of a transaction; a delivery promises the server's memory."""
    primary, replica = pair
    async with serving(primary) as http:
        made = await http.put("/v1/streams/s/groups/g")
        assert made.status_code == 201, made.text
        first = (await http.post(ENTRIES, json={"fields": {"a": "1"}})).json()["id"]
        replica.pause()
        read = await http.post("/v1/streams/s/groups/g/consumers/c/read", json={})
        assert (read.status_code, read.headers["weir-durability"]) == (200, "memory")
        assert (await http.get(ENTRIES)).status_code == 200
        writes = [
            http.post("/v1/streams/s/groups/g/ack", json={"ids": [first]}),
            http.put("/v1/streams/t"),
            http.delete(f"{ENTRIES}/{first}"),
            http.post("/v1/publish", json={"streams": {"s": [{"fields": {"a": "1"}}]}}),
            http.delete("/v1/streams/s"),
        ]
        answers = await asyncio.gather(*writes)
        assert [one.json()["code"] for one in answers] == ["not_replicated"] * len(writes)
        replica.resume()


@pytest.mark.parametrize(
    "command",
    [
        Publish(parts=[XAdd(stream="s", bodies=[BODY])], chunk=Chunk("p", 1, 1)),
        XAdd(stream="s", bodies=[BODY], idempotency=IdempotencyKey("k", b"d")),
        EnsureGroup(stream="s", group="g", start=0, mkstream=True),
    ],
)
async def test_a_repeated_write_is_confirmed_once_a_replica_has_the_first(
    pair: Pair, command: Command
) -> None:
    """Over a connection that has written nothing before, as after a restart of the gateway."""
    primary, replica = pair
    for _ in range(2):
        async with opened(primary, TIMEOUT_S, durability="replicated:1") as engine:
            replica.pause()
            assert (await refused(engine, command)).code == "not_replicated"
    replica.resume()
    async with opened(primary, TIMEOUT_S, durability="replicated:1") as engine:
        await reply_to(engine, command)


async def test_a_refused_write_is_refused_at_once(pair: Pair) -> None:
    """It has changed nothing that a replica could have."""
    primary, replica = pair
    async with opened(primary, TIMEOUT_S, durability="replicated:1") as engine:
        replica.pause()
        assert (await refused(engine, EnsureGroup(stream="s", group="g", start=0))).code == "no_stream"
        replica.resume()


async def test_one_wait_is_for_all_that_are_written_together(pair: Pair) -> None:
    """Of one call, and of many."""
    primary, _ = pair
    async with opened(primary, durability="replicated:1") as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[BODY]))
        primary.call("CONFIG", "RESETSTAT")
        adds = [XAdd(stream="s", bodies=[BODY]) for _ in range(100)]
        found: asyncio.Future[list[Reply | EngineError]] = asyncio.get_running_loop().create_future()
        submit_each(engine, [*adds, XLen(stream="s")], lambda replies: found.set_result(list(replies)))
        *added, length = await found
        assert all(isinstance(one, Added) for one in added)
        assert length == 101
        await asyncio.gather(*(reply_to(engine, one) for one in adds))
        waits = primary.call("INFO", "commandstats").decode().partition("cmdstat_wait:calls=")[2]
        assert 2 <= int(waits.partition(",")[0]) <= 8


async def test_a_primary_that_dies_while_its_replica_lags_leaves_the_outcome_unknown(pair: Pair) -> None:
    primary, replica = pair
    async with opened(primary, durability="replicated:1") as engine:
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
        replica.pause()
        writing = asyncio.ensure_future(refused(engine, XAdd(stream="s", bodies=[BODY])))
        await until_async(lambda: bool(primary.call("XLEN", "s")))
        primary.kill()
        refusal = await writing
        assert refusal.code == "backend_unavailable"
        assert refusal.members["outcome"] == "unknown"


async def test_on_disk_where_the_server_can_say_so(pair: Pair) -> None:
    """Without an append-only file, or without WAITAOF, each write is refused before it is sent."""
    server, _ = pair
    async with opened(server, durability="fsync:1") as engine:
        assert engine.durability == "fsync:1"
        assert "backend_durability=fsync:1" in engine.figures().missing
        for command in (XAdd(stream="s", bodies=[BODY]), PutMetadata(name="m", value=b"1")):
            assert (await refused(engine, command)).code == "not_supported_by_backend"
        assert await reply_to(engine, XLen(stream="s")) == 0
        server.call("CONFIG", "SET", "appendonly", "yes")
        if server.kind == "redis":
            await until_async(lambda: b"aof_enabled:1" in server.call("INFO", "persistence"))
            assert (await refused(engine, XAdd(stream="s", bodies=[BODY]))).code == "not_supported_by_backend"
        else:
            await until_async(lambda: "backend_durability=fsync:1" not in engine.figures().missing)
            assert isinstance(await reply_to(engine, XAdd(stream="s", bodies=[BODY])), Added)


async def test_an_answer_once_it_is_on_disk_takes_a_backend_that_promises_it(tmp_path: Path) -> None:
    """The refusal says so. A delivery is on no disk then either, and its refusal says to leave it out."""
    read, synced = "/v1/streams/s/groups/g/consumers/c/read", {"prefer": "durability=fsync"}
    with BackendServer(tmp_path, "valkey", ["--appendonly", "yes"]) as server:
        async with serving(server, "memory") as http:
            assert "durability=fsync" in (await http.get("/v1")).json()["missing"]
            refusal = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers=synced)
            assert (refusal.status_code, refusal.json()["code"]) == (501, "not_supported_by_backend")
            assert "with backend_durability=fsync:1 every write is" in refusal.json()["detail"]
        async with serving(server, "fsync:1") as http:
            assert "durability=fsync" not in (await http.get("/v1")).json()["missing"]
            done = await http.post(ENTRIES, json={"fields": {"a": "1"}}, headers=synced)
            assert (done.status_code, done.headers["weir-durability"]) == (201, "fsync")
            assert done.headers["preference-applied"] == "durability=fsync"
            made = await http.put("/v1/streams/s/groups/g", json={"start": "0"}, headers=synced)
            assert made.status_code == 201
            refusal = await http.post(read, json={}, headers=synced)
            assert (refusal.status_code, refusal.json()["code"]) == (501, "not_supported_by_backend")
            assert "leave the preference out" in refusal.json()["detail"]
            assert len((await http.post(read, json={})).json()["entries"]) == 1


async def test_a_promise_that_too_few_replicas_can_keep_is_named(pair: Pair) -> None:
    """Before a write is refused for it, and no longer once there are enough."""
    primary, replica = pair
    async with opened(primary, durability="replicated:2") as engine:
        assert (
            engine.health.unkept_promise == "a primary has 1 connected replicas, and 2 must have each write"
        )
        assert "backend_durability=replicated:2" in engine.figures().missing
    async with opened(primary, durability="replicated:1") as engine:
        assert engine.health.unkept_promise is None
        replica.call("REPLICAOF", "NO", "ONE")
        await until_async(lambda: "backend_durability=replicated:1" in engine.figures().missing)
        replica.call("REPLICAOF", "127.0.0.1", primary.port)
        await until_async(lambda: engine.health.unkept_promise is None)


async def test_with_another_replica_one_confirmation_is_not_all(pair: Pair, tmp_path: Path) -> None:
    """The replica that lacks an acknowledged write may take over: the log says so. With N of both it is
    refused, and nothing is acknowledged that one of them lacks.
    """
    primary, _ = pair
    (tmp_path / "third").mkdir()
    with BackendServer(tmp_path / "third", primary.kind) as other:
        async with opened(primary, TIMEOUT_S, durability="replicated:1") as engine:
            with capture_logs() as lines:
                log_health(engine.health, SystemClock(), lambda _: None)
                other.call("REPLICAOF", "127.0.0.1", primary.port)
                await until_async(lambda: bool(lines))
            (line,) = lines
            assert "a fail-over may lose acknowledged writes" in line["event"]
            assert (
                line["reason"] == "a primary has 2 connected replicas, and replicated:1 waits for 1 of them"
            )
            assert "replicated:N" in line["remedy"]
            other.pause()
            assert isinstance(await reply_to(engine, XAdd(stream="s", bodies=[BODY])), Added)
        async with opened(primary, TIMEOUT_S, durability="replicated:2") as engine:
            assert engine.health.spare_replica is None
            assert (await refused(engine, XAdd(stream="s", bodies=[BODY]))).code == "not_replicated"
        async with opened(primary, TIMEOUT_S) as engine:
            assert engine.health.spare_replica is None
        other.resume()


async def test_memory_waits_for_nothing(pair: Pair) -> None:
    primary, replica = pair
    primary.call("CONFIG", "RESETSTAT")
    async with serving(primary, "memory") as http:
        replica.pause()
        done = await http.post(ENTRIES, json={"fields": {"a": "1"}})
        assert (done.status_code, done.headers["weir-durability"]) == (201, "memory")
        assert b"cmdstat_wait" not in primary.call("INFO", "commandstats")
        assert (await http.get("/v1/status")).json()["durability"]["answers"] == "memory"
        replica.resume()


@pytest.mark.parametrize("durability", ["os", "replicated:0", "fsync"])
def test_the_setting_takes_promises_alone(durability: str) -> None:
    with pytest.raises(ValidationError, match="no durability"):
        Settings(backend_durability=durability)
