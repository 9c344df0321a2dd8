"""A conversation in any order: what was granted is never exceeded, nothing is lost or sent twice."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.doors.websocket.subscription_table import ConsumerSubscription
from engine import ids
from engine.commands import Claim as ClaimOptions
from engine.commands import XClaim
from tests import halves
from tests.app.conversing import SocketWorld, names_of


class SessionMachine(RuleBasedStateMachine):
    """Frames and events in any order: what was granted is never exceeded, nothing is lost or sent twice."""

    def __init__(self) -> None:
        super().__init__()
        self.world = SocketWorld()
        self.granted: dict[str, int] = {}
        self.checked = 0
        self.seen: dict[str, list[str]] = {}

    @initialize()
    def begin(self) -> None:
        self.world.add("s", 3)

    @rule(stream=st.sampled_from(["s", "t"]), count=st.integers(1, 5))
    def publish(self, stream: str, count: int) -> None:
        self.world.add(stream, count)

    @precondition(lambda self: "t" not in self.granted)
    @rule(credit=st.integers(0, 4), batch_max=st.integers(1, 3))
    def subscribe(self, credit: int, batch_max: int) -> None:
        streams = {"s": "0", "t": "0"}
        self.world.tell("subscribe", sub="t", streams=streams, credit=credit, batch_max=batch_max)
        self.granted["t"] = credit

    @precondition(lambda self: "w" not in self.granted)
    @rule(credit=st.integers(1, 4), batch_max=st.integers(1, 3))
    def consume(self, credit: int, batch_max: int) -> None:
        members = {"stream": "s", "group": "g", "consumer": "c", "create": "0"}
        self.world.tell("consume", sub="w", **members, credit=credit, batch_max=batch_max)
        self.granted["w"] = credit

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), n=st.integers(1, 4))
    def credit(self, data: st.DataObject, n: int) -> None:
        sub = data.draw(st.sampled_from(sorted(self.granted)))
        before = len(self.world.sent)
        self.world.tell("credit", sub=sub, n=n)
        if not any(one["op"] == "error" for one in self.world.sent[before:]):
            self.granted[sub] += n

    @precondition(lambda self: self.world.pushed("w"))
    @rule(data=st.data(), op=st.sampled_from(["ack", "nack"]))
    def settle_some(self, data: st.DataObject, op: str) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.world.pushed("w")), min_size=1, max_size=3))
        self.world.tell(op, sub="w", ids=chosen)

    @precondition(lambda self: self.world.pushed("w"))
    @rule(data=st.data())
    def claim_away(self, data: st.DataObject) -> None:
        chosen = ids.parse(data.draw(st.sampled_from(self.world.pushed("w"))))
        claim = ClaimOptions(ids=[chosen or 0], min_idle_ms=0)
        self.world.run(XClaim(stream="s", group="g", consumer="other", claim=claim))

    @precondition(lambda self: self.world.under_way)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.world.come_back(data.draw(st.sampled_from(self.world.under_way)))

    @rule()
    def tick(self) -> None:
        self.world.do(self.world.session.consumers.tick())

    @rule()
    def quiet(self) -> None:
        """Everything comes back: then a follower has what it has credit for, and a worker too."""
        self.world.settle()
        if "t" in self.granted:
            there = len(self.world.texts("s")) + len(self.world.texts("t"))
            assert len(self.world.pushed("t")) == min(there, self.granted["t"])

    @invariant()
    def nothing_is_exceeded(self) -> None:
        if "t" in self.granted:
            assert len(self.world.pushed("t")) <= self.granted["t"]
        if "w" in names_of(self.world.session):
            (work,) = [one for one in self.world.session.table.by_name.values() if one.name == "w"]
            assert isinstance(work, ConsumerSubscription)
            held = work.consumer.in_flight
            assert work.credit.left is not None
            assert work.credit.left + len(held) == self.granted["w"]

    @invariant()
    def followers_get_each_entry_once_and_in_order(self) -> None:
        for stream in ("s", "t"):
            frames = [
                one
                for one in self.world.sent
                if one["op"] == "entries" and one["sub"] == "t" and one["stream"] == stream
            ]
            got = [entry["id"] for one in frames for entry in one["entries"]]
            assert got == self.world.texts(stream)[: len(got)]

    @invariant()
    def nothing_was_refused(self) -> None:
        new = self.world.sent[self.checked :]
        self.checked = len(self.world.sent)
        assert [one for one in new if one["op"] == "error" and one["problem"]["code"] != "invalid"] == []
        assert self.world.closed is None


SessionMachine.TestCase.settings = settings(
    max_examples=halves.some(60), stateful_step_count=40, deadline=None
)
TestConversation = SessionMachine.TestCase
