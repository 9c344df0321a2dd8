"""A group that is paused: it delivers nothing until it is resumed, and loses nothing.

Knows: the real engine on a modelled disk, under a clock that is moved by hand.
Must never know: how readers wait.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.commands.types import Cursor, XReadGroup
from engine.replies import GroupRead
from engine.storage.memory import MemoryStorage
from tests.engine.asking import reply_to
from tests.engine.conversation import Conversation
from tests.engine.house import House
from tests.engine.images import image
from tests.engine.running import keyspace_of


@pytest.fixture
async def talk() -> AsyncIterator[Conversation]:
    async with Conversation() as conversation:
        await hand_out(conversation)
        yield conversation


async def hand_out(talk: Conversation) -> None:
    """Of 1-0 to 4-0 the consumer `a` holds the first; 2-0 was given back. Then the group is paused."""
    await talk.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    await talk.add("s", "1-0", "2-0", "3-0", "4-0")
    await talk.call("XREADGROUP", "GROUP", "g", "a", "COUNT", "2", "STREAMS", "s", ">")
    await talk.call("XNACK", "s", "g", "FAIL", "IDS", "1", "2-0")
    assert await talk.call("WEIR.PAUSE", "s", "g") == "OK"


def reading(consumer: str, *options: str) -> tuple[str, ...]:
    return ("XREADGROUP", "GROUP", "g", consumer, *options, "STREAMS", "s", ">")


def ids_in(reply: Any) -> list[str]:
    return [entry[0] for entry in reply[0][1]]


async def test_neither_new_entries_nor_those_given_back_are_delivered(talk: Conversation) -> None:
    assert await talk.call(*reading("b")) is None
    assert await talk.call(*reading("b", "CLAIM", "0")) is None
    assert await talk.call("XAUTOCLAIM", "s", "g", "b", "0", "0") == ["0-0", [], []]
    assert await talk.call("WEIR.RESUME", "s", "g") == "OK"
    assert ids_in(await talk.call(*reading("b", "CLAIM", "9999999"))) == ["2-0", "3-0", "4-0"]


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


async def test_what_is_out_can_be_settled_claimed_and_read_again(talk: Conversation) -> None:
    assert ids_in(await talk.call("XREADGROUP", "GROUP", "g", "a", "STREAMS", "s", "0")) == ["1-0"]
    assert await talk.call("XCLAIM", "s", "g", "b", "0", "1-0", "JUSTID") == ["1-0"]
    assert await talk.call("XNACK", "s", "g", "FAIL", "IDS", "1", "1-0") == 1
    assert await talk.call("XACK", "s", "g", "1-0", "2-0") == 2


async def test_only_the_group_is_paused(talk: Conversation) -> None:
    await talk.call("XGROUP", "CREATE", "s", "other", "0")
    read: Any = await talk.call("XREADGROUP", "GROUP", "other", "a", "STREAMS", "s", ">")
    assert ids_in(read) == ["1-0", "2-0", "3-0", "4-0"]


@pytest.mark.parametrize("rewritten", [False, True])
async def test_a_pause_survives_a_crash(rewritten: bool) -> None:  # noqa: FBT001 - a parameter
    storage = MemoryStorage()
    async with Conversation(storage, fsync="always") as talk:
        await hand_out(talk)
        if rewritten:
            await talk.engine.rewrite()
        crashed, before = storage.crash(), image(keyspace_of(talk.engine))
    async with Conversation(crashed) as talk:
        assert image(keyspace_of(talk.engine)) == before
        assert await talk.call(*reading("b")) is None


async def test_it_follows_a_rename_and_a_copy(talk: Conversation) -> None:
    await talk.call("COPY", "s", "copied")
    await talk.call("RENAME", "s", "renamed")
    groups = {name: key.groups["g"] for name, key in keyspace_of(talk.engine).keys.items()}
    assert {name: group.policy.paused for name, group in groups.items()} == {"copied": True, "renamed": True}


async def test_a_missing_group_cannot_be_paused(talk: Conversation) -> None:
    refusal = "-NOGROUP No such consumer group 'x' for key name 's'"
    assert await talk.call("WEIR.PAUSE", "s", "x") == refusal
    assert await talk.call("WEIR.RESUME", "s", "x") == refusal


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
