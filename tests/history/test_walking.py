"""Readers walk from the first entry to the last one while everything moves: each gets each entry once."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from pyspark_weir.errors import PipelineError
from tests.history.archiving import Archiver
from tests.history.room import STREAM, Room
from weir import AsyncClient
from weir.errors import WeirError

READERS = 50
ENTRIES = 2_000
BATCH = 50
# Of the newest entries, which a trim keeps.
KEPT = 100

Walk = Callable[[AsyncClient, int], Coroutine[Any, Any, list[str]]]


async def by_pages(client: AsyncClient, count: int) -> list[str]:
    """Page after page, as fast as they come."""
    found: list[str] = []
    after = "0"
    while len(found) < ENTRIES:
        page = await client.read_after(STREAM, after, count=count)
        assert page.gap is None
        found += [entry.id for entry in page.entries]
        assert page.next is not None
        after = page.next
        await asyncio.sleep(0 if page.entries else 0.05)
    return found


async def by_waiting(client: AsyncClient, count: int) -> list[str]:
    """By long-polls."""
    found: list[str] = []
    after = "0"
    while len(found) < ENTRIES:
        page = await client.read_after(STREAM, after, count=count, wait_ms=2_000)
        assert page.gap is None
        found += [entry.id for entry in page.entries]
        assert page.next is not None
        after = page.next
    return found


async def by_tail(client: AsyncClient, _: int) -> list[str]:
    """By server-sent events, which come back by themselves."""
    found: list[str] = []
    async for entry in client.tail(STREAM, after="0-0"):
        found.append(entry.id)
        if len(found) == ENTRIES:
            break
    return found


WALKS: Sequence[Walk] = (by_pages, by_waiting, by_tail)


def keep_moving(room: Room, archiver: Archiver, ended: threading.Event) -> None:
    """Archive, trim, compact, and remove the files that were replaced, again and again."""
    turns = 0
    while not ended.is_set():
        # The gateway may be away.
        with contextlib.suppress(PipelineError, WeirError, AssertionError):
            archiver.run(STREAM)
            archiver.trim(keep_last=KEPT)
        turns += 1
        if turns % 3 == 0:
            archiver.compact()
            archiver.table.refresh()
            archiver.table.delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
        ended.wait(0.1)


def kill_either(room: Room, ended: threading.Event) -> None:
    """The service, and the gateway, each a few times."""
    dice = random.Random(11)
    for side in ("service", "gateway", "service", "gateway"):
        if ended.wait(2 + dice.random()):
            return
        one = room.served if side == "service" else room.gateway
        one.kill()
        time.sleep(dice.random() / 2)
        one.start()


async def test_fifty_readers_walk_over_what_is_archived_trimmed_and_compacted(tmp_path: Path) -> None:
    """From 0 to what comes, in order, while either side is killed."""
    room = Room(tmp_path)
    ended = threading.Event()
    beside = [
        threading.Thread(target=keep_moving, args=(room, room.archiver, ended)),
        threading.Thread(target=kill_either, args=(room, ended)),
    ]
    try:
        async with AsyncClient(room.gateway.url, retry_s=60) as client:
            all_ids = list((await client.publish_batch(STREAM, [{"n": "first"}] * BATCH)).ids)
            room.archiver.run(STREAM)
            room.served.start()
            for one in beside:
                one.start()
            walks = [
                asyncio.create_task(WALKS[number % len(WALKS)](client, 1 + 37 * number))
                for number in range(READERS)
            ]
            while len(all_ids) < ENTRIES:
                published = await client.publish_batch(STREAM, [{"n": str(len(all_ids))}] * BATCH)
                all_ids += published.ids
                await asyncio.sleep(0.2)
            async with asyncio.timeout(120):
                found = await asyncio.gather(*walks)
            stream = await client.get_stream(STREAM)
    finally:
        ended.set()
        for one in beside:
            if one.ident is not None:
                await asyncio.to_thread(one.join)
        room.close()
    assert [own == all_ids for own in found] == [True] * READERS
    # Or it would show nothing.
    assert stream is not None
    assert stream["length"] < ENTRIES / 2
    assert room.archiver.table.version > 10
