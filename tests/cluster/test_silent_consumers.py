"""`consumer_timeout_ms` over a server: a silent consumer goes, one that waits in a gateway is not silent."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine import EngineError, entries, ids
from engine.cluster import ClusterEngine, maintenance, words
from engine.cluster.routing import Lane
from engine.cluster.scripts import maintain, touch
from engine.commands.types import Cursor, XAck, XAdd, XDel, XInfoConsumers, XPendingRange, XReadGroup
from engine.commands.weir_commands import DeleteConsumer, EnsureGroup, GiveBack
from engine.replies import ConsumerInfo, GroupRead, PendingEntry, PendingList
from tests.cluster.engines import opened
from tests.cluster.servers import Backend, BackendServer
from tests.engine.asking import reply_of, reply_to
from tests.engine.real_redis import PROGRAMS
from tests.waiting import until_async

LONG_MS = 1 << 40
IDLE_MS = 300
TIMEOUT_S = 10.0
SHORT_S = 0.5
POLL_S = 0.1


@pytest.fixture
async def engine(backend: Backend) -> AsyncIterator[ClusterEngine]:
    """Three entries; the gateway goes through no streams by itself."""
    backend.call("SET", "weir/maintainer", "another")
    async with opened(backend) as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])] * 3, ids=IDS))
        policy = {"consumer_timeout_ms": 1}
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, policy=policy))
        yield engine


IDS = [ids.make(5, n) for n in range(3)]


def reading(consumer: str, **options: Any) -> XReadGroup:
    return XReadGroup(group="g", consumer=consumer, streams=[("s", Cursor.NEW)], **options)


async def look(engine: ClusterEngine, watched_ms: int = LONG_MS, grace_ms: int = 0) -> None:
    await engine.run_request(words.by_script("s", maintain("s", watched_ms, grace_ms), Lane.GROUP))


async def consumers(engine: ClusterEngine) -> dict[str, ConsumerInfo]:
    found: Any = await reply_to(engine, XInfoConsumers(stream="s", group="g"))
    return {one.name: one for one in found}


async def wait_for_idle(engine: ClusterEngine, name: str, idle_ms: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while (await consumers(engine))[name].idle_ms < idle_ms:  # noqa: ASYNC110 - the server's clock
            await asyncio.sleep(0.01)


async def test_a_silent_consumer_goes_and_what_it_held_is_released(engine: ClusterEngine) -> None:
    """But for what was deleted, and acknowledged."""
    await reply_to(engine, reading("a"))
    await reply_to(engine, XDel(stream="s", ids=IDS[:1]))
    await reply_to(engine, XAck(stream="s", group="g", ids=IDS[1:2]))
    await wait_for_idle(engine, "a", 1)
    await look(engine)
    assert await consumers(engine) == {}
    found = await reply_of(
        engine, PendingList, XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=9)
    )
    assert [one for one in found.entries if one.id == IDS[2]] == [PendingEntry(IDS[2], None, -1, 1)]
    read = await reply_of(engine, GroupRead, reading("b", claim_min_idle_ms=0))
    assert [one.id for one in read.streams[0].entries] == IDS[2:]


async def test_what_was_given_back_stays_though_nobody_holds_it(engine: ClusterEngine) -> None:
    """Its owner is no consumer."""
    await reply_to(engine, reading("a"))
    await reply_to(engine, GiveBack(stream="s", group="g", consumer="a", ids=IDS))
    await wait_for_idle(engine, "a", 1)
    await look(engine)
    assert await consumers(engine) == {}
    read = await reply_of(engine, GroupRead, reading("b", claim_min_idle_ms=0))
    assert [one.id for one in read.streams[0].entries] == IDS


async def test_more_than_one_turn_can_release_is_released_in_several(engine: ClusterEngine) -> None:
    """The consumer goes with the last of them."""
    await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])] * 397))
    await reply_to(engine, reading("a", count=400))
    await wait_for_idle(engine, "a", 1)
    await look(engine)
    assert set(await consumers(engine)) == {"a"}
    await wait_for_idle(engine, "a", 1)
    await look(engine)
    assert await consumers(engine) == {}


@pytest.mark.parametrize(("watched_ms", "grace_ms"), [(0, 0), (LONG_MS, LONG_MS // 2), (9, 9)])
async def test_none_goes_before_it_is_sure(engine: ClusterEngine, watched_ms: int, grace_ms: int) -> None:
    """Another primary knows its silence alone, and gateways need time to say who waits."""
    await reply_to(engine, reading("a"))
    await wait_for_idle(engine, "a", 1)
    await look(engine, watched_ms, grace_ms)
    assert set(await consumers(engine)) == {"a"}


async def test_who_waits_or_is_connected_is_not_silent(engine: ClusterEngine) -> None:
    """The first that waits looks by itself; for the others, and those without room, the gateway says so."""
    await reply_to(engine, reading("connected"))
    await reply_to(engine, reading("silent"))
    waiting = [
        asyncio.ensure_future(reply_to(engine, reading(name, block_ms=60_000))) for name in ("first", "b")
    ]
    await reply_to(engine, reading("b"))
    await until_async(lambda: engine.figures().waiting == 2)
    engine.events.active_readers = lambda stream: [("g", "connected"), ("g", "gone")] if stream == "s" else []
    for name in ("b", "connected", "silent"):
        await wait_for_idle(engine, name, IDLE_MS)
    await engine.maintenance.step()
    found = await consumers(engine)
    assert max(found["b"].idle_ms, found["connected"].idle_ms) < IDLE_MS <= found["silent"].idle_ms
    assert "gone" not in found
    await reply_to(engine, DeleteConsumer(stream="s", group="g", consumer="connected", drop=True))
    await engine.maintenance.step()
    assert "connected" not in await consumers(engine)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_one_that_waited_alone_and_works_then_is_not_silent(engine: ClusterEngine) -> None:
    """While it waits it looks by itself; once it is full it asks for nothing, though it is connected."""
    await reply_to(engine, reading("a"))
    waiting = asyncio.ensure_future(reply_to(engine, reading("a", block_ms=60_000)))
    await until_async(lambda: engine.figures().waiting == 1)
    await engine.maintenance.step()
    await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])]))
    await waiting
    engine.events.active_readers = lambda stream: [("g", "a")] if stream == "s" else []
    for _ in range(2):
        await wait_for_idle(engine, "a", IDLE_MS)
        await engine.maintenance.step()
        assert (await consumers(engine))["a"].idle_ms < IDLE_MS


async def test_where_silence_does_not_count_nothing_is_said(backend: Backend, engine: ClusterEngine) -> None:
    await reply_to(engine, EnsureGroup(stream="s", group="h", start=0))
    await reply_to(engine, XReadGroup(group="h", consumer="a", streams=[("s", Cursor.NEW)]))
    engine.events.active_readers = lambda _: [("h", "a"), ("missing", "a")]
    before = backend.call("XINFO", "CONSUMERS", "s", "h")[0][5]
    await until_async(lambda: backend.call("XINFO", "CONSUMERS", "s", "h")[0][5] > before + 20, TIMEOUT_S)
    await engine.maintenance.step()
    assert backend.call("XINFO", "CONSUMERS", "s", "h")[0][5] > before + 20


async def test_to_say_that_one_is_there_delivers_nothing(engine: ClusterEngine) -> None:
    """Also where it holds entries of the last millisecond of all."""
    last = [ids.make((1 << 64) - 1, n) for n in range(3)]
    await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])] * 3, ids=last))
    await reply_to(engine, reading("a"))
    await wait_for_idle(engine, "a", IDLE_MS)
    await engine.run_request(words.by_script("s", touch("s", [("g", "a")]), Lane.GROUP))
    assert (await consumers(engine))["a"].idle_ms < IDLE_MS
    found = await reply_of(
        engine, PendingList, XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=9)
    )
    assert [(one.id, one.delivery_count) for one in found.entries] == [(one, 1) for one in IDS + last]


@pytest.mark.parametrize("kind", sorted(PROGRAMS))
async def test_an_outage_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """While the server does not answer, no gateway can say who is there; then all have their time again."""
    monkeypatch.setattr(maintenance, "_GRACE_S", 0.1)
    wait_s = 2 * POLL_S + SHORT_S + 0.5
    with BackendServer(tmp_path, kind) as server:
        server.call("SET", "weir/maintainer", "another")
        async with opened(server, SHORT_S, poll_s=POLL_S) as engine:
            policy = {"consumer_timeout_ms": 1}
            await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
            server.call("XREADGROUP", "GROUP", "g", "b", "STREAMS", "s", "0")
            await engine.maintenance.step()
            server.pause()
            with pytest.raises(EngineError):
                await engine.maintenance.step()
            await asyncio.sleep(wait_s)
            server.resume()
            await until_async(lambda: engine.failure is None)
            server.call("DEL", "weir/maintainer")
            await engine.maintenance.step()
            assert set(await consumers(engine)) == {"b"}
            await asyncio.sleep(wait_s)
            await engine.maintenance.step()
            assert await consumers(engine) == {}
