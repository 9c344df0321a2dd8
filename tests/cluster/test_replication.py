"""What an acknowledgement promises: that replicas have the write. One WAIT confirms all that were sent."""

import asyncio
from typing import Any

import pytest

from engine import entries
from engine.cluster import scripts
from engine.cluster.replication import BackendDurability, GroupCommit, parse_durability
from engine.cluster.scripts import WriteOrigin
from engine.cluster.wire import Address, ConnectionLostError, ServerAccess, ServerConnection, Words
from engine.commands.types import Delete, IdempotencyKey, XAdd
from engine.commands.weir_commands import EnsureStream
from tests.cluster.engines import opened, refused
from tests.cluster.servers import BackendServer
from tests.engine.asking import reply_to

TIMEOUT_S = 5.0
WAIT_MS = 1_000
DELETE = Delete(streams=["s"])


class Writer:
    """Writes to one server, each confirmed."""

    def __init__(self, server: BackendServer, durability: str) -> None:
        address = Address("127.0.0.1", server.port)
        self._connection = ServerConnection(address, ServerAccess(), TIMEOUT_S, on_down=self._lose)
        self._commits = GroupCommit(self._connection.send, parse_durability(durability), WAIT_MS)
        self._connection.start()

    def _lose(self, reason: str) -> None:
        self._commits.lose(reason)

    def write(self, words: Words = ("XADD", "s", "*", "a", "1")) -> asyncio.Future[Any]:
        """What the promise has become."""
        verdict: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._connection.send(words, lambda _: None)
        self._commits.confirm(verdict.set_result)
        return verdict

    async def close(self) -> None:
        await self._connection.close()


@pytest.mark.parametrize("text", ["memory", "replicated:1", "replicated:12", "fsync:1", "fsync:2"])
def test_promises_have_names(text: str) -> None:
    """The same in the setting and in the header."""
    assert parse_durability(text).name == text


@pytest.mark.parametrize(
    "text", ["", "memory:1", "replicated", "replicated:0", "fsync:-1", "fsync:x", "sync:1"]
)
def test_other_words_are_no_promise(text: str) -> None:
    with pytest.raises(ValueError, match="no durability"):
        parse_durability(text)


@pytest.mark.parametrize(
    ("durability", "reply", "kept"),
    [
        (BackendDurability(replicas=2), 2, True),
        (BackendDurability(replicas=2), 1, False),
        (BackendDurability(disks=1), [1, 0], True),
        (BackendDurability(disks=1), [0, 3], False),
        (BackendDurability(disks=2), [1, 1], True),
        (BackendDurability(disks=2), [1, 0], False),
    ],
)
def test_when_a_promise_is_kept(durability: BackendDurability, reply: Any, *, kept: bool) -> None:
    """At the number, and one below it."""
    assert durability.is_kept(reply) is kept


async def test_one_wait_confirms_all_that_were_sent(pair: tuple[BackendServer, BackendServer]) -> None:
    """What came while it waited is confirmed by the next one."""
    primary, replica = pair
    primary.call("CONFIG", "RESETSTAT")
    writer = Writer(primary, "replicated:1")
    first = [writer.write() for _ in range(100)]
    await first[0]
    others = [writer.write() for _ in range(100)]
    assert await asyncio.gather(*first, *others) == [None] * 200
    assert replica.call("XLEN", "s") == 200
    waits = primary.call("INFO", "commandstats").decode().partition("cmdstat_wait:calls=")[2]
    assert 2 <= int(waits.partition(",")[0]) <= 4
    await writer.close()


async def test_a_replica_that_hangs_confirms_nothing(pair: tuple[BackendServer, BackendServer]) -> None:
    """The outcome is unknown, and said to be."""
    primary, replica = pair
    writer = Writer(primary, "replicated:1")
    assert await writer.write() is None
    replica.pause()
    refusal = await writer.write()
    assert refusal.code == "not_replicated"
    assert "the server says 0" in refusal.detail
    replica.resume()
    assert await writer.write() is None
    two = Writer(primary, "replicated:2")
    assert (await two.write()).code == "not_replicated"
    await writer.close()
    await two.close()


async def test_a_primary_that_is_killed_confirms_nothing(pair: tuple[BackendServer, BackendServer]) -> None:
    """Whether it was replicated is not known."""
    primary, replica = pair
    writer = Writer(primary, "replicated:1")
    assert await writer.write() is None
    replica.pause()
    verdicts = [writer.write() for _ in range(3)]
    await asyncio.sleep(0.05)
    verdicts.append(writer.write())
    primary.kill()
    for verdict in verdicts:
        assert isinstance(await verdict, ConnectionLostError)
    await writer.close()


async def test_a_link_that_is_cut_confirms_nothing_over_the_next_one(
    pair: tuple[BackendServer, BackendServer],
) -> None:
    """WAIT would say there that all is well: of writes that were made over that link."""
    primary, replica = pair
    writer = Writer(primary, "replicated:1")
    assert await writer.write() is None
    replica.pause()
    verdict = writer.write()
    await asyncio.sleep(0.05)
    also = writer.write()
    primary.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert isinstance(await verdict, ConnectionLostError)
    assert isinstance(await also, ConnectionLostError)
    replica.resume()
    assert await writer.write() is None
    await writer.close()


@pytest.mark.parametrize("key", [None, IdempotencyKey("k", b"d")])
async def test_a_repeated_request_is_confirmed_as_the_first_one(
    pair: tuple[BackendServer, BackendServer], key: IdempotencyKey | None
) -> None:
    """It writes nothing over its own connection, and what it answers must be replicated all the same."""
    primary, replica = pair
    replica.pause()
    command = XAdd(stream="s", bodies=[entries.body([("a", "1")])], idempotency=key)
    call = scripts.add(command, WriteOrigin("0" * 16, front="f", number=1))
    words = call.script.words_with_text(call.words)
    primary.call(*words)
    writer = Writer(primary, "replicated:1")
    assert (await writer.write(words)).code == "not_replicated"
    assert primary.call("XLEN", "s") == 1
    replica.resume()
    assert await writer.write(words) is None
    await writer.close()


async def test_what_is_found_done_is_confirmed_as_the_first_one(
    pair: tuple[BackendServer, BackendServer],
) -> None:
    """A stream that is gone, or there: over a connection that wrote nothing before."""
    primary, replica = pair
    async with opened(primary, durability="replicated:1") as engine:
        for first, command in (("XADD s * a 1", EnsureStream(stream="s")), ("DEL s", DELETE)):
            replica.pause()
            primary.call(*first.split())
            assert (await refused(engine, command)).code == "not_replicated"
            replica.resume()
            assert not await reply_to(engine, command)
            assert replica.call("EXISTS", "s") == int(command is not DELETE)


async def test_syncs_are_waited_for_where_the_server_can(pair: tuple[BackendServer, BackendServer]) -> None:
    """Without an append-only file, and without the command, nothing is promised."""
    primary, _ = pair
    writer = Writer(primary, "fsync:1")
    assert (await writer.write()).code == "not_replicated"
    primary.call("CONFIG", "SET", "appendonly", "yes")
    verdict = await writer.write()
    assert (verdict is None) == (primary.kind != "redis")
    await writer.close()


async def test_memory_promises_nothing_and_waits_for_nothing(server: BackendServer) -> None:
    writer = Writer(server, "memory")
    assert await writer.write() is None
    assert b"cmdstat_wait" not in server.call("INFO", "commandstats")
    await writer.close()
