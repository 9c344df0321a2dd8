"""Readers that go away: a wait ended from outside, and entries that never reached who they were for."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine import Engine, SystemClock, entries, ids
from engine.commands import Claim, Cursor, GiveBack, XAdd, XClaim, XGroupCreate, XPendingRange, XReadGroup
from engine.replies import GroupRead, PendingList

ENTRY = entries.body([("a", "1")])
READ = XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)], block_ms=60_000)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine.open(None, clock=SystemClock())
    await engine.start()
    await engine.execute(XGroupCreate(stream="s", group="g", start=0, mkstream=True))
    yield engine
    engine.check()
    await engine.close()


async def _read(engine: Engine) -> list[int]:
    reply = await engine.execute(READ)
    assert isinstance(reply, GroupRead)
    return [one.id for one in reply.streams[0].entries]


async def _pending(engine: Engine) -> list[tuple[int, str | None, int]]:
    found = await engine.execute(XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=10))
    assert isinstance(found, PendingList)
    return [(one.id, one.consumer, one.delivery_count) for one in found.entries]


@pytest.mark.parametrize("early", [True, False])
async def test_a_wait_ends_when_it_is_told_to(engine: Engine, *, early: bool) -> None:
    """With nothing, as if its time were over; what comes later is for others."""
    until: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if early:
        until.set_result(None)
    reading = asyncio.ensure_future(engine.execute(READ, until=until))
    if not early:
        while not engine.waiting:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0)
        until.set_result(None)
    assert await reading == GroupRead(())
    assert engine.waiting == 0
    await engine.execute(XAdd(stream="s", bodies=[ENTRY]))
    assert await _pending(engine) == []


async def test_what_was_served_before_is_answered(engine: Engine) -> None:
    """Telling a reader to leave loses nothing that it was given already."""
    until: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reading = asyncio.ensure_future(engine.execute(READ, until=until))
    while not engine.waiting:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0)
    adding = asyncio.ensure_future(engine.execute(XAdd(stream="s", bodies=[ENTRY])))
    while engine.waiting:  # noqa: ASYNC110 - the same
        await asyncio.sleep(0)
    until.set_result(None)
    reply = await reading
    assert isinstance(reply, GroupRead)
    assert len(reply.streams[0].entries) == 1
    await adding


async def test_what_never_arrived_goes_back_as_it_was(engine: Engine) -> None:
    """Without an owner, with a delivery less; what was claimed meanwhile, or is done, stays as it is."""
    await engine.execute(XAdd(stream="s", bodies=[ENTRY] * 3))
    first, second, third = await _read(engine)
    claim = Claim(ids=[second], min_idle_ms=0)
    await engine.execute(XClaim(stream="s", group="g", consumer="other", claim=claim))
    back = GiveBack(stream="s", group="g", consumer="c", ids=[first, second, third + 1])
    assert await engine.execute(back) == 1
    assert await _pending(engine) == [(first, None, 0), (second, "other", 2), (third, "c", 1)]
    assert await engine.execute(back) == 0


async def test_who_claims_gets_it_at_once(engine: Engine) -> None:
    """A blocked read that takes released entries is woken."""
    await engine.execute(XAdd(stream="s", bodies=[ENTRY]))
    (first,) = await _read(engine)
    waiting = XReadGroup(
        group="g", consumer="d", streams=[("s", Cursor.NEW)], block_ms=60_000, claim_min_idle_ms=1 << 50
    )
    reading = asyncio.ensure_future(engine.execute(waiting))
    while not engine.waiting:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0)
    await engine.execute(GiveBack(stream="s", group="g", consumer="c", ids=[first]))
    reply = await reading
    assert isinstance(reply, GroupRead)
    assert [(one.id, one.delivery_count) for one in reply.streams[0].entries] == [(first, 1)]


@pytest.mark.parametrize(("stream", "group"), [("none", "g"), ("s", "none")])
async def test_giving_back_to_what_is_gone_does_nothing(engine: Engine, stream: str, group: str) -> None:
    """It has no effect any more."""
    assert await engine.execute(GiveBack(stream=stream, group=group, consumer="c", ids=[1])) == 0
