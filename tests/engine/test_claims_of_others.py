"""Reads that claim from others alone: what a consumer holds itself stays as it is, however long it takes."""

import asyncio
from collections.abc import Sequence

import pytest

from engine import ids
from engine.commands.types import Cursor, XAck, XReadGroup
from engine.replies import Delivered, GroupRead
from tests.engine.asking import reply_to
from tests.engine.clocks import settle
from tests.engine.conversation import Conversation, talk_of
from tests.engine.house import House, adding

IDLE_MS = 1_000


talk = talk_of()


def reading(
    consumer: str, count: int | None = None, block_ms: int | None = None, *, own: bool = False
) -> XReadGroup:
    return XReadGroup(
        group="g",
        consumer=consumer,
        streams=[("s", Cursor.NEW)],
        count=count,
        block_ms=block_ms,
        claim_min_idle_ms=IDLE_MS,
        claims_own=own,
    )


def delivered(reply: object) -> Sequence[Delivered]:
    assert isinstance(reply, GroupRead)
    return [one for found in reply.streams for one in found.entries]


def given(reply: object) -> list[tuple[str, int]]:
    return [(ids.format(one.id), one.delivery_count) for one in delivered(reply)]


def holding(house: House, consumer: str, *entry_ids: str) -> None:
    house.run(adding("s", *entry_ids))
    assert len(delivered(house.run(reading(consumer)))) == len(entry_ids)


@pytest.fixture
def house() -> House:
    house = House()
    house.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    return house


def test_its_own_entries_are_passed_over(house: House) -> None:
    """Redis would claim them: a read at the command API does."""
    holding(house, "a", "5-0", "5-1")
    house.now_ms += IDLE_MS
    assert given(house.run(reading("a"))) == []
    assert house.call("XPENDING", "s", "g", "-", "+", "9") == [
        ["5-0", "a", IDLE_MS, 1],
        ["5-1", "a", IDLE_MS, 1],
    ]
    assert given(house.run(reading("a", own=True))) == [("5-0", 2), ("5-1", 2)]


@pytest.mark.parametrize(("passed_ms", "claimed"), [(IDLE_MS - 1, 0), (IDLE_MS, 2), (IDLE_MS + 1, 2)])
def test_others_entries_are_claimed_from_behind_its_own(house: House, passed_ms: int, claimed: int) -> None:
    """In order of delivery, once they are idle for that long."""
    holding(house, "a", "5-0", "5-1")
    holding(house, "b", "5-2")
    holding(house, "a", "5-3")
    holding(house, "c", "5-4")
    house.now_ms += passed_ms
    assert given(house.run(reading("a"))) == [("5-2", 2), ("5-4", 2)][:claimed]


def test_what_was_released_is_its_own_no_more(house: House) -> None:
    """It takes that again, like anybody."""
    holding(house, "a", "5-0", "5-1")
    house.call("XNACK", "s", "g", "FAIL", "IDS", "1", "5-1")
    assert given(house.run(reading("a"))) == [("5-1", 2)]


async def held_by_a_hung_reader(talk: Conversation) -> None:
    await talk.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    await talk.add("s", "5-0", "5-1")
    assert len(delivered(await reply_to(talk.engine, reading("hung")))) == 2


async def test_a_hung_readers_entries_go_to_the_next_when_they_are_due(talk: Conversation) -> None:
    """Though the hung one has waited longer, and reads on."""
    await held_by_a_hung_reader(talk)
    waiting = [
        asyncio.ensure_future(reply_to(talk.engine, reading(name, block_ms=60_000)))
        for name in ("hung", "next", "last")
    ]
    await settle()
    await talk.pass_ms(IDLE_MS - 1)
    assert [one.done() for one in waiting] == [False] * 3
    await talk.pass_ms(1)
    assert [one.done() for one in waiting] == [False, True, False]
    assert given(waiting[1].result()) == [("5-0", 2), ("5-1", 2)]
    await talk.add("s", "5-2")
    assert given(await waiting[0]) == [("5-2", 1)]
    await talk.add("s", "5-3")
    assert given(await waiting[2]) == [("5-3", 1)]


async def test_a_reader_that_holds_all_that_is_due_does_not_run_in_circles(talk: Conversation) -> None:
    """It looks again now and then, and takes what another holds when that is due."""
    await held_by_a_hung_reader(talk)
    waiting = asyncio.ensure_future(reply_to(talk.engine, reading("hung", block_ms=60_000)))
    await settle()
    looks = 0
    run_again = talk.engine._waits._pass_deadlines  # noqa: SLF001 - how often it looks

    def counted() -> None:
        nonlocal looks
        looks += 1
        run_again()

    talk.engine._waits._pass_deadlines = counted  # type: ignore[method-assign] # noqa: SLF001
    for _ in range(20):
        await talk.pass_ms(IDLE_MS // 2)
    assert looks <= 11
    await talk.call("XADD", "s", "5-2", "a", "1")
    assert given(await waiting) == [("5-2", 1)]
    await reply_to(talk.engine, XAck(stream="s", group="g", ids=[ids.parse("5-2") or 0]))
