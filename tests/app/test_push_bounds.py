"""What a conversation holds on to, to the last byte, the last credit, the last millisecond."""

from collections.abc import Iterator

import pytest

from app.settings import Settings
from engine import ids
from engine.commands import XPendingRange
from engine.replies import PendingList
from tests.app.pushing import PushWorld, Stored

SETTINGS = Settings(log_requests="none", count_max=100)
WORK = {"stream": "s", "group": "g", "consumer": "c", "create": "0"}


@pytest.fixture
def house() -> Iterator[PushWorld]:
    house = PushWorld(SETTINGS)
    yield house
    house.close()


@pytest.mark.parametrize(("missing_bytes", "kept"), [(0, 1), (1, 0)])
def test_what_left_to_its_last_byte_is_not_given_back(
    house: PushWorld, missing_bytes: int, kept: int
) -> None:
    """A delivery counts where the connection breaks right behind it; a byte earlier, it does not."""
    peer = house.connect()
    house.do(peer.say, "consume", sub="w", **WORK)
    house.settle()
    peer.stall()
    Stored(house, "s").add([1])
    house.settle()
    peer.wire.take(1)
    sent_bytes = peer.wire.sent_bytes - missing_bytes
    peer.wire.close_with(1006, "lost")
    house.do(peer.push.lost, sent_bytes)
    house.settle()
    look = XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=100, consumer="c")
    found = house.execute(look)
    assert isinstance(found, PendingList)
    assert len(found.entries) == kept


@pytest.mark.parametrize(("drain_s_max", "after_ms"), [(1, 500), (4, 2_000), (5, 2_000)])
def test_who_holds_entries_has_half_of_a_stop_and_at_most_two_seconds(
    drain_s_max: int, after_ms: int
) -> None:
    """It is told how long, and is closed then and no earlier."""
    house = PushWorld(SETTINGS.model_copy(update={"drain_s_max": drain_s_max}))
    peer = house.connect()
    Stored(house, "s").add([1])
    house.do(peer.say, "consume", sub="w", **WORK)
    house.settle()
    house.do(house.hub.drain)
    assert (peer.frames[-1]["op"], peer.frames[-1]["after_ms"]) == ("goaway", after_ms)
    closed = []
    for passed_ms in (after_ms - 1, 1):
        house.clock.pass_ms(0, passed_ms)
        house.step()
        house.step()
        closed.append(peer.wire.closed)
    assert closed == [None, (4001, "draining")]
    house.close()


def test_whoever_has_asked_for_256_things_is_not_listened_to(house: PushWorld) -> None:
    """Until one of them is answered."""
    peer = house.connect()

    def ask() -> None:
        held = []
        for _ in range(257):
            peer.say("publish", stream="s", fields={"a": "1"})
            held.append(peer.wire.held)
        assert held == [False] * 255 + [True] * 2

    house.do(ask)
    house.settle()
    assert not peer.wire.held


def test_whoever_spends_the_last_credit_is_told_at_once(house: PushWorld) -> None:
    """`paused` stands right behind the entry, though nothing waits: on the short way too."""
    peer = house.connect()
    house.do(peer.say, "subscribe", sub="t", streams={"s": "0"}, credit=2)
    house.settle()
    stored = Stored(house, "s")
    for expected in ("entries", "paused"):
        stored.add([1])
        house.settle()
        assert peer.frames[-1]["op"] == expected
