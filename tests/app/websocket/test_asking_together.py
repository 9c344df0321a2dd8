"""What several sockets publish and acknowledge within one cycle: one command, answered one by one.

What is compared are two gateways at a moment that stands still: one whose sockets share nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

import pytest

from app.auth import Grant, Principal
from app.live import together
from app.live.together import Part
from app.settings import Settings
from engine import Call, errors, ids
from engine.commands import Acknowledge, Close, Command, XAck, XAdd, XGroupCreate, XLen, XPending
from engine.entries import body
from engine.replies import PendingSummary
from tests import halves
from tests.app.holding import holds
from tests.app.pushing import Json, PushPeer, PushWorld

SETTINGS: Final = Settings(log_requests="none")
SHORT: Final = {"a": "1"}
# What differs by who comes first, or by chance: a stream's generation.
_ID: Final = re.compile(r'[0-9]{13}-[0-9]+|(?<="generation": ")[0-9a-f]{16}')
# To whom a frame is said, and what.
Said = tuple[int, Json]


@pytest.fixture
def house() -> Iterator[PushWorld]:
    house = PushWorld(SETTINGS)
    yield house
    house.close()


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
    assert XAck(stream="w", group="g", ids=[ids.parse(entry_id) or 0]) in commands


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
    """Each is said how many of its IDs were pending; one that two name counts for the first."""
    one, two, three = follow(house, 3, 2)
    commands = sent(house, monkeypatch)
    asked = [(0, one), (1, [one[0], *two]), (2, ["1-1", three[0]])]
    say_at_once(house, [(place, {"op": "ack", "sub": "c", "ids": named, "ref": 7}) for place, named in asked])
    assert sum(isinstance(command, Acknowledge | XAck) for command in commands) == 1
    assert [answers(peer)[-1].get("acknowledged") for peer in house.peers] == [2, 2, 1]
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


def test_a_frame_is_stored_whole_or_not_at_all(house: PushWorld) -> None:
    """Two IDs are left: the one who asks for two of the rest is refused, who comes behind has the last."""
    for _ in range(3):
        house.connect()
    house.execute(XAdd(stream="s", bodies=[body([("a", b"1")])], ids=[ids.ID_MAX - 2]))
    say_at_once(house, [(0, publish(1)), (1, publish(1, entries=2)), (2, publish(1))])
    assert answers(house.peers[0])[0]["ids"] == [ids.format(ids.ID_MAX - 1)]
    assert answers(house.peers[1])[0]["problem"]["code"] == "stream_exhausted"
    assert answers(house.peers[2])[0]["ids"] == [ids.format(ids.ID_MAX)]


def test_a_fault_is_answered_to_each_and_tried_no_more(
    house: PushWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may have caused it."""
    for _ in range(2):
        house.connect()
    calls: list[Call] = []

    def fail(call: Call, _: object) -> object:
        calls.append(call)
        return [errors.internal()]

    with monkeypatch.context() as patch:
        patch.setattr(house.engine, "send", fail)
        say_at_once(house, [(0, publish(1)), (1, publish(1))])
    assert len(calls) == 1
    assert [answers(peer)[0]["problem"]["code"] for peer in house.peers] == ["internal"] * 2


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


def test_a_full_command_does_not_wait_for_the_end_of_the_cycle(
    house: PushWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four entries are as many as one takes here."""
    monkeypatch.setattr(together, "_ENTRIES_MAX", 4)
    for _ in range(3):
        house.connect()
    commands = sent(house, monkeypatch)

    def act() -> None:
        for peer in house.peers:
            peer.say(**publish(entries=2))
        assert len(commands) == 1

    house.do(act)
    house.settle()
    assert [len(command.bodies) for command in commands if isinstance(command, XAdd)] == [4, 2]


def test_entries_that_count_for_a_quota_are_sent_alone(
    house: PushWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' do not count for it."""
    for _ in range(2):
        house.connect()
    grant = Grant.from_value({"actions": ["write"], "streams": "*", "bytes_max": 10_000})
    house.peers[0].push.request.principal = Principal("p", [grant])
    commands = sent(house, monkeypatch)
    say_at_once(house, [(0, publish(1)), (1, publish(1))])
    assert len(commands) == 2


def _script(seed: int, given: Sequence[Sequence[str]]) -> list[list[Said]]:
    """What is said in each cycle."""
    random = Random(seed)

    def frame(place: int, ref: int) -> Json:
        named: Json = {"ref": ref} if random.random() < 0.7 else {}
        some = random.sample([*given[place], "1-1"], 2)
        return random.choice(
            [
                publish(stream=random.choice("sst"), entries=random.choice([1, 1, 3]), **named),
                publish(stream=random.choice("sst"), **named),
                {"op": "ack", "sub": "c", "ids": some, **named},
                {"op": "ack", "sub": "c", "ids": some[:1], **named},
                random.choice(
                    [
                        publish(stream="closed", **named),
                        publish(id="1-1", **named),
                        publish(stream="", **named),
                        publish(if_last_id="1-1", **named),
                        {"op": "ack", "sub": "none", "ids": some, **named},
                        {"op": "ack", "sub": "c", "ids": some, "delete": "keep", **named},
                        {"op": "ping", **named},
                        {"op": "command", "command": ["XLEN", f"s{place}"], **named},
                        publish(stream=f"s{place}", **named),
                        {"op": "unknown", **named},
                    ]
                ),
            ]
        )

    places = range(len(given))
    return [[(place := random.choice(places), frame(place, at)) for at in range(12)] for _ in range(20)]


@pytest.mark.parametrize("seed", range(halves.some(8)))
def test_frames_are_answered_as_where_nothing_is_shared(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Plain or not, refused or not: the same frames, and those of entries in the order of the asking. IDs
    differ by who comes first.
    """
    found = list[Any]()
    for is_small in (True, False):
        with monkeypatch.context() as patch:
            if not is_small:
                patch.setattr(Part, "is_small", property(lambda _: False))
            house = PushWorld(SETTINGS)
            given = follow(house, 3, 9)
            house.execute(XAdd(stream="closed", bodies=[body([("a", b"1")])]))
            house.execute(Close(stream="closed"))
            answered = list[Any]()
            for said in _script(seed, given):
                before = [len(peer.frames) for peer in house.peers]
                say_at_once(house, said)
                answered += [_plain(peer.frames[at:]) for peer, at in zip(house.peers, before, strict=True)]
            lengths = [house.execute(XLen(stream=stream)) for stream in ("s", "t", "s0")]
            found.append([answered, lengths, pending(house)])
            house.close()
    assert found[0] == found[1]


def _plain(frames: Sequence[Json]) -> tuple[list[str], list[str]]:
    """What was answered, and in which order entries were stored; what waits for no log comes first."""
    plain = [_ID.sub("ID", json.dumps(frame)) for frame in frames]
    return sorted(plain), [text for text in plain if "duplicate" in text]
