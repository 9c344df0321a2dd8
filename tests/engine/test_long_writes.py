"""A long write is done by a thread: turns go on meanwhile, and nothing is promised before its time or order.

Knows: the engine on a modelled disk whose long writes wait until a test lets them go, or fail.
Must never know: how the thread is used.
"""

import asyncio
import errno
import threading
from typing import Any, Final

import pytest

from engine import Fsync
from engine.runtime.writer import INLINE_WRITE_BYTES_MAX
from engine.storage.memory import MemoryHandle, MemoryStorage
from tests.engine.clocks import let_threads_run
from tests.engine.conversation import Begun, Conversation
from tests.engine.faulty import fault_at
from tests.engine.images import image
from tests.engine.running import keyspace_of
from tests.engine.test_runtime import FAILED, POLICIES

LONG: Final = "x" * INLINE_WRITE_BYTES_MAX


class SlowWrites(MemoryStorage):
    """A directory in memory whose writes wait, but for those of the thread that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop_thread = threading.get_ident()
        self.begun = threading.Event()
        self.may_write = threading.Event()

    def open(self, name: str) -> "SlowWritesHandle":
        """Open a file that exists."""
        return SlowWritesHandle(self, name, self._file(name))


class SlowWritesHandle(MemoryHandle):
    def __init__(self, storage: SlowWrites, name: str, file: Any) -> None:
        super().__init__(storage, name, file)
        self._disk = storage

    def append(self, content: bytes) -> None:
        """Wait for leave, then write."""
        if threading.get_ident() != self._disk.loop_thread:
            self._disk.begun.set()
            self._disk.may_write.wait()
        super().append(content)


async def begin_long(talk: Conversation, disk: SlowWrites, entry_id: str) -> Begun:
    """An entry whose write has begun and does not end."""
    adding = await talk.begin("XADD", "s", entry_id, "a", LONG)
    while not disk.begun.is_set():
        await let_threads_run()
    return adding


@pytest.mark.parametrize("fsync", POLICIES)
async def test_turns_go_on_and_answers_leave_in_order(fsync: Fsync) -> None:
    disk = SlowWrites()
    async with Conversation(disk, fsync) as talk:
        await talk.add("other", "1-0")
        long = await begin_long(talk, disk, "5-0")
        behind = [await talk.begin("XADD", stream, "5-1", "a", "1") for stream in ("s", "none")]
        showing = await talk.begin("XLEN", "s")
        assert await talk.call("XLEN", "other") == 1, "what is safe is shown"
        assert not any(one.done() for one in (long, *behind, showing)), "nothing of them is written"
        assert not long.done()
        appended = len(disk.operations)
        disk.may_write.set()
        assert [await long, *[await one for one in behind], await showing] == ["5-0", "5-1", "5-1", 2]
        writes = [name for name, _ in disk.operations[appended:] if name == "append"]
        assert len(writes) == 2, "what was staged meanwhile is one write"
        before = image(keyspace_of(talk.engine))
        killed = disk.kill()
    async with Conversation(killed, fsync) as again:
        assert image(keyspace_of(again.engine)) == before


@pytest.mark.parametrize("extra_bytes", [-1, 0, 1])
async def test_only_a_write_above_the_limit_is_left_to_the_thread(extra_bytes: int) -> None:
    disk = SlowWrites()
    async with Conversation(disk, "no") as talk:
        writer = talk.engine._writer  # noqa: SLF001 - its frames are as long as this test wants them
        header_bytes = writer.log.stage(b"") - writer.log.written_upto
        upto = writer.stage(bytes(INLINE_WRITE_BYTES_MAX - 2 * header_bytes + extra_bytes))
        await asyncio.sleep(0)
        assert writer.is_safe(upto) == (extra_bytes <= 0)
        disk.may_write.set()
        await writer.safe(upto)
        talk.abandon()
        await writer.close()


async def test_a_sync_meanwhile_makes_safe_what_was_written_before() -> None:
    """It does not wait for the long write, which a power cut then takes away alone."""
    disk = SlowWrites()
    async with Conversation(disk, "everysec") as talk:
        await talk.add("s", "4-0")
        long = await begin_long(talk, disk, "5-0")
        syncing = asyncio.ensure_future(talk.call("XLEN", "t", synced=True))
        adding = asyncio.ensure_future(talk.call("XADD", "u", "5-0", "a", "1", synced=True))
        syncs = disk.operations.count(("sync", "segment-1.weir"))
        await talk.pass_ms(1_000)
        while disk.operations.count(("sync", "segment-1.weir")) == syncs:
            await let_threads_run()
        assert await syncing == 0
        cut = disk.crash()
        assert not adding.done(), "it is behind the long one"
        disk.may_write.set()
        assert await long == "5-0"
        assert await adding == "5-0"
    async with Conversation(cut, "everysec") as again:
        assert await again.call("XLEN", "s") == 1


async def test_a_long_write_that_fails_is_never_acknowledged_nor_what_is_behind_it() -> None:
    disk = SlowWrites()
    async with Conversation(disk, "everysec") as talk:
        await talk.add("s", "1-0")
        long = await begin_long(talk, disk, "5-0")
        behind = await talk.begin("XADD", "s", "5-1", "a", "1")
        disk.fail("append", errno.EIO, after_bytes=INLINE_WRITE_BYTES_MAX // 2)
        disk.may_write.set()
        assert await long == FAILED
        assert await behind == FAILED
        assert await talk.call("XADD", "s", "6-0", "a", "1") == FAILED
        killed = disk.kill()
    async with Conversation(killed) as again:
        assert await again.call("XLEN", "s") == 1


async def test_a_rewrite_begins_its_segment_behind_the_write() -> None:
    disk = SlowWrites()
    async with Conversation(disk, "everysec") as talk:
        await talk.add("s", "1-0")
        long = await begin_long(talk, disk, "5-0")
        rewriting = asyncio.ensure_future(talk.engine.rewrite())
        for _ in range(20):
            await let_threads_run()
        behind = await talk.begin("XADD", "s", "5-1", "a", "1")
        assert not rewriting.done()
        disk.may_write.set()
        await rewriting
        assert [await long, await behind] == ["5-0", "5-1"]
        await talk.add("s", "5-2")
        before = image(keyspace_of(talk.engine))
        killed = disk.kill()
    async with Conversation(killed) as again:
        assert image(keyspace_of(again.engine)) == before


async def test_closing_waits_for_the_write_and_is_clean() -> None:
    disk = SlowWrites()
    async with Conversation(disk, "everysec") as talk:
        long = await begin_long(talk, disk, "5-0")
        behind = await talk.begin("XADD", "s", "5-1", "a", "1")
        closing = asyncio.ensure_future(talk.close())
        for _ in range(20):
            await let_threads_run()
        assert not closing.done()
        disk.may_write.set()
        await closing
        assert [await long, await behind] == ["5-0", "5-1"]
        crashed = disk.crash()
    async with Conversation(crashed) as again:
        assert again.engine.recovery.clean_stop
        assert await again.call("XLEN", "s") == 2


async def test_after_a_fault_the_answers_of_whole_turns_leave() -> None:
    disk = SlowWrites()
    async with Conversation(disk, "everysec") as talk:
        long = await begin_long(talk, disk, "5-0")
        behind = await talk.begin("XADD", "s", "5-1", "a", "1")
        with fault_at(1, "after"):
            assert str(await talk.call("XADD", "s", "5-2", "a", "1")).startswith("-ERR")
        disk.may_write.set()
        assert [await long, await behind] == ["5-0", "5-1"]
        killed = disk.kill()
    async with Conversation(killed) as again:
        assert await again.call("XLEN", "s") == 2
