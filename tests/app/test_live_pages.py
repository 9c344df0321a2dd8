"""Live pages: what is published is written at once to those who have all else, until something changes.

Knows: what between two pages ends a follower, moves it or makes it wait.
Must never know: by which way a page leaves.
"""

from collections.abc import Callable
from typing import Final

import pytest

from app.live.sessions import AccessEnd
from app.settings import Settings
from engine.commands.types import Delete
from tests.app.pushing import Json, PushPeer, PushWorld, Stored, world_of

Change = Callable[[PushWorld, PushPeer], None]


world = world_of(Settings(log_requests="none", count_max=100))


def following(world: PushWorld, **members: object) -> PushPeer:
    """A socket that follows `s`, and has had one live page of it."""
    peer = world.connect()
    world.do(peer.say, "subscribe", sub="t", streams={"s": "$"}, **members)
    world.settle()
    published(world, "s", 1)
    return peer


def published(world: PushWorld, stream: str, *numbers: int) -> None:
    """Publish entries with these numbers as their IDs, each by itself."""
    for number in numbers:
        Stored(world, stream).add([number << 64])
        world.settle()


def said(peer: PushPeer) -> list[str]:
    """What came, but for what every conversation begins with: entries by their IDs, all else by name."""
    found: list[str] = []
    for frame in peer.frames:
        found += [entry["id"] for entry in frame["entries"]] if frame["op"] == "entries" else [_name(frame)]
    assert found[:3] == ["hello", "ok", "caught_up"]
    return found[3:]


def _name(frame: Json) -> str:
    return f"{frame['op']} {frame['reason']}" if "reason" in frame else str(frame["op"])


def unsubscribe(world: PushWorld, peer: PushPeer) -> None:
    world.do(peer.say, "unsubscribe", sub="t")


def drain(world: PushWorld, peer: PushPeer) -> None:
    world.do(peer.push.drain, 60_000)


def end_access(world: PushWorld, peer: PushPeer) -> None:
    world.do(peer.push._end_access, AccessEnd.REVOKED)  # noqa: SLF001 - as its session does


def fail(world: PushWorld, peer: PushPeer) -> None:
    world.do(peer.push.fail, RuntimeError("planted"))


def delete(world: PushWorld, _: PushPeer) -> None:
    world.execute(Delete(streams=["s"]))


def stall(world: PushWorld, peer: PushPeer) -> None:
    """With a frame that waits."""
    peer.stall()
    world.do(peer.say, "ping")


def stall_and_go_on(world: PushWorld, peer: PushPeer) -> None:
    stall(world, peer)
    published(world, "s", 2)
    world.do(peer.release)
    world.settle()


def follow_more(world: PushWorld, peer: PushPeer) -> None:
    """With another subscription, of a stream that has entries."""
    published(world, "other", 1)
    world.do(peer.say, "subscribe", sub="u", streams={"other": "0"})


CHANGES: Final[dict[Change, list[str]]] = {
    unsubscribe: ["1-0", "ok"],
    drain: ["1-0", "goaway", "4001"],
    end_access: ["1-0", "4500"],
    fail: ["1-0", "4000"],
    delete: ["1-0", "gap deleted", "2-0", "3-0"],
    stall: ["1-0"],
    stall_and_go_on: ["1-0", "pong", "2-0", "3-0"],
    follow_more: ["1-0", "ok", "1-0", "caught_up", "2-0", "3-0"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_page_follows_what_changed_before_it(world: PushWorld, change: Change) -> None:
    """Ended followers get nothing, all others what they have not had, in order."""
    peer = following(world)
    change(world, peer)
    published(world, "s", *[number for number in (2, 3) if f"{number}-0" not in said(peer)])
    closed = [] if peer.wire.closed is None else [str(peer.wire.closed[0])]
    assert said(peer) + closed == CHANGES[change]


def test_a_page_is_not_written_for_the_last_credit_alone(world: PushWorld) -> None:
    """`paused` follows it; then nothing, until there is credit again."""
    peer = following(world, credit=2)
    published(world, "s", 2, 3)
    assert said(peer) == ["1-0", "2-0", "paused credit"]
    world.do(peer.say, "credit", sub="t", n=2)
    world.settle()
    published(world, "s", 4, 5)
    assert said(peer)[3:] == ["3-0", "caught_up", "4-0", "paused credit"]
