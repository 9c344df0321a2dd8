"""Random histories of a small world give what a naive model gives, with crashes and snapshots between.

Knows: the real engine on a modelled disk, under a clock of its own, and the naive model beside it.
Must never know: how either of them does it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.redis import Request, parse, parse_each
from engine import Command, DbSize, Engine, EngineError, Reply
from engine.commands import Parked, execute
from engine.keyspace import Keyspace
from engine.log import Log
from engine.records import encode, snapshot
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock, settle
from tests.engine.images import image
from tests.engine.model import Model
from tests.engine.model_state import Stream
from tests.engine.steps import GROUPS, KEYS, Adding, Step, adding, blocking, commands, full, grouping
from tests.engine.world import plain, words_of

any_command = commands(newest=True)
READERS_MAX: Final = 4


def keyspace_of(engine: Engine) -> Keyspace:
    """What the engine has in memory."""
    return engine._keyspace  # noqa: SLF001 - to compare it with what a restart would give


def answered(request: Request, reply: Reply | EngineError) -> object:
    try:
        return plain(request.answer(reply))
    except EngineError as refusal:
        return f"-{refusal.redis}"


def same(expected: object, answer: object) -> bool:
    """Equal, but for what is nobody's business."""
    if isinstance(expected, list):
        return isinstance(answer, list) and len(expected) == len(answer) and all(map(same, expected, answer))
    return expected == "<any>" or (type(expected) is type(answer) and expected == answer)


class Running:
    """An engine on an event loop of its own, step by step."""

    def __init__(self) -> None:
        self.clock = HandClock(wall_ms=1)
        self.loop = asyncio.new_event_loop()
        self.clock.drive(self.loop)
        self.readers: dict[str, asyncio.Task[object]] = {}
        self.storage = MemoryStorage()
        self.engine = self._open()

    def _open(self) -> Engine:
        engine = Engine.open(self.storage, clock=self.clock, fsync="always")
        self.loop.run_until_complete(engine.start())
        return engine

    def run(self, *steps: Step) -> list[object]:
        """One command, or several as a transaction."""
        parsed = parse_each([words_of(step.words) for step in steps])
        requests = [each for each in parsed if isinstance(each, Request)]
        commands = [request.command for request in requests if request.command is not None]
        replies = iter(self.loop.run_until_complete(self._run(commands)))
        return [
            f"-{each.redis}" if isinstance(each, EngineError) else answered(each, next(replies))
            for each in parsed
        ]

    def look(self, step: Step) -> object:
        """The reply of a command that changes nothing, without the loop."""
        request = parse(words_of(step.words))
        assert request.command is not None, "the engine's"
        outcome = execute(keyspace_of(self.engine), request.command, self.clock.wall_ms())
        assert not isinstance(outcome.reply, Parked), "it does not wait"
        assert not outcome.turn.records, "it changes nothing"
        return answered(request, outcome.reply)

    async def _run(self, commands: Sequence[Command]) -> Sequence[Reply | EngineError]:
        try:
            if len(commands) == 1:
                return [await self.engine.execute(commands[0])]
            return await self.engine.transaction(commands) if commands else []
        except EngineError as refusal:
            return [refusal]

    def block(self, name: str, step: Step) -> None:
        """Start a read that may wait."""
        self.readers[name] = self.loop.create_task(self._read(parse(words_of(step.blocking_words()))))
        self.loop.run_until_complete(settle())

    async def _read(self, request: Request) -> object:
        assert request.command is not None, "reads are the engine's"
        try:
            return answered(request, await self.engine.execute(request.command))
        except EngineError as refusal:
            return answered(request, refusal)

    def served(self) -> dict[str, object]:
        """The readers that have their reply, once each."""
        self.loop.run_until_complete(self._synced())
        done = {name: task.result() for name, task in self.readers.items() if task.done()}
        self.readers = {name: task for name, task in self.readers.items() if name not in done}
        return done

    async def _synced(self) -> None:
        """What was served leaves after its own sync."""
        await settle()
        await self.engine.execute(DbSize(), synced=True)
        await settle()

    def pass_ms(self, wall: int, monotonic: int) -> None:
        self.clock.pass_ms(wall, monotonic)
        self.loop.run_until_complete(settle())

    def cancel(self, name: str) -> None:
        self.readers.pop(name).cancel()
        self.loop.run_until_complete(settle())

    def crash(self) -> None:
        """Cut the power, and start again from what the disk has."""
        before = image(keyspace_of(self.engine))
        disk = self.storage.crash()
        self.close()
        self.storage = disk
        self.engine = self._open()
        assert image(keyspace_of(self.engine)) == before, "replay of the log gives the same state"

    def rewrite(self) -> None:
        """Go on from a snapshot as the only frame of a new log."""
        before = image(keyspace_of(self.engine))
        records = list(snapshot(keyspace_of(self.engine)))
        self.close()
        self.storage = MemoryStorage()
        log = Log.open(self.storage)
        log.stage(encode(records))
        log.close()
        self.engine = self._open()
        assert image(keyspace_of(self.engine)) == before, "a snapshot gives the same state"

    def close(self) -> None:
        for task in self.readers.values():
            task.cancel()
        self.readers.clear()
        self.loop.run_until_complete(settle())
        assert self.engine.waiting == 0, "no reader stays behind"
        self.loop.run_until_complete(self.engine.close())

    def end(self) -> None:
        self.close()
        self.loop.close()


class BesideTheModel(RuleBasedStateMachine):
    """The engine and the naive model, command by command."""

    def __init__(self) -> None:
        super().__init__()
        self.running = Running()
        self.model = Model(now=1)
        self.serial = 0

    @initialize(entries=st.integers(0, 5), groups=st.integers(0, 3), start=st.sampled_from("00$3"))
    def begin(self, entries: int, groups: int, start: str) -> None:
        """Most histories begin with streams and groups, so that there is something to go wrong."""
        for number in range(1, entries + 1):
            self._run(adding("s", f"{number}-0"))
        for group in GROUPS[:groups]:
            self._run(grouping("s", group, start))
        for key in KEYS[:groups]:
            self._run(grouping(key, GROUPS[-1], start))

    def teardown(self) -> None:
        self.running.end()

    def _run(self, *steps: Step) -> None:
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
        assert self.running.engine.waiting == len(self.model.waiters)

    def _taken(self, step: Step | Adding) -> Step:
        """The step, an ID that goes on from the last one made out."""
        if isinstance(step, Step):
            return step
        return step.after(self.model.streams.get(step.key, Stream()).last[0])

    @rule(step=any_command)
    def command(self, step: Step | Adding) -> None:
        self._run(self._taken(step))

    @rule(steps=st.lists(any_command, min_size=2, max_size=5))
    def commands(self, steps: list[Step | Adding]) -> None:
        """Some, one after the other."""
        for step in steps:
            self._run(self._taken(step))

    @rule(steps=st.lists(any_command, min_size=2, max_size=4))
    def transact(self, steps: list[Step | Adding]) -> None:
        """Several commands as one turn."""
        self._run(*map(self._taken, steps))

    @precondition(lambda self: len(self.running.readers) < READERS_MAX)
    @rule(step=blocking(newest=True))
    def block(self, step: Step) -> None:
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
            assert same(self.model.run(step.play), [self.running.look(step)])


BesideTheModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestBesideTheModel = BesideTheModel.TestCase
