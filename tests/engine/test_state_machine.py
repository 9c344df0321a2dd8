"""Random histories of a small world give what a naive model gives, with crashes and snapshots between.

Knows: the real engine on a modelled disk, under a clock of its own, and the naive model beside it.
Must never know: how either of them does it.
"""

from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests import halves
from tests.engine.model import Model
from tests.engine.model_state import Id, ModelStream, show
from tests.engine.running import Running, same
from tests.engine.steps import (
    GROUPS,
    KEYS,
    Adding,
    ModelStep,
    adding,
    blocking,
    commands,
    deferring,
    full,
    grouping,
    near,
)

any_command = commands(newest=True)
READERS_MAX: Final = 4


class BesideTheModel(RuleBasedStateMachine):
    """The engine and the naive model, command by command."""

    running_class = Running

    def __init__(self) -> None:
        super().__init__()
        self.running = self.running_class()
        self.model = Model(now=1)
        self.serial = 0

    @initialize(
        entries=st.integers(0, 5), groups=st.integers(0, 3), start=st.sampled_from(["0", "0", "$", "1-1"])
    )
    def begin(self, entries: int, groups: int, start: str) -> None:
        """Most histories begin with streams and groups, so that there is something to go wrong."""
        for entry_id in near[:entries]:
            self._run(adding("s", show(entry_id)))
        for group in GROUPS[:groups]:
            self._run(grouping("s", group, start))
        for key in KEYS[:groups]:
            self._run(grouping(key, GROUPS[-1], start))

    def teardown(self) -> None:
        self.running.end()

    def _run(self, *steps: ModelStep) -> None:
        replies = self.running.run(*steps)
        expected = self.model.run(*(step.play for step in steps))
        assert same(expected, replies), f"the model says {expected}, the engine {replies}"
        self._compare_served()

    def _compare_served(self) -> None:
        expected, self.model.served = self.model.served, {}
        served = self.running.served()
        assert same(sorted(expected.items()), sorted(served.items())), (
            f"the model serves {expected}, the engine {served}"
        )
        assert self.running.engine.figures().waiting == len(self.model.waiters)

    def _taken(self, step: ModelStep | Adding) -> ModelStep:
        """The step, an ID that goes on from the last one made out."""
        if isinstance(step, ModelStep):
            return step
        return step.after(self.model.streams.get(step.key, ModelStream()).last)

    @rule(step=any_command)
    def command(self, step: ModelStep | Adding) -> None:
        self._run(self._taken(step))

    @rule(steps=st.lists(any_command, min_size=2, max_size=5))
    def commands(self, steps: list[ModelStep | Adding]) -> None:
        """Some, one after the other."""
        for step in steps:
            self._run(self._taken(step))

    @rule(steps=st.lists(any_command, min_size=2, max_size=4))
    def transact(self, steps: list[ModelStep | Adding]) -> None:
        """Several commands as one turn."""
        self._run(*map(self._taken, steps))

    @precondition(lambda self: len(self.running.readers) < READERS_MAX)
    @rule(step=blocking(newest=True))
    def block(self, step: ModelStep) -> None:
        """A read that waits if it finds nothing."""
        assert step.blocking is not None, "a read of one stream"
        self.serial += 1
        name = f"reader {self.serial}"
        self.model.block(name, step.blocking)
        self.running.block(name, step)
        self._compare_served()

    @precondition(lambda self: self.running.readers)
    @rule(which=st.integers(0, READERS_MAX))
    def give_up(self, which: int) -> None:
        """A reader goes away: it gets nothing, and nothing is delivered to it."""
        name = sorted(self.running.readers)[which % len(self.running.readers)]
        self.running.cancel(name)
        self.model.cancel(name)

    @rule(step=blocking(newest=True).filter(lambda step: "CLAIM" not in step.words))
    def read_in_vain(self, step: ModelStep) -> None:
        """A reader goes away before its reply has left."""
        self.running.read_in_vain(step)
        self.model.read_in_vain(step.play, step.words)
        self._compare_served()

    def _pending(self) -> list[tuple[str, str, Id]]:
        """All that is pending: stream, group and ID."""
        streams = self.model.streams.items()
        groups = [(key, name, group) for key, one in streams for name, group in one.groups.items()]
        return [(key, name, entry_id) for key, name, group in groups for entry_id in sorted(group.pending)]

    @precondition(lambda self: self._pending())
    @rule(which=st.integers(0, 9), delay=st.integers(1, 6))
    def defer(self, which: int, delay: int) -> None:
        """An entry is given back for later."""
        pending = self._pending()
        self._run(deferring(*pending[which % len(pending)], delay))

    @rule(ms=st.integers(1, 5))
    def wait(self, ms: int) -> None:
        """Time passes, and claims come due."""
        self.running.pass_ms(ms, ms)
        self.model.pass_ms(ms, ms)
        self._compare_served()

    @rule(ms=st.integers(1, 3))
    def set_clock_back(self, ms: int) -> None:
        """The wall clock jumps back; the other one does not."""
        back = min(ms, self.model.now - 1)
        self.running.pass_ms(-back, 0)
        self.model.pass_ms(-back, 0)
        self._compare_served()

    @precondition(lambda self: self.running.readers)
    @rule()
    def outwait(self) -> None:
        """Everybody's time is over."""
        self.running.pass_ms(0, 60_001)
        self.model.pass_ms(0, 60_001)
        self._compare_served()

    @rule()
    def crash(self) -> None:
        """The power fails: readers are gone, everything else is as it was."""
        self.running.crash()
        self.model.waiters.clear()

    @rule()
    def rewrite(self) -> None:
        """The log is written anew from a snapshot."""
        self.running.rewrite()
        self.model.waiters.clear()

    @invariant()
    def everything_agrees(self) -> None:
        """Integrity in the engine, and all that XINFO STREAM FULL shows is what the model has."""
        self.running.engine.check()
        for key in KEYS:
            step = full(key)
            expected, shown = self.model.run(step.play), [self.running.look(step)]
            assert same(expected, shown), f"the model has {expected}, the engine {shown}"


BesideTheModel.TestCase.settings = settings(max_examples=halves.some(150), stateful_step_count=40)
TestBesideTheModel = BesideTheModel.TestCase
