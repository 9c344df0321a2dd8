"""Random histories of schedules give what a naive model gives: over crashes, full memory, and set clocks.

Knows: the real engine on a modelled disk, under a clock that is moved by hand, and lists beside it.
Must never know: how the engine finds what is due.
"""

from dataclasses import dataclass, replace
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine import Engine, EngineError, entries
from engine.commands import schedule_commands
from engine.commands.base import Command
from engine.commands.types import Copy, Delete, Rename, XAdd
from engine.commands.weir_commands import Close
from engine.keyspace import Caps
from engine.recurrence import MISSED_AFTER_MS, Rule
from engine.replies import Reply, SchedulePage
from tests import halves
from tests.engine.asking import reply_to
from tests.engine.clocks import settle
from tests.engine.running import Running, keyspace_of

FULL_BYTES: Final = 1 << 40
HOUR_MS: Final = 3_600_000
STREAMS: Final = ("s", "t")
streams = st.sampled_from(STREAMS)
names = st.sampled_from(["a", "b", "c"])
rules = st.builds(
    Rule,
    every_ms=st.sampled_from([1_000, 7_000]),
    count=st.none() | st.integers(1, 3),
    missed=st.sampled_from(["once", "once", "skip"]),
) | st.builds(Rule, in_ms=st.sampled_from([0, 1, 500, 2_000, HOUR_MS]))


@dataclass(frozen=True)
class Planned:
    """What is left of a schedule, and when it is due."""

    value: str
    rule: Rule
    at: int
    left: int | None


class NaiveStream:
    """Values in the order in which they were appended, and what is to come, in that of being planned."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.plans: dict[str, Planned] = {}

    def plan(self, name: str, planned: Planned) -> None:
        self.plans.pop(name, None)
        self.plans[name] = planned

    def run(self, name: str, planned: Planned, now: int, next_at: int | None, *, runs: bool = True) -> None:
        """Append it, and plan the next time if there is one."""
        if runs:
            self.values.append(planned.value)
        left = None if planned.left is None else planned.left - runs
        self.plans.pop(name)
        if next_at is not None and left != 0:
            self.plans[name] = replace(planned, at=next_at, left=left)

    def fire(self, now: int) -> None:
        """All that is due, the earliest first."""
        due = sorted((one for one in self.plans.items() if one[1].at <= now), key=lambda one: one[1].at)
        for name, planned in due:
            every, next_at = planned.rule.every_ms, None
            if every is not None:
                next_at = planned.at
                while next_at <= max(now, planned.at):
                    next_at += every
            is_missed = planned.rule.missed == "skip" and now - planned.at > MISSED_AFTER_MS
            self.run(name, planned, now, next_at, runs=not is_missed)


class Limited(Running):
    """An engine whose memory can be full."""

    def _open(self) -> Engine:
        caps = Caps(memory_bytes_max=FULL_BYTES)
        engine = Engine.open(self.storage, clock=self.clock, fsync="always", caps=caps)
        self.loop.run_until_complete(engine.start())
        return engine

    def do(self, command: Command) -> Reply | EngineError:
        try:
            reply: Reply | EngineError = self.loop.run_until_complete(reply_to(self.engine, command))
        except EngineError as refusal:
            reply = refusal
        self.loop.run_until_complete(settle())
        return reply


class SchedulesBesideTheModel(RuleBasedStateMachine):
    """The engine and the naive model, command by command."""

    def __init__(self) -> None:
        super().__init__()
        self.running = Limited(wall_ms=10 * HOUR_MS)
        self.streams: dict[str, NaiveStream] = {}
        self.is_full = False
        self.serial = 0

    def teardown(self) -> None:
        self.running.end()

    @property
    def now(self) -> int:
        return self.running.clock.wall_ms()

    def _value(self) -> str:
        self.serial += 1
        return str(self.serial)

    def _do(self, command: Command, expected: str = "") -> None:
        """Run it; `expected` is the code of a refusal."""
        reply = self.running.do(command)
        assert (reply.code if isinstance(reply, EngineError) else "") == expected, reply
        self._fire()

    def _fire(self) -> None:
        for stream in () if self.is_full else self.streams.values():
            stream.fire(self.now)

    def _of(self, stream: str) -> NaiveStream:
        return self.streams.setdefault(stream, NaiveStream())

    @precondition(lambda self: not self.is_full)
    @rule(stream=streams, name=names, rule=rules, again=st.booleans())
    def plan(self, stream: str, name: str, rule: Rule, again: bool) -> None:  # noqa: FBT001 - drawn
        """Set a schedule; sometimes as it is, which changes nothing."""
        before = self._of(stream).plans.get(name)
        value = self._value()
        if again and before is not None and before.rule.at_ms is None:
            value, rule = before.value, before.rule
        else:
            first = self.now + (rule.in_ms if rule.in_ms is not None else rule.every_ms or 0)
            self._of(stream).plan(name, Planned(value, rule, first, rule.count))
        schedule = schedule_commands.NewSchedule(name, entries.body([("n", value)]), rule)
        self._do(schedule_commands.SetSchedule(stream=stream, schedule=schedule))

    @precondition(lambda self: not self.is_full)
    @rule(stream=streams, delays=st.lists(st.sampled_from([0, 1, 300, 2_000]), min_size=1, max_size=4))
    def publish_later(self, stream: str, delays: list[int]) -> None:
        """Several entries for later in one command."""
        each: list[schedule_commands.NewSchedule] = []
        for delay in delays:
            value = self._value()
            each.append(
                schedule_commands.NewSchedule(f"p{value}", entries.body([("n", value)]), Rule(in_ms=delay))
            )
            planned = Planned(value, Rule(at_ms=self.now + delay), self.now + delay, None)
            self._of(stream).plan(f"p{value}", planned)
        self._do(schedule_commands.AddScheduled(stream=stream, later=each))

    @precondition(lambda self: not self.is_full)
    @rule(stream=streams, name=names, required=st.booleans())
    def publish_instead(self, stream: str, name: str, required: bool) -> None:  # noqa: FBT001 - drawn
        """An entry in the place of one for later."""
        value = self._value()
        is_gone = name not in self._known(stream).plans
        add = XAdd(stream=stream, bodies=[entries.body([("n", value)])])
        command = schedule_commands.AddScheduled(
            stream=stream, add=add, cancel=name, cancel_required=required
        )
        if is_gone and required:
            self._do(command, "schedule_gone")
            return
        self._of(stream).plans.pop(name, None)
        self._of(stream).values.append(value)
        self._do(command)

    def _known(self, stream: str) -> NaiveStream:
        return self.streams.get(stream, NaiveStream())

    def _refusal(self, stream: str, name: str) -> str:
        if stream not in self.streams:
            return "no_stream"
        return "" if name in self.streams[stream].plans else "no_schedule"

    @rule(stream=streams, name=names)
    def cancel(self, stream: str, name: str) -> None:
        refusal = self._refusal(stream, name)
        self._known(stream).plans.pop(name, None)
        self._do(schedule_commands.CancelSchedule(stream=stream, name=name), refusal)

    @precondition(lambda self: not self.is_full)
    @rule(stream=streams, name=names)
    def fire_by_hand(self, stream: str, name: str) -> None:
        refusal = self._refusal(stream, name)
        if not refusal:
            planned = self.streams[stream].plans[name]
            next_at = None if planned.rule.every_ms is None else planned.at
            self.streams[stream].run(name, planned, self.now, next_at)
        self._do(schedule_commands.FireSchedule(stream=stream, name=name), refusal)

    @rule(stream=streams, drops=st.booleans())
    def remove(self, stream: str, drops: bool = True) -> None:  # noqa: FBT001, FBT002 - drawn
        """By name, or by its end."""
        known = self.streams.get(stream)
        refusal = "has_schedules" if known is not None and known.plans and not drops else ""
        self._do(Delete(streams=[stream], drops_schedules=drops), refusal)
        if not refusal:
            self.streams.pop(stream, None)

    @rule(stream=streams, drops=st.booleans())
    def close(self, stream: str, drops: bool) -> None:  # noqa: FBT001 - drawn
        known = self.streams.get(stream)
        refusal = "no_stream" if known is None else "has_schedules" if known.plans and not drops else ""
        self._do(Close(stream=stream, drops_schedules=drops), refusal)
        if not refusal:
            self.remove(stream)

    @rule()
    def rename(self) -> None:
        """With all that is to come."""
        if (stream := self.streams.pop("s", None)) is None:
            return
        self.streams["t"] = stream
        self._do(Rename(stream="s", target="t"))

    @precondition(lambda self: not self.is_full)
    @rule()
    def copy(self) -> None:
        """Without what is to come."""
        if "t" in self.streams:
            copied = NaiveStream()
            copied.values = list(self.streams["t"].values)
            self.streams["s"] = copied
        self._do(Copy(stream="t", target="s", replace=True))

    @rule(ms=st.sampled_from([1, 499, 500, 1_000, 5_000, 12_000, HOUR_MS]))
    def wait(self, ms: int) -> None:
        self.running.pass_ms(ms, ms)
        self._fire()

    @rule(ms=st.sampled_from([HOUR_MS, -HOUR_MS, 900, -900]))
    def set_clock(self, ms: int) -> None:
        """The wall clock jumps; it is looked at each second."""
        self.running.pass_ms(ms if self.now + ms > HOUR_MS else HOUR_MS, 0)
        self.running.pass_ms(1_000, 1_000)
        self._fire()

    @rule()
    def fill_or_empty(self) -> None:
        """Memory is full, or has room again; what is due is tried each second."""
        self.is_full = not self.is_full
        keyspace_of(self.running.engine).memory.shared.add(FULL_BYTES if self.is_full else -FULL_BYTES)
        self.running.pass_ms(1_000, 1_000)
        self._fire()

    @precondition(lambda self: not self.is_full)
    @rule(rewritten=st.booleans())
    def crash(self, rewritten: bool) -> None:  # noqa: FBT001 - drawn
        """Everything is as it was."""
        (self.running.rewrite if rewritten else self.running.crash)()
        self.running.loop.run_until_complete(settle())
        self._fire()

    @invariant()
    def everything_agrees(self) -> None:
        keyspace = keyspace_of(self.running.engine)
        if not self.is_full:
            self.running.engine.check()
        assert keyspace.keys.keys() == self.streams.keys()
        for name, naive in self.streams.items():
            stream = keyspace.keys[name].stream
            texts = [stream.get(entry_id) for entry_id in stream.live_ids()]
            found = [value.decode() for text in texts if text for _, value in entries.pairs_of(text)]
            assert found == naive.values
            page = self.running.do(schedule_commands.ListSchedules(stream=name, limit=1_000))
            assert isinstance(page, SchedulePage)
            shown = {one.name: (one.at_ms, one.left) for one in page.schedules}
            assert shown == {key: (one.at, one.left) for key, one in naive.plans.items()}


SchedulesBesideTheModel.TestCase.settings = settings(max_examples=halves.some(100), stateful_step_count=40)
TestSchedulesBesideTheModel = SchedulesBesideTheModel.TestCase
