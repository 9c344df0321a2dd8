"""A primary takes over without the last entries: its readers get a gap, and miss nothing new."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from app.live.feeds import FeedGap, FeedPage, Feeds, Subscriber
from engine import entries, ids
from engine.cluster import ClusterEngine
from engine.cluster.keys import auxiliary_key
from engine.commands.types import Trim, XAdd, XDel, XRead, XTrim
from engine.replies import Added, Gap, StreamEntries, StreamsRead
from tests.app.conftest import app_on
from tests.app.following import look, wait_for
from tests.cluster.engines import TIMEOUT_S, refused
from tests.cluster.servers import Backend
from tests.engine.asking import reply_of, reply_to
from tests.waiting import until_async

BODY = entries.body([("a", "1")])
KEYS = ("s", auxiliary_key("s", "m").decode())


class Failover:
    """What a replica had, and takes over with."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._held = [backend.call("DUMP", key) for key in KEYS]

    def take_over(self) -> None:
        for key, held in zip(KEYS, self._held, strict=True):
            self._backend.call("RESTORE", key, 0, held, "REPLACE")
        self._backend.call("HSET", KEYS[1], "p", "another")


async def add(engine: ClusterEngine, *new_ids: int) -> Sequence[int]:
    command = XAdd(stream="s", bodies=[BODY] * max(1, len(new_ids)), ids=list(new_ids))
    found = await reply_of(engine, Added, command)
    return list(found.ids)


async def read(engine: ClusterEngine, after: int, **options: Any) -> StreamEntries | None:
    found = await reply_of(engine, StreamsRead, XRead(streams=[("s", after)], **options))
    return found.streams[0] if found.streams else None


def given(found: StreamEntries | None) -> list[int]:
    return [] if found is None else [one for one, _ in found.entries.pairs()]


def seq(*sequences: int) -> list[int]:
    return [ids.make(5, n) for n in sequences]


async def test_a_reader_of_what_was_lost_gets_a_gap_with_the_next_entry(
    backend: Backend, engine: ClusterEngine
) -> None:
    """One that waits, one that comes later; and no ID comes twice. A reader of what is there gets none."""
    (kept,) = await add(engine)
    failover = Failover(backend)
    (lost,) = await add(engine)
    waiting = asyncio.ensure_future(read(engine, lost, block_ms=60_000))
    await until_async(lambda: engine.figures().waiting == 1)
    failover.take_over()
    (new,) = await add(engine)
    assert new > lost
    for found in (await waiting, await read(engine, lost)):
        assert found is not None
        assert (given(found), found.gap) == ([new], Gap(lost, new, None, "failover"))
    found = await read(engine, kept)
    assert found is not None
    assert (given(found), found.gap) == ([new], None)
    (last,) = await add(engine)
    found = await read(engine, new)
    assert found is not None
    assert (given(found), found.gap) == ([last], None)


async def test_new_entries_below_the_cursor_are_read(backend: Backend, engine: ClusterEngine) -> None:
    """Where clients name IDs; the page has a limit."""
    await add(engine, *seq(1, 2))
    failover = Failover(backend)
    await add(engine, *seq(3, 5))
    failover.take_over()
    assert await read(engine, *seq(5)) is None
    await add(engine, *seq(3, 4, 6))
    found = await read(engine, *seq(5), count=2)
    assert found is not None
    assert (given(found), found.gap, found.entries.more) == (
        seq(3, 4),
        Gap(seq(5)[0], seq(3)[0], None, "failover"),
        True,
    )
    found = await read(engine, *seq(4))
    assert found is not None
    assert (given(found), found.gap) == (seq(6), None)


async def test_a_cursor_of_the_future_is_no_loss(backend: Backend, engine: ClusterEngine) -> None:
    """No primary has given it."""
    (first,) = await add(engine)
    failover = Failover(backend)
    failover.take_over()
    (new,) = await add(engine)
    floor = int(backend.call("HGET", KEYS[1], "t").split()[0])
    assert ids.ms_of(new) == floor + 1
    assert await read(engine, ids.make(floor + 2, 0)) is None
    await add(engine, ids.make(floor + 3, 0))
    for cursor, is_lost in ((ids.make(floor, 9), True), (new, False), (first, False)):
        found = await read(engine, cursor)
        assert found is not None
        assert (found.gap is not None) == is_lost
    # As with an entry that was trimmed.
    await reply_to(engine, XTrim(stream="s", trim=Trim(maxlen=1)))
    found = await read(engine, ids.make(floor, 9))
    assert found is not None
    assert found.gap == Gap(ids.make(floor, 9), ids.make(floor + 3, 0), None)


async def test_what_was_deleted_afterwards_is_no_loss(backend: Backend, engine: ClusterEngine) -> None:
    """Its ID was given by the primary that there is."""
    await add(engine)
    Failover(backend).take_over()
    deleted, *_ = await add(engine), await add(engine)
    await reply_to(engine, XDel(stream="s", ids=deleted))
    found = await read(engine, *deleted)
    assert found is not None
    assert found.gap is None


@pytest.mark.parametrize("first_publish", ["refused", "named"])
async def test_ids_by_the_clock_stay_above_what_may_be_lost(
    backend: Backend, engine: ClusterEngine, first_publish: str
) -> None:
    """Also where the first publish after the takeover is refused, or names its ID."""
    (kept,) = await add(engine)
    failover = Failover(backend)
    (lost,) = await add(engine)
    failover.take_over()
    if first_publish == "refused":
        wrong = XAdd(stream="s", bodies=[BODY], expected_last_id=lost)
        assert (await refused(engine, wrong)).code == "last_id_mismatch"
    else:
        assert await add(engine, kept + 1) == [kept + 1]
    floor = int(backend.call("HGET", KEYS[1], "t").split()[0])
    first, *_ = await add(engine), await add(engine)
    assert first == [ids.make(floor + 1, 0)]
    await reply_to(engine, XDel(stream="s", ids=first))
    found = await read(engine, *first)
    assert found is not None
    assert found.gap is None


async def test_a_reader_that_was_away_for_several_takeovers_gets_its_gap(
    backend: Backend, engine: ClusterEngine
) -> None:
    """Sixteen are kept, the newest ones."""
    await add(engine)
    lost: list[int] = []
    for _ in range(17):
        failover = Failover(backend)
        lost += await add(engine)
        failover.take_over()
        await add(engine)
    gaps = [found.gap for cursor in lost if (found := await read(engine, cursor)) is not None]
    assert [gap is not None and gap.reason == "failover" for gap in gaps] == [False] + [True] * 16


async def take(subscriber: Subscriber) -> Gap | list[int]:
    async with asyncio.timeout(TIMEOUT_S):
        found = await wait_for(subscriber, 10, 1 << 20)
    if isinstance(found, FeedGap):
        return found.gap
    assert isinstance(found, FeedPage)
    return [found.first_id, found.last_id]


@pytest.mark.parametrize("when", ["joined", "before", "after"])
@pytest.mark.parametrize(
    "named",
    [
        # By the clock; above, directly above and below what was lost.
        [[], [], [], []],
        [[1, 2], [3, 5], [7, 8], [9]],
        [[1, 2], [3, 5], [6, 7], [8]],
        [[1, 2], [3, 5], [3, 4], [6]],
    ],
)
async def test_a_follower_gets_one_gap_and_then_the_entries(
    backend: Backend, engine: ClusterEngine, when: str, named: list[list[int]]
) -> None:
    """One that was there, one that comes before the first new entry, one that comes after it."""
    kept, lost, new, newest = (seq(*sequences) for sequences in named)
    await add(engine, *kept)
    failover = Failover(backend)
    feeds = Feeds(engine)
    last_lost = (await add(engine, *lost))[-1]
    added: Sequence[int] = []
    if when == "joined":
        subscriber = await feeds.subscribe("s", last_lost)
        assert await look(subscriber, 10, 1 << 20) is None
        failover.take_over()
    else:
        failover.take_over()
        if when == "after":
            added = await add(engine, *new)
        subscriber = await feeds.subscribe("s", last_lost)
    if when != "after":
        added = await add(engine, *new)
    if added[0] != last_lost + 1:
        assert await take(subscriber) == Gap(last_lost, added[0], None, "failover")
    assert await take(subscriber) == [added[0], added[-1]]
    # One that goes on directly before them has missed nothing.
    found = await read(engine, added[0] - 1)
    assert found is not None
    assert (given(found), found.gap) == (list(added), None)
    added = await add(engine, *newest)
    assert await take(subscriber) == [added[0], added[-1]]
    feeds.close()


async def test_no_follower_gets_what_was_lost_after_what_is_new(
    backend: Backend, engine: ClusterEngine
) -> None:
    """Pages of lost entries were kept for one that is slow; the new IDs are below these. One for which none
    were kept gets its gap as well.
    """
    (kept,) = await add(engine, *seq(2))
    failover = Failover(backend)
    feeds = Feeds(engine)
    quick, slow = [await feeds.subscribe("s", kept) for _ in range(2)]
    for subscriber in (quick, slow):
        assert await look(subscriber, 10, 1 << 20) is None
        assert subscriber.joined
    for lost in seq(3, 5):
        await add(engine, lost)
        assert await take(quick) == [lost, lost]
    busy = await feeds.subscribe("s", seq(5)[0])
    assert not busy.joined
    failover.take_over()
    new, newer = seq(3, 6)
    await add(engine, new)
    for subscriber in (quick, busy):
        assert await take(subscriber) == Gap(lost, new, None, "failover")
        assert await take(subscriber) == [new, new]
    waiting = asyncio.ensure_future(take(quick))
    assert await take(slow) == [new, new]
    await add(engine, newer)
    assert [await waiting, await take(slow), await take(busy)] == [[newer, newer]] * 3
    feeds.close()


async def test_clients_see_why(backend: Backend, engine: ClusterEngine) -> None:
    """A page has it, and a refusal with `on_gap=fail`."""
    await add(engine)
    failover = Failover(backend)
    (lost,) = await add(engine)
    failover.take_over()
    (new,) = await add(engine)
    app = app_on(engine)
    place = f"/v1/streams/s/entries?after={ids.format(lost)}"
    expected = {"requested": ids.format(lost), "first_available": ids.format(new), "lost": None}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080"
    ) as http:
        page = (await http.get(place)).json()
        assert page["gap"] == {**expected, "reason": "failover"}
        assert [one["id"] for one in page["entries"]] == [ids.format(new)]
        refused = await http.get(place + "&on_gap=fail")
        assert (refused.status_code, refused.json()["reason"]) == (410, "failover")
