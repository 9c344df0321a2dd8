"""A file system that keeps no room for files to grow: a write that finds the disk full waits until it is not.

Knows: a modelled disk that others fill and empty, and that only says how much room it has.
Must never know: how a write is tried again.
"""

import asyncio
import errno
from typing import Final

import pytest

from engine import Fsync, RewriteFailedError
from engine.log import LogPoisonedError, StorageFullError
from engine.log.ballast import BALLAST
from engine.runtime.writer import INLINE_WRITE_BYTES_MAX
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import let_threads_run, settle
from tests.engine.conversation import Begun
from tests.engine.faulty import fault_at
from tests.engine.images import image
from tests.engine.log_cases import SEGMENT, append, open_log, recovered
from tests.engine.running import keyspace_of
from tests.engine.test_fault import CUT_SHORT
from tests.engine.test_full_disk import Full
from tests.engine.test_rewrite import after_restart
from tests.engine.test_runtime import FAILED

ROOM_BYTES: Final = 64 << 20


def room_free() -> MemoryStorage:
    return MemoryStorage(space_bytes=ROOM_BYTES, keeps_room=False)


def take_room(storage: MemoryStorage, left: int = 0) -> None:
    """Let somebody else fill the disk."""
    free = storage.free_bytes()
    assert free is not None
    assert storage.space_bytes is not None
    storage.space_bytes -= free - left


def give_room(storage: MemoryStorage) -> None:
    storage.space_bytes = ROOM_BYTES


def appends(storage: MemoryStorage) -> int:
    return storage.operations.count(("append", SEGMENT))


class TestTheLog:
    @pytest.mark.parametrize("left", [0, 1, 50])
    def test_a_batch_without_room_is_cut_off_and_comes_again(self, left: int) -> None:
        """Before all that was staged meanwhile, and as it was."""
        storage = room_free()
        log = open_log(storage)
        log.ensure_reserve()
        append(log, b"safe", synced=True)
        before = storage.content(SEGMENT)
        log.stage(bytes(100))
        take_room(storage, left)
        for _ in range(2):
            with pytest.raises(StorageFullError, match="No space left"):
                log.write(log.take_staged())
            assert storage.content(SEGMENT) == before
            assert (log.written_upto, log.poisoned, log.is_full) == (len(before), None, True)
            with pytest.raises(StorageFullError):
                log.ensure_reserve()
            log.restore_reserve()
            assert log.is_full
        log.stage(b"behind")
        give_room(storage)
        log.write(log.take_staged())
        assert log.written_upto < log.staged_upto
        log.ensure_reserve()
        log.write(log.take_staged())
        log.sync()
        assert recovered(storage.crash()) == [b"safe", bytes(100), b"behind"]

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    @pytest.mark.parametrize("after_bytes", [0, 1, 45])
    def test_room_that_was_kept_and_is_not_there_is_waited_for(self, code: int, after_bytes: int) -> None:
        """A quota that was lowered, or a file system that broke its word: nothing is lost by trying again."""
        storage = MemoryStorage(space_bytes=ROOM_BYTES)
        log = open_log(storage)
        log.ensure_reserve()
        before = storage.content(SEGMENT)
        log.stage(b"late")
        storage.fail("append", code, after_bytes=after_bytes)
        with pytest.raises(StorageFullError, match="room"):
            log.write(log.take_staged())
        assert (storage.content(SEGMENT), log.poisoned) == (before, None)
        log.write(log.take_staged())
        log.sync()
        log.ensure_reserve()
        assert storage.operations[-1] == ("preallocate", SEGMENT), "the cut has given back what was kept"
        assert recovered(storage.crash()) == [b"late"]

    @pytest.mark.parametrize(("operation", "code"), [("append", errno.EIO), ("truncate", errno.EIO)])
    def test_another_failure_poisons(self, operation: str, code: int) -> None:
        """Also one in cutting off what was written: the file is not as it was then."""
        storage = room_free()
        log = open_log(storage)
        log.ensure_reserve()
        log.stage(bytes(100))
        take_room(storage, 10)
        storage.fail(operation, code)
        with pytest.raises(LogPoisonedError):
            log.write(log.take_staged())

    def test_a_batch_of_the_segment_before_comes_first(self) -> None:
        storage = room_free()
        log = open_log(storage)
        log.ensure_reserve()
        prepared = log.prepare_segment()
        log.stage(b"old")
        log.start_segment(prepared)
        log.stage(b"new")
        take_room(storage)
        with pytest.raises(StorageFullError, match="segment-1"):
            log.write(log.take_staged())
        give_room(storage)
        log.write(log.take_staged())
        log.write(log.take_staged())
        log.sync()
        log.name_segments()
        assert recovered(storage.crash()) == [b"old", b"new"]

    def test_closing_lets_go_of_what_has_no_room(self) -> None:
        storage = room_free()
        log = open_log(storage)
        log.ensure_reserve()
        append(log, b"written", synced=False)
        log.stage(b"not written")
        take_room(storage)
        log.close()
        assert recovered(storage.crash()) == [b"written"]


async def stalled(talk: Full, *, left: int = 10, value: str = "1") -> Begun:
    """An entry `s 2-0` that finds no room, after `s 1-0` and `t 1-0` that did."""
    await talk.add("s", "1-0")
    await talk.add("t", "1-0")
    await talk.call("DBSIZE", synced=True)
    take_room(talk.disk, left)
    begun = await talk.begin("XADD", "s", "2-0", "a", value)
    while not talk.is_full():
        await let_threads_run()
    assert not begun.done()
    return begun


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
@pytest.mark.parametrize("value", ["1", "x" * INLINE_WRITE_BYTES_MAX], ids=["inline", "by a thread"])
async def test_an_answer_waits_for_room_and_others_are_refused(fsync: Fsync, value: str) -> None:
    """It is tried again once a second; the disk is full until then; nothing else ends."""
    async with Full(room_free(), fsync=fsync) as talk:
        adding = await stalled(talk, value=value)
        reading = await talk.begin("XLEN", "s")
        for words in (("XADD", "t", "2-0", "a", "1"), ("DEL", "t")):
            assert str(await talk.call(*words)).startswith("-MISCONF No space left")
        assert await talk.call("XLEN", "t") == 1
        tried = appends(talk.disk)
        seconds = 0
        while appends(talk.disk) < tried + 3:
            await talk.second()
            await settle_threads()
            seconds += 1
            assert appends(talk.disk) <= tried + seconds
        assert not adding.done()
        assert not reading.done()
        give_room(talk.disk)
        while not adding.done():
            await talk.second()
            await settle_threads()
        assert await adding == "2-0"
        assert await reading == 2
        while talk.is_full():
            await talk.second()
        assert await talk.call("XADD", "t", "2-0", "a", "1", synced=True) == "2-0"
        before = image(keyspace_of(talk.engine))
        crashed = talk.disk.crash()
    assert await after_restart(crashed) == before


async def settle_threads() -> None:
    for _ in range(20):
        await let_threads_run()


async def test_an_engine_that_closes_does_not_wait_for_room() -> None:
    """What was never answered is not there afterwards; what was, is."""
    async with Full(room_free()) as talk:
        adding = await stalled(talk)
        rewriting = asyncio.ensure_future(talk.engine.rewrite())
        await settle_threads()
        await talk.close()
        assert await adding == CUT_SHORT
        with pytest.raises(RewriteFailedError):
            await rewriting
        closed = talk.disk.kill()
    give_room(closed)
    async with Full(closed) as again:
        assert await again.call("XLEN", "s") == 1


async def test_a_fault_meanwhile_waits_for_no_room() -> None:
    """What had none is refused, as what the fault cut short is."""
    async with Full(room_free()) as talk:
        await talk.add("s", "1-0")
        await talk.add("t", "1-0")
        take_room(talk.disk)
        with fault_at(2, "after"):
            both = asyncio.gather(*[talk.call("XADD", name, "2-0", "a", "1") for name in "st"])
            await settle()
        await talk.engine.finish_turns()
        adding, failing = await both
        assert adding == CUT_SHORT
        assert str(failing).startswith("-ERR")
        killed = talk.disk.kill()
    give_room(killed)
    async with Full(killed) as again:
        assert [await again.call("XLEN", name) for name in "st"] == [1, 1]


async def test_a_rewrite_needs_what_is_staged_first() -> None:
    """It fails without room, and leaves nothing; with room it goes on from what waited."""
    async with Full(room_free()) as talk:
        adding = await stalled(talk)
        for _ in range(2):
            with pytest.raises(RewriteFailedError, match="No space left"):
                await talk.engine.rewrite()
        assert [name for name in talk.disk.names() if name != BALLAST] == ["manifest", SEGMENT]
        give_room(talk.disk)
        await talk.engine.rewrite()
        assert await adding == "2-0"
        assert not talk.is_full()
        before = image(keyspace_of(talk.engine))
        crashed = talk.disk.crash()
    assert await after_restart(crashed) == before


async def test_a_disk_that_fails_after_all_is_failed() -> None:
    async with Full(room_free()) as talk:
        adding = await stalled(talk)
        talk.disk.fail("append", errno.EIO)
        await talk.second()
        assert await adding == FAILED
        assert await talk.call("XADD", "t", "2-0", "a", "1") == FAILED


@pytest.mark.parametrize("left", [0, 1, 60])
async def test_stopped_at_any_step_nothing_answered_is_lost(left: int) -> None:
    """Killed or without power before any operation: the entry that waited is there whole or not at all, and
    surely once it was answered.
    """
    for moment in range(100):
        async with Full(room_free(), fsync="always") as talk:
            await talk.add("s", "1-0")
            await talk.call("DBSIZE", synced=True)
            take_room(talk.disk, left)
            talk.disk.stop_before(moment)
            adding = await talk.begin("XADD", "s", "2-0", "a", "1")
            await talk.second()
            await settle_threads()
            give_room(talk.disk)
            await talk.second()
            await settle_threads()
            answered, stopped = adding.done(), talk.disk.stopped
            await adding.give_up()
            talk.abandon()
        for disk in (talk.disk.kill(), talk.disk.crash()):
            async with Full(disk) as again:
                assert await again.call("XLEN", "s") in ((2,) if answered else (1, 2))
        if not stopped:
            assert answered
            assert moment > 3
            return
