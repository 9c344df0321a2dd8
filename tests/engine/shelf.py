"""Runs of a small world, in files that are bytes: every node goes as soon as it may.

Knows: what the rewriter's thread does to store nodes, and a reader's to read them, all at once.
Must never know: disk.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from engine import Engine, EngineError
from engine.commands.base import Command
from engine.commands.execution import Execution, Missing, Turn, execute, execute_all
from engine.keyspace import Keyspace
from engine.record import Record
from engine.records.changes import RemoveStream, SetLifetime
from engine.replies import Reply
from engine.runs import NOTHING_HELD, HeldRuns, LoadedRun, Run, Runs, parse, refuse
from engine.runtime.storing import StoreBounds, cold_nodes, make_run, stored
from tests.engine.world import World

T = TypeVar("T")


class WatchedRuns(Runs):
    """Runs into which, within a turn, nothing looks but what selects."""

    in_turn = False

    def _look(self, run: Run) -> LoadedRun:
        assert not self.in_turn or self._held is not NOTHING_HELD, "an emission looks into a run"
        return super()._look(run)


def watch(keyspace: Keyspace) -> WatchedRuns:
    """Watch the runs of a keyspace."""
    runs = keyspace.runs
    runs.__class__ = WatchedRuns
    assert isinstance(runs, WatchedRuns)
    return runs


def in_turn(runs: WatchedRuns, run: Callable[..., T], *args: Any, **options: Any) -> T:
    """Run a turn under watch."""
    runs.in_turn = True
    try:
        return run(*args, **options)
    finally:
        runs.in_turn = False


class StoringEngine(Engine):
    """An engine of which every full node may go to a file, and which caches one run; a read may hold more."""

    store_bounds = StoreBounds(after_nodes=0)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._keyspace.runs.bytes_max = 1
        runs, turns = watch(self._keyspace), self._turns
        turns._run = partial(in_turn, runs, turns._run)  # type: ignore[method-assign] # noqa: SLF001


class Shelf:
    """A file with all runs, of which the cache holds the last one alone. What a read finds behind dead
    letters that come to itself it `may_read_in_turns`.
    """

    may_read_in_turns = False

    def __init__(self) -> None:
        self.content = bytearray()

    def read(self, run: Run) -> bytes:
        return bytes(self.content[run.offset : run.offset + run.length])

    def serve(self, keyspace: Keyspace) -> Keyspace:
        """Let the keyspace read its runs here."""
        watch(keyspace)
        keyspace.runs.bytes_max, keyspace.runs.read = 1, self.read
        return keyspace

    def store(self, keyspace: Keyspace) -> list[Record]:
        """Store all nodes but the newest; the records of it."""
        records: list[Record] = []
        for name, key in keyspace.keys.items():
            for cold in list(cold_nodes(name, key.stream, StoreBounds(after_nodes=0))):
                written = make_run(cold)
                offset = len(self.content)
                self.content += written.content
                records.append(stored(name, cold.nodes[0].first, cold.nodes[-1].last, 1, offset, written))
        for record in records:
            record.apply(keyspace)
        return records

    def execute(self, keyspace: Keyspace, command: Command, now_ms: int, so_far: object = None) -> Execution:
        """One turn, as often as it takes to have all that it looks at."""
        held: HeldRuns = {}
        due: list[Record] = []
        reads_before = keyspace.runs.reads_in_turns
        while True:
            outcome = in_turn(watch(keyspace), execute, keyspace, command, now_ms, so_far, held)
            waited = keyspace.runs.reads_in_turns == reads_before
            assert waited or self.may_read_in_turns, "what is looked at is looked at first"
            due += outcome.turn.records
            if not isinstance(outcome.reply, Missing):
                outcome.turn.records[:] = due
                return outcome
            assert all(isinstance(each, RemoveStream | SetLifetime) for each in due), "it has changed nothing"
            self._fetch(keyspace, outcome.reply)

    def execute_all(
        self, keyspace: Keyspace, commands: Sequence[Command], now_ms: int
    ) -> tuple[Sequence[Reply | EngineError], Turn]:
        """The same of a transaction. What depends on its own changes it reads in its turn."""
        held: HeldRuns = {}
        looked = False
        while True:
            replies, turn = in_turn(
                watch(keyspace), execute_all, keyspace, commands, now_ms, held, looked=looked
            )
            if not replies or not isinstance(missing := replies[0], Missing):
                return replies, turn
            assert not turn.records, "it has changed nothing"
            self._fetch(keyspace, missing)
            looked = bool(missing.so_far)

    def _fetch(self, keyspace: Keyspace, missing: Missing) -> None:
        for run in missing.runs:
            missing.held[run.place] = keyspace.runs.keep(run, parse(run, self.read)) or refuse(run)


class StoredWorld(World):
    """A world in which every node goes to the shelf after each command; `seals`: open ones too."""

    def __init__(self, *, seals: bool = False) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.shelf.serve(self.keyspace)
        self.seals = seals

    def run_turn(self, command: Command) -> Execution:
        return self.shelf.execute(self.keyspace, command, self.now_ms)

    def run_transaction(self, commands: Sequence[Command]) -> tuple[Sequence[Reply | EngineError], Turn]:
        return self.shelf.execute_all(self.keyspace, commands, self.now_ms)

    def _log(self, records: list[Record], *, changed: bool) -> None:
        super()._log(records, changed=changed)
        for key in self.keyspace.keys.values() if self.seals else ():
            if key.stream.open is not None:
                key.stream._seal()  # noqa: SLF001 - long before it is full
        going = self.shelf.store(self.keyspace)
        if going:
            super()._log(going, changed=True)

    def empty_keyspace(self) -> Keyspace:
        return self.shelf.serve(Keyspace())
