"""Entries that are given back for later: they come back at their time, after a crash too.

Knows: the real engine on a modelled disk, under a clock that is moved by hand.
Must never know: how it notices that a time has come.
"""

from typing import Any, Final

import pytest

from engine import Engine, ids
from engine.commands.housekeeping import TURN_RELEASES_MAX
from engine.commands.types import Cursor, Nack, NackMode, XNack, XReadGroup
from engine.commands.weir_commands import DeleteGroup, EnsureGroup, ReleaseDeferred, UpdateGroup
from engine.storage.memory import MemoryStorage
from tests.engine.conversation import Conversation, talk_of
from tests.engine.house import House, everywhere, id_of
from tests.engine.images import image
from tests.engine.running import keyspace_of

READING: Final = ("XREADGROUP", "GROUP", "g", "b", "BLOCK", "60000", "CLAIM", "9999999", "STREAMS", "s", ">")
# Three entries, which `a` holds.
HANDED_OUT: Final = (
    ("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM"),
    *[("XADD", "s", f"{number}-0", "a", "1") for number in (1, 2, 3)],
    ("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", ">"),
)


talk = talk_of(*HANDED_OUT)


async def defer(talk: Conversation, ms: int, *entry_ids: str, mode: str = "FAIL") -> object:
    return await talk.call("WEIR.NACK", "s", "g", mode, "DELAY", ms, "IDS", len(entry_ids), *entry_ids)


def of(engine: Engine) -> list[tuple[str, str | None, int | None]]:
    """All that is pending: ID, owner, and when it comes back."""
    group = keyspace_of(engine).keys["s"].groups["g"]
    return [
        (ids.format(entry_id), None if one.consumer is None else one.consumer.name, one.until_ms)
        for entry_id, one in group.pending.items()
    ]


def ids_in(reply: Any) -> list[str]:
    return [entry[0] for entry in reply[0][1]]


async def test_a_deferred_entry_comes_back_at_its_millisecond(talk: Conversation) -> None:
    """And wakes who waits for released entries."""
    assert await defer(talk, 200, "2-0") == 1
    reader = await talk.begin(*READING)
    await talk.pass_ms(199)
    assert not reader.done()
    await talk.pass_ms(1)
    assert ids_in(await reader) == ["2-0"]


async def test_they_come_back_in_the_order_of_their_times(talk: Conversation) -> None:
    for ms, entry_id in ((300, "1-0"), (100, "3-0"), (100, "2-0")):
        await defer(talk, ms, entry_id)
    assert [until for _, _, until in of(talk.engine)] == [talk.clock.wall_ms() + ms for ms in (300, 100, 100)]
    await talk.pass_ms(300)
    assert ids_in(await talk.call(*READING)) == ["3-0", "2-0", "1-0"]


@pytest.mark.parametrize("rewritten", [False, True])
async def test_a_crash_changes_neither_the_times_nor_the_counts(
    rewritten: bool,  # noqa: FBT001 - a parameter
) -> None:
    storage = MemoryStorage()
    async with Conversation(storage, fsync="always") as talk:
        await talk.call_each(HANDED_OUT)
        await defer(talk, 200, "1-0", mode="FATAL")
        await defer(talk, 5_000, "2-0")
        if rewritten:
            await talk.engine.rewrite()
        crashed, before = storage.crash(), image(keyspace_of(talk.engine))
    async with Conversation(crashed) as talk:
        assert image(keyspace_of(talk.engine)) == before
        await talk.pass_ms(200)
        group = keyspace_of(talk.engine).keys["s"].groups["g"]
        assert [one.delivery_count for _, one in group.pending.items()] == [2**63 - 1, 1, 1]
        assert of(talk.engine)[0] == ("1-0", None, None)
        await talk.pass_ms(4_800)
        assert of(talk.engine)[1] == ("2-0", None, None)


async def test_what_was_due_while_nothing_ran_comes_back_at_once() -> None:
    storage = MemoryStorage()
    async with Conversation(storage, fsync="always") as talk:
        await talk.call_each(HANDED_OUT)
        await defer(talk, 200, "1-0")
    late = Conversation(storage.crash())
    late.clock.pass_ms(200)
    async with late as talk:
        assert ids_in(await talk.call(*READING)) == ["1-0"]


async def test_a_clock_that_is_set_changes_when_they_come_back_and_nothing_else(talk: Conversation) -> None:
    await defer(talk, 3_600_000, "1-0")
    talk.clock.pass_ms(-3_600_000, 0)
    await talk.pass_ms(3_600_000)
    assert of(talk.engine)[0][2] is not None
    talk.clock.pass_ms(3_600_000, 0)
    # The clock is looked at each second.
    await talk.pass_ms(0)
    talk.clock.pass_ms(0, 1_000)
    await talk.pass_ms(0)
    assert of(talk.engine)[0] == ("1-0", None, None)


@pytest.mark.parametrize("ms", ["-1", "604800001", "soon"])
async def test_a_delay_is_seven_days_at_most(talk: Conversation, ms: str) -> None:
    refusal = "-ERR DELAY is a number of milliseconds up to 604800000, which are seven days"
    assert await talk.call("WEIR.NACK", "s", "g", "FAIL", "IDS", "1", "1-0", "DELAY", ms) == refusal
    assert await talk.call("XNACK", "s", "g", "FAIL", "IDS", "1", "1-0", "DELAY", "5") == (
        "-ERR Unrecognized XNACK option 'DELAY'"
    )
    assert of(talk.engine)[0][1] == "a"


# --- over all engines -----------------------------------------------------------------------------------


@pytest.fixture
def held(house: House) -> House:
    """Three entries, which `a` holds."""
    for words in HANDED_OUT:
        house.call(*words)
    return house


def give_back(house: House, ms: int, *entry_ids: str, mode: str = "FAIL") -> object:
    return house.call("WEIR.NACK", "s", "g", mode, "DELAY", ms, "IDS", len(entry_ids), *entry_ids)


def released(house: House, stream: str = "s") -> list[str]:
    """What a read gets that takes what was given back."""
    reply: Any = house.read("g", "b", stream, ">", "CLAIM", "9999999")
    return [] if reply is None else ids_in(reply)


@everywhere
def test_nothing_takes_it_until_then(held: House) -> None:
    """No read, no claim of what is idle; it belongs to no consumer that is shown. A claim by its ID does."""
    assert give_back(held, 60_000, "1-0", "2-0") == 2
    for _ in range(2):
        claimed: Any = held.call("XAUTOCLAIM", "s", "g", "b", "0", "0")
        assert [entry[0] for entry in claimed[1]] == ["3-0"]
    assert released(held) == []
    assert held.call("XPENDING", "s", "g") == [3, "1-0", "3-0", [["b", "1"]]]
    assert held.consumers("s", "g") == ["a", "b"]
    held.pass_ms(10)
    idle: Any = held.call("XPENDING", "s", "g", "IDLE", "1", "-", "+", "10")
    assert [row[0] for row in idle] == ["3-0"]
    assert held.call("XCLAIM", "s", "g", "b", "0", "1-0", "JUSTID") == ["1-0"]
    owners = [row[1] for row in held.pending("s", "g")]  # type: ignore[index]
    assert owners == ["b", "", "b"]


@everywhere
def test_what_was_settled_meanwhile_does_not_come_back(held: House) -> None:
    """Acknowledged, given back at once and taken, or of a group that is another one by then."""
    give_back(held, 200, "1-0", "2-0")
    assert held.call("XACK", "s", "g", "1-0") == 1
    assert held.call("XNACK", "s", "g", "FAIL", "IDS", "1", "2-0") == 1
    assert released(held) == ["2-0"]
    held.wait_ms(200)
    assert released(held) == []
    assert [row[0] for row in held.pending("s", "g")] == ["2-0", "3-0"]  # type: ignore[index]
    give_back(held, 200, "2-0")
    held.run(DeleteGroup(stream="s", group="g", drop=True))
    held.call("XGROUP", "CREATE", "s", "g", "$")
    held.wait_ms(200)
    assert released(held) == []


@everywhere
@pytest.mark.parametrize(("mode", "count"), [("SILENT", 0), ("FAIL", 1), ("FATAL", 2**63 - 1)])
def test_the_count_is_kept_exactly(held: House, mode: str, count: int) -> None:
    """Numbers of scripts are not exact beyond 2^53."""
    give_back(held, 100, "1-0", mode=mode)
    for _ in range(2):
        assert held.pending("s", "g")[0][1::2] == ["", count]  # type: ignore[index]
        held.wait_ms(100)
    assert released(held) == ["1-0"]
    again = count if mode == "FATAL" else count + 1
    assert held.pending("s", "g")[0][1::2] == ["b", again]  # type: ignore[index]


@everywhere
@pytest.mark.parametrize("way", ["read", "claim", "autoclaim"])
def test_what_was_given_back_as_fatal_is_a_dead_letter_with_its_count(held: House, way: str) -> None:
    dead = "{s}dead"
    held.run(UpdateGroup(stream="s", group="g", policy={"dead_letter_stream": dead, "max_deliveries": 9}))
    held.call("XNACK", "s", "g", "FATAL", "IDS", "1", "1-0")
    if way == "read":
        assert released(held) == []
    else:
        place = ("XCLAIM", "1-0") if way == "claim" else ("XAUTOCLAIM", "0")
        assert "1-0" not in str(held.call(place[0], "s", "g", "b", "0", place[1]))
    (letter,) = held.pairs(dead)
    assert dict(letter)["weir-deliveries"] == str(2**63 - 1).encode()


@everywhere
def test_it_goes_where_its_stream_goes(held: House) -> None:
    """Under another name it comes back there, and in a copy as well."""
    give_back(held, 300, "1-0")
    for words in (("COPY", "s", "{s}copy"), ("RENAME", "s", "{s}t")):
        held.call(*words)
        assert released(held, words[2]) == []
    held.wait_ms(300)
    assert [released(held, name) for name in ("{s}copy", "{s}t")] == [["1-0"]] * 2


# --- turns ----------------------------------------------------------------------------------------------


def nack(*entry_ids: int, delay_ms: int = 100) -> XNack:
    return XNack(stream="s", group="g", nack=Nack(ids=entry_ids, mode=NackMode.FAIL, delay_ms=delay_ms))


def test_many_that_are_due_at_once_take_several_turns(house: House) -> None:
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy={}))
    count = 2 * TURN_RELEASES_MAX + 1
    house.fill("s", count)
    house.run(XReadGroup(group="g", consumer="a", streams=[("s", Cursor.NEW)], count=count))
    group = house.key("s").groups["g"]
    everything = [entry_id for entry_id, _ in group.pending.items()]
    for start in range(0, count, 400):
        house.run(nack(*everything[start : start + 400]))
    assert house.run(ReleaseDeferred()) is False
    house.pass_ms(100)
    assert [house.run(ReleaseDeferred()) for _ in range(3)] == [True, True, False]
    assert group.released_count() == count


def test_what_was_delivered_often_enough_becomes_a_dead_letter_as_it_comes_back(house: House) -> None:
    """And an entry that was deleted meanwhile is no longer pending."""
    policy = {"dead_letter_stream": "dead", "max_deliveries": 1}
    house.run(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
    house.fill("s", 3)
    house.run(XReadGroup(group="g", consumer="a", streams=[("s", Cursor.NEW)], count=3))
    house.run(nack(id_of("1-0"), id_of("2-0")))
    house.call("XDEL", "s", "2-0")
    house.pass_ms(100)
    assert house.run(ReleaseDeferred()) is False
    assert house.key("dead").stream.length == 1
    assert [ids.format(one) for one, _ in house.key("s").groups["g"].pending.items()] == ["3-0"]
