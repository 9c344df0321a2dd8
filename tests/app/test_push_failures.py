"""A conversation in which something fails unexpectedly: it alone ends, without a loss."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from app.doors.websocket.group_subscription import GroupSubscription
from app.doors.websocket.session import Session
from app.doors.websocket.stream_subscription import StreamSubscription
from app.settings import Settings
from engine import ids
from engine.commands.types import XPendingRange
from engine.replies import PendingList
from tests.app.conftest import calling
from tests.app.pushing import PushPeer, PushWorld, Stored, world_of

SETTINGS = Settings(log_requests="none", count_max=100)
WORK = {"stream": "s", "group": "g", "consumer": "c", "create": "0"}


house = world_of(SETTINGS)


@pytest.fixture
def stored(house: PushWorld) -> Stored:
    return Stored(house, "s")


def fail(*_: Any, **__: Any) -> Any:
    """Instead of anything."""
    raise ZeroDivisionError("planted")


def failing(event: str) -> type[Session]:
    """A session that fails at this event, of itself or of one of its parts."""
    part, _, name = event.rpartition(".")

    class Failing(Session):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            setattr(getattr(self, part) if part else self, name, fail)

    return Failing


def held_by_consumers(house: PushWorld) -> list[str]:
    look = XPendingRange(stream="s", group="g", start=0, end=ids.ID_MAX, count=100, consumer="c")
    found = house.execute(look)
    assert isinstance(found, PendingList)
    return [ids.format(one.id) for one in found.entries]


async def failed(house: PushWorld) -> object:
    """How many conversations have failed, as the status has it."""
    async with calling(house.app) as http:
        return (await http.get("/v1/status")).json()["connections"]["failed"]


def test_conversations_that_an_engine_takes_along_have_not_failed(house: PushWorld) -> None:
    """Their engine is restarted, which another metric counts: the figure is for faults of theirs."""
    peer = house.connect()
    house.do(house.hub.restart)
    assert peer.wire.closed == (4000, "restarting")
    assert house.run(failed(house)) == 0


Subscriptions = type[StreamSubscription] | type[GroupSubscription]


def plant(monkeypatch: pytest.MonkeyPatch, kind: Subscriptions, name: str, peer: PushPeer) -> None:
    """The subscriptions of this peer fail there."""
    real = getattr(kind, name)

    def planted(self: Any, *arguments: Any, **named: Any) -> Any:
        return (fail if self.table.host is peer.push else real)(self, *arguments, **named)

    monkeypatch.setattr(kind, name, planted)


@pytest.mark.parametrize("event", ["room", "write", "write_live", "caught_up"])
def test_a_follower_that_fails_is_closed_and_sent_nothing_more(
    house: PushWorld, stored: Stored, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """With 4000, logged and counted; its client can go on from where it was. Others follow on."""
    peer, other = house.connect(), house.connect()
    plant(monkeypatch, StreamSubscription, event, peer)
    with capture_logs() as logs:
        if event == "write":
            stored.add([1])
        for one in (other, peer):
            house.do(one.say, "subscribe", sub="t", streams={"s": "0"})
        house.settle()
        for _ in range(3):
            stored.add([1])
            house.settle()
    assert peer.wire.closed == (4000, "internal")
    assert [one["op"] for one in peer.frames if one["op"] == "entries"] == []
    assert [(line["event"], line["log_level"]) for line in logs] == [("unexpected", "error")]
    assert house.run(failed(house)) == 1
    assert other.wire.closed is None
    assert [one["next"] for one in other.frames if one["op"] == "entries"]


@pytest.mark.parametrize("event", ["declines", "write", "begin"])
def test_a_consumer_that_fails_gives_back_what_it_did_not_send(
    house: PushWorld, stored: Stored, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """It is closed, and nothing is pending with it that its client never got."""
    stored.add([1, 1, 1])
    peer = house.connect()
    plant(monkeypatch, GroupSubscription, event, peer)
    with capture_logs():
        house.do(peer.say, "consume", sub="w", **WORK)
        house.settle()
    assert peer.wire.closed == (4000, "internal")
    assert held_by_consumers(house) == []
    house.do(peer.lose)
    again = house.connect()
    house.do(again.say, "consume", sub="w", **WORK)
    house.settle()
    assert [len(one["entries"]) for one in again.frames if one["op"] == "entries"] == [3]


@pytest.mark.parametrize(
    "event",
    ["receive", "receive_binary", "table.drain", "on_command_result", "table.revoke", "on_disconnect"],
)
def test_every_other_event_that_fails_ends_the_conversation(
    house: PushWorld, stored: Stored, event: str
) -> None:
    """And when the connection is gone nothing of it stays behind."""
    stored.add([1])
    peer, other = house.connect(failing(event)), house.connect()
    acts = {
        "receive": lambda: peer.say("ping"),
        "receive_binary": peer.push.received_binary,
        "table.drain": lambda: peer.push.drain(1_000),
        "on_command_result": lambda: peer.say("command", command=["PING"]),
        "table.revoke": lambda: other.say("consume", sub="w", **WORK),
        "on_disconnect": lambda: None,
    }
    with capture_logs() as logs:
        if event != "receive":
            house.do(peer.say, "subscribe", sub="t", streams={"s": "0"})
            house.do(peer.say, "consume", sub="w", **WORK)
        house.settle()
        house.do(acts[event])
        house.settle()
        assert event == "on_disconnect" or peer.wire.closed == (4000, "internal")
        house.do(peer.lose)
        house.settle()
    assert [line["event"] for line in logs] == ["unexpected"]
    assert peer.push.closed.done()
