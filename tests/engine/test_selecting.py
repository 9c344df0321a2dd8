"""A command selects what it does, then does it: only what selects looks into nodes that are in files."""

import errno
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from engine import EngineError
from engine.commands.base import Command
from engine.keyspace import Keyspace
from engine.replies import GroupRead
from engine.runs import Run, parse
from tests import halves
from tests.engine.histories import History
from tests.engine.shelf import Shelf, StoredWorld
from tests.engine.test_runs import seen
from tests.engine.world import World

STEPS = 120


class DamagedShelf(Shelf):
    """A disk that does not give everything back."""

    may_read_in_turns = True
    bad: frozenset[int] = frozenset()

    def read(self, run: Run) -> bytes:
        if run.offset in self.bad:
            raise OSError(errno.EIO, "a bad block")
        return super().read(run)


def play(world: World, commands: Sequence[Command]) -> list[Any]:
    """What they answer, alone or as a transaction."""
    if len(commands) > 1:
        replies, turn = world.run_transaction(commands)
        world._log(turn.records, changed=True)  # noqa: SLF001 - as `transaction` does with words
        return list(map(comparable, replies))
    reply = world.execute(commands[0])
    return [None if reply is None else comparable(reply[0])]


def comparable(reply: Any) -> Any:
    """Without what counts the moves of groups in this process."""
    if isinstance(reply, EngineError):
        return reply.code, reply.detail
    if isinstance(reply, GroupRead):
        return replace(reply, streams=[replace(one, mark=None) for one in reply.streams])
    return reply


def look_after(world: World, history: History) -> None:
    """What time brings, where nothing has to be waited for."""
    runs = world.keyspace.runs
    runs.bytes_max = 1 << 30
    for key in world.keyspace.keys.values():
        for part in key.stream.nodes.values() if key.stream.nodes.runs else ():
            if isinstance(part, Run):
                assert runs.read is not None
                runs.keep(part, parse(part, runs.read))
    for command in history.upkeep():
        world.execute(command)
    runs.bytes_max = 1


def named(keyspace: Keyspace) -> None:
    """The same generations in both worlds."""
    made = iter(range(1 << 30))
    keyspace.new_generation = lambda: f"{next(made):022}"


@pytest.mark.parametrize("seed", range(halves.some(24)))
def test_what_is_in_files_makes_no_difference(seed: int) -> None:
    """Transactions, dead letters, ages, claims, trims: each answer is that of entries in memory."""
    cold, warm = StoredWorld(), World()
    cold.shelf.may_read_in_turns = True
    history = History(seed, cold.keyspace, is_kept_in_memory=True)
    for world in (cold, warm):
        world.call("CONFIG", "SET", "stream-node-max-entries", 1 + seed % 4)
        named(world.keyspace)
    for command in history.begin():
        assert play(cold, [command]) == play(warm, [command])
    for _ in range(STEPS):
        commands = history.next()
        passed_ms = history.random.choice((0, 1, 20))
        for world in (cold, warm):
            world.pass_ms(passed_ms)
        assert play(cold, commands) == play(warm, commands), commands
        if history.random.random() < 0.1:
            for world in (cold, warm):
                look_after(world, history)
        history.note()
    for world in (cold, warm):
        world.check()
    assert seen(cold.keyspace) == seen(warm.keyspace)


@pytest.mark.parametrize("seed", range(halves.some(16)))
def test_what_the_disk_does_not_give_leaves_no_command_half_done(seed: int) -> None:
    """A refusal has changed nothing; what was done is in the log, and stays so when the disk is mended."""
    world = StoredWorld()
    world.shelf = shelf = DamagedShelf()
    shelf.serve(world.keyspace)
    world.call("CONFIG", "SET", "stream-node-max-entries", 1 + seed % 4)
    history = History(seed, world.keyspace)
    for command in history.begin():
        play(world, [command])
    refused = 0
    for _ in range(STEPS):
        world.pass_ms(history.random.choice((0, 1, 20)))
        answers = play(world, history.next())
        refused += sum(isinstance(one, tuple) and one[0] == "entries_damaged" for one in answers)
        if history.random.random() < 0.1:
            look_after(world, history)
        places = sorted({run.offset for run in runs_of(world.keyspace)})
        shelf.bad = frozenset(each for each in places if history.random.random() < 0.2)
        world.keyspace.runs.damaged.clear()
        history.note()
    assert refused
    shelf.bad = frozenset()
    world.keyspace.runs.damaged.clear()
    world.check()


def runs_of(keyspace: Keyspace) -> list[Run]:
    parts = [part for key in keyspace.keys.values() for part in key.stream.parts_from()]
    return [part for part in parts if isinstance(part, Run)]
