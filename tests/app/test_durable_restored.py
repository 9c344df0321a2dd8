"""Offsets of Durable Streams after a restore: a stream is the one that it was, as far as the backup goes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx
import pytest

from engine import Engine
from engine.backup import another_life
from engine.log.backup import back_up, restore
from engine.storage.memory import MemoryStorage
from tests.app.conftest import app_on, calling
from tests.bounds import bounded
from tests.engine.clocks import HandClock

PATH: Final = "/v1/stream/chat"
JSON: Final = {"content-type": "application/json"}
SETTINGS: Final = bounded(log_requests="none", durable_streams=True, durable_long_poll_s=0.1)


@asynccontextmanager
async def gateway(storage: MemoryStorage, clock: HandClock) -> AsyncIterator[httpx.AsyncClient]:
    """One on this log."""
    async with (
        Engine.open(storage, clock=clock) as engine,
        calling(app_on(engine, SETTINGS, clock)) as http,
    ):
        yield http


async def append(http: httpx.AsyncClient, clock: HandClock, message: int) -> str:
    clock.pass_ms(1)
    answer = await http.post(PATH, headers=JSON, content=str(message))
    offset: str = answer.headers["stream-next-offset"]
    return offset


async def read(http: httpx.AsyncClient, offset: str) -> tuple[list[int], list[int], str]:
    """A page, a long-poll and events behind an offset: their messages, and how the next offset ends."""
    page, poll, events = [await http.get(f"{PATH}?offset={offset}{live}") for live in LIVE]
    assert (page.status_code, poll.status_code in (200, 204), events.status_code) == (200, True, 200)
    said = page.headers["stream-next-offset"]
    assert poll.headers["stream-next-offset"] == said
    assert f'"streamNextOffset":"{said}"' in events.text
    return page.json(), poll.json() if poll.content else [], said.rpartition("_")[2]


LIVE: Final = ("", "&live=long-poll", "&live=sse")


@pytest.mark.parametrize("restores", [1, 2])
async def test_readers_go_on_behind_what_was_restored(restores: int) -> None:
    """With what they had before the backup, and with what it lacks: nothing of it is shown again, and all
    that comes is. A fork may begin where it is there.
    """
    clock, storage = HandClock(), MemoryStorage()
    async with gateway(storage, clock) as http:
        await http.put(PATH, headers=JSON)
        offsets = [await append(http, clock, number) for number in range(3)]
    copies = storage
    for _ in range(restores):
        backup, restored = MemoryStorage(), MemoryStorage()
        back_up(copies, backup)
        clock.pass_ms(1)
        restore(backup, restored, another_life(), clock.wall_ms())
        copies = restored
    async with gateway(storage, clock) as http:
        lost = await append(http, clock, 3)
    clock.pass_ms(1)
    async with gateway(copies, clock) as http:
        await append(http, clock, 9)
        await http.post(PATH, headers={"stream-closed": "true"})
        generation = (await http.get("/v1/streams/chat")).json()["generation"]
        assert generation != lost.rpartition("_")[2]
        for number, offset in enumerate(offsets):
            behind = [*range(number + 1, 3), 9]
            assert await read(http, offset) == (behind, behind, generation)
        place = {"stream-forked-from": PATH, "stream-fork-offset": offsets[1]}
        assert (await http.put("/v1/stream/fork", headers={**JSON, **place})).status_code == 201
        assert (await http.get("/v1/stream/fork")).json() == [0, 1]


async def test_an_offset_that_a_backup_lacks_goes_on_at_its_end() -> None:
    """Before anything new comes; a fork there is beyond the end."""
    clock, storage, backup, restored = HandClock(), MemoryStorage(), MemoryStorage(), MemoryStorage()
    async with gateway(storage, clock) as http:
        await http.put(PATH, headers=JSON)
        await append(http, clock, 1)
    back_up(storage, backup)
    async with gateway(storage, clock) as http:
        lost = await append(http, clock, 2)
    clock.pass_ms(1)
    restore(backup, restored, another_life(), clock.wall_ms())
    async with gateway(restored, clock) as http:
        place = {"stream-forked-from": PATH, "stream-fork-offset": lost}
        refused = await http.put("/v1/stream/fork", headers={**JSON, **place})
        assert (refused.status_code, refused.json()["code"]) == (400, "malformed_header")
        page = await http.get(f"{PATH}?offset={lost}")
        end = (await http.head(PATH)).headers["stream-next-offset"]
        assert (page.json(), page.headers["stream-next-offset"]) == ([], end)
        await append(http, clock, 3)
        await http.post(PATH, headers={"stream-closed": "true"})
        for offset in (lost, end):
            messages, polled, _ = await read(http, offset)
            assert messages == polled == [3]


async def test_an_offset_of_a_stream_that_is_in_no_backup_is_refused() -> None:
    """It was made anew after the backup, which has the one before."""
    clock, storage, backup, restored = HandClock(), MemoryStorage(), MemoryStorage(), MemoryStorage()
    async with gateway(storage, clock) as http:
        await http.put(PATH, headers=JSON, content="1")
    back_up(storage, backup)
    async with gateway(storage, clock) as http:
        await http.delete(PATH)
        await http.put(PATH, headers=JSON)
        foreign = await append(http, clock, 2)
    restore(backup, restored, another_life(), clock.wall_ms())
    async with gateway(restored, clock) as http:
        for live in LIVE:
            refused = await http.get(f"{PATH}?offset={foreign}{live}")
            assert (refused.status_code, refused.json()["code"]) == (410, "gap")
