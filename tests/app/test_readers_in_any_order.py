"""Readers over every door, in any order of events: each entry is somewhere, once; no loss is without a gap.

Followers by WebSocket, server-sent events and Durable Streams, and consumers of one group on the same sockets
or by events: published one by one and in batches, with IDs that are neighbours, readers that stall, are lost
and come back, trims that overtake, and others that claim and settle.
"""

import json
from collections.abc import Iterator

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.doors.durable import offsets
from app.live.consumer import CHECK_S
from app.live.stalls import STALL_S_MAX
from app.settings import Settings
from engine import ids
from engine.commands import execution
from engine.commands.types import Claim, Nack, NackMode, XAck, XClaim, XNack, XPendingRange
from engine.commands.weir_commands import Close, DescribeGroup, EnsureGroup
from engine.replies import GroupInfo, PendingList
from tests import halves
from tests.app.eventsource import ReceivedEvent
from tests.app.pushing import STEPS, Json, PushPeer, PushWorld, Stored
from tests.app.test_sse import EventReader

SETTINGS = Settings(log_requests="none", count_max=100, durable_streams=True)
NAMES = ("a", "b")
STREAMS = ("s", "t")
WHERE: Json = {"stream": "s", "group": "g"}
# Paths of followers by events, and the streams that each follows.
TAILS = {
    "/v1/streams/s/tail": ("s",),
    "/v1/tail?stream=s&stream=t": ("s", "t"),
    "/v1/stream/s?live=sse": ("s",),
}
DURABLE_S = 55
# Without a meaning here, or checked elsewhere.
SAID = {"hello", "ok", "caught_up", "paused", "resumed", "heartbeat"}
Peer = PushPeer | EventReader


def id_of(text: str) -> int:
    found = ids.parse(text)
    assert found is not None, text
    return found


def framed(event: ReceivedEvent) -> Json:
    """An event as a socket would have it."""
    data = json.loads(event.data)
    if event.name == "data":
        return {"op": "entries", "stream": "s", "entries": data}
    if event.name == "entry":
        return {"op": "entries", "stream": "s", **data, "entries": [data], "next": data["id"]}
    if event.name == "control":
        place = offsets.parse(data["streamNextOffset"])
        assert isinstance(place, offsets.Offset)
        name = "closed" if "streamClosed" in data else "place"
        return {"op": name, "stream": "s", "next": ids.format(place.after)}
    return {"op": event.name, "stream": "s", **data}


class Model:
    """A reader: `name` is that of its subscription, where it has one."""

    def __init__(self, peer: Peer, name: str, granted: int | None) -> None:
        self.name = name
        self.granted = granted
        self.closed: set[str] = set()
        self.has_ended = False
        self.go_to(peer)

    def go_to(self, peer: Peer) -> None:
        """Be on this connection from now on."""
        self.peer = peer
        self._read = len(peer.frames) if isinstance(peer, PushPeer) else 0

    def news(self) -> Iterator[Json]:
        """What has come since the last time."""
        peer, start = self.peer, self._read
        if isinstance(peer, PushPeer):
            self._read = len(peer.frames)
            found = [one for one in peer.frames[start:] if one.get("sub", self.name) == self.name]
        else:
            self._read = len(peer.events)
            found = [framed(event) for event in peer.events[start:]]
        for one in found:
            if one["op"] == "closed":
                self.closed.add(one["stream"])
            elif one["op"] in ("revoked", "end", "drained"):
                self.has_ended = True
            else:
                yield one

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return self.has_ended or (isinstance(self.peer, EventReader) and self.peer.request.done())


class Follower(Model):
    """With the cursors that its client has by now."""

    def __init__(self, peer: Peer, name: str, granted: int | None, cursors: dict[str, int]) -> None:
        super().__init__(peer, name, granted)
        self.got = 0
        self.cursors = cursors
        # Of one by events: its path, and when its connection began.
        self.path = ""
        self.since_s = 0.0

    def check(self, streams: dict[str, Stored]) -> None:
        """Follow what came as a client does: each entry is the next one, but for reported gaps."""
        for frame in self.news():
            if frame["op"] == "ok" and frame.get("ref") == self.name:
                self.cursors = {name: id_of(text) for name, text in frame["next"].items()}
            elif frame["op"] == "gap":
                self._check_gap(frame, streams[frame["stream"]])
            elif frame["op"] == "entries":
                for entry in frame["entries"]:
                    self._pass(streams[frame["stream"]], id_of(entry["id"]))
                if "next" in frame:
                    assert id_of(frame["next"]) == self.cursors[frame["stream"]]
            elif frame["op"] == "place":
                place, cursor = id_of(frame["next"]), self.cursors["s"]
                assert cursor <= place
                assert [one for one in streams["s"].live if cursor < one <= place] == []
                self.cursors["s"] = place
            else:
                assert frame["op"] in SAID, frame
        assert self.granted is None or self.got <= self.granted

    def _check_gap(self, frame: Json, stored: Stored) -> None:
        after, before = id_of(frame["requested"]), id_of(frame["first_available"])
        cursor = self.cursors[stored.stream]
        assert after == cursor or (cursor == 0 and after > 0)
        if "reason" in frame:
            assert (frame["reason"], id_of(frame["next"]) in stored.all) == ("ahead", True)
            assert id_of(frame["next"]) < cursor
            self.cursors[stored.stream] = id_of(frame["next"])
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

    def missed(self, streams: dict[str, Stored]) -> bool:
        """Whether something behind its cursors is gone."""
        return any(
            one > cursor and one not in streams[name].live
            for name, cursor in self.cursors.items()
            for one in streams[name].all
        )

    def check_complete(self, streams: dict[str, Stored]) -> None:
        """All is quiet: it has everything that there is, or nothing is left of its credit."""
        due = sum(one > cursor for name, cursor in self.cursors.items() for one in streams[name].live)
        assert not due or self.got == self.granted, f"{self.name} misses {due} entries"


class Worker(Model):
    """With what its client was sent."""

    def __init__(self, peer: Peer, sub: str, name: str, granted: int, handed: dict[int, int]) -> None:
        super().__init__(peer, sub, granted)
        self.consumer = name
        self.received: list[int] = []
        # How often others had been let have each entry when it began.
        self.handed = handed

    def follow(self) -> list[int]:
        """The entries that have come since the last time."""
        came: list[int] = []
        for frame in self.news():
            assert frame["op"] in ("entries", "gap", *SAID), frame
            came += [id_of(entry["id"]) for entry in frame.get("entries", ())]
        self.received += came
        return came


class Readers(RuleBasedStateMachine):
    """Followers of two streams and two consumers of one of them, on two sockets or by events; and a third
    consumer without a connection.
    """

    def __init__(self) -> None:
        super().__init__()
        # No second brings a sync: that is a thread, with a time of its own.
        self.house = PushWorld(SETTINGS, fsync="no")
        self.streams = {name: Stored(self.house, name) for name in STREAMS}
        self.stored = self.streams["s"]
        self.sockets: list[PushPeer] = []
        self.followers: list[Follower] = []
        self.workers: dict[str, Worker] = {}
        # All by events, those that have left too; and since when a connection is stalled.
        self.events: list[EventReader] = []
        self.stalled: dict[Peer, float] = {}
        self.names = iter(f"n{number}" for number in range(1_000))
        # What the clients of each name have ever got, or may not have got for its place was taken over.
        self.known: dict[str, set[int]] = {name: set() for name in NAMES}
        # Names whose place was taken over: what lay in the socket then, or was being read, is history.
        self.taken_over: set[str] = set()
        self.acknowledged: set[int] = set()
        # How often each entry was released or claimed.
        self.handed: dict[int, int] = {}

    # ---- the engine's account

    def owners(self) -> dict[int, str | None]:
        """The owner of each pending entry, or None; no event passes meanwhile."""
        look = XPendingRange(**WHERE, start=0, end=ids.ID_MAX, count=10_000)
        found = execution.execute(self.house.engine._keyspace, look, 1).reply  # noqa: SLF001
        assert isinstance(found, PendingList)
        owners = {one.id: one.consumer for one in found.entries}
        assert len(owners) == len(found.entries)
        return owners

    def unread(self) -> list[int]:
        """What was not delivered yet."""
        found = execution.execute(self.house.engine._keyspace, DescribeGroup(**WHERE), 1).reply  # noqa: SLF001
        assert isinstance(found, GroupInfo)
        return [one for one in self.stored.live if one > found.last_delivered_id]

    def held_by(self, name: str | None) -> list[int]:
        return [one for one, owner in self.owners().items() if owner == name]

    # ---- publishing

    @initialize()
    def begin(self) -> None:
        self.sockets = [self.house.connect(), self.house.connect()]
        self.stored.add([5 << 64, 1, 1])
        self.house.execute(EnsureGroup(**WHERE, start=0))
        self.consume(0, "a", 2, 2)
        self.consume(None, "b", 1, 1)
        self.house.settle()

    @rule(stream=st.sampled_from(STREAMS), steps=st.lists(STEPS, min_size=1, max_size=5))
    def publish_one_by_one(self, stream: str, steps: list[int]) -> None:
        for step in steps:
            self.streams[stream].add([step])
            self.house.settle()

    @rule(stream=st.sampled_from(STREAMS), steps=st.lists(STEPS, min_size=1, max_size=5))
    def publish_together(self, stream: str, steps: list[int]) -> None:
        self.streams[stream].add(steps)

    @rule(stream=st.sampled_from(STREAMS), kept=st.integers(0, 4))
    def trim(self, stream: str, kept: int) -> None:
        self.streams[stream].trim(kept)

    # ---- readers that begin

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
        name = next(self.names)
        members: Json = {"streams": dict.fromkeys(streams, after), "batch_max": batch_max}
        if credit is not None:
            members["credit"] = credit
        self.followers.append(Follower(self.sockets[socket], name, credit, {}))
        self.house.do(self.sockets[socket].say, "subscribe", ref=name, sub=name, **members)

    @precondition(lambda self: len(self.followers) < 6)
    @rule(path=st.sampled_from([*TAILS]), after=st.sampled_from(["0", "0", "5-0", "5-1", "5-2"]))
    def follow_by_events(self, path: str, after: str) -> None:
        place = 0 if after == "0" or "?stream" in path else id_of(after)
        follower = Follower(self._events(path, place), "", None, dict.fromkeys(TAILS[path], place))
        follower.path, follower.since_s = path, self.house.clock.monotonic()
        self.followers.append(follower)

    def _events(self, path: str, after: int, **headers: str) -> EventReader:
        path, _, query = path.partition("?")
        place = f"after={ids.format(after)}" if after else "after=0"
        if "live" in query:
            place = "offset=" + (offsets.write(after, "").decode().rstrip("_") if after else "-1")

        async def begun() -> EventReader:
            headers.setdefault("accept", "text/event-stream")
            return EventReader(self.house.app, path, f"{query}&{place}".lstrip("&"), **headers)

        self.events.append(self.house.run(begun()))
        return self.events[-1]

    @rule(
        socket=st.sampled_from([0, 1, None, None]),
        name=st.sampled_from(NAMES),
        credit=st.integers(1, 4),
        batch_max=st.integers(1, 3),
    )
    def consume(self, socket: int | None, name: str, credit: int, batch_max: int) -> None:
        """On a socket or by events; it takes the place of one of its name."""
        before, sub = self.workers.get(name), next(self.names)
        if before is not None:
            self._take_note(before)
            self.taken_over.add(name)
        if socket is None:
            peer: Peer = self._events_of(name, credit)
        else:
            peer = self.sockets[socket]
        self.workers[name] = Worker(peer, sub, name, credit, dict(self.handed))
        if isinstance(peer, PushPeer):
            members = {"consumer": name, "credit": credit, "batch_max": batch_max}
            self.house.do(peer.say, "consume", sub=sub, **WHERE, **members)

    def _events_of(self, name: str, credit: int) -> EventReader:
        path = f"/v1/streams/s/groups/g/consumers/{name}/stream"

        async def begun() -> EventReader:
            return EventReader(self.house.app, path, f"max_in_flight={credit}", accept="text/event-stream")

        self.events.append(self.house.run(begun()))
        return self.events[-1]

    # ---- readers that end

    @precondition(lambda self: any(isinstance(one.peer, PushPeer) for one in self.followers))
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        follower = self._any_follower(data, PushPeer)
        self.followers.remove(follower)
        assert isinstance(follower.peer, PushPeer)
        self.house.do(follower.peer.say, "unsubscribe", sub=follower.name)

    @precondition(lambda self: any(isinstance(one.peer, EventReader) for one in self.followers))
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A client by events goes on from what it has, on another connection."""
        follower = self._any_follower(data, EventReader)
        assert isinstance(follower.peer, EventReader)
        self.house.do(follower.peer.lose)
        self.house.settle()
        follower.check(self.streams)
        last_id = follower.peer.parser.last_id
        if last_id:
            places = last_id.rpartition(".")[2].split("~")
            follower.cursors = dict(zip(TAILS[follower.path], map(id_of, places), strict=True))
        headers = {"last_event_id": last_id} if last_id else {}
        after = 0 if len(follower.cursors) > 1 else follower.cursors["s"]
        follower.go_to(self._events(follower.path, after, **headers))
        follower.since_s = self.house.clock.monotonic()

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), frames=st.integers(0, 2))
    def lose(self, data: st.DataObject, frames: int) -> None:
        """The connection breaks; what never left has no owner again."""
        self._lose(self._any(data).peer, frames)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), steps=st.lists(STEPS, min_size=1, max_size=4), frames=st.integers(0, 2))
    def lose_with_entries_on_their_way(self, data: st.DataObject, steps: list[int], frames: int) -> None:
        """They were handed to a client that has room, takes nothing, and then leaves."""
        if pending := list(self.owners()):
            self._settle("ack", pending)
        self.all_is_quiet()
        if not self.workers:
            return
        peer = self.workers[data.draw(st.sampled_from(sorted(self.workers)))].peer
        self._stall(peer)
        self.publish_one_by_one("s", steps)
        self._lose(peer, frames)

    def _lose(self, peer: Peer, frames: int) -> None:
        if isinstance(peer, PushPeer):
            self.house.do(peer.lose, frames)
            self.sockets[self.sockets.index(peer)] = self.house.connect()
        else:
            self.house.do(peer.lose)
        self.house.settle()
        self.followers = [one for one in self.followers if one.peer is not peer]
        for worker in [one for one in self.workers.values() if one.peer is peer]:
            self._take_note(worker)
            name = worker.consumer
            del self.workers[name]
            assert name in self.taken_over or {*self.held_by(name)} <= self.known[name]

    # ---- what readers do

    @property
    def readers(self) -> list[Model]:
        return [*self.followers, *self.workers.values()]

    def _any(self, data: st.DataObject) -> Model:
        return self.readers[data.draw(st.integers(0, len(self.readers) - 1))]

    def _any_follower(self, data: st.DataObject, kind: type[Peer]) -> Follower:
        there = [one for one in self.followers if isinstance(one.peer, kind)]
        return there[data.draw(st.integers(0, len(there) - 1))]

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def stall(self, data: st.DataObject) -> None:
        self._stall(self._any(data).peer)

    def _stall(self, peer: Peer) -> None:
        self.stalled.setdefault(peer, self.house.clock.monotonic())
        peer.stall()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self._release(self._any(data).peer)

    def _release(self, peer: Peer) -> None:
        if self.house.clock.monotonic() - self.stalled.get(peer, self.house.clock.monotonic()) < STALL_S_MAX:
            self.stalled.pop(peer, None)
        self.house.do(peer.release)

    @precondition(lambda self: any(self._has_credit(one) for one in self.readers))
    @rule(data=st.data(), n=st.integers(1, 5))
    def grant(self, data: st.DataObject, n: int) -> None:
        there = [one for one in self.readers if self._has_credit(one)]
        self._grant(there[data.draw(st.integers(0, len(there) - 1))], n)

    def _has_credit(self, reader: Model) -> bool:
        return isinstance(reader.peer, PushPeer) and reader.granted is not None

    def _grant(self, reader: Model, n: int) -> None:
        assert isinstance(reader.peer, PushPeer)
        assert reader.granted is not None
        reader.granted += n
        self.house.do(reader.peer.say, "credit", sub=reader.name, n=n)

    # ---- settling

    @precondition(lambda self: any(one.received for one in self.workers.values()))
    @rule(data=st.data(), op=st.sampled_from(["ack", "ack", "nack"]))
    def settle_some(self, data: st.DataObject, op: str) -> None:
        """By who was sent them, whether or not it still has them."""
        having = sorted(name for name, one in self.workers.items() if one.received)
        worker = self.workers[data.draw(st.sampled_from(having))]
        recent = sorted(set(worker.received[-4:]))
        chosen = data.draw(st.lists(st.sampled_from(recent), min_size=1, max_size=3, unique=True))
        if isinstance(worker.peer, PushPeer):
            self._note(op, chosen)
            self.house.do(worker.peer.say, op, sub=worker.name, ids=[ids.format(one) for one in chosen])
        else:
            self._settle(op, chosen)
            self.house.do(self.house.app.gateway.leases.settled, "s", chosen)

    @precondition(lambda self: self.owners())
    @rule(data=st.data(), act=st.sampled_from(["claim", "claim", "ack", "nack"]))
    def another_meddles(self, data: st.DataObject, act: str) -> None:
        """A client without a connection claims or settles entries; no connection gets a notice."""
        there = sorted(self.owners())
        chosen = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=2, unique=True))
        if act == "claim":
            self._note(act, chosen)
            self.house.execute(XClaim(**WHERE, consumer="other", claim=Claim(ids=chosen, min_idle_ms=0)))
        else:
            self._settle(act, chosen)

    def _settle(self, op: str, chosen: list[int]) -> None:
        self._note(op, chosen)
        nack = XNack(**WHERE, nack=Nack(ids=chosen, mode=NackMode.FAIL))
        self.house.execute(XAck(**WHERE, ids=chosen) if op == "ack" else nack)

    def _note(self, op: str, chosen: list[int]) -> None:
        if op == "ack":
            self.acknowledged.update(chosen)
        else:
            for one in chosen:
                self.handed[one] = self.handed.get(one, 0) + 1

    # ---- time

    @rule()
    def some_happens(self) -> None:
        self.house.step()

    @rule()
    def a_look_is_due(self) -> None:
        self.house.clock.pass_ms(0, round(CHECK_S * 1_000) + 1)
        self.house.settle()

    @rule()
    def all_is_quiet(self) -> None:
        """Then those with credit left have everything."""
        for peer in {id(one.peer): one.peer for one in self.readers}.values():
            self._release(peer)
        for _ in range(3):
            self.house.settle()
            self.a_look_is_due()
        for follower in [*self.followers]:
            follower.check(self.streams)
            if not follower.is_over:
                follower.check_complete(self.streams)
            elif not follower.closed:
                self._check_end(follower)
                self.followers.remove(follower)
        for worker in [*self.workers.values()]:
            self._take_note(worker)
            if worker.is_over:
                del self.workers[worker.consumer]
        for name in self.taken_over:
            self.known[name].update(self.held_by(name))
        self.taken_over.clear()
        for worker in self.workers.values():
            self._check_complete(worker)

    def _check_end(self, follower: Follower) -> None:
        """It stalled for too long; one of Durable Streams also ends after a while, and at a gap."""
        assert isinstance(follower.peer, EventReader)
        stays_s = self.house.clock.monotonic() - follower.since_s
        is_durable = "live" in follower.path and (follower.missed(self.streams) or stays_s >= DURABLE_S)
        assert follower.peer in self.stalled or is_durable, follower.peer.body

    def _check_complete(self, worker: Worker) -> None:
        held, name = self.held_by(worker.consumer), worker.consumer
        assert worker.granted is not None
        if len(set(held) & set(worker.received)) < worker.granted:
            unowned = [one for one in self.held_by(None) if one in self.stored.live]
            assert self.unread() == [], f"{name} could have these"
            assert unowned == [], f"{name} could have these"
            missed = [one for one in held if one in self.stored.live and one not in worker.received]
            assert missed == [], f"{name} has these, and was not sent them"

    # ---- what holds always

    @invariant()
    def what_came_is_right(self) -> None:
        for follower in self.followers:
            follower.check(self.streams)
        for worker in self.workers.values():
            self._take_note(worker)
            held = {*self.held_by(worker.consumer)} & {*worker.received}
            assert worker.granted is not None
            assert len(held) <= worker.granted, "more than was granted"
        assert [one.wire.closed for one in self.sockets if one.wire.closed] == []

    def _take_note(self, worker: Worker) -> None:
        came = worker.follow()
        self.known[worker.consumer].update(came)
        for one in came:
            assert one in self.stored.all
            again = self.handed.get(one, 0) - worker.handed.get(one, 0)
            assert worker.received.count(one) <= 1 + again, f"{ids.format(one)} was sent twice"

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.stored.all:
            somewhere = {*self.owners(), *self.unread(), *self.acknowledged}
            assert [one for one in self.stored.live if one not in somewhere] == []

    # ---- at the end

    def teardown(self) -> None:
        try:
            if self.stored.all:
                self._end_well()
        finally:
            for reader in self.events:
                reader.lose()
            for reader in self.events:
                self.house.run(reader.leave())
            self.house.close()

    def _end_well(self) -> None:
        """With credit for everything no entry is missing; then each reader gets the end of its streams."""
        self.all_is_quiet()
        for follower in self.followers:
            if follower.granted is not None:
                self._grant(follower, 1_000)
        self.sockets.append(self.house.connect())
        for name in NAMES:
            self.consume(2, name, 100, 3)
        self.house.settle()
        for stored in self.streams.values():
            stored.add([1])
        self.all_is_quiet()
        for stream in STREAMS:
            self.house.execute(Close(stream=stream))
        self.all_is_quiet()
        for follower in self.followers:
            assert follower.closed == {*follower.cursors}, "each of its streams has ended"
        while self.owners():
            self._settle("ack", list(self.owners()))
            self.all_is_quiet()
        assert not self.workers, "drained"


# The same examples each time: what is found is found when something is changed.
Readers.TestCase.settings = settings(
    max_examples=halves.some(120), stateful_step_count=40, deadline=None, derandomize=True
)
TestReaders = Readers.TestCase
