"""Memory that is full although cold entries leave it: of what cannot. Each remedy of the refusal works.

Knows: HTTP, the engine that stores. Must never know: how bytes are counted, what files look like.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx
import pytest

from engine import Caps, Engine
from tests.app.conftest import app_on, calling
from tests.engine.clocks import HandClock, let_threads_run

LIMIT: Final = 1 << 20
_ROUNDS_MAX: Final = 4_000


class Gateway:
    """One with a megabyte for its data alone; above three fifths of it cold entries leave."""

    def __init__(self, http: httpx.AsyncClient, engine: Engine) -> None:
        self.http = http
        self.engine = engine
        self.memory = engine.memory

    async def post(self, path: str, body: object) -> httpx.Response:
        return await self.http.post(f"/v1/streams/{path}", json=body)

    async def publish(self, stream: str, count: int, size: int) -> int:
        """The status of a batch, before which all has left memory that may."""
        storer, packer = self.engine._storer, self.engine._packer  # noqa: SLF001 - what a second would bring
        packer.begin_packing()
        await let_threads_run()
        storer._not_before = 0.0  # noqa: SLF001 - the same
        storer.begin_if_due()
        while storer._running is not None:  # noqa: SLF001 - the same
            await let_threads_run()
        entries = [{"fields": {"v": secrets.token_urlsafe(size)}} for _ in range(count)]
        return (await self.post(f"{stream}/entries", {"entries": entries})).status_code

    async def fill(self, size: int, count: int = 100, *, streams: bool = False) -> int:
        """Publish until that is refused, and the refusal says what to do; how many batches were not."""
        for number in range(_ROUNDS_MAX):
            status = await self.publish(f"s-{number}" if streams else "s", count, size)
            if status != 201:
                refused = await self.post("s/entries", {"fields": {"a": "1"}})
                assert (status, refused.json()["code"]) == (507, "memory_full")
                assert "acknowledge what is pending, trim streams to fewer of their newest" in refused.text
                return number
        raise AssertionError("it was never refused")


@asynccontextmanager
async def small() -> AsyncIterator[Gateway]:
    clock, loop = HandClock(), asyncio.get_running_loop()
    clock.drive(loop)
    caps = Caps(memory_bytes_max=LIMIT, memory_bytes_soft=LIMIT * 3 // 5)
    async with Engine.open(None, clock=clock, fsync="no", caps=caps) as engine:
        engine.memory.observe(0)
        async with calling(app_on(engine, clock=clock)) as http:
            yield Gateway(http, engine)
        engine.check()
    clock.let_be(loop)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with small() as made:
        yield made


async def test_what_may_leave_fills_nothing(gateway: Gateway) -> None:
    """Eight times the limit, in a stream of which the newest nodes fit."""
    assert [await gateway.publish("s", 100, 70) for _ in range(800)] == [201] * 800
    assert gateway.engine.log_figures().stored_bytes > 4 * LIMIT
    assert not gateway.memory.is_full


@pytest.mark.parametrize("remedy", ["trim", "delete", "raise"])
async def test_the_newest_nodes_of_a_stream_stay(gateway: Gateway, remedy: str) -> None:
    """Sixty-four of them, here of one large entry each: fewer of them make room."""
    taken = await gateway.fill(40 << 10, 1)
    assert 15 < taken < 64
    if remedy == "trim":
        assert (await gateway.post("s/trim", {"maxlen": 5})).json()["deleted"] == taken - 5
    elif remedy == "delete":
        assert (await gateway.http.delete("/v1/streams/s")).is_success
    else:
        gateway.memory._full_at = 2 * LIMIT  # noqa: SLF001 - as a restart with another setting has it
    assert await gateway.publish("s", 1, 40 << 10) == 201


async def test_what_is_pending_stays(gateway: Gateway) -> None:
    """Its entries leave, what a group remembers of each does not: acknowledging makes room."""
    await gateway.publish("s", 1, 1)
    await gateway.http.put("/v1/streams/s/groups/g", json={"start": "0"})
    given: list[str] = []
    while await gateway.publish("s", 100, 30) == 201:
        read = (await gateway.post("s/groups/g/consumers/c/read", {"count": 1_000})).json()
        given += [entry["id"] for entry in read["entries"]]
        assert len(given) < 100_000
    assert len(given) > 3_000
    for start in range(0, len(given), 10_000):
        await gateway.post("s/groups/g/ack", {"ids": given[start : start + 10_000]})
    assert await gateway.publish("s", 100, 30) == 201


async def test_many_short_streams_stay(gateway: Gateway) -> None:
    """A stream that has no cold entry has nothing that may leave: deleting some makes room."""
    taken = await gateway.fill(600, 1, streams=True)
    assert taken > 300
    assert gateway.engine.log_figures().stored_bytes == 0
    for number in range(taken // 2):
        await gateway.http.delete(f"/v1/streams/s-{number}")
    assert await gateway.publish("s", 100, 30) == 201
