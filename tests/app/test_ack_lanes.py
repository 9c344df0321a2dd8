"""The lane of an acknowledgement answers as its route does, byte by byte, after any change since it opened.

Each test asks two gateways, one with lanes and one without the fast path, at a moment that stands still.
"""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from random import Random
from typing import Final

import pytest

from app.doors.http.append_lane import AppendLane
from engine import EngineError, ids
from engine.commands import Acknowledge, Cursor, XAdd, XGroupCreate, XReadGroup
from tests import halves
from tests.app.fast_requests import ENTRY, GROUP, JSON, post, request
from tests.app.lane_checks import (
    OF_WHAT_MAY_BE_DONE,
    check_any_order,
    check_change,
    check_counts_and_log,
    check_tried_once,
)
from tests.app.lane_sides import CHANGES as OF_ANY_LANE
from tests.app.lane_sides import SIX, Sides, each, opened, sent_from_now
from tests.app.ten_doors import SAMPLED
from tests.engine.asking import reply_to

PENDING: Final = 400
PATH: Final = f"{GROUP}/ack"
ALL: Final = ["read", "write", "consume", "manage"]
CHANGES: Final = {
    **OF_ANY_LANE,
    "it may not consume": each(lambda side: side.change_token(actions=["read", "write"])),
    "it may not consume here": each(lambda side: side.change_token(actions=ALL, streams="t")),
    "it may consume by another group": each(lambda side: side.change_token(actions=ALL, groups="other")),
    "it has a rate": each(lambda side: side.change_token(actions=ALL, rate=SIX)),
    "it has a quota": each(lambda side: side.change_token(actions=ALL, streams="s", bytes_max=1)),
    "it is a tenant": each(lambda side: side.change_token(actions=ALL, prefix="t")),
}
STATUSES: Final = {
    "nothing": [200, 200],
    "it drains": [503],
    "its engine fails": [503, 503],
    "its engine is gone": [503],
    "the token is gone": [401, 401],
    "the token is revoked": [401, 401],
    "the token has expired": [401, 401],
    "it may not write": [403, 403],
    "it may not write here": [403, 403],
    "it may not consume": [403, 403],
    "it may not consume here": [403, 403],
    "it may consume by another group": [403, 403],
    "it has a rate": [200] * 6 + [429, 429],
    "it has a quota": [200, 200],
    "it is a tenant": [404, 404],
}


async def deliver(sides: Sides) -> None:
    """Give a consumer `1-0`, `2-0` and so on."""
    for side in (sides.fast, sides.full):
        new = [ids.make(number, 0) for number in range(1, PENDING + 1)]
        await reply_to(side.engine, XAdd(stream="s", bodies=[b'"fields":{"a":"1"}}'] * PENDING, ids=new))
        await reply_to(side.engine, XGroupCreate(stream="s", group="g", start=0))
        read = XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)], count=PENDING)
        await reply_to(side.engine, read)


@pytest.fixture
async def sides() -> AsyncIterator[Sides]:
    async with opened() as sides:
        for side in (sides.fast, sides.full):
            side.change_token(actions=ALL)
        await deliver(sides)
        yield sides


def ack(*entry_ids: str) -> bytes:
    """The request to acknowledge these."""
    return post(PATH, b'{"ids":["%b"]}' % b'","'.join(map(str.encode, entry_ids)))


async def open_lane(sides: Sides) -> Iterator[bytes]:
    """Acknowledge until the next one may take the lane. Returns the requests that come next."""
    asked = (sides.own(ack(f"{number}-0")) for number in count(1))
    await sides.open(asked, b"200")
    assert isinstance(sides.fast.connection.lane, AppendLane)
    return asked


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_holds_for_the_next_request(sides: Sides, name: str) -> None:
    await check_change(sides, await open_lane(sides), CHANGES[name], STATUSES[name])


def commands(*words: str) -> bytes:
    return post("/v1/commands", b'["%b"]' % b'","'.join(map(str.encode, words)))


BEFORE: Final = {
    "acknowledged": commands("XACK", "s", "g", "4-0"),
    "of another consumer": commands("XCLAIM", "s", "g", "d", "0", "4-0"),
    "deleted entry": commands("XDEL", "s", "4-0"),
    "the group is gone": commands("XGROUP", "DESTROY", "s", "g"),
    "the stream is gone": commands("DEL", "s"),
    "the stream is another": commands("RENAME", "s", "t"),
}


@pytest.mark.parametrize("name", BEFORE)
async def test_what_another_has_done_holds_at_once(sides: Sides, name: str) -> None:
    """While the lane was open."""
    asked = await open_lane(sides)
    for other in [await side.another() for side in (sides.fast, sides.full)]:
        assert (await other.ask(sides.own(BEFORE[name])))[9:10] == b"2"
    assert isinstance(sides.fast.connection.lane, AppendLane)
    for _ in range(3):
        await sides.both(next(asked))


BETWEEN: Final = {
    "several": ack("201-0", "202-0"),
    "as Python writes them": post(PATH, b'{"ids": ["203-0", "204-0"]}'),
    "one that is not pending": ack("205-0", "9999-0"),
    "none that is pending": ack("9999-0"),
    "one twice": ack("206-0", "206-0"),
    "a zero in front": ack("0207-0"),
    "no sequence": ack("208"),
    "the highest": ack("18446744073709551615-18446744073709551615"),
    "a long one": ack("1844674407370955161-0"),
    "too high": ack("18446744073709551616-0"),
    "far too long": ack("1" * 200 + "-0"),
    "no ID": ack("x"),
    "an empty one": ack(""),
    "none": post(PATH, b'{"ids":[]}'),
    "nothing": post(PATH, b""),
    "no JSON": post(PATH, b'{"ids":["209-0"'),
    "a number": post(PATH, b'{"ids":[209]}'),
    "an escape": post(PATH, b'{"ids":["21\\u0030-0"]}'),
    "blanks": post(PATH, b'{ "ids" : [ "211-0" ] }'),
    "a line end": post(PATH, b'{"ids":["212-0"]}\n'),
    "more": post(PATH, b'{"ids":["213-0"],"delete":null}'),
    "unknown": post(PATH, b'{"ids":["214-0"],"x":1}'),
    "twice": post(PATH, b'{"ids":["215-0"],"ids":["216-0"]}'),
    "with deletion": post(PATH, b'{"ids":["217-0"],"delete":"keep"}'),
    "very many": ack(*[f"{number}-0" for number in range(250, 300)]),
    "larger": ack(*[f"{number}-0" for number in range(10_000, 13_000)]),
    "too many": ack(*[f"{number}-0" for number in range(1, 10_002)]),
    "another group": post("/v1/streams/s/groups/h/ack", b'{"ids":["218-0"]}'),
    "another stream": post("/v1/streams/t/groups/g/ack", b'{"ids":["219-0"]}'),
    "a bad name": post("/v1/streams/s/groups/%s/ack" % ("g" * 600), b'{"ids":["219-0"]}'),
    "an entry": post("/v1/streams/s/entries", ENTRY),
    "synced": post(PATH, b'{"ids":["220-0"]}', JSON, "Prefer: durability=fsync"),
    "a condition": post(PATH, b'{"ids":["221-0"]}', JSON, 'If-Match: "1-1"'),
    "a key": post(PATH, b'{"ids":["222-0"]}', JSON, "Idempotency-Key: k"),
    "a trace": post(PATH, b'{"ids":["223-0"]}', JSON, f"traceparent: {SAMPLED}"),
    "a charset": post(PATH, b'{"ids":["224-0"]}', "Content-Type: application/json; charset=utf-8"),
    "another type": post(PATH, b'{"ids":["225-0"]}', "Content-Type: text/plain"),
    "a query": post(f"{PATH}?a=1", b'{"ids":["226-0"]}'),
    "an expectation": post(PATH, b'{"ids":["227-0"]}', JSON, "Expect: 100-continue"),
    "own request ID": post(PATH, b'{"ids":["228-0"]}', JSON, "Weir-Request-Id: mine"),
    "a read": request(f"GET {GROUP}"),
}


@pytest.mark.parametrize("name", BETWEEN)
async def test_a_request_unlike_the_one_before_is_served_as_ever(sides: Sides, name: str) -> None:
    """As often as it comes, and so is what comes behind it."""
    asked = await open_lane(sides)
    for _ in range(2):
        await sides.both(sides.own(BETWEEN[name]))
    for _ in range(3):
        assert (await sides.both(next(asked))).startswith(b"HTTP/1.1 200 ")
    assert isinstance(sides.fast.connection.lane, AppendLane)
    await sides.both(sides.own(request(f"GET {GROUP}/pending")))


@pytest.mark.parametrize("seed", range(halves.some(8)))
async def test_requests_in_any_order_and_any_pieces_are_answered_alike(sides: Sides, seed: int) -> None:
    """Those that take a lane, those that close it, and a stamp that advances between them."""
    random = Random(seed)
    asked = await open_lane(sides)
    unlike = [*BETWEEN.values()]
    await check_any_order(
        sides, random, lambda: random.choice([next(asked)] * 3 + [sides.own(random.choice(unlike))])
    )


@pytest.mark.parametrize("seed", range(halves.some(8)))
async def test_what_comes_together_is_answered_as_one_behind_the_other(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """By one command; an ID that several name was acknowledged by the first."""
    await open_lane(sides)
    random, number = Random(seed), 10
    fast, full = [[await side.another() for _ in range(5)] for side in (sides.fast, sides.full)]
    for _ in range(8):
        # What was looked at before joins what is sent at the end of the cycle.
        for way, other in zip(fast, full, strict=True):
            asked = sides.own(ack(f"{(number := number + 1)}-0"))
            assert await way.ask(asked) == await other.ask(asked)
        sent = sent_from_now(sides, monkeypatch, Acknowledge)
        each_asked = [
            sides.own(
                ack(*random.sample([f"{number + one}-0" for one in range(1, 8)], random.choice([1, 2]))),
            )
            for _ in fast
        ]
        number += 7
        for way, one in zip(fast, each_asked, strict=True):
            way.connection.data_received(one)
        together = [await way.ask(b"") for way in fast]
        alone = [await way.ask(one) for way, one in zip(full, each_asked, strict=True)]
        assert together == alone
        # Further ones look for the group where nothing was pending.
        assert len(sent[0].ids) >= len(fast)


async def test_each_request_takes_one_from_the_rate(sides: Sides) -> None:
    """What is left stands in the answers, which are alike; what the lane could not take has taken nothing."""
    rate = {"requests_per_s": 1, "requests_burst": 10, "bytes_per_s": 1_000}
    for side in (sides.fast, sides.full):
        side.change_token(actions=ALL, rate=rate)
    asked = await open_lane(sides)
    await sides.both(sides.own(ack("9999-0")))
    answers = [await sides.both(next(asked)) for _ in range(8)]
    assert {answer[9:12] for answer in answers[:4]} == {b"200"}
    assert {answer[9:12] for answer in answers[-2:]} == {b"429"}


async def test_requests_are_counted_and_logged_alike() -> None:
    """By route and status, and timed; each with its line."""
    async with opened(log_requests="all") as sides:
        for side in (sides.fast, sides.full):
            side.change_token(actions=ALL)
        await deliver(sides)
        asked = await open_lane(sides)
        await check_counts_and_log(sides, asked)


@OF_WHAT_MAY_BE_DONE
async def test_what_may_have_been_done_is_not_tried_again(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, refusal: EngineError, status: bytes
) -> None:
    await check_tried_once(sides, monkeypatch, next(await open_lane(sides)), refusal, status)


async def test_who_waits_for_room_is_woken(sides: Sides) -> None:
    """A reader over server-sent events goes on once what it was given is acknowledged elsewhere."""
    asked = await open_lane(sides)
    with sides.fast.gateway.tenant("").leases.watch("s") as settled:
        assert (await sides.fast.ask(next(asked))).startswith(b"HTTP/1.1 200 ")
        assert settled.is_set()
