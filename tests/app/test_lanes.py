"""A lane answers as the route does, byte by byte, after any change since the request that opened it.

Each test asks two gateways, one with lanes and one without the fast path, at a moment that stands still.
"""

import asyncio
import gc
import re
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise, repeat
from random import Random
from typing import Final

import pytest

from app.doors.http.lane import Lane
from app.live import together
from engine import EngineError, ids
from engine.commands import AddEach, XLen
from engine.replies import Added
from tests import halves
from tests.app.fast_requests import ENTRIES, ENTRY, JSON, NDJSON, post, request
from tests.app.holding import holds
from tests.app.lane_checks import (
    OF_WHAT_MAY_BE_DONE,
    check_any_order,
    check_change,
    check_counts_and_log,
    check_tried_once,
)
from tests.app.lane_sides import CHANGES, Side, Sides, opened
from tests.app.ten_doors import SAMPLED
from tests.engine.asking import reply_to
from tests.engine.clocks import settle


@pytest.fixture
async def sides() -> AsyncIterator[Sides]:
    async with opened() as sides:
        yield sides


# ---- what has changed between two requests

STATUSES: Final = {
    "nothing": [201, 201],
    "it drains": [503],
    "its engine fails": [503, 503],
    "its engine is gone": [503],
    "the token is gone": [401, 401],
    "the token is revoked": [401, 401],
    "the token has expired": [401, 401],
    "it may not write": [403, 403],
    "it may not write here": [403, 403],
    "it has a rate": [201] * 6 + [429, 429],
    "it has a quota": [507, 507],
    "it is a tenant": [201, 201],
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_holds_for_the_next_request(sides: Sides, name: str) -> None:
    await check_change(sides, repeat(await sides.open_lane()), CHANGES[name], STATUSES[name])


# ---- what is unlike the request before


CHUNKS: Final = b"14\r\n%b\r\n0\r\n\r\n" % ENTRY
BETWEEN: Final = {
    "key": post(ENTRIES, ENTRY, JSON, "Idempotency-Key: k"),
    "condition": post(ENTRIES, ENTRY, JSON, 'If-Match: "1-1"'),
    "expectation": post(ENTRIES, ENTRY, JSON, "Expect: 100-continue"),
    "synced": post(ENTRIES, ENTRY, JSON, "Prefer: durability=fsync"),
    "trace": post(ENTRIES, ENTRY, JSON, f"traceparent: {SAMPLED}"),
    "own request ID": post(ENTRIES, ENTRY, JSON, "Weir-Request-Id: mine"),
    "chunks": request(f"POST {ENTRIES}", None, JSON, "Transfer-Encoding: chunked") + CHUNKS,
    "query": post(f"{ENTRIES}?maxlen=2&approx=false", ENTRY),
    "another stream": post("/v1/streams/t/entries", ENTRY),
    "a read": request(f"GET {ENTRIES}?count=2"),
    "lines": post(ENTRIES, b'{"a":"1"}\n{"a":"2"}\n', NDJSON),
    "a number": post(ENTRIES, b'{"fields":{"a":1}}'),
    "no JSON": post(ENTRIES, b'{"fields":{"a":"1"'),
    "nothing": post(ENTRIES, b""),
    "as large as others": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 16_300)),
    "larger": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 16_400)),
    "much larger": post(ENTRIES, b'{"fields":{"a":"%b"}}' % (b"x" * 70_000)),
}


@pytest.mark.parametrize("name", BETWEEN)
async def test_a_request_unlike_the_one_before_is_served_as_ever(sides: Sides, name: str) -> None:
    """And so is what comes behind it."""
    asked = await sides.open_lane()
    await sides.both(sides.own(BETWEEN[name]))
    for _ in range(3):
        assert (await sides.both(asked)).startswith(b"HTTP/1.1 201 ")
    assert sides.fast.connection.lane is not None
    last = sides.entry(ENTRY, JSON, "Connection: close")
    assert b"\r\nconnection: close\r\n" in await sides.both(last)


async def test_entries_of_other_lengths_take_the_same_lane(sides: Sides) -> None:
    """Nothing but `Content-Length` differs."""
    await sides.open_lane()
    lane = sides.fast.connection.lane
    for size in (1, 100, 3, 16_000, 1):
        asked = sides.entry(b'{"fields":{"a":"%b"}}' % (b"x" * size))
        assert (await sides.both(asked)).startswith(b"HTTP/1.1 201 ")
        assert sides.fast.connection.lane is lane


@pytest.mark.parametrize("cuts", [(1,), (20,), (-1,), (-1, -10), (-len(ENTRY),)])
async def test_a_request_in_pieces_is_answered_alike(sides: Sides, cuts: Sequence[int]) -> None:
    """As is the next one, which takes the lane again; many clients send a head and its body apart."""
    asked = await sides.open_lane()
    ends = sorted(cut % len(asked) for cut in cuts)
    pieces = [asked[at:end] for at, end in pairwise([0, *ends, len(asked)])]
    for _ in range(2):
        assert await sides.fast.ask(*pieces) == await sides.full.ask(*pieces)
        # Only the parser puts a head together.
        assert (sides.fast.connection.lane is not None) == (ends[0] >= len(asked) - len(ENTRY))
        assert not sides.fast.connection.has_deadline
    await sides.both(asked)
    assert sides.fast.connection.lane is not None


async def test_a_client_that_takes_no_answers_has_no_lane(sides: Sides) -> None:
    """Nothing is taken from it until it reads again, also where the answer of a lane was too much."""
    asked = await sides.open_lane()
    connection = sides.fast.connection
    connection.pause_writing()
    assert connection.lane is None
    connection.resume_writing()
    await sides.both(asked)
    connection.data_received(asked)
    connection.pause_writing()
    assert (await sides.fast.ask(b"")).startswith(b"HTTP/1.1 201 ")
    assert connection.lane is None
    connection.resume_writing()


async def test_requests_that_come_at_once_are_answered_in_order(sides: Sides) -> None:
    """One waits in the lane, and those behind it come the usual way: in one piece with it, or later."""
    asked = await sides.open_lane()
    read = request(
        f"GET {ENTRIES}?count=1&reverse=true", None, f"Authorization: Bearer {sides.fast.token.text}"
    )
    for pieces in ([asked * 2 + read + asked], [asked, read + asked, read]):
        for side in (sides.fast, sides.full):
            for piece in pieces:
                side.writer.write(piece)
        for _ in range(4):
            await sides.both(b"")
    assert await reply_to(sides.fast.engine, XLen(stream="s")) == 3 + 3 + 2


@pytest.mark.parametrize("seed", range(halves.some(8)))
async def test_requests_in_any_order_and_any_pieces_are_answered_alike(sides: Sides, seed: int) -> None:
    """Those that take the lane, those that close it, and a stamp that advances between them."""
    random = Random(seed)
    bodies = [b'{"fields":{"a":"%b"}}' % (b"x" * size) for size in (1, 1, 1, 2, 30)]
    likely = [post(ENTRIES, body) for body in bodies]
    unlike = [*BETWEEN.values()]
    await check_any_order(sides, random, lambda: sides.own(random.choice([*likely, random.choice(unlike)])))


@pytest.mark.parametrize("unusual", [True, False])
async def test_what_is_behind_an_entry_that_is_stored_at_once_comes_before_the_next(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, *, unusual: bool
) -> None:
    """By an engine that answers at once, where its batch is full before the cycle ends."""
    asked = await sides.open_lane()
    monkeypatch.setattr(together, "_ENTRIES_MAX", 1)
    send = sides.fast.engine.send
    at_once = [Added((1 << ids.SEQUENCE_BITS,))]
    monkeypatch.setattr(
        sides.fast.engine,
        "send",
        lambda call, done: at_once if isinstance(call.commands[0], AddEach) else send(call, done),
    )
    token = f"Authorization: Bearer {sides.fast.token.text}"
    read = request(f"GET {ENTRIES}?after=$&wait=1", None, token, *(["X-Other: 1"] if unusual else []))
    connection = sides.fast.connection
    for piece in (asked + read, asked):
        connection.data_received(piece)
    await settle()
    sides.clock.pass_ms(5)
    answers = [await sides.fast.ask(b"") for _ in range(3)]
    assert [answer[9:12] for answer in answers] == [b"201", b"200", b"201"]


# ---- what is counted


async def test_each_request_takes_one_from_the_rate(sides: Sides) -> None:
    """What is left stands in the answers, which are alike; beyond it is 429, until there is room."""
    for side in (sides.fast, sides.full):
        side.change_token(rate={"requests_per_s": 1, "requests_burst": 10, "bytes_per_s": 1_000})
    asked = await sides.open_lane()
    answers = [await sides.both(asked) for _ in range(9)]
    left = [re.findall(rb'"requests";r=(\d+)', answer) for answer in answers]
    assert left == [[b"%d" % number] for number in range(6, -1, -1)] + [[b"0"]] * 2
    assert [answer[9:12] for answer in answers] == [b"201"] * 7 + [b"429"] * 2
    sides.clock.pass_ms(2_000)
    assert [(await sides.both(asked))[9:12] for _ in range(3)] == [b"201", b"201", b"429"]


async def test_requests_are_counted_and_logged_alike() -> None:
    """By route and status, and timed; each with its ID, its time and the bytes of its answer."""
    async with opened(log_requests="all") as sides:
        asked = await sides.open_lane()
        sides.fast.connection.begin_idle()
        await check_counts_and_log(sides, repeat(asked))


async def test_a_caller_with_many_connections_takes_turns_with_its_lanes(sides: Sides) -> None:
    """Of one with more of them than are served in a cycle, the others wait for the next ones."""
    asked = await sides.open_lane()
    others = [await sides.fast.another() for _ in range(3)]
    for other in others:
        assert (await other.ask(asked)).startswith(b"HTTP/1.1 201 ")
    sides.fast.gateway.limits.requests.a_cycle_max = 2
    connections = [other.connection for other in others]
    for connection in connections:
        assert connection.lane is not None
        connection.data_received(asked)
    assert [connection.turn.is_waiting for connection in connections] == [False, False, True]
    assert [isinstance(connection.answering, Lane) for connection in connections] == [True, True, False]
    for other in others:
        assert (await other.ask(b"")).startswith(b"HTTP/1.1 201 ")


# ---- what happens while an entry waits


async def test_what_is_refused_together_is_served_one_by_one(sides: Sides) -> None:
    """A bad entry concerns itself alone."""
    asked = await sides.open_lane()
    bad = sides.entry(ENTRY.replace(b'"1"', b'"\xff"'))
    others = [await sides.fast.another() for _ in range(3)]
    for other in others:
        assert (await other.ask(asked)).startswith(b"HTTP/1.1 201 ")
    for other, sent in zip(others, (asked, bad, asked), strict=True):
        assert len(sent) == len(asked)
        other.writer.write(sent)
    assert [(await other.ask(b""))[9:12] for other in others] == [b"201", b"400", b"201"]


@OF_WHAT_MAY_BE_DONE
async def test_what_may_have_been_stored_is_not_tried_again(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, refusal: EngineError, status: bytes
) -> None:
    await check_tried_once(sides, monkeypatch, await sides.open_lane(), refusal, status)


async def test_an_entry_of_a_client_that_leaves_is_stored(sides: Sides) -> None:
    """Others that were stored with it are answered."""
    asked = await sides.open_lane()
    leaving = await sides.fast.another()
    assert (await leaving.ask(asked)).startswith(b"HTTP/1.1 201 ")
    connection = leaving.connection
    connection.data_received(asked)
    connection.transport.abort()
    assert (await sides.fast.ask(asked)).startswith(b"HTTP/1.1 201 ")
    assert connection.lane is None
    assert await reply_to(sides.fast.engine, XLen(stream="s")) == 3 + 1 + 2


@pytest.mark.parametrize("stop", [lambda side: side.connection.shutdown(), lambda side: side.gateway.drain()])
async def test_the_last_answer_closes_the_connection(stop: Callable[[Side], None]) -> None:
    """A stop between an entry and its answer, which waits for the disk: it is stored, and answered."""
    async with opened(fsync="always") as sides:
        asked = await sides.open_lane()
        sides.fast.connection.data_received(asked)
        await asyncio.sleep(0)
        assert sides.fast.connection.answering is not None
        stop(sides.fast)
        answer = await sides.fast.ask(b"")
        assert answer.startswith(b"HTTP/1.1 201 ")
        assert b"\r\nconnection: close\r\n" in answer


async def test_a_connection_is_idle_behind_the_answer_of_its_lane() -> None:
    """It is closed after this time, and not while it waits for its answer."""
    async with opened(keep_alive_s=5) as sides:
        asked = await sides.open_lane()
        connection = sides.fast.connection
        for _ in range(3):
            sides.clock.pass_ms(4_000)
            await settle()
            assert (await sides.fast.ask(asked)).startswith(b"HTTP/1.1 201 ")
        sides.clock.pass_ms(4_900)
        await settle()
        assert not connection.transport.is_closing()
        sides.clock.pass_ms(200)
        await settle()
        assert connection.transport.is_closing()


async def test_a_connection_that_waits_holds_nothing_of_what_was_published(sides: Sides) -> None:
    """There may be thousands of them: neither an entry, nor an append, nor what was refused."""
    text = b"x" * 15_000
    sides.fast.change_token(actions=["read", "write"])
    await sides.open_lane()
    for _ in range(2):
        assert (await sides.fast.ask(sides.entry(b'{"fields":{"a":"%b"}}' % text)))[9:12] == b"201"
    assert not holds(sides.fast.connection.lane, text[:100])
    assert (await sides.fast.ask(sides.entry(b'{"fields":{"a":"%b"},"a":1}' % text)))[9:12] == b"422"
    assert not holds(sides.fast.connection._last_lane, text[:100])  # noqa: SLF001
    await sides.open_append_lane()
    for seq in range(4):
        headers = (JSON, "Producer-Id: p", "Producer-Epoch: 0", f"Producer-Seq: {seq}")
        assert (await sides.fast.ask(sides.append(b'"%b"' % text, *headers)))[9:12] == b"200"
    assert not holds(sides.fast.connection.lane, text[:100])


@pytest.mark.parametrize("body", [ENTRY, ENTRY.replace(b"{", b"{ ", 1)])
async def test_a_client_that_left_without_its_answer_is_forgotten(body: bytes) -> None:
    """By a lane or not: it is not kept for as long as an idle one would be."""
    async with opened(fsync="always", keep_alive_s=3_600) as sides:
        await sides.open_lane()
        asked = sides.entry(body)
        leaving = await sides.fast.another()
        assert (await leaving.ask(asked))[9:12] == b"201"
        connection = leaving.connection
        connection.data_received(asked)
        await asyncio.sleep(0)
        assert connection.answering is not None
        connection.transport.abort()
        # The disk takes a while; what comes behind it is answered behind it.
        assert (await sides.fast.ask(sides.entry(ENTRY)))[9:12] == b"201"
        assert connection.answering is None
        gone = weakref.ref(connection)
        leaving.writer.close()
        del connection, leaving
        await settle()
        gc.collect()
        assert gone() is None
