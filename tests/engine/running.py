"""A real engine on a modelled disk, step by step from the outside, under a clock that stands still.

Knows: one event loop for each engine, readers that wait as tasks, power cuts, restarts, rewrites.
Must never know: what a command should answer.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from app.redis import CommandRequest, parse
from engine import Clock, CommandEngine, Engine, EngineError, Fsync
from engine.commands.base import BlockingCommand, Command
from engine.commands.execution import Blocked, Unfinished, execute
from engine.commands.types import DbSize
from engine.keyspace import Keyspace
from engine.replies import Reply
from engine.storage.memory import MemoryStorage
from tests.engine.asking import begin_read, reply_to, turn_of
from tests.engine.clocks import HandClock, settle
from tests.engine.images import image
from tests.engine.steps import ModelStep
from tests.engine.world import plain, words_of
from tests.redis_session import parse_or_refusal


def keyspace_of(engine: Engine) -> Keyspace:
    """What the engine has in memory."""
    return engine._keyspace  # noqa: SLF001 - to compare it with what a restart would give


def answered(request: CommandRequest, reply: Reply | EngineError) -> object:
    try:
        return plain(request.answer(reply))
    except EngineError as refusal:
        return f"-{refusal.redis}"


def same(expected: object, answer: object) -> bool:
    """Equal, but for what no client can see."""
    if isinstance(expected, list):
        return isinstance(answer, list) and len(expected) == len(answer) and all(map(same, expected, answer))
    return expected == "<any>" or (type(expected) is type(answer) and expected == answer)


class Running:
    """An engine on an event loop of its own, step by step."""

    def __init__(self, wall_ms: int = 1) -> None:
        self.clock = HandClock(wall_ms)
        self.loop = asyncio.new_event_loop()
        self.clock.drive(self.loop)
        self.readers: dict[str, asyncio.Task[object]] = {}
        self.storage = MemoryStorage()
        self.engine = self._open()

    @property
    def command_engine(self) -> CommandEngine:
        """What runs the commands."""
        return self.engine

    def _open(self) -> Engine:
        engine = Engine.open(self.storage, clock=self.clock, fsync="always")
        self.loop.run_until_complete(engine.start())
        return engine

    def run(self, *steps: ModelStep) -> list[object]:
        """One command, or several as a transaction."""
        parsed = [parse_or_refusal(words_of(step.words)) for step in steps]
        requests = [each for each in parsed if isinstance(each, CommandRequest)]
        commands = [request.command for request in requests if request.command is not None]
        replies = iter(self.loop.run_until_complete(self._run(commands)))
        return [
            f"-{each.redis}" if isinstance(each, EngineError) else answered(each, next(replies))
            for each in parsed
        ]

    def look(self, step: ModelStep) -> object:
        """The reply of a command that changes nothing, without the loop."""
        request = parse(words_of(step.words))
        assert request.command is not None, "the engine's"
        outcome = execute(keyspace_of(self.engine), request.command, self.clock.wall_ms())
        assert not isinstance(outcome.reply, Blocked | Unfinished), "it does not wait, and takes one turn"
        assert not outcome.turn.records, "it changes nothing"
        return answered(request, outcome.reply)

    async def _run(self, commands: Sequence[Command]) -> Sequence[Reply | EngineError]:
        try:
            if len(commands) == 1:
                return [await reply_to(self.command_engine, commands[0])]
            return await turn_of(self.command_engine, commands) if commands else []
        except EngineError as refusal:
            return [refusal]

    def block(self, name: str, step: ModelStep) -> None:
        """Start a read that may wait."""
        self.readers[name] = self.loop.create_task(self._read(parse(words_of(step.blocking_words()))))
        self.loop.run_until_complete(settle())

    async def _read(self, request: CommandRequest) -> object:
        assert request.command is not None, "reads are the engine's"
        try:
            return answered(request, await reply_to(self.command_engine, request.command))
        except EngineError as refusal:
            return answered(request, refusal)

    def read_in_vain(self, step: ModelStep) -> None:
        """A read whose reader leaves before it is answered."""
        self.loop.run_until_complete(self._read_in_vain(parse(words_of(step.words))))

    async def _read_in_vain(self, request: CommandRequest) -> None:
        assert isinstance(request.command, BlockingCommand), "it may wait"
        answers: list[object] = []
        begin_read(self.command_engine, request.command, answers.append).cancel()
        await settle()
        assert not answers, "it is not answered any more"

    def served(self) -> dict[str, object]:
        """The readers that have their reply, once each."""
        self.loop.run_until_complete(self._synced())
        done = {name: task.result() for name, task in self.readers.items() if task.done()}
        self.readers = {name: task for name, task in self.readers.items() if name not in done}
        return done

    async def _synced(self) -> None:
        """What was served leaves after its own sync."""
        await settle()
        await reply_to(self.command_engine, DbSize(), synced=True)
        await settle()

    @property
    def readers_waiting(self) -> int:
        """The number of readers that wait in the engine."""
        return self.engine.figures().waiting

    def check(self) -> None:
        """Check the integrity of what is in memory."""
        self.engine.check()

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
        """Make the log short, and start again from what it is then."""
        before = self.seen()
        self.loop.run_until_complete(self.engine.rewrite())
        assert self.seen() == before, "a rewrite changes nothing"
        self.crash()

    def seen(self) -> object:
        """What a rewrite leaves as it is: all that is in memory."""
        return image(keyspace_of(self.engine))

    def close(self) -> None:
        for task in self.readers.values():
            task.cancel()
        self.readers.clear()
        self.loop.run_until_complete(settle())
        assert self.engine.figures().waiting == 0, "no reader stays behind"
        self.loop.run_until_complete(self.engine.close())

    def end(self) -> None:
        self.close()
        self.loop.close()


def engine_of(*commands: Command, clock: Callable[[], Clock] = HandClock, fsync: Fsync = "everysec") -> Any:
    """A fixture: an engine in memory that has run these commands. It agrees with itself at the end."""

    @pytest.fixture
    async def engine() -> AsyncIterator[Engine]:
        async with Engine.open(MemoryStorage(), clock=clock(), fsync=fsync) as engine:
            for command in commands:
                await reply_to(engine, command)
            yield engine
            engine.check()

    return engine
