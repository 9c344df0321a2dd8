"""What the engine does by itself waits for the disk beside all else, where entries are in files."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from engine.commands import weir_commands
from engine.commands.types import Nack, NackMode, XNack
from engine.replies import DeadLettersFound, Planned, Redriven
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_of, reply_to
from tests.engine.clocks import let_threads_run, settle
from tests.engine.running import keyspace_of
from tests.engine.test_runs import Stored, hold_reads
from tests.engine.test_runs_waited_for import reads_in_turns

PARTS = 8


@pytest.fixture
async def talk() -> AsyncIterator[Stored]:
    """Entries of eight runs."""
    async with Stored(MemoryStorage()) as talk:
        for first in range(1, 10 * PARTS, 10):
            await talk.fill(10, first)
            await talk.store()
        # The last node is full.
        await talk.fill(1, 10 * PARTS + 1)
        await talk.store()
        yield talk
        assert reads_in_turns(talk) == 0


async def pass_s(talk: Stored, seconds: float) -> None:
    """Let time pass, and what waits for the disk be done."""
    for _ in range(round(seconds * 10)):
        await talk.pass_ms(100)
        await let_threads_run()


async def first_of(talk: Stored, stream: str = "s") -> str:
    rows: Any = await talk.call("XRANGE", stream, "-", "+", "COUNT", "1")
    return rows[0][0] if rows else ""


async def test_retention_ends_in_the_middle_of_a_part(talk: Stored) -> None:
    """Exactly; others have their turns while the disk is slow."""
    gate = hold_reads(talk.engine)
    await reply_to(talk.engine, weir_commands.UpdateStream(stream="s", retention={"max_len": 66}))
    await pass_s(talk, 3)
    assert await talk.call("XLEN", "s") == 81
    assert await talk.call("XADD", "t", "1-0", "n", "1") == "1-0"
    gate.set()
    await pass_s(talk, 2)
    assert (await talk.call("XLEN", "s"), await first_of(talk)) == (66, "16-0")


async def hold(talk: Stored, entry_ids: list[str], **policy: object) -> None:
    """Of a group with this policy, these are pending with a consumer each."""
    await reply_to(
        talk.engine,
        weir_commands.EnsureGroup(
            stream="s",
            group="g",
            start=0,
            policy={"dead_letter_stream": "dead", "max_deliveries": 1, **policy},
        ),
    )
    await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    last = int(str(await talk.call("XLEN", "s")))
    others = [f"{number}-0" for number in range(1, last + 1) if f"{number}-0" not in entry_ids]
    await talk.call("XACK", "s", "g", *others)


async def defer(talk: Stored, stream: str, entry_ids: Sequence[str], delay_ms: int) -> None:
    ids = [int(each.split("-")[0]) << 64 | int(each.split("-")[1]) for each in entry_ids]
    nack = Nack(ids=ids, mode=NackMode.FAIL, delay_ms=delay_ms)
    await reply_to(talk.engine, XNack(stream=stream, group="g", nack=nack))


HELD = [f"{number}-0" for number in range(3, 80, 10)]


async def dead(talk: Stored) -> list[str]:
    rows: Any = await talk.call("XRANGE", "dead", "-", "+")
    return [fields[fields.index("weir-id") + 1] for _, fields in rows]


@pytest.mark.parametrize("how", ["overdue", "silent", "deferred"])
async def test_what_comes_back_too_often_becomes_a_dead_letter(talk: Stored, how: str) -> None:
    """Whether it was held for too long, its consumer is silent, or its delay is over; what was deleted is
    settled.
    """
    policy = {"overdue": {"ack_timeout_ms": 500}, "silent": {"consumer_timeout_ms": 500}}.get(how, {})
    await hold(talk, HELD, **policy)
    await talk.call("XDEL", "s", HELD[2])
    if how == "deferred":
        await defer(talk, "s", HELD, 300)
    gate = hold_reads(talk.engine)
    await pass_s(talk, 3)
    assert await dead(talk) == []
    assert await talk.call("XADD", "t", "1-0", "n", "1") == "1-0"
    gate.set()
    await pass_s(talk, 3)
    assert sorted(await dead(talk)) == sorted(each for each in HELD if each != HELD[2])
    assert await talk.call("XPENDING", "s", "g") == [0, None, None, None]


async def test_many_parts_are_looked_into_in_several_steps() -> None:
    """No more than sixteen at once."""
    async with Stored(MemoryStorage()) as talk:
        for first in range(1, 400, 10):
            await talk.fill(10, first)
            await talk.store()
        asked: list[int] = []
        fetcher = talk.engine._fetcher  # noqa: SLF001 - to count
        fetch = fetcher._fetch  # noqa: SLF001

        def count(runs: Any) -> Any:
            asked.append(len(runs))
            return fetch(runs)

        held = [f"{number}-0" for number in range(3, 390, 10)]
        await hold(talk, held, ack_timeout_ms=500)
        fetcher._fetch = count  # type: ignore[method-assign] # noqa: SLF001
        await pass_s(talk, 5)
        assert sorted(await dead(talk)) == sorted(held)
        assert max(asked) <= 16
        assert len(asked) >= 3
        assert reads_in_turns(talk) == 0


async def test_new_entries_that_are_too_old_become_dead_letters(talk: Stored) -> None:
    """Those of several parts in one read, and the reader gets what follows."""
    await reply_to(
        talk.engine,
        weir_commands.EnsureGroup(stream="s", group="g", start=0, policy={"dead_letter_stream": "dead"}),
    )
    now_ms = talk.clock.wall_ms()
    await reply_to(
        talk.engine, weir_commands.UpdateGroup(stream="s", group="g", policy={"max_age_ms": now_ms - 37})
    )
    found: Any = await talk.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "9", "STREAMS", "s", ">")
    assert len(found[0][1]) == 9
    oldest = int(found[0][1][0][0].split("-")[0])
    assert await dead(talk) == [f"{number}-0" for number in range(1, oldest)]


async def test_a_read_for_which_there_is_nothing_waits_for_the_disk_at_its_end(talk: Stored) -> None:
    """A plan says where the reader is; what tells that is in a file."""
    assert await talk.call("XDEL", "s", "45-0", "46-0") == 2
    plan = weir_commands.Plan(streams=[("s", 44 << 64)], ends={"s": 46 << 64}, block_ms=300)
    begun = asyncio.ensure_future(reply_to(talk.engine, plan))
    await settle()
    await let_threads_run()
    # Something else is in the cache.
    await talk.call("XRANGE", "s", "5-0", "5-0")
    await talk.call("XADD", "s", "100-0", "n", "1")
    await let_threads_run()
    assert not begun.done()
    await pass_s(talk, 1)
    reply = await begun
    assert isinstance(reply, Planned)
    assert (reply.streams[0].count, reply.streams[0].lag) == (0, 36)


async def test_readers_that_are_woken_together_all_wait(talk: Stored) -> None:
    """More of them than may wait for callers, who have their part beside them."""
    await talk.call("XGROUP", "CREATE", "s", "g", "0")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
    begun = [
        await talk.begin(*f"XREADGROUP GROUP g c{each} COUNT 1 BLOCK 60000 CLAIM 3600000 STREAMS s >".split())
        for each in range(80)
    ]
    gate = hold_reads(talk.engine)
    held = [f"{number}-0" for number in range(1, 81)]
    await talk.call("XNACK", "s", "g", "SILENT", "IDS", "80", *held)
    warm = await talk.begin("XRANGE", "s", "81-0", "81-0")
    gate.set()
    assert await warm == [["81-0", ["n", "value 81"]]]
    replies: list[Any] = [await each for each in begun]
    assert sorted(reply[0][1][0][0] for reply in replies) == sorted(held)


# --- all of it together -------------------------------------------------------------------------------------


class Life:
    """What clients do, at random, on streams of which nearly all is in files."""

    def __init__(self, talk: Stored, seed: int) -> None:
        self.talk = talk
        self.rng = random.Random(seed)
        self.given: dict[str, list[str]] = {"a": [], "b": []}

    def some(self, stream: str, count: int) -> str:
        return " ".join(self.rng.choices(self.given[stream], k=count))

    async def add(self, stream: str) -> None:
        self.given[stream].append(
            str(await self.talk.call("XADD", stream, "*", "n", "x" * self.rng.randrange(40)))
        )

    async def step(self) -> None:
        rng, stream = self.rng, self.rng.choice("ab")
        consumer = rng.choice("xyz")
        words = [
            f"XRANGE {stream} {self.some(stream, 1)} + COUNT 30",
            f"XREVRANGE {stream} + - COUNT 30",
            f"XREADGROUP GROUP g {consumer} COUNT 7 STREAMS {stream} >",
            f"XREADGROUP GROUP g {consumer} COUNT 7 CLAIM 200 STREAMS {stream} >",
            f"XREADGROUP GROUP g {consumer} COUNT 7 STREAMS {stream} 0",
            f"XACK {stream} g {self.some(stream, 3)}",
            f"XDEL {stream} {self.some(stream, 3)}",
            f"XTRIM {stream} MINID {self.given[stream][-rng.randrange(150, 200)]}",
            f"XAUTOCLAIM {stream} g {consumer} 100 0 COUNT 5",
            f"XNACK {stream} g FAIL IDS 3 {self.some(stream, 3)}",
            f"XCLAIM {stream} g {consumer} 0 {self.some(stream, 3)}",
        ]
        kind = rng.randrange(len(words) + 4)
        if kind < len(words):
            await self.talk.call(*words[kind].split())
        elif kind == len(words):
            mixed = [words[place] for place in (6, 0, 2, 5, 7, 9)]
            *_, last = await self.talk.transaction(f"XADD {stream} * n 1", *mixed, f"XADD {stream} * n 1")
            self.given[stream].append(str(last))
        elif kind == len(words) + 1:
            await self.redrive(stream)
        elif kind == len(words) + 2:
            await defer(self.talk, stream, self.some(stream, 5).split(), rng.randrange(1, 400))
        else:
            for _ in range(rng.randrange(20)):
                await self.add(stream)

    async def redrive(self, stream: str) -> None:
        finding = weir_commands.FindDeadLetters(
            stream=stream, group="g", letters="dead", start=1, end=(1 << 128) - 1, count=2
        )
        found = await reply_of(self.talk.engine, DeadLettersFound, finding)
        redriving = weir_commands.Redrive(stream=stream, group="g", letters="dead", ids=found.ids)
        await reply_of(self.talk.engine, Redriven, redriving)


@pytest.mark.no_cover
@pytest.mark.parametrize("seed", range(4))
async def test_no_turn_of_a_long_life_waits_for_the_disk(seed: int) -> None:
    """With time-outs, dead letters, ages, transactions, and retention by length, by age and by bytes."""
    async with Stored(MemoryStorage()) as talk:
        await talk.call("CONFIG", "SET", "stream-node-max-entries", "10")
        life = Life(talk, seed)
        for stream, retention in (("a", {"max_len": 300, "max_age_ms": 30_000}), ("b", {"max_bytes": 9_000})):
            policy = {
                "dead_letter_stream": "dead",
                "max_deliveries": 2,
                "max_age_ms": 20_000,
                "ack_timeout_ms": 700,
                "consumer_timeout_ms": 1_500,
            }
            ensure = weir_commands.EnsureGroup(
                stream=stream, group="g", start=0, mkstream=True, policy=policy
            )
            await reply_to(talk.engine, ensure)
            await reply_to(talk.engine, weir_commands.UpdateStream(stream=stream, retention=retention))
            for _ in range(250):
                await life.add(stream)
        for number in range(400):
            await life.step()
            if not number % 3:
                await talk.store()
            if not number % 2:
                await talk.pass_ms(life.rng.randrange(1, 300))
                await let_threads_run()
        runs = keyspace_of(talk.engine).runs
        assert runs.reads > 200, "the disk was read"
        assert len(await dead(talk)) > 10, "entries came back too often"
        assert runs.reads_in_turns <= 1, "a transaction that reads on behind what it has deleted itself"
