"""A disk that only this log fills is no dead end: what is removed and rewritten makes room.

Knows: a modelled disk of a size, streams that fill it. Must never know: how a rewrite finds its first bytes.
"""

import asyncio
import errno
import secrets
import threading
from contextlib import suppress
from typing import Final

import pytest

from engine import Call, Engine, EngineError, Fsync, Growth, How, Refused, Replies, RewriteFailedError
from engine.commands import types
from engine.commands.base import Command
from engine.commands.registry import RUN
from engine.commands.schedule_commands import CancelSchedule
from engine.commands.weir_commands import DeleteGroup, EnforceRetention, EnsureStream, ExpireStreams
from engine.log import Log
from engine.log.ballast import BALLAST
from engine.log.log import RESERVE_BYTES
from engine.parts.keeping import Retention
from engine.storage.memory import Fault, MemoryStorage
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock, let_threads_run, settle
from tests.engine.conversation import Conversation
from tests.engine.images import image
from tests.engine.running import keyspace_of
from tests.engine.test_rewrite import after_restart, rewrite_until_stopped

SPACE_BYTES: Final = 40 << 20
# Where each step of a rewrite is tried: ballast and reserve, and a little log.
SMALL_BYTES: Final = 28 << 20
# Random, so that neither nodes nor bases make less of it.
_VALUE_BYTES: Final = 1 << 18
_FULL: Final = "-MISCONF No space left"


class Full(Conversation):
    """An engine on a small disk; it rewrites only when asked to."""

    def __init__(
        self,
        storage: MemoryStorage | None = None,
        *,
        rewrites: bool = False,
        space_bytes: int = SPACE_BYTES,
        fsync: Fsync = "everysec",
    ) -> None:
        self.disk = storage or MemoryStorage(space_bytes=space_bytes)
        super().__init__(self.disk, fsync)
        # What it said of the disk, and what it said last.
        self.full: list[str | None] = []
        self._growth = Growth() if rewrites else Growth(0)

    def opened(self) -> Engine:
        engine = Engine.open(self.storage, clock=self.clock, fsync=self._fsync, growth=self._growth)
        engine.events.disk_full = self.full.append
        return engine

    def is_full(self) -> bool:
        """Whether it said so last."""
        return bool(self.full) and self.full[-1] is not None

    async def publish(self, stream: str, size: int = _VALUE_BYTES) -> bool:
        """Whether an entry had room."""
        reply = await self.call("XADD", stream, "*", "v", secrets.token_bytes(size))
        assert not str(reply).startswith("-") or str(reply).startswith(_FULL), reply
        return not str(reply).startswith("-")

    async def fill(self) -> int:
        """Add to `s` until not even a small entry has room; how many large ones had."""
        added = 0
        while await self.publish("s"):
            added += 1
        while await self.publish("small", 30_000):
            pass
        assert self.is_full()
        return added

    async def second(self) -> None:
        """Let a second pass, and what begins in it end."""
        await self.pass_ms(1_000)
        while self.engine.figures().rewrites.running:
            await let_threads_run()
        await settle()


def segments(storage: MemoryStorage) -> list[str]:
    return [name for name in storage.names() if name.startswith("segment-")]


async def remove(talk: Full, how: str) -> None:
    """Make room as an operator does."""
    if how == "trim":
        assert await talk.call("XTRIM", "s", "MAXLEN", "2")
    elif how == "delete":
        rows = await talk.call("XRANGE", "s", "-", "+")
        assert isinstance(rows, list)
        assert await talk.call("XDEL", "s", *[str(row[0]) for row in rows[2:]])
    else:
        assert await talk.call("DEL", "s")


@pytest.mark.parametrize("how", ["trim", "delete", "del"])
async def test_what_is_removed_and_rewritten_makes_room(how: str) -> None:
    """Fill, remove, rewrite, go on; and all of it again, for the way out is there each time."""
    async with Full() as talk:
        filled = await talk.fill()
        for _ in range(3):
            await remove(talk, how)
            done = await talk.engine.rewrite()
            assert done.bytes_after * 2 < done.bytes_before
            assert not talk.is_full()
            assert len(segments(talk.disk)) == 1
            assert await talk.fill() >= filled // 3
        await talk.call("DBSIZE", synced=True)
        before = image(keyspace_of(talk.engine))
        assert await after_restart(talk.disk.crash()) == before


async def test_a_full_disk_that_has_something_to_give_up_recovers_by_itself() -> None:
    """Once the log is twice as long as the data, a rewrite begins: nobody has to know of it."""
    async with Full(rewrites=True) as talk:
        await talk.fill()
        await talk.second()
        assert talk.is_full()
        before = talk.engine.figures().rewrites.last
        assert before is None, "nothing would be gained by one"
        await remove(talk, "trim")
        await talk.second()
        assert talk.engine.figures().rewrites.last is not None
        assert not talk.is_full()
        assert await talk.publish("s")


async def test_retention_makes_room_on_a_full_disk() -> None:
    """Entries that grow old go, though nothing else may be written: a rewrite has something to gain."""
    async with Full(rewrites=True) as talk:
        await reply_to(talk.engine, EnsureStream(stream="s", retention=Retention(max_age_ms=5_000)))
        await talk.fill()
        await talk.pass_ms(6_000)
        await talk.second()
        assert await talk.call("XLEN", "s") == 0
        await talk.second()
        assert await talk.publish("s")


async def test_the_way_out_is_there_after_a_restart() -> None:
    """Killed, or without power, on the full disk; also where an older version has left no ballast."""
    async with Full() as talk:
        await talk.fill()
        await remove(talk, "trim")
        await talk.call("DBSIZE", synced=True)
        left = [talk.disk.kill(), talk.disk.crash(), talk.disk.kill()]
        left[2].unlink(BALLAST)
    for storage in left:
        async with Full(storage) as again:
            await again.engine.rewrite()
            assert await again.publish("s")


async def test_a_torn_tail_is_kept_and_cut_on_a_full_disk() -> None:
    """It is copied first, for which there is no room but the ballast's."""
    async with Full() as talk:
        await talk.fill()
        await talk.call("DBSIZE", synced=True)
        before = image(keyspace_of(talk.engine))
        storage = talk.disk.kill()
    name = segments(storage)[-1]
    handle = storage.open(name)
    handle.append(b"torn" * 1_000)
    free = storage.free_bytes()
    assert free is not None
    assert storage.space_bytes is not None
    storage.space_bytes -= free
    assert await after_restart(storage) == before


async def test_it_is_full_until_the_reserve_is_whole() -> None:
    """A small entry that finds room says nothing; room does, within a second and without a write."""
    async with Full() as talk:
        while await talk.publish("s"):
            pass
        (reason,) = talk.full
        assert reason is not None
        assert await talk.publish("small", 30_000)
        await talk.second()
        assert talk.full == [reason]
        talk.disk.space_bytes = SPACE_BYTES + RESERVE_BYTES // 2
        await talk.second()
        assert talk.full == [reason], "half a reserve"
        talk.disk.space_bytes = 2 * SPACE_BYTES
        await talk.second()
        assert talk.full == [reason, None]


async def test_rewrites_that_fail_leave_nothing_and_change_nothing() -> None:
    """Too much is left for a second copy: thirty of them later the files are the same, but for one segment,
    and after a trim the next one ends well.
    """
    async with Full(space_bytes=56 << 20) as talk:
        await talk.fill()
        await talk.call("DBSIZE", synced=True)
        before = image(keyspace_of(talk.engine))
        for _ in range(30):
            with pytest.raises(RewriteFailedError, match="No space left"):
                await talk.engine.rewrite()
        assert len(segments(talk.disk)) == 2
        assert all(talk.disk.size(name) for name in segments(talk.disk))
        assert talk.disk.names() == sorted({*talk.disk.names(), BALLAST})
        assert not [name for name in talk.disk.names() if name.startswith("base")]
        assert image(keyspace_of(talk.engine)) == before
        assert await after_restart(talk.disk.kill()) == before
        await remove(talk, "trim")
        await talk.engine.rewrite()
        assert await talk.publish("s")


async def test_a_segment_that_was_prepared_and_not_begun_goes() -> None:
    """With the room that it has: at once if its making fails, at the next start after a kill."""
    storage = MemoryStorage()
    async with Conversation(storage) as talk:
        await talk.add("s", "1-0")
        for operation in ("create", "preallocate", "sync", "sync_directory"):
            storage.fail(operation, errno.EIO)
            with pytest.raises(RewriteFailedError):
                await talk.engine.rewrite()
            storage.heal()
        assert segments(storage) == ["segment-1.weir"]
        storage.create("segment-2.weir").preallocate(1 << 20)
        killed = storage.kill()
    await after_restart(killed)
    assert segments(killed) == ["segment-1.weir"]


async def killed_with_a_way_out() -> tuple[MemoryStorage, object]:
    """A full disk whose gateway was killed after a trim, and what it has then."""
    full = MemoryStorage(space_bytes=SMALL_BYTES)
    async with Full(full) as talk:
        await talk.fill()
        await remove(talk, "trim")
        before = image(keyspace_of(talk.engine))
        await talk.call("DBSIZE", synced=True)
        return full.kill(), before


@pytest.mark.no_cover
async def test_stopped_anywhere_on_the_way_out_nothing_is_lost() -> None:
    """Killed or without power before any operation of a rewrite: the same streams, and a way out."""
    killed, before = await killed_with_a_way_out()
    for moment in range(1_000):
        storage = killed.kill()
        async with Full(storage) as talk:
            # It is known to be full from the first refusal on.
            assert not await talk.publish("s")
            storage.stop_before(moment)
            await rewrite_until_stopped(talk.engine, storage)
            talk.abandon()
        changes = range(storage.unsynced_name_changes() + 1)
        for image_of_disk in [storage.kill(), *[storage.crash(name_changes=count) for count in changes]]:
            assert await after_restart(image_of_disk) == before
        async with Full(storage.kill()) as again:
            await again.engine.rewrite()
            assert await again.publish("s")
        if not storage.stopped:
            assert moment > 10
            return


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "operation", ["create", "append", "preallocate", "rename", "sync_directory", "unlink"]
)
async def test_a_fault_anywhere_on_the_way_out_loses_nothing(operation: str) -> None:
    """The rewrite fails or ends well, the data is the same, and the next one ends well."""
    killed, before = await killed_with_a_way_out()
    for nth in range(1, 30):
        storage = killed.kill()
        async with Full(storage) as talk:
            assert not await talk.publish("s")
            count = [name for name, _ in storage.operations].count(operation)
            storage.fail(operation, errno.ENOSPC, nth=nth)
            rewrite = asyncio.ensure_future(talk.engine.rewrite())
            while not rewrite.done():
                # An append that found no room is tried again in a second.
                await talk.pass_ms(1_000 if talk.is_full() else 0)
                await let_threads_run()
            with suppress(RewriteFailedError):
                rewrite.result()
            reached = [name for name, _ in storage.operations].count(operation) - count >= nth
            storage.heal()
            assert image(keyspace_of(talk.engine)) == before
            assert await after_restart(storage.kill()) == before
            await talk.engine.rewrite()
            assert await talk.publish("s")
        if not reached:
            assert nth > 1
            return


def test_a_disk_without_room_for_all_of_the_ballast_keeps_less() -> None:
    """After the reserve of the log, which comes first."""
    for space_bytes, kept in (
        (SPACE_BYTES, 2 * RESERVE_BYTES),
        (20 << 20, RESERVE_BYTES),
        (9 << 20, RESERVE_BYTES // 16),
    ):
        storage = MemoryStorage(space_bytes=space_bytes)
        engine = Engine.open(storage, clock=HandClock())
        assert engine._writer.log.ballast_bytes == kept  # noqa: SLF001 - what is kept
        asyncio.run(engine.close())


class HeldBase(MemoryStorage):
    """A disk on which a base grows when it may."""

    def __init__(self) -> None:
        super().__init__(space_bytes=SPACE_BYTES)
        self.may_grow = threading.Event()

    def step(self, operation: str, name: str) -> Fault | None:
        if operation == "append" and name.startswith("base-"):
            self.may_grow.wait()
        return super().step(operation, name)


# One of each kind of command that makes room, and that a caller sends.
MAKING_ROOM: Final[dict[type[Command], Command]] = {
    type(command): command
    for command in (
        types.XDel(stream="t", ids=[1 << 64]),
        types.XDelEx(stream="t", ids=[2 << 64]),
        types.XTrim(stream="t", trim=types.Trim(maxlen=3)),
        types.XAckDel(stream="t", group="g", ids=[3 << 64]),
        CancelSchedule(stream="t", name="a"),
        types.XGroupDelConsumer(stream="t", group="g", consumer="c"),
        types.XGroupDestroy(stream="t", group="g"),
        DeleteGroup(stream="t", group="h"),
        types.Delete(streams=["t"]),
        types.FlushAll(),
    )
}
# What the engine does by itself is tried again by itself.
_BY_ITSELF: Final = {ExpireStreams, EnforceRetention}
WAYS: Final = {
    "alone": lambda command: Call((command,)),
    "together": lambda command: Call((command, types.XLen(stream="t")), How.TOGETHER),
    "each": lambda command: Call((types.XLen(stream="t"), command), How.EACH),
}


async def rewriting_while_full(talk: Full) -> "asyncio.Task[object]":
    """A rewrite that has all the room there is, until its base may grow."""
    for words in ("XADD t 1-0 n 1", "XADD t 2-0 n 1", "XADD t 3-0 n 1", "XGROUP CREATE t g 0"):
        await talk.call(*words.split())
    await talk.call("XGROUP", "CREATE", "t", "h", "0")
    await talk.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "t", ">")
    await talk.call("WEIR.SCHEDULE", "SET", "t", "a", "IN", "3600000", "FIELDS", "n", "1")
    await talk.fill()
    await talk.call("XTRIM", "s", "MAXLEN", "2")
    rewrite: asyncio.Task[object] = asyncio.ensure_future(talk.engine.rewrite())
    while not log_of(talk.engine).is_lent:
        await let_threads_run()
    return rewrite


def log_of(engine: Engine) -> Log:
    return engine._writer.log  # noqa: SLF001 - only the log knows


@pytest.mark.parametrize("way", WAYS)
async def test_what_makes_room_waits_for_the_rewrite_under_way(way: str) -> None:
    """However it is sent, and in its order; what takes room is refused meanwhile, and reads go on."""
    sent = {kind for kind in RUN if kind.makes_room and kind.changes} - _BY_ITSELF
    assert sent == MAKING_ROOM.keys()
    storage = HeldBase()
    async with Full(storage) as talk:
        rewrite = await rewriting_while_full(talk)
        answered: list[Replies] = []
        for command in MAKING_ROOM.values():
            assert talk.engine.send(WAYS[way](command), answered.append) is None
        assert not await talk.publish("s", 10)
        assert await talk.call("XLEN", "t") == 3
        await settle()
        assert answered == []
        storage.may_grow.set()
        await rewrite
        while len(answered) < len(MAKING_ROOM):
            await let_threads_run()
        assert not [each for each in answered if isinstance(each, Refused)]
        assert not [one for replies in answered for one in replies if isinstance(one, EngineError)]
        assert await talk.call("DBSIZE") == 0
        assert await talk.publish("s")


@pytest.mark.parametrize("way", WAYS)
async def test_it_waits_for_half_a_minute_at_most(way: str) -> None:
    """A disk that hangs keeps no one for ever."""
    storage = HeldBase()
    async with Full(storage) as talk:
        rewrite = await rewriting_while_full(talk)
        answered: list[Replies] = []
        call = WAYS[way](types.Delete(streams=["t"]))
        assert talk.engine.send(call, answered.append) is None
        await talk.pass_ms(29_900)
        assert answered == []
        await talk.pass_ms(200)
        (replies,) = answered
        refusal = replies.error if isinstance(replies, Refused) else replies[-1]
        assert isinstance(refusal, EngineError)
        assert refusal.code == "storage_full"
        assert (await talk.call("DEL", "t")) == "-" + refusal.redis
        storage.may_grow.set()
        await rewrite
        assert await talk.call("DEL", "t") == 1
