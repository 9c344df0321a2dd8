"""What a plan calls durable is on disk: after any power cut it is there, with the same generation."""

import asyncio
import random
from collections.abc import Sequence
from typing import cast

import pytest

from engine import Engine, Fsync
from engine.commands.execution import execute
from engine.commands.weir_commands import Plan
from engine.replies import Planned, StreamPlan
from tests.engine.clocks import let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk
from tests.engine.house import id_of
from tests.engine.running import keyspace_of

STREAMS = ("a", "b")
STEPS = 60


def live(engine: Engine, stream: str) -> tuple[str, list[int]]:
    """Generation and IDs, none for a missing stream."""
    key = keyspace_of(engine).find(stream)
    return ("", []) if key is None else (key.generation, list(key.stream.live_ids()))


def planned(engine: Engine) -> Sequence[StreamPlan]:
    command = Plan(streams=[(name, 0) for name in STREAMS], durable_only=True)
    return cast("Planned", execute(keyspace_of(engine), command, 1).reply).streams


async def step(talk: Conversation, disk: SlowDisk, dice: random.Random) -> None:
    """Something that happens."""
    stream = dice.choice(STREAMS)
    match dice.randrange(9):
        case 0 | 1 | 2 | 3:
            # Under `always` an answer waits for the disk: it is not waited for.
            await talk.begin("XADD", stream, "*", "n", "1")
        case 4:
            await talk.begin("DEL", stream)
        case 5:
            await talk.begin("XSETID", stream, f"{talk.clock.wall_ms() + dice.randrange(3)}-9")
        case 6:
            talk.clock.pass_ms(dice.choice((1, 700)), dice.choice((1, 1_000)))
        case 7:
            disk.hold()
        case _:
            disk.let_go()
    await settle()
    if dice.randrange(2):
        await let_threads_run()


@pytest.mark.halved
@pytest.mark.parametrize("seed", range(8))
async def test_what_was_answered_as_synced_is_durable_at_once(seed: int) -> None:
    """Even if others publish while it is synced."""
    dice = random.Random(seed)
    disk = SlowDisk()
    async with Conversation(disk) as talk:

        async def others() -> None:
            while True:
                await talk.call("XADD", dice.choice(STREAMS), "*", "n", "0")
                await asyncio.sleep(0)

        load = asyncio.ensure_future(others())
        for _ in range(5):
            disk.hold()
            mine = asyncio.ensure_future(talk.call("XADD", "a", "*", "n", "1", synced=True))
            await settle()
            disk.let_go()
            given = id_of(str(await mine))
            plan = planned(talk.engine)[0]
            assert plan.stream == "a"
            assert plan.end >= given
        load.cancel()


@pytest.mark.halved
@pytest.mark.parametrize("fsync", ["everysec", "always"])
@pytest.mark.parametrize("seed", range(12))
async def test_a_power_cut_takes_back_nothing_that_was_called_durable(seed: int, fsync: Fsync) -> None:
    """At any moment, also of a stream that was removed and made anew meanwhile."""
    dice = random.Random(seed)
    disk = SlowDisk()
    result = 0
    async with Conversation(disk, fsync) as talk:
        for _ in range(STEPS):
            await step(talk, disk, dice)
            plans = planned(talk.engine)
            before = {one.stream: live(talk.engine, one.stream) for one in plans}
            after = Engine.open(disk.crash(), clock=talk.clock, fsync=fsync)
            try:
                for one in plans:
                    generation, there = before[one.stream]
                    durable = one.durable or 0
                    safe = [entry_id for entry_id in there if entry_id <= durable]
                    assert one.count == len(safe)
                    if safe:
                        kept_generation, kept = live(after, one.stream)
                        assert kept_generation == generation
                        assert set(safe) <= set(kept)
                        result += 1
            finally:
                await after.close()
    assert result, "something was durable"
