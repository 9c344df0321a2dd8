"""What several sockets publish and acknowledge within one cycle: one command, answered one by one.

What goes together, and how the reply is each one's, is in tests/app/test_joiner.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from app.settings import Settings
from engine import Call, ids
from engine.commands.base import Command
from engine.commands.types import XAck, XAdd, XGroupCreate, XLen, XPending
from engine.commands.weir_commands import Acknowledge, Close
from engine.entries import body
from engine.replies import PendingSummary
from tests.app.holding import holds
from tests.app.pushing import Json, PushPeer, PushWorld, world_of

SETTINGS: Final = Settings(log_requests="none")
SHORT: Final = {"a": "1"}
# To whom a frame is said, and what.
Said = tuple[int, Json]


house = world_of(SETTINGS)


def say_at_once(house: PushWorld, said: Sequence[Said]) -> None:
    """Frames that arrive within one cycle."""

    def act() -> None:
        for place, frame in said:
            house.peers[place].say(**frame)

    house.do(act)
    house.settle()


def sent(house: PushWorld, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """The commands that the engine gets from now on."""
    found: list[Command] = []
    send = house.engine.send

    def note(call: Call, done: Any) -> Any:
        found.extend(call.commands)
        return send(call, done)

    monkeypatch.setattr(house.engine, "send", note)
    return found


def publish(ref: int | None = None, stream: str = "s", entries: int = 1, **members: Any) -> Json:
    """A frame."""
    named = {} if ref is None else {"ref": ref}
    return {"op": "publish", "stream": stream, "entries": [{"fields": SHORT}] * entries, **named, **members}


def answers(peer: PushPeer) -> list[Json]:
    """What answers its frames."""
    return [frame for frame in peer.frames if frame["op"] in ("ok", "error", "pong")]


def follow(house: PushWorld, consumers: int, entries: int) -> list[list[str]]:
    """A group `g` of `w`, whose sockets have been given this number of entries each. Returns their IDs."""
    house.execute(XGroupCreate(stream="w", group="g", start=0, mkstream=True))
    for place in range(consumers):
        house.connect()
        house.do(
            house.peers[-1].say, "consume", sub="c", stream="w", group="g", consumer=f"c{place}",
            credit=entries,
        )  # fmt: skip
        house.settle()
        house.execute(XAdd(stream="w", bodies=[body([("a", b"1")])] * entries))
        house.settle()
    given = [
        [entry["id"] for frame in peer.frames if frame["op"] == "entries" for entry in frame["entries"]]
        for peer in house.peers
    ]
    assert [*map(len, given)] == [entries] * consumers
    return given


def pending(house: PushWorld) -> int:
    """How many entries of the group are pending."""
    summary = house.execute(XPending(stream="w", group="g"))
    assert isinstance(summary, PendingSummary)
    return summary.count


def test_entries_of_several_sockets_are_one_command(
    house: PushWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the IDs of its own, in the order of their coming."""
    commands = sent(house, monkeypatch)
    for _ in range(3):
        house.connect()
    say_at_once(house, [(0, publish(1)), (1, publish(1, entries=2)), (2, publish()), (0, publish(2))])
    (command,) = commands
    assert isinstance(command, XAdd)
    assert len(command.bodies) == 5
    first, third = [answer["ids"] for answer in answers(house.peers[0])]
    (second,) = [answer["ids"] for answer in answers(house.peers[1])]
    ms = first[0].partition("-")[0]
    assert (first, second, third) == ([f"{ms}-0"], [f"{ms}-1", f"{ms}-2"], [f"{ms}-4"])


def test_what_one_socket_asks_alone_is_the_command_itself(
    house: PushWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nothing is shared."""
    ((entry_id,),) = follow(house, 1, 1)
    commands = sent(house, monkeypatch)
    say_at_once(house, [(0, {"op": "ack", "sub": "c", "ids": [entry_id]})])
    wanted = [ids.parse(entry_id) or 0]
    assert Acknowledge(stream="w", group="g", ids=wanted, holders=["c0"]) in commands


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_socket_that_waits_holds_nothing_of_what_was_shared(
    house: PushWorld, count: int, *, refused: bool
) -> None:
    """Neither of its own nor of others that came with it: there may be thousands of them."""
    text = "x" * 10_000
    for _ in range(count):
        house.connect()
    if refused:
        house.execute(Close(stream="s", add=XAdd(stream="s", bodies=[body([("a", b"1")])])))
    said = {**publish(1), "entries": [{"fields": {"a": text}}]}
    say_at_once(house, [(place, said) for place in range(count)])
    for peer in house.peers:
        (answer,) = answers(peer)
        assert answer["op"] == ("error" if refused else "ok")
        assert peer.push._shared is not None  # noqa: SLF001
        assert not holds(peer.push._shared, text[:100].encode())  # noqa: SLF001


def test_acknowledgements_of_several_sockets_are_one_command(
    house: PushWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is said how many of its own were pending, and which others hold by now."""
    one, two, three = follow(house, 3, 2)
    commands = sent(house, monkeypatch)
    asked = [(0, one), (1, [one[0], three[1], *two]), (2, ["1-1", three[0]])]
    say_at_once(house, [(place, {"op": "ack", "sub": "c", "ids": named, "ref": 7}) for place, named in asked])
    assert sum(isinstance(command, Acknowledge | XAck) for command in commands) == 1
    found = [(answers(peer)[-1]["acknowledged"], answers(peer)[-1].get("not_held")) for peer in house.peers]
    assert found == [(2, None), (2, [three[1]]), (1, None)]
    assert pending(house) == 1


AFTER: Final[dict[str, Callable[[str], Json]]] = {
    "a command": lambda _: {"op": "command", "command": ["XLEN", "s"], "ref": "after"},
    "another stream": lambda _: publish(stream="t"),
    "an acknowledgement": lambda given: {"op": "ack", "sub": "c", "ids": [given]},
    "a condition": lambda _: publish(if_last_id="1-1"),
    "a synced one": lambda _: publish(durability="fsync"),
    "a large one": lambda _: publish(entries=101),
    "a return": lambda given: {"op": "nack", "sub": "c", "ids": [given]},
}


@pytest.mark.parametrize("name", AFTER)
def test_what_a_socket_asks_next_comes_behind(
    house: PushWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever it is, within the same cycle."""
    ((given,),) = follow(house, 1, 1)
    house.connect()
    commands = sent(house, monkeypatch)
    say_at_once(house, [(0, publish(1)), (1, publish(1)), (0, AFTER[name](given)), (1, publish(2))])
    first, second, *_ = commands
    assert isinstance(first, XAdd)
    assert (first.stream, len(first.bodies)) == ("s", 2)
    assert second != first
    assert house.execute(XLen(stream="s")) == {"a synced one": 4, "a large one": 104}.get(name, 3)
    if name == "a command":
        (result,) = [answer["result"] for answer in answers(house.peers[0]) if "result" in answer]
        assert result == 2


def test_who_leaves_has_published_all_the_same(house: PushWorld) -> None:
    """And keeps no answer from others."""
    for _ in range(2):
        house.connect()

    def act() -> None:
        for peer in house.peers:
            peer.say(**publish(1))
        house.peers[0].lose()

    house.do(act)
    house.settle()
    assert house.execute(XLen(stream="s")) == 2
    assert len(answers(house.peers[1])) == 1
