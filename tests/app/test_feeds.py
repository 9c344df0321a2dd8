"""Feeds: one reader a stream, pages that all tails share, history that joins what is new without a seam."""

import asyncio
import random
from collections.abc import AsyncIterator
from functools import partial

import pytest

from app.live.feeds import FeedEnd, FeedItem, FeedPage, Feeds, Subscriber
from engine import EngineError, entries, ids
from engine.commands.types import Cursor
from tests.app.following import wait_for
from tests.engine.clocks import settle
from tests.engine.conversation import Conversation, SlowDisk, talk_of

MANY = 10_000
LARGE = 1 << 20
NEW = Cursor.LATEST


talk = talk_of()


@pytest.fixture
async def feeds(talk: Conversation) -> AsyncIterator[Feeds]:
    feeds = Feeds(talk.engine)
    yield feeds
    feeds.close()
    await settle()


def ids_in(page: FeedPage) -> list[str]:
    return [ids.format(entries.id_of(text)) for text in entries.texts(page.entries)]


def shown(item: FeedItem) -> list[str]:
    """The IDs of a page; a gap as one word that says where to go on."""
    if isinstance(item, FeedPage):
        return ids_in(item)
    assert not isinstance(item, FeedEnd), "nothing is closed here"
    if item.gap.reason is None:
        return [f"gap before {ids.format(item.first_available)}"]
    return [f"{item.gap.reason}: {ids.format(item.after)} to {ids.format(item.last_id)}"]


async def drained(tail: Subscriber, count_max: int = MANY, bytes_max: int = LARGE) -> list[str]:
    """Everything that the tail has by now."""
    found: list[str] = []
    while True:
        reading = asyncio.ensure_future(wait_for(tail, count_max, bytes_max))
        await settle()
        if not reading.done():
            reading.cancel()
            await asyncio.wait([reading])
            return found
        found += shown(reading.result())


async def test_a_tail_of_what_is_new_gets_that_alone(talk: Conversation, feeds: Feeds) -> None:
    """`$` is resolved when the tail begins, to an ID that a client can go on from."""
    await talk.add("s", "1-0")
    tail = await feeds.subscribe("s", NEW)
    assert (tail.cursor, tail.caught_up) == (1 << 64, True)
    await talk.add("s", "2-0", "3-0")
    assert await drained(tail) == ["2-0", "3-0"]


async def test_a_missing_stream_is_an_empty_one(talk: Conversation, feeds: Feeds) -> None:
    """Its first entry is pushed to tails of everything and to those of what is new."""
    tails = [await feeds.subscribe("none", after) for after in (0, NEW)]
    await settle()
    await talk.add("none", "0-1")
    assert [await drained(tail) for tail in tails] == [["0-1"], ["0-1"]]


async def test_tails_share_one_read_and_one_page(talk: Conversation, feeds: Feeds) -> None:
    """However many there are, the engine has one blocked read, and an encoded form is made once."""
    tails = [await feeds.subscribe("s", NEW) for _ in range(50)]
    reading = [asyncio.ensure_future(wait_for(tail, MANY, LARGE)) for tail in tails]
    await settle()
    assert talk.engine.figures().waiting == 1
    await talk.add("s", "1-0")
    pages = [await one for one in reading]
    made: list[FeedPage] = []

    def form(page: FeedPage) -> bytes:
        made.append(page)
        return b"frame"

    texts = [page.cached("text", form) for page in pages if isinstance(page, FeedPage)]
    assert texts == [b"frame"] * 50
    assert len(made) == 1


async def test_the_last_tail_takes_the_reader_along(talk: Conversation, feeds: Feeds) -> None:
    """No feed and no blocked read is left behind."""
    tails = [await feeds.subscribe("s", NEW) for _ in range(3)]
    await settle()
    for tail in tails:
        assert (len(feeds), talk.engine.figures().waiting) == (1, 1)
        tail.close()
        tail.close()
        await settle()
    assert (len(feeds), talk.engine.figures().waiting) == (0, 0)


@pytest.mark.no_cover
@pytest.mark.halved
@pytest.mark.parametrize("seed", range(8))
async def test_old_and_new_join_without_gap_or_duplicate(talk: Conversation, feeds: Feeds, seed: int) -> None:
    """Tails that begin anywhere, read at any pace, in pages of any size, while entries are added in bursts:
    each gets every entry above its first cursor, once, in order.
    """
    dice = random.Random(seed)
    for sequence in range(1, 40):
        await talk.add("s", f"1-{sequence}")
    starts = [dice.randrange(40) for _ in range(12)]
    tails = [await feeds.subscribe("s", (1 << 64) + start) for start in starts]
    got: list[list[str]] = [[] for _ in tails]
    last = 39
    for _ in range(60):
        burst = dice.randrange(6)
        await talk.transaction(*[f"XADD s 1-{last + one} a 1" for one in range(1, burst + 1)])
        last += burst
        for place, tail in enumerate(tails):
            if dice.random() < 0.4:
                got[place] += await drained(tail, dice.choice([1, 2, 3, MANY]), dice.choice([1, 90, LARGE]))
    for place, tail in enumerate(tails):
        got[place] += await drained(tail)
        assert got[place] == [f"1-{sequence}" for sequence in range(starts[place] + 1, last + 1)]


async def test_nothing_is_handed_out_before_it_is_safe() -> None:
    """Under `always` an entry whose sync has not ended is shown to no reader, old or new."""
    disk = SlowDisk()
    async with Conversation(disk, "always") as talk:
        await talk.add("s", "1-0")
        feeds = Feeds(talk.engine)
        tails = [await feeds.subscribe("s", after) for after in (NEW, 1)]
        await settle()
        disk.hold()
        adding = await talk.begin("XADD", "s", "2-0", "a", "1")
        reading = [asyncio.ensure_future(wait_for(tail, MANY, LARGE)) for tail in tails]
        await settle()
        assert [adding.done(), *(one.done() for one in reading)] == [False] * 3
        disk.let_go()
        await adding
        found = [shown(await asyncio.wait_for(asyncio.shield(one), 5)) for one in [reading[1]]]
        assert found[0][0] == "1-0"
        while not reading[0].done():
            await talk.call("TIME")
            await settle()
        assert shown(reading[0].result()) == ["2-0"]
        feeds.close()
        await settle()


async def test_a_trim_that_overtakes_is_told_once(talk: Conversation, feeds: Feeds) -> None:
    """To a tail that has fallen behind and to one that waited: a gap, then what is still there."""
    await talk.add("s", "1-0", "2-0", "3-0")
    behind, waiting = await feeds.subscribe("s", 1 << 64), await feeds.subscribe("s", NEW)
    assert await drained(waiting) == []
    await talk.transaction("XADD s 4-0 a 1", "XADD s 5-0 a 1", "XTRIM s MAXLEN 1")
    assert await drained(behind) == ["gap before 5-0", "5-0"]
    assert await drained(waiting) == ["gap before 5-0", "5-0"]


async def test_the_beginning_is_never_a_gap(talk: Conversation, feeds: Feeds) -> None:
    """From 0 means from the oldest that is kept."""
    await talk.add("s", "1-0", "2-0", "3-0")
    await talk.call("XTRIM", "s", "MAXLEN", "1")
    assert await drained(await feeds.subscribe("s", 0)) == ["3-0"]


async def test_what_was_trimmed_to_nothing_is_told_with_the_next_entry(
    talk: Conversation, feeds: Feeds
) -> None:
    """Only then is it known where to go on; until then the tail waits, without a request."""
    await talk.add("s", "1-0", "2-0")
    tail = await feeds.subscribe("s", 1 << 64)
    await talk.call("XTRIM", "s", "MAXLEN", "0")
    assert await drained(tail) == []
    assert tail.caught_up
    await talk.add("s", "3-0")
    assert await drained(tail) == ["gap before 3-0", "3-0"]


async def test_deleted_entries_are_passed_over(talk: Conversation, feeds: Feeds) -> None:
    """In the middle they are no gap, and a tail gets past them to what is new."""
    await talk.add("s", "1-0", "2-0", "3-0")
    tail = await feeds.subscribe("s", 1 << 64)
    await talk.call("XDEL", "s", "2-0", "3-0")
    assert await drained(tail) == []
    await talk.add("s", "4-0")
    assert await drained(tail) == ["4-0"]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("DEL s", "deleted"),
        ("RENAME s t", "deleted"),
        ("FLUSHALL", "deleted"),
        ("RENAME other s", "replaced"),
    ],
)
async def test_the_end_of_a_stream_is_told_to_each_tail_and_the_next_one_read_from_its_beginning(
    talk: Conversation, feeds: Feeds, ending: str, reason: str
) -> None:
    """In the turn in which it ends, wherever a tail is, and also to one that looks later."""
    await talk.add("other", "0-9")
    await talk.add("s", "1-0", "2-0")
    low, high, late = [await feeds.subscribe("s", after) for after in (1 << 64, NEW, NEW)]
    await talk.transaction(ending)
    await settle()
    new = ["0-9"] if reason == "replaced" else []
    told = [await drained(low), await drained(high)]
    assert told == [[f"{reason}: 1-0 to 0-0", *new], [f"{reason}: 2-0 to 0-0", *new]]
    await talk.add("s", "1-0", "3-0")
    assert [await drained(low), await drained(high)] == [["1-0", "3-0"]] * 2
    assert await drained(late) == [f"{reason}: 2-0 to 0-0", *new, "1-0", "3-0"]


async def test_several_ends_that_a_tail_slept_through_are_one(talk: Conversation, feeds: Feeds) -> None:
    """What was between them is gone; it goes on with what there is."""
    await talk.add("s", "9-0")
    tail = await feeds.subscribe("s", NEW)
    for _ in range(2):
        await talk.transaction("DEL s", "XADD s 1-0 a 1")
        await settle()
    assert await drained(tail) == ["recreated: 9-0 to 0-0", "1-0"]


async def test_a_last_id_that_is_set_back_is_told_to_tails_above_it(talk: Conversation, feeds: Feeds) -> None:
    """Else they would wait for ever; those below it have lost nothing."""
    await talk.add("s", "1-0")
    await talk.call("XSETID", "s", "9-0")
    high, low = await feeds.subscribe("s", NEW), await feeds.subscribe("s", 2 << 64)
    assert await drained(high) == []
    await talk.call("XSETID", "s", "2-0")
    assert [await drained(low), await drained(high)] == [[], ["ahead: 9-0 to 2-0"]]
    await talk.add("s", "3-0", "4-0")
    assert [await drained(low), await drained(high)] == [["3-0", "4-0"]] * 2


async def test_a_cursor_from_the_future_is_told_so(talk: Conversation, feeds: Feeds) -> None:
    """Nothing is shown again for it, and nothing that comes is passed over."""
    await talk.add("s", "4-0")
    tail = await feeds.subscribe("s", 5 << 64)
    assert await drained(tail) == ["ahead: 5-0 to 4-0"]
    await talk.add("s", "4-1", "6-0")
    assert await drained(tail) == ["4-1", "6-0"]


async def test_a_cursor_of_a_stream_that_is_still_to_come_waits(talk: Conversation, feeds: Feeds) -> None:
    """Before there is one, and while a group alone has made it."""
    tail = await feeds.subscribe("s", 5 << 64)
    await talk.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    assert await drained(tail) == []
    await talk.add("s", "6-0")
    assert await drained(tail) == ["6-0"]


async def test_a_cursor_of_another_generation_is_told_so(talk: Conversation, feeds: Feeds) -> None:
    """Also where its ID is one that this stream has."""
    await talk.add("s", "1-0", "2-0")
    tail = await feeds.subscribe("s", 1 << 64, generation="0123456789abcdef")
    assert await drained(tail) == ["recreated: 1-0 to 0-0", "1-0", "2-0"]


@pytest.mark.parametrize(
    ("last", "expected"), [(1, ["3-0"]), (2, ["2-0", "3-0"]), (9, ["1-0", "2-0", "3-0"])]
)
async def test_a_tail_may_begin_some_entries_back(
    talk: Conversation, feeds: Feeds, last: int, expected: list[str]
) -> None:
    """`last` counts from the end; where there are fewer it is the beginning, and that is no gap."""
    await talk.add("s", "1-0", "2-0", "3-0")
    assert await drained(await feeds.subscribe("s", NEW, last)) == expected


async def test_the_last_of_nothing_is_what_comes(talk: Conversation, feeds: Feeds) -> None:
    """On an empty stream `last` begins at its end."""
    await talk.add("s", "1-0")
    await talk.call("XDEL", "s", "1-0")
    tail = await feeds.subscribe("s", NEW, 3)
    assert tail.cursor == 1 << 64


async def test_a_tail_that_was_cancelled_has_taken_nothing(talk: Conversation, feeds: Feeds) -> None:
    """Its cursor stands where it stood."""
    tail = await feeds.subscribe("s", NEW)
    reading = asyncio.ensure_future(wait_for(tail, MANY, LARGE))
    await settle()
    reading.cancel()
    await talk.add("s", "1-0")
    assert tail.cursor == 0
    assert await drained(tail) == ["1-0"]


async def test_a_tail_that_lags_costs_a_bounded_ring(talk: Conversation, feeds: Feeds) -> None:
    """Beyond it reads the engine; nothing is lost, and those that kept up leave nothing behind."""
    slow, fast = await feeds.subscribe("s", NEW), await feeds.subscribe("s", NEW)
    assert await drained(slow) + await drained(fast) == []
    expected = []
    feed = fast._feed  # noqa: SLF001 - private, and what the test is about
    for sequence in range(1, 101):
        await talk.call("XADD", "s", f"1-{sequence}", "a", "x" * 20_000)
        assert await drained(fast) == [f"1-{sequence}"]
        expected.append(f"1-{sequence}")
        assert feed._ring_bytes <= 1 << 20  # noqa: SLF001 - the same
    assert len(feed._ring) > 10  # noqa: SLF001 - the same
    assert await drained(slow) == expected
    assert (len(feed._ring), feed._ring_bytes) == (0, 0)  # noqa: SLF001 - the same


async def test_a_shutdown_is_told_after_what_was_read_before(talk: Conversation, feeds: Feeds) -> None:
    """The last page first, then `draining`; a tail that waits returns at once."""
    tail, waiting = await feeds.subscribe("s", NEW), await feeds.subscribe("t", NEW)
    assert await drained(tail) == []
    blocked = asyncio.ensure_future(wait_for(waiting, MANY, LARGE))
    await talk.add("s", "1-0")
    await settle()
    talk.engine.end_waits()
    await settle()
    assert shown(await wait_for(tail, MANY, LARGE)) == ["1-0"]
    for ended in (wait_for(tail, MANY, LARGE), blocked):
        with pytest.raises(EngineError) as refusal:
            await ended
        assert refusal.value.code == "draining"


async def test_ten_thousand_tails_wake_a_few_a_turn(talk: Conversation, feeds: Feeds) -> None:
    """Between any two hundred of them the loop has its turn, so no other request waits for all."""
    woken = 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    for _ in range(MANY):
        (await feeds.subscribe("s", NEW)).call_when_ready(wake)
    await talk.call("XADD", "s", "1-0", "a", "1")
    most, before = 0, woken
    while woken < MANY:
        await asyncio.sleep(0)
        most, before = max(most, woken - before), woken
    assert most <= 200


async def test_who_has_no_task_takes_when_called(talk: Conversation, feeds: Feeds) -> None:
    """A callback is called once; what it finds it may take without waiting, if it fits."""
    tail = await feeds.subscribe("s", NEW)
    found: list[FeedItem | None] = []
    tail.call_when_ready(lambda: found.append(tail.take(MANY, LARGE)))
    await talk.add("s", "1-0")
    await talk.add("s", "2-0")
    await settle()
    assert [shown(item) for item in found if item is not None] == [["1-0"]]
    assert tail.ready()


async def test_a_follower_that_fails_holds_up_nobody(talk: Conversation, feeds: Feeds) -> None:
    """The others are woken, also those whose turn comes later, and the next time too."""
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail() -> None:
        raise RuntimeError

    tails = [await feeds.subscribe("s", NEW) for _ in range(500)]
    for name in ("1-0", "2-0"):
        woken: list[Subscriber] = []
        for place, tail in enumerate(tails):
            tail.call_when_ready(fail if place in (3, 300) else partial(woken.append, tail))
        await talk.add("s", name)
        await talk.pass_ms(5)
        assert len(woken) == 498
        assert [await drained(tail) for tail in tails] == [[name]] * 500
    assert [type(failure) for failure in failures] == [RuntimeError] * 4
