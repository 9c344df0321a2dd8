"""Random histories give what a naive model gives where each node goes to a file as soon as it is full.

In runs of one node or of a few, and one run is cached: with crashes, rewrites and all that reads.
"""

import asyncio
import time
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from engine import Engine
from engine.runtime.storing import Storer
from tests import halves
from tests.engine.clocks import settle
from tests.engine.model import Model
from tests.engine.running import Running, keyspace_of
from tests.engine.shelf import StoringEngine
from tests.engine.steps import ModelStep
from tests.engine.test_runs import seen
from tests.engine.test_state_machine import BesideTheModel


class StoredRunning(Running):
    """An engine that keeps no full node in memory."""

    def _open(self) -> Engine:
        engine = StoringEngine.open(self.storage, clock=self.clock, fsync="always")
        self.loop.run_until_complete(engine.start())
        self.fetcher = engine._fetcher  # noqa: SLF001 - to know when it is done
        return engine

    async def _synced(self) -> None:
        await self._fetched()
        await super()._synced()
        await self._fetched()

    async def _fetched(self) -> None:
        """The thread reads in its own time, while this loop's clock stands still."""
        while len(self.fetcher):
            await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.001)
        await settle()

    def block(self, name: str, step: ModelStep) -> None:
        super().block(name, step)
        self.loop.run_until_complete(self._fetched())

    def store(self) -> None:
        """Store what is full, and wait until the log says so on the disk."""
        self.loop.run_until_complete(storer_of(self.engine).store(lambda: True))
        self.loop.run_until_complete(self._synced())

    def seen(self) -> object:
        """Not where entries are: of a file that holds anything deleted the others are stored anew."""
        return seen(keyspace_of(self.engine))

    def repack(self) -> None:
        """Begin another file, and store anew what is left in sparse ones."""
        storer_of(self.engine)._file = None  # noqa: SLF001 - as if it were full
        self.loop.run_until_complete(storer_of(self.engine).repack())
        self.loop.run_until_complete(self._synced())


def storer_of(engine: Engine) -> Storer:
    return engine._storer  # noqa: SLF001 - to have it store at a moment of the test's own


NODES: Final = (1, 1, 2, 3)


class StoredBesideTheModel(BesideTheModel):
    """The same; what is full goes at once, or now and then."""

    running_class = StoredRunning
    running: StoredRunning

    @initialize(node_max=st.sampled_from(NODES), at_once=st.booleans())
    def seal_early(self, node_max: int, at_once: bool) -> None:  # noqa: FBT001 - hypothesis passes it
        def play(model: Model) -> object:
            return model.config(node_max)

        self.at_once = at_once
        self._run(ModelStep(("CONFIG", "SET", "stream-node-max-entries", str(node_max)), play))

    def _run(self, *steps: ModelStep) -> None:
        super()._run(*steps)
        if getattr(self, "at_once", False):
            self.running.store()

    # A reader that leaves while its runs are read was never there.
    read_in_vain = None  # type: ignore[assignment]

    @rule()
    def repack(self) -> None:
        """Files are full, and what is left in sparse ones is stored anew."""
        self.running.repack()

    @rule()
    def store(self) -> None:
        """Memory is short."""
        self.running.store()


StoredBesideTheModel.TestCase.settings = settings(max_examples=halves.some(150), stateful_step_count=40)
TestStoredBesideTheModel = StoredBesideTheModel.TestCase
