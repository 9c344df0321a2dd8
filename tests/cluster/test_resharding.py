"""A cluster grows and shrinks under load: a new primary gets slots of the others, and gives them back."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from engine.cluster.keys import slot_of
from engine.commands.types import XRange
from engine.ids import ID_MAX
from engine.replies import Entries
from tests.cluster.clusters import BackendCluster, added_primary, move_slot, primaries
from tests.cluster.engines import opened
from tests.cluster.test_cluster import Load
from tests.engine.asking import reply_of
from tests.engine.real_redis import PROGRAMS
from tests.waiting import until

# Each at a server of its own.
STREAMS: Final = ("a", "b")
# Writes, group reads, plain reads, notifications.
CONNECTIONS: Final = 4


@pytest.fixture(params=sorted(PROGRAMS))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendCluster]:
    """A cluster of the test alone."""
    with primaries(tmp_path, request.param, 2) as found:
        yield found


async def test_a_new_primary_gets_slots_under_load_and_gives_them_back(
    cluster: BackendCluster, tmp_path: Path
) -> None:
    """Nothing is refused, lost, stored twice or delivered twice."""
    owners = [cluster.owner(stream) for stream in STREAMS]
    assert len(set(owners)) == len(STREAMS)
    loads: list[Load] = []
    with added_primary(tmp_path / "new", cluster) as new:
        servers = [*cluster.servers, new]

        def connections() -> int:
            return len([row for row in new.call("CLIENT", "LIST").splitlines() if b"name=weir" in row])

        def wait_for_more() -> None:
            for load in loads:
                load.wait_for_more()

        def reshard() -> None:
            wait_for_more()
            for stream, owner in zip(STREAMS, owners, strict=True):
                move_slot(servers, slot_of(stream.encode()), owner, new)
            wait_for_more()
            until(lambda: connections() >= CONNECTIONS, "the gateway has all its connections to it")
            for stream, owner in zip(STREAMS, owners, strict=True):
                move_slot(servers, slot_of(stream.encode()), new, owner)
            wait_for_more()

        async with opened(cluster) as engine:
            assert connections() == 0
            loads += [Load(engine, stream) for stream in STREAMS]
            moves = asyncio.create_task(asyncio.to_thread(reshard))
            await asyncio.gather(*(load.run(moves) for load in loads))
            for stream, load in zip(STREAMS, loads, strict=True):
                rows = await reply_of(engine, Entries, XRange(stream=stream, start=0, end=ID_MAX))
                stored = Counter(value for _, ((_, value),) in rows.pairs())
                assert stored == load.added == load.seen == load.delivered
