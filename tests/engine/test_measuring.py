"""Figures of streams and groups, for metrics: what they say, and what they cost."""

from time import perf_counter

import pytest

from engine import Engine, Histogram, SystemClock, entries, ids
from engine.commands.types import Cursor, Nack, NackMode, XAck, XAdd, XDel, XGroupCreate, XNack, XReadGroup
from engine.commands.weir_commands import MeasureStreams
from engine.replies import GroupMeasure, Measured, StreamMeasure
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_of, reply_to
from tests.engine.house import House, adding


def measured(house: House, *streams: str, groups_max: int = 10) -> list[StreamMeasure]:
    command = MeasureStreams(streams=streams, groups_max=groups_max)
    return list(house.of(Measured, command).streams)


def read(house: House, consumer: str = "c", count: int | None = None) -> None:
    house.run(XReadGroup(group="g", consumer=consumer, streams=[("s", Cursor.NEW)], count=count))


def test_a_stream_and_its_group_as_they_are(house: House) -> None:
    """Lag, pending, and since when the oldest entry is with its consumer."""
    house.fill("s", 5)
    house.run(XGroupCreate(stream="s", group="g", start=0))
    read(house, count=2)
    house.now_ms += 1_000
    read(house, consumer="d", count=1)
    house.now_ms += 500
    (found,) = measured(house, "s", "none")
    assert (found.name, found.length, found.groups) == ("s", 5, [GroupMeasure("g", 2, 3, 1_500)])
    assert found.bytes == house.key("s").stream.held_bytes() > 0
    # The oldest two are done: the next is younger.
    house.run(XAck(stream="s", group="g", ids=[1 << ids.SEQUENCE_BITS, 2 << ids.SEQUENCE_BITS]))
    assert measured(house, "s")[0].groups == [GroupMeasure("g", 2, 1, 500)]
    # Released, it waits for a reader, and is late with none.
    house.run(XNack(stream="s", group="g", nack=Nack(ids=[3 << ids.SEQUENCE_BITS], mode=NackMode.SILENT)))
    assert measured(house, "s")[0].groups == [GroupMeasure("g", 2, 1, 0)]


def test_a_lag_that_deletions_hide_is_unknown(house: House) -> None:
    """As in XINFO GROUPS."""
    house.fill("s", 5)
    house.run(XGroupCreate(stream="s", group="g", start=2 << ids.SEQUENCE_BITS))
    house.run(XDel(stream="s", ids=[4 << ids.SEQUENCE_BITS]))
    assert measured(house, "s")[0].groups[0].lag is None


def test_groups_beyond_the_limit_are_counted(house: House) -> None:
    """At the limit, and one below; the limit is for all streams together."""
    for stream, groups in (("s", "ab"), ("t", "c")):
        house.fill(stream, 1)
        for group in groups:
            house.run(XGroupCreate(stream=stream, group=group, start=0))
    for groups_max, names in ((3, ["ab", "c"]), (2, ["ab", ""]), (1, ["a", ""]), (0, ["", ""])):
        found = measured(house, "s", "t", groups_max=groups_max)
        assert ["".join(group.name for group in one.groups) for one in found] == names
        assert [one.groups_left_out for one in found] == [2 - len(names[0]), 1 - len(names[1])]


@pytest.mark.alone
def test_it_costs_the_same_with_many_pending_entries(house: House) -> None:
    """The oldest of 100,000 is found as fast as that of 1,000."""
    took = []
    for pending in (1_000, 99_000):
        for _ in range(pending // 1_000):
            house.run(XAdd(stream="s", bodies=[entries.body([("a", "1")])] * 1_000))
        if not house.key("s").groups:
            house.run(XGroupCreate(stream="s", group="g", start=0))
        # One turn gives at most 10,000.
        for _ in range(pending // 1_000):
            read(house, count=1_000)
        runs = []
        for _ in range(20):
            began = perf_counter()
            measured(house, "s")
            runs.append(perf_counter() - began)
        took.append(min(runs))
    assert measured(house, "s")[0].groups[0].pending == 100_000
    assert took[1] < 3 * took[0] + 50e-6


async def test_figures_are_given_after_the_log_has_failed() -> None:
    """They depend on no position of the log; every other read would be refused."""
    storage = MemoryStorage()
    async with Engine.open(storage, clock=SystemClock(), fsync="always") as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])] * 2))
        assert engine.figures().appended == 2
        assert sum(engine.figures().sync_seconds.counts) >= 1
        storage.fail("sync", 5)
        with pytest.raises(Exception, match="read-only"):
            await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])]))
        found = await reply_of(engine, Measured, MeasureStreams(streams=["s"], groups_max=1))
        assert found.streams[0].length == 3


async def test_appended_counts_from_the_start() -> None:
    """Not what the log brought."""
    storage = MemoryStorage()
    async with Engine.open(storage, clock=SystemClock()) as engine:
        await reply_to(engine, XAdd(stream="s", bodies=[entries.body([("a", "1")])] * 3))
    async with Engine.open(storage, clock=SystemClock()) as engine:
        assert engine.figures().appended == 0
        await reply_to(engine, adding("s"))
        assert engine.figures().appended == 1


def test_a_histogram_counts_at_its_bounds() -> None:
    """A value at a bound belongs below it, as Prometheus's `le` says; what exceeds all has a place."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 1], 7.5)
    kept = histogram.copy()
    histogram.observe(9.0)
    assert (kept.counts, kept.total) == ([2, 2, 1], 7.5)
