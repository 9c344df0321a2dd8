"""Random histories through a front give what a naive model gives, as they do without one."""

from hypothesis import settings

from engine import CommandEngine, Engine
from tests import halves
from tests.engine.running import Running
from tests.engine.test_state_machine import BesideTheModel
from tests.fronts.joined import Joined, join


class RunningBehind(Running):
    """The engine, with a front before it through which every command goes."""

    _joined: Joined

    def _open(self) -> Engine:
        engine = super()._open()
        self._joined = self.loop.run_until_complete(join(engine))
        return engine

    @property
    def command_engine(self) -> CommandEngine:
        return self._joined.remote


class BehindAFront(BesideTheModel):
    """The same rules, with a front."""

    running_class = RunningBehind


BehindAFront.TestCase.settings = settings(max_examples=halves.some(30), stateful_step_count=40)
TestBehindAFront = BehindAFront.TestCase
# Or it would be collected here once more.
del BesideTheModel
