"""Redriving under a key over a server: a call that failed half-way is completed, and answered in full."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine import EngineError, entries, ids
from engine.cluster import ClusterEngine, redrive
from engine.cluster.refusals import unavailable
from engine.cluster.routing import BackendRequest
from engine.commands.redriving import TURN_LOOKS_MAX
from engine.commands.types import Cursor, Delete, IdempotencyKey, XAdd, XLen, XRange, XReadGroup
from engine.commands.weir_commands import DeadLetterEntries, EnsureGroup, FindDeadLetters, Redrive
from engine.replies import DeadLettersFound, Entries, Redriven
from tests.cluster.engines import opened
from tests.cluster.servers import Backend
from tests.engine.asking import reply_of, reply_to

COUNT = 3
# Looks for the group, the dead-letter stream, the dead letters; the key; of each a copy and a deletion; a
# look for the copies; the answer.
REQUESTS = 3 + 1 + 2 * COUNT + 1 + 1
KEY = IdempotencyKey("k", b"d")


@pytest.fixture
async def engine(backend: Backend) -> AsyncIterator[ClusterEngine]:
    """Three dead letters, in another slot than their stream."""
    async with opened(backend) as engine:
        bodies = [entries.body([("n", str(n))]) for n in range(COUNT)]
        added: Any = await reply_to(engine, XAdd(stream="s", bodies=bodies))
        policy = {"dead_letter_stream": "dead"}
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, policy=policy))
        await reply_to(engine, XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)]))
        await reply_to(engine, DeadLetterEntries(stream="s", group="g", ids=added.ids, reason="by hand"))
        yield engine


async def letters(engine: ClusterEngine) -> list[int]:
    found = await reply_of(engine, Entries, XRange(stream="dead", start=0, end=ids.ID_MAX))
    return [one for one, _ in found.pairs()]


def finding(count: int, end: int = ids.ID_MAX, **only: str) -> FindDeadLetters:
    return FindDeadLetters(stream="s", group="g", letters="dead", start=0, end=end, count=count, **only)


def redriving(wanted: list[int], key: IdempotencyKey | None = KEY) -> Redrive:
    return Redrive(stream="s", group="g", letters="dead", ids=wanted, upto=None, idempotency=key)


class Failing:
    """Runs this number of requests; the next one is done too if `is_done`, and its reply is lost."""

    def __init__(self, engine: ClusterEngine, left: int, *, is_done: bool) -> None:
        self.engine, self.left, self.is_done = engine, left, is_done

    async def run(self, request: BackendRequest) -> Any:
        self.left -= 1
        if self.left < 0:
            if self.is_done:
                await self.engine.run_request(request)
                self.is_done = False
            raise unavailable("the test", is_unknown=True)
        return await self.engine.run_request(request)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
async def test_one_look_for_dead_letters_reads_a_page(engine: ClusterEngine, beyond: int) -> None:
    """Entries that are no dead letters are passed over, a page of them with each call."""
    others = [entries.body([("n", "other")])] * (TURN_LOOKS_MAX - COUNT + beyond)
    added: Any = await reply_to(engine, XAdd(stream="dead", bodies=others))
    found = await reply_to(engine, finding(9))
    assert found == DeadLettersFound((await letters(engine))[:COUNT], added.ids[-2] if beyond > 0 else None)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("after", range(REQUESTS))
async def test_a_call_that_failed_is_gone_on_with(
    engine: ClusterEngine, after: int, *, is_done: bool
) -> None:
    """Wherever that was: each is copied once, the repeated call answers all, and then as the first time."""
    wanted = await letters(engine)
    with pytest.raises(EngineError):
        await redrive.redrive(Failing(engine, after, is_done=is_done).run, redriving(wanted))
    # The filter finds what is left, and the key all that was meant.
    again = await reply_of(engine, Redriven, redriving(await letters(engine)))
    assert list(again.letters) == wanted
    assert len(set(again.copies)) == COUNT
    assert await reply_to(engine, XLen(stream="s")) == 2 * COUNT
    assert await letters(engine) == []
    repeated = await reply_to(engine, redriving([]))
    assert repeated == Redriven(again.letters, again.copies, None, duplicate=True)


async def test_two_calls_at_once_under_one_key_answer_the_same(engine: ClusterEngine) -> None:
    """Each letter is copied once."""
    wanted = await letters(engine)
    found: Any = await asyncio.gather(*(reply_to(engine, redriving(wanted)) for _ in range(3)))
    assert len({(tuple(one.letters), tuple(one.copies)) for one in found}) == 1
    assert await reply_to(engine, XLen(stream="s")) == 2 * COUNT


@pytest.mark.parametrize("after", range(REQUESTS))
async def test_a_call_beside_another_one_answers_the_same(engine: ClusterEngine, after: int) -> None:
    """Wherever the first one is when the second one does all of its own."""
    wanted = await letters(engine)
    requests = 0
    second: list[Any] = []

    async def run(request: BackendRequest) -> Any:
        nonlocal requests
        if requests == after:
            second.append(await reply_to(engine, redriving(wanted)))
        requests += 1
        return await engine.run_request(request)

    first = await redrive.redrive(run, redriving(wanted))
    (other,) = second
    assert (first.letters, first.copies) == (other.letters, other.copies)
    assert list(first.letters) == wanted
    assert len(set(first.copies)) == COUNT
    assert await reply_to(engine, XLen(stream="s")) == 2 * COUNT
    assert await reply_to(engine, redriving([])) == Redriven(
        first.letters, first.copies, None, duplicate=True
    )


@pytest.mark.parametrize("key", [None, KEY])
async def test_an_id_that_comes_again_is_another_letter(
    engine: ClusterEngine, key: IdempotencyKey | None
) -> None:
    """Once the dead-letter stream was deleted: it is copied too."""
    kept = await reply_of(engine, Entries, XRange(stream="dead", start=0, end=ids.ID_MAX))
    wanted = await letters(engine)
    await reply_to(engine, redriving(wanted, None))
    await reply_to(engine, Delete(streams=["dead"]))
    bodies = [entries.body([(name, value.decode()) for name, value in pairs]) for _, pairs in kept.pairs()]
    await reply_to(engine, XAdd(stream="dead", bodies=bodies, ids=wanted))
    again = await reply_of(engine, Redriven, redriving(wanted, key))
    assert list(again.letters) == wanted
    assert await reply_to(engine, XLen(stream="s")) == 3 * COUNT
    assert await letters(engine) == []


async def test_what_another_program_put_in_the_place_of_a_letter_is_not_lost(
    backend: Backend, engine: ClusterEngine
) -> None:
    """It is refused, and stays."""
    wanted = await letters(engine)
    fields = {
        letter_id: backend.call("XRANGE", "dead", ids.format(letter_id), "+")[0][1] for letter_id in wanted
    }
    await reply_to(engine, redriving(wanted, None))
    backend.call("XADD", "other", ids.format(wanted[0]), *fields[wanted[1]])
    restored = backend.call("DUMP", "other")
    backend.call("RESTORE", "dead", 0, restored, "REPLACE")
    with pytest.raises(EngineError) as refusal:
        await reply_to(engine, redriving(wanted[:1], None))
    assert refusal.value.code == "idempotency_mismatch"
    assert await letters(engine) == wanted[:1]


async def test_a_key_is_of_one_body(engine: ClusterEngine) -> None:
    """Also before the call is done."""
    wanted = await letters(engine)
    with pytest.raises(EngineError):
        await redrive.redrive(Failing(engine, 4, is_done=False).run, redriving(wanted))
    with pytest.raises(EngineError) as refusal:
        await reply_to(engine, redriving(wanted, IdempotencyKey("k", b"e")))
    assert refusal.value.code == "idempotency_mismatch"
    assert await letters(engine) == wanted
