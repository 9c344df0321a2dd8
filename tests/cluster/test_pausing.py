"""A group that is paused over a backend: it delivers nothing at any gateway until it is resumed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from engine import entries, ids
from engine.cluster import ClusterEngine
from engine.cluster.keys import auxiliary_key
from engine.commands import types
from engine.commands.weir_commands import EnsureGroup, UpdateGroup
from engine.protocol import Call
from engine.read_handle import ReadHandle
from engine.replies import GroupRead
from tests.cluster.clusters import server_words
from tests.cluster.engines import opened
from tests.cluster.servers import Backend, BackendServer
from tests.engine.asking import reply_of, reply_to
from tests.server import Server, call
from tests.waiting import until, until_async

S: Final = "{t}s"
COPIED, RENAMED = "{t}copied", "{t}renamed"
IDS: Final = [ids.make(n, 0) for n in (1, 2, 3, 4)]
# Looks of its own are an hour apart: what wakes a read that waits is the server's notification.
POLL_S: Final = 3_600.0


async def hand_out(engine: ClusterEngine) -> None:
    """Of four entries `a` holds the first, the second was given back. Then the group is paused."""
    await reply_to(engine, EnsureGroup(stream=S, group="g", start=0, mkstream=True))
    await reply_to(engine, types.XAdd(stream=S, bodies=[entries.body([("n", "1")])] * 4, ids=IDS))
    await read(engine, "a", count=2)
    await reply_to(
        engine, types.XNack(stream=S, group="g", nack=types.Nack(ids=[IDS[1]], mode=types.NackMode.FAIL))
    )
    await set_paused(engine)


async def set_paused(engine: ClusterEngine, paused: bool = True) -> None:  # noqa: FBT001, FBT002 - what it is about
    assert await reply_to(engine, UpdateGroup(stream=S, group="g", policy={"paused": paused})) is True


def reading(
    consumer: str = "b", cursor: int | types.Cursor = types.Cursor.NEW, **options: Any
) -> types.XReadGroup:
    return types.XReadGroup(group="g", consumer=consumer, streams=[(S, cursor)], **options)


async def read(engine: ClusterEngine, consumer: str = "b", **options: Any) -> GroupRead:
    return await reply_of(engine, GroupRead, reading(consumer, **options))


def ids_of(found: object) -> list[int]:
    assert isinstance(found, GroupRead)
    return [entry.id for stream in found.streams for entry in stream.entries]


def nothing(found: GroupRead) -> bool:
    return (ids_of(found), tuple(found.paused), tuple(found.unfinished)) == ([], (S,), ())


async def test_readers_at_both_gateways_wake_when_it_is_resumed(backend: Backend) -> None:
    """One has what was given back and is new; entries that came meanwhile have woken none."""
    async with opened(backend, poll_s=POLL_S) as one, opened(backend, poll_s=POLL_S) as other:
        await hand_out(one)
        waits = [
            asyncio.ensure_future(read(engine, f"c{n}", count=2, block_ms=60_000, claim_min_idle_ms=1 << 40))
            for n, engine in enumerate((one, other))
        ]
        await until_async(lambda: one.figures().waiting + other.figures().waiting == 2)
        await reply_to(other, types.XAdd(stream=S, bodies=[entries.body([("n", "5")])]))
        await asyncio.sleep(0.2)
        assert not any(wait.done() for wait in waits)
        await set_paused(other, paused=False)
        async with asyncio.timeout(10):
            found = [ids_of(reply) for reply in await asyncio.gather(*waits)]
        assert sorted(found[0] + found[1])[:3] == IDS[1:]


@pytest.mark.parametrize("behind", [False, True])
async def test_a_reader_at_the_other_gateway_hears_of_a_pause_and_of_its_end(
    backend: Backend,
    behind: bool,  # noqa: FBT001 - a parameter
) -> None:
    """At once, also behind one that wants entries alone, which is answered at its end that it is paused."""
    async with opened(backend, poll_s=POLL_S) as one, opened(backend, poll_s=POLL_S) as other:
        await reply_to(one, EnsureGroup(stream=S, group="g", start=0, mkstream=True))
        handle, plain = ReadHandle(), asyncio.get_running_loop().create_future()
        if behind:
            other.send(Call([reading("first", block_ms=60_000)], waits=handle), plain.set_result)
        for paused in (True, False, True):
            listening = reading("b", block_ms=60_000, knows_paused=not paused)
            waiting = asyncio.ensure_future(reply_to(other, listening))
            await until_async(lambda: other.figures().waiting == 1 + behind)
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await set_paused(one, paused=paused)
            async with asyncio.timeout(10):
                found = await waiting
            assert isinstance(found, GroupRead)
            assert (ids_of(found), bool(found.paused)) == ([], paused)
        if behind:
            late = reading("b", block_ms=60_000, knows_paused=False)
            async with asyncio.timeout(10):
                assert nothing(await reply_to(other, late))  # type: ignore[arg-type]
            assert not plain.done()
            handle.end()
            (reply,) = await plain
            assert nothing(reply)


async def test_without_a_pause_nothing_of_it_is_stored(backend: Backend, engine: ClusterEngine) -> None:
    """Set twice, and beside another change."""
    await hand_out(engine)
    await set_paused(engine)
    await reply_to(engine, UpdateGroup(stream=S, group="g", policy={"ack_timeout_ms": 5}))
    await set_paused(engine, paused=False)
    assert backend.call("HGETALL", auxiliary_key(S, "m"))[-2:] == [b"ack_timeout_ms/g", b"5"]


@pytest.mark.no_cover
def test_two_gateways_and_one_that_is_killed_while_the_group_is_paused(
    own_server: BackendServer, tmp_path: Path
) -> None:
    """Nothing comes at either, nor at the one that is started again; once it is resumed all comes."""
    words = (*server_words(own_server), "--set", "log_requests=none")
    group, count = "/v1/streams/s/groups/g", 200

    def take(server: Server, consumer: str, **more: object) -> Any:
        status, found = call(server, "POST", f"{group}/consumers/{consumer}/read", {"count": 10, **more})
        assert status == 200, found
        return found

    with (
        Server(tmp_path / "one", *words) as one,
        Server(tmp_path / "other", *words) as other,
        ThreadPoolExecutor() as pool,
    ):
        call(one, "PUT", group, {"start": "0", "mkstream": True})
        rows = [{"fields": {"n": str(n)}} for n in range(count)]
        assert call(one, "POST", "/v1/streams/s/entries", {"entries": rows})[0] == 201
        died = [entry["id"] for entry in take(one, "dying")["entries"]]
        assert call(other, "PATCH", group, {"paused": True})[0] == 200
        waiting = pool.submit(take, other, "c", wait=60_000, claim_min_idle_ms=0)
        until(lambda: any(b"c" in row for row in own_server.call("XINFO", "CONSUMERS", "s", "g")))
        one.restart()
        assert take(one, "d", claim_min_idle_ms=0) == {
            "entries": [],
            "last_delivered_id": died[-1],
            "more": False,
            "paused": True,
        }
        assert not waiting.done()
        assert call(one, "PATCH", group, {"paused": False})[0] == 200
        got = [entry["id"] for entry in waiting.result(20)["entries"]]
        while found := take(one, "d", claim_min_idle_ms=10_000_000)["entries"]:
            got += [entry["id"] for entry in found]
        assert len(got) == len(set(got))
        _, stored = call(one, "GET", f"/v1/streams/s/entries?count={count}")
        assert set(got) | set(died) == {entry["id"] for entry in stored["entries"]}
