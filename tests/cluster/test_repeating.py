"""A write whose reply was lost is sent again and done once; IDs never repeat after a fail-over."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine import EngineError, SystemClock, entries, ids
from engine.cluster import Address, ClusterEngine, ServerAccess, Standalone
from engine.cluster.keys import auxiliary_key
from engine.commands.base import Command
from engine.commands.schedule_commands import AddScheduled, FireSchedule, NewSchedule, SetSchedule
from engine.commands.types import Cursor, IdempotencyKey, XAdd, XLen, XReadGroup
from engine.commands.weir_commands import AddEach, DeadLetterEntries, EnsureGroup, Publish, Redrive
from engine.recurrence import Rule
from engine.replies import Added, AddedScheduled, Published, Redriven, ScheduleSet
from tests.cluster.engines import attempt
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_of, reply_to, turn_of

BODY = entries.body([("a", "1")])
LATER = NewSchedule("later", BODY, Rule(in_ms=60_000))
TIMEOUT_S = 2.0
_BYTES_MAX = 1 << 16


class LosingLink:
    """In front of a server: ends a connection in place of a reply to a write, as often as `losing` says."""

    def __init__(self, server: BackendServer) -> None:
        self.losing = 0
        # What the scripts of writes reply first.
        self.done = b"added"
        self.lost = 0
        # How long a lost reply takes, and whether the following ones ever come.
        self.loses_after_s = 0.0
        self.is_silent = False
        self.server = server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        there, back = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, back))
                both.create_task(self._answer(there, writer))
        except* ConnectionError:
            pass
        finally:
            back.close()
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_BYTES_MAX):
            writer.write(data)
        raise ConnectionError

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_BYTES_MAX):
            if self.losing and self.done in data:
                self.losing -= 1
                self.lost += 1
                await asyncio.sleep(self.loses_after_s)
                break
            if self.lost and self.is_silent and self.done in data:
                continue
            writer.write(data)
        raise ConnectionError


@asynccontextmanager
async def opened(server: BackendServer) -> AsyncIterator[tuple[ClusterEngine, LosingLink]]:
    link = LosingLink(server)
    front = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    port = front.sockets[0].getsockname()[1]
    engine = ClusterEngine(Standalone(Address("127.0.0.1", port), ServerAccess(), TIMEOUT_S), SystemClock())
    await engine.start()
    try:
        yield engine, link
    finally:
        await engine.close()
        front.close()


@pytest.mark.parametrize(
    "command",
    [
        XAdd(stream="s", bodies=[BODY] * 3),
        XAdd(stream="s", bodies=[BODY] * 3, idempotency=IdempotencyKey("k", b"d")),
        XAdd(stream="s", bodies=[BODY] * 3, expected_last_id=0),
        AddEach(stream="s", bodies=[BODY] * 3),
        Publish(parts=[XAdd(stream="s", bodies=[BODY] * 3)]),
        AddScheduled(stream="s", add=XAdd(stream="s", bodies=[BODY] * 3), later=[LATER]),
    ],
)
async def test_a_write_whose_reply_was_lost_is_done_once(server: BackendServer, command: Command) -> None:
    """And has the reply of the first time, as if nothing had happened."""
    async with opened(server) as (engine, link):
        link.losing = 1
        found = await reply_to(engine, command)
        added = found.streams[0][1] if isinstance(found, Published) else found
        if isinstance(added, AddedScheduled):
            added = added.added
        assert isinstance(added, Added)
        assert (len(added.ids), added.duplicate, link.lost) == (3, False, 1)
        assert await reply_to(engine, XLen(stream="s")) == 3


async def test_a_schedule_is_set_and_fired_once(server: BackendServer) -> None:
    """Replies that say so were lost."""
    async with opened(server) as (engine, link):
        link.losing = 1
        made = await reply_of(engine, ScheduleSet, SetSchedule(stream="s", schedule=LATER, only_new=True))
        assert (made.created, link.lost) == (True, 1)
        link.losing = 1
        fired = await reply_of(engine, Added, FireSchedule(stream="s", name="later"))
        assert (len(fired.ids), link.lost) == (1, 2)
        assert await reply_to(engine, XLen(stream="s")) == 1


async def test_many_at_once_are_done_once_each(server: BackendServer) -> None:
    """Whichever of them had their replies."""
    async with opened(server) as (engine, link):
        link.losing = 3
        adds = [reply_to(engine, XAdd(stream=f"s{n % 3}", bodies=[BODY])) for n in range(60)]
        found = await asyncio.gather(*adds)
        assert [len(one.ids) for one in found if isinstance(one, Added)] == [1] * 60
        assert link.lost >= 1
        assert [await reply_to(engine, XLen(stream=f"s{n}")) for n in range(3)] == [20] * 3


async def test_without_any_reply_the_outcome_is_unknown(server: BackendServer) -> None:
    """However often it was sent, it was done once."""
    async with opened(server) as (engine, link):
        link.losing = 1_000
        with pytest.raises(EngineError) as refusal:
            await reply_to(engine, XAdd(stream="s", bodies=[BODY]))
        link.losing = 0
        assert (refusal.value.code, refusal.value.members["outcome"]) == ("backend_unavailable", "unknown")
        assert link.lost > 1
        assert await reply_to(engine, XLen(stream="s")) == 1


@pytest.mark.parametrize("losing", [1, 2])
async def test_all_attempts_together_have_the_time_of_one(server: BackendServer, losing: int) -> None:
    """However late the first one failed. What is under way then may still be done, and once."""
    async with opened(server) as (engine, link):
        link.losing, link.loses_after_s, link.is_silent = losing, 0.7 * TIMEOUT_S, True
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(EngineError) as refusal:
            await reply_to(engine, XAdd(stream="s", bodies=[BODY]))
        assert TIMEOUT_S <= loop.time() - began_s < 1.3 * TIMEOUT_S
        assert refusal.value.members["outcome"] == "unknown"
        link.losing, link.is_silent = 0, False
        while not isinstance(await attempt(engine, XAdd(stream="t", bodies=[BODY])), Added):
            pass
        assert server.call("XLEN", "s") == 1


async def test_a_transaction_is_not_sent_again(server: BackendServer) -> None:
    """Its writes have no numbers."""
    async with opened(server) as (engine, link):
        link.losing = 1
        with pytest.raises(EngineError) as refusal:
            await turn_of(engine, [XAdd(stream="s", bodies=[BODY]), XLen(stream="s")])
        assert refusal.value.members["outcome"] == "unknown"
        assert await reply_to(engine, XLen(stream="s")) == 1


async def test_settled_writes_leave_nothing_behind(server: BackendServer) -> None:
    """The server keeps the answers of writes that may still come again."""
    async with opened(server) as (engine, _):
        for _ in range(10):
            await reply_to(engine, XAdd(stream="s", bodies=[BODY]))
    kept = [key for key in server.call("KEYS", "weir/*/h/*") if server.call("TYPE", key) == b"zset"]
    assert [server.call("ZCARD", key) for key in kept] == [1]


def take_over(server: BackendServer, stream: str, floor_ms: int, before: str = "another") -> None:
    """Leave the floor of a primary before this one."""
    server.call("HSET", auxiliary_key(stream, "m"), "p", before, "f", floor_ms)


async def first_id(engine: ClusterEngine, command: Command) -> int:
    """The first of the new IDs."""
    found = await reply_to(engine, command)
    added = found.streams[0][1] if isinstance(found, Published) else found
    assert isinstance(added, Added)
    return added.ids[0]


async def test_a_primary_that_took_over_gives_ids_above_those_of_the_one_before(
    server: BackendServer,
) -> None:
    """Its clock may be behind: what the one before gave, readers have seen. Later IDs are by the clock."""
    ahead_ms = round(time.time() * 1000) + 60_000
    async with opened(server) as (engine, _):
        add = XAdd(stream="s", bodies=[BODY])
        assert ids.ms_of(await first_id(engine, add)) < ahead_ms
        take_over(server, "s", ahead_ms)
        for command in (add, AddEach(stream="s", bodies=[BODY])):
            assert ids.ms_of(await first_id(engine, command)) > ahead_ms
        take_over(server, "t", ahead_ms)
        (reply,) = await turn_of(engine, [XAdd(stream="t", bodies=[BODY])])
        assert isinstance(reply, Added)
        assert ids.ms_of(reply.ids[0]) > ahead_ms


async def test_dead_letters_and_their_copies_are_above_the_floor(server: BackendServer) -> None:
    """As all entries whose IDs are by the clock."""
    ahead_ms = round(time.time() * 1000) + 60_000
    async with opened(server) as (engine, _):
        await reply_to(engine, XAdd(stream="s", bodies=[BODY], ids=[1]))
        policy = {"dead_letter_stream": "dead"}
        await reply_to(engine, EnsureGroup(stream="s", group="g", start=0, policy=policy))
        await reply_to(engine, XReadGroup(group="g", consumer="c", streams=[("s", Cursor.NEW)]))
        take_over(server, "dead", ahead_ms)
        await reply_to(engine, DeadLetterEntries(stream="s", group="g", ids=[1], reason="bad"))
        (row,) = server.call("XRANGE", "dead", "-", "+")
        letter_id = ids.parse_canonical(row[0])
        assert ids.ms_of(letter_id) > ahead_ms
        take_over(server, "s", 2 * ahead_ms)
        found = await reply_of(
            engine, Redriven, Redrive(stream="s", group="g", letters="dead", ids=[letter_id], upto=None)
        )
        assert ids.ms_of(found.copies[0]) > 2 * ahead_ms


@pytest.mark.parametrize(
    "command",
    [
        XAdd(stream="s", bodies=[BODY]),
        AddEach(stream="s", bodies=[BODY]),
        Publish(parts=[XAdd(stream="s", bodies=[BODY])]),
    ],
)
async def test_a_write_that_another_server_does_is_above_the_floor(
    server: BackendServer, own_server: BackendServer, command: Command
) -> None:
    """At the first attempt the one before had it, and lost it with its answer."""
    ahead_ms = round(time.time() * 1000) + 60_000
    async with opened(server) as (engine, link):
        await first_id(engine, command)
        primary = server.call("HGET", auxiliary_key("s", "m"), "p")
        assert f"run_id:{primary.decode()}" in server.call("INFO", "server").decode()
        take_over(own_server, "s", ahead_ms, primary)
        link.server, link.losing = own_server, 1
        assert ids.ms_of(await first_id(engine, command)) > ahead_ms
        assert link.lost == 1
