"""Readers that go away: a wait ended from outside, and entries that never reached who they were for."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine import Engine, EngineError, ReadHandle, SystemClock, entries, ids
from engine.commands.types import Cursor, XAck, XAdd, XGroupCreate, XPendingRange, XReadGroup
from engine.commands.weir_commands import GiveBack
from engine.replies import GroupRead, PendingList, Reply
from engine.storage.memory import MemoryStorage
from tests.engine.asking import begin_read, reply_of, reply_to, submit
from tests.engine.house import House, everywhere, id_of
from tests.engine.running import engine_of

ENTRY = entries.body([("a", "1")])
NEW = [("s", Cursor.NEW)]
READ = XReadGroup(group="g", consumer="c", streams=NEW, block_ms=60_000)
NEXT = XReadGroup(group="g", consumer="next", streams=NEW, block_ms=60_000)


# Its answers wait for the disk.
engine = engine_of(
    XGroupCreate(stream="s", group="g", start=0, mkstream=True), clock=SystemClock, fsync="always"
)


class Reader:
    """A read, and how it was answered."""

    def __init__(self, engine: Engine, command: XReadGroup) -> None:
        self.answers: list[Sequence[Reply | EngineError]] = []
        self.handle: ReadHandle = begin_read(engine, command, self.answers.append)

    async def answer(self) -> GroupRead:
        """Its reply, once it is there."""
        while not self.answers:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0)
        (reply,) = self.answers.pop()
        assert isinstance(reply, GroupRead)
        return reply

    async def ids(self) -> list[int]:
        """The IDs of what it was given."""
        return [one.id for read in (await self.answer()).streams for one in read.entries]


async def _pending(engine: Engine) -> list[tuple[int, str | None, int]]:
    found = await reply_of(
        engine, PendingList, XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=10)
    )
    return [(one.id, one.consumer, one.delivery_count) for one in found.entries]


def _add(engine: Engine) -> None:
    """Publish, and let the reads that wait run; nothing is on disk yet."""
    submit(engine, [XAdd(stream="s", bodies=[ENTRY])], lambda _: None)


async def test_a_wait_ends_when_it_is_told_to(engine: Engine) -> None:
    """With nothing, as if its time were over; what comes right behind is for others."""
    reader, following = Reader(engine, READ), Reader(engine, NEXT)
    reader.handle.end()
    assert not reader.answers, "never at once"
    _add(engine)
    assert await reader.answer() == GroupRead(())
    assert len(await following.ids()) == 1


async def test_a_wait_that_is_cancelled_is_gone_at_once(engine: Engine) -> None:
    """It takes nothing, and nobody is called; once more changes nothing."""
    reader, following = Reader(engine, READ), Reader(engine, NEXT)
    reader.handle.cancel()
    assert engine.figures().waiting == 1
    _add(engine)
    assert len(await following.ids()) == 1
    reader.handle.cancel()
    reader.handle.end()
    assert not reader.answers


async def test_a_read_that_waits_behind_others_is_cancelled_too(engine: Engine) -> None:
    """Before it has run."""
    one = XReadGroup(group="g", consumer="c", streams=NEW, block_ms=60_000, count=1)
    readers = [Reader(engine, one) for _ in range(300)]
    for _ in readers:
        _add(engine)
    behind = Reader(engine, XReadGroup(group="g", consumer="late", streams=NEW, block_ms=60_000))
    behind.handle.cancel()
    given = [await reader.ids() for reader in readers]
    assert len({one for found in given for one in found}) == 300
    _add(engine)
    assert len(await Reader(engine, NEXT).ids()) == 1
    assert not behind.answers


async def test_what_was_served_before_is_answered(engine: Engine) -> None:
    """Telling a reader to end loses nothing that it was given already."""
    reader = Reader(engine, READ)
    _add(engine)
    reader.handle.end()
    assert len(await reader.ids()) == 1


@pytest.mark.parametrize("when", ["before its answer", "behind its answer"])
@pytest.mark.parametrize("noack", [False, True])
async def test_what_was_served_and_has_not_left_is_undone(engine: Engine, when: str, *, noack: bool) -> None:
    """Whoever waits gets it in the same turn, as if it had never been delivered."""
    reader = Reader(engine, XReadGroup(group="g", consumer="c", streams=NEW, block_ms=60_000, noack=noack))
    following = Reader(engine, NEXT)
    _add(engine)
    if when == "behind its answer":
        assert len(await reader.ids()) == 1
    reader.handle.cancel()
    (found,) = (await following.answer()).streams
    assert [one.delivery_count for one in found.entries] == [1]
    assert [(consumer, count) for _, consumer, count in await _pending(engine)] == [("next", 1)]
    assert not reader.answers


async def test_a_task_that_is_cancelled_takes_nothing(engine: Engine) -> None:
    """While it waits, and once it was served."""
    for is_served in (False, True):
        reading = asyncio.ensure_future(reply_to(engine, READ))
        while not engine.figures().waiting:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0)
        if is_served:
            _add(engine)
        reading.cancel()
        await asyncio.wait([reading])
        assert await _pending(engine) == []
    assert len(await Reader(engine, NEXT).ids()) == 1


@everywhere
def test_what_never_arrived_goes_back_as_it_was(house: House) -> None:
    """Without an owner, with a delivery less; what was claimed meanwhile, or is done, stays as it is."""
    house.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    house.fill("s", 3)
    house.read("g", "c", "s")
    house.call("XCLAIM", "s", "g", "other", "0", "2-0")
    wanted = [id_of(words) for words in ("1-0", "2-0", "3-1")]
    for consumer, done in (("none", 0), ("c", 1), ("c", 0)):
        assert house.run(GiveBack(stream="s", group="g", consumer=consumer, ids=wanted)) == done
    rows: Any = house.pending("s", "g")
    assert [[*row[:2], row[3]] for row in rows] == [["1-0", "", 0], ["2-0", "other", 2], ["3-0", "c", 1]]
    assert rows[0][2] == -1
    assert house.call("XPENDING", "s", "g") == [3, "1-0", "3-0", [["c", "1"], ["other", "1"]]]
    assert house.consumers("s", "g") == ["c", "other"]
    taken = house.of(GroupRead, XReadGroup(group="g", consumer="d", streams=NEW, claim_min_idle_ms=60_000))
    assert [(one.id, one.deliveries) for one in taken.streams[0].entries] == [(wanted[0], 0)]
    # Where it is kept until then is not shown.
    assert "weir:" not in str(house.call("XINFO", "STREAM", "s", "FULL"))


async def test_who_claims_gets_it_at_once(engine: Engine) -> None:
    """A blocked read that takes released entries is woken."""
    await reply_to(engine, XAdd(stream="s", bodies=[ENTRY]))
    (first,) = await Reader(engine, READ).ids()
    waiting = XReadGroup(group="g", consumer="d", streams=NEW, block_ms=60_000, claim_min_idle_ms=1 << 50)
    reader = Reader(engine, waiting)
    await reply_to(engine, GiveBack(stream="s", group="g", consumer="c", ids=[first]))
    (found,) = (await reader.answer()).streams
    assert [(one.id, one.delivery_count) for one in found.entries] == [(first, 1)]


@pytest.mark.parametrize(("stream", "group"), [("none", "g"), ("s", "none")])
async def test_giving_back_to_what_is_gone_does_nothing(engine: Engine, stream: str, group: str) -> None:
    """It has no effect any more."""
    assert await reply_to(engine, GiveBack(stream=stream, group=group, consumer="c", ids=[1])) == 0


async def test_a_read_is_answered_before_what_was_settled_after_it() -> None:
    """Else a consumer that comes back hears of its ack first, and takes the entry behind it for another."""
    engine = Engine.open(MemoryStorage(), clock=SystemClock(), fsync="no")
    async with engine:
        await reply_to(engine, XGroupCreate(stream="s", group="g", start=0, mkstream=True))
        await reply_to(engine, XAdd(stream="s", bodies=[ENTRY]))
        (given,) = await Reader(engine, READ).ids()
        order: list[str] = []
        history = XReadGroup(group="g", consumer="c", streams=[("s", 0)])
        begin_read(engine, history, lambda _: order.append("history"))
        submit(engine, [XAck(stream="s", group="g", ids=[given])], lambda _: order.append("ack"))
        while len(order) < 2:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0)
    assert order == ["history", "ack"]
