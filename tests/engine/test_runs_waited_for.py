"""Reads that wait, and what they find in files: a thread reads it, and no turn waits for the disk."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.commands.schedule_commands import AddScheduled, NewSchedule, SetSchedule
from engine.commands.types import Trim, XAdd
from engine.entries import body
from engine.recurrence import Rule
from engine.replies import AddedScheduled
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_of, reply_to
from tests.engine.clocks import let_threads_run, settle
from tests.engine.running import keyspace_of
from tests.engine.test_runs import Stored, hold_reads

HELD = [f"{number}-0" for number in range(5, 61, 10)]


def claiming(consumer: str, min_idle_ms: int) -> list[str]:
    words = f"XREADGROUP GROUP g {consumer} COUNT 1 BLOCK 60000 CLAIM {min_idle_ms} STREAMS s >"
    return words.split()


def reads_in_turns(talk: Stored) -> int:
    return keyspace_of(talk.engine).runs.reads_in_turns


@pytest.fixture
async def talk() -> AsyncIterator[Stored]:
    """One entry of each of six runs is pending."""
    async with Stored(MemoryStorage()) as talk:
        for first in range(1, 62, 10):
            await talk.fill(10, first)
            await talk.store()
        await talk.call("XGROUP", "CREATE", "s", "g", "0")
        await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">")
        others = (f"{number}-0" for number in range(1, 71))
        await talk.call("XACK", "s", "g", *(each for each in others if each not in HELD))
        yield talk


def given(reply: Any) -> list[str]:
    ((_, rows),) = reply
    return [row[0] for row in rows]


@pytest.mark.parametrize("how", ["nack", "time"])
async def test_those_that_wait_get_what_is_in_files(talk: Stored, how: str) -> None:
    """Each another entry, in the order in which they came; whether it was given back or is idle by now."""
    begun = [await talk.begin(*claiming(f"c{each}", 500)) for each in range(6)]
    before = reads_in_turns(talk)
    if how == "nack":
        assert await talk.call("XNACK", "s", "g", "SILENT", "IDS", "6", *HELD) == 6
    for _ in range(0 if how == "nack" else 20):
        await talk.pass_ms(100)
        await let_threads_run()
    assert [given(await each) for each in begun] == [[entry_id] for entry_id in HELD]
    assert reads_in_turns(talk) == before


async def test_a_transaction_waits_for_what_it_looks_at(talk: Stored) -> None:
    """Behind its changes, too: it runs as a whole when all was read, and others have turns meanwhile."""
    gate, before = hold_reads(talk.engine), reads_in_turns(talk)
    words = ("XRANGE s 1-0 1-0", "XRANGE s 31-0 31-0", "XDEL s 35-0", "XADD s 200-0 n 1", "XRANGE s 1-0 1-0")
    begun = asyncio.ensure_future(talk.transaction(*words))
    await settle()
    assert not begun.done()
    assert await talk.call("XADD", "s", "100-0", "n", "1") == "100-0"
    gate.set()
    first, second, *others = await begun
    assert (first, second) == ([["1-0", ["n", "value 1"]]], [["31-0", ["n", "value 31"]]])
    assert others == [1, "200-0", first]
    many = [f"XDEL s {number}-0" for number in (15, 26, 55)]
    assert await talk.transaction("XADD s 300-0 n 1", *many, "XRANGE s 61-0 61-0") == [
        "300-0",
        1,
        1,
        1,
        [["61-0", ["n", "value 61"]]],
    ]
    assert reads_in_turns(talk) == before


async def test_what_depends_on_a_change_of_its_own_transaction_is_read_in_its_turn(talk: Stored) -> None:
    """And counted: no look beforehand can know it."""
    before = reads_in_turns(talk)
    trims = [f"XADD s MAXLEN 66 {number}-0 n 1" for number in range(200, 210)]
    assert await talk.transaction(*trims) == [f"{number}-0" for number in range(200, 210)]
    assert (await talk.call("XLEN", "s"), reads_in_turns(talk)) == (66, before + 1)
    before += 1
    words = ("XGROUP CREATE s late 34-0", "XREADGROUP GROUP late a COUNT 1 STREAMS s >")
    made, read = await talk.transaction(*words)
    assert (made, given(read)) == ("OK", ["35-0"])
    assert reads_in_turns(talk) == before + 1
    assert talk.engine.log_figures().stored_reads_in_turns == before + 1


async def test_a_transaction_whose_stream_has_expired_waits_too(talk: Stored) -> None:
    """That it is removed first is no change of its own."""
    await talk.call("XADD", "old", "1-0", "n", "1")
    await talk.call("PEXPIRE", "old", "500")
    talk.clock.pass_ms(1_000)
    before = reads_in_turns(talk)
    replies = await talk.transaction("XLEN old", "XRANGE s 5-0 5-0", "XADD old 2-0 n 1", "XRANGE s 45-0 45-0")
    assert replies == [0, [["5-0", ["n", "value 5"]]], "2-0", [["45-0", ["n", "value 45"]]]]
    assert reads_in_turns(talk) == before


async def test_a_read_whose_time_is_over_while_the_disk_reads_takes_nothing(talk: Stored) -> None:
    """Nor does one that leaves; both are answered once, or not at all."""
    gate = hold_reads(talk.engine)
    over = await talk.begin(*claiming("c", 500))
    left = await talk.begin(*claiming("d", 500))
    await talk.call("XNACK", "s", "g", "SILENT", "IDS", "2", "5-0", "15-0")
    await left.give_up()
    assert not over.done()
    await talk.pass_ms(60_000)
    assert await over is None
    gate.set()
    await talk.pass_ms(1)
    await let_threads_run()
    assert given(await talk.call(*claiming("e", 100_000))) == ["5-0"]
    assert given(await talk.call(*claiming("e", 100_000))) == ["15-0"]
    assert await talk.call("XADD", "s", "100-0", "n", "1") == "100-0"


async def test_a_publication_that_cancels_a_schedule_waits_for_what_its_trim_looks_into(talk: Stored) -> None:
    """Before it has changed anything: neither the schedule nor the loop is held by the disk."""
    new = NewSchedule("later", body([("n", "1")]), Rule(in_ms=60_000))
    await reply_to(talk.engine, SetSchedule(stream="s", schedule=new))
    before = reads_in_turns(talk)
    add = XAdd(stream="s", bodies=[new.body], trim=Trim(maxlen=25, approx=False))
    done = await reply_of(
        talk.engine, AddedScheduled, AddScheduled(stream="s", add=add, cancel="later", cancel_required=True)
    )
    assert (done.cancelled, done.added and done.added.trimmed) == (True, 46)
    assert reads_in_turns(talk) == before
