"""What can still be read once the log has failed: all that no lost frame has changed, nothing else."""

import errno
from typing import Final

import pytest

from engine.storage.memory import MemoryStorage
from tests.engine.clocks import let_threads_run
from tests.engine.conversation import Conversation, SlowDisk, read_of

FAILED: Final = "-MISCONF Errors writing to the log: the gateway is read-only until it is restarted"
# Reads of one stream that was synced, and what they answer; then those of all streams together.
OF_ONE: Final = (
    "XRANGE {} - +",
    "XREAD STREAMS {} 0",
    "XINFO STREAM {}",
    "XINFO GROUPS {}",
    "XPENDING {} g",
    "XLEN {}",
    "EXISTS {}",
)
OF_ALL: Final = ("DBSIZE", "KEYS *")


async def two_streams(talk: Conversation) -> None:
    for stream in ("old", "busy"):
        await talk.add(stream, "1-0")
        await talk.call("XGROUP", "CREATE", stream, "g", "0", synced=True)


@pytest.mark.parametrize(("operation", "code"), [("sync", errno.ENOSPC), ("append", errno.EIO)])
async def test_what_a_lost_frame_has_changed_is_refused_and_all_else_is_read(
    operation: str, code: int
) -> None:
    """Under always: the stream of that frame, reads that name it among others, and what is about all."""
    storage = MemoryStorage()
    async with Conversation(storage, "always") as talk:
        await two_streams(talk)
        storage.fail(operation, code)
        assert await talk.call("XADD", "busy", "2-0", "a", "1") == FAILED
        for words in OF_ONE:
            assert not str(await talk.call(*words.format("old").split())).startswith("-"), words
            assert await talk.call(*words.format("busy").split()) == FAILED, words
        for words in (*OF_ALL, "XREAD STREAMS old busy 0 0"):
            assert await talk.call(*words.split()) == FAILED, words
        assert await talk.call("XREAD", "STREAMS", "old", "none", "0", "0") == read_of("old", "1-0")
        assert not str(await talk.call("CONFIG", "GET", "stream-node-max-entries")).startswith("-")
    async with Conversation(storage.crash(), "always") as again:
        assert await again.call("XRANGE", "busy", "-", "+") == [["1-0", ["a", "1"]]]
        assert await again.call("DBSIZE") == 2


async def test_a_lost_frame_that_changed_no_stream_takes_nothing_from_readers() -> None:
    """The mark of an idle second, for one: every stream is read, and the list of them."""
    storage = MemoryStorage()
    async with Conversation(storage, "always") as talk:
        await two_streams(talk)
        storage.fail("sync", errno.EIO)
        while talk.engine.log_figures().failure is None:
            await talk.pass_ms(1_000)
            await let_threads_run()
        for words in OF_ONE:
            assert not str(await talk.call(*words.format("busy").split())).startswith("-"), words
        assert await talk.call("DBSIZE") == 2
        assert await talk.call("XADD", "old", "2-0", "a", "1") == FAILED


async def test_under_everysec_a_failed_sync_takes_nothing_from_readers() -> None:
    """What the system has was shown already: it stays readable, and only writes are refused."""
    storage = MemoryStorage()
    async with Conversation(storage, "everysec") as talk:
        await two_streams(talk)
        await talk.add("busy", "2-0")
        storage.fail("sync", errno.EIO)
        while talk.engine.log_figures().failure is None:
            await talk.pass_ms(1_000)
            await let_threads_run()
        assert await talk.call("XLEN", "busy") == 2
        assert await talk.call("DBSIZE") == 2
        assert await talk.call("XADD", "busy", "3-0", "a", "1") == FAILED


async def test_that_all_is_gone_is_shown_once_it_is_safe() -> None:
    """FLUSHALL touches every stream, also those without a write for a long time."""
    disk = SlowDisk()
    async with Conversation(disk, "always") as talk:
        await two_streams(talk)
        disk.hold()
        flushing = await talk.begin("FLUSHALL")
        looking = [
            await talk.begin(*words.format("old").split()) for words in ("XLEN {}", "EXISTS {}", "DBSIZE")
        ]
        assert not flushing.done()
        assert not any(look.done() for look in looking)
        disk.let_go()
        assert [await look for look in looking] == [0, 0, 0]
        assert await flushing == "OK"
