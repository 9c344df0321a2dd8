"""Workers that take over what others hold too long, over WebSocket and SSE: never what they hold."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.settings import Settings
from engine import ids
from engine.commands import EnsureGroup, XPendingRange
from engine.replies import PendingList
from tests.app.pushing import PushPeer, PushWorld, Stored
from tests.app.test_sse import EventReader

IDLE_MS = 1_000
# Two deliveries are allowed; the third would make it a dead letter.
POLICY = {"dead_letter_stream": "dead", "max_deliveries": 2}


@pytest.fixture
def house() -> Iterator[PushWorld]:
    house = PushWorld(Settings(log_requests="none", count_max=100))
    house.execute(EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=POLICY))
    yield house
    house.close()


class ClaimingWorker:
    """A consumer over either kind of connection; what it was given, as (ID, delivery count)."""

    def __init__(self, house: PushWorld, kind: str, name: str) -> None:
        self.kind = kind
        self.peer: PushPeer | EventReader
        if kind == "ws":
            self.peer = house.connect()
            members: dict[str, Any] = {"stream": "s", "group": "g", "consumer": name}
            house.do(self.peer.say, "consume", sub="w", claim_min_idle_ms=IDLE_MS, **members)
        else:
            path = f"/v1/streams/s/groups/g/consumers/{name}/stream"

            def begin() -> None:
                query = f"claim_min_idle_ms={IDLE_MS}"
                self.peer = EventReader(house.app, path, query, accept="text/event-stream")

            house.do(begin)
        house.settle()

    @property
    def given(self) -> list[tuple[str, int]]:
        if isinstance(self.peer, PushPeer):
            rows = [row for one in self.peer.frames if one["op"] == "entries" for row in one["entries"]]
        else:
            rows = self.peer.of("entry")
        return [(row["id"], row.get("delivery_count", 1)) for row in rows]

    def leave(self, house: PushWorld) -> None:
        if isinstance(self.peer, EventReader):
            house.run(self.peer.leave())


def pending(house: PushWorld) -> list[tuple[str, str | None, int]]:
    found = house.execute(XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=100))
    assert isinstance(found, PendingList)
    return [(ids.format(one.id), one.consumer, one.delivery_count) for one in found.entries]


def pass_s(house: PushWorld, seconds: int) -> None:
    """In steps, so that what runs every second does."""
    for _ in range(2 * seconds):
        house.clock.pass_ms(500)
        house.settle()


@pytest.mark.parametrize("kind", ["ws", "sse"])
def test_what_is_worked_on_for_long_stays_with_its_worker(house: PushWorld, kind: str) -> None:
    """It is not sent again, its delivery count stays, and it is no dead letter."""
    stored = Stored(house, "s")
    stored.add([5 << 64, 1])
    worker = ClaimingWorker(house, kind, "a")
    pass_s(house, 5)
    stored.add([1])
    pass_s(house, 1)
    assert worker.given == [("5-0", 1), ("5-1", 1), ("5-2", 1)]
    assert pending(house) == [("5-0", "a", 1), ("5-1", "a", 1), ("5-2", "a", 1)]
    worker.leave(house)


@pytest.mark.parametrize(("first", "second"), [("ws", "sse"), ("sse", "ws"), ("ws", "ws")])
def test_what_a_hung_worker_holds_goes_to_another(house: PushWorld, first: str, second: str) -> None:
    """Though the hung one is connected and has room; the last holder is the one that failed."""
    stored = Stored(house, "s")
    stored.add([5 << 64, 1])
    hung = ClaimingWorker(house, first, "a")
    pass_s(house, 3)
    other = ClaimingWorker(house, second, "b")
    assert other.given == [("5-0", 2), ("5-1", 2)]
    assert pending(house) == [("5-0", "b", 2), ("5-1", "b", 2)]
    # Idle with the other one for as long, the hung one gets it: that would be the third delivery.
    pass_s(house, 2)
    assert hung.given == [("5-0", 1), ("5-1", 1)]
    assert pending(house) == []
    for worker in (hung, other):
        worker.leave(house)
