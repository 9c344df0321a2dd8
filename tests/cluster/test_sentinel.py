"""The engine over the primary that Sentinel names: it follows when another server becomes the primary."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from engine import EngineError, SystemClock, entries
from engine.cluster import Address, ClusterEngine, SentinelTopology, ServerAccess, parse_durability
from engine.commands.types import Cursor, IdempotencyKey, XAdd, XRange, XRead
from engine.commands.weir_commands import Publish
from engine.ids import ID_MAX
from engine.replies import Added, Entries, Published, StreamsRead
from tests.cluster.engines import BODY
from tests.cluster.sentinels import NAME, Watched, watched
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_of, reply_to
from tests.engine.real_redis import PROGRAMS
from tests.server import Server
from tests.waiting import until, until_async

TIMEOUT_S = 2.0
ADDED_BETWEEN = 30
AGAIN_S = 0.02


@pytest.fixture(params=sorted(PROGRAMS))
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path, request.param) as found:
        yield found


@asynccontextmanager
async def opened(servers: Watched, durability: str = "replicated:1") -> AsyncIterator[ClusterEngine]:
    topology = servers.topology(TIMEOUT_S, parse_durability(durability))
    engine = ClusterEngine(topology, SystemClock(), 3_600.0)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


class Publisher:
    """Adds one entry after the other, each again under its key until it is acknowledged."""

    def __init__(self, engine: ClusterEngine) -> None:
        self.acknowledged: list[bytes] = []
        self.refusals: Counter[str] = Counter()
        self._engine = engine
        self._ending = False

    async def run(self) -> None:
        while not self._ending:
            value = b"%d" % len(self.acknowledged)
            key = IdempotencyKey(value.decode(), value)
            add = XAdd(stream="s", bodies=[entries.body([("n", value)])], idempotency=key)
            try:
                assert isinstance(await reply_to(self._engine, add), Added)
            except EngineError as refusal:
                self.refusals[refusal.code] += 1
                await asyncio.sleep(AGAIN_S)
            else:
                self.acknowledged.append(value)

    def end(self) -> None:
        self._ending = True

    def wait_for_more(self) -> None:
        """Wait until some more entries have been added. In another thread."""
        enough = len(self.acknowledged) + ADDED_BETWEEN
        until(lambda: len(self.acknowledged) >= enough, "entries are added")


async def test_the_engine_follows_to_another_primary(servers: Watched) -> None:
    """It is killed under load: what was acknowledged is there, once, and a read that waits goes on."""
    primary, replica = servers.servers

    def fail_over() -> None:
        publisher.wait_for_more()
        primary.kill()
        until(lambda: servers.names(replica), "the replica takes over")
        servers.rejoin(primary)
        until(servers.is_replicated, "the old primary follows")
        publisher.wait_for_more()

    async with opened(servers) as engine:
        assert engine.durability == "replicated:1"
        waiting = asyncio.ensure_future(
            reply_to(engine, XRead(streams=[("t", Cursor.LATEST)], block_ms=60_000))
        )
        await until_async(lambda: engine.figures().waiting == 1)
        publisher = Publisher(engine)
        publishing = asyncio.create_task(publisher.run())
        await asyncio.to_thread(fail_over)
        publisher.end()
        await publishing
        assert isinstance(await reply_to(engine, XAdd(stream="t", bodies=[BODY])), Added)
        found = await asyncio.wait_for(waiting, TIMEOUT_S)
        assert isinstance(found, StreamsRead)
        assert [one.stream for one in found.streams] == ["t"]
        rows = await reply_of(engine, Entries, XRange(stream="s", start=0, end=ID_MAX))
        stored = [value for _, ((_, value),) in rows.pairs()]
    assert stored == publisher.acknowledged
    assert set(publisher.refusals) <= {"backend_unavailable", "not_replicated"}


async def test_a_planned_change_refuses_nothing_for_long(servers: Watched) -> None:
    """The old primary refuses writes, or ends the connection."""
    async with opened(servers, "memory") as engine:
        publisher = Publisher(engine)
        publishing = asyncio.create_task(publisher.run())
        await asyncio.to_thread(publisher.wait_for_more)
        servers.sentinel.call("SENTINEL", "FAILOVER", NAME)
        second = servers.servers[1]
        await asyncio.to_thread(until, lambda: servers.names(second), "the replica takes over")
        await asyncio.to_thread(until, servers.is_replicated, "the old primary follows")
        await asyncio.to_thread(publisher.wait_for_more)
        publisher.end()
        await publishing
        assert second.call("XLEN", "s") >= ADDED_BETWEEN
        assert set(publisher.refusals) <= {"backend_unavailable"}


async def test_one_server_has_all_slots(servers: Watched) -> None:
    """One turn may be about streams of several slots."""
    async with opened(servers) as engine:
        parts = [XAdd(stream=name, bodies=[BODY]) for name in ("a", "b")]
        assert isinstance(await reply_to(engine, Publish(parts=parts)), Published)


def test_a_gateway_finds_the_primary(servers: Watched, tmp_path: Path) -> None:
    """Though the first Sentinel of its list is away; a replica has what it acknowledges."""
    server = Server(tmp_path / "data", "--backend", servers.url)
    with server, httpx.Client(base_url=server.url) as http:
        answer = http.post("/v1/streams/s/entries", json={"fields": {"a": "1"}})
        assert (answer.status_code, answer.headers["weir-durability"]) == (201, "replicated:1")
    assert servers.replica.call("XLEN", "s") == 1
    assert ("backend", f"{servers.url} (durability replicated:1)") in server.serving()


async def test_a_name_that_sentinel_does_not_know_is_an_outage(servers: Watched) -> None:
    """The failure names it, for the log of the start."""
    durability = parse_durability("memory")
    topology = SentinelTopology([servers.sentinel.address], "none", ServerAccess(), TIMEOUT_S, durability)
    topology.start()
    await until_async(lambda: "watches no primary 'none'" in str(topology.failure))
    assert topology.node_of("s") is None
    await topology.close()


async def test_a_server_that_is_no_primary_any_more_is_not_taken(own_server: BackendServer) -> None:
    """Even if a Sentinel says so: neither at first, nor where it comes back as a replica, which may lack any
    entry.
    """
    replies: list[Address] = []

    class Stale(SentinelTopology):
        async def _ask_sentinel(self, address: Address) -> list[bytes]:
            replies.append(address)
            return [b"127.0.0.1", b"%d" % own_server.port]

    known, new = (
        Stale([own_server.address], NAME, ServerAccess(), TIMEOUT_S, parse_durability("memory"))
        for _ in range(2)
    )
    known.start()
    await until_async(lambda: known.nodes and known.nodes[0].failure is None)
    own_server.kill()
    own_server.start("--replicaof", "127.0.0.1", "1")
    new.start()
    for failure in (lambda: known.failure, lambda: known.nodes[0].failure, lambda: new.failure):
        await until_async(lambda failure=failure: "is no primary" in str(failure()))
    assert replies
    assert new.node_of("s") is None
    await known.close()
    await new.close()
