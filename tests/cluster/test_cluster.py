"""The engine over a cluster: streams of several servers, and slots that move between them."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from engine import EngineError, entries
from engine.cluster import ClusterEngine
from engine.cluster.keys import slot_of
from engine.commands import types
from engine.commands.weir_commands import Acknowledge, EnsureGroup, Publish
from engine.ids import ID_MAX
from engine.replies import Added, Entries, GroupRead, Listing, Published, StreamsRead
from tests.cluster.clusters import BackendCluster, move_slot, primaries
from tests.cluster.engines import BODY, opened, refused
from tests.engine.asking import reply_of, reply_to, turn_of
from tests.engine.real_redis import PROGRAMS
from tests.waiting import until, until_async

TIMEOUT_S = 5.0
# One for each of three servers, and one more for the first.
STREAMS = ["a", "b", "c", "{a}2"]
MOVES = 6
ADDED_BETWEEN = 50


@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackendCluster]:
    """A cluster whose slots a test may move, and moves back."""
    with primaries(tmp_path_factory.mktemp("cluster"), request.param) as found:
        yield found


async def test_streams_of_all_servers_are_one_space(cluster: BackendCluster) -> None:
    """They are listed together, and several are read, counted and deleted by one command."""
    assert len({cluster.owner(name) for name in STREAMS}) == 3
    async with opened(cluster) as engine:
        for name in STREAMS:
            assert isinstance(await reply_to(engine, types.XAdd(stream=name, bodies=[BODY])), Added)
        assert await reply_to(engine, types.ListStreams()) == Listing(sorted(STREAMS))
        read = await reply_of(engine, StreamsRead, types.XRead(streams=[(name, 0) for name in STREAMS]))
        assert [one.stream for one in read.streams] == STREAMS
        assert await reply_to(engine, types.Exists(streams=[*STREAMS, "a", "none"])) == 5
        assert await reply_to(engine, types.Delete(streams=["a", "b", "none"])) == 2
        assert await reply_to(engine, types.ListStreams()) == Listing(["c", "{a}2"])


async def test_one_turn_is_about_one_slot(cluster: BackendCluster) -> None:
    """A transaction, a publish into several streams, another name: within a slot, and not beyond."""
    async with opened(cluster) as engine:
        parts = [types.XAdd(stream=name, bodies=[BODY]) for name in ("a", "{a}2", "b")]
        assert isinstance(await reply_to(engine, Publish(parts=parts[:2])), Published)
        assert await reply_to(engine, types.Rename(stream="{a}2", target="{a}3")) is True
        assert await reply_to(engine, types.Copy(stream="a", target="{a}2")) is True
        assert len(await turn_of(engine, parts[:2])) == 2
        for command in (
            Publish(parts=parts),
            types.Rename(stream="a", target="b"),
            types.Copy(stream="a", target="b"),
        ):
            assert (await refused(engine, command)).code == "cross_slot"
        with pytest.raises(EngineError, match="different hash slots"):
            await turn_of(engine, parts)
        lengths = await turn_of(engine, [types.XLen(stream=name) for name in STREAMS])
        assert lengths == [2, 0, 0, 2]


async def test_a_waiting_read_follows_its_stream(cluster: BackendCluster) -> None:
    """To the server that has the slot now, without polling."""
    async with opened(cluster, poll_s=3_600.0) as engine:
        await reply_to(engine, EnsureGroup(stream="a", group="g", start=0, mkstream=True))
        reads = [
            types.XRead(streams=[("a", types.Cursor.LATEST)], block_ms=20_000),
            types.XReadGroup(group="g", consumer="c", streams=[("a", types.Cursor.NEW)], block_ms=20_000),
        ]
        waiting = [asyncio.ensure_future(reply_to(engine, one)) for one in reads]
        await until_async(lambda: engine.figures().waiting == 2)
        source = cluster.owner("a")
        target = next(server for server in cluster.servers if server is not source)
        await asyncio.to_thread(move_slot, cluster.servers, slot_of(b"a"), source, target)
        # A request finds that the slot has moved.
        assert await reply_to(engine, types.XLen(stream="a")) == 0
        await until_async(lambda: target.call("PUBSUB", "NUMSUB", "__keyspace@0__:a")[1] == 1)
        target.call("XADD", "a", "*", "f", "v")
        found, taken = await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)
        assert isinstance(found, StreamsRead)
        assert isinstance(taken, GroupRead)
        assert (len(found.streams), len(taken.streams)) == (1, 1)
    move_slot(cluster.servers, slot_of(b"a"), target, source)


class Load:
    """Publishers, a tail and a group worker of one stream. None of them is refused anything."""

    def __init__(self, engine: ClusterEngine, stream: str) -> None:
        self.added: Counter[bytes] = Counter()
        self.seen: Counter[bytes] = Counter()
        self.delivered: Counter[bytes] = Counter()
        self._engine, self._stream = engine, stream
        self._ending = self._is_published = False

    async def run(self, moves: asyncio.Task[None]) -> None:
        await reply_to(self._engine, EnsureGroup(stream=self._stream, group="g", start=0, mkstream=True))
        publishers = [asyncio.create_task(self._publish(name)) for name in (b"p", b"q")]
        readers = [asyncio.create_task(self._tail()), asyncio.create_task(self._work())]
        await moves
        self._ending = True
        await asyncio.gather(*publishers)
        self._is_published = True
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*readers)

    def wait_for_more(self) -> None:
        """Wait until some more entries have been added. In another thread."""
        enough = len(self.added) + ADDED_BETWEEN
        until(lambda: len(self.added) >= enough, "entries are added")

    def _is_over(self, seen: Counter[bytes]) -> bool:
        return self._is_published and len(seen) == len(self.added)

    async def _publish(self, name: bytes) -> None:
        number = 0
        while not self._ending:
            value = b"%b%d" % (name, number)
            await reply_of(
                self._engine, Added, types.XAdd(stream=self._stream, bodies=[entries.body([("n", value)])])
            )
            self.added[value] += 1
            number += 1

    async def _tail(self) -> None:
        cursor = 0
        while not self._is_over(self.seen):
            found = await reply_of(
                self._engine, StreamsRead, types.XRead(streams=[(self._stream, cursor)], block_ms=200)
            )
            for one in found.streams:
                self.seen.update(value for _, ((_, value),) in one.entries.pairs())
                cursor = one.entries.last

    async def _work(self) -> None:
        read = types.XReadGroup(
            group="g", consumer="c", streams=[(self._stream, types.Cursor.NEW)], block_ms=200
        )
        while not self._is_over(self.delivered):
            found = await reply_of(self._engine, GroupRead, read)
            for one in found.streams:
                for entry in one.entries:
                    assert entry.text is not None
                    self.delivered[entries.pairs_of(entry.text)[0][1]] += 1
                given = [entry.id for entry in one.entries]
                await reply_to(self._engine, Acknowledge(stream=self._stream, group="g", ids=given))


async def test_a_slot_moves_under_load(cluster: BackendCluster) -> None:
    """To and fro: nothing is refused, lost, stored twice or delivered twice."""
    source, target, _ = sorted(cluster.servers, key=lambda server: server is not cluster.owner("a"))

    def move() -> None:
        for number in range(MOVES):
            ends = (source, target) if number % 2 == 0 else (target, source)
            load.wait_for_more()
            move_slot(cluster.servers, slot_of(b"a"), *ends)

    async with opened(cluster) as engine:
        load = Load(engine, "a")
        await load.run(asyncio.create_task(asyncio.to_thread(move)))
        rows = await reply_of(engine, Entries, types.XRange(stream="a", start=0, end=ID_MAX))
        stored = Counter(value for _, ((_, value),) in rows.pairs())
    assert stored == load.added == load.seen == load.delivered
    refusals = source.call("INFO", "errorstats") + target.call("INFO", "errorstats")
    assert {b"MOVED", b"ASK", b"TRYAGAIN"} <= set(re.findall(rb"errorstat_(\w+)", refusals))


async def test_a_slot_without_a_server_is_an_outage(cluster: BackendCluster) -> None:
    """Nothing has run there. It ends when a server has it again."""
    async with opened(cluster) as engine:
        owner = cluster.owner("a")
        owner.call("CLUSTER", "DELSLOTS", slot_of(b"a"))
        refusal = await refused(engine, types.XAdd(stream="a", bodies=[BODY]))
        assert (refusal.code, refusal.members["outcome"]) == ("backend_unavailable", "not done")
        written = asyncio.ensure_future(reply_to(engine, types.XAdd(stream="a", bodies=[BODY])))
        await asyncio.sleep(0.1)
        owner.call("CLUSTER", "ADDSLOTS", slot_of(b"a"))
        assert isinstance(await written, Added)
