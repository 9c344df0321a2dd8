"""The engine over a cluster whose primary is killed under load: requests follow to the replica."""

import asyncio
from pathlib import Path

from engine import SystemClock
from engine.cluster import ClusterEngine, ClusterTopology, ServerAccess, parse_durability
from engine.cluster.keys import SLOTS, slot_of
from engine.commands.types import XRange
from engine.ids import ID_MAX
from engine.replies import Entries
from tests.cluster.clusters import cluster
from tests.cluster.test_sentinel import Publisher
from tests.engine.asking import reply_of
from tests.waiting import until

TIMEOUT_S = 2.0


async def test_requests_follow_to_the_replica(tmp_path: Path) -> None:
    """What was acknowledged is there, once and in order."""
    with cluster(tmp_path) as shards:
        shard = shards[slot_of(b"s") * len(shards) // SLOTS]
        seeds = [one.servers[0].address for one in shards]

        def fail_over() -> None:
            primary, replica = shard.servers
            publisher.wait_for_more()
            primary.kill()
            until(lambda: replica.call("ROLE")[0] == b"master", "the replica takes over")
            primary.start()
            until(shard.is_replicated, "the old primary follows")
            publisher.wait_for_more()

        topology = ClusterTopology(seeds, ServerAccess(), TIMEOUT_S, parse_durability("replicated:1"))
        engine = ClusterEngine(topology, SystemClock())
        await engine.start()
        publisher = Publisher(engine)
        publishing = asyncio.create_task(publisher.run())
        await asyncio.to_thread(fail_over)
        publisher.end()
        await publishing
        rows = await reply_of(engine, Entries, XRange(stream="s", start=0, end=ID_MAX))
        stored = [value for _, ((_, value),) in rows.pairs()]
        await engine.close()
    assert stored == publisher.acknowledged
    assert set(publisher.refusals) <= {"backend_unavailable", "not_replicated"}
