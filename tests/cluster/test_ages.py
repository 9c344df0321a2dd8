"""Groups with `max_age_ms` over a backend: what is too old is acknowledged in place of a delivery."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from engine import entries, ids
from engine.cluster import ClusterEngine
from engine.commands import types
from engine.commands.weir_commands import DescribeGroup, EnsureGroup
from engine.replies import Entries, GroupInfo, GroupRead
from tests.cluster.clusters import server_words
from tests.cluster.engines import opened
from tests.cluster.servers import Backend, BackendServer
from tests.engine.asking import reply_of, reply_to
from tests.server import Server, call
from tests.waiting import until

S: Final = "{t}s"
DEAD: Final = "{t}dead"
AGE_MS: Final = 300_000
# What one read passes over at most: without dead letters, and with them.
AT_ONCE: Final = {None: 1_000, DEAD: 100}
NEVER_MS: Final = 1 << 50


def old(number: int = 0) -> int:
    """An ID that is too old."""
    return ids.make(5, number)


def young() -> int:
    return ids.make(int(time.time() * 1000), 0)


class World:
    """A gateway, with what it has reported."""

    def __init__(self, engine: ClusterEngine) -> None:
        self.engine = engine
        self.expired: list[tuple[str, str, int]] = []
        self.letters: list[tuple[str, str, int, str]] = []
        engine.events.expired = self.expired.extend
        engine.events.dead_lettered = self.letters.extend

    async def begin(self, *entry_ids: int, **policy: object) -> None:
        """A group, and entries of these IDs."""
        made = EnsureGroup(
            stream=S, group="g", start=0, mkstream=True, policy={"max_age_ms": AGE_MS, **policy}
        )
        await reply_to(self.engine, made)
        await self.add(*entry_ids)

    async def add(self, *entry_ids: int) -> None:
        if entry_ids:
            bodies = [entries.body([("n", "1")])] * len(entry_ids)
            await reply_to(self.engine, types.XAdd(stream=S, bodies=bodies, ids=entry_ids))

    async def read(
        self, consumer: str = "c", cursor: int | types.Cursor = types.Cursor.NEW, **options: Any
    ) -> GroupRead:
        command = types.XReadGroup(group="g", consumer=consumer, streams=[(S, cursor)], **options)
        return await reply_of(self.engine, GroupRead, command)

    async def group(self) -> GroupInfo:
        return await reply_of(self.engine, GroupInfo, DescribeGroup(stream=S, group="g"))

    async def dead(self) -> list[dict[str, str]]:
        found = await reply_to(self.engine, types.XRange(stream=DEAD, start=0, end=ids.ID_MAX))
        pairs = found.pairs() if isinstance(found, Entries) else ()
        return [{name: value.decode() for name, value in each} for _, each in pairs]


@pytest.fixture
def world(engine: ClusterEngine) -> World:
    return World(engine)


def given(found: GroupRead) -> Sequence[int]:
    return [entry.id for stream in found.streams for entry in stream.entries]


async def test_one_whose_dead_letter_is_refused_stays_pending(backend: Backend, world: World) -> None:
    """It is moved by a read that takes what was given back, once there is room for it."""
    backend.call("SET", DEAD, "of another program")
    await world.begin(old(), dead_letter_stream=DEAD)
    assert given(await world.read()) == []
    shown = await world.group()
    assert (shown.pending, shown.lag) == (1, 0)
    backend.call("DEL", DEAD)
    assert given(await world.read(claim_min_idle_ms=NEVER_MS)) == []
    assert [letter["weir-reason"] for letter in await world.dead()] == ["expired"]
    assert (await world.group()).pending == 0


@pytest.mark.parametrize("letters", [None, DEAD])
async def test_many_take_several_reads(world: World, letters: str | None) -> None:
    """One that does not wait says that there is more; one that waits goes on at once, to what is young."""
    most, now = AT_ONCE[letters], young()
    await world.begin(*(old(n) for n in range(2 * most + 1)), now, dead_letter_stream=letters)
    found = await world.read()
    assert (given(found), tuple(found.unfinished)) == ([], (S,))
    assert (await world.group()).lag == most + 2
    async with asyncio.timeout(4):
        assert given(await world.read(block_ms=60_000)) == [now]
    assert sum(count for _, _, count in world.expired) == 2 * most + 1
    assert len(await world.dead()) == (0 if letters is None else 2 * most + 1)
    assert ((await world.group()).pending, (await world.group()).lag) == (1, 0)


async def test_what_a_gateway_had_passed_over_that_died_is_a_dead_letter_once(backend: Backend) -> None:
    """It died between the two streams: the next read that takes what was given back goes on."""
    async with opened(backend) as engine:
        world = World(engine)
        await world.begin(old(), dead_letter_stream=DEAD)
        # As its script leaves it.
        backend.call("XREADGROUP", "GROUP", "g", "weir:released", "STREAMS", S, ">")
        for _ in range(2):
            assert given(await world.read(claim_min_idle_ms=NEVER_MS)) == []
        assert len(await world.dead()) == 1
        assert (await world.group()).pending == 0
        assert await reply_to(engine, types.XAck(stream=S, group="g", ids=[old()])) == 0


@pytest.mark.no_cover
def test_two_gateways_of_which_one_is_killed_make_one_dead_letter_of_each(
    own_server: BackendServer, tmp_path: Path
) -> None:
    """In the midst of its read, in turn. What is young comes once."""
    words = (*server_words(own_server), "--set", "log_requests=none")
    group, count = "/v1/streams/s/groups/g", 1_200
    policy = {"start": "0", "mkstream": True, "max_age_ms": AGE_MS, "dead_letter": {"stream": "dead"}}

    def read(server: Server) -> list[str]:
        wanted = {"claim_min_idle_ms": NEVER_MS}
        _, found = call(server, "POST", f"{group}/consumers/c/read", wanted)
        return [entry["fields"]["n"] for entry in found["entries"]]

    with (
        Server(tmp_path / "one", *words) as one,
        Server(tmp_path / "other", *words) as other,
        ThreadPoolExecutor() as pool,
    ):
        assert call(one, "PUT", group, policy)[0] == 201
        rows = [{"id": f"5-{n}", "fields": {"n": str(n)}} for n in range(count)]
        assert call(one, "POST", "/v1/streams/s/entries", {"entries": rows})[0] == 201
        for turn in range(6):
            passed = own_server.call("XLEN", "dead")
            reads = [pool.submit(read, server) for server in (one, other)]
            until(lambda passed=passed: own_server.call("XLEN", "dead") > passed)
            dying = (one, other)[turn % 2]
            dying.kill()
            # That of the other one is answered.
            assert reads[(turn + 1) % 2].result(30) == []
            dying.start()
        assert call(one, "POST", "/v1/streams/s/entries", {"fields": {"n": "young"}})[0] == 201
        found: list[str] = []
        while not found or own_server.call("XPENDING", "s", "g")[0] > 1:
            found += read(one)
    letters = own_server.call("XRANGE", "dead", "-", "+")
    numbers = [int(dict(zip(row[::2], row[1::2], strict=True))[b"n"]) for _, row in letters]
    assert sorted(numbers) == list(range(count))
    assert found == ["young"]
