"""Policies of groups over a server: what is idle for too long, and what is delivered too often."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from engine import EngineError, entries, ids
from engine.cluster import ClusterEngine, dead_letters, words
from engine.cluster.dead_letters import Dying
from engine.cluster.refusals import unavailable
from engine.cluster.routing import BackendRequest
from engine.commands import types
from engine.commands.weir_commands import DeadLetterEntries, EnsureGroup, UpdateGroup
from engine.replies import (
    AutoClaimed,
    Claimed,
    Entries,
    GroupRead,
    PendingSummary,
)
from tests.cluster.engines import opened
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_of, reply_to

POLICY = {"dead_letter_stream": "dead", "max_deliveries": 2, "ack_timeout_ms": None}
NEVER_MS = 1 << 50
SOON_S = 10.0


@pytest.fixture
async def engine(server: BackendServer) -> AsyncIterator[ClusterEngine]:
    """5-0 and 5-1, of which the consumer a holds both; a third delivery is one too many."""
    async with opened(server) as engine:
        bodies = [entries.body([("n", str(n))]) for n in range(2)]
        await reply_to(engine, types.XAdd(stream="s", bodies=bodies, ids=[ids.make(5, n) for n in range(2)]))
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, policy=POLICY))
        await read(engine, "a")
        yield engine


async def read(engine: ClusterEngine, consumer: str, **options: Any) -> Sequence[int]:
    cursor = options.pop("cursor", types.Cursor.NEW)
    found = await reply_of(
        engine, GroupRead, types.XReadGroup(group="g", consumer=consumer, streams=[("s", cursor)], **options)
    )
    return [one.id for stream in found.streams for one in stream.entries]


async def letters(engine: ClusterEngine) -> list[dict[str, str]]:
    found = await reply_of(engine, Entries, types.XRange(stream="dead", start=0, end=ids.ID_MAX))
    return [{name: value.decode() for name, value in pairs} for _, pairs in found.pairs()]


async def pending(engine: ClusterEngine) -> int:
    found = await reply_of(engine, PendingSummary, types.XPending(stream="s", group="g"))
    return found.count


async def deliver(engine: ClusterEngine, way: str) -> Sequence[int]:
    """Once more, to b where the way allows it."""
    if way == "history":
        return await read(engine, "a", cursor=0)
    if way == "claiming read":
        return await read(engine, "b", claim_min_idle_ms=0)
    if way == "claim":
        claim = types.Claim(ids=[ids.make(5, 0), ids.make(5, 1)], min_idle_ms=0)
        found = await reply_to(engine, types.XClaim(stream="s", group="g", consumer="b", claim=claim))
    else:
        found = await reply_to(
            engine, types.XAutoClaim(stream="s", group="g", consumer="b", min_idle_ms=0, start=0, count=10)
        )
    assert isinstance(found, Claimed | AutoClaimed)
    return [one.id for one in found.entries]


@pytest.mark.parametrize("failing", [1, 2])
async def test_after_a_failure_it_is_repeated_and_stored_once(engine: ClusterEngine, failing: int) -> None:
    """Whichever step was not done: the first or the second."""
    left = [failing - 1]

    async def run(request: BackendRequest) -> Any:
        if left[0] == 0:
            raise unavailable("the test says so")
        left[0] -= 1
        return await engine.run_request(request)

    dying = await look(engine, 0)
    assert (await dead_letters.move(run, dying)).ids == []
    assert await pending(engine) == 2
    assert (await dead_letters.move(engine.run_request, dying)).ids == [ids.make(5, 0)]
    assert (len(await letters(engine)), await pending(engine)) == (1, 1)


async def look(engine: ClusterEngine, sequence: int, consumer: str | None = None) -> Dying:
    """An entry on its way out, before anything is done."""
    named = [ids.make(5, sequence)]
    wanted = DeadLetterEntries(stream="s", group="g", ids=named, reason="bad", consumer=consumer)
    request = words.only_request(wanted)
    found: list[Any] = []

    def decode(results: Sequence[Any]) -> None:
        found.append(request.decode(results))

    await engine.run_request(
        BackendRequest(stream="s", commands=request.with_texts().commands, decode=decode, lane=request.lane)
    )
    (dying,) = found
    assert isinstance(dying, Dying)
    return dying


async def test_what_was_settled_in_between_is_no_dead_letter(engine: ClusterEngine) -> None:
    """Its reader did its work after all."""
    dying = await look(engine, 0)
    await reply_to(engine, types.XAck(stream="s", group="g", ids=[ids.make(5, 0)]))
    assert (await dead_letters.move(engine.run_request, dying)).ids == []
    assert await letters(engine) == []


@pytest.mark.parametrize("pausing", [1, 2])
async def test_what_another_has_claimed_in_between_is_no_dead_letter(
    engine: ClusterEngine, pausing: int
) -> None:
    """Its consumer says that it is to die, and is found to hold it; then it is another's."""
    steps = 0

    async def run(request: BackendRequest) -> Any:
        nonlocal steps
        steps += 1
        if steps == pausing:
            await deliver(engine, "claim")
        return await engine.run_request(request)

    dying = await look(engine, 0, "a")
    assert [due.consumer for due in dying.due] == ["a"]
    assert (await dead_letters.move(run, dying)).ids == []
    assert (await letters(engine), await pending(engine)) == ([], 2)


@pytest.mark.parametrize("pausing", [1, 2])
async def test_of_two_movers_that_meet_neither_loses_the_dead_letter(
    engine: ClusterEngine, pausing: int
) -> None:
    """One stops behind its first or second step while the other does all of its own: there is one letter."""
    dying = await look(engine, 0)
    steps, moved = 0, []

    async def run(request: BackendRequest) -> Any:
        nonlocal steps
        reply = await engine.run_request(request)
        steps += 1
        if steps == pausing:
            moved.extend((await dead_letters.move(engine.run_request, dying)).ids)
        return reply

    moved += (await dead_letters.move(run, dying)).ids
    assert moved == [ids.make(5, 0)]
    assert ([one["weir-id"] for one in await letters(engine)], await pending(engine)) == (["5-0"], 1)


async def test_the_dead_letter_of_an_earlier_death_stays(engine: ClusterEngine) -> None:
    """Its mover comes back when the entry has died again and the other is about to forget the key."""
    dying = await look(engine, 0)
    steps = 0

    async def again(request: BackendRequest) -> Any:
        nonlocal steps
        reply = await engine.run_request(request)
        steps += 1
        if steps == 1:
            await dead_letters.move(engine.run_request, dying)
            await reply_to(engine, UpdateGroup(stream="s", group="g", start=0))
            await read(engine, "a", count=1)
            await dead_letters.move(second, dying)
        return reply

    async def second(request: BackendRequest) -> Any:
        reply = await engine.run_request(request)
        if request.commands[0][0] == "XACK":
            resumed.set_result(None)
            raise unavailable("the test says so")
        return reply

    resumed: Any = asyncio.get_running_loop().create_future()
    assert (await dead_letters.move(again, dying)).ids == []
    assert resumed.done()
    assert [one["weir-id"] for one in await letters(engine)] == ["5-0", "5-0"]


async def test_it_may_die_again(engine: ClusterEngine) -> None:
    """Once the group is moved back, that is another dead letter."""
    for _ in range(2):
        bury = DeadLetterEntries(stream="s", group="g", ids=[ids.make(5, 0)], reason="bad")
        await reply_to(engine, bury)
        await reply_to(engine, UpdateGroup(stream="s", group="g", start=0))
        await read(engine, "a", count=1)
    assert [one["weir-id"] for one in await letters(engine)] == ["5-0", "5-0"]


async def test_a_refused_dead_letter_leaves_its_entry_pending(
    server: BackendServer, engine: ClusterEngine
) -> None:
    """It is tried again at the next read, and reported; by hand the caller is refused."""
    refused: list[tuple[str, str, str, str]] = []
    engine.events.letters_refused = refused.extend
    await deliver(engine, "claim")
    server.call("SET", "dead", "of another program")
    assert await deliver(engine, "claiming read") == []
    assert await pending(engine) == 2
    [first, second] = refused
    assert first == second == ("s", "g", "dead", first[3])
    assert "wrong kind of value" in first[3]
    bury = DeadLetterEntries(stream="s", group="g", ids=[ids.make(5, 0)], reason="bad")
    with pytest.raises(EngineError, match="wrong kind of value"):
        await reply_to(engine, bury)
    assert len(refused) == 3
    server.call("DEL", "dead")
    await deliver(engine, "claiming read")
    assert (await pending(engine), len(await letters(engine))) == (0, 2)


async def test_what_is_idle_for_too_long_goes_to_a_reader_of_released_entries(engine: ClusterEngine) -> None:
    """As if it had been given back; not before its time, and not to a reader of new ones."""
    await reply_to(engine, UpdateGroup(stream="s", group="g", policy={"ack_timeout_ms": 3_600_000}))
    assert await read(engine, "b", claim_min_idle_ms=NEVER_MS) == []
    await reply_to(engine, UpdateGroup(stream="s", group="g", policy={"ack_timeout_ms": 1}))
    assert await read(engine, "b") == []
    found = await read(engine, "b", claim_min_idle_ms=NEVER_MS, block_ms=round(SOON_S * 1000))
    assert found == [ids.make(5, 0), ids.make(5, 1)]
