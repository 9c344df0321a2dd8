"""A disk that fails at any operation, in any way: what was answered is kept, the rest is refused."""

import asyncio
import errno

import pytest

from engine import Engine, EngineError, Fsync, entries
from engine.commands.types import XAdd, XLen
from engine.storage.memory import MemoryStorage
from tests import halves
from tests.engine.asking import reply_to
from tests.engine.clocks import HandClock
from tests.proof.failing import failing_disk, full_disk

# Coverage would make it three times as long, and other tests cover the same lines.
pytestmark = pytest.mark.no_cover

SHORT = (1, 2)
# Which operations of a history fail; `make soak` takes all of them.
EVERY = 5
STORING, EVERY_STORING = 3, 17


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_no_failed_operation_breaks_a_promise(fsync: Fsync) -> None:
    """F13, F14, F18, F20: EIO, ENOSPC, a part written and then an error, at one operation after the other.

    What was answered survives a kill and a power cut, a failed write or sync reaches everyone who waits
    for it, and the log is not touched again.
    """
    failures, disks = failing_disk(halves.half(SHORT), fsync, every=EVERY)
    assert failures > halves.some(15), "operations failed"
    assert disks > failures, "disks were looked at"


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_no_failed_operation_loses_entries_in_files(fsync: Fsync) -> None:
    """The same while each full node goes to a file: where that fails the nodes stay."""
    failures, disks = failing_disk([STORING], fsync, every=EVERY_STORING, stores=True)
    assert failures > 5, "operations failed"
    assert disks > failures, "disks were looked at"


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_a_full_disk_is_survived(fsync: Fsync) -> None:
    """F15: refused before anything changes, reads go on, and with room again it goes on by itself."""
    assert full_disk(1, fsync) == 6


async def test_of_a_hundred_that_share_a_failed_sync_none_is_answered() -> None:
    """F39: one sync for all that wait, and its failure is that of all; no reader sees any of them."""
    storage = MemoryStorage()
    engine = Engine.open(storage, clock=HandClock(), fsync="always")
    await engine.start()
    storage.fail("sync", errno.EIO)
    body = entries.body([("a", "1")])
    adding = [reply_to(engine, XAdd(stream="s", bodies=[body])) for _ in range(100)]
    refusals = await asyncio.gather(*adding, return_exceptions=True)
    assert {getattr(one, "code", one) for one in refusals} == {"storage_failed"}
    with pytest.raises(EngineError):
        await reply_to(engine, XLen(stream="s"))
    assert await reply_to(engine, XLen(stream="other")) == 0
    await engine.close()
    assert Engine.open(storage.crash(), clock=HandClock()).recovery.frames == 0
