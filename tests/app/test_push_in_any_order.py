"""Followers through feeds, pump and session, in any order of events: nothing is lost without a gap.

Over WebSocket with and without credit, and over server-sent events: published one by one and in batches, with
readers that stall and go on, trims that overtake, and IDs that are neighbours.
"""

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.settings import Settings
from engine import ids
from tests import halves
from tests.app.pushing import STEPS, Json, PushPeer, PushWorld, Stored
from tests.app.test_sse import EventReader

SETTINGS = Settings(log_requests="none", count_max=100)
STREAMS = ("s", "t")


class ModelFollower:
    """One subscription, over either kind of connection, and the cursor that its client has by now."""

    def __init__(self, peer: PushPeer | EventReader, name: str, credit: int | None) -> None:
        self.peer = peer
        self.name = name
        self.granted = credit
        self.got = 0
        self.cursors: dict[str, int] = {}
        self._read = 0

    def news(self) -> list[Json]:
        """What has come since the last time, each in the form of the socket."""
        events = [] if isinstance(self.peer, PushPeer) else self.peer.events
        every = self.peer.frames if isinstance(self.peer, PushPeer) else [_framed(event) for event in events]
        news, self._read = every[self._read :], len(every)
        return [one for one in news if one.get("sub", self.name) == self.name]

    def check(self, streams: dict[str, Stored]) -> None:
        """Follow what came as a client does: each entry is the next one, but for reported gaps."""
        for frame in self.news():
            if frame["op"] == "ok" and frame.get("ref") == self.name:
                self.cursors = {name: _id(text) for name, text in frame["next"].items()}
            elif frame["op"] == "gap":
                self._check_gap(frame, streams[frame["stream"]])
            elif frame["op"] == "entries":
                for entry in frame["entries"]:
                    self._pass(streams[frame["stream"]], _id(entry["id"]))
                assert _id(frame["next"]) == self.cursors[frame["stream"]]
            else:
                assert frame["op"] in ("hello", "ok", "caught_up", "paused", "heartbeat"), frame
        assert self.granted is None or self.got <= self.granted

    def _check_gap(self, frame: Json, stored: Stored) -> None:
        after, before = _id(frame["requested"]), _id(frame["first_available"])
        cursor = self.cursors[stored.stream]
        assert after == cursor or (cursor == 0 and after > 0)
        if "reason" in frame:
            assert (frame["reason"], _id(frame["next"]) in stored.all) == ("ahead", True)
            assert _id(frame["next"]) < cursor
            self.cursors[stored.stream] = _id(frame["next"])
            return
        missed = [one for one in stored.all if cursor < one < before]
        assert missed
        assert missed[-1] not in stored.live
        assert frame["lost"] in (None, len(missed))
        self.cursors[stored.stream] = before - 1

    def _pass(self, stored: Stored, entry_id: int) -> None:
        cursor = self.cursors[stored.stream]
        skipped = [one for one in stored.all if cursor < one < entry_id]
        # From the beginning on is from the oldest that is kept.
        assert entry_id > cursor
        assert not skipped or (cursor == 0 and skipped[-1] not in stored.live)
        assert entry_id in stored.all
        self.cursors[stored.stream] = entry_id
        self.got += 1

    def check_complete(self, streams: dict[str, Stored]) -> None:
        """All is quiet: it has everything that there is, or nothing is left of its credit."""
        due = sum(one > cursor for name, cursor in self.cursors.items() for one in streams[name].live)
        assert not due or self.got == self.granted, f"{self.name} misses {due} entries"


def _id(text: str) -> int:
    found = ids.parse(text)
    assert found is not None
    return found


def _framed(event: Any) -> Json:
    """An event as the socket would have it."""
    data = json.loads(event.data)
    if event.name == "entry":
        return {"op": "entries", "stream": "s", "entries": [data], "next": data["id"]}
    return {"op": event.name, "stream": "s", **data}


class Following(RuleBasedStateMachine):
    """Followers of two streams."""

    def __init__(self) -> None:
        super().__init__()
        self.house = PushWorld(SETTINGS)
        self.streams = {name: Stored(self.house, name) for name in STREAMS}
        self.sockets: list[PushPeer] = []
        self.followers: list[ModelFollower] = []
        self.names = iter(f"n{number}" for number in range(1_000))

    @initialize()
    def begin(self) -> None:
        self.sockets = [self.house.connect(), self.house.connect()]
        self.streams["s"].add([5 << 64, 1, 1])

    @rule(stream=st.sampled_from(STREAMS), steps=st.lists(STEPS, min_size=1, max_size=5))
    def publish_one_by_one(self, stream: str, steps: list[int]) -> None:
        for step in steps:
            self.streams[stream].add([step])
            self.house.settle()

    @rule(stream=st.sampled_from(STREAMS), steps=st.lists(STEPS, min_size=1, max_size=5))
    def publish_together(self, stream: str, steps: list[int]) -> None:
        self.streams[stream].add(steps)

    @precondition(lambda self: len(self.followers) < 6)
    @rule(
        socket=st.integers(0, 1),
        streams=st.sampled_from([("s",), ("s", "t"), ("t",)]),
        after=st.sampled_from(["0", "$", "5-0", "5-1", "5-2"]),
        credit=st.sampled_from([None, 0, 1, 2, 3, 5]),
        batch_max=st.integers(1, 3),
    )
    def subscribe(
        self, socket: int, streams: tuple[str, ...], after: str, credit: int | None, batch_max: int
    ) -> None:
        follower = ModelFollower(self.sockets[socket], next(self.names), credit)
        follower._read = len(self.sockets[socket].frames)  # noqa: SLF001
        members: Json = {"streams": dict.fromkeys(streams, after), "batch_max": batch_max}
        if credit is not None:
            members["credit"] = credit
        name = follower.name
        self.house.do(self.sockets[socket].say, "subscribe", ref=name, sub=name, **members)
        self.followers.append(follower)

    @precondition(lambda self: len(self.followers) < 6)
    @rule(after=st.sampled_from(["0", "5-0", "5-1", "5-2"]))
    def tail(self, after: str) -> None:
        """Over server-sent events."""

        def begin() -> None:
            reader = EventReader(self.house.app, "/v1/streams/s/tail", f"after={after}")
            follower = ModelFollower(reader, "sse", None)
            follower.cursors = {"s": _id(after if "-" in after else "0-0")}
            self.followers.append(follower)

        self.house.do(begin)

    @precondition(lambda self: any(one.granted is not None for one in self.followers))
    @rule(data=st.data(), n=st.integers(1, 5))
    def grant(self, data: st.DataObject, n: int) -> None:
        self._grant(data.draw(st.sampled_from([one for one in self.followers if one.granted is not None])), n)

    def _grant(self, follower: ModelFollower, n: int) -> None:
        assert isinstance(follower.peer, PushPeer)
        assert follower.granted is not None
        follower.granted += n
        self.house.do(follower.peer.say, "credit", sub=follower.name, n=n)

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def stall(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.followers)).peer.stall()

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.house.do(data.draw(st.sampled_from(self.followers)).peer.release)

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        follower = data.draw(st.sampled_from(self.followers))
        if isinstance(follower.peer, PushPeer):
            self.followers.remove(follower)
            self.house.do(follower.peer.say, "unsubscribe", sub=follower.name)

    @rule(stream=st.sampled_from(STREAMS), kept=st.integers(0, 3))
    def trim(self, stream: str, kept: int) -> None:
        self.streams[stream].trim(kept)

    @rule()
    def some_happens(self) -> None:
        self.house.step()

    @rule()
    def all_is_quiet(self) -> None:
        for one in self.followers:
            self.house.do(one.peer.release)
        self.house.settle()
        for one in self.followers:
            one.check(self.streams)
            one.check_complete(self.streams)

    @invariant()
    def what_came_is_right(self) -> None:
        for one in self.followers:
            one.check(self.streams)
        assert [one.wire.closed for one in self.sockets if one.wire.closed] == []

    def teardown(self) -> None:
        try:
            if self.sockets:
                self._end_well()
        finally:
            readers = [one.peer for one in self.followers if isinstance(one.peer, EventReader)]
            for reader in readers:
                reader.release()
                self.house.run(reader.leave())
            self.house.close()

    def _end_well(self) -> None:
        """A follower without credit gets some, and then one more entry: nothing is missing before it."""
        self.all_is_quiet()
        for follower in self.followers:
            if follower.granted is not None:
                self._grant(follower, 1_000)
        self.house.settle()
        for stored in self.streams.values():
            stored.add([1])
        self.all_is_quiet()


Following.TestCase.settings = settings(max_examples=halves.some(60), stateful_step_count=30, deadline=None)
TestFollowing = Following.TestCase
