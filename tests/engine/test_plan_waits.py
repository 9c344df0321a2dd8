"""Plans that wait: woken by what comes, or by the sync that makes it safe, by nothing else."""

import asyncio
from typing import cast

import pytest

from engine import EngineError
from engine.commands.weir_commands import Plan
from engine.replies import Planned
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_to
from tests.engine.clocks import let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk


def begin(
    talk: Conversation, *, durable_only: bool = False, streams: tuple[str, ...] = ("s", "t")
) -> "Reading":
    command = Plan(streams=[(name, 0) for name in streams], durable_only=durable_only, block_ms=5_000)
    return asyncio.ensure_future(reply_to(talk.engine, command))  # type: ignore[arg-type]


Reading = asyncio.Task[Planned]


def counts(reading: Reading) -> dict[str, int]:
    return {one.stream: one.count for one in reading.result().streams}


async def test_a_plan_is_woken_by_what_comes() -> None:
    """Into any of its streams, also into one that was not there."""
    async with Conversation() as talk:
        reading = begin(talk)
        await settle()
        assert (reading.done(), talk.engine.figures().waiting) == (False, 1)
        await talk.add("t", "1-0")
        await reading
        assert counts(reading) == {"t": 1}


async def test_a_plan_whose_time_is_over_tells_what_there_is() -> None:
    """Nothing to read, but where the streams stand."""
    async with Conversation() as talk:
        await talk.add("s", "1-0")
        command = Plan(streams=[("s", 1 << 64), ("t", 0)], block_ms=1_000)
        reading = asyncio.ensure_future(reply_to(talk.engine, command))
        await settle()
        talk.clock.pass_ms(1_000, 1_000)
        await settle()
        planned = cast("Planned", await reading)
        assert [(one.stream, one.count, one.last_id) for one in planned.streams] == [("s", 0, 1 << 64)]
        assert planned.missing == ["t"]


async def test_a_plan_of_what_is_on_disk_is_woken_by_the_sync() -> None:
    """Not by the entry, though others see that at once."""
    disk = SlowDisk()
    async with Conversation(disk) as talk:
        disk.hold()
        reading, plain = begin(talk, durable_only=True), begin(talk)
        await settle()
        await talk.add("s", "1-0")
        await plain
        assert counts(plain) == {"s": 1}
        await settle()
        syncing = asyncio.ensure_future(talk.call("XLEN", "s", synced=True))
        await settle()
        assert (reading.done(), syncing.done()) == (False, False)
        disk.let_go()
        await syncing
        while not reading.done():
            await let_threads_run()
        assert counts(reading) == {"s": 1}


async def test_a_plan_of_what_is_on_disk_waits_for_no_sync_of_its_own() -> None:
    """The one that comes each second is enough."""
    async with Conversation() as talk:
        await talk.call("DBSIZE", synced=True)
        await talk.add("s", "1-0")
        reading = begin(talk, durable_only=True)
        await settle()
        assert not reading.done()
        talk.clock.pass_ms(999, 999)
        for _ in range(5):
            await let_threads_run()
        assert not reading.done()
        talk.clock.pass_ms(1, 1)
        while not reading.done():
            await let_threads_run()
        assert counts(reading) == {"s": 1}


@pytest.mark.parametrize("durable_only", [False, True])
async def test_a_power_cut_takes_back_nothing_that_a_durable_plan_showed(*, durable_only: bool) -> None:
    """And may take back what another one showed."""
    storage = MemoryStorage()
    async with Conversation(storage) as talk:
        await talk.add("s", "1-0")
        await talk.call("XLEN", "s", synced=True)
        await talk.add("s", "2-0")
        reading = begin(talk, durable_only=durable_only, streams=("s",))
        await settle()
        shown = counts(reading)["s"]
        disk = storage.crash()
    async with Conversation(disk) as talk:
        kept = await talk.call("XLEN", "s")
        assert (shown, kept) == ((1, 1) if durable_only else (2, 1))


async def test_the_end_ends_a_plan() -> None:
    """Waiting for entries, or for the disk."""
    async with Conversation() as talk:
        reading = [begin(talk), begin(talk, durable_only=True)]
        await settle()
        talk.engine.end_waits()
        for one in reading:
            with pytest.raises(EngineError) as refusal:
                await one
            assert refusal.value.code == "draining"


async def test_who_leaves_waits_no_more() -> None:
    """Nothing is kept of the plan."""
    async with Conversation() as talk:
        reading = begin(talk, durable_only=True)
        await settle()
        reading.cancel()
        await asyncio.wait([reading])
        assert talk.engine.figures().waiting == 0
