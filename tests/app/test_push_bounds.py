"""What a conversation holds on to, to the last byte, the last credit, the last millisecond."""

import asyncio
from functools import partial

import pytest

from app.auth import ANONYMOUS
from app.auth.rate_limiter import caller_of
from app.live.fair_queue import FRAMES_A_CYCLE_MAX, OPENING_MAX, UNDER_WAY_MAX
from app.settings import Settings
from engine import ids
from engine.commands.types import XPendingRange
from engine.replies import PendingList
from tests.app.pushing import PushPeer, PushWorld, Stored, world_of
from tests.engine.clocks import settle

SETTINGS = Settings(log_requests="none", count_max=100)
ADDRESS = "192.0.2.1"
OTHER = "192.0.2.2"
WORK = {"stream": "s", "group": "g", "consumer": "c", "create": "0"}


house = world_of(SETTINGS)


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
    """It learns how long, and is closed then and no earlier."""
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


def pongs(peer: PushPeer) -> list[object]:
    return [frame["ref"] for frame in peer.frames if frame["op"] == "pong"]


def test_thirty_two_frames_of_a_caller_are_handled_in_a_cycle(house: PushWorld) -> None:
    """The rest waits, in order; where more than one frame waits, nothing is read meanwhile."""
    flooder, other = house.connect(), house.connect(address=OTHER)

    def flood() -> None:
        for number in range(FRAMES_A_CYCLE_MAX + 8):
            flooder.say("ping", ref=number)
            assert flooder.wire.held is (number > FRAMES_A_CYCLE_MAX)
        assert pongs(flooder) == list(range(FRAMES_A_CYCLE_MAX))
        other.say("ping", ref="mine")
        assert pongs(other) == ["mine"]

    house.do(flood)
    house.settle()
    assert pongs(flooder) == list(range(FRAMES_A_CYCLE_MAX + 8))
    assert not flooder.wire.held


@pytest.mark.parametrize("sockets", [1, 32, 1_000])
def test_many_sockets_of_a_caller_have_the_share_of_one(house: PushWorld, sockets: int) -> None:
    """In each cycle, and by turns among them; another caller waits for none of them."""
    flooders = [house.connect() for _ in range(sockets)]
    other = house.connect(address=OTHER)
    ahead = 1_000 // sockets + 2

    def handled() -> list[int]:
        return [len(pongs(peer)) for peer in flooders]

    def flood() -> None:
        for peer in flooders:
            for number in range(ahead):
                peer.say("ping", ref=number)
        assert sum(handled()) == FRAMES_A_CYCLE_MAX

    house.do(flood)
    first = handled()
    for number in range(8):
        before = sum(handled())
        house.do(other.say, "ping", ref=number)
        assert pongs(other) == list(range(number + 1))
        # The loop has two cycles for what it is to do.
        assert 0 < sum(handled()) - before <= 2 * FRAMES_A_CYCLE_MAX
    turns = [now - was for was, now in zip(first, handled(), strict=True) if was < ahead]
    assert max(turns) - min(turns) <= 1
    while sum(handled()) < ahead * sockets:
        house.run(settle())
    for peer in flooders:
        assert pongs(peer) == list(range(ahead))
        assert not peer.wire.held


def test_a_long_cycle_handles_one_frame_of_each_caller(house: PushWorld) -> None:
    """Once it has lasted a few milliseconds; none is passed over."""
    flooders = [house.connect(address=f"192.0.2.{number}") for number in range(4)]
    house.clock.ticking_s = 0.002

    def flood() -> None:
        for peer in flooders:
            for number in range(16):
                peer.say("ping", ref=number)
        assert [len(pongs(peer)) for peer in flooders] == [3, 1, 1, 1]

    house.do(flood)
    before = [len(pongs(peer)) for peer in flooders]
    house.step()
    (turns,) = {len(pongs(peer)) - was for peer, was in zip(flooders, before, strict=True)}
    assert turns > 0
    house.clock.ticking_s = 0.0
    house.settle()
    for peer in flooders:
        assert pongs(peer) == list(range(16))


@pytest.mark.parametrize(("freed", "arriving"), [(1, 1), (UNDER_WAY_MAX, FRAMES_A_CYCLE_MAX)])
def test_a_frame_that_waits_goes_before_those_that_arrive(
    house: PushWorld, freed: int, arriving: int
) -> None:
    """Though other sockets of its caller could take all that there is of every cycle, or of work."""
    waiting, fresh = house.connect(address=ADDRESS), house.connect(address=ADDRESS)
    flow = house.hub.frames.flow(caller_of(ANONYMOUS, ADDRESS))

    def begin(frames: int) -> None:
        for _ in range(frames):
            flow.begin_work()

    async def arrive() -> None:
        begin(UNDER_WAY_MAX)
        waiting.say("ping", ref="waits")
        await settle()
        ended = freed
        for _ in range(3):
            for _ in range(ended):
                flow.end_work()
            before = len(pongs(fresh))
            for number in range(arriving):
                fresh.say("ping", ref=number)
            ended = len(pongs(fresh)) - before
            begin(ended)
            await asyncio.sleep(0)
        assert pongs(waiting) == ["waits"]

    house.run(arrive())


def subscribed(peer: PushPeer) -> list[object]:
    return [frame["ref"] for frame in peer.frames if frame["op"] == "ok" and "next" in frame]


def test_subscriptions_that_are_being_opened_hold_up_no_other_frame(house: PushWorld) -> None:
    """Neither of their own socket nor of another of the caller."""
    peer, second = house.connect(), house.connect()
    names = [f"t{number}" for number in range(2 * OPENING_MAX)]

    def ask() -> None:
        for name in names:
            peer.say("subscribe", sub=name, ref=name, streams={"s": "0"})
        for one in (peer, second):
            one.say("ping", ref="mine")
            assert pongs(one) == ["mine"]
        assert subscribed(peer) == []

    house.do(ask)
    house.settle()
    assert subscribed(peer) == names


def test_four_subscriptions_of_a_caller_are_opened_at_a_time(house: PushWorld) -> None:
    """Over all its sockets; one that is ended while it waits is not begun. Other callers do not wait."""
    peer, other = house.connect(address=ADDRESS), house.connect(address=OTHER)
    flow = house.hub.frames.flow(caller_of(ANONYMOUS, ADDRESS))
    stuck: list[int] = []

    def ask() -> None:
        for number in range(OPENING_MAX):
            flow.open(partial(stuck.append, number))
        assert stuck == list(range(OPENING_MAX))
        for name in ("ended", "waits", "later"):
            peer.say("subscribe", sub=name, ref=name, streams={"s": "0"})
        peer.say("unsubscribe", sub="ended")
        peer.say("subscribe", sub="ended", ref="again", streams={"s": "0"})
        other.say("subscribe", sub="mine", ref="mine", streams={"s": "0"})

    house.do(ask)
    house.settle()
    assert (subscribed(peer), subscribed(other)) == ([], ["mine"])
    house.do(flow.end_opening)
    house.settle()
    assert subscribed(peer) == ["waits", "later", "again"]


@pytest.mark.parametrize("sockets", [1, 32])
def test_a_caller_has_256_unanswered_frames(
    house: PushWorld, monkeypatch: pytest.MonkeyPatch, sockets: int
) -> None:
    """Over all its sockets: other callers wait for their answers at worst. Further frames wait."""
    monkeypatch.setattr(house.hub.frames, "a_cycle_max", 1_000)
    peers = [house.connect() for _ in range(sockets)]
    other = house.connect(address=OTHER)

    def ask() -> None:
        for number in range(UNDER_WAY_MAX + 2 * sockets):
            peers[number % sockets].say("publish", stream="s", fields={"a": "1"})
            held = [peer.wire.held for peer in peers]
            assert held == [number - UNDER_WAY_MAX - sockets >= place for place in range(sockets)]
        other.say("publish", stream="s", fields={"a": "1"})
        assert not other.wire.held

    house.do(ask)
    house.until(lambda: not any(peer.wire.held for peer in peers))
    assert house.engine.figures().appended == UNDER_WAY_MAX + 2 * sockets + 1
