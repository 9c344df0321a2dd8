"""Consumers of one group over connections, in any order of events: each entry is somewhere, and once.

Over WebSocket and over server-sent events: published one by one and in batches, with IDs that are neighbours,
clients that stall, are lost and come back under the same name, and others that claim, settle and trim.
"""

import json

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.live.consumer import CHECK_S
from app.settings import Settings
from engine import ids
from engine.commands import Claim, DescribeGroup, EnsureGroup, Nack, NackMode, XAck, XClaim, XNack, execution
from engine.commands import XPendingRange as Pending
from engine.replies import GroupInfo, PendingList
from tests import halves
from tests.app.pushing import STEPS, Json, PushPeer, PushWorld, Stored
from tests.app.test_sse import EventReader

SETTINGS = Settings(log_requests="none", count_max=100)
NAMES = ("a", "b")
WHERE: Json = {"stream": "s", "group": "g"}


class ModelWorker:
    """One connection of a consumer, and what its client knows."""

    def __init__(self, peer: PushPeer | EventReader, name: str, granted: int) -> None:
        self.peer = peer
        self.name = name
        self.granted = granted
        self.received: list[int] = []
        # How often others had been let have each entry when it began.
        self.handed: dict[int, int] = {}
        self._read = 0

    def follow(self) -> list[int]:
        """The entries that have come since the last time."""
        every = self.peer.frames if isinstance(self.peer, PushPeer) else self.peer.events
        news, self._read = every[self._read :], len(every)
        came = [entry_id for one in news for entry_id in _entries(one)]
        self.received += came
        return came

    @property
    def is_over(self) -> bool:
        """Another has its place, or it was cut."""
        if isinstance(self.peer, PushPeer):
            return any(one["op"] == "revoked" for one in self.peer.frames)
        return self.peer.request.done() or "end" in self.peer.names


def _entries(one: object) -> list[int]:
    if isinstance(one, dict):
        assert one["op"] != "error", one
        texts = [entry["id"] for entry in one["entries"]] if one["op"] == "entries" else []
    else:
        name, data = getattr(one, "name"), getattr(one, "data")  # noqa: B009 - an event
        assert name in ("entry", "gap", "end"), name
        texts = [json.loads(data)["id"]] if name == "entry" else []
    return [ids.parse(text) or 0 for text in texts]


class Consuming(RuleBasedStateMachine):
    """Two consumers over connections, and a third one without."""

    def __init__(self) -> None:
        super().__init__()
        # No second brings a sync: that is a thread, with a time of its own.
        self.house = PushWorld(SETTINGS, fsync="no")
        self.stored = Stored(self.house, "s")
        self.workers: dict[str, ModelWorker] = {}
        # Those whose place was taken over too.
        self.peers: list[PushPeer | EventReader] = []
        self.gone: list[EventReader] = []
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
        look = Pending(**WHERE, start=0, end=ids.ID_MAX, count=10_000)
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

    def held_by(self, name: str) -> list[int]:
        return [one for one, owner in self.owners().items() if owner == name]

    # ---- publishing

    @initialize()
    def begin(self) -> None:
        self.stored.add([5 << 64, 1, 1])
        self.house.execute(EnsureGroup(**WHERE, start=0))
        self.consume("a", 2, 2)
        self.consume_by_events("b", 1)
        self.house.settle()

    @rule(steps=st.lists(STEPS, min_size=1, max_size=4))
    def publish_one_by_one(self, steps: list[int]) -> None:
        for step in steps:
            self.stored.add([step])
            self.house.settle()

    @rule(steps=st.lists(STEPS, min_size=1, max_size=4))
    def publish_together(self, steps: list[int]) -> None:
        self.stored.add(steps)

    @rule(kept=st.integers(1, 4))
    def trim(self, kept: int) -> None:
        self.stored.trim(kept)

    # ---- connections

    @rule(name=st.sampled_from(NAMES), credit=st.integers(1, 4), batch_max=st.integers(1, 3))
    def consume(self, name: str, credit: int, batch_max: int) -> None:
        peer = self.house.connect()
        self._begin(ModelWorker(peer, name, credit))
        members = {"consumer": name, "credit": credit, "batch_max": batch_max}
        self.house.do(peer.say, "consume", sub="w", **WHERE, **members)

    @rule(name=st.sampled_from(NAMES), credit=st.integers(1, 4))
    def consume_by_events(self, name: str, credit: int) -> None:
        def begin() -> None:
            path = f"/v1/streams/s/groups/g/consumers/{name}/stream"
            reader = EventReader(self.house.app, path, f"max_in_flight={credit}", accept="text/event-stream")
            self._begin(ModelWorker(reader, name, credit))

        self.house.do(begin)

    def _begin(self, worker: ModelWorker) -> None:
        before = self.workers.get(worker.name)
        if before is not None:
            self._take_note(before)
            self.taken_over.add(worker.name)
        worker.handed = dict(self.handed)
        self.peers.append(worker.peer)
        self.workers[worker.name] = worker

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), frames=st.integers(0, 2))
    def lose(self, data: st.DataObject, frames: int) -> None:
        """The connection breaks; what never left has no owner again."""
        self._lose(self._any(data), frames)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), steps=st.lists(STEPS, min_size=1, max_size=4), frames=st.integers(0, 2))
    def lose_with_entries_on_their_way(self, data: st.DataObject, steps: list[int], frames: int) -> None:
        """They were handed to a client that has room, takes nothing, and then leaves."""
        if pending := list(self.owners()):
            self._settle("ack", pending)
        self.all_is_quiet()
        if not self.workers:
            return
        worker = self._any(data)
        worker.peer.stall()
        self.publish_one_by_one(steps)
        self._lose(worker, frames)

    def _lose(self, worker: ModelWorker, frames: int) -> None:
        if isinstance(worker.peer, PushPeer):
            self.house.do(worker.peer.lose, frames)
        else:
            # It may still wait for the place of one that stalls.
            worker.peer.lose()
            self.gone.append(worker.peer)
        self.peers.remove(worker.peer)
        self.house.settle()
        self._take_note(worker)
        del self.workers[worker.name]
        held = set(self.held_by(worker.name))
        assert worker.name in self.taken_over or held <= self.known[worker.name]

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def stall(self, data: st.DataObject) -> None:
        self._any(data).peer.stall()

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        self.house.do(self._any(data).peer.release)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), n=st.integers(1, 3))
    def grant(self, data: st.DataObject, n: int) -> None:
        worker = self._any(data)
        if isinstance(worker.peer, PushPeer):
            worker.granted += n
            self.house.do(worker.peer.say, "credit", sub="w", n=n)

    def _any(self, data: st.DataObject) -> ModelWorker:
        return self.workers[data.draw(st.sampled_from(sorted(self.workers)))]

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
            self.house.do(worker.peer.say, op, sub="w", ids=[ids.format(one) for one in chosen])
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
        """Then the consumers with credit left have everything."""
        for peer in self.peers:
            self.house.do(peer.release)
        for _ in range(3):
            self.house.settle()
            self.a_look_is_due()
        for worker in list(self.workers.values()):
            self._take_note(worker)
            if worker.is_over:
                del self.workers[worker.name]
        for name in self.taken_over:
            self.known[name].update(self.held_by(name))
        self.taken_over.clear()
        for worker in self.workers.values():
            self._check_complete(worker)

    def _check_complete(self, worker: ModelWorker) -> None:
        held = self.held_by(worker.name)
        if len(set(held) & set(worker.received)) < worker.granted:
            unowned = self.held_by_nobody()
            assert self.unread() == [], f"{worker.name} could have these"
            assert unowned == [], f"{worker.name} could have these"
            missed = [one for one in held if one in self.stored.live and one not in worker.received]
            assert missed == [], f"{worker.name} has these, and was not sent them"

    def held_by_nobody(self) -> list[int]:
        return [one for one, owner in self.owners().items() if owner is None and one in self.stored.live]

    # ---- what holds always

    @invariant()
    def what_came_is_right(self) -> None:
        for worker in self.workers.values():
            self._take_note(worker)
            held = set(self.held_by(worker.name)) & set(worker.received)
            assert len(held) <= worker.granted, "more than was granted"

    def _take_note(self, worker: ModelWorker) -> None:
        came = worker.follow()
        self.known[worker.name].update(came)
        for one in came:
            assert one in self.stored.all
            again = self.handed.get(one, 0) - worker.handed.get(one, 0)
            assert worker.received.count(one) <= 1 + again, f"{ids.format(one)} was sent twice"

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.stored.all:
            somewhere = {*self.owners(), *self.unread(), *self.acknowledged}
            assert [one for one in self.stored.live if one not in somewhere] == []

    def teardown(self) -> None:
        try:
            if self.stored.all:
                self._end_well()
        finally:
            readers = [*self.gone, *(one for one in self.peers if isinstance(one, EventReader))]
            for reader in readers:
                reader.lose()
            for reader in readers:
                self.house.run(reader.leave())
            self.house.close()

    def _end_well(self) -> None:
        """A last consumer with credit for everything is sent what no other has."""
        self.all_is_quiet()
        for name in NAMES:
            self.consume(name, 100, 3)
        self.all_is_quiet()


# The same examples each time: what is found is found when something is changed.
Consuming.TestCase.settings = settings(
    max_examples=halves.some(120), stateful_step_count=30, deadline=None, derandomize=True
)
TestConsuming = Consuming.TestCase
