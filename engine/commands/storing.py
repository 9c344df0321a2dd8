"""Nodes go to files: the engine's own command for what its rewriter has written.

Knows: that nothing may have changed since the nodes were chosen.
Must never know: files, threads, why there is too little memory.
"""

from collections.abc import Sequence
from typing import ClassVar

from engine.commands.base import Command
from engine.commands.registry import runs
from engine.commands.turn import Turn
from engine.nodes import SealedNode
from engine.records.changes import Stored
from engine.runs import Run


class StoreRuns(Command, frozen=True, kw_only=True):
    """The engine runs it when runs are on the disk: let go of the nodes that are in them. Each is a record
    with the parts for which it stands. Reply: how many took their place; the others have changed meanwhile.
    """

    is_internal: ClassVar[bool] = True

    rows: Sequence[tuple[Stored, Sequence[SealedNode | Run]]]

    def depends_on(self) -> tuple[str, ...]:
        return ()


@runs(StoreRuns)
def store_runs(turn: Turn, command: StoreRuns) -> int:
    done = 0
    for record, parts in command.rows:
        key = turn.keyspace.find(record.stream)
        if key is not None and all(key.stream.nodes.get(part.first) is part for part in parts):
            turn.emit_quietly(record)
            done += 1
    return done
