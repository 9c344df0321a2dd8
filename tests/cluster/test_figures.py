"""What is counted of the servers, and shown in the metrics."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine import EngineError
from engine.cluster.figures import LANES, OUTCOMES
from engine.cluster.health import StreamCount
from engine.cluster.keys import slot_of
from engine.cluster.routing import Lane
from engine.cluster.wire import Address
from engine.commands.types import Delete, IdempotencyKey, XAdd, XInfoStream, XRead
from engine.commands.weir_commands import EnsureGroup
from tests.cluster.clusters import BackendCluster, move_slot, primaries
from tests.cluster.engines import BODY, opened, refused
from tests.cluster.servers import Backend, BackendServer
from tests.engine.asking import reply_to
from tests.server import Server
from tests.waiting import until_async

ADD = XAdd(stream="s", bodies=[BODY])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BackendCluster]:
    with primaries(tmp_path) as found:
        yield found


async def test_requests_are_counted_by_lane_and_outcome(backend: Backend) -> None:
    """With their times; refusals about the request itself are no outage. A group takes two requests."""
    async with opened(backend) as engine:
        counts, times = engine.backend_figures.requests, engine.backend_figures.seconds
        before = {lane: dict(outcomes) for lane, outcomes in counts.items()}
        for _ in range(3):
            await reply_to(engine, ADD)
        assert (await refused(engine, XInfoStream(stream="none"))).code == "no_stream"
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0))
        assert {
            (lane, outcome): counts[lane][outcome] - before[lane][outcome]
            for lane in LANES
            for outcome in OUTCOMES
            if counts[lane][outcome] != before[lane][outcome]
        } == {("write", "ok"): 5, ("read", "refused"): 1}
        assert all(sum(times[lane].counts) == sum(counts[lane].values()) for lane in LANES)
        assert 0 < times["write"].total < sum(counts["write"].values())
        assert engine.backend_figures.in_flight == {"write": 0, "group": 0, "read": 0}
    assert tuple(lane.value for lane in Lane) == LANES


async def test_streams_are_counted_and_nothing_else(backend: Backend) -> None:
    """Neither Weir's own keys, nor those of other programs."""
    async with opened(backend) as engine:
        for name in ("a", "b", "c"):
            await reply_to(engine, XAdd(stream=name, bodies=[BODY], idempotency=IdempotencyKey("k", b"d")))
            await reply_to(engine, EnsureGroup(stream=name, group="g", start=0, policy={"max_deliveries": 3}))
        backend.call("SET", "text", "1")
        for name in ("of//another", "weir/gateways", "of/another"):
            backend.call("XADD", name, "*", "a", "1")
    async with opened(backend) as engine:
        assert engine.figures().streams == 4
        await reply_to(engine, Delete(streams=["a"]))
        await until_async(lambda: engine.figures().streams == 3)


def test_many_streams_are_counted_a_part_at_a_time() -> None:
    """The number is that of the last round; during a server's first one, of those found so far."""
    count, one, other = StreamCount(), Address("one", 1), Address("other", 2)
    first: list[tuple[Address, tuple[bytes, list[bytes]]]] = [
        (one, (b"7", [b"a", b"b", b"a//b", b"weir/gateways"])),
        (other, (b"0", [b"c"])),
    ]
    count.note(first)
    assert (count.streams, count.question(one)[1], count.question(other)[1]) == (3, b"7", b"0")
    count.note([(one, (b"0", [b"d"])), (other, (b"0", []))])
    assert (count.streams, count.question(one)[1]) == (3, b"0")
    count.note([(one, (b"7", [])), (other, (b"0", []))])
    assert count.streams == 3
    count.note([(one, (b"0", [b"a"]))])
    assert count.streams == 1


async def test_requests_that_are_on_their_way_are_shown(own_server: BackendServer) -> None:
    """While the server hangs; after the time for an answer they are over."""
    async with opened(own_server, 0.3) as engine:
        own_server.pause()
        adding = asyncio.gather(*(reply_to(engine, ADD) for _ in range(2)), return_exceptions=True)
        await until_async(lambda: engine.backend_figures.in_flight["write"] == 2)
        assert all(isinstance(error, EngineError) for error in await adding)
        own_server.resume()
        assert engine.backend_figures.in_flight["write"] == 0
        assert engine.backend_figures.requests["write"]["backend_unavailable"] == 2


async def test_scripts_that_a_server_has_lost_and_connections_are_counted(own_server: BackendServer) -> None:
    """A lost one is made again; all are up before and after."""
    async with opened(own_server) as engine:
        figures = engine.backend_figures
        await reply_to(engine, ADD)
        before = figures.repeats["script_unknown"]
        own_server.call("SCRIPT", "FLUSH")
        await reply_to(engine, ADD)
        assert figures.repeats["script_unknown"] == before + 1
        await until_async(lambda: figures.connections_up == figures.connections_wanted >= 3)
        assert figures.connections_lost == 0
        own_server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await until_async(lambda: figures.connections_lost >= 3)
        await reply_to(engine, ADD)
        await until_async(lambda: figures.connections_up == figures.connections_wanted)
    assert (figures.connections_up, figures.connections_wanted) == (0, 0)


async def test_waits_for_replicas_are_timed(own_server: BackendServer) -> None:
    """One that fails too; without a promise there is none."""
    async with opened(own_server, 0.4, durability="replicated:1") as engine:
        assert (await refused(engine, ADD)).code == "not_replicated"
        assert engine.backend_figures.requests["write"]["not_replicated"] == 1
        assert sum(engine.backend_figures.wait_seconds.counts) == 1
        # Half of the time for an answer.
        assert 0.19 < engine.backend_figures.wait_seconds.total < 0.4
    async with opened(own_server) as engine:
        await reply_to(engine, ADD)
        assert not sum(engine.backend_figures.wait_seconds.counts)


async def test_wakes_are_counted_by_their_reason(own_server: BackendServer) -> None:
    """Its subscription wakes a read once, each notification again."""
    async with opened(own_server) as engine:
        await reply_to(engine, ADD)
        reading = asyncio.create_task(
            reply_to(engine, XRead(streams=[("s", (1 << 128) - 1), ("t", 0)], block_ms=5_000))
        )
        await until_async(lambda: engine.backend_figures.wakes["subscription"] == 2)
        await reply_to(engine, ADD)
        await until_async(lambda: engine.backend_figures.wakes["notification"] >= 1)
        await reply_to(engine, XAdd(stream="t", bodies=[BODY]))
        await reading


async def test_slots_that_have_moved_are_counted(cluster: BackendCluster) -> None:
    source, target = cluster.owner("s"), next(one for one in cluster.servers if one is not cluster.owner("s"))
    async with opened(cluster) as engine:
        await reply_to(engine, ADD)
        assert engine.backend_figures.repeats["moved"] == 0
        await asyncio.to_thread(move_slot, cluster.servers, slot_of(b"s"), source, target)
        await reply_to(engine, ADD)
        assert engine.backend_figures.repeats["moved"] == 1


def test_a_gateway_shows_them(own_server: BackendServer, tmp_path: Path) -> None:
    """With a backend alone."""
    with Server(tmp_path / "data", "--backend", own_server.url) as server, httpx.Client() as http:
        http.post(f"{server.url}/v1/streams/s/entries", json={"fields": {"a": "1"}})
        shown = http.get(f"{server.url}/metrics").text
    assert 'weir_backend_requests_total{lane="group",outcome="backend_unavailable"} 0.0' in shown
    assert 'weir_backend_request_seconds_count{lane="write"}' in shown
    assert 'weir_backend_repeats_total{reason="ask"} 0.0' in shown
    assert "weir_backend_wait_seconds_sum 0.0" in shown
    up = [line for line in shown.splitlines() if line.startswith('weir_backend_connections{state="up"}')]
    assert float(up[0].split()[1]) >= 3
    with Server(tmp_path / "embedded") as server, httpx.Client() as http:
        assert "weir_backend" not in http.get(f"{server.url}/metrics").text
