"""A slow disk is noticed: by one sync that takes long or hangs, or by the median of ten."""

import pytest

from tests.engine.clocks import let_threads_run, settle
from tests.engine.conversation import Conversation, SlowDisk


class Watched(Conversation):
    """Says how slow the disk was."""

    def __init__(self, disk: SlowDisk) -> None:
        super().__init__(disk, "always")
        self.disk = disk
        self.noted: list[float | None] = []
        self.number = 0

    async def sync(self, ms: int) -> None:
        """Add an entry whose sync takes so long."""
        self.engine.events.disk_slow = self.noted.append
        self.number += 1
        self.disk.hold()
        adding = await self.begin("XADD", "s", f"{self.number}-0", "a", "1")
        await settle()
        await self.pass_ms(ms)
        self.disk.let_go()
        await adding
        await let_threads_run()


@pytest.mark.parametrize(("ms", "is_slow"), [(1_990, False), (2_010, True)])
async def test_one_sync_of_more_than_two_seconds(ms: int, *, is_slow: bool) -> None:
    """Until ten took less than a tenth of a second."""
    async with Watched(SlowDisk()) as talk:
        await talk.sync(ms)
        assert bool(talk.noted) is is_slow
        for _ in range(9):
            await talk.sync(90)
        assert None not in talk.noted
        await talk.sync(90)
        assert (None in talk.noted) is is_slow


@pytest.mark.parametrize(("ms", "is_slow"), [(490, False), (510, True)])
async def test_ten_whose_median_is_more_than_half_a_second(ms: int, *, is_slow: bool) -> None:
    """Not nine of them."""
    async with Watched(SlowDisk()) as talk:
        for _ in range(9):
            await talk.sync(ms)
        assert talk.noted == []
        await talk.sync(ms)
        assert bool(talk.noted) is is_slow


async def test_a_sync_that_hangs_is_noticed_before_it_ends() -> None:
    """And each second again."""
    async with Watched(SlowDisk()) as talk:
        talk.engine.events.disk_slow = talk.noted.append
        talk.disk.hold()
        adding = await talk.begin("XADD", "s", "1-0", "a", "1")
        await settle()
        for _ in range(5):
            await talk.pass_ms(1_000)
        assert len(talk.noted) >= 3
        assert all(seconds is not None and seconds > 2 for seconds in talk.noted)
        talk.disk.let_go()
        await adding
