"""A group that is paused: it delivers nothing until it is resumed, and loses nothing.

Knows: the real engine on a modelled disk, under a clock that is moved by hand.
Must never know: how readers wait.
"""

import asyncio
from typing import Any, Final

import msgspec
import pytest

from engine.commands.types import Cursor, XReadGroup
from engine.commands.weir_commands import DescribeGroup, EnsureGroup, MeasureStreams, UpdateGroup
from engine.replies import GroupInfo, GroupRead, Measured
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_to
from tests.engine.conversation import Conversation, talk_of
from tests.engine.house import House, everywhere
from tests.engine.images import image
from tests.engine.running import keyspace_of

# Of 1-0 to 4-0 the consumer `a` holds the first; 2-0 was given back. Then the group is paused.
HANDED_OUT: Final = (
    ("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM"),
    *[("XADD", "s", f"{number}-0", "a", "1") for number in (1, 2, 3, 4)],
    ("XREADGROUP", "GROUP", "g", "a", "COUNT", "2", "STREAMS", "s", ">"),
    ("XNACK", "s", "g", "FAIL", "IDS", "1", "2-0"),
    ("WEIR.PAUSE", "s", "g"),
)


talk = talk_of(*HANDED_OUT)


def reading(consumer: str, *options: str) -> tuple[str, ...]:
    return ("XREADGROUP", "GROUP", "g", consumer, *options, "STREAMS", "s", ">")


def ids_in(reply: Any) -> list[str]:
    return [entry[0] for entry in reply[0][1]]


async def test_who_waits_gets_all_when_it_is_resumed(talk: Conversation) -> None:
    """In order of arrival; entries that are added meanwhile wake no reader."""
    first = await talk.begin(*reading("b", "COUNT", "1", "BLOCK", "60000"))
    second = await talk.begin(*reading("c", "COUNT", "9", "BLOCK", "60000"))
    await talk.add("s", "5-0")
    await talk.pass_ms(1_000)
    assert not first.done()
    assert not second.done()
    await talk.call("WEIR.RESUME", "s", "g")
    assert (ids_in(await first), ids_in(await second)) == (["3-0"], ["4-0", "5-0"])


async def test_a_reader_that_claims_waits_through_the_pause(talk: Conversation) -> None:
    """What was given back, and what others hold for too long, comes once it is resumed."""
    reader = await talk.begin(*reading("b", "CLAIM", "1000", "BLOCK", "60000"))
    await talk.pass_ms(10_000)
    assert not reader.done()
    await talk.call("WEIR.RESUME", "s", "g")
    assert sorted(ids_in(await reader)) == ["1-0", "2-0", "3-0", "4-0"]


@pytest.mark.parametrize("rewritten", [False, True])
async def test_a_pause_survives_a_crash(rewritten: bool) -> None:  # noqa: FBT001 - a parameter
    storage = MemoryStorage()
    async with Conversation(storage, fsync="always") as talk:
        await talk.call_each(HANDED_OUT)
        if rewritten:
            await talk.engine.rewrite()
        crashed, before = storage.crash(), image(keyspace_of(talk.engine))
    async with Conversation(crashed) as talk:
        assert image(keyspace_of(talk.engine)) == before
        assert await talk.call(*reading("b")) is None


# --- over all engines -----------------------------------------------------------------------------------


@pytest.fixture
def paused(house: House) -> House:
    """The same group."""
    for words in HANDED_OUT:
        house.call(*words)
    return house


def claiming() -> XReadGroup:
    """A read of two streams of which one has a group that is not paused, of what is idle too."""
    streams = [("s", Cursor.NEW), ("{s}t", Cursor.NEW)]
    return XReadGroup(group="g", consumer="b", streams=streams, claim_min_idle_ms=0)


@everywhere
def test_neither_new_entries_nor_those_given_back_are_delivered(paused: House) -> None:
    """To no read and no claim of what is idle, also beside another stream; another group has all of them."""
    paused.call("XGROUP", "CREATE", "{s}t", "g", "0", "MKSTREAM")
    for command in (claiming(), listening(knows_paused=False), listening(knows_paused=True)):
        found = paused.of(GroupRead, msgspec.structs.replace(command, block_ms=None))
        assert ([*found.streams], [*found.unfinished], [*found.paused]) == ([], [], ["s"])
    for options in ((), ("CLAIM", "0"), ("COUNT", "1", "NOACK")):
        assert paused.call(*reading("b", *options)) is None
    assert paused.call("XAUTOCLAIM", "s", "g", "b", "0", "0") == ["0-0", [], []]
    paused.call("XGROUP", "CREATE", "s", "other", "0")
    other: Any = paused.call("XREADGROUP", "GROUP", "other", "a", "STREAMS", "s", ">")
    assert ids_in(other) == ["1-0", "2-0", "3-0", "4-0"]
    assert paused.call("WEIR.RESUME", "s", "g") == "OK"
    assert ids_in(paused.call(*reading("b", "CLAIM", "9999999"))) == ["2-0", "3-0", "4-0"]
    claimed: Any = paused.call("XAUTOCLAIM", "s", "g", "b", "0", "0")
    assert [entry[0] for entry in claimed[1]] == ["1-0", "2-0", "3-0", "4-0"]


@everywhere
def test_what_is_out_can_be_settled_claimed_and_read_again(paused: House) -> None:
    assert ids_in(paused.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", "0")) == ["1-0"]
    assert paused.call("XCLAIM", "s", "g", "b", "0", "1-0", "JUSTID") == ["1-0"]
    assert paused.call("XNACK", "s", "g", "FAIL", "IDS", "1", "1-0") == 1
    assert paused.call("XACK", "s", "g", "1-0", "2-0") == 2


def is_paused(house: House, stream: str = "s") -> bool:
    return house.of(GroupInfo, DescribeGroup(stream=stream, group="g")).paused


@everywhere
def test_it_follows_a_rename_and_a_copy_and_goes_with_the_group(paused: House) -> None:
    paused.call("COPY", "s", "{s}copied")
    paused.call("RENAME", "s", "{s}renamed")
    assert [is_paused(paused, name) for name in ("{s}copied", "{s}renamed")] == [True, True]
    paused.call("XGROUP", "DESTROY", "{s}copied", "g")
    paused.call("XGROUP", "CREATE", "{s}copied", "g", "0")
    assert not is_paused(paused, "{s}copied")


@everywhere
def test_a_pause_is_shown_and_another_change_leaves_it(paused: House) -> None:
    """In what describes the group and what measures it; a group may begin with one."""
    paused.call("WEIR.PAUSE", "s", "g")
    paused.run(UpdateGroup(stream="s", group="g", policy={"ack_timeout_ms": 5}))
    shown = paused.of(GroupInfo, DescribeGroup(stream="s", group="g"))
    assert (shown.paused, shown.ack_timeout_ms) == (True, 5)
    (measured,) = paused.of(Measured, MeasureStreams(streams=["s"], groups_max=5)).streams
    assert [group.paused for group in measured.groups] == [True]
    paused.call("XGROUP", "DESTROY", "s", "g")
    assert paused.run(EnsureGroup(stream="s", group="g", start=0, policy={"paused": True})) is True
    assert is_paused(paused)


@everywhere
def test_a_missing_group_cannot_be_paused(paused: House) -> None:
    refusal = "-NOGROUP No such consumer group 'x' for key name 's'"
    assert paused.call("WEIR.PAUSE", "s", "x") == refusal
    assert paused.call("WEIR.RESUME", "s", "x") == refusal


def test_pausing_again_changes_nothing(house: House) -> None:
    house.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    house.call("WEIR.PAUSE", "s", "g")
    before = len(house.payloads)
    assert house.call("WEIR.PAUSE", "s", "g") == "OK"
    assert len(house.payloads) == before


# --- readers that are told --------------------------------------------------------------------------------


def listening(*, knows_paused: bool) -> XReadGroup:
    return XReadGroup(
        group="g", consumer="b", streams=[("s", Cursor.NEW)], block_ms=60_000, knows_paused=knows_paused
    )


def test_a_wait_ends_when_the_reader_does_not_know_of_the_pause(house: House) -> None:
    house.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    assert house.run(listening(knows_paused=False)) is None
    house.call("WEIR.PAUSE", "s", "g")
    assert house.run(listening(knows_paused=False)) == GroupRead([], [], (), ["s"])
    assert house.run(listening(knows_paused=True)) is None
    house.call("WEIR.RESUME", "s", "g")
    assert house.run(listening(knows_paused=True)) == GroupRead([], [])


async def test_a_reader_that_waits_hears_of_a_pause_and_of_its_end(talk: Conversation) -> None:
    await talk.call("XGROUP", "SETID", "s", "g", "$")
    for knows_paused, words in ((True, "WEIR.RESUME"), (False, "WEIR.PAUSE")):
        waiting = asyncio.ensure_future(reply_to(talk.engine, listening(knows_paused=knows_paused)))
        await talk.pass_ms(100)
        assert not waiting.done()
        await talk.call(words, "s", "g")
        reply = await waiting
        assert isinstance(reply, GroupRead)
        assert bool(reply.paused) is not knows_paused
