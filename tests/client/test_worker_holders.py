"""Workers that stall: what they say late takes nothing from the worker that has the entry now, and work that
is done counts.

Knows: a gateway in this process, whose time the test lets pass. Must never know: how a worker says it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import pytest

from engine.commands.weir_commands import Maintain, ReleaseDeferred
from tests.app.ten_doors import Bench, opened
from tests.client.test_worker import Via, until_done, vias, wait_until_settled
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock
from tests.waiting import until_async
from weir import AsyncClient, Delivery, Worker

STREAM: Final = "orders"
TIMEOUT_MS: Final = 150
LATE_S: Final = 20.0
POLL_S: Final = 0.005


class World:
    """One entry, and a group that takes it from who is silent for `TIMEOUT_MS`."""

    def __init__(self, bench: Bench, url: str, client: AsyncClient) -> None:
        self.bench = bench
        self.url = url
        self.client = client
        self.group = client.group(STREAM, "g")

    async def pass_ms(self, time_ms: int) -> None:
        """Time goes by, and the gateway does what is due."""
        cast("HandClock", self.bench.gateway.clock).pass_ms(time_ms)
        await reply_to(self.bench.engine, Maintain())
        await reply_to(self.bench.engine, ReleaseDeferred())

    def worker(self, consumer: str, via: Via, **options: Any) -> Worker:
        """It takes no second entry while it has one."""
        return Worker(self.url, STREAM, group="g", consumer=consumer, via=via, credit=1, **options)

    async def pending(self) -> list[tuple[str | None, int]]:
        """Consumer and deliveries of each pending entry."""
        return [(one["consumer"], one["delivery_count"]) async for one in self.group.pending()]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as bench:
        url = f"http://127.0.0.1:{await bench.port()}"
        async with AsyncClient(url) as client, asyncio.timeout(2 * LATE_S):
            await client.publish(STREAM, {"n": 1})
            found = World(bench, url, client)
            await found.group.ensure(start="0", ack_timeout_ms=TIMEOUT_MS)
            yield found


class Stage:
    """A handler that stays at work until it is let go."""

    def __init__(self) -> None:
        self.begun: list[Delivery] = []
        self.end = asyncio.Event()
        self.error: Exception | None = None

    async def handle(self, delivery: Delivery) -> None:
        """Work."""
        self.begun.append(delivery)
        await self.end.wait()
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[Stage]:
    """A worker that has begun."""
    stage = Stage()
    async with until_done(worker, stage.handle):
        await until_async(lambda: bool(stage.begun), LATE_S)
        try:
            yield stage
        finally:
            stage.end.set()


@vias
async def test_an_entry_that_fails_late_stays_with_the_worker_that_has_it_now(world: World, via: Via) -> None:
    """It was silent for too long, and so another one works on it; no third delivery follows."""
    slow, other = world.worker("a", via, lease="off"), world.worker("b", via, lease="off")
    async with at_work(slow) as late:
        await world.pass_ms(2 * TIMEOUT_MS)
        async with at_work(other) as now:
            assert await world.pending() == [("b", 2)]
            late.error = ValueError("too late")
            late.end.set()
            # What it has said was carried out.
            await until_async(lambda: slow.holdings.room == 1, LATE_S)
            assert await world.pending() == [("b", 2)]
            now.end.set()
            await wait_until_settled(world.client, STREAM)
            assert (len(late.begun), len(now.begun)) == (1, 1)


@vias
async def test_the_only_worker_keeps_its_entry_through_a_stall(world: World, via: Via) -> None:
    """No one else has it: it is held again with its next word, and the work is done once."""
    async with at_work(world.worker("a", via, lease="off")) as stage:
        await world.pass_ms(2 * TIMEOUT_MS)
        assert await world.pending() == [(None, 1)]
        assert await stage.begun[0].extend() is True
        assert await world.pending() == [("a", 1)]
        stage.end.set()
        await wait_until_settled(world.client, STREAM)
        assert len(stage.begun) == 1


@vias
async def test_work_that_is_done_counts_though_the_worker_has_lost_the_entry(world: World, via: Via) -> None:
    """It was put off behind its back, and it is not begun again."""
    worker = world.worker("a", via)
    async with at_work(worker) as stage:
        await world.group.nack(stage.begun[0].entry.id, delay_ms=60_000)
        await until_async(lambda: not worker.holdings.held, LATE_S)
        assert await world.pending() == [(None, 1)]
        stage.end.set()
        await wait_until_settled(world.client, STREAM)
        await world.pass_ms(60_000)
        assert len(stage.begun) == 1


@vias
async def test_what_comes_back_to_the_worker_that_still_works_on_it_is_not_begun_again(
    world: World, via: Via
) -> None:
    worker = world.worker("a", via)
    async with at_work(worker) as stage:
        await world.group.nack(stage.begun[0].entry.id, delay_ms=60_000)
        await until_async(lambda: not worker.holdings.held, LATE_S)
        await world.pass_ms(60_000)
        await until_async(lambda: bool(worker.holdings.held), LATE_S)
        assert await world.pending() == [("a", 2)]
        assert stage.begun[0].lost is False
        stage.end.set()
        await wait_until_settled(world.client, STREAM)
        assert len(stage.begun) == 1


@vias
async def test_a_handler_that_was_told_to_stop_has_not_done_the_work(world: World, via: Via) -> None:
    """What it returns from is not acknowledged; what it acknowledges itself stays with the one who has it."""
    worker = world.worker("a", via)
    async with at_work(worker) as stage:
        delivery = stage.begun[0]
        await world.group.claim("b", delivery.entry.id)
        await until_async(lambda: not worker.holdings.held, LATE_S)
        assert delivery.lost
        stage.end.set()
        await until_async(lambda: not worker.holdings.unconfirmed, LATE_S)
        delivery.nack()
        assert not worker.holdings.unconfirmed
        assert await world.pending() == [("b", 2)]
        delivery.ack()
        await until_async(lambda: not worker.holdings.unconfirmed, LATE_S)
        assert await world.pending() == [("b", 2)]
        delivery.ack()
        assert not worker.holdings.unconfirmed, "the first word counts"


@vias
async def test_what_is_given_back_during_an_extension_goes_back_after_it(world: World, via: Via) -> None:
    """Else the gateway might do it before, and the extension take it again, for no one."""
    worker = world.worker("a", via, lease="off")
    async with at_work(worker) as stage:
        delivery = stage.begun[0]
        extending = asyncio.create_task(delivery.extend())
        await asyncio.sleep(0)
        delivery.nack(mode="silent")
        assert not worker.holdings.unconfirmed, "not yet"
        assert await extending is False
        assert [one.id for one in worker.holdings.unconfirmed] == [delivery.entry.id]
        stage.end.set()
        await wait_until_settled(world.client, STREAM)
        assert len(stage.begun) == 2
