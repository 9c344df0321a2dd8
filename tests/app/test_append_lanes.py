"""The lane of an append answers as its route does, byte by byte, after any change since it was opened.

Each test asks two gateways, one with lanes and one without the fast path, at a moment that stands still.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count, repeat
from random import Random
from typing import Final

import pytest

from app.doors.http.append_lane import AppendLane
from engine import EngineError
from engine.commands import AppendBatches
from tests import halves
from tests.app.fast_requests import JSON, post, request
from tests.app.lane_checks import (
    OF_WHAT_MAY_BE_DONE,
    check_any_order,
    check_change,
    check_counts_and_log,
    check_tried_once,
)
from tests.app.lane_sides import APPENDS, MESSAGE, Sides, each, opened, sent_from_now
from tests.app.lane_sides import CHANGES as OF_ANY_LANE
from tests.app.ten_doors import SAMPLED

TEXT: Final = "Content-Type: text/plain"
CHANGES: Final = {
    **OF_ANY_LANE,
    "it has a quota": each(lambda side: side.change_token(streams="d", bytes_max=1)),
}
STATUSES: Final = {
    "nothing": [204, 204],
    "it drains": [503],
    "its engine fails": [503, 503],
    "its engine is gone": [503],
    "the token is gone": [401, 401],
    "the token is revoked": [401, 401],
    "the token has expired": [401, 401],
    "it may not write": [403, 403],
    "it may not write here": [403, 403],
    "it has a rate": [204] * 6 + [429, 429],
    "it has a quota": [507, 507],
    "it is a tenant": [404, 404],
}


@pytest.fixture
async def sides() -> AsyncIterator[Sides]:
    async with opened() as sides:
        for side in (sides.fast, sides.full):
            side.change_token(actions=["read", "write", "close", "manage"])
        yield sides


def batch(seq: int, *, producer: str = "p", epoch: int = 0, body: bytes = MESSAGE) -> bytes:
    """A producer's request."""
    named = (f"Producer-Id: {producer}", f"Producer-Epoch: {epoch}", f"Producer-Seq: {seq}")
    return post(APPENDS, body, JSON, *named)


async def open_lane(sides: Sides, *, counts: bool) -> Iterator[bytes]:
    """Open a lane, that of a producer if it counts, which has sent three batches then. Returns the requests
    that come next.
    """
    asked: Iterator[bytes] = repeat(await sides.open_append_lane())
    if counts:
        asked = (sides.own(batch(seq)) for seq in count())
        await sides.open(asked, b"200")
    assert isinstance(sides.fast.connection.lane, AppendLane)
    return asked


# ---- what has changed between two requests


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("counts", [False, True])
async def test_a_change_holds_for_the_next_request(sides: Sides, name: str, *, counts: bool) -> None:
    wanted = [200 if counts and status == 204 else status for status in STATUSES[name]]
    await check_change(sides, await open_lane(sides, counts=counts), CHANGES[name], wanted)


DELETED: Final = request(f"DELETE {APPENDS}")
HIGHEST: Final = b"18446744073709551615-18446744073709551614"
# What is done, and the statuses of an append and of a producer's batch behind it.
BEFORE: Final[dict[str, tuple[Sequence[bytes], int, int]]] = {
    "closed": ([post(APPENDS, b"", "Stream-Closed: true")], 409, 409),
    "closed with an entry": ([post(APPENDS, MESSAGE, JSON, "Stream-Closed: true")], 409, 409),
    "deleted": ([DELETED], 404, 404),
    "made again as text": ([DELETED, request(f"PUT {APPENDS}", b"", TEXT)], 409, 409),
    "made again": ([DELETED, request(f"PUT {APPENDS}", b"", JSON)], 204, 409),
    "made by others": ([DELETED, post("/v1/streams/d/entries", b'{"fields":{"data":"1"}}')], 405, 405),
    "hidden": (
        [request("PUT /v1/stream/f", b"", JSON, f"Stream-Forked-From: {APPENDS}"), DELETED],
        410,
        410,
    ),
    "renamed": ([post("/v1/commands", b'["RENAME","d","e"]')], 404, 404),
    "at its highest ID but one": (
        [post("/v1/commands", b'["XADD","d","%b","data","1"]' % HIGHEST)],
        204,
        200,
    ),
}


@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("counts", [False, True])
async def test_what_another_has_done_holds_at_once(sides: Sides, name: str, *, counts: bool) -> None:
    """The stream was closed, deleted, or made again as another, while the lane was open."""
    asked = await open_lane(sides, counts=counts)
    done, alone, counted = BEFORE[name]
    for other in [await side.another() for side in (sides.fast, sides.full)]:
        for one in done:
            assert (await other.ask(sides.own(one)))[9:10] == b"2"
    assert isinstance(sides.fast.connection.lane, AppendLane)
    answers = [await sides.both(next(asked)) for _ in range(3)]
    assert int(answers[0][9:12]) == (counted if counts else alone)


# ---- what is unlike the request before

BETWEEN: Final = {
    "several": post(APPENDS, b'[{"token":"a"},{"token":"b"}, 3]'),
    "a longer one": post(APPENDS, b'{"token":"%b"}' % (b"x" * 300)),
    "a number": post(APPENDS, b" 5 "),
    "an empty list": post(APPENDS, b"[]"),
    "too many": post(APPENDS, b"[%b]" % b",".join([b"1"] * 20_000)),
    "nothing": post(APPENDS, b""),
    "no JSON": post(APPENDS, b'{"token":"Hel"'),
    "two texts": post(APPENDS, b"1,2"),
    "not UTF-8": post(APPENDS, b'{"token":"H\xffl"}'),
    "larger": post(APPENDS, b'{"token":"%b"}' % (b"x" * 16_400)),
    "much larger": post(APPENDS, b'{"token":"%b"}' % (b"x" * 70_000)),
    "text": post(APPENDS, MESSAGE, TEXT),
    "a charset": post(APPENDS, MESSAGE, "Content-Type: Application/JSON; charset=utf-8"),
    "no type": post(APPENDS, MESSAGE, "Accept: */*"),
    "a wrong type": post(APPENDS, MESSAGE, "Content-Type: json"),
    "a sequence": post(APPENDS, MESSAGE, JSON, "Stream-Seq: 1"),
    "an end that is none": post(APPENDS, MESSAGE, JSON, "Stream-Closed: false"),
    "a query": post(f"{APPENDS}?a=1", MESSAGE),
    "a key": post(APPENDS, MESSAGE, JSON, "Idempotency-Key: k"),
    "synced": post(APPENDS, MESSAGE, JSON, "Prefer: durability=fsync"),
    "a trace": post(APPENDS, MESSAGE, JSON, f"traceparent: {SAMPLED}"),
    "an expectation": post(APPENDS, MESSAGE, JSON, "Expect: 100-continue"),
    "its own request ID": post(APPENDS, MESSAGE, JSON, "Weir-Request-Id: mine"),
    "half a producer": post(APPENDS, MESSAGE, JSON, "Producer-Id: p"),
    "a producer without a number": post(
        APPENDS, MESSAGE, JSON, "Producer-Id: p", "Producer-Epoch: 0", "Producer-Seq: x"
    ),
    "a zero in front": post(
        APPENDS, MESSAGE, JSON, "Producer-Id: p", "Producer-Epoch: 0", "Producer-Seq: 00"
    ),
    "the next run of a producer": batch(0, producer="q", epoch=1),
    "a gap": batch(7, producer="q", epoch=1),
    "a far number": batch((1 << 53) - 1, producer="q", epoch=1),
    "too far a number": batch(1 << 53, producer="q", epoch=1),
    "a producer's list": batch(0, producer="r", body=b"[1,2]"),
    "a producer's empty list": batch(1, producer="r", body=b"[]"),
    "a slash": post("/v1/stream/d%2Fe", MESSAGE),
    "another stream": post("/v1/stream/d/e", MESSAGE),
    "a name that is kept": post("/v1/stream/__ds/e", MESSAGE),
    "no name": post("/v1/stream/d//e", MESSAGE),
    "by the way of others": post("/v1/streams/d/entries", b'{"fields":{"data":"1"}}'),
    "what others may not": post("/v1/streams/d/entries", b'{"fields":{"token":"1"}}'),
    "a read": request(f"GET {APPENDS}"),
}


@pytest.mark.parametrize("name", BETWEEN)
async def test_a_request_unlike_the_one_before_is_served_as_ever(sides: Sides, name: str) -> None:
    """As often as it comes, and so is what comes behind it."""
    asked = await sides.open_append_lane()
    for _ in range(3):
        await sides.both(sides.own(BETWEEN[name]))
    for _ in range(3):
        assert (await sides.both(asked)).startswith(b"HTTP/1.1 204 ")
    assert isinstance(sides.fast.connection.lane, AppendLane)
    last = sides.append(MESSAGE, JSON, "Connection: close")
    assert b"\r\nconnection: close\r\n" in await sides.both(last)


@pytest.mark.parametrize("seq", [0, 2, 3, 4, (1 << 53) - 1, 1 << 53, 10**16, 10**17])
@pytest.mark.parametrize("epoch", [0, 1])
async def test_any_batch_behind_the_one_before_is_answered_alike(sides: Sides, seq: int, epoch: int) -> None:
    """The next one, one that was there, one that leaves some out; and what comes behind it."""
    await open_lane(sides, counts=True)
    for number in (seq, seq, seq + 1, 3, 4):
        await sides.both(sides.own(batch(number, epoch=epoch)))
    other = batch(5).replace(b"Producer-Seq: 5", b"Producer-Seq: 05")
    assert len(other) == len(batch(5)) + 1
    await sides.both(sides.own(other))


@pytest.mark.parametrize("seed", range(halves.some(8)))
async def test_requests_in_any_order_and_any_pieces_are_answered_alike(sides: Sides, seed: int) -> None:
    """Those that take a lane, those that close it, and a stamp that advances between them."""
    await sides.open_append_lane()
    random, seqs = Random(seed), count()
    likely = [post(APPENDS, body) for body in (b"1", b"2", b'"%b"' % (b"x" * 30), b"[1,2,3]", b"[[]]")]
    unlike = [*BETWEEN.values()]
    await check_any_order(
        sides,
        random,
        lambda: sides.own(random.choice([*likely, batch(next(seqs)), random.choice(unlike)])),
    )


# ---- what comes together


@pytest.mark.parametrize("seed", range(halves.some(8)))
async def test_what_comes_together_is_answered_as_one_behind_the_other(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each has its own place, and what is wrong concerns itself alone."""
    await open_lane(sides, counts=True)
    random = Random(seed)
    bodies = [b"1", b"[1,2]", b"[[3],4,5]", b"[]", b"{", b'"%b"' % (b"x" * 40)]
    producers = {name: _Producer(name, random) for name in "pqrst"}
    for seq in range(3):
        for name in "qrst":
            await sides.both(sides.own(batch(seq, producer=name)))
    sent = sent_from_now(sides, monkeypatch, AppendBatches)
    for _ in range(10):
        asked = [post(APPENDS, random.choice(bodies)) for _ in range(5)]
        asked += [producers[name].batch(random.choice(_KINDS)) for name in "pqrs"]
        # A producer with two connections.
        asked += [producers["t"].batch("next") for _ in range(2)]
        fast, full = [[await side.another() for _ in asked] for side in (sides.fast, sides.full)]
        for ways in (fast, full):
            # Those that have a lane already join what is stored at the end of the cycle.
            for way in ways:
                await way.ask(sides.own(request(f"HEAD {APPENDS}")))
        for way, one in zip(fast, asked, strict=True):
            way.connection.data_received(sides.own(one))
        together = [await way.ask(b"") for way in fast]
        assert together == [await way.ask(sides.own(one)) for way, one in zip(full, asked, strict=True)]
    assert max(len(one.batches) for one in sent) >= len(producers)


_KINDS: Final = ["repeated", "gap", "older run", "next run", "bad next run", *["next"] * 4]


class _Producer:
    """Sends what comes next; what was there, what leaves some out, or what is of another run."""

    def __init__(self, name: str, random: Random) -> None:
        self._name, self._random = name, random
        self._epoch, self._seq = 0, 2

    def batch(self, kind: str) -> bytes:
        epoch, seq = self._epoch, self._seq
        if kind == "next":
            self._seq = seq = seq + 1
        elif kind == "gap":
            seq += 3
        elif kind == "older run":
            epoch = max(0, epoch - 1)
        elif kind == "next run":
            self._epoch, self._seq = epoch, seq = epoch + 1, 0
        elif kind == "bad next run":
            epoch += 1
        body = self._random.choice([b"7", b"[7,8]"])
        return batch(seq, producer=self._name, epoch=epoch, body=body)


# ---- what is counted, and what happens while entries wait


@pytest.mark.parametrize("counts", [False, True])
async def test_each_request_takes_one_from_the_rate(sides: Sides, *, counts: bool) -> None:
    """What is left stands in the answers, which are alike; what the lane could not take has taken nothing."""
    rate = {"requests_per_s": 1, "requests_burst": 14, "bytes_per_s": 1_000}
    for side in (sides.fast, sides.full):
        side.change_token(rate=rate)
    asked = await open_lane(sides, counts=counts)
    await sides.both(sides.own(post(APPENDS, b"{")))
    answers = [await sides.both(next(asked)) for _ in range(12)]
    assert {answer[9:12] for answer in answers[:5]} == {b"200" if counts else b"204"}
    assert {answer[9:12] for answer in answers[-2:]} == {b"429"}


@pytest.mark.parametrize("counts", [False, True])
async def test_a_list_counts_as_its_messages(sides: Sides, *, counts: bool) -> None:
    """With a lane and without; one that is beyond what is left is refused, and takes nothing."""
    for side in (sides.fast, sides.full):
        side.change_token(rate={"requests_per_s": 1, "requests_burst": 14})
    await open_lane(sides, counts=counts)
    before = left(await sides.both(sides.own(post(APPENDS, MESSAGE))))
    for number, status in ((5, b"204"), (5, b"429"), (1, b"204")):
        answer = await sides.both(sides.own(post(APPENDS, b"[%b]" % b",".join([b"1"] * number))))
        assert answer[9:12] == status
        before -= number if status == b"204" else 0
        assert left(answer) == before


def left(answer: bytes) -> int:
    """How many requests the caller has left."""
    return int(answer.partition(b'"requests";r=')[2].partition(b";")[0])


@pytest.mark.parametrize("counts", [False, True])
async def test_requests_are_counted_and_logged_alike(*, counts: bool) -> None:
    """By route and status, and timed; each with its line."""
    async with opened(log_requests="all") as sides:
        asked = await open_lane(sides, counts=counts)
        await check_counts_and_log(sides, asked)


@pytest.mark.parametrize("counts", [False, True])
@OF_WHAT_MAY_BE_DONE
async def test_what_may_have_been_stored_is_not_tried_again(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, refusal: EngineError, status: bytes, *, counts: bool
) -> None:
    asked = await open_lane(sides, counts=counts)
    await check_tried_once(sides, monkeypatch, next(asked), refusal, status)
