"""One server that comes back with nothing: who was behind what is lost is told so."""

import asyncio

import pytest

from engine import SystemClock, entries, ids
from engine.cluster import Address, ClusterEngine, ServerAccess, Standalone
from engine.cluster.losses import Losses
from engine.commands.types import Delete, XAdd, XRead
from engine.replies import Entries, Gap, StreamEntries, StreamsRead
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_of, reply_to
from tests.waiting import until_async

BODY = entries.body([("n", "1")])
OLD, NEW = "0123456789abcdef", "fedcba9876543210"


def seq(number: int) -> int:
    return ids.make(number, 0)


async def read(engine: ClusterEngine, after: int, known: str = "") -> StreamsRead:
    return await reply_of(engine, StreamsRead, XRead(streams=[("s", after)], known=[known]))


async def gap(engine: ClusterEngine, after: int, known: str = "") -> tuple[str | None, int | None] | None:
    """The reason, and where to go on."""
    found = await read(engine, after, known)
    told = found.streams[0].gap if found.streams else None
    return None if told is None else (told.reason, told.next)


async def opened(server: BackendServer) -> ClusterEngine:
    topology = Standalone(Address("127.0.0.1", server.port), ServerAccess(), 5.0)
    engine = ClusterEngine(topology, SystemClock())
    await engine.start()
    await reply_to(engine, XAdd(stream="s", bodies=[BODY] * 3, ids=[seq(number) for number in (1, 2, 3)]))
    return engine


async def restart(engine: ClusterEngine, server: BackendServer) -> None:
    """Start it again, with nothing, and wait until the gateway has seen that."""
    noted = asyncio.Event()
    before = engine.health.on_restart

    def note() -> None:
        before()
        noted.set()

    engine.health.on_restart = note
    server.kill()
    server.start()
    async with asyncio.timeout(20):
        await noted.wait()


async def test_a_reader_behind_what_is_lost_is_told(server: BackendServer) -> None:
    """With a cursor of either form, as long as there is no stream and when there is another; once."""
    engine = await opened(server)
    (known,) = (await read(engine, seq(1))).generations
    assert await gap(engine, seq(3)) is None
    await restart(engine, server)
    assert [await gap(engine, seq(2), one) for one in ("", known)] == [("deleted", 0)] * 2
    assert await gap(engine, seq(9)) is None
    await reply_to(engine, XAdd(stream="s", bodies=[BODY], ids=[seq(8)]))
    assert [await gap(engine, seq(2), one) for one in ("", known)] == [("recreated", 0)] * 2
    assert (await read(engine, 0)).streams[0].entries.first == seq(8)
    assert await gap(engine, seq(8)) is None
    await engine.close()


async def test_a_reader_that_waits_is_told(server: BackendServer) -> None:
    """Its wait survives the restart, and ends with it."""
    engine = await opened(server)
    waiting = asyncio.ensure_future(
        reply_to(engine, XRead(streams=[("s", seq(3))], known=[""], block_ms=60_000))
    )
    await until_async(lambda: engine.figures().waiting, 10)
    await restart(engine, server)
    found = await asyncio.wait_for(waiting, 20)
    assert isinstance(found, StreamsRead)
    assert found.streams[0].gap == Gap(seq(3), 0, None, "deleted", 0)
    await engine.close()


async def test_an_end_by_a_client_is_told_over_a_server(server: BackendServer) -> None:
    """To who knows the generation, or was beyond the new end; to nobody else."""
    engine = await opened(server)
    (known,) = (await read(engine, seq(1))).generations
    await reply_to(engine, Delete(streams=["s"]))
    assert [await gap(engine, seq(2), one) for one in ("", known)] == [None, ("deleted", 0)]
    await reply_to(engine, XAdd(stream="s", bodies=[BODY], ids=[seq(1)]))
    assert [await gap(engine, seq(2), one) for one in ("", known)] == [("ahead", seq(1)), ("recreated", 0)]
    await engine.close()


@pytest.mark.parametrize("is_late", [False, True])
def test_a_restart_may_be_noticed_after_the_stream_was_made_again(*, is_late: bool) -> None:
    """Then what was seen before counts, not what was seen since."""
    losses = Losses()
    losses.note(seen(OLD, 9))
    if is_late:
        losses.note(seen(NEW, 2))
    losses.note_restart()
    reads = [XRead(streams=[("s", cursor)], known=[""]) for cursor in (0, 9, 10)]
    assert [losses.informed(read).known for read in reads] == [[""], [OLD], [""]]
    redis = XRead(streams=[("s", 9)])
    assert losses.informed(redis) is redis


def test_what_is_beyond_the_end_was_not_seen() -> None:
    """A cursor that was told so says nothing of the stream."""
    losses = Losses()
    losses.note(seen(OLD, 3))
    told = StreamEntries("s", Entries(), 50, Gap(50, 1, None, "ahead", 3))
    losses.note(StreamsRead([told], [("s", 50)], (), [OLD]))
    losses.note_restart()
    assert losses.informed(XRead(streams=[("s", 50)], known=[""])).known == [""]


def seen(generation: str, cursor: int) -> StreamsRead:
    return StreamsRead((), [("s", cursor)], (), [generation])
