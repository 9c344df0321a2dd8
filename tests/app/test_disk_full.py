"""A disk without room: what the log says of it, and that writes go on by themselves.

Knows: a modelled disk, one request that writes and one that reads. Must never know: how room is reserved.
"""

from collections.abc import AsyncIterator

import httpx
import pytest
from structlog.testing import capture_logs

from app.main import create_app
from app.settings import Settings
from engine import Engine
from engine.storage.memory import MemoryStorage
from tests.app.conftest import calling
from tests.engine.clocks import HandClock

ENTRIES = "/v1/streams/s/entries"
LARGE = {"fields": {"a": "x" * (1 << 20)}}
PLENTY_BYTES = 1 << 30


class Full:
    """A gateway on a disk that has just become full."""

    def __init__(self, storage: MemoryStorage, clock: HandClock, http: httpx.AsyncClient) -> None:
        self.storage = storage
        self.clock = clock
        self.http = http

    async def publish(self) -> int:
        """The status of an entry that needs more of the disk."""
        return (await self.http.post(ENTRIES, json=LARGE)).status_code

    async def fill(self) -> None:
        """Take away what is free, and use what is reserved."""
        free_bytes = self.storage.free_bytes()
        assert free_bytes is not None
        assert self.storage.space_bytes is not None
        self.storage.space_bytes -= free_bytes
        while await self.publish() == 201:
            pass


@pytest.fixture
async def full() -> AsyncIterator[Full]:
    storage, clock = MemoryStorage(space_bytes=PLENTY_BYTES), HandClock()
    engine = Engine.open(storage, clock=clock, fsync="no")
    await engine.start()
    app = create_app(Settings(log_requests="none", body_bytes_max=2 << 20, entry_bytes_max=2 << 20), clock)
    app.gateway.open(engine)
    async with calling(app) as http:
        yield Full(storage, clock, http)
    storage.space_bytes = PLENTY_BYTES
    await engine.close()


async def test_the_log_says_that_the_disk_is_full_and_that_it_has_room_again(full: Full) -> None:
    """At `critical` with reason and remedy, at `warning` with the first write that is taken; once each."""
    with capture_logs() as lines:
        assert await full.publish() == 201
        assert lines == []
        await full.fill()
        assert [await full.publish() for _ in range(3)] == [507, 507, 507]
        assert (await full.http.get(f"{ENTRIES}?count=1")).status_code == 200
        full.storage.space_bytes = PLENTY_BYTES
        assert [await full.publish() for _ in range(3)] == [201, 201, 201]
    result = [(line["log_level"], line["event"].partition(":")[0]) for line in lines]
    assert result == [("critical", "the disk is full"), ("warning", "there is room on the disk again")]
    assert "No space left on device" in lines[0]["reason"]
    assert "make room" in lines[0]["remedy"]


async def test_a_disk_that_is_full_again_and_again_gets_a_line_a_minute(full: Full) -> None:
    """And none of room that was not missed in the log; one millisecond less is within the minute."""
    with capture_logs() as lines:
        for passed_ms in (0, 59_999, 1):
            full.clock.pass_ms(passed_ms)
            await full.fill()
            full.storage.space_bytes = PLENTY_BYTES
            assert await full.publish() == 201
    assert [line["log_level"] for line in lines] == ["critical", "warning", "critical", "warning"]
