"""Random histories of a group that is ordered by key give what a naive model allows: never more of a key in
flight than is set, never out of order, nothing lost.

Knows: turns of the engine, its log and its snapshots, and sets beside them.
Must never know: how the engine finds what is free.
"""

import random
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine import entries, ids
from engine.commands import types, weir_commands
from engine.read_handle import taking_back
from engine.replies import Claimed, GroupInfo, GroupRead
from tests import halves
from tests.engine.house import House, state

KEYS: Final = ("a", "a", "b", "c", None)
GROUP: Final[Any] = {"stream": "s", "group": "g"}
NEVER_MS: Final = (1 << 53) - 1
MAX_DELIVERIES: Final = 3
counts = st.none() | st.integers(1, 4)
consumers = st.sampled_from("cd")
seeds = st.integers(0, 1 << 16)


class OrderBesideTheModel(RuleBasedStateMachine):
    """`key_of` has each entry that was added; `left` those that are to be delivered, in the stream by now;
    `pending` those that are in flight, with how often they were delivered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.house = House()
        self.key_of: dict[int, str | None] = {}
        self.left: set[int] = set()
        self.pending: set[int] = set()
        self.forced: set[int] = set()
        # The last one of each key that was given for the first time.
        self.last: dict[str, int] = {}
        self.most = 1
        self.time = 1

    @initialize(most=st.sampled_from([1, 1, 2]), ages=st.booleans())
    def begin(self, most: int, ages: bool) -> None:  # noqa: FBT001 - drawn
        self.most = most
        policy: dict[str, Any] = {"ordered_by": "k", "in_flight_per_key": most}
        if ages:
            policy |= {"ack_timeout_ms": 50, "dead_letter_stream": "dead", "max_deliveries": MAX_DELIVERIES}
        self.house.run(weir_commands.EnsureGroup(**GROUP, start=0, mkstream=True, policy=policy))

    # --- what the engine says

    def _group(self) -> Any:
        return self.house.key("s").groups["g"]

    def _note_pending(self) -> None:
        """What is in flight, as the pending list says; what was settled beside is done."""
        self.pending = {entry_id for entry_id, _ in self._group().pending.items()}

    def _given(self, reply: GroupRead) -> list[int]:
        return [entry.id for stream in reply.streams for entry in stream.entries]

    def _is_free(self, entry_id: int) -> bool:
        """By what is pending now: others of its key that came before it do not wait either."""
        key = self.key_of[entry_id]
        if key is None:
            return True
        busy = sum(self.key_of[one] == key for one in self.pending)
        return busy < self.most

    # --- rules

    @rule(size=st.integers(1, 8), seed=seeds)
    def add(self, size: int, seed: int) -> None:
        choose = random.Random(seed)
        keys = [choose.choice(KEYS) for _ in range(size)]
        bodies = [entries.body([("n", "1")] + ([] if key is None else [("k", key)])) for key in keys]
        added = [ids.make(self.time + place, 0) for place in range(size)]
        self.time += size
        self.house.run(types.XAdd(stream="s", bodies=bodies, ids=added))
        self.key_of |= dict(zip(added, keys, strict=True))
        self.left |= set(added)

    @rule(
        count=counts,
        consumer=consumers,
        claims=st.sampled_from([None, None, NEVER_MS, 0]),
        undo=st.booleans(),
    )
    def read(self, count: int | None, consumer: str, claims: int | None, undo: bool) -> None:  # noqa: FBT001
        before = set(self.pending)
        command = types.XReadGroup(
            streams=[("s", types.Cursor.NEW)], group="g", consumer=consumer, count=count,
            claim_min_idle_ms=claims,
        )  # fmt: skip
        reply = self.house.of(GroupRead, command)
        given = self._given(reply)
        self._note_pending()
        new = [one for one in given if one not in before]
        assert len(given) == len(set(given)), "each once"
        assert set(new) <= self.left, "nothing that was done, or is gone, and nothing by force before"
        assert count is None or len(given) <= count
        self.left -= set(new)
        if self.most == 1:
            for entry_id in new:
                key = self.key_of[entry_id]
                if key is not None:
                    earlier = [one for one in self.left if self.key_of[one] == key and one < entry_id]
                    assert not earlier, "one of a key comes after those before it"
        if count is None or len(given) < count:
            self._expect_nothing_free(dead=before - self.pending)
        if undo and new:
            for taking in taking_back(command, reply):
                self.house.run(taking)
            self._note_pending()
            self.left |= set(given) - self.pending
        # What it has read while that was in flight is not given once more.
        self.left -= {one for one in self.pending if one <= self._group().last_delivered_id}

    def _expect_nothing_free(self, dead: set[int]) -> None:
        """What the read did not give is busy; keys that it has freed itself are for the next one."""
        freed = {self.key_of[one] for one in dead}
        more = [one for one in self.left if self._is_free(one) and self.key_of[one] not in freed]
        # With several of a key in flight what stood behind those that this read gave is for the next one.
        assert self.most > 1 or not more, "an idle key does not wait"

    @rule(seed=seeds, share=st.sampled_from([0.2, 0.5, 1.0]))
    def acknowledge(self, seed: int, share: float) -> None:
        choose = random.Random(seed)
        done = [one for one in sorted(self.pending) if choose.random() < share]
        if done:
            self.house.run(types.XAck(**GROUP, ids=done))
            self.pending -= set(done)

    @rule(seed=seeds, delay_ms=st.sampled_from([0, 0, 30]), mode=st.sampled_from(list(types.NackMode)))
    def give_back(self, seed: int, delay_ms: int, mode: types.NackMode) -> None:
        choose = random.Random(seed)
        named = [one for one in sorted(self.pending) if choose.random() < 0.5]
        if named:
            self.house.run(types.XNack(**GROUP, nack=types.Nack(ids=named, mode=mode, delay_ms=delay_ms)))

    @rule(seed=seeds, consumer=consumers)
    def claim_by_force(self, seed: int, consumer: str) -> None:
        """Of what the group has read: one that it comes to later it gives once more, as any group does."""
        last = self._group().last_delivered_id
        live = {one for one in self.house.key("s").stream.live_ids() if one <= last}
        there = live & (self.left | self.pending)
        named = random.Random(seed).sample(sorted(there), min(2, len(there)))
        if not named:
            return
        claim = types.Claim(ids=named, min_idle_ms=0, force=True, just_ids=True)
        self.house.of(Claimed, types.XClaim(**GROUP, consumer=consumer, claim=claim))
        self.forced |= set(named) & self.left
        self._note_pending()
        group = self._group()
        # What the group has not read by then it gives once more, when it comes there.
        self.left -= {one for one in self.pending if one <= group.last_delivered_id}

    @rule(seed=seeds)
    def delete(self, seed: int) -> None:
        """From among all; what is pending stays so."""
        live = list(self.house.key("s").stream.live_ids())
        named = random.Random(seed).sample(live, min(2, len(live)))
        if named:
            self.house.run(types.XDel(stream="s", ids=named))
            self.left -= set(named)

    @rule(keep=st.integers(0, 12), refs=st.sampled_from(list(types.Refs)))
    def trim(self, keep: int, refs: types.Refs) -> None:
        needed = self.left | self.pending
        live = set(self.house.key("s").stream.live_ids())
        self.house.run(types.XTrim(stream="s", trim=types.Trim(maxlen=keep, refs=refs)))
        gone = live - set(self.house.key("s").stream.live_ids())
        assert refs is not types.Refs.ACKED or not gone & needed, "nothing goes that is needed"
        self.left -= gone
        self._note_pending()

    @precondition(lambda self: not self.pending)
    @rule(seed=seeds)
    def set_position(self, seed: int) -> None:
        """What was passed over is not delivered, but for what is read again."""
        start = random.Random(seed).choice([0, *sorted(self.key_of)])
        self.house.run(types.XGroupSetId(**GROUP, start=start))
        live = set(self.house.key("s").stream.live_ids())
        self.left = {one for one in live if one > start}
        self.forced |= self.left & self.pending

    @rule(consumer=consumers)
    def remove_consumer(self, consumer: str) -> None:
        self.house.run(types.XGroupDelConsumer(**GROUP, consumer=consumer))
        self._note_pending()

    @rule(ms=st.sampled_from([10, 31, 51]))
    def wait(self, ms: int) -> None:
        """What is overdue or deferred comes back; what was delivered too often is done."""
        self.house.pass_ms(ms)
        self.house.keep_house()
        self.house.run(weir_commands.ReleaseDeferred())
        self._note_pending()

    @rule(rewritten=st.booleans())
    def crash(self, rewritten: bool) -> None:  # noqa: FBT001 - drawn
        before = state(self.house.keyspace)
        (self.house.rewrite if rewritten else self.house.restart)()
        assert state(self.house.keyspace) == before
        self.house.keyspace.check()

    @precondition(lambda self: "t" not in self.house.keyspace.keys)
    @rule()
    def copy(self) -> None:
        """The copy goes on in the place of the first one."""
        self.house.call("COPY", "s", "t")
        self.house.call("RENAME", "t", "s")

    @rule()
    def change_order(self) -> None:
        """Refused as long as anything is in flight or waits; set again where it is not."""
        waits = self.house.of(GroupInfo, weir_commands.DescribeGroup(**GROUP)).passed_over
        changed, back = (
            weir_commands.UpdateGroup(**GROUP, policy={"ordered_by": "k", "in_flight_per_key": most})
            for most in (self.most + 1, self.most)
        )
        if self.pending or waits:
            assert self.house.refused(changed).code == "group_has_pending"
            return
        self.house.run(changed)
        self.house.run(back)

    # --- what always holds

    @invariant()
    def no_more_of_a_key_are_in_flight_than_may(self) -> None:
        keys = [self.key_of[one] for one in self.pending - self.forced]
        for key in {key for key in keys if key is not None}:
            assert keys.count(key) <= self.most

    @invariant()
    def what_waits_is_what_was_read_and_given_to_nobody(self) -> None:
        group = self._group() if "s" in self.house.keyspace.keys else None
        if group is None or not group.parts:
            return
        passed = {one for one, _ in group.passed_over.items()}
        live = set(self.house.key("s").stream.live_ids())
        assert passed & live == {one for one in self.left - self.pending if one <= group.last_delivered_id}
        assert group.needed_from() == min([*self.pending, *passed, group.last_delivered_id + 1])

    def teardown(self) -> None:
        """In the end everything is delivered that is left."""
        if "s" not in self.house.keyspace.keys:
            return
        self.house.check()
        for _ in range(len(self.key_of) + 2):
            self.house.run(types.XAck(**GROUP, ids=sorted(self.pending)))
            self.pending = set()
            self.read(None, "c", None, undo=False)
            if not self.pending:
                break
        assert not self.left & set(self.house.key("s").stream.live_ids()), "nothing is lost"
        self.house.check()


OrderBesideTheModel.TestCase.settings = settings(max_examples=halves.some(100), stateful_step_count=40)
TestOrderBesideTheModel = OrderBesideTheModel.TestCase
