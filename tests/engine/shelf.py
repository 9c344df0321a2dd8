"""Runs of a small world, in files that are bytes: every node goes as soon as it may.

Knows: what the rewriter's thread does to store nodes, and a reader's to read them, all at once.
Must never know: disk.
"""

from collections.abc import Sequence
from typing import Any

from engine import Engine, EngineError
from engine.commands import Command
from engine.commands.execution import Execution, Turn, Unread, execute, execute_all
from engine.keyspace import Keyspace
from engine.records import Record
from engine.replies import Reply
from engine.runs import HeldRuns, Run, parse
from engine.runtime.storing import StoreBounds, cold_nodes, make_run, stored
from tests.engine.world import World


class StoringEngine(Engine):
    """An engine of which every full node may go to a file, and which caches one run; a read may hold more."""

    store_bounds = StoreBounds(after_nodes=0)

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._keyspace.runs.bytes_max = 1


class Shelf:
    """A file with all runs, of which the cache holds the last one alone."""

    def __init__(self) -> None:
        self.content = bytearray()

    def read(self, run: Run) -> bytes:
        return bytes(self.content[run.offset : run.offset + run.length])

    def serve(self, keyspace: Keyspace) -> Keyspace:
        """Let the keyspace read its runs here."""
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
        reads_before = keyspace.runs.reads_in_turns
        while True:
            outcome = execute(keyspace, command, now_ms, so_far, held)
            assert keyspace.runs.reads_in_turns == reads_before, "what is looked at is looked at first"
            if not isinstance(outcome.reply, Unread):
                return outcome
            assert not outcome.turn.records, "it has changed nothing"
            self._fetch(keyspace, outcome.reply)

    def execute_all(
        self, keyspace: Keyspace, commands: Sequence[Command], now_ms: int
    ) -> tuple[Sequence[Reply | EngineError], Turn]:
        """The same of a transaction. What depends on its own changes it reads in its turn."""
        held: HeldRuns = {}
        rehearsals = 0
        while True:
            replies, turn = execute_all(keyspace, commands, now_ms, held, rehearsals)
            if not replies or not isinstance(unread := replies[0], Unread):
                return replies, turn  # type: ignore[return-value]
            assert not turn.records, "it has changed nothing"
            self._fetch(keyspace, unread)
            rehearsals = unread.so_far

    def _fetch(self, keyspace: Keyspace, unread: Unread) -> None:
        for run in unread.runs:
            loaded = keyspace.runs.keep(run, parse(run, self.read))
            assert loaded is not None, "it is sound"
            unread.held[run.place] = loaded


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
