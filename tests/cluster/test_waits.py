"""Reads that wait in the engine over a server: many of them, few connections, each woken soon."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine import ReadHandle, SystemClock, entries, ids
from engine.cluster import ClusterEngine, ServerAccess, Standalone
from engine.commands.types import Cursor, XAdd, XPendingRange, XRead, XReadGroup
from engine.commands.weir_commands import EnsureGroup
from engine.replies import GroupRead, PendingList, StreamsRead
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer
from tests.engine.asking import begin_read, reply_of, reply_to
from tests.waiting import until_async

STREAMS = 100
READERS = 5
CONNECTIONS_MAX = 8
# Polling would take about as long as `backend_poll_s`, 5 s.
SOON_S = 4.0


async def test_many_reads_wait_over_few_connections(server: BackendServer) -> None:
    """Each is woken by its stream, and none holds a connection."""
    async with opened(server) as engine:
        reads = [
            asyncio.ensure_future(reply_to(engine, XRead(streams=[(f"s{number}", 0)], block_ms=60_000)))
            for number in range(STREAMS)
            for _ in range(READERS)
        ]
        await until_async(lambda: engine.figures().waiting >= STREAMS * READERS)
        # Subscriptions stand before that, and each has woken its reads once.
        await asyncio.sleep(0.3)
        assert len(server.call("CLIENT", "LIST").splitlines()) <= CONNECTIONS_MAX
        began_s = time.monotonic()
        for number in range(STREAMS):
            server.call("XADD", f"s{number}", "1-0", "a", "1")
        found = await asyncio.gather(*reads)
        assert time.monotonic() - began_s < SOON_S
        assert all(
            isinstance(one, StreamsRead) and one.streams[0].entries.first == ids.make(1, 0) for one in found
        )
        assert engine.figures().waiting == 0


async def test_a_group_gives_each_entry_to_the_one_that_waits_longest(server: BackendServer) -> None:
    """One that is cancelled gets nothing, and costs the others nothing."""
    async with opened(server) as engine:
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
        reads = []
        for number in range(5):
            command = XReadGroup(
                group="g", consumer=f"c{number}", streams=[("s", Cursor.NEW)], count=1, block_ms=60_000
            )
            reads.append(asyncio.ensure_future(reply_to(engine, command)))
            await until_async(lambda count=number + 1: engine.figures().waiting >= count)
        reads[1].cancel()
        await asyncio.wait([reads[1]])
        for number in (1, 2, 3):
            server.call("XADD", "s", f"{number}-0", "a", "1")
        taken = await asyncio.gather(reads[0], reads[2], reads[3])
        assert [one.streams[0].entries[0].id for one in taken if isinstance(one, GroupRead)] == [
            ids.make(number, 0) for number in (1, 2, 3)
        ]
        assert not reads[4].done()
        engine.end_waits()
        await asyncio.wait([reads[4]])


async def test_a_read_of_history_waits_behind_no_other(server: BackendServer) -> None:
    """Nothing that comes would change it: it is answered at once, empty too, as the server does."""
    async with opened(server) as engine:
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, mkstream=True))
        waiting = XReadGroup(group="g", consumer="c0", streams=[("s", Cursor.NEW)], block_ms=60_000)
        first = asyncio.ensure_future(reply_to(engine, waiting))
        await until_async(lambda: engine.figures().waiting >= 1)
        history = XReadGroup(group="g", consumer="c1", streams=[("s", 0)], block_ms=60_000)
        async with asyncio.timeout(SOON_S):
            found = await reply_to(engine, history)
        assert isinstance(found, GroupRead)
        assert not any(len(one.entries) for one in found.streams)
        assert not first.done()
        engine.end_waits()
        await asyncio.wait([first])


class Hasty(ClusterEngine):
    """Cancels who waits in the very cycle in which the read comes back."""

    reading: ReadHandle | None = None

    def _read_group(self, command: XReadGroup, done: Callable[[Any], None]) -> None:
        def take(reply: object) -> None:
            reading = self.reading
            if reading is not None and self.is_before:
                reading.cancel()
            done(reply)
            if reading is not None:
                reading.cancel()
                self.came_back.set()

        super()._read_group(command, take)
        if self.has_ended and self.reading is not None:
            self.reading.end()

    is_before = has_ended = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.came_back = asyncio.Event()


@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize("has_ended", [False, True])
async def test_one_that_is_cancelled_as_its_read_comes_back_gives_back(
    server: BackendServer, *, is_before: bool, has_ended: bool
) -> None:
    """Before and after the reply; and where its wait was ended while the read was on its way."""
    engine = Hasty(Standalone(server.address, ServerAccess(), 5.0), SystemClock())
    engine.is_before = is_before
    await engine.start()
    await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])]))
    await reply_to(engine, EnsureGroup(stream="s", group="g", start=0))
    command = XReadGroup(group="g", consumer="a", streams=[("s", Cursor.NEW)], block_ms=60_000)
    answered: list[object] = []
    engine.has_ended = has_ended
    engine.reading = begin_read(engine, command, answered.append)
    async with asyncio.timeout(SOON_S):
        await engine.came_back.wait()
        engine.reading = None
        found = await reply_to(engine, msgspec.structs.replace(command, consumer="b"))
    assert not answered
    assert isinstance(found, GroupRead)
    assert [one.delivery_count for one in found.streams[0].entries] == [1]
    pending = await reply_of(
        engine, PendingList, XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=9)
    )
    assert [(one.consumer, one.delivery_count) for one in pending.entries] == [("b", 1)]
    await engine.close()
